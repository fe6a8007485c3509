//! A connection to a monitor.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::address::Address;
use crate::error::QmpError;
use crate::lines::{Lines, MOST_LINE_BYTES, Received, is_time_out};
use crate::message::{Event, Message, shown};
use crate::migration::{Capability, Migration};

/// The most events kept; older ones are dropped. They only indicate that the status has changed.
const MOST_EVENTS: usize = 16;

/// A connection to a monitor.
#[derive(Debug)]
pub struct Monitor {
    address: String,
    lines: Lines,
    events: VecDeque<Event>,
    commands: u64,
    patience: Duration,
}

impl Monitor {
    /// Connects to a monitor, which has `patience` to accept, and the same time for each answer.
    ///
    /// # Errors
    /// There is no monitor at the address, or it has another client.
    pub fn connect(address: &Address, patience: Duration) -> Result<Monitor, QmpError> {
        let name = address.to_string();
        let lines = match Lines::connect(address, patience) {
            Ok(lines) => lines,
            Err(error) if is_time_out(&error) => return Err(silent(name, "the connection", patience)),
            Err(source) => return Err(QmpError::Unreachable { address: name, source }),
        };
        Monitor::begin(name, lines, patience)
    }

    /// Begins to talk over a connection that there is already. `name` is what errors call it.
    ///
    /// # Errors
    /// There is no monitor at its other end.
    pub fn of_stream(stream: UnixStream, name: &str, patience: Duration) -> Result<Monitor, QmpError> {
        Monitor::begin(name.to_owned(), Lines::of_stream(stream), patience)
    }

    fn begin(address: String, lines: Lines, patience: Duration) -> Result<Monitor, QmpError> {
        let mut monitor = Monitor { address, lines, events: VecDeque::new(), commands: 0, patience };
        let deadline = Instant::now() + patience;
        match monitor.message(deadline)? {
            Some(Message::Greeting) => {}
            Some(other) => return Err(monitor.not_qmp(format!("{other:?} instead of a greeting"))),
            None => return Err(monitor.silent("the connection")),
        }
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Sets the time limit for each answer from now on.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Executes a command and returns its answer. Events received meanwhile are kept.
    ///
    /// # Errors
    /// QEMU refuses it, does not answer, or is gone.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        self.commands += 1;
        let number = self.commands;
        let line = json!({ "execute": command, "arguments": arguments, "id": number }).to_string() + "\n";
        self.lines.send(line.as_bytes(), self.patience).map_err(|error| self.failed(&error))?;
        let deadline = Instant::now() + self.patience;
        loop {
            match self.message(deadline)? {
                Some(Message::Answer(of, outcome)) if of.is_none_or(|of| of == number) => {
                    let refused = |why| QmpError::Refused {
                        address: self.address.clone(),
                        command: command.to_owned(),
                        why,
                    };
                    return outcome.map_err(refused);
                }
                Some(Message::Greeting) => return Err(self.not_qmp("a second greeting".into())),
                // A peer that keeps sending other messages does not answer either.
                Some(_) if Instant::now() >= deadline => return Err(self.silent(command)),
                // An answer to a command that was given up.
                Some(Message::Answer(..)) => {}
                Some(Message::Event(event)) => self.keep(event),
                None => return Err(self.silent(command)),
            }
        }
    }

    /// Returns the next event, or `None` if there is none for `limit`.
    ///
    /// # Errors
    /// QEMU is gone.
    pub fn next_event(&mut self, limit: Duration) -> Result<Option<Event>, QmpError> {
        let deadline = Instant::now() + limit;
        while self.events.is_empty() {
            match self.message(deadline)? {
                Some(Message::Event(event)) => self.keep(event),
                Some(_) if Instant::now() < deadline => {}
                Some(_) | None => return Ok(None),
            }
        }
        Ok(self.events.pop_front())
    }

    /// Returns QEMU's status of its migration.
    ///
    /// # Errors
    /// See [`Monitor::execute`].
    pub fn migration(&mut self) -> Result<Migration, QmpError> {
        self.execute("query-migrate", &json!({})).map(|answer| Migration::of(&answer))
    }

    /// Returns the state of the guest, such as `running`.
    ///
    /// # Errors
    /// See [`Monitor::execute`].
    pub fn run_state(&mut self) -> Result<String, QmpError> {
        let answer = self.execute("query-status", &json!({}))?;
        let state = answer["status"].as_str().map(str::to_owned);
        state.ok_or_else(|| self.not_qmp(format!("{answer} as the state of the guest")))
    }

    /// Returns whether a capability of migrations is on.
    ///
    /// # Errors
    /// See [`Monitor::execute`].
    pub fn has(&mut self, capability: Capability) -> Result<bool, QmpError> {
        let answer = self.execute("query-migrate-capabilities", &json!({}))?;
        let name = capability.to_string();
        let mut all = answer.as_array().into_iter().flatten();
        Ok(all.any(|one| one["capability"] == *name && one["state"] == true))
    }

    /// Switches a capability of migrations on or off.
    ///
    /// # Errors
    /// See [`Monitor::execute`].
    pub fn set(&mut self, capability: Capability, state: bool) -> Result<(), QmpError> {
        let one = json!({ "capability": capability.to_string(), "state": state });
        self.execute("migrate-set-capabilities", &json!({ "capabilities": [one] })).map(drop)
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Returns the next message, or `None` if there is none until the deadline. A part of one is kept.
    fn message(&mut self, deadline: Instant) -> Result<Option<Message>, QmpError> {
        match self.lines.next(deadline).map_err(|error| self.failed(&error))? {
            Received::Line(line) => Message::parse(&line).map(Some).map_err(|what| self.not_qmp(what)),
            Received::Nothing => Ok(None),
            Received::TooLong => Err(self.not_qmp(format!("a line of more than {MOST_LINE_BYTES} bytes"))),
            Received::End(part) => {
                let why = if part.is_empty() { "it has ended".into() } else { shown(&part) };
                Err(QmpError::Gone { address: self.address.clone(), why })
            }
        }
    }

    fn failed(&self, error: &io::Error) -> QmpError {
        if is_time_out(error) {
            return self.silent("a command");
        }
        QmpError::Gone { address: self.address.clone(), why: error.to_string() }
    }

    fn silent(&self, command: &str) -> QmpError {
        silent(self.address.clone(), command, self.patience)
    }

    fn not_qmp(&self, what: String) -> QmpError {
        QmpError::NotQmp { address: self.address.clone(), what }
    }
}

fn silent(address: String, command: &str, waited: Duration) -> QmpError {
    QmpError::Silent { address, command: command.to_owned(), waited }
}
