//! A connection over which lines go both ways.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::address::Address;

/// The longest line that is accepted: QEMU's are a few KiB.
pub(crate) const MOST_LINE_BYTES: usize = 256 << 10;
/// The shortest timeout that the system supports.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// A connection over which lines go both ways.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: Stream,
    /// Received data that is not a complete line yet.
    unread: Vec<u8>,
}

/// What came until a deadline.
#[derive(Debug)]
pub(crate) enum Received {
    /// A line, with its end.
    Line(Vec<u8>),
    /// No complete line; a part of one is kept.
    Nothing,
    /// More than [`MOST_LINE_BYTES`] without an end of line.
    TooLong,
    /// The peer has closed the connection after this part of a line.
    End(Vec<u8>),
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

impl Lines {
    /// Connects.
    pub fn connect(address: &Address, patience: Duration) -> io::Result<Lines> {
        Ok(Lines { stream: Stream::connect(address, patience)?, unread: Vec::new() })
    }

    /// Uses a connection that there is already.
    pub fn of_stream(stream: UnixStream) -> Lines {
        Lines { stream: Stream::Unix(stream), unread: Vec::new() }
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8], limit: Duration) -> io::Result<()> {
        self.stream.write(bytes, limit)
    }

    /// Returns what comes until the deadline.
    pub fn next(&mut self, deadline: Instant) -> io::Result<Received> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.unread[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(Received::Line(self.unread.drain(..=searched + end).collect()));
            }
            searched = self.unread.len();
            if searched > MOST_LINE_BYTES {
                return Ok(Received::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && searched > 0 {
                return Ok(Received::Nothing);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer, left) {
                Ok(0) => return Ok(Received::End(std::mem::take(&mut self.unread))),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if is_time_out(&error) => return Ok(Received::Nothing),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether an error means that a time limit has passed.
pub(crate) fn is_time_out(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
