//! Demand is everything ever touched more than once: HEC's touch count used as a demand.
//!
//! It only grows, which is why it demands up to 3.7 times as much as RWSS.
//!
//! Source: CloudCache (Arteaga), section 3.4.4, "we implemented it by using TC to predict cache demand". The count is
//! [`Hec::touched_again_blocks`](haversack_admission::Hec::touched_again_blocks).

use super::Demand;
use crate::curve::Curve;
use crate::window::DiskWindow;

/// HEC's touch count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TouchCount;

impl Demand for TouchCount {
    fn name(&self) -> String {
        "touch-count".into()
    }

    fn blocks(&self, window: &DiskWindow) -> u64 {
        window.touched_blocks
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.trd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_the_demand() {
        let window = DiskWindow { touched_blocks: 2048, wss_blocks: 7, ..DiskWindow::default() };
        assert_eq!(TouchCount.blocks(&window), 2048);
    }
}
