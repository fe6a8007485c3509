//! `/v1/disks`

use axum::extract::State;
use haversack_api::{DiskChange, DiskConfig, DiskStatus, ErrorBody, ForgetDisk, Job, LostData, ResizeDisk};
use serde::Deserialize;

use super::answer::{Answer, Body, JobAnswer, Part, Query, answer, start};
use super::{Caller, Control, Role};

/// All disks, attached or not.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = Vec<DiskStatus>)))]
pub async fn list(State(control): State<Control>) -> Answer<Vec<DiskStatus>> {
    answer(&control, |daemon| Ok(daemon.status().disks)).await
}

/// A disk.
#[utoipa::path(get, path = "/v1/disks/{disk}", params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = DiskStatus), (status = 404, body = ErrorBody)))]
pub async fn show(State(control): State<Control>, Part(disk): Part<String>) -> Answer<DiskStatus> {
    answer(&control, move |daemon| daemon.disk_status(&disk)).await
}

/// Returns whether a disk with these settings could lose data or bypass the checks of its origin.
fn is_for_admins(config: &DiskConfig) -> bool {
    config.accept_loss.is_some()
        || config.accept_origin_change.is_some()
        || config.origin_holds_pool
        // With `none`, a host that does not answer may still own the disk.
        || config.from.is_some()
        // The checks do not cover everything that QEMU's block devices can refer to.
        || config.origin.starts_with("qemu:")
}

/// Attaches a disk now and whenever the daemon starts, until it is detached. Requires an admin if it accepts a loss or
/// another origin, if it names the host to take the disk from, or if its origin begins with `qemu:`.
#[utoipa::path(post, path = "/v1/disks", request_body = DiskConfig,
    responses((status = 202, body = Job), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn attach(
    State(control): State<Control>,
    caller: Caller,
    Body(config): Body<DiskConfig>,
) -> JobAnswer {
    if is_for_admins(&config) {
        caller.require(Role::Admin)?;
    }
    start(&control, move |daemon| daemon.attach(config)).await
}

/// Changes settings of an attached disk. For a disk from the configuration file they last until the next start.
#[utoipa::path(patch, path = "/v1/disks/{disk}", request_body = DiskChange,
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 202, body = Job), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn change(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Body(change): Body<DiskChange>,
) -> JobAnswer {
    start(&control, move |daemon| daemon.change(&disk, &change)).await
}

/// How to detach a disk.
#[derive(Deserialize)]
pub struct Detach {
    #[serde(default)]
    force: bool,
    accept_loss: Option<String>,
}

/// Writes back a disk's dirty blocks and detaches it. Clean blocks stay in the cache. The job can be cancelled.
#[utoipa::path(delete, path = "/v1/disks/{disk}",
    params(("disk" = String, Path, description = "Name of the disk"),
        ("force" = Option<bool>, Query, description = "Detach even if clients are connected; their requests fail"),
        ("accept_loss" = Option<String>, Query,
            description = "Name of the disk, repeated: give up lost data once everything else is at the origin")),
    responses((status = 202, body = Job), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub async fn detach(
    State(control): State<Control>,
    caller: Caller,
    Part(disk): Part<String>,
    Query(Detach { force, accept_loss }): Query<Detach>,
) -> JobAnswer {
    if force || accept_loss.is_some() {
        caller.require(Role::Admin)?;
    }
    start(&control, move |daemon| daemon.detach(&disk, force, accept_loss.as_deref())).await
}

/// Lost data of an attached disk: reads of it fail until it is written again.
#[utoipa::path(get, path = "/v1/disks/{disk}/lost", params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = LostData), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn lost(State(control): State<Control>, Part(disk): Part<String>) -> Answer<LostData> {
    answer(&control, move |daemon| daemon.lost(&disk)).await
}

/// Writes all currently dirty blocks to the origin. The job can be cancelled.
#[utoipa::path(post, path = "/v1/disks/{disk}/flush", params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn flush(State(control): State<Control>, Part(disk): Part<String>) -> JobAnswer {
    start(&control, move |daemon| daemon.flush(&disk)).await
}

/// Changes the size of a disk. The origin must already have the new size. A disk shrinks only if its name is repeated
/// and no client is connected.
#[utoipa::path(post, path = "/v1/disks/{disk}/resize", request_body = ResizeDisk,
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn resize(
    State(control): State<Control>,
    caller: Caller,
    Part(disk): Part<String>,
    Body(resize): Body<ResizeDisk>,
) -> JobAnswer {
    if resize.shrink.is_some() {
        caller.require(Role::Admin)?;
    }
    start(&control, move |daemon| daemon.resize(&disk, resize.size, resize.shrink.as_deref())).await
}

/// Forgets a detached disk. Dirty data is destroyed only if the disk's name is repeated.
#[utoipa::path(post, path = "/v1/disks/{disk}/forget", request_body = ForgetDisk,
    params(("disk" = String, Path, description = "Name of the disk, or its identity if the name is unknown")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn forget(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Body(forget): Body<ForgetDisk>,
) -> JobAnswer {
    start(&control, move |daemon| daemon.forget(&disk, forget.destroy_dirty.as_deref())).await
}
