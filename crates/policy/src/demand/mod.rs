//! How much cache a disk could use: one model per file.
//!
//! A model turns the figures of a window into a number of blocks. It also names the hit-ratio curve that goes
//! with it, for allocators that compare hits. What a hit is *worth* ([`utility`]) and the weight of a tenant
//! ([`weight`]) are computed separately.

mod all;
pub mod knee;
mod read_only;
mod reuse_distance;
mod reused_addresses;
pub mod running_knee;
mod touch;
mod trial;
pub mod utility;
pub mod weight;
mod working_set;
pub mod working_set_window;

pub use all::All;
pub use read_only::ReadOnly;
pub use reuse_distance::{Traditional, Useful};
pub use reused_addresses::ReusedAddresses;
pub use touch::TouchCount;
pub use working_set::{ReuseWorkingSet, WorkingSet};

use crate::curve::Curve;
use crate::window::DiskWindow;

/// A demand model.
pub trait Demand {
    /// Returns its name in configurations and explanations.
    fn name(&self) -> String;

    /// Returns how many blocks the disk could use, based on the measurements.
    fn blocks(&self, window: &DiskWindow) -> u64;

    /// Returns the hit-ratio curve that goes with it.
    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve;
}
