//! How much cache a disk could use: one model a file.
//!
//! A model reads the figures of a window and says a number of blocks. It also says which hit-ratio curve goes with it,
//! for allocators that weigh hits against hits. What a hit is *worth* ([`utility`]) and what weight a tenant carries
//! ([`weight`]) are judged beside it.

pub mod knee;
mod read_only;
mod reuse_distance;
mod touch;
pub mod utility;
pub mod weight;
mod working_set;
pub mod working_set_window;

pub use read_only::ReadOnly;
pub use reuse_distance::{Traditional, Useful};
pub use touch::TouchCount;
pub use working_set::{ReuseWorkingSet, WorkingSet};

use crate::curve::Curve;
use crate::window::DiskWindow;

/// A model of demand.
pub trait Demand {
    /// What it is called in a configuration and in reasons.
    fn name(&self) -> String;

    /// How many blocks the disk could use, by what was measured.
    fn blocks(&self, window: &DiskWindow) -> u64;

    /// The hit-ratio curve that goes with it.
    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve;
}
