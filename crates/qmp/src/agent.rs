//! QEMU's guest agent: a program in the guest that freezes its file systems.
//!
//! The host talks to it through a character device of QEMU, where an earlier client may have left half a command and
//! unread answers. `guest-sync-delimited` after the byte 0xFF, which is not valid in JSON, discards both ("QEMU Guest
//! Agent Protocol Reference").
//!
//! Invariant
//! - An answer to a command of an earlier client is never mistaken for an answer to ours.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::address::Address;
use crate::lines::{Lines, Received, is_time_out};
use crate::message::{Message, shown};

/// The byte that resets the agent's parser, and precedes the answer to `guest-sync-delimited`.
const DELIMITER: u8 = 0xFF;

/// An error of a guest agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nothing can be reached on the socket.
    #[error(
        "{path}: the guest agent's socket cannot be reached: {source}; check the path, and that QEMU runs"
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The agent does not answer.
    #[error(
        "{path}: the guest agent has not answered {command} within {waited:?}; check that qemu-guest-agent runs in the guest, and that no other program, such as libvirt, uses the socket"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The command.
        command: &'static str,
        /// The time waited.
        waited: Duration,
    },
    /// QEMU has closed the connection.
    #[error("{path}: QEMU has closed the connection to the guest agent: {why}")]
    Gone {
        /// The socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The agent refuses a command.
    #[error("{path}: the guest agent refuses {command}: {why}")]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The command.
        command: &'static str,
        /// The agent's message.
        why: String,
    },
    /// The peer is not a guest agent.
    #[error(
        "{path}: unexpected data from the guest agent: {what}; is this the socket of org.qemu.guest_agent.0?"
    )]
    NotAgent {
        /// The socket.
        path: PathBuf,
        /// The data.
        what: String,
    },
}

impl AgentError {
    /// Returns whether QEMU is gone, and the guest with it.
    pub fn is_gone(&self) -> bool {
        match self {
            AgentError::Gone { .. } => true,
            AgentError::Unreachable { source, .. } => {
                matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            }
            _ => false,
        }
    }
}

/// A connection to a guest agent. Dropping it lets the next client connect.
#[derive(Debug)]
pub struct GuestAgent {
    path: PathBuf,
    lines: Lines,
}

impl GuestAgent {
    /// Connects to an agent through QEMU's socket. Succeeds only if the agent answers.
    ///
    /// # Errors
    /// There is no agent, it does not answer within `patience`, or another program is connected to it.
    pub fn connect(path: &Path, patience: Duration) -> Result<GuestAgent, AgentError> {
        const COMMAND: &str = "guest-sync-delimited";
        let lines = Lines::connect(&Address::Unix(path.into()), patience)
            .map_err(|source| AgentError::Unreachable { path: path.into(), source })?;
        let mut agent = GuestAgent { path: path.into(), lines };
        let number = now_ns() & u64::from(u32::MAX >> 1);
        let mut line = vec![DELIMITER];
        line.extend(json!({"execute": COMMAND, "arguments": {"id": number}}).to_string().bytes());
        line.push(b'\n');
        agent.lines.send(&line, patience).map_err(|error| agent.failed(&error, COMMAND, patience))?;
        let deadline = Instant::now() + patience;
        loop {
            let line = agent.line(COMMAND, deadline, patience)?;
            let Some(at) = line.iter().rposition(|byte| *byte == DELIMITER) else {
                // Answers to an earlier client come first. An agent sends no greeting, unlike a QMP monitor.
                match Message::parse(&line) {
                    Ok(Message::Greeting) => return Err(agent.not_agent(shown(&line))),
                    _ => continue,
                }
            };
            match Message::parse(&line[at + 1..]) {
                Ok(Message::Answer(_, Ok(answer))) if answer.as_u64() == Some(number) => return Ok(agent),
                // An answer to an earlier client that did the same.
                Ok(Message::Answer(_, Ok(_))) => {}
                Ok(Message::Answer(_, Err(why))) => {
                    return Err(AgentError::Refused { path: agent.path, command: COMMAND, why });
                }
                _ => return Err(agent.not_agent(shown(&line))),
            }
        }
    }

    /// Freezes the guest's file systems: they are synced, and processes that write are blocked. Returns the number of
    /// frozen file systems.
    ///
    /// # Errors
    /// The agent refuses, or does not answer within `patience`; it may still freeze them then.
    pub fn freeze(&mut self, patience: Duration) -> Result<u64, AgentError> {
        self.count("guest-fsfreeze-freeze", patience)
    }

    /// Thaws the guest's file systems. Returns the number of file systems that were thawed.
    ///
    /// # Errors
    /// The agent refuses, or does not answer within `patience`.
    pub fn thaw(&mut self, patience: Duration) -> Result<u64, AgentError> {
        self.count("guest-fsfreeze-thaw", patience)
    }

    fn count(&mut self, command: &'static str, patience: Duration) -> Result<u64, AgentError> {
        let answer = self.execute(command, patience)?;
        answer.as_u64().ok_or_else(|| self.not_agent(format!("{answer} as the answer to {command}")))
    }

