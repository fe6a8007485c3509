//! Recent events, numbered: the newest `KEPT` of them are kept for clients that ask.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use haversack_api::{Event, Events};
use tokio::sync::watch;

use crate::locked::Locked;

/// The number of events kept.
const KEPT: usize = 1024;

/// See the module documentation.
pub struct EventLog {
    events: Mutex<VecDeque<Event>>,
    /// The number of the newest event, 0 before the first.
    newest: watch::Sender<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        EventLog { events: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl EventLog {
    /// Adds an event.
    pub fn add(&self, kind: &str, subject: &str, message: impl Into<String>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut events = self.events.locked();
        let number = *self.newest.borrow() + 1;
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(Event {
            number,
            time_ms: time.as_millis() as u64,
            kind: kind.into(),
            subject: subject.into(),
            message: message.into(),
        });
        self.newest.send_replace(number);
    }

    /// Returns the events after a number, oldest first.
    pub fn after(&self, number: u64) -> Events {
        let events: Vec<Event> = self.events.locked().iter().filter(|e| e.number > number).cloned().collect();
        let next = events.last().map_or(number, |e| e.number);
        Events { events, next }
    }

    /// Waits until there is an event after a number.
    pub async fn wait_after(&self, number: u64) {
        // The sender lives as long as `self`.
        let _ = self.newest.subscribe().wait_for(|newest| *newest > number).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_events_make_room_and_numbers_go_on() {
        let log = EventLog::default();
        for _ in 0..KEPT + 10 {
            log.add("kind", "subject", "message");
        }
        let all = log.after(0);
        assert_eq!((all.events.len(), all.events[0].number, all.next), (KEPT, 11, KEPT as u64 + 10));
        assert_eq!(log.after(all.next), Events { events: vec![], next: all.next });
    }
}
