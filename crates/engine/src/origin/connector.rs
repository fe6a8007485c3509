//! Connecting to NBD servers, in threads, because connecting and negotiating block.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use haversack_model::DiskHandle;
use haversack_nbd::{ClientNegotiation, ClientStep, Connected, NbdUri, TlsPolicy, Transport};

use super::wire::Wire;
use crate::arena::ArenaHandle;
use crate::config::TlsFiles;
use crate::reactor::Reactor;
use crate::{tls, tls_pump};

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A connection in the transmission phase.
pub(super) struct Connection {
    pub socket: OwnedFd,
    pub connected: Connected,
    /// To see whether the server's host still answers, if it is another host.
    pub wire: Option<Wire>,
}

/// A server to connect to.
#[derive(Clone)]
pub(super) struct Server {
    pub uri: NbdUri,
    pub tls: TlsFiles,
    /// The metadata context to request.
    pub context: Option<&'static str>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

fn negotiate(stream: &mut dyn Stream, negotiation: &mut ClientNegotiation) -> io::Result<Option<Connected>> {
    let (mut output, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), negotiation.closed()),
            _ => error,
        })?;
        let step = negotiation.receive(&mut &*bytes, &mut output);
        stream.write_all(&output)?;
        output.clear();
        match step.map_err(io::Error::other)? {
            ClientStep::Continue => {}
            ClientStep::StartTls => return Ok(None),
            ClientStep::Connected(connected) => return Ok(Some(connected)),
        }
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    haversack_vhost_user::socket::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(error.kind(), "the server accepts no connections"),
        _ => error,
    })
}

/// Makes one attempt to connect.
fn connect(server: &Server) -> io::Result<Connection> {
    let uri = &server.uri;
    let policy = if uri.tls { TlsPolicy::Required } else { TlsPolicy::Off };
    let mut negotiation = ClientNegotiation::new(&uri.export, policy).map_err(io::Error::other)?;
    if let Some(context) = server.context {
        negotiation = negotiation.with_context(context).map_err(io::Error::other)?;
    }
    match &uri.transport {
        Transport::Tcp { host, port } => {
            let stream = connect_tcp(host, *port)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let wire = Some(Wire::watch(&stream)?);
            let greeted = greet(server, stream, host, &mut negotiation, |stream| {
                stream.set_read_timeout(None).and(stream.set_write_timeout(None))
            })?;
            Ok(Connection { wire, ..greeted })
        }
        Transport::Unix { socket } => {
            let stream = connect_unix(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            greet(server, stream, "localhost", &mut negotiation, |stream| {
                stream.set_read_timeout(None).and(stream.set_write_timeout(None))
            })
        }
    }
}

fn greet<S: Read + Write + Send + Into<OwnedFd>>(
    server: &Server,
    mut stream: S,
    host: &str,
    negotiation: &mut ClientNegotiation,
    without_timeouts: impl FnOnce(&S) -> io::Result<()>,
) -> io::Result<Connection> {
    if let Some(connected) = negotiate(&mut stream, negotiation)? {
        without_timeouts(&stream)?;
        return Ok(Connection { socket: stream.into(), connected, wire: None });
    }
    let host = server.uri.tls_hostname.as_deref().unwrap_or(host);
    let verify = server.uri.tls_verify_peer.unwrap_or(true);
    let mut stream = tls::connect(stream, host, verify, &server.tls)?;
    let mut output = Vec::new();
    negotiation.tls_started(&mut output);
    stream.write_all(&output).map_err(tls::hung_up)?;
    let connected = negotiate(&mut stream, negotiation)
        .map_err(tls::hung_up)?
        .ok_or_else(|| io::Error::other("the server asks for TLS inside of TLS"))?;
    let socket = tls_pump::start(stream.conn.into(), stream.sock.into(), ())?;
    Ok(Connection { socket, connected, wire: None })
}

/// Connects, retrying for some time; gives up at once if retrying cannot help, as with wrong certificates.
pub(super) fn connect_within(server: &Server, wait: Duration) -> io::Result<Connection> {
    if server.uri.tls {
        tls::check(&server.tls, server.uri.tls_verify_peer.unwrap_or(true))?;
    }
    let (begin, mut pause) = (Instant::now(), SHORTEST_PAUSE);
    loop {
        match connect(server) {
            Err(error) if tls::is_refusal(&error) || begin.elapsed() + pause > wait => return Err(error),
            Err(_) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            connection => return connection,
        }
    }
}

/// Starts the thread that makes connections on request, until the requesting side is gone. A server whose
/// export is smaller than `needed_bytes`, which may change, counts as unreachable.
#[allow(clippy::type_complexity)]
pub(super) fn start(
    server: Server,
    needed_bytes: Arc<AtomicU64>,
    disk: DiskHandle,
    handle: ArenaHandle,
) -> (Sender<usize>, Receiver<Result<Connection, String>>) {
    let (wanted, wishes) = mpsc::channel();
    let (arrivals, arrived) = mpsc::channel();
    let serve = move || {
        let mut soonest = Instant::now();
        while wishes.recv().is_ok() {
            // A server that accepts connections and drops them must not keep both sides busy.
            std::thread::sleep(soonest.saturating_duration_since(Instant::now()));
            soonest = Instant::now() + SHORTEST_PAUSE;
            if !serve_wish(&server, &needed_bytes, disk, &handle, &arrivals) {
                break;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("nbd-connector".into()).spawn(serve);
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot start a thread for the connections to an origin");
    }
    (wanted, arrived)
}

/// Connects, however long it takes. Returns false when the connection is no longer needed.
fn serve_wish(
    server: &Server,
    needed_bytes: &AtomicU64,
    disk: DiskHandle,
    handle: &ArenaHandle,
    arrivals: &Sender<Result<Connection, String>>,
) -> bool {
    let (mut pause, mut told) = (SHORTEST_PAUSE, String::new());
    loop {
        let needed_bytes = needed_bytes.load(Ordering::Relaxed);
        let fits = |connection: Connection| match connection.connected.size_bytes {
            size if size < needed_bytes => {
                Err(io::Error::other(format!("{size} bytes, the disk needs {needed_bytes}")))
            }
            _ => Ok(connection),
        };
        let outcome = connect(server).and_then(fits).map_err(|error| error.to_string());
        let connected = outcome.is_ok();
        let news = connected || outcome.as_ref().err() != Some(&told);
        told = outcome.as_ref().err().cloned().unwrap_or_default();
        if news && arrivals.send(outcome).is_err() {
            return false;
        }
        // A server that stays unreachable is not reported again, but its disk may have been detached.
        let tick = move |reactor: &mut Reactor| reactor.origin(disk, |o, context| o.tick(context));
        if !handle.run(tick).unwrap_or(false) {
            return false;
        }
        if connected {
            return true;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
