//! The process at the other end of a Unix socket.

use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Returns the process that made the connection: `pid 17 (qemu-system-x86)`.
pub fn peer(socket: &UnixStream) -> String {
    match getsockopt(socket, PeerCredentials).map_or(0, |found| found.pid()) {
        // A process of another namespace has no number here.
        0 => "a process that cannot be seen".into(),
        pid => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("pid {pid} ({})", name.trim_end()),
            Err(_) => format!("pid {pid}"),
        },
    }
}
