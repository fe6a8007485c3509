//! The control API: HTTP/JSON over a Unix socket, and over TCP with TLS and a token or a client certificate.
//!
//! Invariants
//! - Work for a request runs on a thread of its own, never on the one that serves connections.
//! - What a caller can do depends on its role, see `access.rs`. A route belongs to the lowest role that can use it.
//!   Giving up data requires an admin on every route.
//! - Long calls answer immediately with a job.
//! - Connections are limited in number and time, see `serve.rs`.

mod access;
mod answer;
mod audit;
mod browser;
mod caller;
mod cluster;
pub mod config;
mod dashboard;
mod disks;
mod lending;
mod listen;
mod migration;
mod openapi;
mod patient;
mod peer_groups;
mod policy;
mod pools;
mod serve;
mod system;

pub use access::AccessError;
pub use caller::{Caller, Role, Who};
pub use listen::{ListenError, Listeners, bind, bind_tcp, bind_unix};

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{delete, get, patch, post, put};
use tokio::sync::{Mutex, Semaphore, mpsc};

use crate::daemon::Daemon;

/// The context for serving requests.
#[derive(Clone)]
pub struct Control {
    daemon: Arc<Daemon>,
    stop: mpsc::Sender<()>,
    /// Serializes the metrics: each scrape queries every reactor.
    scrape: Arc<Mutex<()>>,
    /// Serializes answers with entries of the decision log: each may need much memory.
    decisions: Arc<Mutex<()>>,
    /// Limits concurrent work, which continues when its caller disconnects.
    work: Arc<Semaphore>,
}

/// The maximum number of calls that are processed at the same time.
const MOST_CALLS: usize = 64;

impl Control {
    fn new(daemon: Arc<Daemon>, stop: mpsc::Sender<()>) -> Control {
        let work = Arc::new(Semaphore::new(MOST_CALLS));
        Control { daemon, stop, scrape: Arc::default(), decisions: Arc::default(), work }
    }
}

/// Returns the API's routes. A request to stop the daemon is sent to `stop`. Each request carries its [`Caller`] as an
/// extension; without it, the request is refused.
pub fn router(daemon: Arc<Daemon>, stop: mpsc::Sender<()>) -> Router {
    readers()
        .merge(operators().route_layer(from_fn(access::operators)))
        .merge(admins().route_layer(from_fn(access::admins)))
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(from_fn_with_state(daemon.clone(), audit::audit))
        .layer(from_fn(access::guard))
        .with_state(Control::new(daemon, stop))
}

/// Routes for every role: they only read.
fn readers() -> Router<Control> {
    Router::new()
        .route("/v1/status", get(system::status))
        .route("/v1/pools", get(pools::list))
        .route("/v1/pools/{pool}", get(pools::show))
        .route("/v1/disks", get(disks::list))
        .route("/v1/disks/{disk}", get(disks::show))
        .route("/v1/disks/{disk}/lost", get(disks::lost))
        .route("/v1/disks/{disk}/migration", get(migration::show))
        .route("/v1/disks/{disk}/own", get(migration::takeover))
        .route("/v1/migrations", get(migration::list))
        .route("/v1/hosts", get(migration::hosts))
        .route("/v1/loans", get(lending::list))
        .route("/v1/cluster", get(cluster::show))
        .route("/v1/cluster/plan", get(cluster::plan))
        .route("/v1/cluster/tenants", get(cluster::tenants))
        .route("/v1/disks/{disk}/explain", get(policy::explain))
        .route("/v1/disks/{disk}/curve", get(policy::curve))
        .route("/v1/policy", get(policy::show))
        .route("/v1/policy/log", get(policy::log))
        .route("/v1/jobs", get(system::jobs))
        .route("/v1/jobs/{job}", get(system::job))
        .route("/v1/events", get(system::events))
        .route("/v1/overview", get(system::overview))
        .route("/v1/history", get(system::history))
        .route("/metrics", get(system::metrics))
        .route("/healthz", get(system::healthy))
        .route("/readyz", get(system::ready))
        .route("/openapi.json", get(openapi::document))
        .merge(dashboard::routes())
}

/// Routes for operators and admins. Handlers require an admin for options that give up data.
fn operators() -> Router<Control> {
    Router::new()
        .route("/v1/disks", post(disks::attach))
        .route("/v1/disks/{disk}", patch(disks::change).delete(disks::detach))
        .route("/v1/disks/{disk}/flush", post(disks::flush))
        .route("/v1/disks/{disk}/resize", post(disks::resize))
        .route(
            "/v1/disks/{disk}/migration",
            post(migration::start).put(migration::keep).delete(migration::stop),
        )
        .route("/v1/migrations", post(migration::expect))
        .route("/v1/disks/{disk}/event", post(policy::event))
        .route("/v1/disks/{disk}/measure", post(policy::measure))
        // Recording uses memory, and slows down the data path.
        .route("/v1/disks/{disk}/trace", get(policy::trace))
        .route("/v1/policy", put(policy::set).delete(policy::end))
        .route("/v1/jobs/{job}", delete(system::cancel))
}

/// Routes for admins: they give up cached data, or affect all disks, another host or the cluster.
fn admins() -> Router<Control> {
    Router::new()
        .route("/v1/pools/{pool}/devices", post(pools::add_device))
        .route("/v1/pools/{pool}/devices/{device}", delete(pools::remove_device))
        .route("/v1/disks/{disk}/forget", post(disks::forget))
        .route("/v1/disks/{disk}/own", post(migration::own))
        .route("/v1/cluster/hosts/{host}/drain", put(cluster::drain).delete(cluster::undrain))
        .route("/v1/cluster/hosts/{host}/forget", post(cluster::forget))
        .route("/v1/cluster/tenants/{tenant}", put(cluster::set_tenant).delete(cluster::remove_tenant))
        .route("/v1/stop", post(system::stop))
}

/// Returns the routes of a port without TLS: metrics and health.
pub fn metrics_router(daemon: Arc<Daemon>) -> Router {
    let (stop, _) = mpsc::channel(1);
    Router::new()
        .route("/metrics", get(system::metrics))
        .route("/healthz", get(system::healthy))
        .route("/readyz", get(system::ready))
        .fallback(answer::no_such_path)
        .with_state(Control::new(daemon, stop))
}
