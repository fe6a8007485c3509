//! The monitor of a QEMU.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// What a QEMU says of itself.
struct Told {
    /// The state of the guest, and the one before the migration.
    state: String,
    before: String,
    phase: String,
    pauses: bool,
    heard: Vec<String>,
    queries: usize,
    ended_connections: usize,
}

/// A QEMU.
pub struct Qemu(Arc<Mutex<Told>>);

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Qemu {
    /// Starts one whose guest is in this state.
    pub fn start(path: PathBuf, state: &str) -> Qemu {
        let told = Arc::new(Mutex::new(Told {
            state: state.into(),
            before: state.into(),
            phase: "none".into(),
            pauses: false,
            heard: Vec::new(),
            queries: 0,
            ended_connections: 0,
        }));
        let (listener, shared) = (UnixListener::bind(path).unwrap(), told.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = shared.clone();
                std::thread::spawn(move || {
                    serve(stream, &told);
                    lock(&told).ended_connections += 1;
                });
            }
        });
        Qemu(told)
    }

    /// The guest is in this state from now on, and the migration in this phase.
    pub fn is(&self, state: &str, phase: &str) {
        let mut told = lock(&self.0);
        (told.state, told.phase) = (state.into(), phase.into());
    }

    /// Returns whether it was told to do something.
    pub fn has_heard(&self, command: &str) -> bool {
        lock(&self.0).heard.iter().any(|heard| heard == command)
    }

    /// Returns how many times it was asked for its migration.
    pub fn queries(&self) -> usize {
        lock(&self.0).queries
    }

    /// Returns whether migrations pause before the switchover.
    pub fn pauses(&self) -> bool {
        lock(&self.0).pauses
    }

    /// Migrations pause before the switchover.
    pub fn set_pauses(&self) {
        lock(&self.0).pauses = true;
    }

    /// Returns how many clients have left.
    pub fn ended_connections(&self) -> usize {
        lock(&self.0).ended_connections
    }
}

fn serve(stream: UnixStream, told: &Mutex<Told>) {
    let mut stream = BufReader::new(stream);
    let greeting = json!({ "QMP": { "version": {}, "capabilities": [] } });
    if stream.get_mut().write_all(format!("{greeting}\r\n").as_bytes()).is_err() {
        return;
    }
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let command: Value = serde_json::from_str(&line).unwrap();
        line.clear();
        let answer = json!({ "return": lock(told).answer(&command), "id": command["id"] });
        if stream.get_mut().write_all(format!("{answer}\r\n").as_bytes()).is_err() {
            return;
        }
    }
}

impl Told {
    fn answer(&mut self, command: &Value) -> Value {
        let name = command["execute"].as_str().unwrap();
        self.heard.push(name.into());
        match name {
            "query-migrate" => {
                self.queries += 1;
                return json!({ "status": self.phase });
            }
            "query-status" => return json!({ "status": self.state, "running": self.state == "running" }),
            "query-migrate-capabilities" => {
                return json!([{ "capability": "pause-before-switchover", "state": self.pauses }]);
            }
            "migrate-set-capabilities" => {
                let one = &command["arguments"]["capabilities"][0];
                if one["capability"] == "pause-before-switchover" {
                    self.pauses = one["state"] == true;
                }
            }
            "cont" => self.state = "running".into(),
            "migrate" => self.phase = "active".into(),
            "migrate_cancel" => (self.state, self.phase) = (self.before.clone(), "cancelled".into()),
            _ => {}
        }
        json!({})
    }
}
