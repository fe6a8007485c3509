//! The sockets of the control API.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::{from_fn, from_fn_with_state};
use haversack_engine::socket::{self, BoundSocket, SocketError};
use nix::unistd::Uid;
use rustls::ServerConfig;
use tokio::net;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::access::{self, Access, AccessError};
use super::config::ApiConfig;
use super::serve::{ByRole, Server, Socket, whole};
use super::{browser, metrics_router, router};
use crate::config::Config;
use crate::daemon::Daemon;
use crate::limits::Places;
use crate::tls::{self, ClientCertificates, TlsError};

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A TCP socket cannot be created.
    #[error("{place}: cannot listen: {source}")]
    Bind {
        /// The address.
        place: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A Unix socket cannot be created.
    #[error(transparent)]
    Unix(#[from] SocketError),
    /// The certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The roles cannot be resolved.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The token cannot be used.
    #[error("{path}: {what}; write one line of at least {MIN_TOKEN_BYTES} characters")]
    Token {
        /// The token's file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// The least number of characters of a token.
const MIN_TOKEN_BYTES: usize = 16;
/// Limits on connections to the control socket, in total and per process.
const CONTROL_PLACES: (usize, usize) = (256, 64);
/// The same limits for readers, and for callers without a role, if roles are configured. Operators and admins have the
/// rest.
const READER_PLACES: (usize, usize) = (64, 16);
const STRANGER_PLACES: (usize, usize) = (16, 4);
/// Limits on connections to a port, in total and per address.
const PORT_PLACES: (usize, usize) = (64, 16);

/// Sockets that are bound but not served yet.
pub struct Listeners {
    unix: UnixListener,
    tcp: Option<Api>,
    metrics: Option<TcpListener>,
    access: Arc<Access>,
    request_time: Duration,
}

/// Creates a Unix socket that its owner and its group may use. A socket left behind by a dead process is replaced.
///
/// # Errors
/// Another process listens there, another file is there, or the socket cannot be created.
pub fn bind_unix(path: &Path) -> Result<(UnixListener, BoundSocket), ListenError> {
    Ok(socket::bind(path, 0o660)?)
}

/// Creates a TCP socket.
///
/// # Errors
/// The socket cannot be created.
pub fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|source| ListenError::Bind { place: address.to_string(), source })
}

/// Creates all sockets of the control API for a daemon that runs as `own_user`. The Unix socket must be removed when it
/// is no longer served.
///
/// # Errors
/// See [`ListenError`].
pub fn bind(config: &Config, own_user: Uid) -> Result<(Listeners, BoundSocket), ListenError> {
    let access = Arc::new(Access::new(config.access.as_ref(), own_user)?);
    // With roles, anyone may connect: each request is checked.
    let mode = if access.is_open() { 0o660 } else { 0o666 };
    let (unix, socket) = socket::bind(&config.daemon.control_socket(), mode)?;
    let tcp = config.api.as_ref().map(bind_api).transpose()?;
    let metrics = config.daemon.metrics_listen.map(bind_tcp).transpose()?;
    Ok((Listeners { unix, tcp, metrics, access, request_time: config.daemon.request_time.0 }, socket))
}

type Api = (TcpListener, Arc<ServerConfig>, Option<Arc<str>>);

fn bind_api(api: &ApiConfig) -> Result<Api, ListenError> {
    let clients = match (&api.client_ca, &api.token_file) {
        (None, _) => ClientCertificates::None,
        (Some(authorities), None) => ClientCertificates::Required(authorities),
        (Some(authorities), Some(_)) => ClientCertificates::Accepted(authorities),
    };
    let mut server = tls::server_config(&api.certificate, &api.key, clients)?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let token = api.token_file.as_deref().map(read_token).transpose()?;
    Ok((bind_tcp(api.listen)?, Arc::new(server), token.map(Into::into)))
}

/// Returns the places of the control socket.
fn control_places(access: &Access) -> ByRole {
    let new = |(most, of_process)| Places::new("connections", most, of_process);
    if access.is_open() {
        return ByRole::alike(new(CONTROL_PLACES));
    }
    let (most, of_process) = CONTROL_PLACES;
    let others = (most - READER_PLACES.0 - STRANGER_PLACES.0, of_process);
    ByRole { strangers: new(STRANGER_PLACES), readers: new(READER_PLACES), others: new(others) }
}

fn read_token(path: &Path) -> Result<String, ListenError> {
    let error = |what: String| ListenError::Token { path: path.to_path_buf(), what };
    let text = std::fs::read_to_string(path).map_err(|e| error(format!("cannot read: {e}")))?;
    let token = text.trim();
    if token.len() < MIN_TOKEN_BYTES || token.contains(char::is_whitespace) {
        return Err(error(format!("the token has {} characters", token.len())));
    }
    Ok(token.to_string())
}

impl Listeners {
    /// Serves the sockets in the background of the current runtime. Connections to ports take their file
    /// descriptors from `descriptors`.
    ///
    /// # Errors
    /// The system refused.
    pub fn serve(
        self,
        daemon: &Arc<Daemon>,
        stop: &mpsc::Sender<()>,
        descriptors: &Arc<Places>,
    ) -> std::io::Result<()> {
        let time = self.request_time;
        let start = |name, socket, routes, places| {
            let descriptors = (!matches!(socket, Socket::Unix(_))).then(|| descriptors.clone());
            let access = self.access.clone();
            let server = Server { name, socket, routes, access, places, descriptors, request_time: time };
            tokio::spawn(server.run());
        };
        let port_places = || {
            let (most, of_address) = PORT_PLACES;
            ByRole::alike(Places::new("connections", most, of_address))
        };
        let routes = whole(router(daemon.clone(), stop.clone()), time);
        let plain = routes.clone().layer(from_fn(browser::guard_plain));
        self.unix.set_nonblocking(true)?;
        let unix = net::UnixListener::from_std(self.unix)?;
        start("control socket", Socket::Unix(unix), plain, control_places(&self.access));
        if let Some(metrics) = self.metrics {
            let socket = Socket::Tcp(tokio_listener(metrics)?);
            start("metrics", socket, whole(metrics_router(daemon.clone()), time), port_places());
        }
        if let Some((tcp, config, token)) = self.tcp {
            let socket = Socket::Tls(tokio_listener(tcp)?, TlsAcceptor::from(config));
            let routes = routes.layer(from_fn(browser::guard));
            let routes = routes.layer(from_fn_with_state(token, access::with_token));
            start("control API", socket, routes, port_places());
        }
        Ok(())
    }
}

fn tokio_listener(listener: TcpListener) -> std::io::Result<net::TcpListener> {
    listener.set_nonblocking(true)?;
    net::TcpListener::from_std(listener)
}
