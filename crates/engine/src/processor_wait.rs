//! How long the reactor's thread was ready to run but had no processor. On an overloaded host it runs late, and
//! no other figure shows why. The kernel counts this for each thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use haversack_model::Micros;

use crate::slow::Slow;

/// How often the kernel's counter is read.
const LOOK_US: Micros = 10_000;
/// A wait of this length between two readings is logged.
const LONG_US: Micros = 250_000;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ProcessorWait {
    /// The calling thread's counters; `None` before the first reading, or where the kernel has none.
    counters: Option<File>,
    looked: bool,
    next_us: Micros,
    /// Total wait up to the last reading.
    pub total_us: Micros,
    slow: Slow,
}

/// Parses the time waited, the second field of "ran waited slices" in nanoseconds.
fn parse(text: &[u8]) -> Option<Micros> {
    let waited_ns: u64 = std::str::from_utf8(text).ok()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(waited_ns / 1000)
}

impl ProcessorWait {
    /// Reads the counter if it is time to. Always called by the same thread.
    pub fn look(&mut self, now: Micros) {
        if now < self.next_us {
            return;
        }
        self.next_us = now + LOOK_US;
        let is_first = !std::mem::replace(&mut self.looked, true);
        if is_first {
            self.counters = File::open("/proc/thread-self/schedstat").ok();
        }
        let mut text = [0; 64];
        let read = self.counters.as_ref().and_then(|counters| counters.read_at(&mut text, 0).ok());
        let Some(total_us) = read.and_then(|bytes| parse(&text[..bytes])) else { return };
        let waited_us = total_us.saturating_sub(std::mem::replace(&mut self.total_us, total_us));
        if waited_us >= LONG_US
            && !is_first
            && let Some((count, worst_us)) = self.slow.note(Instant::now(), waited_us)
        {
            tracing::warn!(
                count,
                worst_us,
                "the pool's thread waited for a processor: the host is overloaded"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_processor_is_counted() {
        assert_eq!(parse(b"12000 34000 7\n"), Some(34));
        assert_eq!(parse(b"0 0\n"), Some(0));
        assert_eq!(parse(b"0"), None);
        let mut wait = ProcessorWait::default();
        wait.look(0);
        assert!(wait.counters.is_some(), "the kernel tells nothing");
        // More threads than processors, this one among them.
        let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
        let spin = move || while std::time::Instant::now() < end {};
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let others: Vec<_> = (0..4 * processors).map(|_| std::thread::spawn(spin)).collect();
        let before_us = wait.total_us;
        spin();
        wait.look(1_000_000);
        assert!(wait.total_us > before_us, "{wait:?}");
        others.into_iter().for_each(|other| other.join().unwrap());
    }
}
