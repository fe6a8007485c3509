//! The sockets of the control API.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine};
use haversack_engine::socket::{self, BoundSocket, SocketError};
use rustls::ServerConfig;
use tokio::net;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::answer::Failure;
use super::serve::{Server, Socket, whole};
use super::{browser, metrics_router, router};
use crate::config::{ApiConfig, Config};
use crate::daemon::Daemon;
use crate::limits::Places;
use crate::tls::{self, TlsError};

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
/// Limits on connections to a port, in total and per address.
const PORT_PLACES: (usize, usize) = (64, 16);

/// Sockets that are bound but not served yet.
pub struct Listeners {
    unix: UnixListener,
    tcp: Option<(TcpListener, Arc<ServerConfig>, Arc<str>)>,
    metrics: Option<TcpListener>,
    request_time: Duration,
}

/// Creates a Unix socket that its group may use. A socket left behind by a dead process is replaced.
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

/// Creates all sockets of the control API. The Unix socket must be removed when it is no longer served.
///
/// # Errors
/// See [`ListenError`].
pub fn bind(config: &Config) -> Result<(Listeners, BoundSocket), ListenError> {
    let (unix, socket) = bind_unix(&config.daemon.control_socket())?;
    let tcp = config.api.as_ref().map(bind_api).transpose()?;
    let metrics = config.daemon.metrics_listen.map(bind_tcp).transpose()?;
    Ok((Listeners { unix, tcp, metrics, request_time: config.daemon.request_time.0 }, socket))
}

fn bind_api(api: &ApiConfig) -> Result<(TcpListener, Arc<ServerConfig>, Arc<str>), ListenError> {
    let mut server = tls::server_config(&api.certificate, &api.key, None)?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let token = read_token(&api.token_file)?;
    Ok((bind_tcp(api.listen)?, Arc::new(server), token.into()))
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
        let start = |name, socket, routes, (most, of_peer)| {
            let descriptors = (!matches!(socket, Socket::Unix(_))).then(|| descriptors.clone());
            let places = Places::new("connections", most, of_peer);
            let server = Server { name, socket, routes, places, descriptors, request_time: time };
            tokio::spawn(server.run());
        };
        let routes = whole(router(daemon.clone(), stop.clone()), time);
        let plain = routes.clone().layer(from_fn(browser::guard_plain));
        self.unix.set_nonblocking(true)?;
        let unix = net::UnixListener::from_std(self.unix)?;
        start("control socket", Socket::Unix(unix), plain, CONTROL_PLACES);
        if let Some(metrics) = self.metrics {
            let socket = Socket::Tcp(tokio_listener(metrics)?);
            start("metrics", socket, whole(metrics_router(daemon.clone()), time), PORT_PLACES);
        }
        if let Some((tcp, config, token)) = self.tcp {
            let socket = Socket::Tls(tokio_listener(tcp)?, TlsAcceptor::from(config));
            let routes = with_token(routes.layer(from_fn(browser::guard)), token);
            start("control API", socket, routes, PORT_PLACES);
        }
        Ok(())
    }
}

fn tokio_listener(listener: TcpListener) -> std::io::Result<net::TcpListener> {
    listener.set_nonblocking(true)?;
    net::TcpListener::from_std(listener)
}

/// Protects routes with a token.
pub(super) fn with_token(routes: Router, token: Arc<str>) -> Router {
    routes.layer(from_fn(move |request: Request, next: Next| {
        let token = token.clone();
        async move { check_token(&token, request, next).await }
    }))
}

async fn check_token(token: &str, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_authorized = given.is_some_and(|given| match given.strip_prefix(b"Bearer ") {
        Some(given) => is_equal(given, token.as_bytes()),
        // A browser sends this for any page that is open in it, so it allows no change.
        None => reads && password(given).is_some_and(|given| is_equal(&given, token.as_bytes())),
    });
    if is_authorized {
        return next.run(request).await;
    }
    ([(WWW_AUTHENTICATE, "Basic realm=\"Haversack\"")], Failure::unauthorized()).into_response()
}

/// Returns the password of `Basic` credentials; the name does not matter.
fn password(credentials: &[u8]) -> Option<Vec<u8>> {
    let mut text = BASE64_STANDARD.decode(credentials.strip_prefix(b"Basic ")?).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some(text.split_off(colon + 1))
}

/// Compares in constant time, so that the time does not show where a wrong token differs.
fn is_equal(given: &[u8], token: &[u8]) -> bool {
    let difference = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0 && given.len() == token.len()
}
