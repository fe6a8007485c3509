//! TLS outside the reactor: a thread for each connection copies between the encrypted socket and one end of a
//! socket pair. The owner of the other end reads and writes plain bytes.
//!
//! Invariants
//! - Nothing is read while earlier data cannot be passed on, so memory is bounded by `COPY_BYTES` and rustls'
//!   own buffers in each direction.
//! - When one side ends, what it sent is still passed on; then both sides are closed. The connection is closed
//!   anyway if the peer has not read the rest after `LAST_TIME`, even if it sends all the time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use std::sync::LazyLock;

use rustls::Connection;

use crate::message_limit::MessageLimit;

/// Plain bytes read at a time.
const COPY_BYTES: usize = 256 << 10;
/// How long the peer may take for the remaining data once the owner of the plain end is gone.
const LAST_TIME: Duration = Duration::from_secs(10);
static MESSAGES: LazyLock<MessageLimit> = LazyLock::new(|| MessageLimit::new("TLS connections"));

/// Starts the thread for a connection whose handshake is done. Returns the plain end. `held` is dropped when
/// the thread ends.
///
/// # Errors
/// The socket pair or the thread cannot be created.
pub fn start(tls: Connection, encrypted: OwnedFd, held: impl Send + 'static) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut pump = Pump::new(tls, encrypted, ours)?;
    let run = move || {
        if let Err(error) = pump.run() {
            MESSAGES.tell(|| tracing::info!(%error, "a TLS connection ended"));
        }
        // The other side may be gone already.
        let _ = pump.encrypted.shutdown(Shutdown::Both);
        drop((pump, held));
    };
    std::thread::Builder::new().name("tls".into()).spawn(run)?;
    Ok(theirs.into())
}

struct Pump {
    tls: Connection,
    encrypted: TcpStream,
    plain: UnixStream,
    /// Decrypted bytes for the owner of the plain end, and how many of them have been written to it.
    inward: Vec<u8>,
    passed: usize,
    copy: Vec<u8>,
    /// The encrypted side has ended.
    peer_ended: bool,
    /// The plain side has ended.
    owner_ended: bool,
    /// Deadline for the peer to take the remaining data.
    ends: Option<Instant>,
}

/// Which of the two sockets is readable, if that was asked for.
struct Ready {
    encrypted: bool,
    plain: bool,
}

/// Returns `None` where the socket would block.
fn unless_it_would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        result => result.map(Some),
    }
}

