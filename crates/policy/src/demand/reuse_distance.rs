//! Demand follows from the largest reuse distance: the traditional one (TRD) of all accesses, or the useful one
//! (URD) of reads after reads and reads after writes only.
//!
//! A cache of the largest distance plus one block hits everything that can be hit. A write after a read or a
//! write needs no cached block, so its distance is not useful. URD never demands more than TRD, because it uses
//! fewer distances of the same accesses.
//!
//! Sources: Centaur (Koller, Mashtizadeh, Rangaswami, ICAC'15) for TRD; ECI-Cache (Ahmadian, Mutlu, Asadi,
//! 2018), section 4 and algorithm 1 lines 16 to 23, for URD. Algorithm 1 multiplies the distance itself by the
//! block size where figure 5 uses the distance plus one; the figure is right.

use super::Demand;
use crate::curve::Curve;
use crate::window::DiskWindow;

/// TRD: hits everything that any access could hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traditional;

impl Demand for Traditional {
    fn name(&self) -> String {
        "trd".into()
    }

    fn blocks(&self, window: &DiskWindow) -> u64 {
        window.trd.blocks_needed()
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.trd
    }
}

/// URD: hits everything that a read could hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Useful;

impl Demand for Useful {
    fn name(&self) -> String {
        "urd".into()
    }

    fn blocks(&self, window: &DiskWindow) -> u64 {
        window.urd.blocks_needed()
    }

    fn curve<'a>(&self, window: &'a DiskWindow) -> &'a Curve {
        &window.urd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the window of a run of accesses, each a block and whether it is written. Slow, but obviously
    /// correct.
    fn window(accesses: &[(u64, bool)]) -> DiskWindow {
        let (mut all, mut useful) = (Vec::new(), Vec::new());
        for (now, (block, write)) in accesses.iter().enumerate() {
            if let Some(before) = accesses[..now].iter().rposition(|(earlier, _)| earlier == block) {
                let mut between: Vec<u64> = accesses[before + 1..now].iter().map(|access| access.0).collect();
                between.sort_unstable();
                between.dedup();
                all.push(between.len() as u64);
                if !write {
                    useful.push(between.len() as u64);
                }
            }
        }
        let count = accesses.len() as u64;
        let (trd, urd) = (Curve::of_distances(all, count), Curve::of_distances(useful, count));
        DiskWindow { trd, urd, ..DiskWindow::default() }
    }

    /// ECI-Cache, figure 5: the largest distance is 4 and takes 5 blocks, the largest useful one is 1 and takes
    /// 2.
    #[test]
    fn the_example_of_eci_cache() {
        let accesses = [(1, true), (2, false), (1, false), (3, true), (4, false), (5, true), (2, true)];
        let window = window(&accesses);
        assert_eq!(Traditional.blocks(&window), 5);
        assert_eq!(Useful.blocks(&window), 2);
    }

    proptest! {
        #[test]
        fn useful_never_asks_for_more(accesses in prop::collection::vec((0u64..20, any::<bool>()), 0..200)) {
            let window = window(&accesses);
            prop_assert!(Useful.blocks(&window) <= Traditional.blocks(&window));
            for blocks in 0..25 {
                prop_assert!(window.urd.at(blocks) <= window.trd.at(blocks));
            }
        }
    }
}
