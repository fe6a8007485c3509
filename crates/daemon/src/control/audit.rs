//! Who asked for what: an event for each call that may change something.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, User};
use tokio::sync::mpsc::Sender;

use crate::daemon::Daemon;

/// Who made a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// A process of this host: its user and its number.
    User(u32, i32),
    /// A machine.
    Address(IpAddr),
    /// The system does not say.
    Unknown,
}

impl Caller {
    /// Returns the user and the process that connected over a Unix socket.
    pub fn of_stream(stream: &impl AsFd) -> Caller {
        getsockopt(stream, PeerCredentials)
            .map_or(Caller::Unknown, |credentials| Caller::User(credentials.uid(), credentials.pid()))
    }
}

/// Looks the user's name up, which may read files.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::User(uid, process) => {
                match User::from_uid(Uid::from_raw(*uid)).ok().flatten() {
                    Some(user) => write!(f, "{}", user.name)?,
                    None => write!(f, "user {uid}")?,
                }
                write!(f, " (process {process})")
            }
            Caller::Address(address) => write!(f, "{address}"),
            Caller::Unknown => write!(f, "unknown"),
        }
    }
}

/// The disk or pool that a path names, else the daemon.
fn subject(path: &str) -> &str {
    let mut parts = path.split('/').skip(2);
    let named = matches!(parts.next(), Some("disks" | "pools")).then(|| parts.next()).flatten();
    named.unwrap_or("daemon")
}

/// Part of a response after which the daemon stops. It is acted on when nothing is awaited any more before the response
/// is written: the daemon ends without waiting for its connections.
#[derive(Clone)]
pub struct Stop(pub Sender<()>);

/// Adds an event after each call that may change something, with its outcome.
pub async fn audit(State(daemon): State<Arc<Daemon>>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let what = format!("{} {}", request.method(), request.uri());
    let subject = subject(request.uri().path()).to_owned();
    let caller = request.extensions().get().copied().unwrap_or(Caller::Unknown);
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let note = move || daemon.events.add("audit", &subject, format!("{caller}: {what}: {status}"));
    // The user's name comes from the system, which may take its time.
    let _ = tokio::task::spawn_blocking(note).await;
    if let Some(Stop(stop)) = response.extensions().get() {
        // If the channel is full, it already holds a request to stop.
        let _ = stop.try_send(());
    }
    response
}
