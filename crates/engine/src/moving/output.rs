//! What the protocol requests: messages, copies that are read or taken, and blocks that came from another host.

use haversack_core::{Copied, IoFailure, IoId, Memory, Moved, Piece, Rejected};
use haversack_migrate::{CopyTicket, Output, Position, Session};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskId, DiskNo, HostId};
use haversack_ownership::Record;

use super::copies::{Done, Purpose};
use super::{HostMessage, ReadRefusal};
use crate::event::EngineEvent;
use crate::reactor::Reactor;

impl Reactor {
    /// Does what the disks that move have to do now. Returns false if there was nothing.
    pub(crate) fn drive_movers(&mut self) -> bool {
        if self.moving.movers.is_empty() && self.lending.is_none() {
            return false;
        }
        let mut any = self.look_at_clients();
        for done in self.memory.payloads.copies.take_done() {
            self.copy_done(done);
            any = true;
        }
        for at in 0..self.moving.movers.len() {
            self.moving.movers[at].migration.set_busy(self.turn_times.is_busy());
            any |= self.send_more(at);
            any |= self.with_mover(at, |mover, call, now| mover.migration.replicate(call, now));
            while let Some(output) = self.moving.movers[at].migration.poll() {
                self.put_out(at, output);
                any = true;
            }
            any |= self.look_at_serving(at);
            self.tell_moved(at);
        }
        any
    }

    fn send_more(&mut self, at: usize) -> bool {
        let mover = &mut self.moving.movers[at];
        match (mover.migration.sends_to(), &self.moving.host) {
            (Some(to), Some(host)) => mover.send_more(self.now, (host.room)(to)),
            _ => false,
        }
    }

    pub(super) fn send_to(&self, host: HostId, disk: DiskId, message: HostMessage) {
        if let Some(settings) = &self.moving.host {
            (settings.send)(host, disk, message);
        }
    }

    fn put_out(&mut self, at: usize, output: Output) {
        let id = self.moving.movers[at].id;
        match output {
            Output::Send(to, message) => self.send_to(to, id, HostMessage::Protocol(message)),
            Output::ReadCopy(ticket) => self.read_copy(at, ticket),
            Output::TakeCopy { block, copied, data } => self.take_copy(at, block, copied, data),
            Output::KeepCopy { session, at: order, block, mask, data } => {
                self.keep_copy(at, session, order, (block, mask), data);
            }
            Output::FetchFailed { io } => {
                self.core.with(&mut self.memory).complete(self.now, io, Err(IoFailure::Error));
            }
            Output::Fetched { io, data } => {
                let pieces: Vec<Piece> = self.core.pieces(io).collect();
                let mut rest = &data[..];
                for piece in pieces {
                    let (now, later) = rest.split_at(piece.len);
                    self.memory.frame_mut(piece.frame)[piece.at..piece.at + piece.len].copy_from_slice(now);
                    rest = later;
                }
                self.core.with(&mut self.memory).complete(self.now, io, Ok(()));
            }
        }
    }

    fn read_copy(&mut self, at: usize, ticket: CopyTicket) {
        let mover = &self.moving.movers[at];
        let Some(number) = mover.migration.disk() else { return };
        let purpose = Purpose::Read { disk: mover.id, ticket, copied: None };
        let tag = self.memory.payloads.copies.put(purpose, vec![0; BLOCK_BYTES]);
        match ticket.read(&mut self.core.with(&mut self.memory), self.now, tag, number) {
            Ok(Some(copied)) => self.memory.payloads.copies.reads(tag, copied),
            // The new owner asks again; an answer without data would say that the block cannot be read.
            Err(Rejected::Busy) if matches!(ticket, CopyTicket::Answer { .. }) => {
                self.memory.payloads.copies.drop_buffer(tag);
            }
            Ok(None) | Err(_) => {
                self.memory.payloads.copies.drop_buffer(tag);
                self.moving.movers[at].migration.copy_read(ticket, None);
            }
        }
    }

