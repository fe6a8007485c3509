//! Runs I/Os one at a time, in the order in which the core requests them. Used by tests with their own clock:
//! the outcome then depends on requests and times alone, not on the speed of a device.
//!
//! If I/Os take time by a model (`held.rs`), an I/O that has been carried out is not in flight here.
//!
//! Invariants
//! - A device or origin I/O starts only when none is in flight.
//! - Answers and events are never held back.

use std::collections::VecDeque;

use haversack_core::Action;
use haversack_latency::WholeTimes;
use haversack_model::Micros;

use crate::held::Held;

/// I/Os that wait for the one in flight.
#[derive(Default)]
pub(crate) struct InTurn {
    waiting: VecDeque<Action>,
    /// What takes time by a model.
    pub held: Option<Held>,
}

impl InTurn {
    /// Makes an empty queue. If `times` is set, I/Os take the modelled times.
    pub fn new(times: Option<&WholeTimes>) -> InTurn {
        InTurn { waiting: VecDeque::new(), held: times.map(Held::new) }
    }

    /// Returns the next action to carry out while the core waits for `ios` I/Os that have begun. `poll` returns the
    /// core's next action.
    pub fn next(
        &mut self,
        now: Micros,
        ios: usize,
        mut poll: impl FnMut() -> Option<Action>,
    ) -> Option<Action> {
        while let Some(action) = poll() {
            if matches!(action, Action::Complete { .. } | Action::Event(_)) {
                return Some(action);
            }
            if let Some(held) = &mut self.held {
                held.asked(now, &action);
            }
            self.waiting.push_back(action);
        }
        if self.in_flight(ios) == 0 { self.waiting.pop_front() } else { None }
    }

    fn in_flight(&self, ios: usize) -> usize {
        ios - self.held.as_ref().map_or(0, Held::carried_out)
    }

    /// Returns how many I/Os have not been carried out yet while the core waits for `ios` that have begun.
    pub fn left(&self, ios: usize) -> usize {
        self.waiting.len() + self.in_flight(ios)
    }
}

#[cfg(test)]
mod tests {
    use haversack_core::{IoId, RequestTag};
    use haversack_model::DeviceNo;

    use super::*;

    #[test]
    fn io_waits_for_io_and_answers_for_nothing() {
        let flush = |io| Action::FlushDevice { io: IoId(io), device: DeviceNo(0) };
        let answer = Action::Complete { tag: RequestTag(0), result: Ok(()) };
        let mut asked = VecDeque::from([flush(1), flush(2), answer]);
        let mut in_turn = InTurn::default();
        assert_eq!(in_turn.next(0, 0, || asked.pop_front()), Some(answer));
        assert_eq!(in_turn.next(0, 0, || asked.pop_front()), Some(flush(1)));
        assert_eq!((in_turn.next(0, 1, || asked.pop_front()), in_turn.left(1)), (None, 2));
        asked.push_back(flush(3));
        assert_eq!(in_turn.next(0, 0, || asked.pop_front()), Some(flush(2)));
        assert_eq!((in_turn.next(0, 1, || None), in_turn.left(1)), (None, 2));
    }
}
