//! All connections: a thread that listens, connects, and runs them.
//!
//! Of two hosts the one with the lower identity connects, the other one listens.
//!
//! Invariant
//! - Until a host has proved its name it has a few seconds, and there are few such connections at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use haversack_model::HostId;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::{LinkConfig, LinkError, host_id};
use crate::connection::{self, Deliver, Stream};
use crate::frame::Frame;
use crate::hello::{self, Hello};
use crate::peer::Peer;
use crate::tls::{self, Tls};

/// How long connecting and proving the name may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections whose hosts have not proved their names yet.
const MOST_NEW: usize = 64;
/// The first and the longest pause between attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// The state of the connection to a host.
#[derive(Clone, PartialEq, Debug)]
pub struct HostState {
    /// Its identity.
    pub id: HostId,
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// It is connected.
    pub is_connected: bool,
    /// The time that the last question took there and back, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Bytes sent to it, not counting TLS.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Frames that were dropped, since it was not connected or its queue was full.
    pub dropped_frames: u64,
    /// Why it is not connected.
    pub last_error: Option<String>,
}

type Peers = Arc<BTreeMap<HostId, Arc<Peer>>>;

/// Sends frames; cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct LinkSender(Peers);

impl LinkSender {
    /// Sends a frame, without waiting. It is dropped if the host is unknown or not connected, or takes too little.
    pub fn send(&self, to: HostId, frame: Frame) {
        if let Some(peer) = self.0.get(&to) {
            peer.send(frame);
        }
    }
}

/// All connections. They end when it is dropped.
pub struct Links {
    peers: Peers,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Clone)]
struct Shared {
    name: Arc<str>,
    peers: Peers,
    tls: Option<Tls>,
    deliver: Deliver,
    new: Arc<Semaphore>,
}

