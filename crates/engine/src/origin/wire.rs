//! Whether the host at the other end of a TCP connection still answers.
//!
//! A connection that the network cut sends no error: TCP repeats what was not acknowledged for a quarter of an hour, and
//! other connections could take the requests in the meantime. Idle connections are ended by keepalive. For others the
//! kernel has `TCP_USER_TIMEOUT`, but that also ends a connection to a server that is only slow and has stopped reading:
//! then requests that it still has may be carried out after their repetitions. So what the kernel knows about the
//! connection is looked at here.
//!
//! Invariant: a connection whose peer acknowledges anything within [`SILENT`] is not cut, however slow the server is.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};

/// How long a connection is idle before the kernel sends the first keepalive probe.
const PROBE_AFTER: Duration = Duration::from_secs(3);
/// The time between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// How many unanswered probes end the connection.
const PROBES: u32 = 3;
/// A peer that has not answered anything for this time is gone: as long as the probes take.
const SILENT: Duration = Duration::from_secs(9);

/// What the kernel knows about a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Signs {
    /// Time since anything arrived.
    quiet: Duration,
    /// Segments that were sent and not acknowledged.
    unacknowledged: u32,
    /// Probes without an answer, of a peer that has no room for more data.
    unanswered: u8,
}

/// A TCP connection that is watched.
pub(super) struct Wire {
    socket: OwnedFd,
    silent: Duration,
}

impl Wire {
    /// Lets the kernel probe a connection that is idle.
    pub fn watch(stream: &TcpStream) -> io::Result<Wire> {
        Self::watch_for(stream, SILENT)
    }

    /// As [`Wire::watch`]; `silent` is used instead of [`SILENT`].
    pub fn watch_for(stream: &TcpStream, silent: Duration) -> io::Result<Wire> {
        set_tcp_keepidle(stream, PROBE_AFTER)?;
        set_tcp_keepintvl(stream, PROBE_EVERY)?;
        set_tcp_keepcnt(stream, PROBES)?;
        set_socket_keepalive(stream, true)?;
        Ok(Wire { socket: stream.try_clone()?.into(), silent })
    }

    /// Returns whether the peer has not answered for that time.
    pub fn is_cut(&self) -> bool {
        self.signs().is_some_and(|signs| is_cut(signs, self.silent))
    }

    fn signs(&self) -> Option<Signs> {
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to `info`; rustix has no call for this option.
        let result = unsafe {
            let into = info.as_mut_ptr().cast();
            libc::getsockopt(self.socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut bytes)
        };
        // SAFETY: all zeroes is a valid value, and so is whatever the kernel writes.
        let info = unsafe { info.assume_init() };
        let quiet_ms = info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv);
        (result == 0).then(|| Signs {
            quiet: Duration::from_millis(quiet_ms.into()),
            unacknowledged: info.tcpi_unacked,
            unanswered: info.tcpi_probes,
        })
    }
}

/// A peer that has no room for more data is probed ever more rarely, so its silence alone says nothing.
fn is_cut(signs: Signs, silent: Duration) -> bool {
    signs.quiet >= silent && (signs.unacknowledged > 0 || signs.unanswered > 1)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(500);

    /// Makes a connection; the second end is the server's.
    pub fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    /// Drops whatever arrives at a socket, as if the network were cut.
    pub fn cut(socket: &TcpStream) {
        let mut drop_all = libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
        // SAFETY: the kernel copies the program during the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_is_cut() {
        let (mut ours, theirs) = pair();
        let wire = Wire::watch_for(&ours, SHORT).unwrap();
        cut(&theirs);
        ours.write_all(b"request").unwrap();
        while !wire.is_cut() {
            std::thread::sleep(SHORT / 10);
        }
    }

    #[test]
    fn a_server_that_only_reads_nothing_is_not_cut() {
        let (mut ours, mut theirs) = pair();
        let wire = Wire::watch_for(&ours, SHORT).unwrap();
        ours.set_write_timeout(Some(SHORT)).unwrap();
        while ours.write(&[0; 1 << 16]).is_ok() {}
        for _ in 0..40 {
            assert!(!wire.is_cut(), "{:?}", wire.signs());
            std::thread::sleep(SHORT / 10);
        }
        assert!(theirs.read(&mut [0; 16]).unwrap() > 0);
    }

    #[test]
    fn silence_counts_only_if_something_is_unanswered() {
        let signs = |quiet_s, unacknowledged, unanswered| Signs {
            quiet: Duration::from_secs(quiet_s),
            unacknowledged,
            unanswered,
        };
        for (signs, expected) in [
            (signs(100, 0, 0), false),
            (signs(100, 0, 1), false),
            (signs(8, 3, 9), false),
            (signs(9, 1, 0), true),
            (signs(9, 0, 2), true),
        ] {
            assert_eq!(is_cut(signs, SILENT), expected, "{signs:?}");
        }
    }
}
