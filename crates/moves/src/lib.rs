//! Which VM moves a host of a cluster begins, ends and cleans up, according to its view of the directory and its
//! balancer.
//!
//! Nothing here does I/O or reads a clock: the daemon's threads and the crash simulator of a cluster run the same
//! decisions.
//!
//! - [`snapshot`] is what the balancer sees of the directory.
//! - [`Observed`] is what a host remembers for the balancer: windows with too much demand, and earlier moves.
//! - [`Mover`] decides the steps of the host that balances, from checking whether this host leads to calling the
//!   program that moves a VM.
//! - [`Intents`] says which intents in the directory are obsolete.
//!
//! Invariants
//! - A program is called only for a move whose intents are in the directory, and that the next leader can know of.
//! - An intent is removed only by a host that it names or by the disk's owner, and only when its move is not driven. If
//!   the daemon that drove the move disappears while the disk is being sent, the intent stays for as long as the
//!   program that the daemon called may still run.

mod intents;
mod mover;
mod observed;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod snapshot;

pub use intents::{ABANDONED_LEASES, Claimed, Intents, claim};
pub use mover::{Act, Mover, Order, OrderedDisk, Rests};
pub use observed::Observed;
