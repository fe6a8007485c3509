//! The NBD server up to the transmission phase: a thread per connection negotiates, then the engine takes the socket.
//!
//! Invariants
//! - A negotiation, including TLS handshake and hand-over, has one deadline. No read or write waits beyond it.
//! - Each listener has its own places for connections and for negotiations, and a peer may take only part of
//!   each. A connection keeps its place as long as it lives, so threads are bounded, including those of TLS.
//! - An export whose disk the starting daemon is still attaching is not refused: the client waits for it, until the
//!   deadline of its negotiation.
//! - A broken client ends only its own connection.

mod connection;
mod exports;
mod session;

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use haversack_engine::MessageLimit;
use rustls::ServerConfig;

use crate::config::{NbdConfig, NbdListen};
use crate::control::{ListenError, bind_tcp, bind_unix};
use crate::daemon::Daemon;
use crate::descriptors::Spare;
use crate::limits::{Full, Peer, Place, Places, TurnedAway};
use crate::tls::{self, ClientCertificates};
use connection::Client;

/// One peer may take up to this fraction of a listener's negotiations: one divided by this number.
const NEGOTIATIONS_OF_A_PEER: usize = 4;
/// The pause after the system failed to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Descriptors of a connection: its socket and, with TLS, the socket pair behind it.
const DESCRIPTORS: usize = 1;
const DESCRIPTORS_WITH_TLS: usize = 3;

/// Sockets that are bound but not served yet.
pub struct NbdListeners {
    sockets: Vec<Socket>,
    tls: Option<Arc<ServerConfig>>,
    config: NbdConfig,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Creates the sockets.
///
/// # Errors
/// A socket cannot be created, or the certificate or key cannot be used.
pub fn bind(config: &NbdConfig) -> Result<NbdListeners, ListenError> {
    let tls = match (&config.tls_certificate, &config.tls_key) {
        (Some(certificate), Some(key)) => {
            let clients = config
                .tls_client_ca
                .as_deref()
                .map_or(ClientCertificates::None, ClientCertificates::Required);
            Some(Arc::new(tls::server_config(certificate, key, clients)?))
        }
        _ => None,
    };
    let socket = |listen: &NbdListen| match listen {
        NbdListen::Unix(path) => bind_unix(path).map(|(listener, _)| Socket::Unix(listener)),
        NbdListen::Tcp(address) => bind_tcp(*address).map(Socket::Tcp),
    };
    let sockets = config.listen.iter().map(socket).collect::<Result<_, _>>()?;
    Ok(NbdListeners { sockets, tls, config: config.clone() })
}

impl NbdListeners {
    /// Serves the sockets in the background, as long as the daemon lives. Clients take their file descriptors
    /// from `descriptors`.
    pub fn serve(self, daemon: &Arc<Daemon>, descriptors: &Arc<Places>) {
        let server = Arc::new(Server {
            daemon: Arc::downgrade(daemon),
            tls: self.tls,
            tls_required: self.config.tls_required,
            max_connections_per_disk: self.config.max_connections_per_disk,
            negotiation_time: self.config.negotiation_time.0,
            descriptors: descriptors.clone(),
        });
        for (socket, listen) in self.sockets.into_iter().zip(&self.config.listen) {
            let messages = MessageLimit::new(format!("NBD connections of {listen}"));
            let listener = Listener {
                socket,
                server: server.clone(),
                connections: self.config.connections(),
                negotiations: self.config.negotiations(),
                messages: Arc::new(messages),
            };
            std::thread::spawn(move || listener.run());
        }
    }
}

impl NbdConfig {
    fn connections(&self) -> Arc<Places> {
        Places::new("connections", self.max_connections as usize, self.max_connections_per_peer as usize)
    }

