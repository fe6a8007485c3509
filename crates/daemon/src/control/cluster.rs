//! `/v1/cluster`: the cluster as the directory has it, and what an operator changes in it.

use axum::extract::State;
use haversack_api::{ClusterPlan, ClusterStatus, ErrorBody, ForgetHost, TenantSettings, TenantStatus};

use super::Control;
use super::answer::{Answer, Body, Part, answer};

/// The cluster as this host knows it, even while etcd cannot be reached: `directory` says how old that is.
#[utoipa::path(get, path = "/v1/cluster",
    responses((status = 200, body = ClusterStatus), (status = 409, body = ErrorBody)))]
pub async fn show(State(control): State<Control>) -> Answer<ClusterStatus> {
    answer(&control, |daemon| daemon.cluster_status()).await
}

/// What the balancer proposes. Nothing is moved.
#[utoipa::path(get, path = "/v1/cluster/plan",
    responses((status = 200, body = ClusterPlan), (status = 409, body = ErrorBody)))]
pub async fn plan(State(control): State<Control>) -> Answer<ClusterPlan> {
    answer(&control, |daemon| daemon.cluster_plan()).await
}

/// Drains a host: the balancer proposes to move all of its VMs away, and none to it.
#[utoipa::path(put, path = "/v1/cluster/hosts/{host}/drain",
    params(("host" = String, Path, description = "Name of the host")),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn drain(State(control): State<Control>, Part(host): Part<String>) -> Answer<()> {
    answer(&control, move |daemon| daemon.drain_host(&host, true)).await
}

/// Lets a host accept VMs again.
#[utoipa::path(delete, path = "/v1/cluster/hosts/{host}/drain",
    params(("host" = String, Path, description = "Name of the host")),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn undrain(State(control): State<Control>, Part(host): Part<String>) -> Answer<()> {
    answer(&control, move |daemon| daemon.drain_host(&host, false)).await
}

/// Removes a permanently dead host, and the disks that it owned, from the directory. Refused while it is alive.
#[utoipa::path(post, path = "/v1/cluster/hosts/{host}/forget", request_body = ForgetHost,
    params(("host" = String, Path, description = "Name of the host")),
    responses((status = 200), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)))]
pub async fn forget(
    State(control): State<Control>,
    Part(host): Part<String>,
    Body(forget): Body<ForgetHost>,
) -> Answer<()> {
    answer(&control, move |daemon| daemon.forget_host(&host, &forget)).await
}

/// The tenants, and what each would get of all caches. Disks without a tenant count as one tenant without a
/// name.
#[utoipa::path(get, path = "/v1/cluster/tenants",
    responses((status = 200, body = Vec<TenantStatus>), (status = 409, body = ErrorBody)))]
pub async fn tenants(State(control): State<Control>) -> Answer<Vec<TenantStatus>> {
    answer(&control, |daemon| daemon.tenants()).await
}

/// Sets what a tenant may use.
#[utoipa::path(put, path = "/v1/cluster/tenants/{tenant}", request_body = TenantSettings,
    params(("tenant" = String, Path, description = "Name of the tenant")),
    responses((status = 200), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn set_tenant(
    State(control): State<Control>,
    Part(tenant): Part<String>,
    Body(settings): Body<TenantSettings>,
) -> Answer<()> {
    answer(&control, move |daemon| daemon.set_tenant(&tenant, &settings)).await
}

/// Removes what was set for a tenant.
#[utoipa::path(delete, path = "/v1/cluster/tenants/{tenant}",
    params(("tenant" = String, Path, description = "Name of the tenant")),
    responses((status = 200), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn remove_tenant(State(control): State<Control>, Part(tenant): Part<String>) -> Answer<()> {
    answer(&control, move |daemon| daemon.remove_tenant(&tenant)).await
}
