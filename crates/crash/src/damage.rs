//! In some runs, flash keeps rotting under dirty blocks that have no mirrored copy: they are found damaged, written in
//! part, moved, cleaned and given up.

use haversack_core::pool;
use haversack_model::SECTOR_BYTES;

use crate::pattern::{self, Content};
use crate::verify::Extent;
use crate::world::{Flow, Life, World};
use haversack_model::random::Random;

/// In such a run, one step in this many damages something.
const STEPS_BETWEEN: u64 = 30;
/// Maximum number of sectors that rot at a time.
const MOST_SECTORS: u64 = 6;
/// Maximum number of sectors that are looked at to find a dirty one.
const MOST_TRIES: u64 = 2000;

impl World {
    /// In a run with damaged media, sometimes lets some sectors of a cache device rot, and has the core find out.
    pub(crate) fn damage_something(&mut self) -> Flow {
        let Some(mut rng) = self.damages.take() else { return Ok(()) };
        let choice = rng.one_in(STEPS_BETWEEN).then(|| {
            self.damage_device(&mut rng);
            rng.below(16)
        });
        let disk = rng.below(self.disks.len() as u64) as usize;
        let attached = self.disks[disk].life == Life::Attached && !self.disks[disk].busy;
        self.damages = Some(rng);
        match choice {
            Some(0..4) => self.verify(Extent::Touched),
            Some(4) => self.clean_all(),
            Some(5 | 6) if attached => self.detach(disk),
            Some(7) if self.devices.len() < 8 => self.add_device(),
            Some(8) => self.remove_device(),
            Some(9..) if self.disks[disk].life == Life::Detached && !self.disks[disk].busy => {
                self.attach(disk)
            }
            _ => Ok(()),
        }
    }

    fn damage_device(&mut self, rng: &mut Random) {
        let members: Vec<usize> = (0..self.devices.len()).filter(|i| self.devices[*i].no.is_some()).collect();
        if members.is_empty() {
            return;
        }
        self.note_marks();
        self.unprotected_fault = true;
        self.counts.faults += 1;
        let device = rng.pick(&members);
        for _ in 0..rng.range(1, MOST_SECTORS) {
            if let Some(sector) = self.find_dirty(device, rng) {
                self.devices[device].store.rot(sector..sector + 1, rng);
            }
        }
    }

    /// Returns a sector of a cache device whose data is current for some disk and not at its origin.
    fn find_dirty(&self, device: usize, rng: &mut Random) -> Option<u64> {
        let store = &self.devices[device].store;
        let (data, end) = (pool::device_bytes(0) / SECTOR_BYTES as u64, store.bytes() / SECTOR_BYTES as u64);
        let (mut cached, mut original) = ([0; SECTOR_BYTES], [0; SECTOR_BYTES]);
        (0..MOST_TRIES).map(|_| rng.range(data, end - 1)).find(|at| {
            store.read(*at, &mut cached);
            let content = pattern::recognise(&cached);
            let Content::Data { disk, sector, .. } = content else { return false };
            let disk = usize::from(disk);
            // Blocks of loans are of none of the disks.
            if disk >= self.disks.len() || sector >= self.disks[disk].origin.bytes() / SECTOR_BYTES as u64 {
                return false;
            }
            self.disks[disk].origin.read(sector, &mut original);
            original != cached && self.oracle.is_current(disk, sector, content)
        })
    }
}
