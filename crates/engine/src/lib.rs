//! Haversack's live data path: cache devices, origins and front ends around the cache core, on io_uring.
//!
//! A [`Shard`] is a pool of cache devices with one reactor thread. Other threads use a [`Handle`] to attach
//! disks, add clients and read figures. The reactor never blocks on a request: all I/O on devices, origins and
//! sockets goes through the ring.

mod assembly;
pub mod clock;
pub mod config;
mod control;
mod device;
mod disks;
pub mod error;
mod faults;
mod front;
pub mod handle;
pub mod histogram;
mod identity;
mod in_turn;
pub mod label;
mod live;
mod lock;
mod mailbox;
mod mapping;
mod media;
mod memory;
mod message_limit;
mod origin;
mod pacing;
mod polling;
pub mod pool;
mod processor_wait;
mod reactor;
mod retry;
mod ring;
mod shard_clock;
mod signature;
mod slow;
pub mod snapshot;
mod staging_size;
mod tls;
pub mod tls_pump;
mod turn_times;
mod turns;

pub use assembly::MissingDevice;
pub use config::{DiskSpec, OriginSpec, ShardConfig, TlsFiles};
pub use error::EngineError;
pub use front::nbd::{Held, NbdClient};
pub use front::vhost_user::{VhostUserConfig, VhostUserServer};
pub use handle::{EngineEvent, Handle, Job, Shard};
pub use haversack_vhost_user::{peer, socket};
pub use histogram::Histogram;
pub use identity::StorageIdentity;
pub use media::OnProgress;
pub use message_limit::MessageLimit;
pub use origin::size_bytes as origin_size_bytes;
pub use snapshot::{DeviceSnapshot, DiskSnapshot, Latencies, Snapshot};
