//! `/v1/policy`, and the policy's input and output for a disk.

use axum::body::Body as Stream;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use haversack_api::{
    DiskCurve, DiskEvent, DiskPolicy, ErrorBody, Explanation, PolicySettings, PolicyStatus, Span,
};
use serde::Deserialize;

use super::Control;
use super::answer::{Answer, Body, Failure, Part, Query, answer, run};
use crate::policy::Policy;

/// The policy and its decisions.
#[utoipa::path(get, path = "/v1/policy", responses((status = 200, body = PolicyStatus)))]
pub async fn show(State(control): State<Control>) -> Answer<PolicyStatus> {
    answer(&control, |daemon| Ok(daemon.with_policy(Policy::status))).await
}

/// Sets the policy until the next start, when the configuration file applies again. Keys that are not given have the
/// values of the allocator's system.
#[utoipa::path(put, path = "/v1/policy", request_body = PolicySettings,
    responses((status = 200, body = PolicyStatus), (status = 400, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn set(
    State(control): State<Control>,
    Body(settings): Body<PolicySettings>,
) -> Answer<PolicyStatus> {
    answer(&control, move |daemon| {
        daemon.set_policy(Some(settings))?;
        Ok(daemon.with_policy(Policy::status))
    })
    .await
}

/// Ends the policy: disks return to their configured shares, modes and admission.
#[utoipa::path(delete, path = "/v1/policy",
    responses((status = 200, body = PolicyStatus), (status = 503, body = ErrorBody)))]
pub async fn end(State(control): State<Control>) -> Answer<PolicyStatus> {
    answer(&control, |daemon| {
        daemon.set_policy(None)?;
        Ok(daemon.with_policy(Policy::status))
    })
    .await
}

/// Selection of log entries.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Entries {
    /// Only entries of this pool.
    #[serde(default)]
    pool: Option<String>,
    /// Number of entries, at most 1000.
    #[serde(default = "some")]
    last: usize,
}

fn some() -> usize {
    10
}

/// The newest entries of the decision log, oldest first.
#[utoipa::path(get, path = "/v1/policy/log", params(Entries),
    responses((status = 200, body = Vec<Object>), (status = 404, body = ErrorBody)))]
pub async fn log(
    State(control): State<Control>,
    Query(entries): Query<Entries>,
) -> Answer<Vec<serde_json::Value>> {
    let turn = control.decisions.clone().lock_owned().await;
    answer(&control, move |daemon| {
        let _turn = turn;
        let pool = entries.pool.as_deref().map(|name| daemon.pool(name)).transpose()?;
        daemon.with_policy(|policy| policy.log(pool.map(|pool| pool.name.as_str()), entries.last))
    })
    .await
}

/// Reports an event of a disk's VM to the policy. Returns the resulting decision for the disk.
#[utoipa::path(post, path = "/v1/disks/{disk}/event", request_body = DiskEvent,
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = DiskPolicy), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)))]
pub async fn event(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Body(event): Body<DiskEvent>,
) -> Answer<DiskPolicy> {
    answer(&control, move |daemon| {
        daemon.check_started()?;
        daemon.with_policy_of(&disk, |policy, pool| policy.tell(pool, &disk, event))
    })
    .await
}

/// Explains a disk's share and settings.
#[utoipa::path(get, path = "/v1/disks/{disk}/explain", params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = Explanation), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn explain(State(control): State<Control>, Part(disk): Part<String>) -> Answer<Explanation> {
    answer(&control, move |daemon| {
        let pool = daemon.disk(&disk)?.config().pool;
        daemon.with_policy(|policy| policy.explain(&pool, &disk))
    })
    .await
}

/// A disk's sampled miss-ratio curve of the last window, or of the current window so far if none has ended.
#[utoipa::path(get, path = "/v1/disks/{disk}/curve", params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = DiskCurve), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn curve(State(control): State<Control>, Part(disk): Part<String>) -> Answer<DiskCurve> {
    answer(&control, move |daemon| daemon.with_policy_of(&disk, |policy, pool| policy.curve(pool, &disk)))
        .await
}

/// Duration.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct HowLong {
    /// For example `30s`.
    #[serde(rename = "for", default)]
    time: Option<Span>,
}

/// Starts a measurement of a disk, for a minute longer than the given time, so that its curve can be read. If the
/// policy already measures the disk, nothing changes.
#[utoipa::path(post, path = "/v1/disks/{disk}/measure",
    params(("disk" = String, Path, description = "Name of the disk"), HowLong),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn measure(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Query(how_long): Query<HowLong>,
) -> Result<StatusCode, Failure> {
    let time = how_long.time.unwrap_or_default().0;
    run(&control, move |daemon| {
        daemon.with_policy_of(&disk, |policy, pool| policy.measure(pool, &disk, time))
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A trace of a disk's requests from now on, as CSV, until the time is over or the caller disconnects.
#[utoipa::path(get, path = "/v1/disks/{disk}/trace",
    params(("disk" = String, Path, description = "Name of the disk"), HowLong),
    responses((status = 200, body = String, content_type = "text/csv"), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub async fn trace(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Query(how_long): Query<HowLong>,
) -> Result<impl IntoResponse, Failure> {
    let time = how_long.time.map(|time| time.0);
    let rows = run(&control, move |daemon| {
        daemon.with_policy_of(&disk, |policy, pool| policy.record(pool, &disk, time))
    })
    .await?;
    Ok(([(header::CONTENT_TYPE, "text/csv")], Stream::new(rows)))
}
