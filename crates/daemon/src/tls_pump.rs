//! TLS for the engine, which speaks plain NBD: a thread a connection that copies between the client's encrypted
//! socket and one end of a socket pair, whose other end the engine has.
//!
//! Invariants
//! - Nothing is read while what was read before cannot be passed on, so memory is bounded by [`COPY_BYTES`] and rustls' own
//!   buffers.
//! - When one side ends, what it sent is still passed on; then both are closed.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::ServerConnection;

/// Bytes read at a time.
const COPY_BYTES: usize = 256 << 10;

/// Starts the thread.
///
/// # Errors
/// The system refuses.
pub fn start(tls: ServerConnection, encrypted: OwnedFd, plain: UnixStream) -> io::Result<()> {
    plain.set_nonblocking(true)?;
    fcntl(&encrypted, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut pump = Pump {
        tls,
        encrypted: File::from(encrypted),
        plain,
        inward: Vec::new(),
        copy: vec![0; COPY_BYTES],
        ended: false,
    };
    pump.tls.set_buffer_limit(None);
    std::thread::Builder::new().name("nbd-tls".into()).spawn(move || {
        if let Err(error) = pump.run() {
            tracing::info!("NBD: a TLS connection ended: {error}");
        }
    })?;
    Ok(())
}

struct Pump {
    tls: ServerConnection,
    /// The client's socket. A file reads and writes a socket as well as any.
    encrypted: File,
    plain: UnixStream,
    /// Decrypted bytes that the engine has not taken yet.
    inward: Vec<u8>,
    copy: Vec<u8>,
    /// The engine has closed its end.
    ended: bool,
}

impl Pump {
    fn run(&mut self) -> io::Result<()> {
        // rustls may hold what came with the end of the negotiation.
        let mut client_open = self.decrypt()?;
        while client_open || !self.inward.is_empty() {
            if self.ended && !self.tls.wants_write() {
                return Ok(());
            }
            let (encrypted, plain) = self.wait(client_open)?;
            if encrypted.intersects(PollFlags::POLLOUT) {
                self.send()?;
            }
            if client_open
                && encrypted.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR)
            {
                client_open = self.receive()?;
            }
            if !self.inward.is_empty() && plain.intersects(PollFlags::POLLOUT | PollFlags::POLLERR) {
                self.pass_inward()?;
            }
            if !self.ended && plain.intersects(PollFlags::POLLIN | PollFlags::POLLHUP) {
                self.take_outward()?;
            }
        }
        Ok(())
    }

    /// Waits until something can be done.
    fn wait(&self, client_open: bool) -> io::Result<(PollFlags, PollFlags)> {
        let when = |flag, condition| if condition { flag } else { PollFlags::empty() };
        let sending = self.tls.wants_write();
        let encrypted = when(PollFlags::POLLIN, client_open && self.inward.is_empty())
            | when(PollFlags::POLLOUT, sending);
        let plain = when(PollFlags::POLLIN, !sending && !self.ended)
            | when(PollFlags::POLLOUT, !self.inward.is_empty());
        let mut fds =
            [PollFd::new(self.encrypted.as_fd(), encrypted), PollFd::new(self.plain.as_fd(), plain)];
        poll(&mut fds, PollTimeout::NONE)?;
        Ok((fds[0].revents().unwrap_or(PollFlags::empty()), fds[1].revents().unwrap_or(PollFlags::empty())))
    }

    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.encrypted) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// False at the client's end.
    fn receive(&mut self) -> io::Result<bool> {
        match self.tls.read_tls(&mut self.encrypted) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
        self.decrypt()
    }

    /// False at the client's end.
    fn decrypt(&mut self) -> io::Result<bool> {
        let state = self.tls.process_new_packets().map_err(io::Error::other)?;
        let at = self.inward.len();
        self.inward.resize(at + state.plaintext_bytes_to_read(), 0);
        self.tls.reader().read_exact(&mut self.inward[at..])?;
        Ok(!state.peer_has_closed())
    }

    fn pass_inward(&mut self) -> io::Result<()> {
        match self.plain.write(&self.inward) {
            Ok(count) => drop(self.inward.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn take_outward(&mut self) -> io::Result<()> {
        match self.plain.read(&mut self.copy) {
            Ok(0) => {
                self.ended = true;
                self.tls.send_close_notify();
            }
            Ok(count) => self.tls.writer().write_all(&self.copy[..count])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        self.send()
    }
}
