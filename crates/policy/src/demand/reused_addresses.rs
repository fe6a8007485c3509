//! Demand is the addresses used again, as LARC sees them: blocks used in the window that were used before, in it or in
//! the window before it.
//!
//! RWSS_1 counts only blocks used twice within the window. LARC remembers addresses longer, in a list whose size
//! follows the hit ratio, so that a block that was used once in each of two windows is reused as well. Here addresses
//! are remembered for two windows.
//!
//! Source: CloudCache (Arteaga), section 3.4.4: LARC was given demands "by using the number of reused addresses to
//! predict cache demand".

use super::Demand;
use crate::curve::Curve;
use crate::window::DiskWindow;

/// The number of reused addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReusedAddresses;

impl Demand for ReusedAddresses {
    fn name(&self) -> String {
        "reused-addresses".into()
    }

    fn blocks(&self, window: &DiskWindow) -> u64 {
        window.reused_blocks
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.trd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_demand() {
        let window =
            DiskWindow { reused_blocks: 12, wss_blocks: 90, rwss_blocks: vec![7], ..DiskWindow::default() };
        assert_eq!(ReusedAddresses.blocks(&window), 12);
    }
}
