//! Disks whose blocks are cleaned in the order of their guests' flushes.

use haversack_core::CleanOrder;
use haversack_model::SECTOR_BYTES;

use crate::device::Store;
use crate::pattern::{self, Content};
use crate::world::{Flow, Stop, World};

/// An origin is looked at once in this many steps.
const STEPS_BETWEEN_LOOKS: u64 = 256;

impl World {
    /// Looks at the origins now and then.
    pub(crate) fn look_at_order(&mut self, step: u64) -> Flow {
        if self.plan.ordered && step.is_multiple_of(STEPS_BETWEEN_LOOKS) {
            self.check_order()
        } else {
            Ok(())
        }
    }

    /// Checks the origins of all such disks, as they are and as a power cut would leave them.
    pub(crate) fn check_order(&self) -> Flow {
        for (place, disk) in self.disks.iter().enumerate() {
            if disk.config.cleaner.order != CleanOrder::Flush || !self.plan.ordered {
                continue;
            }
            for read in [Store::read, Store::read_durable] {
                let contents = contents(&disk.origin, disk.sectors, read);
                self.oracle.check_order(place, &contents).map_err(Stop::Violation)?;
            }
        }
        Ok(())
    }
}

fn contents(origin: &Store, sectors: u64, read: impl Fn(&Store, u64, &mut [u8])) -> Vec<Content> {
    let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
    read(origin, 0, &mut bytes);
    bytes.chunks_exact(SECTOR_BYTES).map(pattern::recognise).collect()
}
