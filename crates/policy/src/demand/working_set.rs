//! Demand is the blocks that were used (WSS), or used again (RWSS_N).
//!
//! The working set holds the distinct blocks accessed in the window. The reuse working set RWS_N holds those of
//! them that were reused at least N times, that is, accessed at least N+1 times. RWS_0 is the working set.
//! Scans are in WSS but not in RWSS_N.
//!
//! Source: CloudCache (Arteaga), section 3.4.1 of the dissertation, FAST'16 section 4.1. The window of real
//! time is counted by [`working_set_window`](super::working_set_window), and its length is chosen by
//! [`knee`](super::knee).

use super::Demand;
use crate::curve::Curve;
use crate::window::DiskWindow;

/// WSS: the distinct blocks accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkingSet;

impl Demand for WorkingSet {
    fn name(&self) -> String {
        "wss".into()
    }

    fn blocks(&self, window: &DiskWindow) -> u64 {
        window.wss_blocks
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.trd
    }
}

/// RWSS_N: the distinct blocks reused at least N times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReuseWorkingSet {
    /// N.
    pub reuses: u8,
}

impl Demand for ReuseWorkingSet {
    fn name(&self) -> String {
        format!("rwss_{}", self.reuses)
    }

    /// Returns 0 for more reuses than were counted: the number is unknown, but smaller than at the largest
    /// count.
    fn blocks(&self, window: &DiskWindow) -> u64 {
        match usize::from(self.reuses) {
            0 => window.wss_blocks,
            reuses => window.rwss_blocks.get(reuses - 1).copied().unwrap_or(0),
        }
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.trd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuse_working_set_0_is_the_working_set() {
        let window = DiskWindow { wss_blocks: 100, rwss_blocks: vec![20, 5], ..DiskWindow::default() };
        let sizes: Vec<u64> = (0..4).map(|reuses| ReuseWorkingSet { reuses }.blocks(&window)).collect();
        assert_eq!(sizes, [100, 20, 5, 0]);
        assert_eq!(WorkingSet.blocks(&window), 100);
    }
}
