//! A plain NBD client for one request at a time. The server gets exactly the requests that the test makes: none is
//! merged, split or read ahead.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::error::check;
use crate::{Error, Result};

/// `IHAVEOPT`.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_EXPORT_NAME: u32 = 1;
/// The client knows fixed newstyle, and wants no zeroes after the flags.
const CLIENT_FLAGS: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// What can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Read bytes.
    Read = 0,
    /// Write bytes.
    Write = 1,
    /// Make all completed writes durable.
    Flush = 3,
    /// Discard bytes.
    Trim = 4,
    /// Write zeroes.
    Zeroes = 6,
}

/// The header of a request.
pub fn header(command: Command, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
    request.extend((command as u32).to_be_bytes());
    request.extend(cookie.to_be_bytes());
    request.extend(offset_bytes.to_be_bytes());
    request.extend(length_bytes.to_be_bytes());
    request
}

/// A connection past its negotiation.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    cookie: u64,
    /// Bytes of the export.
    pub size_bytes: u64,
}

fn lost(error: std::io::Error) -> Error {
    Error::io("the NBD connection")(error)
}

impl Connection {
    /// Connects to an export.
    ///
    /// # Errors
    /// If the server is not there, or has no such export.
    pub fn open(socket: &Path, export: &str) -> Result<Self> {
        let mut socket = UnixStream::connect(socket).map_err(Error::io(socket.display().to_string()))?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).map_err(lost)?;
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        socket.write_all(&hello).map_err(lost)?;
        let mut about = [0; 10];
        socket.read_exact(&mut about).map_err(lost)?;
        let size_bytes = u64::from_be_bytes(about[..8].try_into().expect("eight bytes"));
        Ok(Self { socket, cookie: 0, size_bytes })
    }

    /// Returns the socket, for tests that send requests without waiting for replies.
    pub fn socket(&mut self) -> &mut UnixStream {
        &mut self.socket
    }

    /// Waits no longer than this for answers from now on.
    ///
    /// # Errors
    /// If that cannot be set.
    pub fn wait_at_most(&mut self, time: Duration) -> Result<()> {
        self.socket.set_read_timeout(Some(time)).map_err(lost)
    }

    /// Asks and waits for the answer. `data` is what is written, or where to put what is read.
    ///
    /// # Errors
    /// If the server says so, or answers something else.
    pub fn ask(
        &mut self,
        command: Command,
        offset_bytes: u64,
        length_bytes: u32,
        data: &mut [u8],
    ) -> Result<()> {
        let cookie = self.send(command, offset_bytes, length_bytes, data)?;
        let read_bytes = if command == Command::Read { length_bytes as usize } else { 0 };
        let (answered, read) = self.answer(|_| read_bytes)?;
        let what = || format!("{command:?} of {length_bytes} bytes at {offset_bytes}");
        check(
            answered == cookie,
            format!("{}: the server answers request {answered}, not {cookie}", what()),
        )?;
        data[..read_bytes].copy_from_slice(&read);
        Ok(())
    }

    /// Asks. `data` is what is written. Returns the cookie of the answer.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn send(
        &mut self,
        command: Command,
        offset_bytes: u64,
        length_bytes: u32,
        data: &[u8],
    ) -> Result<u64> {
        self.cookie += 1;
        let mut request = header(command, self.cookie, offset_bytes, length_bytes);
        if command == Command::Write {
            request.extend_from_slice(data);
        }
        self.socket.write_all(&request).map_err(lost)?;
        Ok(self.cookie)
    }

    /// Waits for an answer, whichever comes first. Returns its cookie and the bytes read; `read_bytes` says how many
    /// there are for a cookie.
    ///
    /// # Errors
    /// If the server refuses, or does not answer.
    pub fn answer(&mut self, read_bytes: impl Fn(u64) -> usize) -> Result<(u64, Vec<u8>)> {
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply).map_err(lost)?;
        self.rest_of_answer(&reply, read_bytes)
    }

    /// Returns an answer as [`Connection::answer`] does, or `None` if none has come.
    ///
    /// # Errors
    /// If the server refuses, or the connection ends.
    pub fn answer_if_any(&mut self, read_bytes: impl Fn(u64) -> usize) -> Result<Option<(u64, Vec<u8>)>> {
        let mut reply = [0; 16];
        self.socket.set_nonblocking(true).map_err(lost)?;
        let first = self.socket.read(&mut reply[..1]);
        self.socket.set_nonblocking(false).map_err(lost)?;
        match first {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(lost(error)),
            Ok(0) => return Err(lost(ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
        }
        self.socket.read_exact(&mut reply[1..]).map_err(lost)?;
        self.rest_of_answer(&reply, read_bytes).map(Some)
    }

    fn rest_of_answer(
        &mut self,
        reply: &[u8; 16],
        read_bytes: impl Fn(u64) -> usize,
    ) -> Result<(u64, Vec<u8>)> {
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
        check(word(0) == REPLY_MAGIC, format!("the server answers {reply:02x?}"))?;
        if word(4) != 0 {
            return Err(Error::Refused { what: format!("request {cookie}"), errno: word(4) });
        }
        let mut read = vec![0; read_bytes(cookie)];
        self.socket.read_exact(&mut read).map_err(lost)?;
        Ok((cookie, read))
    }

    /// Fills blocks of 4 KiB with a value.
    ///
    /// # Errors
    /// A write fails.
    pub fn fill(&mut self, blocks: Range<u64>, value: u8) -> Result<()> {
        for block in blocks {
            self.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut [value; BLOCK as usize])?;
        }
        Ok(())
    }

    /// The same, durably.
    ///
    /// # Errors
    /// A write fails, or the flush.
    pub fn fill_durably(&mut self, blocks: Range<u64>, value: u8) -> Result<()> {
        self.fill(blocks, value)?;
        self.ask(Command::Flush, 0, 0, &mut [])
    }

    /// Checks that a value fills blocks of 4 KiB.
    ///
    /// # Errors
    /// It does not, or a read fails.
    pub fn check_filled(&mut self, blocks: Range<u64>, value: u8) -> Result<()> {
        for block in blocks {
            let mut data = [!value; BLOCK as usize];
            self.ask(Command::Read, block * BLOCK, BLOCK as u32, &mut data)?;
            let first = data[0];
            let is_filled = data.iter().all(|byte| *byte == value);
            check(is_filled, format!("block {block}: {first}, not {value}"))?;
        }
        Ok(())
    }
}
