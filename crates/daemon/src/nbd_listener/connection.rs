//! A client's socket, with or without a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use haversack_engine::peer;
use nix::sys::socket::{setsockopt, sockopt};

/// A TCP client that is silent for a minute is probed, and given up after another minute.
const PROBE_AFTER_S: u32 = 60;
const PROBE_EVERY_S: u32 = 10;
const PROBES: u32 = 6;

/// A client's connection.
pub enum Client {
    /// On this host.
    Unix(UnixStream),
    /// Over the network.
    Tcp(TcpStream),
}

impl Client {
    fn set_read_time(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Client::Unix(stream) => stream.set_read_timeout(time),
            Client::Tcp(stream) => stream.set_read_timeout(time),
        }
    }

    fn set_write_time(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Client::Unix(stream) => stream.set_write_timeout(time),
            Client::Tcp(stream) => stream.set_write_timeout(time),
        }
    }

    /// Describes the peer, for messages.
    pub fn peer(&self) -> String {
        match self {
            Client::Unix(stream) => format!("NBD client {}", peer(stream)),
            Client::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => format!("NBD client {address}"),
                Err(_) => "an NBD client".into(),
            },
        }
    }

    /// Returns the socket, without a deadline. TCP keepalive detects a peer that has disappeared.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        self.set_read_time(None)?;
        self.set_write_time(None)?;
        match self {
            Client::Unix(stream) => Ok(stream.into()),
            Client::Tcp(stream) => {
                stream.set_nodelay(true)?;
                setsockopt(&stream, sockopt::TcpKeepIdle, &PROBE_AFTER_S)?;
                setsockopt(&stream, sockopt::TcpKeepInterval, &PROBE_EVERY_S)?;
                setsockopt(&stream, sockopt::TcpKeepCount, &PROBES)?;
                setsockopt(&stream, sockopt::KeepAlive, &true)?;
                Ok(stream.into())
            }
        }
    }
}

/// A connection on which all reads and writes together end by the deadline.
pub struct Timed {
    pub client: Client,
    pub deadline: Instant,
}

impl Timed {
    fn time_left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(too_long()) } else { Ok(left) }
    }
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the negotiation takes too long")
}

fn timed(result: io::Result<usize>) -> io::Result<usize> {
    result.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => too_long(),
        _ => error,
    })
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.client.set_read_time(Some(self.time_left()?))?;
        timed(match &mut self.client {
            Client::Unix(stream) => stream.read(buffer),
            Client::Tcp(stream) => stream.read(buffer),
        })
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.set_write_time(Some(self.time_left()?))?;
        timed(match &mut self.client {
            Client::Unix(stream) => stream.write(bytes),
            Client::Tcp(stream) => stream.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One deadline applies to all reads, and to a write whose data the peer does not read.
    #[test]
    fn bytes_that_trickle_do_not_move_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(300);
        let mut timed = Timed { client: Client::Unix(ours), deadline };
        let trickle = std::thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // At this rate, the buffer would be full after 20 seconds.
        let mut buffer = [0; 1024];
        let error = timed.read_exact(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        timed.deadline = Instant::now() + Duration::from_millis(100);
        assert_eq!(timed.write_all(&vec![0; 16 << 20]).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(timed);
        trickle.join().unwrap();
    }
}
