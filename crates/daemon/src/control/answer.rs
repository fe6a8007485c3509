//! Answers of the API: JSON, or an error with its status, code and hint.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use haversack_api::{ErrorBody, Job};
use serde::Serialize;

use super::Control;
use crate::daemon::Daemon;
use crate::error::DaemonError;

/// An error answer.
pub struct Failure {
    status: StatusCode,
    body: ErrorBody,
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Failure {
        let status = StatusCode::from_u16(error.class().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Failure { status, body: error.body() }
    }
}

impl Failure {
    /// Makes an error with its status, a code for programs, a description and a hint.
    pub fn new(status: StatusCode, code: &str, error: String, hint: &str) -> Failure {
        Failure { status, body: ErrorBody { code: code.into(), error, hint: hint.into() } }
    }

    /// Returns the error for what must not happen.
    pub fn bug(error: String) -> Failure {
        let hint = "this is a bug: report it with the daemon's log";
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "bug", error, hint)
    }

    /// Returns the error for a missing or wrong token.
    pub fn unauthorized() -> Failure {
        let hint = "send the daemon's token: Authorization: Bearer TOKEN";
        Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", "no valid token".into(), hint)
    }
}

macro_rules! from_rejection {
    ($($rejection:ty)*) => {$(
        impl From<$rejection> for Failure {
            fn from(rejection: $rejection) -> Failure {
                let hint = "/openapi.json describes requests";
                Failure::new(rejection.status(), "bad-request", rejection.body_text(), hint)
            }
        }
    )*};
}

from_rejection!(JsonRejection PathRejection QueryRejection);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// A JSON body; an invalid one is answered like any other error.
#[derive(FromRequest)]
#[from_request(via(Json), rejection(Failure))]
pub struct Body<T>(pub T);

/// A parameter in the path.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Failure))]
pub struct Part<T>(pub T);

/// The query.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(Failure))]
pub struct Query<T>(pub T);

/// An answer.
pub type Answer<T> = Result<Json<T>, Failure>;
/// The answer of a call that starts a job.
pub type JobAnswer = Result<(StatusCode, Json<Job>), Failure>;

/// Runs a call on a thread of its own and returns its result.
pub async fn run<T: Send + 'static>(
    control: &Control,
    work: impl FnOnce(&Arc<Daemon>) -> Result<T, DaemonError> + Send + 'static,
) -> Result<T, Failure> {
    let daemon = control.daemon.clone();
    // Never closed.
    let place = control.work.clone().acquire_owned().await;
    let work = move || {
        let result = work(&daemon);
        drop(place);
        result
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(Failure::bug(error.to_string())),
    }
}

/// Runs a call and answers with its result.
pub async fn answer<T: Serialize + Send + 'static>(
    control: &Control,
    work: impl FnOnce(&Arc<Daemon>) -> Result<T, DaemonError> + Send + 'static,
) -> Answer<T> {
    Ok(Json(run(control, work).await?))
}

/// Runs a call that starts a job and answers with the job.
pub async fn start(
    control: &Control,
    work: impl FnOnce(&Arc<Daemon>) -> Result<Job, DaemonError> + Send + 'static,
) -> JobAnswer {
    Ok((StatusCode::ACCEPTED, Json(run(control, work).await?)))
}

/// Runs a call and answers with its text.
pub async fn text(
    control: &Control,
    work: impl FnOnce(&Arc<Daemon>) -> String + Send + 'static,
) -> Result<String, Failure> {
    run(control, move |daemon| Ok(work(daemon))).await
}

/// Answers that the path does not exist.
pub async fn no_such_path(uri: Uri) -> Failure {
    Failure::new(
        StatusCode::NOT_FOUND,
        "not-found",
        format!("nothing at {}", uri.path()),
        "see /openapi.json",
    )
}

/// Answers that the path does not support the method.
pub async fn wrong_method(method: Method, uri: Uri) -> Failure {
    let error = format!("{} does not take {method}", uri.path());
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method", error, "see /openapi.json")
}
