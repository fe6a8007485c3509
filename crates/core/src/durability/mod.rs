//! What is durable on the cache devices: sequence numbers of writes, the pool's flush, flush marks, and versions
//! of the record.
//!
//! Each commit, page, write-intent bitmap and record that is written gets the next sequence number. At most one flush
//! of all devices is in flight. It makes everything durable that was completed when it started, no matter
//! which disk asked for it.
//!
//! Flush marks: pages and the record say up to which number everything was durable when they were written. Recovery
//! trusts commits up to the highest mark; a newer commit that does not verify counts as torn by a power loss. So that
//! damage at rest is not mistaken for tearing, a commit is marked soon after its flush: by the next page that is
//! written anyway, or by a page written only for the mark. A mark covers every device of the pool. A failed device is
//! not flushed any more, but may return after a crash: until the record says that the device is gone, the mark does not
//! advance.
//!
//! Invariants
//! - A number is completed only when all I/Os of it and of all numbers before it are: what is durable is a
//!   prefix.
//! - A number is durable only if a flush of every device that was written to started after it was completed,
//!   and has ended.
//! - The durable number never decreases, and no number is handed out twice. After a large flush it advances in steps, so
//!   that the tables are never brought up to date for all of it at once.
//! - No mark covers a write that a device of the pool may have lost, unless the record says that the device
//!   is gone.
//! - While a flushed commit is not durably marked, a time is set at which its mark will be written, unless no
//!   segment could carry it when it was last due.

pub(crate) mod record;
mod sequence;

use std::collections::VecDeque;

use haversack_model::Micros;

use crate::bugs::{Bug, planted};
use crate::format::record::PoolRecord;
use record::{RecordStep, RecordVersion, RecordWriter};
use sequence::Sequence;

/// See the module.
pub(crate) struct Durability {
    sequence: Sequence,
    /// Everything up to this sequence number is durable.
    flushed: u64,
    /// Everything up to this sequence number should become durable.
    wanted: u64,
    /// The flush in flight.
    flush: Option<Flush>,
    /// A flush has ended that made everything up to this number durable, and `flushed` is on its way there.
    ended: Option<u64>,
    /// Flushes of the pool so far.
    flushes: u64,
    mark: FlushMark,
    /// See [`PoolRecord::crashed_seq`].
    crashed_seq: u64,
    /// The versions of the record.
    pub record: RecordWriter,
}

/// A flush of the pool that is in flight.
struct Flush {
    /// The sequence number up to which it makes everything durable.
    covers: u64,
    /// Devices that have not answered, plus one while the flush is being sent.
    in_flight: u32,
}

/// Which commits are durably marked as flushed.
#[derive(Default)]
struct FlushMark {
    /// Sequence number of the newest commit.
    newest_commit: u64,
    /// The highest mark that is durable.
    durable: u64,
    /// Marks in flight: the number of the write that carries it, and the mark.
    carried: VecDeque<(u64, u64)>,
    /// No mark is higher than this while a device is leaving.
    held_at: Option<u64>,
    /// When a mark must be written on its own.
    due_us: Option<Micros>,
}

impl FlushMark {
    /// Called when everything up to a number is durable.
    fn flushed(&mut self, seq: u64, due_us: Micros) {
        while let Some((_, mark)) = self.carried.front().filter(|c| c.0 <= seq) {
            self.durable = *mark;
            self.carried.pop_front();
        }
        let behind = self.durable < self.newest_commit.min(seq);
        self.due_us = behind.then(|| self.due_us.unwrap_or(due_us));
    }
}

impl Durability {
    /// Returns the state after recovery: everything up to `flushed` is durable, and the record says what else
    /// is.
    pub fn after_recovery(flushed: u64, record: &PoolRecord) -> Durability {
        Durability {
            record: RecordWriter::after(record),
            crashed_seq: record.crashed_seq,
            ..Durability::flushed_and_marked(flushed, record.flushed_seq)
        }
    }

    /// Returns the state in which everything up to `flushed` is durable, and the devices say so up to
    /// `marked`.
    fn flushed_and_marked(flushed: u64, marked: u64) -> Durability {
        Durability {
            sequence: Sequence::starting_at(flushed + 1),
            flushed,
            wanted: 0,
            flush: None,
            ended: None,
            flushes: 0,
            mark: FlushMark { newest_commit: flushed, durable: marked, ..FlushMark::default() },
            crashed_seq: 0,
            record: RecordWriter::default(),
        }
    }

