//! Recent events of the daemon.

use std::fmt::Write;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use haversack_api::{Event, Events, Span};

use crate::client::Client;
use crate::error::Result;
use crate::output;

/// How long the daemon may hold a request for newer events before it answers that there are none.
const WAIT: Span = Span(Duration::from_secs(30));

/// Shows the newest `last` events, of one pool or disk if `subject` names it; with `follow` also new ones as
/// they occur. JSON is one event per line.
pub fn run(client: &Client, subject: Option<&str>, last: usize, follow: bool, as_json: bool) -> Result<()> {
    let wanted = |event: &Event| subject.is_none_or(|subject| event.subject == subject);
    let mut found: Events = client.get("/v1/events?after=0&wait=0s")?;
    found.events.retain(wanted);
    let old = found.events.len().saturating_sub(last);
    show(&found.events[old..], as_json)?;
    if !follow {
        return Ok(());
    }
    loop {
        found = client.get_within(&format!("/v1/events?after={}&wait={WAIT}", found.next), WAIT.0)?;
        found.events.retain(wanted);
        show(&found.events, as_json)?;
    }
}

fn show(events: &[Event], as_json: bool) -> Result<()> {
    if as_json {
        return events.iter().try_for_each(output::print_line);
    }
    output::write(&events.iter().map(line).collect::<String>())
}

fn line(event: &Event) -> String {
    let time =
        i64::try_from(event.time_ms).ok().and_then(DateTime::from_timestamp_millis).unwrap_or_default();
    let time = time.to_rfc3339_opts(SecondsFormat::Millis, true);
    let mut line = String::new();
    let _ = writeln!(line, "{time}  {}  {}: {}", event.kind, event.subject, event.message);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_that_begins_with_its_time() {
        let event = Event {
            number: 7,
            time_ms: 1_700_000_000_250,
            kind: "origin-away".into(),
            subject: "vm1".into(),
            message: "the origin cannot be reached".into(),
        };
        assert_eq!(
            line(&event),
            "2023-11-14T22:13:20.250Z  origin-away  vm1: the origin cannot be reached\n"
        );
    }
}
