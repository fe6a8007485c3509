//! Transfer frames: memory for data in transit, shared by requests and the core's own work.
//!
//! Invariants
//! - Requests never take the last transfer frames, so the core's own work, which they may wait for, can
//!   proceed.
//! - Requests' I/O with origins never takes more than three quarters of the other transfer frames, so slow
//!   origins do not block hits.
//! - A user that finds no frame is either in the waiting list or noted as starved, and is woken by the next free one.

use std::collections::VecDeque;
use std::ops::Range;

use crate::memory::FrameNo;

/// Transfer frames that requests leave to metadata pages, merges and the cleaner.
pub(crate) const RESERVED_FRAMES: usize = 32;
/// Minimum number of transfer frames, and of staging frames.
pub const MIN_FRAMES: u32 = 64;

/// See the module.
pub(crate) struct TransferFrames {
    free: Vec<FrameNo>,
    /// Frames that requests use for I/O with origins.
    at_origins: usize,
    /// All transfer frames.
    total: usize,
    /// The core's own work was deferred because no frame was free.
    starved: bool,
    /// Requests that wait for frames, oldest first.
    waiters: VecDeque<u32>,
}

/// The user that can proceed since a frame was freed.
pub(crate) struct Freed {
    /// The core's own work that was deferred.
    pub own_work: bool,
    /// The request that has waited the longest.
    pub request: Option<u32>,
}

impl TransferFrames {
    /// Returns these frames, all free.
    pub fn new(frames: Range<u32>) -> TransferFrames {
        TransferFrames {
            total: frames.len(),
            free: frames.rev().map(FrameNo).collect(),
            at_origins: 0,
            starved: false,
            waiters: VecDeque::new(),
        }
    }

    /// Takes a frame for a request, if enough are left for the rest of the core.
    #[inline]
    pub fn take_for_request(&mut self, for_origin: bool) -> Option<FrameNo> {
        if !self.suffices_request(1, for_origin) {
            return None;
        }
        self.at_origins += usize::from(for_origin);
        self.free.pop()
    }

    /// Whether a request may take this many frames, one of them for I/O with an origin.
    #[inline]
    pub fn suffices_request(&self, frames: usize, for_origin: bool) -> bool {
        self.free.len() >= RESERVED_FRAMES + frames && !(for_origin && self.left_for_origins() == 0)
    }

    /// Returns the number of frames that a request may take for I/O with an origin.
    pub fn left_for_request(&self) -> usize {
        self.free.len().saturating_sub(RESERVED_FRAMES).min(self.left_for_origins())
    }

    fn left_for_origins(&self) -> usize {
        ((self.total - RESERVED_FRAMES) * 3 / 4).saturating_sub(self.at_origins)
    }

    /// Returns the number of free frames, for the core's own work.
    pub fn left(&self) -> usize {
        self.free.len()
    }

    /// Takes a frame for the core's own work. If there is none, the work is driven when one is freed.
    pub fn take(&mut self) -> Option<FrameNo> {
        let frame = self.free.pop();
        self.starved |= frame.is_none();
        frame
    }

    /// Whether this many frames are free for the core's own work. If not, the work is driven when one is
    /// freed.
    pub fn suffices(&mut self, frames: usize) -> bool {
        let suffices = self.free.len() >= frames;
        self.starved |= !suffices;
        suffices
    }

    /// Returns a frame.
    #[inline]
    pub fn put(&mut self, frame: FrameNo, for_origin: bool) -> Freed {
        self.free.push(frame);
        self.at_origins -= usize::from(for_origin);
        let request = if self.free.len() > RESERVED_FRAMES { self.waiters.pop_front() } else { None };
        Freed { own_work: std::mem::take(&mut self.starved), request }
    }

    /// Called when a request waits for a frame.
    pub fn wait(&mut self, request: u32) {
        self.waiters.push_back(request);
    }

    /// Returns all requests that wait, oldest first. They do not wait any more.
    pub fn take_waiters(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.waiters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_frames_to_the_core_and_hits() {
        let mut frames = TransferFrames::new(0..64);
        for _ in 0..24 {
            assert!(frames.take_for_request(true).is_some());
        }
        assert!(frames.take_for_request(true).is_none(), "a quarter is for hits");
        for _ in 0..8 {
            assert!(frames.take_for_request(false).is_some());
        }
        assert!(frames.take_for_request(false).is_none() && frames.left() == RESERVED_FRAMES);
        for _ in 0..RESERVED_FRAMES {
            assert!(frames.take().is_some());
        }
        assert!(frames.take().is_none());
    }

    #[test]
    fn a_freed_frame_wakes_a_waiter() {
        let mut frames = TransferFrames::new(0..64);
        let taken: Vec<FrameNo> = std::iter::from_fn(|| frames.take()).collect();
        frames.wait(7);
        let mut freed = taken.into_iter().map(|frame| frames.put(frame, false));
        assert!(freed.next().is_some_and(|f| f.own_work && f.request.is_none()));
        let later: Vec<Freed> = freed.collect();
        assert!(later.iter().all(|f| !f.own_work));
        assert_eq!(later.iter().position(|f| f.request == Some(7)), Some(RESERVED_FRAMES - 1));
    }
}
