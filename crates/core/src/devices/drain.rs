//! How far a device that is being removed has been emptied. The flow is `flow/drain.rs`.
//!
//! Invariants
//! - Each segment of the device is started once.
//! - At most [`SEGMENTS_AT_A_TIME`] segments are started and not free yet.

use haversack_model::DeviceNo;

use crate::store::Store;
use crate::store::segment::{SegmentNo, SegmentState};

/// Segments that are emptied at a time: fewer than the devices of the crash simulator have.
const SEGMENTS_AT_A_TIME: usize = 4;

/// See the module.
#[derive(Default)]
pub(crate) struct Drain {
    /// Number of the device's segments that have been started.
    begun: usize,
    /// Segments that were started and are not free yet.
    segments: Vec<SegmentNo>,
}

impl Drain {
    /// Starts as many of the device's segments as may be emptied at a time.
    pub fn begin_segments(&mut self, store: &Store, device: DeviceNo) {
        let mut left = store.numbers_on(device).skip(self.begun);
        while self.segments.len() < SEGMENTS_AT_A_TIME
            && let Some(segment) = left.next()
        {
            self.begun += 1;
            if store.segments[segment].state != SegmentState::Free {
                self.segments.push(segment);
            }
        }
    }

    /// Takes out the segments that were started; those that are not free yet are put back.
    pub fn take_segments(&mut self) -> Vec<SegmentNo> {
        std::mem::take(&mut self.segments)
    }

    /// See [`Drain::take_segments`].
    pub fn put_segments(&mut self, segments: Vec<SegmentNo>) {
        debug_assert!(self.segments.is_empty(), "the segments were taken out");
        self.segments = segments;
    }

    /// Whether no segment is left that was started and is not free.
    pub fn is_done(&self) -> bool {
        self.segments.is_empty()
    }
}
