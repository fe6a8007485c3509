//! Who makes a request, and with which role.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, User};

use super::answer::Failure;
use super::peer_groups::peer_groups;

/// What a caller is allowed to do. Each role includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Can view everything except secrets.
    Reader,
    /// Can also attach, change, move and detach disks as long as no data is lost, and set the policy.
    Operator,
    /// Can do everything, including giving up data, taking disks over, changing a pool's devices and stopping the
    /// daemon.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Reader => "reader",
            Role::Operator => "operator",
            Role::Admin => "admin",
        })
    }
}

/// A process at the other end of a Unix socket, with its credentials when it connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its process ID.
    pub id: i32,
    /// Its user.
    pub user: u32,
    /// Its groups.
    pub groups: Vec<u32>,
}

impl Process {
    /// Returns the process at the other end, or `None` if the system does not provide its credentials.
    pub fn of_stream(stream: &impl AsFd) -> Option<Process> {
        let credentials = getsockopt(stream, PeerCredentials).ok()?;
        // A caller whose supplementary groups are not known has fewer roles, never more.
        let mut groups = peer_groups(stream).unwrap_or_default();
        groups.push(credentials.gid());
        Some(Process { id: credentials.pid(), user: credentials.uid(), groups })
    }
}

/// Who made a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// A process on this host: user ID and process ID.
    User(u32, i32),
    /// A machine.
    Address(IpAddr),
    /// A machine with a client certificate: the name in it.
    Certificate(Arc<str>, IpAddr),
    /// Not known.
    Unknown,
}

/// Looks the user's name up, which may read files.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::User(user, process) => {
                match User::from_uid(Uid::from_raw(*user)).ok().flatten() {
                    Some(user) => write!(f, "{}", user.name)?,
                    None => write!(f, "user {user}")?,
                }
                write!(f, " (process {process})")
            }
            Who::Address(address) => write!(f, "{address}"),
            Who::Certificate(name, address) => write!(f, "{name} ({address})"),
            Who::Unknown => write!(f, "unknown"),
        }
    }
}

/// The caller of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Who it is.
    pub who: Who,
    /// Its role. Without a role, every request is refused.
    pub role: Option<Role>,
}

impl Caller {
    /// Requires a role.
    ///
    /// # Errors
    /// The caller's role is lower.
    pub fn require(&self, role: Role) -> Result<(), Failure> {
        if self.role >= Some(role) {
            return Ok(());
        }
        let has = self.role.map_or_else(|| "none".into(), |role| format!("'{role}'"));
        let error = format!("this requires the role '{role}', but the caller has {has}");
        let hint = "ask an administrator of this host; roles are configured in [access] of haversackd.toml";
        Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", error, hint))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Failure> {
        Ok(parts.extensions.get().cloned().unwrap_or(Caller { who: Who::Unknown, role: None }))
    }
}
