//! Carries out the actions of a core and its movers: I/O on cache devices and the origin, and messages.

use haversack_core::{Action, Event as CoreEvent, IoFailure, IoId};
use haversack_migrate::{Message, Output};
use haversack_model::{DiskNo, SECTOR_BYTES, SECTORS_PER_BLOCK};
use haversack_ownership::Record;
use haversack_trace::VolumeNo;

use super::event::{OriginIo, What};
use super::{World, wrong};
use crate::error::SimError;
use crate::latency::IoKind;
use crate::migration::content::{Buffer, from_bytes};
use crate::migration::host::{Host, Purpose, host_id};
use crate::migration::link::Parcel;

/// The most copies that a disk reads each time it is driven.
const COPIES_AT_A_TIME: usize = 32;

impl World<'_> {
    pub(super) fn io_done(&mut self, host: usize, io: IoId) -> Result<(), SimError> {
        let now = self.now_us();
        let at = &mut self.hosts[host];
        at.core.with(&mut at.memory).complete(now, io, Ok(()));
        self.pump(host)
    }

    pub(super) fn origin_io(&mut self, host: usize, io: IoId, does: OriginIo) {
        let Host { core, memory, .. } = &mut self.hosts[host];
        match does {
            OriginIo::Read(volume, sector, sectors) => {
                let versions = self.origin.read(volume, sector, sectors as usize);
                memory.scatter(&core.pieces(io).collect::<Vec<_>>(), &versions);
            }
            OriginIo::Write(volume, sector) => {
                self.origin.write(volume, sector, &memory.gather(core.pieces(io)));
            }
            OriginIo::Zero(volume, sector, sectors) => {
                self.origin.write(volume, sector, &vec![0; sectors as usize]);
            }
            OriginIo::Flush => {}
        }
    }

    pub(super) fn message(&mut self, to: usize, parcel: Parcel) -> Result<(), SimError> {
        let (now, from) = (self.now_us(), host_id(1 - to));
        let host = &mut self.hosts[to];
        let mover = host.movers.iter_mut().find(|mover| mover.id == parcel.disk);
        if let Some(mover) = mover {
            let mut call = host.core.with(&mut host.memory);
            mover.migration.message(&mut call, now, from, parcel.message);
        }
        self.pump(to)
    }

    fn send(&mut self, from: usize, mover: usize, message: Message) {
        let disk = self.hosts[from].movers[mover].id;
        self.links[from].push(Parcel { disk, message });
        self.depart(from);
    }

    pub(super) fn depart(&mut self, from: usize) {
        if let Some(departure) = self.links[from].depart(self.now_ns) {
            self.plan_at(departure.free_ns, What::LinkFree { from });
            self.plan_at(departure.arrives_ns, What::Arrives { to: 1 - from, parcel: departure.parcel });
        }
    }

    /// Carries out the actions of a host's core and its movers until there are none left.
    pub(super) fn pump(&mut self, host: usize) -> Result<(), SimError> {
        loop {
            while let Some(action) = self.hosts[host].core.poll() {
                self.act(host, action)?;
            }
            let mut is_quiet = true;
            for mover in 0..self.hosts[host].movers.len() {
                let (now, room) = (self.now_us(), self.links[host].copy_room().min(COPIES_AT_A_TIME));
                let migration = &mut self.hosts[host].movers[mover].migration;
                if migration.is_sending() {
                    is_quiet &= migration.send_more(now, room) == 0;
                }
                while let Some(output) = self.hosts[host].movers[mover].migration.poll() {
                    is_quiet = false;
                    self.put_out(host, mover, output)?;
                }
            }
            is_quiet &= !self.submit_waiting(host)?;
            if is_quiet {
                break;
            }
        }
        self.look_at_move()
    }

    fn act(&mut self, host: usize, action: Action) -> Result<(), SimError> {
        let bytes = |sectors: u32| u64::from(sectors) * SECTOR_BYTES as u64;
        match action {
            Action::ReadDevice { io, device, offset_bytes } => {
                self.start_device_io(host, io, device.0, offset_bytes, IoKind::Read);
            }
            Action::WriteDevice { io, device, offset_bytes } => {
                self.start_device_io(host, io, device.0, offset_bytes, IoKind::Write);
            }
            Action::FlushDevice { io, device } => self.start_device_io(host, io, device.0, 0, IoKind::Flush),
            Action::ReadOrigin { io, disk, sector, sectors } => {
                let volume = self.volume(host, disk);
                self.origin_traffic.read_bytes += bytes(sectors);
                self.start_origin_io(
                    host,
                    io,
                    OriginIo::Read(volume, sector, sectors),
                    IoKind::Read,
                    bytes(sectors),
                );
            }
            Action::WriteOrigin { io, disk, sector, sectors, .. } => {
                let volume = self.may_write(host, disk)?;
                self.origin_traffic.written_bytes += bytes(sectors);
                self.start_origin_io(
                    host,
                    io,
                    OriginIo::Write(volume, sector),
                    IoKind::Write,
                    bytes(sectors),
                );
            }
            // Zeroes and discards move no data.
            Action::ZeroOrigin { io, disk, sector, sectors, .. } => {
                let volume = self.may_write(host, disk)?;
                self.start_origin_io(host, io, OriginIo::Zero(volume, sector, sectors), IoKind::Write, 0);
            }
            Action::FlushOrigin { io, .. } => {
                self.start_origin_io(host, io, OriginIo::Flush, IoKind::Flush, 0);
            }
            Action::ReadPeer { io, disk, block, mask, is_late } => {
                let now = self.now_us();
                let mover = self.hosts[host].mover_of(disk).expect("only a disk that moves has a peer");
                self.hosts[host].movers[mover].migration.fetch(now, io, block, mask, is_late);
            }
            Action::Complete { tag, result } => self.completed(host, tag, result)?,
            Action::Event(CoreEvent::JobDone { job, result }) => {
                self.hosts[host].jobs_done += 1;
                let now = self.now_us();
                self.hosts[host].each_mover(|migration, call| migration.job_done(call, now, job, result));
            }
            Action::Event(event) => return Err(wrong(format!("{event:?}, although no device is at fault"))),
        }
        Ok(())
    }

    fn volume(&self, host: usize, disk: DiskNo) -> VolumeNo {
        self.hosts[host].volume(disk).expect("the core has disks that it was given")
    }

    /// Returns the volume of a disk whose origin the host is about to write. If the disk moves, the host must own it.
    fn may_write(&self, host: usize, disk: DiskNo) -> Result<VolumeNo, SimError> {
        let record = self.hosts[host].mover_of(disk).map(|at| self.hosts[host].movers[at].migration.record());
        match record {
            None | Some(Record::Owner { .. }) => Ok(self.volume(host, disk)),
            Some(record) => {
                Err(wrong(format!("host {host} writes the origin of a disk while its record is {record:?}")))
            }
        }
    }

    fn start_device_io(&mut self, host: usize, io: IoId, device: u8, offset_bytes: u64, kind: IoKind) {
        let bytes = match kind {
            IoKind::Flush => 0,
            _ => self.hosts[host].core.pieces(io).map(|piece| piece.len as u64).sum(),
        };
        let device = usize::from(device);
        let station = host * self.hosts[host].devices() + device;
        let done_ns = self.stations.device(self.now_ns, station, kind, bytes);
        let first = (offset_bytes / SECTOR_BYTES as u64) as usize;
        self.plan_at(done_ns, What::DeviceDone { host, io, device, first, kind });
    }

    fn start_origin_io(&mut self, host: usize, io: IoId, does: OriginIo, kind: IoKind, bytes: u64) {
        let done_ns = self.stations.origin_from(host, self.now_ns, kind, bytes);
        self.plan_at(done_ns, What::OriginDone { host, io, does });
    }

    fn put_out(&mut self, host: usize, mover: usize, output: Output) -> Result<(), SimError> {
        let now = self.now_us();
        match output {
            Output::Send(_, message) => self.send(host, mover, message),
            Output::ReadCopy(ticket) => {
                let at = &mut self.hosts[host];
                let buffer = Buffer::Sectors(vec![0; SECTORS_PER_BLOCK as usize]);
                let Some(disk) = at.movers[mover].migration.disk() else { return Ok(()) };
                let tag = at.put(buffer, Purpose::Copy { mover, ticket, copied: None });
                match ticket.read(&mut at.core.with(&mut at.memory), now, tag, disk) {
                    Ok(Some(copied)) => {
                        at.set_purpose(tag, Purpose::Copy { mover, ticket, copied: Some(copied) });
                    }
                    Ok(None) | Err(_) => {
                        at.take_back(tag);
                        at.movers[mover].migration.copy_read(ticket, None);
                    }
                }
            }
            Output::TakeCopy { block, copied, data } => {
                let at = &mut self.hosts[host];
                let Some(disk) = at.movers[mover].migration.disk() else { return Ok(()) };
                let tag = at.memory.put(Buffer::Sectors(from_bytes(&data)));
                // An error says that the disk is no longer expected.
                let taken = at.core.with(&mut at.memory).take_copy(now, tag, disk, block, copied);
                at.memory.take_back(tag);
                self.refused_copies += u64::from(!taken.unwrap_or(false) && copied.mask != 0);
            }
            Output::KeepCopy { .. } => unreachable!("no disk here has a replica"),
            Output::Fetched { io, data } => {
                let at = &mut self.hosts[host];
                let pieces: Vec<_> = at.core.pieces(io).collect();
                at.memory.scatter(&pieces, &from_bytes(&data));
                at.core.with(&mut at.memory).complete(now, io, Ok(()));
            }
            Output::FetchFailed { io } => {
                let at = &mut self.hosts[host];
                at.core.with(&mut at.memory).complete(now, io, Err(IoFailure::Error));
            }
        }
        Ok(())
    }
}
