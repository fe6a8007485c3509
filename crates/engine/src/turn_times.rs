//! How long a reactor's turns take. During a turn other clients are not served.
//!
//! A very long turn is logged, with what the thread did in it: computing, waiting in the kernel, or waiting for
//! pages. The thread's counters are read only from time to time, so the logged values may include some time
//! before the turn.

use haversack_model::Micros;

use crate::histogram::Histogram;
use crate::load::{Load, Totals};
use crate::processor_wait::ProcessorWait;

/// A turn of this length is logged.
const LONG_US: Micros = 250_000;
/// Turns without work are counted only from this length on: a polling reactor makes millions of them.
const IDLE_US: Micros = 1_000;
/// How often the thread's counters are read.
const USAGE_US: Micros = 10_000;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct TurnTimes {
    /// The durations of turns.
    pub took: Histogram,
    /// When the current turn began.
    began_us: Option<Micros>,
    worked: bool,
    /// Requests of guests that were answered.
    pub requests: u64,
    load: Load,
    usage: Usage,
    usage_us: Micros,
    /// The time without a processor. Includes sleeps, since the thread may wake up late.
    pub processor: ProcessorWait,
}

/// Counters of the calling thread.
#[derive(Clone, Copy, Default)]
struct Usage {
    processor_us: Micros,
    /// Page faults that needed I/O.
    faults: u64,
    /// How often it waited, and how often it was preempted.
    waits: u64,
    preemptions: u64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: all zeroes is a valid rusage, and the call fills it.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the struct lives through the call, which cannot fail for the calling thread.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        let us = |time: libc::timeval| time.tv_sec as Micros * 1_000_000 + time.tv_usec as Micros;
        Usage {
            processor_us: us(usage.ru_utime) + us(usage.ru_stime),
            faults: usage.ru_majflt as u64,
            waits: usage.ru_nvcsw as u64,
            preemptions: usage.ru_nivcsw as u64,
        }
    }
}

impl TurnTimes {
    /// Begins a turn, and ends the one before it if there was one.
    pub fn next(&mut self, now: Micros) {
        if let Some(began_us) = self.began_us.replace(now) {
            self.ended(now.saturating_sub(began_us));
        }
        self.processor.look(now);
        let occupied_us = self.took.sum_us() + self.processor.total_us;
        self.load.note(now, Totals { occupied_us, requests: self.requests });
        if now >= self.usage_us {
            (self.usage, self.usage_us) = (Usage::now(), now + USAGE_US);
        }
        self.worked = false;
    }

    /// Whether guests leave little time for copies.
    pub fn is_busy(&self) -> bool {
        self.load.is_busy()
    }

    /// Records that the current turn has found work.
    pub fn worked(&mut self) {
        self.worked = true;
    }

    /// Ends the turn because the reactor sleeps; the sleep is not part of a turn.
    pub fn sleep(&mut self, now: Micros) {
        if let Some(began_us) = self.began_us.take() {
            self.ended(now.saturating_sub(began_us));
        }
        // The counters' changes during the sleep must not be logged with a turn.
        self.usage_us = 0;
    }

    fn ended(&mut self, took_us: Micros) {
        if self.worked || took_us >= IDLE_US {
            self.took.record(took_us);
        }
        if took_us >= LONG_US {
            let (before, now) = (self.usage, Usage::now());
            tracing::warn!(
                took_us,
                processor_us = now.processor_us - before.processor_us,
                page_faults = now.faults - before.faults,
                waits = now.waits - before.waits,
                preemptions = now.preemptions - before.preemptions,
                "the pool's thread was blocked for a while"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_with_work_count_and_idle_ones_only_when_they_are_long() {
        let mut turns = TurnTimes::default();
        turns.next(100);
        turns.worked();
        turns.next(150);
        turns.next(151);
        assert_eq!((turns.took.count(), turns.took.sum_us()), (1, 50));
        turns.sleep(5_151);
        assert_eq!((turns.took.count(), turns.took.sum_us()), (2, 5_050));
        turns.next(9_000_000);
        turns.next(9_400_000);
        assert_eq!((turns.took.count(), turns.took.sum_us()), (3, 405_050), "the sleep is not a turn");
    }
}
