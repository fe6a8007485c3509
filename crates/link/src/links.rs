//! The thread of the connections, and the handles to it for the rest of the daemon.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haversack_model::HostId;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

use crate::accept::{self, HANDSHAKES};
use crate::config::{Config, Security, host_id};
use crate::dial;
use crate::error::{ConnectionError, LinkError, SendError};
use crate::host::{Host, HostState};
use crate::inbox::Receipt;
use crate::tls::{Credentials, Keyring};
use crate::wire::Frame;

/// An event of the connection to a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// There is a connection: frames to the host are sent from now on.
    Connected,
    /// A frame was received.
    Received(Frame),
    /// There is no connection now.
    Lost,
}

/// Connections that were refused since the start, before their host was known.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Refused {
    /// Their number.
    pub count: u64,
    /// The peer of the last one, and why it was refused.
    pub last: Option<String>,
}

/// The least time between two warnings about refused connections: anyone can cause them.
const QUIET: Duration = Duration::from_secs(10);

type Hosts = BTreeMap<HostId, Arc<Host>>;

/// The state shared by the thread's tasks.
pub(crate) struct Shared {
    /// This host's name, in lower case.
    pub name: String,
    pub hosts: Arc<Hosts>,
    /// Whether data is compressed if the link is the bottleneck.
    pub compresses: bool,
    deliver: Box<dyn Fn(HostId, Event, Receipt) + Send + Sync>,
    keyring: Option<Mutex<Keyring>>,
    refused: Arc<Mutex<Refused>>,
    warned_at: Mutex<Option<Instant>>,
    started: Instant,
}

impl Shared {
    pub fn deliver(&self, host: &Host, event: Event, receipt: Receipt) {
        (self.deliver)(host.id, event, receipt);
    }

    /// Returns the credentials of this host; `None` without TLS.
    pub fn credentials(&self) -> Option<Credentials> {
        self.keyring.as_ref().map(|keyring| keyring.lock().expect("nothing panics with it").current())
    }

    /// Returns microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Keeps the reason why there is no connection to a host.
    pub fn failed(&self, host: &Host, error: &ConnectionError) {
        let text = error.to_string();
        if host.failed(text.clone()) {
            tracing::warn!(host = host.name, address = host.address, error = text, "not connected");
        }
    }

    /// Counts a connection that was refused.
    pub fn refuse(&self, why: String) {
        let mut refused = self.refused.lock().expect("nothing panics with it");
        refused.count += 1;
        let mut warned_at = self.warned_at.lock().expect("nothing panics with it");
        if warned_at.is_none_or(|at| at.elapsed() >= QUIET) {
            *warned_at = Some(Instant::now());
            tracing::warn!(why, refused = refused.count, "refused a connection");
        }
        refused.last = Some(why);
    }
}

/// Sends frames, from any thread.
#[derive(Clone)]
pub struct LinkSender {
    hosts: Arc<Hosts>,
}

impl fmt::Debug for LinkSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSender").field("hosts", &self.hosts.keys()).finish()
    }
}

impl LinkSender {
    /// Queues a frame, without waiting.
    ///
    /// # Errors
    /// The frame was dropped, and counted. That need not be handled: whoever waits for an answer repeats its question.
    pub fn send(&self, to: HostId, frame: Frame) -> Result<(), SendError> {
        self.hosts.get(&to).ok_or(SendError::UnknownHost(to))?.send(frame)
    }

    /// Limits the bytes per second of copies sent ahead to a host, from now on; 0 for no limit. Returns whether there
    /// is such a host.
    pub fn limit_copies(&self, host: HostId, bytes_per_second: u64) -> bool {
        let Some(host) = self.hosts.get(&host) else { return false };
        host.queue(|queue| queue.limit_copies(bytes_per_second, Instant::now()));
        host.queued.notify_one();
        true
    }

    /// Returns how many copies can be sent to a host now that neither wait for the limit nor exceed the queue. A
    /// sender that observes this has no copy waiting so long that it seems lost.
    pub fn copy_room(&self, host: HostId) -> usize {
        self.hosts.get(&host).map_or(0, |host| host.queue(|queue| queue.copy_room(Instant::now())))
    }

