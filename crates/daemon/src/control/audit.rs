//! Who asked for what: an event for each call that may change something.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc::Sender;

use super::answer::Failure;
use super::caller::{Caller, Role};
use crate::daemon::Daemon;

/// The disk or pool that a path names, else the daemon.
fn subject(path: &str) -> &str {
    let mut parts = path.split('/').skip(2);
    let named = matches!(parts.next(), Some("disks" | "pools")).then(|| parts.next()).flatten();
    named.unwrap_or("daemon")
}

/// An extension of a response after which the daemon stops. It takes effect only when nothing is left to await before
/// the response is written, because the daemon ends without waiting for its connections.
#[derive(Clone)]
pub struct Stop(pub Sender<()>);

/// The most characters of a request that are kept.
const MOST_CHARACTERS: usize = 200;

fn cut(text: &str) -> String {
    text.chars().take(MOST_CHARACTERS).collect()
}

/// Adds an event after each call that may change something, with its result, even if the caller has disconnected. Calls
/// of readers and of callers without a role are all refused, and are not recorded: they could displace the events of
/// others.
pub async fn audit(
    State(daemon): State<Arc<Daemon>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    // A migration is kept alive by repeated calls, and its start was recorded.
    let is_kept = *request.method() == Method::PUT && request.uri().path().ends_with("/migration");
    let changes_nothing = matches!(*request.method(), Method::GET | Method::HEAD) || is_kept;
    if changes_nothing || caller.role < Some(Role::Operator) {
        return next.run(request).await;
    }
    let what = cut(&format!("{} {}", request.method(), request.uri()));
    let subject = cut(subject(request.uri().path()));
    let noted = tokio::spawn(async move {
        let response = next.run(request).await;
        let status = response.status().as_u16();
        let note = move || daemon.events.add("audit", &subject, format!("{}: {what}: {status}", caller.who));
        // The user's name comes from the system, which may take its time.
        let _ = tokio::task::spawn_blocking(note).await;
        response
    });
    let response = match noted.await {
        Ok(response) => response,
        Err(error) => return Failure::bug(error.to_string()).into_response(),
    };
    if let Some(Stop(stop)) = response.extensions().get() {
        // If the channel is full, it already holds a request to stop.
        let _ = stop.try_send(());
    }
    response
}
