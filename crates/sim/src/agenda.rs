//! What is to happen in a simulated world, in the order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The planned events. Those of the same time happen in the order in which they were planned.
pub struct Agenda<T> {
    events: BinaryHeap<Event<T>>,
    planned: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda::new()
    }
}

impl<T> Agenda<T> {
    /// Returns an empty agenda.
    pub fn new() -> Agenda<T> {
        Agenda { events: BinaryHeap::new(), planned: 0 }
    }

    /// Plans an event.
    pub fn plan(&mut self, time_ns: u64, what: T) {
        self.planned += 1;
        self.events.push(Event { time_ns, number: self.planned, what });
    }

    /// Returns the time of the next event.
    pub fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|event| event.time_ns)
    }

    /// Removes the next event, and returns it with its time.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        self.events.pop().map(|event| (event.time_ns, event.what))
    }

    /// Removes the next event if its time is `now_ns` or earlier, and returns it with its time.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<(u64, T)> {
        self.next_ns().filter(|next_ns| *next_ns <= now_ns).and_then(|_| self.pop())
    }
}

struct Event<T> {
    time_ns: u64,
    number: u64,
    what: T,
}

impl<T> PartialEq for Event<T> {
    fn eq(&self, other: &Event<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Event<T> {}

impl<T> PartialOrd for Event<T> {
    fn partial_cmp(&self, other: &Event<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Event<T> {
    /// Reversed: the earliest event is the greatest, which a heap returns first.
    fn cmp(&self, other: &Event<T>) -> Ordering {
        (other.time_ns, other.number).cmp(&(self.time_ns, self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_planning() {
        let mut agenda = Agenda::new();
        for (time_ns, what) in [(7, 'c'), (3, 'a'), (7, 'd'), (3, 'b')] {
            agenda.plan(time_ns, what);
        }
        assert_eq!(agenda.next_ns(), Some(3));
        assert_eq!(agenda.pop_due(2), None);
        let all: Vec<_> = std::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!(all, [(3, 'a'), (3, 'b'), (7, 'c'), (7, 'd')]);
        assert_eq!(agenda.next_ns(), None);
    }
}
