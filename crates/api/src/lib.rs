//! The control API's JSON types, shared by the daemon and the command line.
//!
//! Invariants
//! - Configuration types refuse unknown keys; answers ignore them, so that an older client can talk to a newer
//!   daemon.
//! - Sizes are bytes and times microseconds unless the field's name says otherwise. On input a size may also be
//!   a string such as `10GiB`, and a time one such as `30s`.

mod cluster;
mod disk;
mod lending;
mod migration;
mod overview;
mod policy;
pub mod redact;
mod status;
mod units;

pub use cluster::{
    ClusterDisk, ClusterHost, ClusterMove, ClusterPlan, ClusterPool, ClusterStatus, DirectoryStatus,
    ForgetHost, HostState, PlannedLoan, PlannedMove, TenantSettings, TenantStatus,
};
pub use disk::{
    ANY_HOST, Admission, CleanOrder, CleanerSettings, DISK_NAMESPACE, DiskChange, DiskConfig, Mode,
    OriginTls, Persistence, Target, WithoutReplica,
};
pub use lending::{BorrowedLoans, LenderState, LendingPool, LentLoans, Loans};
pub use migration::{
    ExpectDisk, HostStatus, KeepMigration, KeptReplica, LastKnown, Method, MigrationState, MigrationStatus,
    OwnDisk, ReplicaState, ReplicaStatus, StartMigration, Takeover,
};
pub use overview::{DiskHistory, DiskOverview, History, Overview, PoolHistory, PoolMoment};
pub use policy::{
    DiskCurve, DiskEvent, DiskEventKind, DiskPolicy, Explanation, Measured, MissPoint, PolicySettings,
    PolicyStatus, PoolPolicy,
};
pub use status::{
    AddDevice, BaseStatus, BlockCounters, DeviceStatus, DiskState, DiskStatus, Elsewhere, EnduranceStatus,
    ErrorBody, ErrorCounters, Event, Events, FlashWrites, ForgetDisk, Job, JobKind, JobState, Latency,
    LatencyByKind, LostData, LostRange, PoolState, PoolStatus, RequestCounters, ResizeDisk, SandboxStatus,
    Status, SteppedStatus, Usage,
};
pub use units::{Size, Span, WindowSetting};
