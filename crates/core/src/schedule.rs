//! What the core does next: actions for the driver, requests to run, disks to drive.
//!
//! Invariants
//! - Actions, requests and disks are each taken in the order in which they were added.
//! - A disk is queued at most once.

use std::collections::VecDeque;

use haversack_model::DiskNo;

use crate::action::Action;
use crate::bugs::{Bug, planted};
use crate::table::Table;

/// See the module.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Actions that the driver has not taken yet.
    actions: VecDeque<Action>,
    /// Requests to run.
    ready: VecDeque<u32>,
    /// Disks whose background work must be driven.
    touched: VecDeque<DiskNo>,
    /// Whether each disk is in `touched`.
    is_touched: Table<DiskNo, bool>,
    /// Requests that wait for staging frames, oldest first.
    staging_waiters: VecDeque<u32>,
    /// Requests in flight that are parts of other disks' requests.
    children: usize,
    /// In this call, waiters have been woken although nothing is in flight.
    woke_stranded: bool,
    /// The number of durable pages that may come into effect in this call.
    pages: usize,
    /// In this call, a step has been made with the segments of a lost device or of a forgotten disk.
    stepped: bool,
}

/// What to do next.
pub(crate) enum Work {
    /// Run a request.
    Request(u32),
    /// Drive the background work of a disk.
    Disk(DiskNo),
}

impl Schedule {
    /// Adds an action for the driver.
    #[inline]
    pub fn emit(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Returns the next action to carry out.
    #[inline]
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the number of requests in flight that are parts of other disks' requests.
    pub fn children(&self) -> usize {
        self.children
    }

    /// Called when a request starts that is part of another one.
    pub fn child_started(&mut self) {
        self.children += 1;
    }

    /// Called when a request that is part of another one has ended.
    pub fn child_ended(&mut self) {
        self.children -= 1;
    }

    /// Queues a request to run.
    #[inline]
    pub fn enqueue(&mut self, request: u32) {
        self.ready.push_back(request);
    }

    /// Queues a disk, so that its background work is driven.
    pub fn queue_disk(&mut self, disk: DiskNo) {
        self.is_touched.reach(disk, || false);
        if !std::mem::replace(&mut self.is_touched[disk], true) {
            self.touched.push_back(disk);
        }
    }

    /// Returns what to do next: requests first.
    #[inline]
    pub fn next(&mut self) -> Option<Work> {
        if let Some(request) = self.ready.pop_front() {
            return Some(Work::Request(request));
        }
        let disk = self.touched.pop_front()?;
        self.is_touched[disk] = false;
        Some(Work::Disk(disk))
    }

    /// Called when a call into the core begins.
    #[inline]
    pub fn begin_call(&mut self) {
        (self.woke_stranded, self.stepped) = (false, false);
        self.allow_pages(1);
    }

    /// Allows at least this many durable pages to come into effect in this call.
    #[inline]
    pub fn allow_pages(&mut self, pages: usize) {
        self.pages = self.pages.max(pages);
    }

    /// Returns how many durable pages may come into effect now, the first time in a call, and then 0.
    pub fn take_pages(&mut self) -> usize {
        std::mem::take(&mut self.pages)
    }

    /// Returns true the first time in a call: a step may be made with the segments of a lost device or of a
    /// forgotten disk.
    pub fn may_step(&mut self) -> bool {
        !std::mem::replace(&mut self.stepped, true)
    }

    /// Returns true the first time in a call: stranded requests may be woken once.
    #[inline]
    pub fn may_wake_stranded(&mut self) -> bool {
        !std::mem::replace(&mut self.woke_stranded, true)
    }

    /// Called when a request waits for staging frames.
    pub fn wait_for_staging(&mut self, request: u32) {
        if !planted(Bug::ForgetWaiter) {
            self.staging_waiters.push_back(request);
        }
    }

    /// Whether any request waits for staging frames.
    pub fn waits_for_staging(&self) -> bool {
        !self.staging_waiters.is_empty()
    }

    /// Returns the request that has waited the longest for a staging frame. It does not wait any more.
    pub fn next_for_staging(&mut self) -> Option<u32> {
        self.staging_waiters.pop_front()
    }
}
