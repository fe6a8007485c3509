//! Preparing segments for use, ahead of need: their blank metadata pages are written and made durable, the record
//! says so, and only then may a disk take them. So a pool is created and an unused part of it opened without
//! touching its segments (lazy initialisation).
//!
//! Recovery reads only the pages of prepared segments. A page of a prepared segment that does not verify is
//! damaged; the content of the other segments is older than the pool and is ignored.
//!
//! Invariants
//! - A segment is used only when the record durably lists it as prepared, and the record does so only when
//!   both of its pages are durable.
//! - The core does not stop, and a device is not removed, before these writes have completed: none may
//!   complete during a later opening.

use haversack_model::DeviceNo;

use crate::bugs::{Bug, planted};
use crate::core::{Call, Core};
use crate::devices::preparation::{Run, Step};
use crate::format::geometry::{self, PAGE_BYTES};
use crate::format::page::{self, Header, Kind, NO_OWNER, Place};
use crate::io::{Io, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;

/// Segments whose pages are written at a time.
const SEGMENTS_AT_A_TIME: u32 = 8;

impl Core {
    /// Whether segments are being prepared.
    pub(crate) fn is_preparing(&self) -> bool {
        self.devices.preparation.run.is_some()
    }

    /// Returns the next segments to prepare: on a device that has few free prepared ones.
    fn next_to_prepare(&self) -> Option<Run> {
        let most = self.config.prepare_segments.max(1);
        let wants = |device: DeviceNo| {
            let space = self.store.devices[device].as_ref()?;
            let few = space.free_segments.len() <= most as usize / 2;
            let end = space.segments.min(space.prepared + most);
            let segments = space.prepared..end;
            let step = Step::Write { seq: 0, in_flight: 0 };
            (few && !segments.is_empty()).then_some(Run { device, next: segments.start, segments, step })
        };
        self.store.usable_devices().find_map(wants)
    }
}

impl<M: Memory> Call<'_, M> {
    /// Advances the preparation of segments. Returns true if anything was done.
    pub(crate) fn drive_prepare(&mut self) -> bool {
        let Some(run) = self.devices.preparation.run.take() else {
            if self.pool.rests() || !std::mem::take(&mut self.store.free_changed) {
                return false;
            }
            let next = self.next_to_prepare();
            if planted(Bug::UseUnprepared)
                && let Some(run) = next
            {
                self.store.prepared(run.device, run.segments.end);
                return true;
            }
            self.devices.preparation.run = next;
            return self.is_preparing();
        };
        let (device, step) = (run.device, run.step);
        self.devices.preparation.run = Some(run);
        match step {
            Step::Write { in_flight: 1.., .. } => false,
            Step::Write { .. } if self.write_blank_pages() => true,
            Step::Write { seq, .. } => self.record_prepared(seq),
            Step::Record(version) if self.durability.is_recorded(version) => {
                let run = self.devices.preparation.run.take().expect("it is at its last step");
                self.store.prepared(device, run.segments.end);
                self.wake_around_all();
                true
            }
            Step::Record(_) => false,
        }
    }

    /// Writes the blank pages of some segments. Returns false if none are left, or there are not enough frames.
    fn write_blank_pages(&mut self) -> bool {
        let run = self.devices.preparation.run.as_ref().expect("segments are being prepared");
        let (device, left) = (run.device, run.next..run.segments.end);
        let some = left.start..left.end.min(left.start + SEGMENTS_AT_A_TIME);
        if some.is_empty() || planted(Bug::PrepareNothing) || !self.frames.suffices(2 * some.len()) {
            return false;
        }
        let seq = self.durability.take(some.len() as u32);
        for segment in some.clone() {
            self.write_blank_pair(device, segment, seq);
        }
        let run = self.devices.preparation.run.as_mut().expect("segments are being prepared");
        (run.next, run.step) = (some.end, Step::Write { seq, in_flight: some.len() as u32 });
        true
    }

    fn write_blank_pair(&mut self, device: DeviceNo, segment: u32, seq: u64) {
        let opening = self.durability.record.opening();
        let offset_bytes = geometry::metadata_bytes(segment, 0);
        let io = self.new_io(Purpose::Prepare { seq });
        for generation in 0..2 {
            let frame = self.frames.take().expect("frames were counted");
            let offset_bytes = offset_bytes + generation * PAGE_BYTES;
            let place = Place { device_seed: self.devices.seed(device), offset_bytes };
            let header = Header { generation, flushed_seq: 0, owner: NO_OWNER, kind: Kind::Segment, opening };
            page::seal(self.memory.frame_mut(frame), header, &[], place);
            self.ios[io].frames.push(frame);
        }
        self.write_device(io, device, offset_bytes);
    }

    /// Requests a record that lists the segments as prepared, once all of their pages are durable.
    fn record_prepared(&mut self, seq: u64) -> bool {
        let run = self.devices.preparation.run.as_ref().expect("segments are being prepared");
        let unwritten = run.next < run.segments.end && !planted(Bug::PrepareNothing);
        if unwritten || !self.durability.want(seq) {
            return false;
        }
        let version = self.change_record();
        let run = self.devices.preparation.run.as_mut().expect("segments are being prepared");
        run.step = Step::Record(version);
        true
    }

    pub(crate) fn prepare_done(&mut self, io: &Io, seq: u64, result: Result<(), IoFailure>) {
        let device = io.device.expect("pages are on a device");
        for frame in &io.frames {
            self.free_frame(*frame, false);
        }
        self.sequence_done(seq);
        self.devices.preparation.answered(device, seq);
        if result.is_err() {
            self.device_failed(device);
        }
    }
}
