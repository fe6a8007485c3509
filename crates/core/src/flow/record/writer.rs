//! The state of writing the record: which version is wanted, which is being written, which is durable.
//!
//! Invariants
//! - A version is durable only after it was written; versions become durable in order.

use crate::format::record::PoolRecord;

/// The state of writing the record. A version is a count of requested changes.
#[derive(Default)]
pub(crate) struct RecordWriter {
    /// Generation of the last record written.
    pub(super) generation: u64,
    /// Which life of the staging area belongs to the pool.
    pub(super) staging_id: u64,
    /// Openings of the pool so far, this one included.
    pub(super) openings: u64,
    /// The newest version that was requested.
    pub(super) wanted: u64,
    /// The newest version that is durable.
    pub(super) durable: u64,
    /// The write in progress.
    pub(super) writing: Option<Writing>,
    /// The newest version that changes which devices count.
    pub(super) device_change: u64,
    /// Pages written so far.
    pub(super) pages: u64,
}

/// A write of the record.
pub(super) struct Writing {
    /// The version that it makes durable.
    pub(super) version: u64,
    /// The copy that is being written: 0 or 1.
    pub(super) copy: u64,
    /// The encoded record, whole pages.
    pub(super) bytes: Vec<u8>,
    /// Devices that have not answered.
    pub(super) in_flight: u32,
    /// Sequence number of the present copy's writes.
    pub(super) seq: u64,
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
