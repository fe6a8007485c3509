//! Demand follows from the hits of reads alone: reuse distances are counted as if there were no writes.
//!
//! Source: vCacheShare (Meng, Zhou, Ma, Uttamchandani, Liu, ATC'14), sections 4.1 and 4.2: "only read accesses are
//! counted", in 4 KiB blocks, large requests split.

use super::Demand;
use crate::curve::Curve;
use crate::window::DiskWindow;

/// The read-only model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOnly;

impl Demand for ReadOnly {
    fn name(&self) -> String {
        "read-only".into()
    }

    fn blocks(&self, window: &DiskWindow) -> u64 {
        window.read_only.blocks_needed()
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.read_only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_ends_where_the_curve_is_flat() {
        let read_only = Curve::new(vec![(10, 0.2), (20, 0.6), (40, 0.6)]).unwrap();
        let window = DiskWindow { read_only, ..DiskWindow::default() };
        assert_eq!(ReadOnly.blocks(&window), 20);
        assert_eq!(ReadOnly.curve(&window).at(30), 0.6);
    }
}
