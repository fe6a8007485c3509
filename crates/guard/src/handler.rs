//! The SIGBUS handler. It uses only what is allowed in a signal handler: atomics and system calls.

use std::io;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};

use crate::table;

/// Installs the handler, once per process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_fault;
        // On the thread's alternate stack, if it has one.
        set_action(handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
    });
    installed.map_err(io::Error::from_raw_os_error)
}

fn set_action(action: usize, flags: c_int) -> Result<(), i32> {
    // SAFETY: all zeroes is a valid action with an empty mask; the kernel only reads it.
    let done = unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (action, flags);
        libc::sigaction(libc::SIGBUS, &raw const new, std::ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)) }
}

extern "C" fn on_fault(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer to a handler with SA_SIGINFO; all faults have the address in
    // the same field.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: errno belongs to this thread. The interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // If a process sent the signal, the code is not positive and there is no address.
    let from_kernel = code > 0;
    if !(from_kernel && survives(address)) {
        // After the return the access is repeated, now with the default action; a sent signal is raised again.
        let _ = set_action(libc::SIG_DFL, 0);
        if !from_kernel {
            // SAFETY: changes no memory.
            unsafe { libc::raise(libc::SIGBUS) };
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Lets the faulting thread continue, if the address is in a mapping whose loss is survived.
fn survives(address: usize) -> bool {
    let Some(found) = table::find(address) else { return false };
    if let Some((message, bytes)) = found.message {
        // SAFETY: the guard keeps the message as long as its table entry, and the faulting thread keeps the
        // guard.
        unsafe { libc::write(libc::STDERR_FILENO, message.cast(), bytes) };
        return false;
    }
    found.mark();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: replaces one whole mapping, which is accessed only by raw copies and atomics that accept any
    // bytes. Its owner cannot unmap it now, because this thread was accessing it.
    let new = unsafe { libc::mmap(found.start as *mut c_void, found.bytes, protection, flags, -1, 0) };
    new != libc::MAP_FAILED
}