    fn execute(&mut self, command: &'static str, patience: Duration) -> Result<Value, AgentError> {
        let line = json!({ "execute": command }).to_string() + "\n";
        self.lines.send(line.as_bytes(), patience).map_err(|error| self.failed(&error, command, patience))?;
        let line = self.line(command, Instant::now() + patience, patience)?;
        match Message::parse(&line) {
            Ok(Message::Answer(_, Ok(answer))) => Ok(answer),
            Ok(Message::Answer(_, Err(why))) => {
                Err(AgentError::Refused { path: self.path.clone(), command, why })
            }
            _ => Err(self.not_agent(shown(&line))),
        }
    }

    fn line(
        &mut self,
        command: &'static str,
        deadline: Instant,
        waited: Duration,
    ) -> Result<Vec<u8>, AgentError> {
        match self.lines.next(deadline).map_err(|error| self.failed(&error, command, waited))? {
            // A peer that keeps sending other lines counts as silent.
            Received::Line(line) if Instant::now() < deadline => Ok(line),
            Received::Line(_) | Received::Nothing => {
                Err(AgentError::Silent { path: self.path.clone(), command, waited })
            }
            Received::TooLong => Err(self.not_agent("a line without an end".into())),
            Received::End(part) => {
                let why = if part.is_empty() { "it has ended".into() } else { shown(&part) };
                Err(AgentError::Gone { path: self.path.clone(), why })
            }
        }
    }

    fn failed(&self, error: &io::Error, command: &'static str, waited: Duration) -> AgentError {
        let path = self.path.clone();
        if is_time_out(error) {
            return AgentError::Silent { path, command, waited };
        }
        AgentError::Gone { path, why: error.to_string() }
    }

    fn not_agent(&self, what: String) -> AgentError {
        AgentError::NotAgent { path: self.path.clone(), what }
    }
}

/// A number that an earlier client is unlikely to have used.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(300);

    /// Serves one client on a socket with `serve`, and runs `with` on the socket's path.
    fn beside<T>(serve: impl FnOnce(BufReader<UnixStream>) + Send, with: impl FnOnce(&Path) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || serve(BufReader::new(listener.accept().unwrap().0)));
            with(&path)
        })
    }

    fn command(client: &mut BufReader<UnixStream>) -> Value {
        let mut line = Vec::new();
        client.read_until(b'\n', &mut line).unwrap();
        let at = line.iter().rposition(|byte| *byte == DELIMITER).map_or(0, |at| at + 1);
        serde_json::from_slice(&line[at..]).unwrap_or(Value::Null)
    }

    fn answer(client: &mut BufReader<UnixStream>, bytes: &[u8]) {
        client.get_mut().write_all(bytes).unwrap();
    }

    #[test]
    fn leftovers_of_an_earlier_client_are_skipped() {
        let serve = |mut client: BufReader<UnixStream>| {
            let sync = command(&mut client);
            answer(
                &mut client,
                b"{\"return\": 7}\nhalf a line \xff{\"return\": 1}\n{\"error\": {\"desc\": \"JSON\"}}\n",
            );
            let number = &sync["arguments"]["id"];
            answer(&mut client, format!("{{\"return\": {number}}}\n").as_bytes());
            // Without the byte it is not the answer.
            answer(
                &mut client,
                &[b"\xff".as_slice(), format!("{{\"return\": {number}}}\n").as_bytes()].concat(),
            );
            assert_eq!(command(&mut client)["execute"], "guest-fsfreeze-freeze");
            answer(&mut client, b"{\"return\": 3}\n");
            assert_eq!(command(&mut client)["execute"], "guest-fsfreeze-thaw");
            answer(&mut client, b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\n");
        };
        beside(serve, |path| {
            let mut agent = GuestAgent::connect(path, PATIENCE).unwrap();
            assert_eq!(agent.freeze(PATIENCE).unwrap(), 3);
            let error = agent.thaw(PATIENCE).unwrap_err();
            assert!(matches!(&error, AgentError::Refused { why, .. } if why == "no"), "{error}");
        });
    }

    #[test]
    fn an_agent_that_is_silent_gone_or_none_is_told_apart() {
        let silent = beside(
            |mut client| {
                command(&mut client);
                // Until the client has given up.
                command(&mut client);
            },
            |path| GuestAgent::connect(path, PATIENCE).unwrap_err(),
        );
        assert!(matches!(silent, AgentError::Silent { .. }), "{silent}");
        let gone = beside(
            |mut client| drop(command(&mut client)),
            |path| GuestAgent::connect(path, PATIENCE).unwrap_err(),
        );
        assert!(gone.is_gone(), "{gone}");
        let other = beside(
            |mut client| {
                command(&mut client);
                answer(&mut client, b"\xffHTTP/1.1 400\n");
                command(&mut client);
            },
            |path| GuestAgent::connect(path, PATIENCE).unwrap_err(),
        );
        assert!(matches!(other, AgentError::NotAgent { .. }), "{other}");
        let missing = GuestAgent::connect(Path::new("/no/such/socket"), PATIENCE).unwrap_err();
        assert!(missing.is_gone(), "{missing}");
    }
}
