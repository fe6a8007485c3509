//! The cache devices as seen by the core's start-up; they fail after a number of I/Os.

use haversack_core::{IoFailure, Media, PageRead, Task};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES};

use crate::device::{Payload, Tear, page_of};
use crate::world::Device;
use haversack_model::random::Random;

/// Some of a host's devices in a given order.
pub struct FakeMedia<'a> {
    devices: &'a mut Vec<Device>,
    order: Vec<usize>,
    budget: Option<u64>,
    rng: Random,
    unit: u64,
    /// The tasks of an opening run in the reverse order.
    pub is_reversed: bool,
    /// The budget is used up: the host is dead.
    pub dead: bool,
}

impl<'a> FakeMedia<'a> {
    /// Makes media of the devices of `order`; after `budget` I/Os everything fails.
    pub fn new(
        devices: &'a mut Vec<Device>,
        order: Vec<usize>,
        budget: Option<u64>,
        rng: Random,
        unit: u64,
    ) -> Self {
        FakeMedia { devices, order, budget, rng, unit, is_reversed: true, dead: false }
    }

    /// Returns which device is at an index of the list.
    pub fn device_at(&self, place: usize) -> usize {
        self.order[place]
    }

    fn spend(&mut self, device: usize) -> Result<(), IoFailure> {
        match &mut self.budget {
            Some(0) => {
                self.dead = true;
                return Err(IoFailure::Error);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        if self.devices[self.order[device]].store.gone { Err(IoFailure::Gone) } else { Ok(()) }
    }
}

impl Media for FakeMedia<'_> {
    fn devices(&self) -> usize {
        self.order.len()
    }

    fn name(&self, device: usize) -> String {
        format!("device-{}", self.order[device])
    }

    fn capacity_bytes(&self, device: usize) -> u64 {
        self.devices[self.order[device]].store.bytes()
    }

    fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
        for read in reads {
            read.result = self.spend(read.device);
            if read.result.is_ok() {
                let store = &self.devices[self.order[read.device]].store;
                store.read(read.offset_bytes / SECTOR_BYTES as u64, &mut read.page[..]);
            }
        }
    }

    fn read_batch_while(&mut self, reads: &mut [PageRead<'_>], mut tasks: Vec<Task<'_>>) {
        if self.is_reversed {
            tasks.reverse();
        }
        tasks.into_iter().for_each(|task| task());
        self.read_batch(reads);
    }

    fn write(&mut self, device: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
        let was_dead = self.dead;
        let spent = self.spend(device);
        let store = &mut self.devices[self.order[device]].store;
        let sector = offset_bytes / SECTOR_BYTES as u64;
        let payload = Payload::Blocks(pages.chunks(BLOCK_BYTES).map(page_of).collect());
        match spent {
            Ok(()) => store.write(sector, payload),
            Err(_) if self.dead && !was_dead && !store.gone => {
                store.write_torn(sector, payload, Tear { unit: self.unit }, &mut self.rng);
            }
            Err(_) => {}
        }
        spent
    }

    fn flush(&mut self, device: usize) -> Result<(), IoFailure> {
        self.spend(device)?;
        let store = &mut self.devices[self.order[device]].store;
        let mark = store.flush_mark();
        store.flush(mark);
        Ok(())
    }
}
