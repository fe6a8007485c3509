//! Calls into the core: requests, completions and the time go in.
//!
//! Each call that may change anything ends in [`Call::settle`], which runs the requests that can proceed and drives the
//! background work of the disks that were affected, until nothing changes any more. Every decision is made from the
//! state, so a missed wake-up can delay work but never corrupt data.
//!
//! Invariants
//! - A request is completed exactly once; an action with an I/O is answered exactly once.
//! - `settle` comes to an end in every call.

use haversack_model::{DiskNo, Micros};

use crate::action::{IoId, Rejected, Request};
use crate::core::Call;
use crate::io::{Io, OriginFlushReason, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use crate::schedule::Work;

/// The most steps of a call into the core. More are taken for an endless loop.
const MOST_STEPS: u32 = 100_000;

impl<M: Memory> Call<'_, M> {
    /// Takes a request. Its completion is reported by an action.
    ///
    /// # Errors
    /// See [`Rejected`]; nothing was started in that case.
    pub fn submit(&mut self, now: Micros, request: Request) -> Result<(), Rejected> {
        self.accept(now, request)?;
        self.settle();
        Ok(())
    }

    /// Reports the result of an action.
    pub fn complete(&mut self, now: Micros, io: IoId, result: Result<(), IoFailure>) {
        self.now = now;
        let done = self.ios.take_out(io.0);
        self.note_latency(&done);
        self.dispatch(&done, result);
        self.ios.end(io.0, done);
        self.settle();
    }

    fn dispatch(&mut self, io: &Io, result: Result<(), IoFailure>) {
        if io.purpose.writes_device()
            && let Some(device) = io.device
        {
            self.devices.written(device);
        }
        match io.purpose {
            Purpose::None => unreachable!("an I/O in flight has a purpose"),
            Purpose::Hit { request } => self.hit_done(io, request, result),
            Purpose::Fill { request } => self.fill_done(io, request, result),
            Purpose::Merge { frame, version, part } => self.merge_done(io, frame, version, part, result),
            Purpose::Commit { batch, copy, seq } => self.commit_done(io, batch, copy, seq, result),
            Purpose::Page { segment, seq } => self.page_done(io, segment, seq, result),
            Purpose::Prepare { seq } => self.prepare_done(io, seq, result),
            Purpose::Flush => self.pool_flush_done(io, result),
            Purpose::Intent { seq } => self.intent_done(io, seq, result),
            Purpose::Record { seq } => self.record_done(io, seq, result),
            Purpose::CleanRead { at, slot } => self.clean_read_done(io, at, slot, result),
            Purpose::CleanWrite => self.clean_write_done(io, result),
            Purpose::Around { request } => self.around_done(io, request, result),
            Purpose::Zero { request } => self.zero_done(io, request, result),
            Purpose::FlushOrigin { reason, changes } => self.origin_flush_done(io, reason, changes, result),
            Purpose::Restage { part } => self.restage_done(io, part, result),
            Purpose::Fetch { block, mask } => self.fetch_done(io, block, mask, result),
            Purpose::Adopt { part } => self.adopt_done(io, part, result),
            Purpose::Late { block, mask } => self.late_done(io, block, mask, result),
        }
    }

    /// Records the latency of an origin I/O: a read, or a write of data from a client or the cleaner.
    fn note_latency(&mut self, io: &Io) {
        let took_us = self.now.saturating_sub(io.sent_us);
        let Some(disk) = io.disk.filter(|disk| self.disks.contains(*disk)) else { return };
        let latency = &mut self.disk_mut(disk).origin_latency;
        match io.purpose {
            Purpose::Fill { .. } => latency.add_read(took_us),
            Purpose::Around { .. } | Purpose::CleanWrite => latency.add_write(took_us),
            _ => {}
        }
    }

    fn origin_flush_done(
        &mut self,
        io: &Io,
        reason: OriginFlushReason,
        changes: u64,
        result: Result<(), IoFailure>,
    ) {
        if result.is_ok() {
            self.disk_mut(io.disk.expect("an origin is of a disk")).origin.flushed(changes);
        }
        match reason {
            OriginFlushReason::Clean => self.clean_flush_done(io, result),
            OriginFlushReason::Zero { request } => self.zero_flush_done(io, request, result),
            OriginFlushReason::Guest => self.guest_flush_done(io, result),
            OriginFlushReason::Settle => self.settle_flush_done(io, result),
            OriginFlushReason::Intent => self.intent_flush_done(io, result),
        }
    }

    /// Advances the time: background work that is due starts.
    pub fn tick(&mut self, now: Micros) {
        self.queue_all();
        self.go_on(now);
    }

    /// Goes on with what earlier calls have left to do, if [`Core::has_steps_left`](crate::Core::has_steps_left).
    pub fn go_on(&mut self, now: Micros) {
        self.now = now;
        let pages = self.config.flush_step_pages;
        self.schedule.allow_pages(pages);
        self.settle();
    }

    /// Does everything that can be done now.
    pub(crate) fn settle(&mut self) {
        let mut steps = 0u32;
        self.schedule.begin_call();
        loop {
            steps += 1;
            assert!(steps < MOST_STEPS, "a call into the core comes to an end");
            match self.schedule.next() {
                Some(Work::Request(request)) => self.pump(request),
                Some(Work::Disk(disk)) if self.disks.contains(disk) => self.drive(disk),
                Some(Work::Disk(_)) => {}
                None if self.drive_pool() || self.wake_stranded() => {}
                None => break,
            }
        }
    }

    // Not inlined, to keep `settle` small for cache hits.
    #[inline(never)]
    fn drive(&mut self, disk: DiskNo) {
        self.drive_intents(disk);
        self.drive_rewrites(disk);
        self.drive_restage(disk);
        self.drive_commit(disk);
        self.drive_flush(disk);
        self.drive_cleaner(disk);
        if self.disk(disk).moving.is_some() && !self.pool.rests() {
            self.drive_fetch(disk);
            self.drive_late(disk);
            self.drive_forgetting(disk);
        }
        self.drive_job(disk);
    }

    fn drive_pool(&mut self) -> bool {
        self.drive_leaving()
            | self.drive_purge()
            | self.drive_prepare()
            | self.drive_record()
            | self.drive_gathering()
            | self.drive_reclaim()
            | self.drive_pool_job()
            | self.drive_mark()
            | self.drive_pool_flush()
            | self.drive_flushed()
    }
}
