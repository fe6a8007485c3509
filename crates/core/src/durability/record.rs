//! Which version of the record is wanted, which is being written, and which is durable. The flow that writes
//! it is `flow/record.rs`.
//!
//! Invariants
//! - A version is durable only when both copies of it are, or when no device is left to write them to.
//! - The mirrored copy is due only when the first is durable.

use haversack_model::{ArenaId, BLOCK_BYTES};

use crate::bugs::{Bug, planted};
use crate::format::record::PoolRecord;

/// A version of the record: the number of changes requested since the pool was opened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct RecordVersion(u64);

/// See the module.
#[derive(Default)]
pub(crate) struct RecordWriter {
    /// Generation of the last record written.
    generation: u64,
    /// The number of the staging area that belongs to the pool; see [`PoolRecord::staging_id`].
    staging_id: u64,
    /// Openings of the pool so far, this one included.
    openings: u64,
    /// The newest version that was requested.
    wanted: RecordVersion,
    /// The newest version that is durable.
    durable: RecordVersion,
    /// The write in progress.
    writing: Option<RecordWrite>,
    /// The newest version that changes which devices count.
    device_change: RecordVersion,
    /// Pages written so far.
    pages: u64,
}

/// A write of the record.
pub(crate) struct RecordWrite {
    /// The version that it makes durable.
    version: RecordVersion,
    /// The copy that is being written: 0 or 1.
    copy: u64,
    /// The encoded record, whole pages.
    bytes: Vec<u8>,
    /// Devices that have not answered.
    in_flight: u32,
    /// Sequence number of the current copy's writes.
    seq: u64,
}

impl RecordWrite {
    /// Returns the copy to write: 0 or 1.
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// Returns the encoded record, page by page.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks_exact(BLOCK_BYTES)
    }
}

/// What to do for the record.
pub(crate) enum RecordStep {
    /// Nothing, or only waiting.
    Nothing,
    /// Compose a record of this generation and write its first copy.
    Compose { generation: u64 },
    /// Write the mirrored copy.
    Write(RecordWrite),
    /// Make a copy durable.
    Flush { seq: u64 },
    /// A version has become durable.
    Durable,
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

    /// Returns the number of the staging area that belongs to the pool.
    pub fn staging_id(&self) -> u64 {
        self.staging_id
    }

    /// Returns the number of openings of the pool so far.
    pub fn openings(&self) -> u64 {
        self.openings
    }

    /// Returns the opening number for the tags of pages, modulo 256.
    pub fn opening(&self) -> u8 {
        self.openings as u8
    }

    /// Returns the generation of the last record written.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Requests that the record is written. Returns the version that will hold the change.
    pub fn change(&mut self) -> RecordVersion {
        self.wanted.0 += 1;
        self.wanted
    }

    /// Like [`RecordWriter::change`], for a change of which devices count: no flush is complete before it is
    /// durable.
    pub fn change_devices(&mut self) -> RecordVersion {
        self.device_change = self.change();
        self.device_change
    }

    pub fn device_change_pending(&self) -> bool {
        self.device_change > self.durable
    }

    /// Returns the pages written so far.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    pub fn is_durable(&self, version: RecordVersion) -> bool {
        self.durable >= version || planted(Bug::RecordUnwritten)
    }

    /// Whether there is nothing to do, and nothing to wait for.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.writing.is_none() && self.wanted <= self.durable
    }

    /// Called when no device is left to write the record to. Returns whether a version was still wanted.
    pub fn give_up(&mut self) -> bool {
        std::mem::replace(&mut self.durable, self.wanted) < self.wanted
    }

    /// Returns what is to be done now that everything up to `flushed_seq` is durable.
    pub fn next(&mut self, flushed_seq: u64) -> RecordStep {
        match self.writing.take() {
            None if self.wanted > self.durable => {
                self.generation += 1;
                RecordStep::Compose { generation: self.generation }
            }
            None => RecordStep::Nothing,
            Some(write) if write.in_flight == 0 && write.seq <= flushed_seq && write.copy == 0 => {
                RecordStep::Write(RecordWrite { copy: 1, ..write })
            }
            Some(write) if write.in_flight == 0 && write.seq <= flushed_seq => {
                self.durable = write.version;
                RecordStep::Durable
            }
            Some(write) => {
                let (is_written, seq) = (write.in_flight == 0, write.seq);
                self.writing = Some(write);
                if is_written { RecordStep::Flush { seq } } else { RecordStep::Nothing }
            }
        }
    }

    /// Returns the write of the first copy of the newest version that was requested.
    pub fn first_copy(&self, record: &PoolRecord, arena: ArenaId) -> RecordWrite {
        RecordWrite { version: self.wanted, copy: 0, bytes: record.encode(arena), in_flight: 0, seq: 0 }
    }

    /// Puts off a write that could not be sent. The write is due again immediately. A first copy is composed again.
    pub fn put_off(&mut self, write: RecordWrite) {
        if write.copy == 1 {
            self.writing = Some(RecordWrite { copy: 0, in_flight: 0, ..write });
        }
    }

    /// Called when a copy was sent to this many devices under this number.
    pub fn sent(&mut self, write: RecordWrite, seq: u64, devices: u32) {
        self.pages += u64::from(devices) * write.pages().len() as u64;
        self.writing = Some(RecordWrite { in_flight: devices, seq, ..write });
    }

    /// Called when a device has answered the write of a copy; returns whether it was the last.
    pub fn answered(&mut self) -> bool {
        let write = self.writing.as_mut().expect("the record is being written");
        write.in_flight -= 1;
        write.in_flight == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_durable_when_both_copies_are() {
        let record = PoolRecord {
            generation: 1,
            staging_id: 1,
            openings: 1,
            clean_stop: false,
            redundancy: false,
            distrust_clean: false,
            flushed_seq: 0,
            devices: Vec::new(),
            disks: Vec::new(),
            crashed_seq: 0,
            stop: haversack_model::Uuid::default(),
        };
        let mut writer = RecordWriter::after(&record);
        let version = writer.change_devices();
        assert!(matches!(writer.next(0), RecordStep::Compose { generation: 2 }));
        let write = writer.first_copy(&record, ArenaId::default());
        writer.sent(write, 5, 1);
        let later = writer.change();
        assert!(matches!(writer.next(5), RecordStep::Nothing), "it is in flight");
        assert!(writer.answered());
        assert!(matches!(writer.next(4), RecordStep::Flush { seq: 5 }));
        let RecordStep::Write(write) = writer.next(5) else { panic!("the second copy is due") };
        assert!(write.copy() == 1 && !writer.is_durable(version) && writer.device_change_pending());
        writer.sent(write, 6, 1);
        writer.answered();
        assert!(matches!(writer.next(6), RecordStep::Durable));
        assert!(writer.is_durable(version) && !writer.is_durable(later) && !writer.device_change_pending());
        assert!(matches!(writer.next(6), RecordStep::Compose { generation: 3 }));
    }
}
