//! A small blocking client over a Unix socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use haversack_nbd::*;

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    session: ClientSession,
    pub connected: Connected,
}

/// What became of a request: its data if it was a read, and pairs of length and flags if it was BLOCK_STATUS.
pub type Answer = Result<Vec<u8>, Errno>;

impl Client {
    pub fn connect(socket: &Path, export: &str, policy: TlsPolicy) -> io::Result<Self> {
        Self::negotiate(socket, ClientNegotiation::new(export, policy).map_err(io::Error::other)?)
    }

    /// Connects and requests a metadata context.
    pub fn with_context(socket: &Path, export: &str, context: &str) -> io::Result<Self> {
        let negotiation = ClientNegotiation::new(export, TlsPolicy::Off);
        let negotiation = negotiation.and_then(|negotiation| negotiation.with_context(context));
        Self::negotiate(socket, negotiation.map_err(io::Error::other)?)
    }

    fn negotiate(socket: &Path, mut negotiation: ClientNegotiation) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut output = Vec::new();
        let mut buffer = vec![0; 8192];
        loop {
            let bytes = &mut buffer[..negotiation.wanted_bytes()];
            stream.read_exact(bytes).map_err(|_| io::Error::other(negotiation.closed()))?;
            let step = negotiation.receive(&mut &*bytes, &mut output);
            stream.write_all(&output)?;
            output.clear();
            match step.map_err(io::Error::other)? {
                ClientStep::Continue => {}
                ClientStep::StartTls => return Err(io::Error::other("TLS is not here")),
                ClientStep::Connected(connected) => {
                    return Ok(Self { stream, session: ClientSession::new(&connected, 8), connected });
                }
            }
        }
    }

    /// One request at a time.
    pub fn request(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> Answer {
        self.requests(&[(command, offset, length)], payload).remove(0)
    }

    /// Several requests at once, at most eight; all writes have the same payload.
    pub fn requests(&mut self, requests: &[(Command, u64, u32)], payload: &[u8]) -> Vec<Answer> {
        let mut slots = vec![0; requests.len()];
        let mut starts = [0; 8];
        let mut answers: Vec<Option<Answer>> = vec![None; 8];
        let mut memory = vec![Vec::new(); 8];
        for (request, slot) in requests.iter().zip(&mut slots) {
            let &(command, offset, length) = request;
            let (cookie, head) = self.session.start(command, CommandFlags::NONE, offset, length).unwrap();
            *slot = cookie.slot();
            starts[*slot] = offset;
            memory[*slot] = vec![0xee; if command == Command::Read { length as usize } else { 0 }];
            self.stream.write_all(&head).unwrap();
            if command == Command::Write {
                self.stream.write_all(payload).unwrap();
            }
        }
        let mut byte = [0; 1];
        let mut left = requests.len();
        while left > 0 {
            // Byte by byte, so that nothing beyond a head is read.
            self.stream.read_exact(&mut byte).unwrap();
            let mut input = &byte[..];
            while let Some(event) = self.session.receive(&mut input).unwrap() {
                match event {
                    Event::Data { cookie, offset, length } => {
                        let at = (offset - starts[cookie.slot()]) as usize;
                        let place = &mut memory[cookie.slot()][at..at + length as usize];
                        self.stream.read_exact(place).unwrap();
                        self.session.data_taken(length);
                    }
                    Event::Zero { cookie, offset, length } => {
                        let at = (offset - starts[cookie.slot()]) as usize;
                        memory[cookie.slot()][at..at + length as usize].fill(0);
                    }
                    Event::Extent { cookie, length, flags } => {
                        memory[cookie.slot()].extend([length, flags].map(u32::to_be_bytes).concat());
                    }
                    Event::Error { .. } => {}
                    Event::Done { cookie, result } => {
                        let data = std::mem::take(&mut memory[cookie.slot()]);
                        answers[cookie.slot()] = Some(result.map(|()| data));
                        left -= 1;
                    }
                }
            }
        }
        slots.iter().map(|slot| answers[*slot].take().unwrap()).collect()
    }

    pub fn disconnect(mut self) {
        self.stream.write_all(&Request::disconnect().encode()).unwrap();
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0, "the server closes");
    }
}
