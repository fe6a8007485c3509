//! Haversack's cache core: a deterministic, single-threaded state machine.
//!
//! Requests and completed I/Os go in with the current time; actions come out. The core does no I/O, reads no
//! clock, starts no thread, takes no lock and uses no randomness. So the daemon, the simulator and the crash
//! simulator run the same code, and any run can be repeated exactly.
//!
//! Start at [`Core`]. [`pool::create`] creates a pool, [`Core::open`] opens one, [`Core::with`] calls it.

pub mod action;
mod base;
pub mod bugs;
mod call;
pub mod checksum;
pub mod config;
mod core;
mod damaged;
mod data_stage;
mod devices;
mod disk;
mod disks;
mod durability;
pub mod error;
mod fill_share;
mod filter;
mod flow;
pub mod format;
mod hasher;
mod io;
mod jobs;
mod lifecycle;
mod locks;
mod lost;
pub mod media;
pub mod memory;
pub mod monitor;
pub mod offline;
mod origin_gate;
mod origin_latency;
pub mod pool;
mod pool_state;
mod query;
mod read_errors;
mod recover;
mod schedule;
mod sequential;
mod slab;
mod staging;
pub mod stats;
mod store;
mod table;
mod transfer;
mod versions;

pub use haversack_admission::{Figures as AdmissionFigures, Malformed as MalformedAdmission};

pub use action::{Action, Event, IoId, JobError, JobId, Op, Piece, Rejected, Request, RequestError};
pub use base::{BaseBlocks, SharingId};
pub use config::{
    AdmissionConfig, CleanOrder, CleanerConfig, CoreConfig, DiskConfig, MAX_DEVICES, MAX_DISK_SECTORS,
    MAX_DISKS, MAX_REQUEST_SECTORS, PREPARED_AT_FORMAT, Persistence, PoolConfig, StagingKind, Target, Tuning,
};
pub use core::{Call, Core};
pub use error::{ManageError, PoolError};
pub use flow::base::BaseUsage;
pub use flow::device::NewDevice;
pub use flow::export::{CachedBlock, Copied, ListCursor};
pub use flow::handover::RelistCursor;
pub use flow::job::Progress;
pub use flow::moving::late::LateSource;
pub use flow::replicate::{Replication, ToReplicate};
pub use flow::takeover::PeerLoss;
pub use format::checkpoint::{CheckpointSource, MemoryCheckpoint};
pub use format::record::{Damage, Moved};
pub use io::IoPurpose;
pub use media::{IoFailure, Media, OriginMedia, PageRead, ReadProgress, Task};
pub use memory::{DESCRIPTOR_BYTES, FrameNo, HeapMemory, Memory, NullMemory, Payloads, RequestTag};
pub use monitor::{MonitorConfig, Records};
pub use query::{CacheState, DiskInfo, Writer};
pub use recover::{CheckpointUse, DiskSummary, NoCheckpoint, OpenOptions, OpenReport, Unsaved};
pub use stats::{DiskStats, DiskUsage, PoolStats};
pub use transfer::MIN_FRAMES;
