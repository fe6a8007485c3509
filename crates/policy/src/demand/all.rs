//! Demand is all that a disk may have: its limit, or the pool. Nothing is measured.
//!
//! So an allocator that gives each disk at most its demand divides by weights alone.
//!
//! Source: Liu, Ge, Du and Huang, "SSD as a Cloud Cache? Carefully Design about It", 2015, section 3.3: C_i = w_i / sum
//! w * C is guaranteed, regardless of how much a tenant uses.

use super::Demand;
use crate::curve::Curve;
use crate::window::DiskWindow;

/// Everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct All;

impl Demand for All {
    fn name(&self) -> String {
        "all".into()
    }

    /// The decision cuts it to the disk's limit, which a window does not know.
    fn blocks(&self, _: &DiskWindow) -> u64 {
        u64::MAX
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.trd
    }
}
