//! Unix sockets by path.
//!
//! Invariants
//! - Only a socket that no process serves is ever removed to make room for a socket.
//! - A socket appears under its name with its permissions set and accepts connections from then on.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process serves it.
    #[error("{0}: another process serves this socket; stop it or choose another path")]
    InUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{0}: exists and is not a socket; remove it or choose another path")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("{0}: cannot listen: {1}")]
    Listen(PathBuf, #[source] io::Error),
}

/// A socket that was created here.
#[derive(Debug)]
pub struct BoundSocket {
    path: PathBuf,
    /// Device and inode: another socket at the same path must not be removed by us.
    identity: (u64, u64),
}

/// Listens on a path with permissions `mode`, such as 0o600, replacing a socket that no process serves.
///
/// # Errors
/// See [`SocketError`]; anything at the path but a stale socket is kept.
pub fn bind(path: &Path, mode: u32) -> Result<(UnixListener, BoundSocket), SocketError> {
    let refused = |e| SocketError::Listen(path.into(), e);
    let mut name = path.file_name().ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?.to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    remove_stale(path)?;
    remove_stale(&new)?;
    let listener = UnixListener::bind(&new).map_err(refused)?;
    // A hard link, since a rename would overwrite whatever was created there in the meantime.
    let named = std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode))
        .and_then(|()| std::fs::hard_link(&new, path))
        .and_then(|()| std::fs::symlink_metadata(path));
    let _ = std::fs::remove_file(&new);
    let found = named.map_err(refused)?;
    Ok((listener, BoundSocket { path: path.into(), identity: identity(&found) }))
}

/// Removes a socket that no process serves.
///
/// # Errors
/// The path is something else.
pub fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let refused = |e| SocketError::Listen(path.into(), e);
    let found = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(refused)?,
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.into()));
    }
    match connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(refused),
        // Its queue is full, or it is a socket of another type.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::AGAIN | Errno::PROTOTYPE)) => {
            Err(SocketError::InUse(path.into()))
        }
        Err(e) => Err(refused(e)),
        Ok(_) => Err(SocketError::InUse(path.into())),
    }
}

/// Connects to a socket. It never waits: a blocking connect waits for as long as the other side accepts nothing.
///
/// # Errors
/// Nobody listens, the queue of connections is full (`WouldBlock`), or it is a socket of another type.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn identity(found: &std::fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl BoundSocket {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless another has replaced it.
    pub fn remove(&self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            // It may disappear at any time, and then there is nothing left to do.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_accepts_nothing_holds_up_nobody() {
        let path = std::env::temp_dir().join(format!("haversack-socket-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut queue = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(socket) => queue.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(!queue.is_empty(), "it takes connections at first");
        assert!(matches!(remove_stale(&path), Err(SocketError::InUse(_))));
        drop(listener);
        remove_stale(&path).unwrap();
        assert!(!path.exists());
    }
}
