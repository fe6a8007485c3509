//! HTTP/1 connections of the control API and of metrics.
//!
//! Invariants
//! - A connection holds a place as long as it lives, so connections are bounded, in total and per peer.
//! - A TLS handshake, a request's head and its body each end by a deadline, even if their bytes trickle in. A
//!   connection may be idle between two requests for the same time.
//! - A connection whose peer does not read an answer is closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::access::Access;
use super::answer::Failure;
use super::caller::{Caller, Process, Role, Who};
use super::patient::Patient;
use crate::descriptors::Spare;
use crate::limits::{Full, Peer, Place, Places, TurnedAway};

/// The longest body of a request: a miss-ratio curve takes some hundred kilobytes.
const MOST_BODY_BYTES: usize = 2 << 20;
/// The pause after the system failed to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a peer that is turned away may take to read the reason.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A listening socket.
pub enum Socket {
    /// This host.
    Unix(UnixListener),
    /// The network.
    Tcp(TcpListener),
    /// The network, encrypted.
    Tls(TcpListener, TlsAcceptor),
}

/// A listening socket, what it serves, and its limits.
pub struct Server {
    /// For messages.
    pub name: &'static str,
    /// Where it listens.
    pub socket: Socket,
    /// The routes served.
    pub routes: Router,
    /// Who has which role.
    pub access: Arc<Access>,
    /// Places for its connections.
    pub places: ByRole,
    /// Places for their file descriptors; none if they are covered by the reserve.
    pub descriptors: Option<Arc<Places>>,
    /// How long a request's head may take to arrive.
    pub request_time: Duration,
}

/// Places for connections by role, so that callers with a lower role cannot use up the places of those with a higher
/// one.
pub struct ByRole {
    /// Callers without a role.
    pub strangers: Arc<Places>,
    /// Readers.
    pub readers: Arc<Places>,
    /// Operators and admins.
    pub others: Arc<Places>,
}

impl ByRole {
    /// Uses the same places for all, because the role is not known when the connection is accepted.
    pub fn alike(places: Arc<Places>) -> ByRole {
        ByRole { strangers: places.clone(), readers: places.clone(), others: places }
    }

    fn of(&self, role: Option<Role>) -> &Arc<Places> {
        match role {
            None => &self.strangers,
            Some(Role::Reader) => &self.readers,
            Some(Role::Operator | Role::Admin) => &self.others,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

type Held = (Place, Option<Place>);

impl Server {
    /// Serves until the runtime ends.
    pub async fn run(self) {
        let (mut spare, mut turned_away) = (Spare::take(), TurnedAway::default());
        loop {
            let why = match self.accept().await {
                Ok((stream, peer, caller)) => match self.hold(peer, caller.role) {
                    Ok(held) => {
                        self.begin(stream, caller, held);
                        continue;
                    }
                    Err(full) => {
                        self.turn_away(stream, &full.to_string());
                        full.to_string()
                    }
                },
                Err(error) if Spare::is_wanted(&error) => {
                    spare.give();
                    // Another thread may have taken the spare descriptor.
                    if let Ok(Ok((stream, ..))) = timeout(ACCEPT_PAUSE, self.accept()).await {
                        tell_last_words(stream, &error.to_string()).await;
                    }
                    spare.take_back();
                    error.to_string()
                }
                Err(error) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    error.to_string()
                }
            };
            if let Some(count) = turned_away.count() {
                tracing::warn!(count, "{}: closing new connections immediately: {why}", self.name);
            }
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer, Caller)> {
        match &self.socket {
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let caller = self.access.of_process(Process::of_stream(&stream).as_ref());
                let peer = Peer::of_stream(&stream);
                Ok((Box::new(stream), peer, caller))
            }
            Socket::Tcp(listener) | Socket::Tls(listener, _) => {
                let (stream, address) = listener.accept().await?;
                let caller = Caller { who: Who::Address(address.ip()), role: None };
                Ok((Box::new(stream), Peer::of_address(address.ip()), caller))
            }
        }
    }

    fn hold(&self, peer: Peer, role: Option<Role>) -> Result<Held, Full> {
        let descriptor =
            self.descriptors.as_ref().map(|descriptors| descriptors.take(peer, 1)).transpose()?;
        Ok((self.places.of(role).take(peer, 1)?, descriptor))
    }

    fn begin(&self, stream: Box<dyn Stream>, caller: Caller, held: Held) {
        let (routes, time) = (self.routes.clone(), self.request_time);
        match &self.socket {
            Socket::Unix(_) | Socket::Tcp(_) => {
                tokio::spawn(async move {
                    serve(stream, caller, routes, time).await;
                    drop(held);
                });
            }
            Socket::Tls(_, acceptor) => {
                let handshake = timeout(time, acceptor.accept(stream));
                let access = self.access.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = handshake.await {
                        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                        let caller = match &caller.who {
                            Who::Address(address) => access.of_certificate(shown, *address),
                            _ => caller,
                        };
                        serve(Box::new(stream), caller, routes, time).await;
                    }
                    drop(held);
                });
            }
        }
    }

    /// Reports the reason to a peer that may not connect, unless that would need TLS.
    fn turn_away(&self, stream: Box<dyn Stream>, why: &str) {
        if matches!(self.socket, Socket::Unix(_)) {
            let why = why.to_owned();
            tokio::spawn(async move { tell_last_words(stream, &why).await });
        }
    }
}

async fn serve(stream: Box<dyn Stream>, caller: Caller, routes: Router, request_time: Duration) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        routes.clone().oneshot(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_time)
        .serve_connection(TokioIo::new(Patient::new(stream, request_time)), service);
    if let Err(error) = connection.await {
        tracing::debug!("an HTTP connection ended: {error}");
    }
}

/// Wraps routes so that they see a request only when all of it has arrived, in time and not too long.
pub fn whole(routes: Router, time: Duration) -> Router {
    routes.layer(axum::middleware::from_fn(move |request, next| with_body(request, next, time)))
}

/// Reads the whole body before anything is done with a request.
async fn with_body(request: Request, next: Next, time: Duration) -> Response {
    let (head, body) = request.into_parts();
    match timeout(time, to_bytes(body, MOST_BODY_BYTES)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(head, bytes.into())).await,
        Ok(Err(_)) => {
            let what = format!("the body is incomplete, or longer than {MOST_BODY_BYTES} bytes");
            closing(StatusCode::PAYLOAD_TOO_LARGE, "too-large", what)
        }
        Err(_) => {
            let what = format!("the body has not come within {} s", time.as_secs_f64());
            closing(StatusCode::REQUEST_TIMEOUT, "too-slow", what)
        }
    }
}

/// Makes an answer that closes the connection: the rest of its request is not read.
fn closing(status: StatusCode, code: &str, what: String) -> Response {
    let answer = Failure::new(status, code, what, "send the whole request without pauses").into_response();
    ([("connection", "close")], answer).into_response()
}

async fn tell_last_words(mut stream: Box<dyn Stream>, why: &str) {
    let hint = "close unused connections to the daemon, then try again";
    let body = serde_json::json!({
        "error": format!("the daemon accepts no more connections: {why}"), "code": "busy", "hint": hint,
    })
    .to_string();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // The peer may already be gone.
    let _ = timeout(LAST_WORDS, async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    })
    .await;
}
