//! The control API: HTTP/JSON over a Unix socket, and over TCP with TLS and a token.
//!
//! Invariants
//! - Work for a request runs on a thread of its own, never on the one that serves connections.
//! - Any process that can open the Unix socket may do everything; over TCP, any client with the token.
//! - Long calls answer at once with a job.
//! - Connections are limited in number and time, see `serve.rs`.

mod answer;
mod audit;
mod browser;
mod dashboard;
mod disks;
mod listen;
mod migration;
mod openapi;
mod patient;
mod policy;
mod pools;
mod serve;
mod system;

pub use listen::{ListenError, Listeners, bind, bind_tcp, bind_unix};

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use tokio::sync::{Mutex, mpsc};

use crate::daemon::Daemon;

/// The context for serving requests.
#[derive(Clone)]
pub struct Control {
    daemon: Arc<Daemon>,
    stop: mpsc::Sender<()>,
    /// Serializes the metrics: each scrape queries every reactor.
    scrape: Arc<Mutex<()>>,
}

/// Returns the API's routes. A request to stop the daemon is sent to `stop`.
pub fn router(daemon: Arc<Daemon>, stop: mpsc::Sender<()>) -> Router {
    Router::new()
        .route("/v1/status", get(system::status))
        .route("/v1/pools", get(pools::list))
        .route("/v1/pools/{pool}", get(pools::show))
        .route("/v1/pools/{pool}/devices", post(pools::add_device))
        .route("/v1/pools/{pool}/devices/{device}", delete(pools::remove_device))
        .route("/v1/disks", get(disks::list).post(disks::attach))
        .route("/v1/disks/{disk}", get(disks::show).patch(disks::change).delete(disks::detach))
        .route("/v1/disks/{disk}/lost", get(disks::lost))
        .route("/v1/disks/{disk}/flush", post(disks::flush))
        .route("/v1/disks/{disk}/resize", post(disks::resize))
        .route("/v1/disks/{disk}/forget", post(disks::forget))
        .route(
            "/v1/disks/{disk}/migration",
            get(migration::show).post(migration::start).delete(migration::stop),
        )
        .route("/v1/disks/{disk}/own", get(migration::takeover).post(migration::own))
        .route("/v1/migrations", get(migration::list).post(migration::expect))
        .route("/v1/hosts", get(migration::hosts))
        .route("/v1/disks/{disk}/event", post(policy::event))
        .route("/v1/disks/{disk}/explain", get(policy::explain))
        .route("/v1/disks/{disk}/curve", get(policy::curve))
        .route("/v1/disks/{disk}/measure", post(policy::measure))
        .route("/v1/disks/{disk}/trace", get(policy::trace))
        .route("/v1/policy", get(policy::show).put(policy::set).delete(policy::end))
        .route("/v1/policy/log", get(policy::log))
        .route("/v1/jobs", get(system::jobs))
        .route("/v1/jobs/{job}", get(system::job).delete(system::cancel))
        .route("/v1/events", get(system::events))
        .route("/v1/overview", get(system::overview))
        .route("/v1/history", get(system::history))
        .route("/v1/stop", post(system::stop))
        .route("/metrics", get(system::metrics))
        .route("/healthz", get(system::healthy))
        .route("/readyz", get(system::ready))
        .route("/openapi.json", get(openapi::document))
        .merge(dashboard::routes())
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(from_fn_with_state(daemon.clone(), audit::audit))
        .with_state(Control { daemon, stop, scrape: Arc::default() })
}

/// Returns the routes of a port without TLS: metrics and health.
pub fn metrics_router(daemon: Arc<Daemon>) -> Router {
    let (stop, _) = mpsc::channel(1);
    Router::new()
        .route("/metrics", get(system::metrics))
        .route("/healthz", get(system::healthy))
        .route("/readyz", get(system::ready))
        .fallback(answer::no_such_path)
        .with_state(Control { daemon, stop, scrape: Arc::default() })
}
