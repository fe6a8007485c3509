//! Runs I/Os one at a time, in the order in which the core requests them. Used by tests with their own clock:
//! the outcome then depends on requests and times alone, not on the speed of a device.
//!
//! Invariants
//! - A device or origin I/O starts only when none is in flight.
//! - Completions and events are never held back.

use std::collections::VecDeque;

use haversack_core::Action;

/// I/Os that wait for the one in flight.
#[derive(Default)]
pub(crate) struct InTurn {
    waiting: VecDeque<Action>,
}

impl InTurn {
    /// Returns the next action to carry out while `ios` I/Os are in flight. `poll` returns the core's next
    /// action.
    pub fn next(&mut self, ios: usize, mut poll: impl FnMut() -> Option<Action>) -> Option<Action> {
        while let Some(action) = poll() {
            if matches!(action, Action::Complete { .. } | Action::Event(_)) {
                return Some(action);
            }
            self.waiting.push_back(action);
        }
        if ios == 0 { self.waiting.pop_front() } else { None }
    }

    /// Returns how many I/Os wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
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
        assert_eq!(in_turn.next(0, || asked.pop_front()), Some(answer));
        assert_eq!(in_turn.next(0, || asked.pop_front()), Some(flush(1)));
        assert_eq!((in_turn.next(1, || asked.pop_front()), in_turn.waiting()), (None, 1));
        asked.push_back(flush(3));
        assert_eq!(in_turn.next(0, || asked.pop_front()), Some(flush(2)));
        assert_eq!((in_turn.next(1, || None), in_turn.waiting()), (None, 1));
    }
}