    /// See [`PoolRecord::crashed_seq`].
    pub fn crashed_seq(&self) -> u64 {
        self.crashed_seq
    }

    /// Takes a new number for a write of `ios` I/Os. More may be added with [`Durability::expect_io`] in the
    /// same call.
    pub fn take(&mut self, ios: u32) -> u64 {
        self.sequence.take(ios)
    }

    /// Takes a new number for a commit. Once it is durable, it must be marked as such.
    pub fn take_commit(&mut self) -> u64 {
        self.mark.newest_commit = self.sequence.take(0);
        self.mark.newest_commit
    }

    /// Adds one I/O to a number that was just taken.
    pub fn expect_io(&mut self, seq: u64) {
        self.sequence.expect(seq, 1);
    }

    /// Called when one I/O of a number is completed; returns whether it was the last.
    pub fn done(&mut self, seq: u64) -> bool {
        self.sequence.done(seq)
    }

    /// Returns the last number such that it and all before it are completed.
    pub fn completed(&self) -> u64 {
        self.sequence.completed()
    }

    /// Returns the last number handed out.
    pub fn last(&self) -> u64 {
        self.sequence.last()
    }

    /// Returns the number up to which everything is durable.
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    pub fn is_durable(&self, seq: u64) -> bool {
        seq <= self.flushed
    }

    /// Whether a version of the record is durable.
    pub fn is_recorded(&self, version: RecordVersion) -> bool {
        self.record.is_durable(version)
    }

    /// Returns what to do for the record.
    pub fn next_for_record(&mut self) -> RecordStep {
        self.record.next(self.flushed)
    }

    /// Requests that everything up to a number becomes durable; returns whether it already is.
    pub fn want(&mut self, seq: u64) -> bool {
        self.wanted = self.wanted.max(seq);
        self.is_durable(seq)
    }

    /// Requests that everything completed, and everything up to a number that need not be completed yet, becomes
    /// durable. Returns whether all of it already is.
    pub fn want_completed_and(&mut self, seq: u64) -> bool {
        self.want(seq.max(self.completed()))
    }

    /// Requests that everything completed becomes durable; returns whether it already is.
    pub fn want_completed(&mut self) -> bool {
        self.want(self.completed())
    }

    /// Starts a flush of the pool if one is wanted and would make anything durable. The caller then sends it
    /// to the devices and finally calls [`Durability::flush_answered`] once for itself.
    #[inline]
    pub fn start_flush(&mut self) -> bool {
        let completed = if planted(Bug::FlushCoversRunning) { self.last() } else { self.completed() };
        if self.flush.is_some()
            || self.ended.is_some()
            || self.wanted <= self.flushed
            || completed <= self.flushed
        {
            return false;
        }
        self.flush = Some(Flush { covers: completed, in_flight: 1 });
        self.flushes += 1;
        true
    }

    /// Called when the flush was sent to a device.
    pub fn flush_sent(&mut self) {
        self.flush.as_mut().expect("a flush is under way").in_flight += 1;
    }

    /// Called when a device has answered. If it was the last, the flush has ended; returns whether it was.
    pub fn flush_answered(&mut self) -> bool {
        let flush = self.flush.as_mut().expect("a flush is under way");
        flush.in_flight -= 1;
        if flush.in_flight > 0 {
            return false;
        }
        self.ended = Some(flush.covers);
        self.flush = None;
        true
    }

    /// Returns the number that a flush has made durable, if [`Durability::flushed`] has not come to it yet.
    pub fn ended_flush(&self) -> Option<u64> {
        self.ended
    }

    /// Advances [`Durability::flushed`] to a number that an ended flush covers. Commits that are not marked then are due
    /// to be marked at `mark_due_us`.
    pub fn advance(&mut self, seq: u64, mark_due_us: Micros) {
        assert!(self.ended.is_some_and(|ended| seq <= ended), "a flush has covered {seq}");
        self.ended = self.ended.filter(|ended| *ended > seq);
        self.flushed = seq;
        self.mark.flushed(seq, mark_due_us);
    }

    /// Returns the number of flushes of the pool so far.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Returns the current flush mark.
    pub fn mark(&self) -> u64 {
        let flushed = if planted(Bug::MarkUnflushed) { self.completed() } else { self.flushed };
        self.mark.held_at.unwrap_or(flushed)
    }

