//! Carrying out what the core and the migrations of a host request.

use haversack_core::{Action, Call, Copied, Event, IoFailure, Piece, Rejected, RequestTag};
use haversack_migrate::{CopyTicket, Migration, Output, Position, Session};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskNo, Micros, SECTOR_BYTES};
use haversack_ownership::Record;

use super::{Host, Reading, Running, Shared};
use crate::hosts::io::{Flight, What, scatter};
use crate::hosts::network::Letter;
use crate::memory::{Buffer, SimMemory};
use crate::run::tell;
use crate::world::{Flow, violation};

impl Host {
    /// Runs something in the process, and then carries out what the core and the migrations request.
    pub fn with<T>(
        &mut self,
        shared: &mut Shared,
        of: usize,
        what: impl FnOnce(&mut Migration, &mut Call<'_, SimMemory>, Micros) -> T,
    ) -> Flow<Option<T>> {
        let Some(Running { core, memory, disks, .. }) = &mut self.running else { return Ok(None) };
        let done = what(&mut disks[of].migration, &mut core.with(memory), shared.now);
        self.pump(shared)?;
        Ok(Some(done))
    }

    /// Runs something in the core, and then carries out what the core and the migrations request.
    pub(super) fn with_core(
        &mut self,
        shared: &mut Shared,
        what: impl FnOnce(&mut Call<'_, SimMemory>, Micros),
    ) -> Flow {
        let Some(Running { core, memory, .. }) = &mut self.running else { return Ok(()) };
        what(&mut core.with(memory), shared.now);
        self.pump(shared)
    }

    /// Carries out what the core and the migrations request, until they request nothing more.
    pub fn pump(&mut self, shared: &mut Shared) -> Flow {
        loop {
            let Some(running) = &mut self.running else { return Ok(()) };
            if let Some(action) = running.core.poll() {
                tell(|| format!("{:>10} host {} {action:?}", shared.now, self.place));
                self.act(shared, action)?;
                continue;
            }
            let polled = running.disks.iter_mut().enumerate();
            let Some((of, output)) =
                polled.filter_map(|(of, disk)| Some((of, disk.migration.poll()?))).next()
            else {
                if running.replicate(shared.now) {
                    continue;
                }
                running.note_wakeup();
                return Ok(());
            };
            tell(|| format!("{:>10} host {} disk {of} {}", shared.now, self.place, brief(&output)));
            self.put_out(shared, of, output)?;
        }
    }

    fn act(&mut self, shared: &mut Shared, action: Action) -> Flow {
        let device = |host: &Host, no| host.devices.iter().position(|d| d.no == Some(no)).expect("it has it");
        let sector = |offset_bytes: u64| offset_bytes / SECTOR_BYTES as u64;
        match action {
            Action::ReadOrigin { io, disk, sector, sectors } if self.is_base(disk) => {
                self.launch(shared, io, What::BaseRead { sector: sector.0, sectors });
            }
            Action::FlushOrigin { io, disk } if self.is_base(disk) => {
                let running = self.run();
                running.core.with(&mut running.memory).complete(shared.now, io, Ok(()));
            }
            Action::WriteOrigin { disk, .. } | Action::ZeroOrigin { disk, .. } if self.is_base(disk) => {
                return violation!("host {} does {action:?}, but nobody writes the base", self.place);
            }
            Action::WriteOrigin { io, .. }
            | Action::ZeroOrigin { io, .. }
            | Action::FlushOrigin { io, .. }
                if self.fenced =>
            {
                self.launch(shared, io, What::Refused);
            }
            Action::ReadDevice { io, device: no, offset_bytes } => {
                let device = device(self, no);
                self.launch(shared, io, What::DeviceRead { device, sector: sector(offset_bytes) });
            }
            Action::WriteDevice { io, device: no, offset_bytes } => {
                let device = device(self, no);
                self.launch(shared, io, What::DeviceWrite { device, sector: sector(offset_bytes) });
            }
            Action::FlushDevice { io, device: no } => {
                let device = device(self, no);
                let mark = self.devices[device].store.flush_mark();
                self.launch(shared, io, What::DeviceFlush { device, mark });
            }
            Action::ReadOrigin { io, disk, sector, sectors } => {
                let of = self.place_of(disk);
                self.launch(shared, io, What::OriginRead { of, sector: sector.0, sectors });
            }
            Action::WriteOrigin { io, disk, sector, durable, .. } => {
                let of = self.place_of(disk);
                self.may_write(&action, of)?;
                self.launch(shared, io, What::OriginWrite { of, sector: sector.0, durable });
            }
            Action::ZeroOrigin { io, disk, sector, sectors, durable, .. } => {
                let of = self.place_of(disk);
                self.may_write(&action, of)?;
                self.launch(shared, io, What::OriginZero { of, sector: sector.0, sectors, durable });
            }
            Action::FlushOrigin { io, disk } => {
                let of = self.place_of(disk);
                let mark = shared.origins[of].flush_mark();
                self.launch(shared, io, What::OriginFlush { of, mark });
            }
            Action::ReadPeer { io, disk, block, mask, is_late, .. } => {
                let of = self.place_of(disk);
                self.run().disks[of].migration.fetch(shared.now, io, block, mask, is_late);
            }
            Action::Complete { tag, result } => self.answered(tag, result),
            Action::Event(Event::JobDone { job, result }) => {
                let Running { core, memory, disks, .. } = self.run();
                for disk in disks {
                    disk.migration.job_done(&mut core.with(memory), shared.now, job, result);
                }
                if self.run().stopping == Some(job) {
                    self.run().stopping = None;
                }
                let detaching = self.run().disks.iter().position(|disk| disk.detaching == Some(job));
                match (detaching, result) {
                    (Some(of), Ok(())) => self.detached(shared, of),
                    (Some(of), Err(_)) => self.run().disks[of].detaching = None,
                    (None, _) => {}
                }
                self.check_released()?;
            }
            Action::Event(Event::CleanFailed { .. }) => {}
            Action::Event(event) => {
                return violation!("host {}: {event:?} although no device is at fault", self.place);
            }
        }
        Ok(())
    }

    fn is_base(&self, disk: DiskNo) -> bool {
        self.running.as_ref().is_some_and(|running| running.base == Some(disk))
    }

    /// Returns which disk has this number in the pool.
    fn place_of(&mut self, disk: DiskNo) -> usize {
        let place = self.run().disks.iter().position(|here| here.migration.disk() == Some(disk));
        place.expect("the core does I/O for disks that it was told of")
    }

    pub(super) fn run(&mut self) -> &mut Running {
        self.running.as_mut().expect("the host runs")
    }

    /// The origin is written only by the host whose durable record says that it owns the disk.
    fn may_write(&self, action: &Action, of: usize) -> Flow {
        match self.record(of) {
            Some(Record::Owner { .. }) => Ok(()),
            other => violation!("host {} does {action:?} while its record is {other:?}", self.place),
        }
    }

    /// Checks that no write to the origin of a released disk is in flight.
    fn check_released(&self) -> Flow {
        let Some(running) = &self.running else { return Ok(()) };
        let is_released = |of: usize| {
            let record = running.disks[of].migration.record();
            matches!(record, Record::Released { .. } | Record::Overtaken { .. })
        };
        let is_wrong = |flight: &Flight| match flight.what {
            What::OriginWrite { of, .. } | What::OriginZero { of, .. } => is_released(of),
            _ => false,
        };
        if running.flights.iter().flatten().any(is_wrong) {
            return violation!("host {} has released a disk and still writes its origin", self.place);
        }
        Ok(())
    }

    fn answered(&mut self, tag: RequestTag, result: Result<(), haversack_core::RequestError>) {
        let running = self.run();
        let Some(place) = running.readings.iter().position(|reading| reading.tag == tag) else {
            running.answers.push((tag, result));
            return;
        };
        let Reading { of, ticket, copied, .. } = running.readings.swap_remove(place);
        let buffer = &mut running.memory.buffers().0[(tag.0 & 0xFFFF) as usize];
        buffer.tag = 0;
        let copy = result.is_ok().then(|| (copied, buffer.bytes.clone()));
        running.disks[of].migration.copy_read(ticket, copy);
    }

    /// Returns a free buffer of the guest's, with a tag.
    pub fn buffer(&mut self) -> (RequestTag, &mut Buffer) {
        self.tags += 1;
        let tags = self.tags;
        let buffers = &mut self.run().memory.buffers().0;
        let slot = buffers.iter().position(|buffer| buffer.tag == 0).unwrap_or(buffers.len());
        if slot == buffers.len() {
            buffers.push(Buffer::default());
        }
        let tag = RequestTag(tags << 16 | slot as u64);
        let buffer = &mut buffers[slot];
        *buffer = Buffer { tag: tag.0, bytes: std::mem::take(&mut buffer.bytes), ..Buffer::default() };
        (tag, buffer)
    }

    fn put_out(&mut self, shared: &mut Shared, of: usize, output: Output) -> Flow {
        match output {
            Output::Send(to, message) => {
                let (from, to) = (self.place, to.0 as usize - 1);
                shared.mail.push(Letter { from, to, of, message });
            }
            Output::ReadCopy(ticket) => self.read_copy(shared, of, ticket),
            Output::TakeCopy { block, copied, data } => self.take_copy(shared, of, block, copied, data),
            Output::KeepCopy { session, at, block, mask, data } => {
                self.keep_copy(shared, of, (session, at), (block, mask), data);
            }
            Output::FetchFailed { io } => {
                let Running { core, memory, .. } = self.run();
                core.with(memory).complete(shared.now, io, Err(IoFailure::Error));
            }
            Output::Fetched { io, data } => {
                let running = self.run();
                let pieces: Vec<Piece> = running.core.pieces(io).collect();
                scatter(&mut running.memory, &pieces, &data);
                running.core.with(&mut running.memory).complete(shared.now, io, Ok(()));
            }
        }
        Ok(())
    }

    fn read_copy(&mut self, shared: &Shared, of: usize, ticket: CopyTicket) {
        let (tag, buffer) = self.buffer();
        buffer.bytes.clear();
        buffer.bytes.resize(BLOCK_BYTES, 0xEE);
        let Running { core, memory, disks, readings, .. } = self.run();
        let migration = &mut disks[of].migration;
        let Some(disk) = migration.disk() else { return };
        match ticket.read(&mut core.with(memory), shared.now, tag, disk) {
            Ok(Some(copied)) => readings.push(Reading { of, tag, ticket, copied }),
            Err(Rejected::Busy) if matches!(ticket, CopyTicket::Answer { .. }) => {
                memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
            }
            Ok(None) | Err(_) => {
                memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
                migration.copy_read(ticket, None);
            }
        }
    }

    fn take_copy(&mut self, shared: &Shared, of: usize, block: BlockNo, copied: Copied, data: Vec<u8>) {
        let (tag, buffer) = self.buffer();
        (buffer.bytes, buffer.is_copy) = (data, true);
        let Running { core, memory, disks, .. } = self.run();
        if let Some(disk) = disks[of].migration.disk() {
            // An error says that the disk is no longer expected.
            let _ = core.with(memory).take_copy(shared.now, tag, disk, block, copied);
        }
        memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
    }

    fn keep_copy(
        &mut self,
        shared: &Shared,
        of: usize,
        (session, at): (Session, Position),
        (block, mask): (BlockNo, u8),
        data: Vec<u8>,
    ) {
        let (tag, buffer) = self.buffer();
        (buffer.bytes, buffer.is_copy) = (data, true);
        let Running { core, memory, disks, .. } = self.run();
        let migration = &mut disks[of].migration;
        let Some(disk) = migration.disk() else { return };
        let is_kept = core.with(memory).keep_copy(shared.now, tag, disk, block, mask) == Ok(true);
        migration.copy_kept(session, at, is_kept);
        memory.buffers().0[(tag.0 & 0xFFFF) as usize].tag = 0;
    }
}

/// Returns an output without its data.
fn brief(output: &Output) -> String {
    let mut text = format!("{output:?}");
    if let Some(at) = text.find("data: [") {
        text.truncate(at);
    }
    text
}
