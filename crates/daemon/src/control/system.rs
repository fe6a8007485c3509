//! Status, jobs, events, metrics, stop.

use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use haversack_api::{ErrorBody, Events, History, Job, Overview, Span, Status};
use serde::Deserialize;

use super::Control;
use super::answer::{Answer, Failure, Part, Query, answer, run, text};
use super::audit::Stop;

/// Status of the daemon, its pools and disks.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
pub async fn status(State(control): State<Control>) -> Answer<Status> {
    answer(&control, |daemon| Ok(daemon.status())).await
}

/// Running jobs and those that ended recently, oldest first.
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = Vec<Job>)))]
pub async fn jobs(State(control): State<Control>) -> Json<Vec<Job>> {
    Json(control.daemon.jobs.list())
}

/// A job.
#[utoipa::path(get, path = "/v1/jobs/{job}", params(("job" = u64, Path, description = "Number of the job")),
    responses((status = 200, body = Job), (status = 404, body = ErrorBody)))]
pub async fn job(State(control): State<Control>, Part(job): Part<u64>) -> Answer<Job> {
    Ok(Json(control.daemon.jobs.get(job)?))
}

/// Cancels a job. Flush and detach can be cancelled; blocks already written back stay clean.
#[utoipa::path(delete, path = "/v1/jobs/{job}", params(("job" = u64, Path, description = "Number of the job")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody)))]
pub async fn cancel(
    State(control): State<Control>,
    Part(job): Part<u64>,
) -> Result<(StatusCode, Json<Job>), Failure> {
    Ok((StatusCode::ACCEPTED, Json(control.daemon.jobs.cancel(job)?)))
}

/// Selection of events.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Only events after this number.
    #[serde(default)]
    after: u64,
    /// How long to wait if there is no event, for example `30s`; at most a minute.
    #[serde(default)]
    wait: Span,
}

/// The longest wait for an event.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Events, oldest first.
#[utoipa::path(get, path = "/v1/events", params(Which),
    responses((status = 200, body = Events), (status = 400, body = ErrorBody)))]
pub async fn events(State(control): State<Control>, Query(which): Query<Which>) -> Json<Events> {
    let wait = which.wait.0.min(LONGEST_WAIT);
    // If no event comes in time, the answer is empty.
    let _ = tokio::time::timeout(wait, control.daemon.events.wait_after(which.after)).await;
    Json(control.daemon.events.after(which.after))
}

/// The daemon at a glance, for the dashboard.
#[utoipa::path(get, path = "/v1/overview", responses((status = 200, body = Overview)))]
pub async fn overview(State(control): State<Control>) -> Answer<Overview> {
    answer(&control, |daemon| Ok(daemon.overview())).await
}

/// What happened in the last day.
#[utoipa::path(get, path = "/v1/history", responses((status = 200, body = History)))]
pub async fn history(State(control): State<Control>) -> Answer<History> {
    let turn = control.scrape.clone().lock_owned().await;
    answer(&control, move |daemon| {
        let _turn = turn;
        daemon.history.last_day(daemon, SystemTime::now())
    })
    .await
}

/// Whether the daemon answers.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn healthy() -> &'static str {
    "ok\n"
}

/// Whether the start is over, every pool is open and its thread answers, and every disk that should be attached is.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, body = String, content_type = "text/plain"), (status = 503, body = String, content_type = "text/plain")))]
pub async fn ready(State(control): State<Control>) -> Result<(StatusCode, String), Failure> {
    let turn = control.scrape.clone().lock_owned().await;
    let (not_ready, away) = run(&control, move |daemon| {
        let _turn = turn;
        Ok((daemon.not_ready(), daemon.directory_away()))
    })
    .await?;
    Ok(if not_ready.is_empty() {
        // Guests do not need the directory.
        (StatusCode::OK, away.map_or_else(|| "ok\n".into(), |away| format!("ok\n{away}\n")))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, not_ready.join("\n") + "\n")
    })
}

/// Stops the daemon cleanly: staged blocks are committed. Dirty blocks stay in the cache.
#[utoipa::path(post, path = "/v1/stop", responses((status = 202)))]
pub async fn stop(State(control): State<Control>) -> (StatusCode, Extension<Stop>) {
    (StatusCode::ACCEPTED, Extension(Stop(control.stop)))
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn metrics(State(control): State<Control>) -> Result<impl IntoResponse, Failure> {
    let turn = control.scrape.clone().lock_owned().await;
    let body = text(&control, move |daemon| {
        let _turn = turn;
        crate::metrics::text(daemon)
    })
    .await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], body))
}
