//! Roles of callers, and what they are required for.
//!
//! Invariants
//! - A caller has the highest of the roles of its groups, its certificate and the token. Root and the daemon's own user
//!   are admins.
//! - Without `[access]`, anyone who can open the control socket is an admin.
//! - Every request of a caller without a role is refused. A request whose caller is not known has no role.
//! - Responses to readers contain no secrets.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::prelude::{BASE64_STANDARD, Engine};
use haversack_api::redact;
use nix::unistd::{Group, Uid};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;

use super::answer::Failure;
use super::caller::{Caller, Process, Role, Who};
use super::config::{AccessConfig, CertificateName};

/// An error in the configuration of roles.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The group does not exist.
    #[error(
        "[access] group '{group}': no such group; create it, for example with: addgroup --system {group}"
    )]
    NoSuchGroup {
        /// The group.
        group: String,
    },
    /// The group cannot be looked up.
    #[error("[access] group '{group}': cannot look it up: {source}")]
    Lookup {
        /// The group.
        group: String,
        /// The system's error.
        source: nix::Error,
    },
}

/// Who has which role.
#[derive(Debug)]
pub struct Access {
    /// Whether anyone who can open the control socket is an admin.
    is_open: bool,
    /// The daemon's user.
    own_user: u32,
    groups: Vec<(u32, Role)>,
    certificates: Vec<(ServerName<'static>, Arc<str>, Role)>,
}

impl Access {
    /// Resolves the groups of the configuration. `own_user` is the user that the daemon runs as.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn new(config: Option<&AccessConfig>, own_user: Uid) -> Result<Access, AccessError> {
        let (mut groups, mut certificates) = (Vec::new(), Vec::new());
        for (role, principals) in config.into_iter().flat_map(AccessConfig::roles) {
            for group in &principals.groups {
                let found = Group::from_name(group)
                    .map_err(|source| AccessError::Lookup { group: group.clone(), source })?
                    .ok_or_else(|| AccessError::NoSuchGroup { group: group.clone() })?;
                groups.push((found.gid.as_raw(), role));
            }
            for CertificateName(name) in &principals.certificates {
                certificates.push((ServerName::DnsName(name.clone()), name.as_ref().into(), role));
            }
        }
        Ok(Access { is_open: config.is_none(), own_user: own_user.as_raw(), groups, certificates })
    }

    /// Returns whether anyone who can open the control socket is an admin.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the caller at the control socket.
    pub fn of_process(&self, process: Option<&Process>) -> Caller {
        let who = process.map_or(Who::Unknown, |process| Who::User(process.user, process.id));
        let is_admin = |process: &Process| [0, self.own_user].contains(&process.user);
        if self.is_open || process.is_some_and(is_admin) {
            return Caller { who, role: Some(Role::Admin) };
        }
        let has = |group| process.is_some_and(|process| process.groups.contains(group));
        let role = self.groups.iter().filter(|(group, _)| has(group)).map(|(_, role)| *role).max();
        Caller { who, role }
    }

    /// Returns the caller with a verified certificate, or with none.
    pub fn of_certificate(&self, certificate: Option<&CertificateDer<'_>>, address: IpAddr) -> Caller {
        let parsed = certificate.and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
        let has =
            |name| parsed.as_ref().is_some_and(|certificate| verify_server_name(certificate, name).is_ok());
        let named = self.certificates.iter().filter(|(name, text, _)| {
            has(name) && certificate.is_some_and(|certificate| !has_wildcard_for(certificate, text))
        });
        match named.max_by_key(|(.., role)| *role) {
            Some((_, name, role)) => {
                Caller { who: Who::Certificate(name.clone(), address), role: Some(*role) }
            }
            None => Caller { who: Who::Address(address), role: None },
        }
    }
}

/// Returns whether a certificate contains a wildcard that matches this name. It identifies a domain, not one machine.
fn has_wildcard_for(certificate: &[u8], name: &str) -> bool {
    let Some((_, domain)) = name.split_once('.') else { return false };
    let wildcard = format!("*.{domain}");
    certificate.windows(wildcard.len()).any(|bytes| bytes.eq_ignore_ascii_case(wildcard.as_bytes()))
}

