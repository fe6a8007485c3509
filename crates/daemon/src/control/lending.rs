//! `/v1/loans`: flash that this host lends and borrows.

use axum::extract::State;
use haversack_api::Loans;

use super::Control;
use super::answer::{Answer, answer};

/// What this host lends to others and what its disks borrow; empty lists if it does neither.
#[utoipa::path(get, path = "/v1/loans", responses((status = 200, body = Loans)))]
pub async fn list(State(control): State<Control>) -> Answer<Loans> {
    answer(&control, |daemon| Ok(daemon.loans())).await
}
