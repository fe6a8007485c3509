//! The directory of a cluster: what its hosts publish about themselves in etcd, and each host's local copy of it.
//!
//! It tells operators and the balancer which hosts there are, how full and busy their pools are, and which host has
//! which disk. It never gives a disk to a host: the hosts' own durable records determine a disk's owner
//! (docs/ownership.md), and the directory is updated afterwards. So a lost lease, an old entry or a missing etcd never
//! gives a disk away, and no guest waits for etcd. But an entry is evidence that its host has had the disk under its
//! epoch: if that epoch was taken by force, a host with an older record stops using the disk
//! (`haversack_migrate::heed`).
//!
//! This crate does no I/O. It decides what is written and under which conditions ([`changes`], [`Change`], [`Lead`]),
//! and interprets what is there ([`View`]). The crate `haversack-etcd` carries that out, and the crash simulator runs
//! the same rules against a model of etcd.
//!
//! The keys are described at [`Key`], the values at the records ([`HostRecord`] and others).
//!
//! Invariants
//! - No time of the system's clock is stored, sent or compared: ages are measured by the monotonic clock of the host
//!   that shows them. A clock that jumps changes nothing.
//! - A host changes only keys of its own, disks that it owns, and what its callers ask for. Another host's entry of a
//!   disk is replaced only by one with a higher epoch. An entry with an epoch that was taken by force is never replaced
//!   by one with a lower epoch.

pub mod bugs;
mod change;
mod error;
mod key;
mod leadership;
mod noticeable;
mod record;
mod report;
mod value;
mod view;
mod write;

pub use change::{Change, Lead};
pub use error::DirectoryError;
pub use key::{Key, PREFIX};
pub use leadership::Leadership;
pub use record::{
    BalanceRecord, DiskRecord, DrainRecord, HostRecord, IntentRecord, LeaderRecord, LendRecord, Load,
    PoolRecord, RecordError, TenantRecord, VERSION, VmNeeds, Worth,
};
pub use report::{Changes, Conflict, Report, changes};
pub use value::{Unread, Value};
pub use view::{Found, Progress, Seen, Stamp, Unreadable, View};
pub use write::{At, Condition, MOST_WRITES, Write};
