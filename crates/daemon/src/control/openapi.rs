//! `/openapi.json`: the API's description of itself.

use axum::Json;
use utoipa::OpenApi;

use super::{cluster, disks, lending, migration, policy, pools, system};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Haversack control API",
        description = "Errors are returned as ErrorBody. Long operations return a Job."
    ),
    paths(
        system::status,
        system::jobs,
        system::job,
        system::cancel,
        system::events,
        system::stop,
        system::overview,
        system::history,
        system::metrics,
        system::healthy,
        system::ready,
        pools::list,
        pools::show,
        pools::add_device,
        pools::remove_device,
        disks::list,
        disks::show,
        disks::attach,
        disks::change,
        disks::detach,
        disks::lost,
        disks::flush,
        disks::resize,
        disks::forget,
        migration::list,
        migration::expect,
        migration::hosts,
        migration::show,
        migration::start,
        migration::keep,
        migration::stop,
        migration::takeover,
        migration::own,
        lending::list,
        cluster::show,
        cluster::plan,
        cluster::drain,
        cluster::undrain,
        cluster::forget,
        cluster::tenants,
        cluster::set_tenant,
        cluster::remove_tenant,
        policy::show,
        policy::set,
        policy::end,
        policy::log,
        policy::event,
        policy::explain,
        policy::curve,
        policy::measure,
        policy::trace,
    )
)]
struct Api;

/// Answers with the description.
pub async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(Api::openapi())
}
