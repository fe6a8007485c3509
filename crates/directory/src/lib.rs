//! The directory of a cluster: what its hosts publish about themselves in etcd, and each host's local copy of it.
//!
//! It tells an operator, and whoever balances the load, which hosts there are, how full and busy their pools are, and which
//! host has which disk. It decides nothing about data: a disk's owner is who the hosts' own durable records say it is
//! (docs/ownership.md), and the directory is told afterwards. So a lost lease, an old entry or no etcd at all never gives
//! a disk away, and no guest waits for etcd.
//!
//! [`Directory`] runs one thread. It keeps a connection to one member of etcd, a lease that says that this host is alive,
//! and a watch that keeps the [`View`] up to date. When anything fails it connects to the next member, again and again.
//!
//! - A report ([`Directory::report`]) is what this host wants to have in the directory. It replaces the one before, and
//!   the thread brings etcd in line with it when it can: what waits is bounded, and nobody waits for it.
//! - Changes that a caller needs the result of, such as an intent, are calls: refused at once while etcd cannot be reached, and
//!   answered in bounded time otherwise.
//!
//! What is written, and under which conditions, is decided without I/O ([`changes`], [`Change`], [`Lead`], [`View`]), so that the
//! crash simulator runs the same rules against a model of etcd.
//!
//! The keys are described at [`Key`], the values at the records ([`HostRecord`] and others).
//!
//! Invariants
//! - No method of [`Directory`] waits for etcd, except the calls, which say how long.
//! - No time of the system's clock is stored, sent or compared: ages are measured by the monotonic clock of the host that
//!   looks. A step of a clock changes nothing.
//! - A host changes only keys of its own, disks that it owns, and what its callers ask for. An entry of a disk with a higher
//!   epoch is never replaced by one with a lower epoch.

mod backoff;
pub mod bugs;
mod call;
mod change;
mod config;
mod connect;
mod directory;
mod error;
mod key;
mod leadership;
mod lease;
mod noticeable;
mod record;
mod report;
mod session;
mod status;
mod transaction;
mod view;
mod watch;
mod write;

pub use change::{Change, Lead};
pub use config::{Config, TlsFiles};
pub use directory::Directory;
pub use error::DirectoryError;
pub use key::{Key, PREFIX};
pub use leadership::Leadership;
pub use record::{
    BalanceRecord, DiskRecord, DrainRecord, HostRecord, IntentRecord, LeaderRecord, Load, PoolRecord,
    RecordError, TenantRecord, VERSION, VmNeeds, Worth,
};
pub use report::{Changes, Conflict, Report, changes};
pub use status::Status;
pub use view::{Found, Progress, Seen, Stamp, Unreadable, View};
pub use write::{At, Condition, Write};
