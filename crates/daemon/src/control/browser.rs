//! Which requests of browsers are accepted.
//!
//! A browser sends requests for any page that is open in it, with the browser's own credentials. So a page of another
//! site could send requests to a daemon whose control socket is forwarded to a user's desktop (`ssh -L`).
//!
//! Invariants
//! - A request that a page of another site made is refused.
//! - A request that any page made changes nothing: only GET and HEAD are answered.
//! - Without TLS, a request for a host name with a dot is refused: another site can make such a name resolve to this
//!   machine.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answer::Failure;

/// Refuses what a browser must not ask, without TLS.
pub async fn guard_plain(request: Request, next: Next) -> Response {
    if let Some(name) = public_name(request.headers()) {
        let error = format!("the request is for host '{name}'");
        return refuse(error, "ask for localhost");
    }
    guard(request, next).await
}

/// Refuses what a browser must not ask.
pub async fn guard(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return refuse("a page of another site made the request".into(), "open the dashboard itself");
    }
    let is_of_page = site.is_some() || headers.contains_key(ORIGIN);
    if is_of_page && !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refuse(
            "a page made the request".into(),
            "use 'haversack', or another program than a browser",
        );
    }
    next.run(request).await
}

fn refuse(error: String, hint: &str) -> Response {
    Failure::new(StatusCode::FORBIDDEN, "forbidden", error, hint).into_response()
}

/// The host that the request is for, if other machines could have that name.
fn public_name(headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST)?.to_str().unwrap_or("?.");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    (address.is_err() && name.trim_end_matches('.').contains('.')).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_others_could_have_are_told_apart() {
        let public = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            public_name(&headers).is_some()
        };
        for host in
            ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]", "x", "localhost."]
        {
            assert!(!public(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example:80"]
        {
            assert!(public(host), "{host}");
        }
        assert_eq!(public_name(&HeaderMap::new()), None);
    }
}
