//! Haversack's live data path: cache devices, origins and front ends around the cache core, on io_uring.
//!
//! An [`OpenPool`] is a set of cache devices, divided into one or more arenas. An arena has a cache core and a reactor
//! of its own: one thread. Other threads use a [`PoolHandle`] to attach disks and read figures, and an [`ArenaHandle`]
//! for what concerns an attached disk. A reactor never blocks on a request: all I/O on devices, origins and sockets
//! goes through its ring.

mod arena;
mod assembly;
pub mod checkpoint;
pub mod clock;
pub mod config;
mod control;
mod device;
mod disks;
pub mod error;
pub mod event;
mod extents;
mod faults;
mod front;
mod held;
pub mod histogram;
mod identity;
mod in_turn;
mod job;
pub mod label;
mod lending;
mod live;
mod load;
mod lock;
mod mailbox;
mod mapping;
mod media;
mod memory;
mod message_limit;
mod moving;
mod open_pool;
mod origin;
mod pacing;
mod polling;
pub mod pool;
mod pool_clock;
mod pool_handle;
mod processor_wait;
mod reactor;
mod retry;
mod ring;
mod siblings;
mod signature;
mod slice;
mod slow;
pub mod snapshot;
mod staging_size;
mod tls;
pub mod tls_pump;
mod turn_times;
mod turns;
mod write_cache;

pub use arena::ArenaHandle;
pub use assembly::MissingDevice;
pub use checkpoint::OnSaving;
pub use config::{DiskSpec, OriginSpec, PoolSettings, TlsFiles, VoidArena};
pub use error::EngineError;
pub use event::EngineEvent;
pub use front::nbd::{Held, NbdClient};
pub use front::vhost_user::{VhostUserConfig, VhostUserServer, WriteCacheSwitch};
pub use haversack_migrate::{
    NoReplica, OnLoss, ReplicaPolicy, ReplicaStatus, ReplicationState, blocks_a_period,
};
pub use haversack_vhost_user::{WriteCacheSetting, peer, socket};
pub use histogram::Histogram;
pub use identity::StorageIdentity;
pub use job::Job;
pub use lending::{Borrowed, ConnectionTo, LendingSettings, LendingStatus, LendsToMe};
pub use lock::exclusively as lock_exclusively;
pub use mapping::ask_for_large_pages;
pub use media::OnProgress;
pub use message_limit::MessageLimit;
pub use moving::{
    HostMessage, HostSettings, MOST_OBSERVED_SECTORS, MoveStatus, Moves, ReadRefusal, Receipt, RecordedDisk,
    RoomForCopies, SendToHost, TakeoverLoss,
};
pub use open_pool::OpenPool;
pub use origin::{Descent, Layers, size_bytes as origin_size_bytes};
pub use pool_handle::PoolHandle;
pub use snapshot::{DeviceSnapshot, DiskSnapshot, Elsewhere, Latencies, Snapshot, Stepped};
