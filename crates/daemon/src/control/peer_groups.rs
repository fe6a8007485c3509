//! The groups of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Groups that fit at the first attempt.
const FEW: usize = 64;

/// Returns the supplementary groups that a process had when it connected.
///
/// # Errors
/// Not supported: Linux before 4.13, or not a Unix socket.
pub fn peer_groups(stream: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; FEW];
    loop {
        let mut length = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` has room for `length` bytes, any bytes are valid numbers, and the kernel writes no more.
        // Both pointers outlive the call.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if failed == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Too many to fit: the kernel has returned the required length.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_this_process_are_returned() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let mut groups = peer_groups(&stream).unwrap();
        let mut expected: Vec<u32> =
            nix::unistd::getgroups().unwrap().into_iter().map(nix::unistd::Gid::as_raw).collect();
        groups.sort_unstable();
        expected.sort_unstable();
        assert_eq!(groups, expected);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_groups(&file).is_err());
    }
}