    fn negotiations(&self) -> Arc<Places> {
        let most = self.max_negotiations as usize;
        Places::new("negotiations under way", most, most.div_ceil(NEGOTIATIONS_OF_A_PEER))
    }
}

/// State shared by all listeners.
struct Server {
    daemon: Weak<Daemon>,
    tls: Option<Arc<ServerConfig>>,
    tls_required: bool,
    max_connections_per_disk: u32,
    negotiation_time: Duration,
    descriptors: Arc<Places>,
}

/// A listening socket.
struct Listener {
    socket: Socket,
    server: Arc<Server>,
    connections: Arc<Places>,
    negotiations: Arc<Places>,
    messages: Arc<MessageLimit>,
}

/// What a connection holds: `connection` as long as it lives, `negotiation` until it is handed over.
struct Held {
    connection: (Place, Place),
    negotiation: Place,
}

impl Listener {
    fn run(&self) {
        let (mut spare, mut turned_away) = (Spare::take(), TurnedAway::default());
        loop {
            let client = self.accept();
            let Some(daemon) = self.server.daemon.upgrade() else { return };
            let why = match client {
                Ok(_) if daemon.is_stopping() => continue,
                Ok((client, peer)) => match self.places(peer) {
                    Ok(held) => {
                        self.begin(&daemon, client, held);
                        continue;
                    }
                    Err(full) => full.to_string(),
                },
                Err(error) if Spare::is_wanted(&error) => {
                    spare.give();
                    self.turn_away();
                    spare.take_back();
                    error.to_string()
                }
                Err(error) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    error.to_string()
                }
            };
            if let Some(count) = turned_away.count() {
                tracing::warn!(count, "NBD: closing new connections immediately: {why}");
            }
        }
    }

    fn accept(&self) -> io::Result<(Client, Peer)> {
        match &self.socket {
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let peer = Peer::of_stream(&stream);
                Ok((Client::Unix(stream), peer))
            }
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                Ok((Client::Tcp(stream), Peer::of_address(address.ip())))
            }
        }
    }

    /// Closes a pending connection without waiting for one: another thread may have taken the spare descriptor.
    fn turn_away(&self) {
        let set = |nonblocking| match &self.socket {
            Socket::Unix(listener) => listener.set_nonblocking(nonblocking),
            Socket::Tcp(listener) => listener.set_nonblocking(nonblocking),
        };
        if set(true).and_then(|()| self.accept()).is_err() {
            std::thread::sleep(ACCEPT_PAUSE);
        }
        // The same call succeeded before.
        let _ = set(false);
    }

    fn places(&self, peer: Peer) -> Result<Held, Full> {
        let descriptors = if self.server.tls.is_some() { DESCRIPTORS_WITH_TLS } else { DESCRIPTORS };
        Ok(Held {
            negotiation: self.negotiations.take(peer, 1)?,
            connection: (self.connections.take(peer, 1)?, self.server.descriptors.take(peer, descriptors)?),
        })
    }

    fn begin(&self, daemon: &Arc<Daemon>, client: Client, held: Held) {
        let (server, daemon, messages) = (self.server.clone(), daemon.clone(), self.messages.clone());
        let deadline = Instant::now() + server.negotiation_time;
        let run = move || {
            let Held { connection, negotiation } = held;
            if let Err(error) = server.serve(&daemon, client, deadline, Arc::new(connection), &messages) {
                messages.tell(|| tracing::info!("NBD: a connection ended during negotiation: {error}"));
            }
            drop(negotiation);
        };
        if let Err(error) = std::thread::Builder::new().name("nbd-negotiation".into()).spawn(run) {
            self.messages.tell(|| tracing::warn!("NBD: cannot start a thread for a connection: {error}"));
        }
    }
}

impl Server {
    /// Negotiates a connection and hands it over; `held` is dropped when the connection has ended.
    fn serve(
        &self,
        daemon: &Arc<Daemon>,
        client: Client,
        deadline: Instant,
        held: haversack_engine::Held,
        messages: &MessageLimit,
    ) -> io::Result<()> {
        match self.negotiate(daemon, client, deadline)? {
            Some(done) => done.hand_over(daemon, self.max_connections_per_disk, held, messages),
            None => Ok(()),
        }
    }
}
