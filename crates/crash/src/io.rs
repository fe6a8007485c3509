//! Carries out the core's actions: in-flight I/Os, their random order, their effect on the devices.

use std::cmp::Reverse;

use haversack_core::{Action, IoFailure, IoId, Memory, Piece, Writer, pool};
use haversack_model::{BLOCK_BYTES, DeviceNo, DiskNo, SECTOR_BYTES};

use crate::device::Payload;
use crate::run::tell;
use crate::world::{CrashKind, Flight, Flow, Stop, What, World, violation};

impl World {
    /// Schedules the crash after this many more I/Os.
    pub fn crash_after(&mut self, ios: u64, kind: CrashKind) {
        self.trigger = Some((self.counts.ios + ios, kind));
    }

    /// Sometimes moves the planned crash to a time at or soon after a write of the record.
    fn crash_at_record(&mut self) {
        let (Some(rng), Some((when, kind))) = (&mut self.record_crashes, self.trigger) else { return };
        let soon = self.counts.ios + rng.below(16);
        if rng.one_in(2) && soon < when {
            self.crash_after(soon - self.counts.ios, kind);
        }
    }

    /// Takes and starts the core's actions after calls into the core.
    pub(crate) fn pump(&mut self) -> Flow {
        while let Some(action) = self.core().poll() {
            tell(|| format!("{:>10} {action:?}", self.now));
            match action {
                Action::Complete { tag, result } => self.completed(tag, result)?,
                Action::Event(event) => self.event(event)?,
                Action::ReadDevice { io, device, offset_bytes } => {
                    let (device, sector) = self.place(device, offset_bytes)?;
                    self.launch(io, What::DeviceRead { device, sector });
                }
                Action::WriteDevice { io, device, offset_bytes } => {
                    let (device, sector) = self.place(device, offset_bytes)?;
                    if pool::is_record(offset_bytes) {
                        self.crash_at_record();
                    }
                    self.launch(io, What::DeviceWrite { device, sector });
                }
                Action::FlushDevice { io, device } => {
                    let (device, _) = self.place(device, 0)?;
                    let mark = self.devices[device].store.flush_mark();
                    self.launch(io, What::DeviceFlush { device, mark });
                }
                Action::ReadOrigin { io, disk, sector, sectors } => {
                    let disk = self.origin_of(disk, sector.0, sectors)?;
                    self.launch(io, What::OriginRead { disk, sector: sector.0, sectors });
                }
                Action::WriteOrigin { io, disk, sector, sectors, durable, .. } => {
                    let disk = self.origin_of(disk, sector.0, sectors)?;
                    self.owned(disk, "WriteOrigin")?;
                    self.launch(io, What::OriginWrite { disk, sector: sector.0, sectors, durable });
                }
                Action::ZeroOrigin { io, disk, sector, sectors, durable, .. } => {
                    let disk = self.origin_of(disk, sector.0, sectors)?;
                    self.owned(disk, "ZeroOrigin")?;
                    self.launch(io, What::OriginZero { disk, sector: sector.0, sectors, durable });
                }
                Action::ReadPeer { disk, .. } => {
                    return violation!("{disk:?} reads from a peer although it has never moved");
                }
                Action::FlushOrigin { io, disk } => {
                    let disk = self.origin_of(disk, 0, 0)?;
                    let mark = self.disks[disk].origin.flush_mark();
                    self.launch(io, What::OriginFlush { disk, mark });
                }
            }
        }
        Ok(())
    }