    /// Returns the number of the connection to a host, if there is one. No other one has had it since the start.
    pub fn connection(&self, host: HostId) -> Option<u64> {
        let host = self.hosts.get(&host)?;
        host.queue(|queue| queue.is_open()).then(|| host.connections())
    }

    /// Returns whether a host is connected.
    pub fn is_connected(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|host| host.queue(|queue| queue.is_open()))
    }
}

/// Connections to other hosts. They end when this is dropped; no event comes after that.
#[derive(Debug)]
pub struct Links {
    id: HostId,
    sender: LinkSender,
    addresses: Vec<SocketAddr>,
    refused: Arc<Mutex<Refused>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Listens, and starts to connect. `deliver` is called on the thread of the connections: it must neither wait nor
    /// panic. The receipt is to be dropped when the event has been handled, on whichever thread: while too many frames
    /// of a host are not, no more are received from it.
    ///
    /// # Errors
    /// The configuration is wrong, a file cannot be used, or an address cannot be listened on.
    pub fn start(
        config: &Config,
        deliver: impl Fn(HostId, Event, Receipt) + Send + Sync + 'static,
    ) -> Result<Links, LinkError> {
        config.check()?;
        let name = config.name.to_ascii_lowercase();
        let keyring = match &config.security {
            Security::Tls(files) => Some(Mutex::new(Keyring::open(&name, files)?)),
            Security::Insecure => None,
        };
        let listeners = config.listen.iter().map(|address| open(*address)).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>();
        let addresses = addresses.map_err(LinkError::Thread)?;

        let hosts = config.hosts.iter().map(|host| Host::new(host_id(&host.name), host, &name));
        let hosts: Arc<Hosts> = Arc::new(hosts.map(|host| (host.id, Arc::new(host))).collect());
        let refused = Arc::<Mutex<Refused>>::default();
        let shared = Arc::new(Shared {
            name,
            hosts: hosts.clone(),
            compresses: config.compresses,
            deliver: Box::new(deliver),
            keyring,
            refused: refused.clone(),
            warned_at: Mutex::new(None),
            started: Instant::now(),
        });
        let runtime = Builder::new_current_thread().enable_all().build().map_err(LinkError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("links".into());
        let thread = thread.spawn(move || run(runtime, shared, listeners, stopped));
        let thread = Some(thread.map_err(LinkError::Thread)?);
        let (id, sender) = (host_id(&config.name), LinkSender { hosts });
        Ok(Links { id, sender, addresses, refused, stop: Some(stop), thread })
    }

    /// Returns this host's number.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Returns the addresses that are listened on, with the ports that were found for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a sender of frames.
    pub fn sender(&self) -> LinkSender {
        self.sender.clone()
    }

    /// See [`LinkSender::send`].
    ///
    /// # Errors
    /// See [`LinkSender::send`].
    pub fn send(&self, to: HostId, frame: Frame) -> Result<(), SendError> {
        self.sender.send(to, frame)
    }

    /// Returns the state of each host, by number.
    pub fn state(&self) -> Vec<HostState> {
        self.sender.hosts.values().map(|host| host.state()).collect()
    }

    /// Returns the figures on refused connections.
    pub fn refused(&self) -> Refused {
        self.refused.lock().expect("nothing panics with it").clone()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The callback may own this: its thread cannot wait for itself.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn open(address: SocketAddr) -> Result<TcpListener, LinkError> {
    let failed = |source| LinkError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

fn run(runtime: Runtime, shared: Arc<Shared>, listeners: Vec<TcpListener>, stopped: oneshot::Receiver<()>) {
    let hosts = shared.hosts.clone();
    runtime.block_on(async move {
        let places = Arc::new(Semaphore::new(HANDSHAKES));
        for listener in listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => drop(tokio::spawn(accept::listen(shared.clone(), listener, places.clone()))),
                Err(error) => tracing::error!(%error, "cannot wait for connections of other hosts"),
            }
        }
        for host in shared.hosts.values().filter(|host| host.connects) {
            let (shared, host) = (shared.clone(), host.clone());
            tokio::spawn(async move { dial::keep(&shared, &host).await });
        }
        let _ = stopped.await;
    });
    // A name look-up may take long.
    runtime.shutdown_background();
    for host in hosts.values() {
        host.lost();
    }
}