impl Links {
    /// Listens, and connects to the other hosts. Frames that arrive are given to `deliver`, which must not wait.
    ///
    /// # Errors
    /// An address or a file cannot be used.
    pub fn start(
        config: LinkConfig,
        deliver: impl Fn(HostId, Frame) + Send + Sync + 'static,
    ) -> Result<Links, LinkError> {
        let tls = tls::load(&config)?;
        let me = host_id(&config.name);
        let peers = config.peers.into_iter().map(|peer| {
            let id = host_id(&peer.name);
            (id, Arc::new(Peer::new(id, peer, config.copy_rate_bytes)))
        });
        let peers: Peers = Arc::new(peers.filter(|(id, _)| *id != me).collect());
        let listeners = config.listen.iter().map(|address| {
            let listen = || {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            };
            listen().map_err(|source| LinkError::Listen { address: *address, source })
        });
        let listeners: Vec<std::net::TcpListener> = listeners.collect::<Result<_, LinkError>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let new = Arc::new(Semaphore::new(MOST_NEW));
        let shared =
            Shared { name: config.name.into(), peers: peers.clone(), tls, deliver: Arc::new(deliver), new };
        let run = move || {
            runtime.block_on(async move {
                for listener in listeners {
                    tokio::spawn(listen(shared.clone(), listener));
                }
                for peer in shared.peers.values().filter(|peer| me < peer.id) {
                    tokio::spawn(keep_connected(shared.clone(), peer.clone()));
                }
                // An error says that the owner is gone.
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("hosts".into()).spawn(run)?;
        Ok(Links { peers, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns a handle for sending.
    pub fn sender(&self) -> LinkSender {
        LinkSender(self.peers.clone())
    }

    /// Returns the state of each connection.
    pub fn state(&self) -> Vec<HostState> {
        let describe = |peer: &Arc<Peer>| {
            let state = peer.state();
            HostState {
                id: peer.id,
                name: peer.config.name.clone(),
                address: peer.config.address.clone(),
                is_connected: state.connection.is_some(),
                round_trip_us: state.round_trip_us,
                sent_bytes: peer.sent_bytes.load(Ordering::Relaxed),
                received_bytes: peer.received_bytes.load(Ordering::Relaxed),
                dropped_frames: peer.dropped_frames.load(Ordering::Relaxed),
                last_error: state.error.clone(),
            }
        };
        self.peers.values().map(describe).collect()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            // The last one to drop may be the thread itself, in the midst of delivering a frame.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

async fn listen(shared: Shared, listener: std::net::TcpListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("cannot listen for other hosts: {error}"),
    };
    loop {
        let permit = shared.new.clone().acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, address)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    if let Err(why) = accept(&shared, stream, permit).await {
                        tracing::info!(%address, "refused a connection as a host: {why}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept connections of other hosts: {error}");
                sleep(PAUSES[0]).await;
            }
        }
    }
}

async fn accept(shared: &Shared, stream: TcpStream, permit: OwnedSemaphorePermit) -> Result<(), String> {
    let greeted = timeout(PATIENCE, greet_back(shared, stream)).await.map_err(|_| "it takes too long")?;
    let (stream, peer) = greeted?;
    drop(permit);
    connection::run(stream, &peer, &shared.deliver).await;
    Ok(())
}

async fn greet_back(shared: &Shared, stream: TcpStream) -> Result<(Box<dyn Stream>, Arc<Peer>), String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let mut certificates = None;
    let mut stream: Box<dyn Stream> = match &shared.tls {
        None => Box::new(stream),
        Some(tls) => {
            let accepted = TlsAcceptor::from(tls.server.clone()).accept(stream).await;
            let stream = accepted.map_err(|error| error.to_string())?;
            certificates = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
            Box::new(stream)
        }
    };
    let hello = hello::read(&mut stream).await?;
    let peer = shared.peers.get(&host_id(&hello.name)).filter(|peer| peer.config.name == hello.name);
    let peer = peer.ok_or_else(|| format!("host '{}' is not configured here", hello.name))?.clone();
    if hello.to != *shared.name {
        return Err(format!("it looks for host '{}', and this is '{}'", hello.to, shared.name));
    }
    if shared.tls.is_some() {
        let shown = certificates.as_ref().and_then(|chain| chain.first());
        if let Err(why) = tls::check_name(shown, &hello.name) {
            peer.failed(why.clone());
            return Err(why);
        }
    }
    hello::write(&mut stream, &Hello { name: shared.name.to_string(), to: hello.name }).await?;
    Ok((stream, peer))
}

async fn keep_connected(shared: Shared, peer: Arc<Peer>) {
    let mut pause = PAUSES[0];
    loop {
        match timeout(PATIENCE, connect(&shared, &peer)).await {
            Ok(Ok(stream)) => {
                pause = PAUSES[0];
                connection::run(stream, &peer, &shared.deliver).await;
            }
            Ok(Err(why)) => peer.failed(why),
            Err(_) => peer.failed(format!("{} does not answer", peer.config.address)),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES[1]);
    }
}

async fn connect(shared: &Shared, peer: &Peer) -> Result<Box<dyn Stream>, String> {
    let address = &peer.config.address;
    let stream = TcpStream::connect(address).await.map_err(|error| format!("{address}: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let mut stream: Box<dyn Stream> = match &shared.tls {
        None => Box::new(stream),
        Some(tls) => {
            let name = ServerName::try_from(peer.config.name.clone()).map_err(|error| error.to_string())?;
            let connected = TlsConnector::from(tls.client.clone()).connect(name, stream).await;
            Box::new(connected.map_err(|error| format!("{address}: {error}"))?)
        }
    };
    let (name, to) = (shared.name.to_string(), peer.config.name.clone());
    hello::write(&mut stream, &Hello { name, to }).await?;
    // A host that refuses closes the connection.
    let hello =
        hello::read(&mut stream).await.map_err(|why| format!("{address}: it refuses this host, or {why}"))?;
    if hello.name != peer.config.name {
        return Err(format!("{address}: it is host '{}', not '{}'", hello.name, peer.config.name));
    }
    Ok(stream)
}
