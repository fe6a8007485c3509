//! How long a reactor's turns take: meanwhile it serves nobody.
//!
//! A turn that takes very long is told of, with what the thread did: computing, waiting in the kernel, waiting for pages.
//! The thread's counters are asked for now and then, so what they say may include a moment before the turn.

use haversack_model::Micros;

use crate::histogram::Histogram;
use crate::processor_wait::ProcessorWait;

/// A turn of this length is told of.
const LONG_US: Micros = 250_000;
/// TurnTimes without work are counted from this length on: a reactor that looks for work makes millions.
const IDLE_US: Micros = 1_000;
/// How often the thread's counters are asked for.
const USAGE_US: Micros = 10_000;

/// See the module.
#[derive(Default)]
pub(crate) struct TurnTimes {
    /// What turns took.
    pub took: Histogram,
    /// When the turn began that has not ended.
    began_us: Option<Micros>,
    worked: bool,
    usage: Usage,
    usage_us: Micros,
    /// The time without a processor, sleeps included: it may be needed and come late.
    pub processor: ProcessorWait,
}

/// Counters of the calling thread.
#[derive(Clone, Copy, Default)]
struct Usage {
    processor_us: Micros,
    /// Pages that had to be read from somewhere.
    faults: u64,
    /// How often it waited, and how often others had the processor.
    waits: u64,
    preemptions: u64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: all zero is a valid rusage, and the call fills it.
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
    /// A turn begins, and the one before it, if there was one, ends.
    pub fn next(&mut self, now: Micros) {
        if let Some(began_us) = self.began_us.replace(now) {
            self.ended(now.saturating_sub(began_us));
        }
        self.processor.look(now);
        if now >= self.usage_us {
            (self.usage, self.usage_us) = (Usage::now(), now + USAGE_US);
        }
        self.worked = false;
    }

    /// The present turn has found work.
    pub fn worked(&mut self) {
        self.worked = true;
    }

    /// The reactor sleeps now; that is no part of a turn.
    pub fn sleep(&mut self, now: Micros) {
        if let Some(began_us) = self.began_us.take() {
            self.ended(now.saturating_sub(began_us));
        }
        // What the counters say of the sleep is of no interest.
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
                "the pool's thread served nobody for a while"
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
        assert_eq!((turns.took.count(), turns.took.sum_us()), (3, 405_050), "the sleep is none");
    }
}