    fn take_copy(&mut self, at: usize, block: BlockNo, copied: Copied, data: Vec<u8>) {
        let Some(number) = self.moving.movers[at].migration.disk() else { return };
        let tag = self.memory.payloads.copies.put(Purpose::Take, data);
        let now = self.now;
        // An error means that the disk is no longer expected.
        let _ = self.core.with(&mut self.memory).take_copy(now, tag, number, block, copied);
        self.memory.payloads.copies.drop_buffer(tag);
    }

    fn keep_copy(
        &mut self,
        at: usize,
        session: Session,
        order: Position,
        (block, mask): (BlockNo, u8),
        data: Vec<u8>,
    ) {
        let Some(number) = self.moving.movers[at].migration.disk() else { return };
        let tag = self.memory.payloads.copies.put(Purpose::Take, data);
        let kept = self.core.with(&mut self.memory).keep_copy(self.now, tag, number, block, mask);
        // An error means that there is no replica here any more.
        self.moving.movers[at].migration.copy_kept(session, order, kept.unwrap_or(false));
        self.memory.payloads.copies.drop_buffer(tag);
    }

    fn copy_done(&mut self, done: Done) {
        let Done { purpose, bytes, result } = done;
        match purpose {
            Purpose::Read { disk, ticket, copied } => {
                let copy = copied.filter(|_| result.is_ok()).map(|copied| (copied, bytes));
                if let Some(at) = self.moving.place(disk) {
                    self.moving.movers[at].migration.copy_read(ticket, copy);
                }
            }
            Purpose::Observe { disk, from, question } => {
                let data = result.map(|()| bytes).map_err(|_| ReadRefusal::Failed);
                self.send_to(from, disk, HostMessage::ReadDone { question, data });
            }
            Purpose::Lent { ticket } => self.lent_read_done(ticket, bytes, result),
            Purpose::Take => unreachable!("the core takes a copy within the call"),
        }
    }

    /// Reads a block from the host that owned the disk before.
    pub(crate) fn read_peer(&mut self, io: IoId, disk: DiskNo, block: BlockNo, mask: u8, is_late: bool) {
        let now = self.now;
        let id = self.core.disk_info(disk).map(|info| info.id);
        let mover = self.moving.movers.iter_mut().find(|mover| Some(mover.id) == id);
        match mover {
            Some(mover) => mover.migration.fetch(now, io, block, mask, is_late),
            None => self.core.with(&mut self.memory).complete(now, io, Err(IoFailure::Error)),
        }
    }

    /// Reports how the disk's ownership has changed.
    fn tell_moved(&mut self, at: usize) {
        if *self.moving.movers[at].migration.record() == self.moving.movers[at].told {
            return;
        }
        // Do this first: another host may write the origin, whichever event is reported below.
        self.void_lent(self.moving.movers[at].id);
        let dirty_blocks = self.overtaken_blocks(at);
        let number = self.moving.movers[at].migration.disk();
        let info = number.and_then(|number| self.core.disk_info(number));
        let holds_blocks = info.is_some_and(|info| matches!(info.moved, Moved::Peer { .. }));
        let is_replica = info.is_some_and(|info| matches!(info.moved, Moved::Replica { .. }));
        let mover = &mut self.moving.movers[at];
        let record = mover.migration.record();
        let (disk, before) = (mover.id, std::mem::replace(&mut mover.told, record.clone()));
        let event = match (&before, &mover.told) {
            // A replica was begun or dropped.
            (_, Record::Released { .. }) if is_replica => return,
            (Record::Released { to: before, grant: old }, Record::Released { to, grant })
                if before == to && old.epoch == grant.epoch =>
            {
                return;
            }
            (_, Record::Released { to, .. }) => EngineEvent::MovedAway { disk, to: *to, holds_blocks },
            (Record::Owner { .. }, Record::Owner { peers, .. }) if peers.is_empty() => {
                EngineEvent::MoveEnded { disk }
            }
            (_, Record::Owner { peers, .. }) => {
                EngineEvent::MovedHere { disk, from: peers.iter().next().copied() }
            }
            (_, Record::Overtaken { by, .. }) => EngineEvent::Overtaken { disk, by: *by, dirty_blocks },
            (_, Record::Unknown) => return,
        };
        self.tell(&event);
        if matches!(event, EngineEvent::MovedAway { .. } | EngineEvent::Overtaken { .. }) {
            self.ask_held_again(at);
        }
    }
}
