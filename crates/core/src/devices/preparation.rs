//! Segments of a device that are being prepared for use: blank metadata pages are written to them, and then the
//! record says that they are prepared. The flow is `flow/prepare.rs`.
//!
//! Invariants
//! - Segments of one device at a time are prepared.
//! - The record calls segments prepared only when their blank pages are durable.

use std::ops::Range;

use haversack_model::DeviceNo;

use crate::durability::record::RecordVersion;

/// How far the segments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Pages are being written: the number of the last ones and how many are in flight.
    Write {
        /// The sequence number of the last pages that were sent.
        seq: u64,
        /// Writes that were not answered.
        in_flight: u32,
    },
    /// All pages are durable. This version of the record says so.
    Record(RecordVersion),
}

/// Segments that are being prepared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub device: DeviceNo,
    /// Their numbers on the device.
    pub segments: Range<u32>,
    /// The first one whose pages were not sent yet.
    pub next: u32,
    pub step: Step,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Preparation {
    /// The segments of the device whose turn it is.
    pub run: Option<Run>,
}

impl Preparation {
    /// Returns the new number of prepared segments of a device for the next record, if that number is about to change.
    pub fn prepared(&self, device: DeviceNo) -> Option<u32> {
        let run = self.run.as_ref().filter(|run| run.device == device)?;
        matches!(run.step, Step::Record(_)).then_some(run.segments.end)
    }

    /// Whether segments of a device are being prepared.
    pub fn is_of(&self, device: DeviceNo) -> bool {
        self.run.as_ref().is_some_and(|run| run.device == device)
    }

    /// Called when a write of pages was answered.
    pub fn answered(&mut self, device: DeviceNo, number: u64) {
        if let Some(run) = self.run.as_mut().filter(|run| run.device == device)
            && let Step::Write { seq, in_flight } = &mut run.step
            && *seq == number
        {
            *in_flight -= 1;
        }
    }

    /// Stops preparing segments of a device that is no longer used.
    pub fn device_failed(&mut self, device: DeviceNo) {
        self.run.take_if(|run| run.device == device);
    }
}
