//! The I/Os that the core asks for: on cache devices through the ring, on origins through the disk's origin.
//!
//! Invariant
//! - A device that the arena no longer uses is closed when its last I/O has completed.

use haversack_core::{IoFailure, IoId, Writer};
use haversack_model::{DeviceNo, DiskHandle, DiskNo, SECTOR_BYTES, SectorNo};

use super::Reactor;
use crate::event::EngineEvent;
use crate::faults::DeviceOp;
use crate::held::Ended;
use crate::media::failure;
use crate::origin::{OriginAnswer, OriginContext, OriginOp, OriginRequest};
use crate::ring::{Completion, Order, Owner};

impl Reactor {
    pub(super) fn device_io(&mut self, io: IoId, device: DeviceNo, offset_bytes: u64, op: DeviceOp) {
        self.ios += 1;
        let live = self.devices[device.0 as usize].as_mut().expect("the core uses devices of the pool");
        let memory = &self.memory;
        let (fd, owner, now) = (live.device.fd(), Owner::Device { io, device }, self.now);
        let start_bytes = live.device.start_bytes + offset_bytes;
        if let Some(errno) = live.device.faults.as_ref().and_then(|faults| faults.strike(op)) {
            live.start(io, op, offset_bytes, 0);
            self.ended.push(Completion { owner, result: Err(errno), started_us: now });
            return;
        }
        if op == DeviceOp::Flush {
            live.start(io, op, 0, 0);
            if live.device.is_durable() {
                self.ended.push(Completion { owner, result: Ok(0), started_us: now });
                return;
            }
            self.ring.flush(owner, fd, now);
            return;
        }
        let mut bytes = 0;
        let iovecs = self.core.pieces(io).map(|piece| {
            bytes += piece.len as u64;
            libc::iovec { iov_base: memory.address(piece.frame, piece.at).cast(), iov_len: piece.len }
        });
        let (_, disk) = self.core.purpose(io);
        let disk = disk.and_then(|number| self.disks.at(number));
        let is_light = disk.is_some_and(|live| self.turns.is_light(live.handle));
        let order = if is_light { Order::AtOnce } else { Order::InLine };
        match op {
            DeviceOp::Read => self.ring.read(owner, fd, start_bytes, iovecs, order, now),
            DeviceOp::Write | DeviceOp::Flush => self.ring.write(owner, fd, start_bytes, iovecs, order, now),
        }
        live.start(io, op, start_bytes, bytes);
    }

    pub(super) fn origin_io(
        &mut self,
        io: IoId,
        number: DiskNo,
        op: OriginOp,
        sector: SectorNo,
        sectors: u32,
        durable: bool,
    ) {
        let disk = self.disks.at(number).expect("the core asks for origins of attached disks").handle;
        self.ios += 1;
        let mut iovecs = self.spare_iovecs.pop().unwrap_or_default();
        iovecs.clear();
        if matches!(op, OriginOp::Read | OriginOp::Write) {
            let memory = &self.memory;
            iovecs.extend(self.core.pieces(io).map(|piece| libc::iovec {
                iov_base: memory.address(piece.frame, piece.at).cast(),
                iov_len: piece.len,
            }));
        }
        let offset_bytes = sector.0 * SECTOR_BYTES as u64;
        let len_bytes = u64::from(sectors) * SECTOR_BYTES as u64;
        let started_us = self.now;
        let writer = self.core.writer(io);
        if writer == Writer::Guest {
            self.turns.origin_started(disk, len_bytes);
        }
        let request = OriginRequest { io, op, writer, durable, offset_bytes, len_bytes, iovecs, started_us };
        self.origin(disk, |o, context| o.start(context, request));
    }

    /// Lets an origin act, then hands its answers to the core. Returns false if the disk is gone.
    pub(crate) fn origin(
        &mut self,
        disk: DiskHandle,
        act: impl FnOnce(&mut dyn crate::origin::Origin, &mut OriginContext<'_>),
    ) -> bool {
        let Some(live) = self.disks.get_mut(disk) else { return false };
        let (ring, answers, events) = (&mut self.ring, &mut self.answers, &mut self.events);
        let id = live.spec.config.id;
        act(live.origin.as_mut(), &mut OriginContext { ring, disk, id, now: self.now, answers, events });
        while let Some(answer) = self.answers.pop() {
            self.origin_answered(disk, answer);
        }
        true
    }

    pub(super) fn origin_answered(&mut self, disk: DiskHandle, answer: OriginAnswer) {
        let now = self.now;
        match self.held_mut() {
            None => self.origin_ended(disk, answer),
            Some(held) => held.ended(now, Ended::Origin { disk, answer }),
        }
    }

    pub(super) fn origin_ended(&mut self, disk: DiskHandle, answer: OriginAnswer) {
        let OriginAnswer { request, result } = answer;
        let live = self.disks.get_mut(disk).expect("an answer is of a disk");
        live.answered(&request, result, self.now);
        let request = match result {
            Err(IoFailure::Error) => match self.retries.take(disk, request, self.now) {
                Some(given_up) => given_up,
                None => return,
            },
            _ => request,
        };
        if request.writer == Writer::Guest {
            self.turns.origin_ended(disk, request.len_bytes);
        }
        let io = request.io;
        self.spare_iovecs.push(request.iovecs);
        self.ios -= 1;
        self.core.with(&mut self.memory).complete(self.now, io, result);
    }

    pub(super) fn device_completed(&mut self, io: IoId, device: DeviceNo, completion: Completion) {
        let now = self.now;
        match self.held_mut() {
            None => self.device_ended(io, device, completion),
            Some(held) => held.ended(now, Ended::Device { io, device, completion }),
        }
    }

    pub(super) fn device_ended(&mut self, io: IoId, device: DeviceNo, completion: Completion) {
        let took_us = self.now.saturating_sub(completion.started_us);
        let live = self.devices[device.0 as usize].as_mut().expect("an I/O is of a device in use");
        let result = live.completed(io, completion.result, took_us).map_err(|(errno, offset_bytes)| {
            let path = live.device.path.clone();
            self.events.push(EngineEvent::DeviceError { path, offset_bytes, errno });
            failure(errno)
        });
        self.ios -= 1;
        self.core.with(&mut self.memory).complete(self.now, io, result);
        self.close_if_over(device);
    }

    /// Retires a device that the pool no longer uses: it is closed when its last I/O has completed.
    pub(super) fn retire(&mut self, device: DeviceNo) {
        if let Some(live) = self.devices[device.0 as usize].as_mut() {
            live.retired = true;
            self.close_if_over(device);
        }
    }

    pub(super) fn close_if_over(&mut self, device: DeviceNo) {
        self.devices[device.0 as usize].take_if(|live| live.is_over());
    }
}