    /// Stops the mark from advancing: a device is leaving and is not flushed any more.
    pub fn hold_mark(&mut self) {
        self.mark.held_at.get_or_insert(self.flushed);
    }

    /// Lets the mark advance again: no device is leaving.
    pub fn release_mark(&mut self) {
        self.mark.held_at = None;
    }

    /// Whether the mark is held.
    pub fn is_mark_held(&self) -> bool {
        self.mark.held_at.is_some()
    }

    /// Called when the write with this number carries the current flush mark; returns the mark.
    pub fn carry_mark(&mut self, seq: u64) -> u64 {
        let (mark, carried) = (self.mark(), &mut self.mark.carried);
        if mark > carried.back().map_or(self.mark.durable, |c| c.1) {
            carried.push_back((seq, mark));
        }
        mark
    }

    /// Returns the number up to which commits are durable and durably marked as such.
    pub fn marked(&self) -> u64 {
        self.mark.durable
    }

    /// Returns when a mark must be written on its own.
    pub fn mark_due_us(&self) -> Option<Micros> {
        self.mark.due_us
    }

    /// Called when the mark is about to be written. It is due again at `due_us` unless it is durable by then.
    pub fn put_off_mark(&mut self, due_us: Option<Micros>) {
        self.mark.due_us = due_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flushes what is completed, and takes it into account at once.
    fn end_flush(d: &mut Durability) {
        assert!(d.start_flush() && d.flush_answered());
        let ended = d.ended_flush().expect("a flush has ended");
        d.advance(ended, 7);
    }

    #[test]
    fn a_large_flush_is_taken_into_account_in_steps() {
        let mut d = Durability::flushed_and_marked(0, 0);
        let (first, second) = (d.take(1), d.take(1));
        d.done(first);
        d.done(second);
        d.want_completed();
        assert!(d.start_flush() && d.flush_answered());
        d.advance(first, 7);
        assert!(d.is_durable(first) && !d.is_durable(second));
        assert_eq!(d.ended_flush(), Some(second));
        d.want(second + 1);
        assert!(!d.start_flush(), "the last flush is still being taken into account");
        d.advance(second, 7);
        assert!(d.is_durable(second) && d.ended_flush().is_none());
    }

    #[test]
    fn a_flush_covers_what_was_completed_when_it_started() {
        let mut d = Durability::flushed_and_marked(10, 10);
        let (first, second) = (d.take(1), d.take(1));
        assert!(!d.want(second) && !d.start_flush(), "nothing is completed");
        d.done(first);
        assert!(d.start_flush() && !d.start_flush(), "one at a time");
        d.flush_sent();
        d.done(second);
        assert!(!d.flush_answered() && d.flush_answered());
        assert_eq!(d.ended_flush(), Some(first));
        d.advance(first, 0);
        assert!(d.is_durable(first) && !d.is_durable(second));
        end_flush(&mut d);
        assert!(d.want(second) && !d.start_flush() && d.flushes() == 2);
    }

    #[test]
    fn a_flushed_commit_is_due_to_be_marked_until_a_durable_write_says_so() {
        let mut d = Durability::flushed_and_marked(0, 0);
        let flush = |d: &mut Durability| {
            d.want_completed();
            end_flush(d);
        };
        let commit = d.take_commit();
        d.expect_io(commit);
        d.done(commit);
        flush(&mut d);
        assert_eq!((d.marked(), d.mark_due_us()), (0, Some(7)));
        let page = d.take(1);
        assert_eq!(d.carry_mark(page), commit);
        d.done(page);
        flush(&mut d);
        assert_eq!((d.marked(), d.mark_due_us()), (commit, None));
    }

    #[test]
    fn a_mark_does_not_cover_what_a_leaving_device_may_have_lost() {
        let mut d = Durability::flushed_and_marked(3, 3);
        let commit = d.take_commit();
        d.expect_io(commit);
        d.done(commit);
        d.hold_mark();
        d.want_completed();
        end_flush(&mut d);
        d.hold_mark();
        assert!(d.is_durable(commit) && d.mark() == 3, "the flush did not reach the device");
        let page = d.take(1);
        assert_eq!(d.carry_mark(page), 3);
        d.release_mark();
        let page = d.take(1);
        assert_eq!(d.carry_mark(page), commit);
    }
}
