//! Reads back what was written.

use haversack_core::Op;

use crate::world::{Flow, Life, World};

/// How much a verification reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Some of the recent and undecided sectors.
    Sample,
    /// Every recent and undecided sector.
    Touched,
    /// Every sector of every disk.
    Everything,
}

const READ_SECTORS: u32 = 128;

impl World {
    /// Reads sectors and has the oracle check them.
    pub fn verify(&mut self, extent: Extent) -> Flow {
        for disk in 0..self.disks.len() {
            if self.disks[disk].life != Life::Attached {
                continue;
            }
            let size = self.disks[disk].sectors;
            let mut ranges: Vec<(u64, u32)> = Vec::new();
            if extent == Extent::Everything {
                ranges.extend((0..size).step_by(READ_SECTORS as usize).map(|at| (at, READ_SECTORS)));
            } else {
                let mut marks: Vec<u64> =
                    self.oracle.open_sectors(disk).iter().map(|at| u64::from(*at)).collect();
                for (at, sector, n) in &self.recent {
                    if *at == disk {
                        marks.extend((*sector..sector + u64::from(*n)).step_by(8));
                        marks.push(sector + u64::from(*n) - 1);
                    }
                }
                marks.sort_unstable();
                for mark in marks {
                    match ranges.last_mut() {
                        Some((first, n))
                            if mark < *first + u64::from(READ_SECTORS)
                                && mark <= *first + u64::from(*n) + 8 =>
                        {
                            *n = (*n).max((mark - *first + 1) as u32);
                        }
                        _ => ranges.push((mark, 1)),
                    }
                }
            }
            self.rng.shuffle(&mut ranges);
            if extent == Extent::Sample {
                ranges.truncate(24);
            }
            for (first, n) in ranges {
                if first >= size {
                    continue;
                }
                let n = u64::from(n).min(size - first) as u32;
                self.push(disk, Op::Read, first, n)?;
                let depth = self.plan.depth.max(8);
                self.wait("a verifying read", |world| world.pending < depth)?;
            }
        }
        self.drain()
    }

    /// Flushes every disk.
    pub fn flush_all(&mut self) -> Flow {
        self.drain()?;
        for disk in 0..self.disks.len() {
            self.push(disk, Op::Flush, 0, 0)?;
        }
        self.drain()
    }

    /// Writes back the dirty blocks of every disk; the origins must then have what reads return.
    pub fn clean_all(&mut self) -> Flow {
        for disk in 0..self.disks.len() {
            if self.disks[disk].life == Life::Attached
                && let Some(job) = self.clean(disk)?
            {
                self.finish(job)?;
            }
        }
        Ok(())
    }

    /// Ends all faults of origins.
    pub fn heal(&mut self) {
        for disk in &mut self.disks {
            disk.outage_until = 0;
            disk.slow_until = 0;
        }
    }
}
