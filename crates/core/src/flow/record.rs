//! Writing the pool record: copy A on every device, flush, copy B on every device, flush.
//!
//! Invariants
//! - The two copies on a device are never written at the same time: the second is written only when the first
//!   is durable. So one of them is whole after any crash.
//! - As long as any device is in use, a version is durable only when both copies on every device in use are.
//! - No flush of a guest succeeds before a change of the devices that count is durable.

pub(crate) mod writer;

use haversack_model::BLOCK_BYTES;

use crate::core::Core;
use crate::format::geometry;
use crate::format::record::PoolRecord;
use crate::io::{Io, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::transfer::RESERVED_FRAMES;
use writer::Writing;

impl<M: Memory> Core<M> {
    /// Requests a write of the record. Returns the version that will hold the change.
    pub(crate) fn change_record(&mut self) -> u64 {
        self.record.wanted += 1;
        self.record.wanted
    }

    /// Returns the record as of now.
    pub(crate) fn pool_record(&self) -> PoolRecord {
        PoolRecord {
            generation: self.record.generation,
            staging_id: self.record.staging_id,
            openings: self.record.openings,
            clean_stop: self.jobs.is_final(),
            redundancy: self.pool.is_redundant(),
            distrust_clean: self.pool.distrusts_clean(),
            flushed_seq: self.durability.mark(),
            devices: self.devices.records(&self.store),
            disks: self
                .disks
                .slots()
                .map(|d| d.filter(|d| !d.life.is_forgotten()).map(|d| d.record()))
                .collect(),
        }
    }

    pub(crate) fn drive_record(&mut self) -> bool {
        if self.alive_devices().next().is_none() {
            let behind = self.record.durable < self.record.wanted;
            self.record.durable = self.record.wanted;
            if behind {
                self.touch_all();
            }
            return behind;
        }
        match &self.record.writing {
            None if self.record.wanted > self.record.durable => {
                self.record.generation += 1;
                let record = self.pool_record();
                let (version, bytes) = (self.record.wanted, record.encode());
                let written = self.write_record(Writing { version, copy: 0, bytes, in_flight: 0, seq: 0 });
                if let Some(writing) = &self.record.writing {
                    self.durability.carry_mark(writing.seq);
                }
                written
            }
            Some(w) if w.in_flight == 0 && w.seq <= self.durability.flushed() => {
                let mut w = self.record.writing.take().expect("just seen");
                if w.copy == 0 {
                    w.copy = 1;
                    return self.write_record(w);
                }
                self.record.durable = w.version;
                self.touch_all();
                true
            }
            Some(w) if w.in_flight == 0 => {
                let seq = w.seq;
                self.durability.want(seq);
                false
            }
            _ => false,
        }
    }

    fn write_record(&mut self, mut w: Writing) -> bool {
        let devices: Vec<_> = self.alive_devices().collect();
        let pages = w.bytes.len() / BLOCK_BYTES;
        if !self.frames.suffices(pages.min(RESERVED_FRAMES)) {
            if w.copy == 1 {
                w.copy = 0;
                self.record.writing = Some(Writing { in_flight: 0, ..w });
            }
            return false;
        }
        let frames: Vec<_> = (0..pages).map(|_| self.frames.take().expect("frames were counted")).collect();
        for (frame, page) in frames.iter().zip(w.bytes.chunks_exact(BLOCK_BYTES)) {
            self.memory.frame_mut(*frame).copy_from_slice(page);
        }
        w.in_flight = devices.len() as u32;
        w.seq = self.durability.take(w.in_flight);
        for device in devices {
            let io = self.new_io(Purpose::Record { seq: w.seq });
            self.ios[io].frames.extend_from_slice(&frames);
            self.write_device(io, device, geometry::record_bytes(w.copy));
            self.record.pages += pages as u64;
        }
        self.record.writing = Some(w);
        true
    }

    pub(crate) fn record_done(&mut self, io: &Io, seq: u64, result: Result<(), IoFailure>) {
        if result.is_err() {
            self.device_failed(io.device.expect("a record is on a device"));
        }
        self.sequence_done(seq);
        self.durability.want(seq);
        let writing = self.record.writing.as_mut().expect("the record is being written");
        writing.in_flight -= 1;
        if writing.in_flight == 0 {
            for frame in &io.frames {
                self.free_frame(*frame, false);
            }
        }
    }
}
