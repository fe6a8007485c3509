//! Entry points of the fuzz targets.

use haversack_core::{Core, Op, OpenOptions, offline, pool};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, WriteMode};

use crate::device::Payload;
use crate::media::FakeMedia;
use crate::plan::Plan;
use crate::verify::Extent;
use crate::world::Device;
use crate::world::{CrashKind, Flow, Life, Stop, World};
use haversack_model::random::Random;

/// Runs a short workload read from bytes, five per operation, crashes included.
///
/// # Panics
/// An invariant is broken.
pub fn typed_ops(data: &[u8]) {
    let (head, ops) = data.split_at(data.len().min(8));
    let mut seed = [0; 8];
    seed[..head.len()].copy_from_slice(head);
    let mut rng = Random::scrambled(u64::from_le_bytes(seed));
    let plan = Plan::script(&mut rng);
    let outcome = World::new(plan, rng).and_then(|mut world| {
        world.first_open()?;
        for op in ops.as_chunks::<5>().0.iter().take(400) {
            world.typed_op(op)?;
        }
        world.drain()?;
        world.verify(Extent::Touched)
    });
    if let Err(Stop::Violation(what)) = outcome {
        panic!("{what}");
    }
}

impl World {
    fn typed_op(&mut self, code: &[u8; 5]) -> Flow {
        let disk = usize::from(code[0] >> 7);
        let size = self.disks[disk].sectors;
        let sector = u64::from(u16::from_le_bytes([code[1], code[2]])) % size;
        let sectors = (u64::from(code[3]) + 1).min(size - sector) as u32;
        let op = match code[0] & 15 {
            0..4 => Op::Write { fua: false },
            4 => Op::Write { fua: true },
            5..8 => Op::Read,
            8 => Op::Flush,
            9 => Op::Discard,
            10 => Op::WriteZeroes,
            11 => {
                for _ in 0..code[4] {
                    self.advance()?;
                }
                return Ok(());
            }
            12 => {
                let kind = if code[4] & 1 == 0 { CrashKind::Kill } else { CrashKind::Power };
                self.crash_and_recover(kind)?;
                return self.verify(Extent::Sample);
            }
            13 => {
                let mode = WriteMode::ALL[usize::from(code[4]) % WriteMode::ALL.len()];
                let none = self.disks[disk].config.persistence == haversack_core::Persistence::None;
                if self.disks[disk].life == Life::Attached && !(none && mode.defers_origin()) {
                    self.set_mode(disk, mode)?;
                }
                return Ok(());
            }
            14 => {
                self.clean(disk)?;
                return Ok(());
            }
            _ => return self.drain(),
        };
        if self.disks[disk].life == Life::Attached {
            let (sector, sectors) = if op == Op::Flush { (0, 0) } else { (sector, sectors) };
            self.push(disk, op, sector, sectors)?;
        }
        Ok(())
    }
}

/// Writes bytes over the devices of a small pool that holds data, then opens and checks it. The first byte selects
/// between patches and replacing a device's beginning. A patch is preceded by the device, a 24-bit offset and a length.
/// If the device's highest bit is set, the offset selects a metadata page and a place in it, and the page is sealed
/// again: its checksums match whatever the patch has put there.
///
/// # Panics
/// Opening, checking or reading panics, or a read returns data that the disk never held although no page was sealed.
pub fn recovery_bytes(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let mut rng = Random::scrambled(u64::from(choice >> 1));
    let plan = Plan::script(&mut rng);
    let Ok(mut world) = World::new(plan, rng) else {
        return;
    };
    let prepared = world.fill_some();
    if let Err(Stop::Violation(what)) = prepared {
        panic!("{what}");
    }
    world.core = None;
    world.oracle.crash(false);
    let seals = if choice & 1 == 0 {
        world.patch(rest)
    } else {
        world.lay_over(0, 0, rest);
        false
    };
    for disk in 0..world.disks.len() {
        for at in 0..world.disks[disk].sectors {
            world.oracle.forgive(disk, at, &[]);
        }
    }
    world.unprotected_fault = true;
    // What a sealed page says is believed, so only that nothing panics can be expected.
    if let Err(Stop::Violation(what)) = world.open_damaged()
        && !seals
    {
        panic!("{what}");
    }
}

impl World {
    fn fill_some(&mut self) -> Flow {
        self.first_open()?;
        for disk in 0..self.disks.len() {
            for _ in 0..12 {
                let at = self.rng.below(900);
                self.push(disk, Op::Write { fua: false }, at, 24)?;
            }
        }
        self.flush_all()?;
        for device in &mut self.devices {
            device.store.settle();
        }
        Ok(())
    }

    /// Returns whether a page was sealed.
    fn patch(&mut self, mut rest: &[u8]) -> bool {
        let mut seals = false;
        while rest.len() > 5 {
            let device = usize::from(rest[0]) % self.devices.len();
            let place = u64::from(rest[1]) | u64::from(rest[2]) << 8 | u64::from(rest[3]) << 16;
            let (now, later) = rest[5..].split_at(usize::from(rest[4]).min(rest.len() - 5));
            if rest[0] & 0x80 == 0 {
                self.lay_over(device, place, now);
            } else {
                self.patch_sealed(device, usize::from(rest[1]), (place >> 8) as usize, now);
                seals = true;
            }
            rest = later;
        }
        seals
    }

