//! Writing the pool record: copy A on every device, flush, copy B on every device, flush.
//!
//! Invariants
//! - The two copies on a device are never written at the same time: the second is written only when the first
//!   is durable. So one of them is intact after any crash.
//! - As long as any device is in use, a version is durable only when both copies on every such device are
//!   durable.
//! - No flush of a guest succeeds before a change of the devices that count is durable.

use haversack_model::Uuid;

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::durability::record::{RecordStep, RecordVersion, RecordWrite};
use crate::format::geometry;
use crate::format::record::PoolRecord;
use crate::io::{Io, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::transfer::RESERVED_FRAMES;

impl Core {
    /// Requests a write of the record. Returns the version that will hold the change.
    pub(crate) fn change_record(&mut self) -> RecordVersion {
        self.durability.record.change()
    }
}

impl<M: Memory> Call<'_, M> {
    /// Returns the record as of now.
    pub(crate) fn pool_record(&self) -> PoolRecord {
        let stop = self.pool.stop_name();
        let is_final = self.jobs.is_final() || planted(Bug::KeepStopName) && stop != Uuid::default();
        PoolRecord {
            generation: self.durability.record.generation(),
            staging_id: self.durability.record.staging_id(),
            openings: self.durability.record.openings(),
            clean_stop: is_final,
            redundancy: self.pool.is_redundant(),
            distrust_clean: self.pool.distrusts_clean(),
            flushed_seq: self.durability.mark(),
            devices: self.devices.records(&self.store),
            disks: self
                .disks
                .slots()
                .map(|d| d.filter(|d| !d.life.is_forgotten()).map(|d| d.record()))
                .collect(),
            crashed_seq: self.durability.crashed_seq(),
            stop: if is_final { stop } else { Uuid::default() },
        }
    }

    pub(crate) fn drive_record(&mut self) -> bool {
        if self.durability.record.is_idle() {
            return false;
        }
        if self.alive_devices().next().is_none() {
            let behind = self.durability.record.give_up();
            if behind {
                self.queue_all();
            }
            return behind;
        }
        match self.durability.next_for_record() {
            RecordStep::Nothing => false,
            RecordStep::Compose { generation } => {
                let record = PoolRecord { generation, ..self.pool_record() };
                let write = self.durability.record.first_copy(&record, self.pool.arena());
                let seq = self.write_record(write);
                if let Some(seq) = seq {
                    self.durability.carry_mark(seq);
                }
                seq.is_some()
            }
            RecordStep::Write(write) => self.write_record(write).is_some(),
            RecordStep::Flush { seq } => {
                self.durability.want(seq);
                false
            }
            RecordStep::Durable => {
                self.queue_all();
                true
            }
        }
    }

    /// Writes a copy to all devices; returns its sequence number. If there are not enough frames, the write
    /// is postponed.
    fn write_record(&mut self, write: RecordWrite) -> Option<u64> {
        let devices: Vec<_> = self.alive_devices().collect();
        if !self.frames.suffices(write.pages().len().min(RESERVED_FRAMES)) {
            self.durability.record.put_off(write);
            return None;
        }
        let mut frames = Vec::with_capacity(write.pages().len());
        for page in write.pages() {
            let frame = self.frames.take().expect("frames were counted");
            self.memory.frame_mut(frame).copy_from_slice(page);
            frames.push(frame);
        }
        let count = devices.len() as u32;
        let seq = self.durability.take(count);
        for device in devices {
            let io = self.new_io(Purpose::Record { seq });
            self.ios[io].frames.extend_from_slice(&frames);
            self.write_device(io, device, geometry::record_bytes(write.copy()));
        }
        self.durability.record.sent(write, seq, count);
        Some(seq)
    }

    pub(crate) fn record_done(&mut self, io: &Io, seq: u64, result: Result<(), IoFailure>) {
        if result.is_err() {
            self.device_failed(io.device.expect("a record is on a device"));
        }
        self.sequence_done(seq);
        self.durability.want(seq);
        if self.durability.record.answered() {
            for frame in &io.frames {
                self.free_frame(*frame, false);
            }
        }
    }
}
