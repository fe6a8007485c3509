//! The dashboard: a page that reads the control API and changes nothing.
//!
//! Invariants
//! - All that the page loads is part of the program.
//! - The page's policy lets it load nothing from elsewhere and run no script but its own, whatever a disk is called.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::Control;
use super::answer::no_such_path;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's files: name, type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("dashboard.css", "text/css", include_str!("../dashboard/dashboard.css")),
    ("main.js", "text/javascript", include_str!("../dashboard/main.js")),
    ("charts.js", "text/javascript", include_str!("../dashboard/charts.js")),
    ("cluster.js", "text/javascript", include_str!("../dashboard/cluster.js")),
    ("disks.js", "text/javascript", include_str!("../dashboard/disks.js")),
    ("moves.js", "text/javascript", include_str!("../dashboard/moves.js")),
    ("pools.js", "text/javascript", include_str!("../dashboard/pools.js")),
    ("text.js", "text/javascript", include_str!("../dashboard/text.js")),
];

/// Returns the page's routes.
pub fn routes() -> Router<Control> {
    Router::new().route("/", get(page)).route("/dashboard/{file}", get(file))
}

async fn page() -> Response {
    answer("text/html", include_str!("../dashboard/index.html"))
}

async fn file(Path(name): Path<String>, uri: axum::http::Uri) -> Response {
    match FILES.iter().find(|(file, _, _)| *file == name) {
        Some((_, kind, content)) => answer(kind, content),
        None => no_such_path(uri).await.into_response(),
    }
}

fn answer(kind: &str, content: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, format!("{kind}; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, POLICY.into()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        // The files change with the daemon.
        (CACHE_CONTROL, "no-cache".into()),
    ];
    (headers, content).into_response()
}
