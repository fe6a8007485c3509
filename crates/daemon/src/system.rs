//! Calls to the operating system: users, privileges, the end of child processes.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, User, chown, initgroups, setresgid, setresuid};

/// Why privileges cannot be dropped.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// There is no such user.
    #[error(
        "[daemon] user = '{user}': no such user; create it, for example with: adduser --system --group {user}"
    )]
    NoSuchUser {
        /// The user.
        user: String,
    },
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Refused {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: nix::Error,
    },
}

fn refused(action: impl Into<String>) -> impl FnOnce(nix::Error) -> SystemError {
    let action = action.into();
    move |source| SystemError::Refused { action, source }
}

/// Returns the user that the daemon should run as, if it is not that user already.
///
/// # Errors
/// There is no such user.
pub fn find_user(name: &str) -> Result<Option<User>, SystemError> {
    let user = User::from_name(name)
        .map_err(refused(format!("look up user '{name}'")))?
        .ok_or_else(|| SystemError::NoSuchUser { user: name.to_string() })?;
    Ok(Some(user).filter(|user| user.uid != Uid::effective()))
}

/// Changes the owner of a directory, file or socket to a user and a group.
///
/// # Errors
/// The system refused.
pub fn give(path: &Path, user: u32, group: u32) -> Result<(), SystemError> {
    let action = format!("give {} to user {user} and group {group}", path.display());
    chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(refused(action))
}

/// Switches to a user permanently, with all threads and in the user's groups.
///
/// # Errors
/// The system refused; some of the privileges may already be gone.
pub fn become_user(user: &User) -> Result<(), SystemError> {
    let action = || format!("become user '{}'", user.name);
    let name = std::ffi::CString::new(user.name.as_str()).unwrap_or_default();
    initgroups(&name, user.gid).map_err(refused(action()))?;
    setresgid(user.gid, user.gid, user.gid).map_err(refused(action()))?;
    setresuid(user.uid, user.uid, user.uid).map_err(refused(action()))?;
    if Uid::effective() != user.uid || Gid::effective() != user.gid {
        return Err(refused(action())(nix::Error::EPERM));
    }
    Ok(())
}

/// Leaves a descriptor open in a child. Returns its number there.
pub fn inherit(command: &mut Command, descriptor: OwnedFd) -> RawFd {
    let number = descriptor.as_raw_fd();
    // SAFETY: the closure runs in the child between fork and exec and makes one system call, fcntl, which is
    // async-signal-safe; it allocates nothing and takes no lock. The descriptor is open for as long as the closure
    // exists.
    unsafe {
        command.pre_exec(move || Ok(fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::empty())).map(drop)?));
    }
    number
}

/// Makes the kernel send a child this signal when the thread that starts it ends.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    let daemon = nix::unistd::getpid();
    // SAFETY: the closure runs in the child between fork and exec and makes two system calls, prctl and getppid, which
    // are async-signal-safe; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(signal)?;
            // The daemon may have died before the signal was set.
            if nix::unistd::getppid() == daemon { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
        });
    }
}
