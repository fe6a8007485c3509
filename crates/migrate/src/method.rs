//! What is sent with a disk, and when: the methods of the papers, and this project's own.
//!
//! A [`Method`] is only a name. [`Method::plan`] defines it, as a set of independent choices for the protocol.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a disk's cache moves. The papers are named in docs/migration.md, with what differs from them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Method {
    /// Nothing is sent: dirty blocks are written to the origin before the disk is released, and the destination
    /// starts cold.
    /// FirepanIF, section 4.2: NoCacheMigration.
    None,
    /// As [`Method::None`], and the destination reads the blocks that the source had from the origin, hottest first.
    /// FirepanIF, section 3.1: Cachemior.
    Preload,
    /// The guest waits until all cached blocks have been copied. FirepanIF, section 3.2: Firepan.
    StopCopy,
    /// As [`Method::None`], and the clean blocks follow in the background from the source; those that the guest
    /// overwrites meanwhile are filtered out. FirepanIF, section 3.3.
    InvalidationFilter,
    /// Dirty blocks are fetched when they are needed. CloudCache, section 4.2, "on-demand migration".
    OnDemand,
    /// Dirty blocks are fetched when they are needed and in the background. CloudCache, section 4.2, with "background
    /// migration" of dirty data only.
    OnDemandDirty,
    /// As [`Method::OnDemandDirty`], and the clean blocks that were used again follow, most recent first. CloudCache,
    /// section 4.2, with "background migration" of the reuse working set.
    OnDemandRws,
    /// All cached blocks are sent ahead while the guest runs, dirty ones first; blocks that have changed since are
    /// sent again.
    #[default]
    PreCopy,
}

/// When copies are sent ahead of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// Never.
    Never,
    /// While the guest still runs.
    Running,
    /// When the guest has stopped, before the disk is released.
    Stopped,
}

/// Which clean blocks follow the disk after it was released: *late copies*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// None.
    None,
    /// All of them, hottest first, read from the origin.
    FromOrigin,
    /// All of them, hottest first, from the earlier owner, in the background.
    FromOwner,
    /// Those that were used again, most recent first, from the earlier owner: in the background, and when a read needs
    /// them.
    ReusedFromOwner,
}

/// The choices that make up a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When copies are sent ahead.
    pub ahead: Ahead,
    /// Dirty blocks are written to the origin before the disk is released.
    pub cleans: bool,
    /// Dirty blocks are fetched in the background, not only when they are needed.
    pub fetches_dirty: bool,
    /// Which clean blocks follow.
    pub late: Late,
    /// Fetched blocks count towards a limit per period.
    pub is_limited: bool,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 8] = [
        Method::None,
        Method::Preload,
        Method::StopCopy,
        Method::InvalidationFilter,
        Method::OnDemand,
        Method::OnDemandDirty,
        Method::OnDemandRws,
        Method::PreCopy,
    ];

    /// Returns the name in settings and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Method::None => "none",
            Method::Preload => "preload",
            Method::StopCopy => "stop-copy",
            Method::InvalidationFilter => "invalidation-filter",
            Method::OnDemand => "on-demand",
            Method::OnDemandDirty => "on-demand-dirty",
            Method::OnDemandRws => "on-demand-rws",
            Method::PreCopy => "pre-copy",
        }
    }

    /// Returns what the method does.
    pub fn plan(self) -> Plan {
        let nothing = Plan {
            ahead: Ahead::Never,
            cleans: false,
            fetches_dirty: true,
            late: Late::None,
            is_limited: false,
        };
        match self {
            Method::None => Plan { cleans: true, ..nothing },
            Method::Preload => Plan { cleans: true, late: Late::FromOrigin, ..nothing },
            Method::StopCopy => Plan { ahead: Ahead::Stopped, ..nothing },
            Method::InvalidationFilter => Plan { cleans: true, late: Late::FromOwner, ..nothing },
            Method::OnDemand => Plan { fetches_dirty: false, ..nothing },
            Method::OnDemandDirty => nothing,
            Method::OnDemandRws => Plan { late: Late::ReusedFromOwner, is_limited: true, ..nothing },
            Method::PreCopy => Plan { ahead: Ahead::Running, ..nothing },
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is not that of a method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownMethod(String);

impl fmt::Display for UnknownMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Method::ALL.map(Method::name).join(", ");
        write!(f, "'{}' is not a migration method: use one of {names}", self.0)
    }
}

impl std::error::Error for UnknownMethod {}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Method, UnknownMethod> {
        let found = Method::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| UnknownMethod(name.to_string()))
    }
}

impl TryFrom<String> for Method {
    type Error = UnknownMethod;

    fn try_from(name: String) -> Result<Method, UnknownMethod> {
        name.parse()
    }
}

impl From<Method> for String {
    fn from(method: Method) -> String {
        method.name().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_its_name_and_no_other_name_is() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        let error = "warm".parse::<Method>().expect_err("no such method");
        assert!(error.to_string().contains("'warm'") && error.to_string().contains("on-demand-rws"));
    }

    #[test]
    fn no_two_methods_do_the_same() {
        for (at, method) in Method::ALL.iter().enumerate() {
            assert!(Method::ALL[at + 1..].iter().all(|other| other.plan() != method.plan()), "{method}");
        }
    }
}
