//! Connecting to the daemon: a Unix socket, then the negotiation of the protocol. An attempt never takes long, whatever
//! the other side does.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use haversack_nbd::{
    ClientNegotiation, ClientStep, Connected, NbdUri, TlsPolicy, TransmissionFlags, Transport,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{UblkError, UpstreamError};

/// How long the daemon may take for the negotiation.
const PATIENCE: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The address of a disk.
#[derive(Clone, Debug)]
pub struct Upstream {
    uri: String,
    export: String,
    socket: PathBuf,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Connection {
    pub socket: UnixStream,
    pub connected: Connected,
}

impl FromStr for Upstream {
    type Err = UblkError;

    fn from_str(text: &str) -> Result<Self, UblkError> {
        let uri = NbdUri::from_str(text)?;
        let printed = uri.to_string();
        match uri.transport {
            Transport::Unix { socket } if !uri.tls => Ok(Self { uri: printed, export: uri.export, socket }),
            _ => Err(UblkError::NotLocal { uri: printed }),
        }
    }
}

impl Upstream {
    /// Returns the name of the disk.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// Returns the daemon's socket as a text.
    pub fn socket(&self) -> String {
        self.socket.display().to_string()
    }

    /// Returns a number for the URI, never 0. It goes into the kernel's description of a device, so that a device is
    /// never continued with another URI.
    pub fn identity(&self) -> u64 {
        // FNV-1a: the number must be the same in every version of this program.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.uri.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
    }

    /// Makes one attempt to connect.
    pub fn connect(&self) -> Result<Connection, UpstreamError> {
        let address = SocketAddrUnix::new(&self.socket).map_err(io::Error::from)?;
        // A blocking connect would wait for a daemon that accepts nothing.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(io::Error::from)?;
        rustix::net::connect(&socket, &address).map_err(io::Error::from)?;
        let mut socket = UnixStream::from(socket);
        socket.set_nonblocking(false)?;
        let mut timed = Timed { socket: &mut socket, deadline: Instant::now() + PATIENCE };
        let connected = negotiate(&mut timed, ClientNegotiation::new(&self.export, TlsPolicy::Off)?)?;
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        Ok(Connection { socket, connected })
    }
}

/// A socket that gives up at some time, however many bytes come until then.
struct Timed<'a> {
    socket: &'a mut UnixStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.time_left()?)?;
        self.socket.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.time_left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn negotiate(
    stream: &mut (impl Read + Write),
    mut negotiation: ClientNegotiation,
) -> Result<Connected, UpstreamError> {
    let (mut output, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => UpstreamError::Closed,
            _ => error.into(),
        })?;
        let step = negotiation.receive(&mut &*bytes, &mut output);
        stream.write_all(&output)?;
        output.clear();
        match step? {
            ClientStep::Continue => {}
            ClientStep::StartTls => return Err(UpstreamError::Tls),
            ClientStep::Connected(connected) => return Ok(connected),
        }
    }
}

/// Returns whether a flush on one connection covers the writes of others.
pub fn takes_several(connected: &Connected) -> bool {
    connected.flags.contains(TransmissionFlags::CAN_MULTI_CONN)
}

/// The pauses between attempts, each twice as long as the one before, up to a second.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Pauses {
    pub const fn new() -> Self {
        Self(SHORTEST_PAUSE)
    }

    /// Returns the next pause.
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(text: &str) -> Upstream {
        text.parse().unwrap()
    }

    #[test]
    fn only_a_local_daemon_is_an_upstream() {
        let upstream = upstream("nbd+unix:///vm1?socket=/run/haversack/nbd.sock");
        assert_eq!((upstream.export(), upstream.socket().as_str()), ("vm1", "/run/haversack/nbd.sock"));
        for (text, words) in [
            ("nbd://host/vm1", "expected nbd+unix://"),
            ("nbds+unix:///vm1?socket=/s", "without TLS"),
            ("nbd+unix:///vm1", "no socket"),
            ("vm1", "scheme"),
        ] {
            let error = Upstream::from_str(text).unwrap_err().to_string();
            assert!(error.contains(words), "{words:?} is not in {error:?}");
        }
    }

    /// Devices of other versions have this number.
    #[test]
    fn identities_never_change() {
        assert_eq!(upstream("nbd+unix:///vm1?socket=/s").identity(), fnv(b"nbd+unix:///vm1?socket=/s"));
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
        assert_ne!(
            upstream("nbd+unix:///vm1?socket=/s").identity(),
            upstream("nbd+unix:///vm2?socket=/s").identity()
        );
    }

    fn fnv(bytes: &[u8]) -> u64 {
        let mut hash: u64 = 14_695_981_039_346_656_037;
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
        }
        hash
    }

    #[test]
    fn pauses_grow_to_a_second() {
        let mut pauses = Pauses::new();
        let all: Vec<u128> = (0..8).map(|_| pauses.next().as_millis()).collect();
        assert_eq!(all, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
