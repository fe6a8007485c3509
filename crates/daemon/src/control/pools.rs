//! `/v1/pools`

use axum::extract::State;
use haversack_api::{AddDevice, ErrorBody, Job, PoolStatus};

use super::Control;
use super::answer::{Answer, Body, JobAnswer, Part, answer, start};

/// All pools.
#[utoipa::path(get, path = "/v1/pools", responses((status = 200, body = Vec<PoolStatus>)))]
pub async fn list(State(control): State<Control>) -> Answer<Vec<PoolStatus>> {
    answer(&control, |daemon| Ok(daemon.status().pools)).await
}

/// A pool.
#[utoipa::path(get, path = "/v1/pools/{pool}", params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = PoolStatus), (status = 404, body = ErrorBody)))]
pub async fn show(State(control): State<Control>, Part(pool): Part<String>) -> Answer<PoolStatus> {
    answer(&control, move |daemon| daemon.pool_status(&pool)).await
}

/// Adds a device to a pool. Existing data on it is lost; a device that belongs to a pool is refused.
#[utoipa::path(post, path = "/v1/pools/{pool}/devices", request_body = AddDevice,
    params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub async fn add_device(
    State(control): State<Control>,
    Part(pool): Part<String>,
    Body(device): Body<AddDevice>,
) -> JobAnswer {
    start(&control, move |daemon| daemon.add_device(&pool, &device)).await
}

/// Empties a device and removes it from its pool.
#[utoipa::path(delete, path = "/v1/pools/{pool}/devices/{device}",
    params(("pool" = String, Path, description = "Name of the pool"), ("device" = u8, Path, description = "Number of the device")),
    responses((status = 202, body = Job), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn remove_device(
    State(control): State<Control>,
    Part((pool, device)): Part<(String, u8)>,
) -> JobAnswer {
    start(&control, move |daemon| daemon.remove_device(&pool, device)).await
}