/// Refuses callers without a role, and removes secrets from responses to readers.
pub async fn guard(caller: Caller, request: Request, next: Next) -> Result<Response, Failure> {
    caller.require(Role::Reader)?;
    // The API's description has fields with the names of secrets, but contains no secrets.
    let is_shown = caller.role > Some(Role::Reader) || request.uri().path() == "/openapi.json";
    let response = next.run(request).await;
    Ok(if is_shown { response } else { without_secrets(response).await })
}

/// Requires an operator.
pub async fn operators(caller: Caller, request: Request, next: Next) -> Result<Response, Failure> {
    caller.require(Role::Operator)?;
    Ok(next.run(request).await)
}

/// Requires an admin.
pub async fn admins(caller: Caller, request: Request, next: Next) -> Result<Response, Failure> {
    caller.require(Role::Admin)?;
    Ok(next.run(request).await)
}

/// Replaces passwords and keys in a JSON response, such as those in the addresses of origins.
async fn without_secrets(response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
    if kind.as_deref() != Some(b"application/json") {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await;
    let clean = move || -> Option<Vec<u8>> {
        let mut value = serde_json::from_slice(&bytes.ok()?).ok()?;
        redact::json(&mut value);
        serde_json::to_vec(&value).ok()
    };
    match tokio::task::spawn_blocking(clean).await {
        Ok(Some(clean)) => {
            head.headers.remove(CONTENT_LENGTH);
            Response::from_parts(head, Body::from(clean))
        }
        Ok(None) => Failure::bug("secrets cannot be removed from the response".into()).into_response(),
        Err(error) => Failure::bug(error.to_string()).into_response(),
    }
}

/// Authenticates a request over TCP by its token. The request is refused if the token is not valid and its client
/// certificate has no role.
pub async fn with_token(
    State(token): State<Option<Arc<str>>>,
    mut caller: Caller,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    caller.role = caller.role.max(role_of(given, token.as_deref(), request.method()));
    if caller.role.is_some() {
        request.extensions_mut().insert(caller);
        return next.run(request).await;
    }
    ([(WWW_AUTHENTICATE, "Basic realm=\"Haversack\"")], Failure::unauthorized()).into_response()
}

fn role_of(given: Option<&[u8]>, token: Option<&str>, method: &Method) -> Option<Role> {
    let (given, token) = (given?, token?.as_bytes());
    match given.strip_prefix(b"Bearer ") {
        Some(given) => is_equal(given, token).then_some(Role::Admin),
        // A browser sends `Basic` credentials for any page that is open in it, so they allow no change.
        None => {
            let reads = matches!(*method, Method::GET | Method::HEAD);
            (reads && is_equal(&password(given)?, token)).then_some(Role::Reader)
        }
    }
}

/// Returns the password of `Basic` credentials; the name does not matter.
fn password(credentials: &[u8]) -> Option<Vec<u8>> {
    let mut text = BASE64_STANDARD.decode(credentials.strip_prefix(b"Basic ")?).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some(text.split_off(colon + 1))
}

/// Compares in constant time, so that the time does not show where a wrong token differs.
fn is_equal(given: &[u8], token: &[u8]) -> bool {
    let difference = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(difference) == 0 && given.len() == token.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::config::Principals;

    fn process(user: u32, groups: &[u32]) -> Process {
        Process { id: 7, user, groups: groups.to_vec() }
    }

    #[test]
    fn a_process_has_the_highest_role_of_its_groups() {
        let access = Access {
            is_open: false,
            own_user: 100,
            groups: vec![(1, Role::Reader), (2, Role::Operator), (3, Role::Admin), (1, Role::Reader)],
            certificates: Vec::new(),
        };
        let role = |user, groups: &[u32]| access.of_process(Some(&process(user, groups))).role;
        assert_eq!(role(5, &[]), None);
        assert_eq!(role(5, &[4, 0, 100]), None);
        assert_eq!(role(5, &[4, 1]), Some(Role::Reader));
        assert_eq!(role(5, &[2, 1]), Some(Role::Operator));
        assert_eq!(role(5, &[1, 3, 2]), Some(Role::Admin));
        assert_eq!(role(0, &[]), Some(Role::Admin));
        assert_eq!(role(100, &[]), Some(Role::Admin));
        assert_eq!(access.of_process(None), Caller { who: Who::Unknown, role: None });
    }

    #[test]
    fn without_roles_everybody_is_an_admin() {
        let access = Access::new(None, Uid::from_raw(100)).unwrap();
        assert_eq!(access.of_process(Some(&process(5, &[]))).role, Some(Role::Admin));
        assert_eq!(access.of_process(None).role, Some(Role::Admin));
        let access = Access::new(Some(&AccessConfig::default()), Uid::from_raw(100)).unwrap();
        assert_eq!(access.of_process(Some(&process(5, &[]))).role, None);
    }

    #[test]
    fn a_group_that_is_not_there_is_an_error() {
        let with = |groups: Vec<String>| {
            let readers = Principals { groups, certificates: Vec::new() };
            Access::new(Some(&AccessConfig { readers, ..AccessConfig::default() }), Uid::from_raw(100))
        };
        let error = with(vec!["no-such-group".into()]).unwrap_err().to_string();
        assert!(error.contains("'no-such-group'") && error.contains("addgroup"), "{error}");
        assert_eq!(with(vec!["root".into()]).unwrap().groups, [(0, Role::Reader)]);
    }

    #[test]
    fn a_certificate_has_the_role_of_its_name() {
        let principals = |name: &str| Principals {
            groups: Vec::new(),
            certificates: vec![name.to_owned().try_into().unwrap()],
        };
        let config = AccessConfig {
            readers: principals("grafana.example"),
            operators: principals("compute.example"),
            admins: Principals::default(),
        };
        let access = Access::new(Some(&config), Uid::from_raw(100)).unwrap();
        let address = IpAddr::from([10, 0, 0, 7]);
        let role = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let made = rcgen::generate_simple_self_signed(names).unwrap();
            access.of_certificate(Some(made.cert.der()), address)
        };
        assert_eq!(role(&["grafana.example"]).role, Some(Role::Reader));
        let both = role(&["grafana.example", "compute.example"]);
        assert_eq!(both.role, Some(Role::Operator));
        assert_eq!(both.who.to_string(), "compute.example (10.0.0.7)");
        assert_eq!(role(&["compute.example.org", "x.compute.example"]).role, None);
        assert_eq!(role(&["*.example"]).role, None);
        assert_eq!(role(&[]).role, None);
        assert_eq!(access.of_certificate(None, address).role, None);
        let nonsense = CertificateDer::from(vec![0x30, 3, 1, 1, 0]);
        assert_eq!(access.of_certificate(Some(&nonsense), address).role, None);
    }

    #[test]
    fn the_token_makes_an_admin_and_as_a_password_a_reader() {
        let role = |given: &str, method| role_of(Some(given.as_bytes()), Some("a-token"), &method);
        let basic = |text: &str| format!("Basic {}", BASE64_STANDARD.encode(text));
        assert_eq!(role("Bearer a-token", Method::POST), Some(Role::Admin));
        assert_eq!(role("Bearer a-tokem", Method::GET), None);
        assert_eq!(role("Bearer a-token2", Method::GET), None);
        assert_eq!(role(&basic("any:a-token"), Method::GET), Some(Role::Reader));
        assert_eq!(role(&basic("any:a-token"), Method::POST), None);
        assert_eq!(role(&basic("a-token"), Method::GET), None);
        assert_eq!(role_of(None, Some("a-token"), &Method::GET), None);
        assert_eq!(role_of(Some(b"Bearer "), None, &Method::GET), None);
    }
}
