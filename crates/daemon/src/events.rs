//! Events, numbered: the newest `KEPT` of them are kept for clients that ask. A file keeps them across
//! restarts.
//!
//! Invariants
//! - Numbers are consecutive, and continue after a restart.
//! - Errors of the file are logged, and events are then kept in memory only.
//! - The file is written while events can be added and read: a file system may stall. Whoever adds an event waits until
//!   it is written.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use haversack_api::{Event, Events};
use tokio::sync::watch;

use crate::line_log::LineLog;
use crate::locked::Locked;
use crate::state::StateError;

/// The number of events kept.
const KEPT: usize = 1024;
/// The size at which the file is rotated.
const LOG_BYTES: u64 = 1 << 20;
/// The file's name, in the state directory.
pub const FILE: &str = "events.log";

/// See the module documentation.
pub struct EventLog {
    inner: Mutex<Inner>,
    /// The file, once events are kept there. Locked before `inner`, never while that is locked.
    file: Mutex<Option<LineLog>>,
    /// The number of the newest event, 0 before the first.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<Event>,
    is_kept: bool,
    /// Events that are still to be written to the file, in order.
    unwritten: Vec<Event>,
}

impl Default for EventLog {
    fn default() -> Self {
        EventLog { inner: Mutex::default(), file: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl EventLog {
    /// Loads the events of earlier runs, and appends later events to the same file. Call this before any client can
    /// know the numbers of events: those that were added before are renumbered to follow those in the file.
    ///
    /// # Errors
    /// The file cannot be read; events are then kept in memory only.
    pub fn keep(&self, path: PathBuf) -> Result<(), StateError> {
        let log = LineLog::new(path, LOG_BYTES);
        // A torn line is no event.
        let earlier = log.newest(KEPT, |_| true)?;
        let earlier = earlier.iter().filter_map(|line| serde_json::from_str::<Event>(line).ok());
        *self.file.locked() = Some(log);
        let mut inner = self.inner.locked();
        inner.is_kept = true;
        let added = std::mem::replace(&mut inner.events, earlier.collect());
        let mut number = inner.events.back().map_or(0, |event| event.number);
        for event in added {
            number += 1;
            inner.push(Event { number, ..event });
        }
        self.newest.send_replace(number);
        drop(inner);
        self.write();
        Ok(())
    }

    /// Adds an event.
    pub fn add(&self, kind: &str, subject: &str, message: impl Into<String>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut inner = self.inner.locked();
        let number = *self.newest.borrow() + 1;
        inner.push(Event {
            number,
            time_ms: time.as_millis() as u64,
            kind: kind.into(),
            subject: subject.into(),
            message: message.into(),
        });
        self.newest.send_replace(number);
        drop(inner);
        self.write();
    }

    /// Writes what is still to be written.
    fn write(&self) {
        let mut file = self.file.locked();
        let Some(file) = &mut *file else { return };
        // These are taken while the file is locked, so that they are written in order.
        let unwritten = std::mem::take(&mut self.inner.locked().unwritten);
        for event in unwritten {
            // An event has only text keys.
            let line = serde_json::to_string(&event).unwrap_or_default();
            if let Err(error) = file.append(&line, &line) {
                tracing::warn!("an event is not kept across a restart: {error}");
            }
        }
    }

    /// Returns the events after a number, oldest first.
    pub fn after(&self, number: u64) -> Events {
        let inner = self.inner.locked();
        let events: Vec<Event> = inner.events.iter().filter(|e| e.number > number).cloned().collect();
        let next = events.last().map_or(number, |e| e.number);
        Events { events, next }
    }

    /// Waits until there is an event after a number.
    pub async fn wait_after(&self, number: u64) {
        // The sender lives as long as `self`.
        let _ = self.newest.subscribe().wait_for(|newest| *newest > number).await;
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        if self.is_kept {
            self.unwritten.push(event.clone());
        }
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
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

    #[test]
    fn events_are_added_and_read_while_the_file_system_stalls() {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::default();
        log.keep(dir.path().join(FILE)).unwrap();
        let stalled = log.file.locked();
        let (sender, added) = std::sync::mpsc::channel();
        let shared = &log;
        std::thread::scope(|scope| {
            for message in ["a", "b"] {
                scope.spawn(move || shared.add("kind", "subject", message));
            }
            scope.spawn(move || {
                while shared.after(0).events.len() < 2 {
                    std::thread::yield_now();
                }
                sender.send(()).unwrap();
            });
            let is_added = added.recv_timeout(std::time::Duration::from_secs(60)).is_ok();
            drop(stalled);
            assert!(is_added);
        });
        let again = EventLog::default();
        again.keep(dir.path().join(FILE)).unwrap();
        assert_eq!(again.after(0), log.after(0));
    }

    #[test]
    fn events_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let start = |early: &str, late: &str| {
            let log = EventLog::default();
            log.add("early", "main", early);
            log.keep(dir.path().join(FILE)).unwrap();
            log.add("late", "main", late);
            log.after(0).events.into_iter().map(|event| (event.number, event.message)).collect::<Vec<_>>()
        };
        let text =
            |messages: &[&str]| (1..).zip(messages.iter().map(ToString::to_string)).collect::<Vec<_>>();
        assert_eq!(start("a", "b"), text(&["a", "b"]));
        assert_eq!(start("c", "d"), text(&["a", "b", "c", "d"]));
        std::fs::OpenOptions::new()
            .append(true)
            .open(dir.path().join(FILE))
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"{\"torn"))
            .unwrap();
        assert_eq!(start("e", "f"), text(&["a", "b", "c", "d", "e", "f"]));
    }
}
