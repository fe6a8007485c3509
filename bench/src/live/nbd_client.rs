//! An NBD client with many requests in flight on one Unix socket, the same for all servers.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use haversack_nbd::{
    ClientNegotiation, ClientSession, ClientStep, Command, CommandFlags, Connected, Event, TlsPolicy,
};

use super::load::{BLOCK_BYTES, Client, Kind, MOST_DEPTH, PATIENCE, Request, check_block};

const INPUT_BYTES: usize = 256 << 10;

/// A connection.
pub struct NbdClient {
    stream: UnixStream,
    session: ClientSession,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of the input that are not understood yet.
    left: usize,
    /// The load's number and the request, by the session's slot.
    requests: [(usize, Request); MOST_DEPTH],
}

/// Negotiates, up to the first request.
pub fn negotiate(stream: &mut UnixStream, export: &str) -> io::Result<Connected> {
    let mut negotiation = ClientNegotiation::new(export, TlsPolicy::Off).map_err(io::Error::other)?;
    let (mut output, mut buffer) = (Vec::new(), vec![0; 8192]);
    loop {
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes).map_err(|_| io::Error::other(negotiation.closed()))?;
        let step = negotiation.receive(&mut &*bytes, &mut output);
        stream.write_all(&output)?;
        output.clear();
        match step.map_err(io::Error::other)? {
            ClientStep::Continue => {}
            ClientStep::StartTls => return Err(io::Error::other("TLS was not asked for")),
            ClientStep::Connected(connected) => return Ok(connected),
        }
    }
}

impl NbdClient {
    /// Connects to an export.
    pub fn connect(socket: &Path, export: &str) -> io::Result<NbdClient> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let connected = negotiate(&mut stream, export)?;
        Ok(NbdClient {
            stream,
            session: ClientSession::new(&connected, MOST_DEPTH),
            output: Vec::new(),
            input: vec![0; INPUT_BYTES],
            left: 0,
            requests: [(0, Request::FLUSH); MOST_DEPTH],
        })
    }

    /// Flushes. No other request may be in flight.
    pub fn flush(&mut self) -> io::Result<()> {
        self.start(0, Request::FLUSH)?;
        self.wait(&mut Vec::new())
    }

    fn understand(&mut self, bytes: usize, done: &mut Vec<usize>) -> io::Result<()> {
        let mut input = &self.input[..bytes];
        while let Some(event) = self.session.receive(&mut input).map_err(io::Error::other)? {
            match event {
                Event::Data { cookie, offset, length } => {
                    let here = input.len().min(length as usize);
                    let request = self.requests[cookie.slot()].1;
                    let starts = offset == request.offset();
                    if here < 8 && starts {
                        // The block's number is not all here yet.
                        break;
                    }
                    if starts {
                        check_block(request.block, &input[..here])?;
                    }
                    input = &input[here..];
                    self.session.data_taken(here as u32);
                    if here < length as usize {
                        break;
                    }
                }
                Event::Zero { offset, .. } => {
                    return Err(io::Error::other(format!("zeroes were read at {offset}")));
                }
                Event::Extent { .. } | Event::Error { .. } => {}
                Event::Done { cookie, result } => {
                    result.map_err(|e| io::Error::other(format!("the server answers {e}")))?;
                    done.push(self.requests[cookie.slot()].0);
                }
            }
        }
        let taken = bytes - input.len();
        self.input.copy_within(taken..bytes, 0);
        self.left = bytes - taken;
        Ok(())
    }
}

impl Client for NbdClient {
    fn start(&mut self, number: usize, request: Request) -> io::Result<()> {
        let command = match request.kind {
            Kind::Read => Command::Read,
            Kind::Write => Command::Write,
            Kind::Flush => Command::Flush,
        };
        let (offset, bytes) = (request.offset(), request.bytes() as u32);
        let started = self.session.start(command, CommandFlags::NONE, offset, bytes);
        let (cookie, head) = started.map_err(io::Error::other)?;
        self.requests[cookie.slot()] = (number, request);
        self.output.extend_from_slice(&head);
        if request.kind == Kind::Write {
            for block in request.block..request.block + request.blocks as u64 {
                self.output.extend_from_slice(&block.to_le_bytes());
                self.output.resize(self.output.len() + BLOCK_BYTES - 8, 0);
            }
        }
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        self.stream.write_all(&self.output)?;
        self.output.clear();
        while done.is_empty() {
            let bytes = self.stream.read(&mut self.input[self.left..])?;
            if bytes == 0 {
                return Err(io::Error::other("the server closed the connection"));
            }
            self.understand(self.left + bytes, done)?;
        }
        Ok(())
    }
}
