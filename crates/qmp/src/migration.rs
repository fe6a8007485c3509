//! QEMU's status of a migration.

use std::fmt;

use serde_json::Value;

/// The phase of a migration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// There is none, or at the destination none has begun.
    #[default]
    None,
    /// It is being set up; the destination waits for it.
    Setup,
    /// The guest's memory is being sent.
    Active,
    /// The guest is stopped, and QEMU waits for `migrate-continue`.
    PreSwitchover,
    /// The guest is stopped, and the state of its devices is being sent.
    Device,
    /// All has been sent, or has arrived.
    Completed,
    /// It has failed. At the source, the guest continues.
    Failed,
    /// It is being cancelled.
    Cancelling,
    /// It was cancelled. At the source, the guest continues.
    Cancelled,
    /// The guest runs at the destination, and its memory is still being sent.
    PostCopy,
    /// Another phase, of a newer QEMU.
    Other(String),
}

impl Phase {
    fn of(name: Option<&str>) -> Phase {
        match name {
            None | Some("none") => Phase::None,
            Some("setup") => Phase::Setup,
            Some("active") => Phase::Active,
            Some("pre-switchover") => Phase::PreSwitchover,
            Some("device") => Phase::Device,
            Some("completed") => Phase::Completed,
            Some("failed") => Phase::Failed,
            Some("cancelling") => Phase::Cancelling,
            Some("cancelled") => Phase::Cancelled,
            Some(name) if name.starts_with("postcopy") => Phase::PostCopy,
            Some(name) => Phase::Other(name.to_owned()),
        }
    }

    /// Returns whether the migration has ended, or there is none.
    pub fn is_ended(&self) -> bool {
        matches!(self, Phase::None | Phase::Completed | Phase::Failed | Phase::Cancelled)
    }
}

/// QEMU's status of a migration.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Migration {
    /// Its phase.
    pub phase: Phase,
    /// Why it has failed.
    pub error: Option<String>,
    /// Bytes of memory sent.
    pub sent_bytes: u64,
    /// Bytes of memory that are still to be sent.
    pub left_bytes: u64,
    /// How long the guest was stopped.
    pub downtime_ms: Option<u64>,
    /// TCP ports that the destination listens on.
    pub ports: Vec<u16>,
    /// Unix sockets that the destination listens on.
    pub sockets: Vec<String>,
}

impl Migration {
    /// Parses the answer to `query-migrate`. Missing values are `None`, or 0.
    pub fn of(answer: &Value) -> Migration {
        let addresses = answer["socket-address"].as_array().into_iter().flatten();
        let of_type = |kind: &'static str, key: &'static str| {
            let found = addresses.clone().filter(move |address| address["type"] == kind);
            found.filter_map(move |address| address[key].as_str())
        };
        Migration {
            phase: Phase::of(answer["status"].as_str()),
            error: answer["error-desc"].as_str().map(str::to_owned),
            sent_bytes: answer["ram"]["transferred"].as_u64().unwrap_or(0),
            left_bytes: answer["ram"]["remaining"].as_u64().unwrap_or(0),
            downtime_ms: answer["downtime"].as_u64(),
            ports: of_type("inet", "port").filter_map(|port| port.parse().ok()).collect(),
            sockets: of_type("unix", "path").map(str::to_owned).collect(),
        }
    }
}

/// A capability of migrations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// QEMU reports each phase as an event.
    Events,
    /// The source waits in [`Phase::PreSwitchover`].
    PauseBeforeSwitchover,
    /// The guest may run at the destination before its memory is there.
    PostCopy,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::Events => "events",
            Capability::PauseBeforeSwitchover => "pause-before-switchover",
            Capability::PostCopy => "postcopy-ram",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_read() {
        let answer = json!({
            "status": "completed", "downtime": 12, "ram": { "transferred": 5, "remaining": 7 },
            "socket-address": [
                { "type": "inet", "host": "0.0.0.0", "port": "4444" }, { "type": "unix", "path": "/run/m" },
            ],
        });
        let expected = Migration {
            phase: Phase::Completed,
            error: None,
            sent_bytes: 5,
            left_bytes: 7,
            downtime_ms: Some(12),
            ports: vec![4444],
            sockets: vec!["/run/m".into()],
        };
        assert_eq!(Migration::of(&answer), expected);
        assert_eq!(Migration::of(&json!({})), Migration::default());
    }

    #[test]
    fn a_phase_of_a_newer_qemu_is_no_end() {
        let phase = Migration::of(&json!({ "status": "failing" })).phase;
        assert_eq!(phase, Phase::Other("failing".into()));
        assert!(!phase.is_ended());
        assert_eq!(Migration::of(&json!({ "status": "postcopy-active" })).phase, Phase::PostCopy);
    }
}
