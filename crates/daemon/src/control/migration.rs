//! `/v1/disks/DISK/migration`, `/v1/migrations` and `/v1/hosts`: disks that move between hosts.

use axum::extract::State;
use haversack_api::{
    ErrorBody, ExpectDisk, HostStatus, Job, KeepMigration, MigrationStatus, OwnDisk, StartMigration, Takeover,
};

use super::Control;
use super::answer::{Answer, Body, JobAnswer, Part, answer, start as start_job};

/// Disks that may move between hosts.
#[utoipa::path(get, path = "/v1/migrations",
    responses((status = 200, body = Vec<MigrationStatus>), (status = 409, body = ErrorBody)))]
pub async fn list(State(control): State<Control>) -> Answer<Vec<MigrationStatus>> {
    answer(&control, |daemon| daemon.migrations()).await
}

/// Attaches a disk here and requests its cache from the host that has it, because its VM is about to arrive.
/// Answers when the disk is attached.
#[utoipa::path(post, path = "/v1/migrations", request_body = ExpectDisk,
    responses((status = 200, body = MigrationStatus), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub async fn expect(
    State(control): State<Control>,
    Body(wanted): Body<ExpectDisk>,
) -> Answer<MigrationStatus> {
    answer(&control, move |daemon| daemon.expect(&wanted)).await
}

/// The other hosts, and the connections to them.
#[utoipa::path(get, path = "/v1/hosts", responses((status = 200, body = Vec<HostStatus>)))]
pub async fn hosts(State(control): State<Control>) -> Answer<Vec<HostStatus>> {
    answer(&control, |daemon| Ok(daemon.hosts().map_or_else(Vec::new, |hosts| hosts.status()))).await
}

/// The progress of a disk that may move.
#[utoipa::path(get, path = "/v1/disks/{disk}/migration",
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = MigrationStatus), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn show(State(control): State<Control>, Part(disk): Part<String>) -> Answer<MigrationStatus> {
    answer(&control, move |daemon| daemon.migration_of(&disk)).await
}

/// Sends a disk's cache to another host while its guest runs here; that host attaches the disk if it has not. The job
/// ends when the guest runs there. If the job is cancelled, the disk stays here.
#[utoipa::path(post, path = "/v1/disks/{disk}/migration", request_body = StartMigration,
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn start(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Body(start): Body<StartMigration>,
) -> JobAnswer {
    start_job(&control, move |daemon| daemon.migrate(&disk, start)).await
}

/// Keeps a migration that was started with `keep` alive for this much longer, or until it ends. Does nothing if
/// no migration was requested.
#[utoipa::path(put, path = "/v1/disks/{disk}/migration", request_body = KeepMigration,
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn keep(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Body(KeepMigration { keep }): Body<KeepMigration>,
) -> Answer<()> {
    answer(&control, move |daemon| daemon.keep_migration(&disk, keep)).await
}

/// Stops sending a disk's cache ahead. The disk stays here.
#[utoipa::path(delete, path = "/v1/disks/{disk}/migration",
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn stop(State(control): State<Control>, Part(disk): Part<String>) -> Answer<()> {
    answer(&control, move |daemon| daemon.stop_migration(&disk)).await
}

/// What would be lost if this host took a disk over from a permanently dead host.
#[utoipa::path(get, path = "/v1/disks/{disk}/own",
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 200, body = Takeover), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn takeover(State(control): State<Control>, Part(disk): Part<String>) -> Answer<Takeover> {
    answer(&control, move |daemon| daemon.takeover_of(&disk)).await
}

/// Takes a disk over from a permanently dead host: fences that host, then owns the disk. Refused while that host
/// answers.
#[utoipa::path(post, path = "/v1/disks/{disk}/own", request_body = OwnDisk,
    params(("disk" = String, Path, description = "Name of the disk")),
    responses((status = 202, body = Job), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub async fn own(
    State(control): State<Control>,
    Part(disk): Part<String>,
    Body(own): Body<OwnDisk>,
) -> JobAnswer {
    start_job(&control, move |daemon| daemon.own(&disk, own)).await
}
