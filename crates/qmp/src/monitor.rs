//! A connection to a monitor.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

use crate::address::Address;
use crate::error::QmpError;
use crate::message::{Event, Message, shown};
use crate::migration::{Capability, Migration};

/// The longest line that is accepted from a monitor: those of QEMU are a few KiB.
const MOST_LINE_BYTES: usize = 256 << 10;
/// The most events kept; older ones are dropped. They only indicate that the status has changed.
const MOST_EVENTS: usize = 16;
/// The shortest timeout that the system supports.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// A connection to a monitor.
#[derive(Debug)]
pub struct Monitor {
    address: String,
    stream: Stream,
    /// Received data that is not a complete line yet.
    unread: Vec<u8>,
    events: VecDeque<Event>,
    commands: u64,
    patience: Duration,
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(address: &Address, patience: Duration) -> io::Result<Stream> {
        let host = match address {
            Address::Unix(path) => return connect_unix(path, patience).map(Stream::Unix),
            Address::Tcp(host) => host,
        };
        let deadline = Instant::now() + patience;
        let mut last = io::Error::other("the name has no address");
        for address in host.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            match TcpStream::connect_timeout(&address, left.max(LEAST_WAIT)) {
                Ok(stream) => return Ok(Stream::Tcp(stream)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn read(&mut self, buffer: &mut [u8], limit: Duration) -> io::Result<usize> {
        let limit = Some(limit.max(LEAST_WAIT));
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(limit).and_then(|()| stream.read(buffer)),
            Stream::Tcp(stream) => stream.set_read_timeout(limit).and_then(|()| stream.read(buffer)),
        }
    }

    fn write(&mut self, bytes: &[u8], limit: Duration) -> io::Result<()> {
        let limit = Some(limit.max(LEAST_WAIT));
        match self {
            Stream::Unix(stream) => stream.set_write_timeout(limit).and_then(|()| stream.write_all(bytes)),
            Stream::Tcp(stream) => stream.set_write_timeout(limit).and_then(|()| stream.write_all(bytes)),
        }
    }
}

/// Connects to a socket. If its connection queue is full, the client waits: QEMU's has one place.
fn connect_unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience.max(LEAST_WAIT)))?;
    connect(&socket, &address)?;
    Ok(socket.into())
}

impl Monitor {
    /// Connects to a monitor, which has `patience` to accept, and the same time for each answer.
    ///
    /// # Errors
    /// There is no monitor at the address, or it has another client.
    pub fn connect(address: &Address, patience: Duration) -> Result<Monitor, QmpError> {
        let name = address.to_string();
        let stream = match Stream::connect(address, patience) {
            Ok(stream) => stream,
            Err(error) if is_time_out(&error) => return Err(silent(name, "the connection", patience)),
            Err(source) => return Err(QmpError::Unreachable { address: name, source }),
        };
        let mut monitor = Monitor {
            address: name,
            stream,
            unread: Vec::new(),
            events: VecDeque::new(),
            commands: 0,
            patience,
        };
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
        self.stream.write(line.as_bytes(), self.patience).map_err(|error| self.failed(&error))?;
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
        let mut searched = 0;
        loop {
            if let Some(end) = self.unread[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=searched + end).collect();
                return Message::parse(&line).map(Some).map_err(|what| self.not_qmp(what));
            }
            searched = self.unread.len();
            if searched > MOST_LINE_BYTES {
                return Err(self.not_qmp(format!("a line of more than {MOST_LINE_BYTES} bytes")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && searched > 0 {
                return Ok(None);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer, left) {
                Ok(0) => {
                    let what = if searched == 0 { "it has ended".into() } else { shown(&self.unread) };
                    return Err(QmpError::Gone { address: self.address.clone(), why: what });
                }
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if is_time_out(&error) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
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

fn is_time_out(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