    /// Writes bytes over a metadata page, and seals it. Half of the places are in its header and its first entries.
    fn patch_sealed(&mut self, device: usize, page: usize, place: usize, bytes: &[u8]) {
        let (arena, disks) = (self.arena(), self.disks.len() as u16);
        let Device { store, id, .. } = &mut self.devices[device];
        let segments =
            (store.bytes() - pool::metadata_bytes()) / (pool::device_bytes(1) - pool::metadata_bytes());
        let pages: Vec<u64> = pool::sealed_pages(disks, segments as u32).collect();
        let offset_bytes = pages[page % pages.len()];
        let first = offset_bytes / SECTOR_BYTES as u64;
        let mut content = [0; BLOCK_BYTES];
        for (sector, part) in (first..).zip(content.chunks_mut(SECTOR_BYTES)) {
            store.read(sector, part);
        }
        let room = if place.is_multiple_of(2) { 48 } else { BLOCK_BYTES };
        let at = place / 2 % room;
        let length = bytes.len().min(BLOCK_BYTES - at);
        content[at..at + length].copy_from_slice(&bytes[..length]);
        pool::reseal(&mut content, arena, *id, offset_bytes);
        for (sector, part) in (first..).zip(content.chunks(SECTOR_BYTES)) {
            store.write_durable(sector, &Payload::Bytes(part.to_vec()));
        }
    }

    fn lay_over(&mut self, device: usize, place: u64, bytes: &[u8]) {
        let store = &mut self.devices[device].store;
        for (i, byte) in bytes.iter().enumerate() {
            let at = (place + i as u64) % store.bytes();
            let sector = at / SECTOR_BYTES as u64;
            let mut one = vec![0; SECTOR_BYTES];
            store.read(sector, &mut one);
            one[(at % SECTOR_BYTES as u64) as usize] = *byte;
            store.write_durable(sector, &Payload::Bytes(one));
        }
    }

    fn open_damaged(&mut self) -> Flow {
        let order: Vec<usize> = (0..self.devices.len()).collect();
        let unit = self.plan.tear_unit;
        self.clear_flights();
        self.jobs.clear();
        let mut memory = self.fresh_memory();
        let (config, now) = (self.plan.core, self.now);
        let mut media = FakeMedia::new(&mut self.devices, order.clone(), None, Random::scrambled(1), unit);
        drop(offline::check(&mut media, true));
        let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        let Ok((core, report)) = Core::open(&mut media, &mut memory, config, &options, now) else {
            return Ok(());
        };
        for device in &mut self.devices {
            device.no = None;
        }
        for (no, place) in &report.devices {
            self.devices[order[*place]].no = Some(*no);
        }
        (self.core, self.memory) = (Some(core), Some(memory));
        self.disk_of.clear();
        for disk in &mut self.disks {
            (disk.no, disk.life) = (None, Life::Detached);
            disk.deferred.fill(true);
        }
        for summary in &report.disks {
            if let Some(place) = self.disks.iter().position(|d| d.config.id == summary.id) {
                self.disk_of.insert(summary.disk, place);
                self.disks[place].no = Some(summary.disk);
            }
        }
        for disk in 0..self.disks.len() {
            if self.attach_leniently(disk)? {
                self.verify(Extent::Everything)?;
            }
        }
        Ok(())
    }

    fn attach_leniently(&mut self, disk: usize) -> Flow<bool> {
        let (now, config) = (self.now, self.disks[disk].config.clone());
        let epoch = self.disks[disk].epoch;
        match self.core().attach(now, &config, epoch, true) {
            Ok((no, job)) => {
                self.disk_of.insert(no, disk);
                self.disks[disk].no = Some(no);
                let job = self.start(job, crate::job::Job::Attach(disk))?;
                self.finish(job)?;
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers near the ends of their ranges.
    #[test]
    fn sealed_pages_with_any_numbers_are_read() {
        let mut rng = Random::scrambled(8);
        for run in 0..200u8 {
            let mut data = vec![run << 1];
            for _ in 0..rng.range(1, 4) {
                data.extend([0x80 | rng.bits() as u8, rng.bits() as u8, 2 * rng.below(24) as u8, 0]);
                let bytes = [0xff; 16];
                let length = rng.range(1, 16) as usize;
                data.push(length as u8);
                data.extend(&bytes[..length]);
            }
            data.push(0);
            recovery_bytes(&data);
        }
    }

    #[test]
    fn random_bytes_break_neither_target() {
        let mut rng = Random::scrambled(7);
        for _ in 0..60 {
            let data: Vec<u8> = (0..rng.below(600)).map(|_| rng.bits() as u8).collect();
            typed_ops(&data);
            recovery_bytes(&data);
        }
    }
}
