//! Disks whose blocks are cleaned in the order of their guests' flushes.

use haversack_core::CleanOrder;
use haversack_model::SECTOR_BYTES;

use crate::pattern;
use crate::world::{Flow, Stop, World};

/// An origin is looked at once in this many steps.
const STEPS_BETWEEN_LOOKS: u64 = 64;

impl World {
    /// Looks at the origins now and then.
    pub(crate) fn look_at_order(&mut self, step: u64) -> Flow {
        if self.plan.ordered && step % STEPS_BETWEEN_LOOKS == STEPS_BETWEEN_LOOKS / 2 {
            return self.check_order(&self.disks_in_order());
        }
        Ok(())
    }

    /// Returns the disks whose origins must be in flush order: those that the core reports to be in order or, if
    /// nothing in the run disturbs the order, all disks that are cleaned in order.
    pub(crate) fn disks_in_order(&self) -> Vec<usize> {
        let ordered = |place: &usize| self.disks[*place].config.cleaner.order == CleanOrder::Flush;
        let told = |place: &usize| {
            let usage =
                self.core.as_ref().zip(self.disks[*place].no).and_then(|(core, no)| core.disk_usage(no));
            self.plan.undisturbed || usage.is_some_and(|usage| usage.origin_in_order == Some(true))
        };
        (0..self.disks.len()).filter(|place| self.plan.ordered && ordered(place) && told(place)).collect()
    }

    /// Checks the origins of these disks.
    pub(crate) fn check_order(&self, disks: &[usize]) -> Flow {
        for place in disks.iter().copied() {
            let disk = &self.disks[place];
            let mut bytes = vec![0; disk.sectors as usize * SECTOR_BYTES];
            disk.origin.read(0, &mut bytes);
            let contents: Vec<_> = bytes.chunks_exact(SECTOR_BYTES).map(pattern::recognise).collect();
            self.oracle.check_order(place, &contents).map_err(Stop::Violation)?;
        }
        Ok(())
    }
}
