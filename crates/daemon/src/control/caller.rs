//! Who makes a request, and what that caller may do.

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

/// What a caller may do: each role includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Sees everything but secrets and changes nothing.
    Reader,
    /// Runs disks: attaches, changes, moves and detaches them, as long as no data is lost. Sets the policy.
    Operator,
    /// Does everything: gives up data, takes disks over, changes a pool's devices, stops the daemon.
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

/// A process that connected over a Unix socket, as it was then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub id: i32,
    /// Its user.
    pub user: u32,
    /// Its groups.
    pub groups: Vec<u32>,
}

impl Process {
    /// Returns the process at the other end; none if the system does not tell.
    pub fn of_stream(stream: &impl AsFd) -> Option<Process> {
        let credentials = getsockopt(stream, PeerCredentials).ok()?;
        // Without supplementary groups, the caller may do less, never more.
        let mut groups = peer_groups(stream).unwrap_or_default();
        groups.push(credentials.gid());
        Some(Process { id: credentials.pid(), user: credentials.uid(), groups })
    }
}

/// Who made a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// A process of this host: its user and its number.
    User(u32, i32),
    /// A machine.
    Address(IpAddr),
    /// A machine with a certificate: the name in it.
    Certificate(Arc<str>, IpAddr),
    /// The system does not say.
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

/// Who makes a request, and with which role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Who.
    pub who: Who,
    /// None for a stranger, whose every request is refused.
    pub role: Option<Role>,
}

impl Caller {
    /// Fails if the caller may not do what only `role` may.
    ///
    /// # Errors
    /// The role is higher than the caller's.
    pub fn require(&self, role: Role) -> Result<(), Failure> {
        if self.role >= Some(role) {
            return Ok(());
        }
        let has = self.role.map_or_else(|| "none".into(), |role| format!("'{role}'"));
        let error = format!("this needs the role '{role}'; the caller has {has}");
        let hint = "ask an administrator of this host; [access] in haversackd.toml gives roles";
        Err(Failure::new(StatusCode::FORBIDDEN, "forbidden", error, hint))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Failure> {
        Ok(parts.extensions.get().cloned().unwrap_or(Caller { who: Who::Unknown, role: None }))
    }
}
