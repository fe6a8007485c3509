//! A vhost-user-blk back end in two halves.
pub(crate) mod chain;
pub(crate) mod dirty_log;
pub(crate) mod fault;
pub(crate) mod inflight;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod ring;

pub use dirty_log::DirtyLog;
pub use fault::{Broken, Fault};
pub use inflight::{InflightQueue, InflightShape};
pub use memory::{GuestMemory, MAX_MEMORY_REGIONS, MemoryError, RegionDescription, Segment};
pub use queue::{MAX_QUEUE_SIZE, Queue, QueueSetup, QueueUpdate};
pub use request::{BlkRequest, ID_BYTES, Operation, RequestLimits, SECTOR_BYTES, SectorRange, Status};
pub use ring::RingAddresses;
