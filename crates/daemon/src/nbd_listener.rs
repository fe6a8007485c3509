//! The NBD server up to the transmission phase: a thread per connection negotiates, then the engine takes the socket.
//!
//! Invariants
//! - A client that does not get on with its negotiation is closed after `NEGOTIATION_TIME`; at most
//!   `MAX_NEGOTIATIONS` are under way at a time.
//! - A broken client ends its own connection only.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use haversack_api::DiskState;
use haversack_engine::{NbdClient, tls_pump};
use haversack_model::{DiskHandle, SECTOR_BYTES};
use haversack_nbd::{
    BlockSize, ExportInfo, Exports, Negotiated, ServerNegotiation, ServerStep, TlsPolicy, TransmissionFlags,
};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::config::{NbdConfig, NbdListen};
use crate::control::{ListenError, bind_tcp, bind_unix};
use crate::daemon::Daemon;
use crate::tls;

/// How long a negotiation may take.
const NEGOTIATION_TIME: Duration = Duration::from_secs(30);
/// How long a single read or write of a negotiation may take.
const STEP_TIME: Duration = Duration::from_secs(10);
/// Negotiations under way at a time.
const MAX_NEGOTIATIONS: usize = 256;
/// The pause after the system had no file descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Sockets that are bound and not served yet.
pub struct NbdListeners {
    sockets: Vec<Socket>,
    tls: Option<Arc<ServerConfig>>,
    tls_required: bool,
    max_connections_per_disk: u32,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Makes the sockets.
///
/// # Errors
/// A socket cannot be made, or certificate and key cannot be used.
pub fn bind(config: &NbdConfig) -> Result<NbdListeners, ListenError> {
    let tls = match (&config.tls_certificate, &config.tls_key) {
        (Some(certificate), Some(key)) => {
            let client_ca = config.tls_client_ca.as_deref();
            Some(Arc::new(tls::server_config(certificate, key, client_ca)?))
        }
        _ => None,
    };
    let socket = |listen: &NbdListen| match listen {
        NbdListen::Unix(path) => bind_unix(path).map(Socket::Unix),
        NbdListen::Tcp(address) => bind_tcp(*address).map(Socket::Tcp),
    };
    let sockets = config.listen.iter().map(socket).collect::<Result<_, _>>()?;
    Ok(NbdListeners {
        sockets,
        tls,
        tls_required: config.tls_required,
        max_connections_per_disk: config.max_connections_per_disk,
    })
}

impl NbdListeners {
    /// Serves them in the background, as long as the daemon lives.
    pub fn serve(self, daemon: &Arc<Daemon>) {
        let server = Arc::new(Server {
            daemon: Arc::downgrade(daemon),
            tls: self.tls,
            tls_required: self.tls_required,
            max_connections_per_disk: self.max_connections_per_disk,
            negotiations: AtomicUsize::new(0),
        });
        for socket in self.sockets {
            let server = server.clone();
            std::thread::spawn(move || server.accept(&socket));
        }
    }
}

/// What all listeners share.
struct Server {
    daemon: Weak<Daemon>,
    tls: Option<Arc<ServerConfig>>,
    tls_required: bool,
    max_connections_per_disk: u32,
    negotiations: AtomicUsize,
}

impl Server {
    fn accept(self: &Arc<Self>, socket: &Socket) {
        loop {
            let client = match socket {
                Socket::Unix(listener) => listener.accept().map(|(stream, _)| Client::Unix(stream)),
                Socket::Tcp(listener) => listener.accept().map(|(stream, _)| Client::Tcp(stream)),
            };
            let Some(daemon) = self.daemon.upgrade() else { return };
            match client {
                Ok(client) => self.begin(daemon, client),
                Err(error) => {
                    tracing::warn!("NBD: cannot accept a connection: {error}");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, daemon: Arc<Daemon>, client: Client) {
        if self.negotiations.fetch_add(1, Ordering::Relaxed) >= MAX_NEGOTIATIONS || daemon.is_stopping() {
            self.negotiations.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("NBD: too many negotiations under way, or stopping: a connection is closed");
            return;
        }
        let server = self.clone();
        let run = move || {
            let end = server.negotiate(&daemon, client);
            server.negotiations.fetch_sub(1, Ordering::Relaxed);
            let max = server.max_connections_per_disk;
            if let Err(error) = end.and_then(|done| done.map_or(Ok(()), |done| done.hand_over(&daemon, max)))
            {
                tracing::info!("NBD: a connection ended in its negotiation: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("nbd-negotiation".into()).spawn(run) {
            self.negotiations.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("NBD: no thread for a connection: {error}");
        }
    }

    /// `None` if the client wants no more.
    fn negotiate(&self, daemon: &Arc<Daemon>, client: Client) -> io::Result<Option<Done>> {
        client.set_timeouts(Some(STEP_TIME))?;
        let policy = match (&self.tls, &client) {
            (None, _) => TlsPolicy::Off,
            (Some(_), Client::Tcp(_)) if self.tls_required => TlsPolicy::Required,
            (Some(_), _) => TlsPolicy::Allowed,
        };
        let mut exports = Offered { daemon: daemon.clone(), found: None };
        let mut output = Vec::new();
        let mut session = Session {
            negotiation: ServerNegotiation::new(policy, &mut output),
            deadline: Instant::now() + NEGOTIATION_TIME,
        };
        let mut plain = client;
        plain.write_all(&output)?;
        match session.run(&mut plain, &mut exports)? {
            Step::Over => Ok(None),
            Step::Agreed(agreed) => Ok(Some(Done { agreed, exports, client: plain, tls: None })),
            Step::Tls => {
                let config = self.tls.clone().ok_or_else(|| io::Error::other("TLS without a certificate"))?;
                let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, plain);
                match session.run(&mut stream, &mut exports)? {
                    Step::Agreed(agreed) => {
                        let (connection, client) = stream.into_parts();
                        Ok(Some(Done { agreed, exports, client, tls: Some(Box::new(connection)) }))
                    }
                    Step::Over => Ok(None),
                    Step::Tls => Err(io::Error::other("TLS within TLS")),
                }
            }
        }
    }
}

/// A negotiation, with or without TLS.
struct Session {
    negotiation: ServerNegotiation,
    deadline: Instant,
}

enum Step {
    Agreed(Box<Negotiated>),
    Tls,
    Over,
}

impl Session {
    fn run(&mut self, stream: &mut (impl Read + Write), exports: &mut Offered) -> io::Result<Step> {
        let mut buffer = vec![0; 8192];
        let mut output = Vec::new();
        loop {
            if Instant::now() >= self.deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the negotiation takes too long"));
            }
            // Reading what is wanted and no more leaves nothing over for TLS or the transmission phase.
            let wanted = self.negotiation.wanted_bytes().min(buffer.len());
            let count = match stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Ok(Step::Over),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            output.clear();
            let step = self
                .negotiation
                .receive(&mut &buffer[..count], exports, &mut output)
                .map_err(io::Error::other)?;
            stream.write_all(&output)?;
            stream.flush()?;
            match step {
                ServerStep::Continue => {}
                ServerStep::StartTls => return Ok(Step::Tls),
                ServerStep::Transmission(agreed) => return Ok(Step::Agreed(agreed)),
                ServerStep::Aborted => return Ok(Step::Over),
            }
        }
    }
}

/// The attached disks, as a client sees them.
struct Offered {
    daemon: Arc<Daemon>,
    /// The export looked up last.
    found: Option<Found>,
}

/// An export as it was when it was looked up, and whose it was.
#[derive(PartialEq, Eq)]
struct Found {
    pool: String,
    disk: DiskHandle,
    export: ExportInfo,
}

impl Offered {
    fn names(&self) -> Vec<String> {
        let is_offered = |d: &mut crate::daemon::DiskInner| d.state == DiskState::Attached && d.config.nbd;
        self.daemon
            .disks()
            .into_iter()
            .filter(|(_, disk)| disk.with(is_offered))
            .map(|(name, _)| name)
            .collect()
    }
}

impl Exports for Offered {
    fn names(&mut self) -> Vec<String> {
        Offered::names(self)
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        self.found = self.look_up(name);
        self.found.as_ref().map(|found| found.export.clone())
    }
}

impl Offered {
    fn look_up(&self, name: &str) -> Option<Found> {
        let names = Offered::names(self);
        let name = match (name, names.as_slice()) {
            ("", [only]) => only,
            _ => names.iter().find(|n| *n == name)?,
        };
        let disk = self.daemon.disk(name).ok()?;
        let (handle, config, sectors) = disk.with(|d| Some((d.handle?, d.config.clone(), d.sectors)))?;
        let export = ExportInfo {
            name: name.clone(),
            description: format!("Haversack disk {}", disk.id),
            size_bytes: sectors * SECTOR_BYTES as u64,
            read_only: config.read_only,
            block_size: BLOCK_SIZE,
            features: FEATURES,
        };
        Some(Found { pool: config.pool, disk: handle, export })
    }
}

/// Whole sectors; a cache block is best.
const BLOCK_SIZE: BlockSize = match BlockSize::new(SECTOR_BYTES as u32, 4096, 32 << 20) {
    Ok(sizes) => sizes,
    Err(_) => BlockSize::SERVER_DEFAULT,
};

const FEATURES: TransmissionFlags = TransmissionFlags::SEND_FLUSH
    .with(TransmissionFlags::SEND_FUA)
    .with(TransmissionFlags::SEND_TRIM)
    .with(TransmissionFlags::SEND_WRITE_ZEROES)
    .with(TransmissionFlags::SEND_DF)
    .with(TransmissionFlags::SEND_CACHE)
    .with(TransmissionFlags::CAN_MULTI_CONN);

/// A negotiation that came to its end.
struct Done {
    agreed: Box<Negotiated>,
    exports: Offered,
    client: Client,
    tls: Option<Box<ServerConnection>>,
}

impl Done {
    /// Makes the connection a client. The negotiation has waited for its client, for as long as that liked, and what was
    /// agreed on may be gone: the export is looked up again here, and once more by the reactor, where nothing can change
    /// any more before the connection is a client.
    fn hand_over(self, daemon: &Daemon, max_connections: u32) -> io::Result<()> {
        let found = self.exports.found.as_ref();
        let found = found.filter(|found| self.exports.look_up(&found.export.name).as_ref() == Some(*found));
        let Some(Found { pool, disk, .. }) = found.filter(|found| found.export == self.agreed.export) else {
            return Err(io::Error::other("the export was detached or has changed meanwhile"));
        };
        self.client.set_timeouts(None)?;
        let socket = match self.tls {
            None => self.client.into_fd(),
            Some(connection) => tls_pump::start((*connection).into(), self.client.into_fd())?,
        };
        tracing::info!(disk = self.agreed.export.name, tls = self.agreed.tls, "NBD client");
        let client = NbdClient { disk: *disk, socket, negotiated: *self.agreed, max_connections };
        let pool = daemon.pool(pool).map_err(io::Error::other)?;
        pool.backend.add_nbd_client(client).map_err(io::Error::other)
    }
}

/// A client's connection.
enum Client {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Client {
    fn set_timeouts(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Client::Unix(stream) => {
                stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time))
            }
            Client::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time))
            }
        }
    }

    fn into_fd(self) -> OwnedFd {
        match self {
            Client::Unix(stream) => stream.into(),
            Client::Tcp(stream) => stream.into(),
        }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Client::Unix(stream) => stream.read(buffer),
            Client::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Client::Unix(stream) => stream.write(bytes),
            Client::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
