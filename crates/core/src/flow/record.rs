//! Writing the pool record: copy A on every device, flush, copy B on every device, flush.
//!
//! Invariants
//! - The two copies on a device are never written at the same time: the second is written only when the first
//!   is durable. So one of them is whole after any crash.
//! - As long as any device is in use, a version is durable only when both copies on every device in use are.
//! - No flush of a guest succeeds before a change of the devices that count is durable.

use haversack_model::BLOCK_BYTES;

use crate::core::Core;
use crate::format::geometry;
use crate::format::record::PoolRecord;
use crate::io::{Io, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::transfer::RESERVED_FRAMES;

/// The state of writing the record. A version is a count of requested changes.
#[derive(Default)]
pub(crate) struct RecordWriter {
    /// Generation of the last record written.
    pub generation: u64,
    /// Which life of the staging area belongs to the pool.
    pub staging_id: u64,
    /// Openings of the pool so far, this one included.
    openings: u64,
    /// The newest version that was requested.
    wanted: u64,
    /// The newest version that is durable.
    durable: u64,
    /// The write in progress.
    writing: Option<Writing>,
    /// The newest version that changes which devices count.
    device_change: u64,
    /// Pages written so far.
    pages: u64,
}

struct Writing {
    /// The version that it makes durable.
    version: u64,
    /// The copy that is being written: 0 or 1.
    copy: u64,
    /// The encoded record, whole pages.
    bytes: Vec<u8>,
    /// Devices that have not answered.
    in_flight: u32,
    /// Sequence number of the present copy's writes.
    seq: u64,
}

impl RecordWriter {
    /// Continues from the record that was found.
    pub fn after(found: &PoolRecord) -> RecordWriter {
        RecordWriter {
            generation: found.generation,
            staging_id: found.staging_id,
            openings: found.openings,
            ..RecordWriter::default()
        }
    }

    /// Returns the opening number for the tags of pages, modulo 256.
    pub fn opening(&self) -> u8 {
        self.openings as u8
    }

    /// Notes that the last requested change concerns which devices count: no flush is complete before it is
    /// durable.
    pub fn device_changed(&mut self) {
        self.device_change = self.wanted;
    }

    pub fn device_change_pending(&self) -> bool {
        self.device_change > self.durable
    }

    /// Returns the pages written so far.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    pub fn is_durable(&self, version: u64) -> bool {
        self.durable >= version
    }
}

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
                .iter()
                .map(|d| d.as_ref().filter(|d| !d.life.is_forgotten()).map(|d| d.record()))
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