impl Pump {
    fn new(mut tls: Connection, encrypted: OwnedFd, plain: UnixStream) -> io::Result<Pump> {
        // `TcpStream` is only a wrapper for a stream socket here: reads, writes and shutdown work on Unix sockets
        // as well.
        let encrypted = TcpStream::from(encrypted);
        encrypted.set_nonblocking(true)?;
        plain.set_nonblocking(true)?;
        tls.set_buffer_limit(None);
        Ok(Pump {
            tls,
            encrypted,
            plain,
            inward: Vec::new(),
            passed: 0,
            copy: vec![0; COPY_BYTES],
            peer_ended: false,
            owner_ended: false,
            ends: None,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        // rustls may hold data that arrived with the end of the handshake.
        self.decrypt()?;
        loop {
            self.send()?;
            self.pass_inward();
            let all_passed = self.peer_ended && self.inward.is_empty();
            let all_sent = self.owner_ended && !self.tls.wants_write();
            if all_passed || all_sent {
                return Ok(());
            }
            let ready = self.wait()?;
            if ready.encrypted {
                self.receive()?;
            }
            if ready.plain {
                self.take_outward()?;
            }
        }
    }

    /// Waits until something can be done.
    fn wait(&self) -> io::Result<Ready> {
        let late = || io::Error::new(ErrorKind::TimedOut, "the peer does not read the remaining data");
        let left = self.ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        // A peer that keeps sending always makes poll report something.
        if left == Some(Duration::ZERO) {
            return Err(late());
        }
        let sending = self.tls.wants_write();
        let passing = !self.inward.is_empty();
        let entry = |fd, reads, writes| {
            let events = if reads { libc::POLLIN } else { 0 } | if writes { libc::POLLOUT } else { 0 };
            // Without a requested event, poll would report a socket's end again and again; -1 makes it skip the
            // socket.
            libc::pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 }
        };
        let mut sockets = [
            entry(self.encrypted.as_raw_fd(), !self.peer_ended && !passing, sending),
            entry(self.plain.as_raw_fd(), !self.owner_ended && !sending, passing),
        ];
        let time_ms = left.map_or(-1, |left| left.as_millis() as i32);
        // SAFETY: the array lives through the call.
        let count = unsafe { libc::poll(sockets.as_mut_ptr(), sockets.len() as libc::nfds_t, time_ms) };
        if count == 0 {
            return Err(late());
        }
        if count < 0 {
            let error = io::Error::last_os_error();
            // Signals are handled elsewhere; try again.
            return if error.kind() == ErrorKind::Interrupted {
                Ok(Ready { encrypted: false, plain: false })
            } else {
                Err(error)
            };
        }
        let readable = |socket: &libc::pollfd| {
            socket.events & libc::POLLIN != 0
                && socket.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0
        };
        Ok(Ready { encrypted: readable(&sockets[0]), plain: readable(&sockets[1]) })
    }

    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match unless_it_would_block(self.tls.write_tls(&mut self.encrypted))? {
                None => return Ok(()),
                Some(0) => return Err(ErrorKind::WriteZero.into()),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        match unless_it_would_block(self.tls.read_tls(&mut self.encrypted))? {
            None => Ok(()),
            Some(0) => {
                self.peer_ended = true;
                Ok(())
            }
            Some(_) => self.decrypt(),
        }
    }

    fn decrypt(&mut self) -> io::Result<()> {
        let state = self.tls.process_new_packets().map_err(io::Error::other)?;
        let at = self.inward.len();
        self.inward.resize(at + state.plaintext_bytes_to_read(), 0);
        self.tls.reader().read_exact(&mut self.inward[at..])?;
        self.peer_ended |= state.peer_has_closed();
        Ok(())
    }

    /// Passes decrypted bytes to the owner. If the owner is gone they are dropped; what it wrote before is
    /// still read.
    fn pass_inward(&mut self) {
        while self.passed < self.inward.len() {
            match unless_it_would_block(self.plain.write(&self.inward[self.passed..])) {
                Ok(Some(count)) => self.passed += count,
                Ok(None) => return,
                Err(_) => break,
            }
        }
        self.inward.clear();
        self.passed = 0;
    }

    fn take_outward(&mut self) -> io::Result<()> {
        match unless_it_would_block(self.plain.read(&mut self.copy))? {
            None => {}
            Some(0) => {
                self.owner_ended = true;
                self.ends = Some(Instant::now() + LAST_TIME);
                self.tls.send_close_notify();
            }
            Some(count) => self.tls.writer().write_all(&self.copy[..count])?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    };

    use super::*;

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    fn client(roots: RootCertStore) -> ClientConnection {
        let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
        ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
    }

    /// Returns a client after its handshake, and the plain end of the pump behind the server that it talks to.
    fn connected() -> (StreamOwned<ClientConnection, UnixStream>, UnixStream) {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let server = server.unwrap().with_no_client_auth().with_single_cert(vec![certificate.clone()], key);
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let serve = std::thread::spawn(move || {
            let mut tls = ServerConnection::new(Arc::new(server.unwrap())).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut theirs).unwrap();
            }
            UnixStream::from(start(tls.into(), theirs.into(), ()).unwrap())
        });
        let mut client = StreamOwned::new(client(roots), ours);
        client.conn.complete_io(&mut client.sock).unwrap();
        (client, serve.join().unwrap())
    }

    /// More than all buffers in between can hold.
    const MUCH: usize = 8 << 20;

    fn pattern() -> Vec<u8> {
        (0..MUCH).map(|at| (at / 251) as u8).collect()
    }

    #[test]
    fn bytes_arrive_on_both_ways_at_once() {
        let (mut client, mut plain) = connected();
        let mut echo = plain.try_clone().unwrap();
        let back = std::thread::spawn(move || io::copy(&mut plain, &mut echo));
        for piece in pattern().chunks(100_000) {
            client.write_all(piece).unwrap();
            let mut read = vec![0; piece.len()];
            client.read_exact(&mut read).unwrap();
            assert!(read == piece);
        }
        drop(client);
        assert_eq!(back.join().unwrap().unwrap(), MUCH as u64);
    }

    #[test]
    fn a_peer_that_only_sends_is_not_waited_for_either() {
        let (mut peer, encrypted) = UnixStream::pair().unwrap();
        let (plain, _owner) = UnixStream::pair().unwrap();
        let mut pump = Pump::new(client(RootCertStore::empty()).into(), encrypted.into(), plain).unwrap();
        peer.write_all(&[0; 100]).unwrap();
        pump.ends = Some(Instant::now() + Duration::from_secs(60));
        assert!(pump.wait().unwrap().encrypted);
        pump.ends = Some(Instant::now());
        assert_eq!(pump.wait().err().unwrap().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn data_sent_before_the_end_arrives() {
        let (mut client, mut plain) = connected();
        let sender = std::thread::spawn(move || {
            client.write_all(&pattern()).unwrap();
            client.conn.send_close_notify();
            client.flush().unwrap();
        });
        let mut read = Vec::new();
        plain.read_to_end(&mut read).unwrap();
        sender.join().unwrap();
        assert!(read == pattern());

        let (mut client, mut plain) = connected();
        let sender = std::thread::spawn(move || plain.write_all(&pattern()).unwrap());
        let mut read = Vec::new();
        client.read_to_end(&mut read).unwrap();
        sender.join().unwrap();
        assert!(read == pattern());
    }
}