    fn place(&self, device: DeviceNo, offset_bytes: u64) -> Flow<(usize, u64)> {
        if !offset_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return violation!("an I/O of {device:?} at byte {offset_bytes}, which is no multiple of 4,096");
        }
        match self.devices.iter().position(|d| d.no == Some(device)) {
            Some(found) => Ok((found, offset_bytes / SECTOR_BYTES as u64)),
            None => violation!("an I/O for {device:?}, which the pool does not have"),
        }
    }

    fn origin_of(&self, disk: DiskNo, sector: u64, sectors: u32) -> Flow<usize> {
        let Some(found) = self.disk_of.get(&disk).copied() else {
            return violation!("an origin I/O for {disk:?}, which nobody attached");
        };
        let size = self.disks[found].origin.bytes() / SECTOR_BYTES as u64;
        if sector + u64::from(sectors) > size {
            return violation!(
                "an origin I/O of {sectors} sectors at {sector} of disk {found}, which has {size}"
            );
        }
        Ok(found)
    }

    fn owned(&self, disk: usize, what: &str) -> Flow {
        if self.disks[disk].origin_forbidden {
            let life = self.disks[disk].life;
            return violation!(
                "{what} for disk {disk} without ownership ({life:?}, epoch {})",
                self.disks[disk].epoch
            );
        }
        Ok(())
    }

    fn launch(&mut self, io: IoId, what: What) {
        let pieces = self.core().pieces(io).collect();
        let now = self.now;
        let (longest, slow) = match what {
            What::DeviceRead { .. } | What::DeviceWrite { .. } | What::DeviceFlush { .. } => {
                (self.plan.device_latency, 1)
            }
            What::OriginRead { disk, .. }
            | What::OriginWrite { disk, .. }
            | What::OriginZero { disk, .. }
            | What::OriginFlush { disk, .. } => {
                (self.plan.origin_latency, if now < self.disks[disk].slow_until { 40 } else { 1 })
            }
        };
        let delay = self.rng.range(1, longest) * slow;
        let flight = Some(Flight { io, what, pieces });
        let slot = match self.free_flights.pop() {
            Some(slot) => {
                self.flights[slot] = flight;
                slot
            }
            None => {
                self.flights.push(flight);
                self.flights.len() - 1
            }
        };
        self.sequence += 1;
        self.due.push(Reverse((now + delay, self.sequence, slot)));
    }

    /// Advances to the next event: an I/O completes or the core's timer fires. Returns false if there is none.
    pub fn advance(&mut self) -> Flow<bool> {
        let next_io = self.due.peek().map(|Reverse((at, ..))| *at);
        let wakeup = self.core().next_wakeup();
        match (next_io, wakeup) {
            (None, None) => Ok(false),
            (io, Some(at)) if io.is_none_or(|io| at < io) => {
                self.idle_wakeups = if at <= self.now { self.idle_wakeups + 1 } else { 0 };
                if self.idle_wakeups > 1000 {
                    return violation!("next_wakeup stays at {at} while it is {}", self.now);
                }
                self.now = self.now.max(at);
                let now = self.now;
                self.core().tick(now);
                self.pump()?;
                Ok(true)
            }
            _ => {
                self.complete_next()?;
                Ok(true)
            }
        }
    }

    fn complete_next(&mut self) -> Flow {
        let Some(Reverse((at, _, slot))) = self.due.pop() else {
            return Ok(());
        };
        self.idle_wakeups = 0;
        self.now = self.now.max(at);
        if let Some((when, CrashKind::Power)) = self.trigger
            && self.counts.ios >= when
        {
            self.due.push(Reverse((at, 0, slot)));
            return Err(Stop::Crash(CrashKind::Power));
        }
        let killed = matches!(self.trigger, Some((when, CrashKind::Kill)) if self.counts.ios >= when);
        self.counts.ios += 1;
        let flight = self.flights[slot].take().expect("an I/O completes once");
        self.free_flights.push(slot);
        let result = self.perform(&flight);
        let now = self.now;
        tell(|| format!("{now:>10} {:?} {:?} {result:?}", flight.io, flight.what));
        if killed {
            self.arm();
            self.core().complete(now, flight.io, result);
            return Err(Stop::Crash(CrashKind::Kill));
        }
        self.core().complete(now, flight.io, result);
        self.pump()
    }

    /// Kills the process within the next call into the core.
    pub(crate) fn arm(&mut self) {
        let stores = self.rng.skewed(40) - 1;
        self.torn_store = self.rng.one_in(2);
        self.memory().arm(stores);
    }

    pub(crate) fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        let memory = self.memory.as_ref().expect("the core is running");
        let mut bytes = Vec::with_capacity(pieces.iter().map(|p| p.len).sum());
        for piece in pieces {
            bytes.extend_from_slice(&memory.frame(piece.frame)[piece.at..piece.at + piece.len]);
        }
        bytes
    }

    fn scatter(&mut self, pieces: &[Piece], bytes: &[u8]) {
        let memory = self.memory();
        let mut rest = bytes;
        for piece in pieces {
            let (now, later) = rest.split_at(piece.len);
            memory.dma(piece.frame)[piece.at..piece.at + piece.len].copy_from_slice(now);
            rest = later;
        }
    }

    fn perform(&mut self, flight: &Flight) -> Result<(), IoFailure> {
        let bytes: usize = flight.pieces.iter().map(|p| p.len).sum();
        match flight.what {
            What::DeviceRead { device, sector } => {
                let mut data = std::mem::take(&mut self.scratch);
                data.clear();
                data.resize(bytes, 0xEE);
                let result = if self.devices[device].store.gone {
                    Err(IoFailure::Gone)
                } else if self.read_fails(device) {
                    Err(IoFailure::Error)
                } else {
                    self.devices[device].store.read(sector, &mut data);
                    Ok(())
                };
                self.scatter(&flight.pieces, &data);
                self.scratch = data;
                result
            }
            What::DeviceWrite { device, sector } => {
                if self.devices[device].store.gone {
                    return Err(IoFailure::Gone);
                }
                let data = self.gather(&flight.pieces);
                let (stamp, marked) = (self.core().last_seq(), self.core().marked_seq());
                self.devices[device].store.stamp = stamp;
                self.devices[device].store.marked(marked);
                self.devices[device].store.write(sector, Payload::Bytes(data));
                Ok(())
            }
            What::DeviceFlush { device, mark } => {
                if self.devices[device].store.gone {
                    return Err(IoFailure::Gone);
                }
                self.devices[device].store.flush(mark);
                Ok(())
            }
            What::OriginRead { disk, sector, sectors } => {
                let mut data = std::mem::take(&mut self.scratch);
                data.clear();
                data.resize(sectors as usize * SECTOR_BYTES, 0xEE);
                assert_eq!(data.len(), bytes, "the memory of an origin read matches its sectors");
                let result = self.origin_works(disk);
                if result.is_ok() {
                    self.disks[disk].origin.read(sector, &mut data);
                }
                self.scatter(&flight.pieces, &data);
                self.scratch = data;
                result
            }
            What::OriginWrite { disk, sector, sectors, durable } => {
                assert_eq!(
                    sectors as usize * SECTOR_BYTES,
                    bytes,
                    "the memory of an origin write matches its sectors"
                );
                let payload = Payload::Bytes(self.gather(&flight.pieces));
                let cleaner = self.core().writer(flight.io) == Writer::Cleaner;
                self.origin_write(disk, sector, payload, durable, cleaner)
            }
            What::OriginZero { disk, sector, sectors, durable } => {
                self.origin_write(disk, sector, Payload::Zeroes(sectors), durable, false)
            }
            What::OriginFlush { disk, mark } => {
                self.origin_works(disk)?;
                self.disks[disk].origin.flush(mark);
                Ok(())
            }
        }
    }

    fn origin_write(
        &mut self,
        disk: usize,
        sector: u64,
        payload: Payload,
        durable: bool,
        cleaner: bool,
    ) -> Result<(), IoFailure> {
        let works = self.origin_works(disk);
        let tear = self.tear();
        if !(durable || cleaner) {
            self.disks[disk].volatile_since = self.oracle.now();
        }
        match works {
            Ok(()) if durable => self.disks[disk].origin.write_through(sector, payload),
            Ok(()) => self.disks[disk].origin.write(sector, payload),
            Err(_) => self.disks[disk].origin.write_torn(sector, payload, tear, &mut self.rng),
        }
        works
    }

    fn origin_works(&mut self, disk: usize) -> Result<(), IoFailure> {
        if self.now < self.disks[disk].outage_until {
            self.disks[disk].last_error = self.oracle.now();
            return Err(IoFailure::Error);
        }
        Ok(())
    }

    fn read_fails(&mut self, device: usize) -> bool {
        let fails = self.plan.faults.read_errors && device == 0 && self.rng.one_in(100);
        if fails {
            self.counts.faults += 1;
            self.unprotected_fault |= !self.plan.mirrored();
        }
        fails
    }
}
