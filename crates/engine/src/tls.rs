//! TLS outside of the reactor: a thread per connection turns it into plain bytes on a socket pair, whose other end the
//! reactor drives like any connection.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, StreamOwned};

/// Where the certificates of authorities are: the bundle that Debian and others keep, or what `SSL_CERT_FILE` names.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Plain bytes that may wait on either side.
const WAITING_BYTES: usize = 256 << 10;

fn authorities() -> io::Result<RootCertStore> {
    let path = std::env::var_os("SSL_CERT_FILE").unwrap_or_else(|| AUTHORITIES.into());
    let bad = |error| io::Error::other(format!("{}: {error:?}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&path).map_err(bad)? {
        roots.add(certificate.map_err(bad)?).map_err(io::Error::other)?;
    }
    Ok(roots)
}

/// Takes any certificate: the user said `tls-verify-peer=false`.
#[derive(Debug)]
struct Anyone(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Begins TLS as a client, on a stream with time-outs set.
pub(crate) fn connect<S: Read + Write>(
    stream: S,
    host: &str,
    verify: bool,
) -> io::Result<StreamOwned<ClientConnection, S>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let config = if verify {
        builder.with_root_certificates(authorities()?).with_no_client_auth()
    } else {
        let anyone = Arc::new(Anyone(provider));
        builder.dangerous().with_custom_certificate_verifier(anyone).with_no_client_auth()
    };
    let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, stream))
}

/// Moves bytes between a TLS connection, past its handshake, and the socket that is returned, in a thread that
/// ends with either.
///
/// # Errors
/// No socket pair or thread can be had.
pub fn relay(connection: Connection, socket: OwnedFd) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let socket = std::net::TcpStream::from(socket);
    // The type is only a name for a stream socket here: reads, writes and shutdown work on Unix sockets as well.
    socket.set_nonblocking(true)?;
    ours.set_nonblocking(true)?;
    let mut relay = Relay { connection, socket, plain: ours, from_tls: Vec::new(), sent: 0, plain_ended: false };
    relay.connection.set_buffer_limit(Some(WAITING_BYTES));
    let run = move || {
        if let Err(error) = relay.run() {
            tracing::debug!(%error, "a TLS connection ended");
        }
        let _ = relay.socket.shutdown(std::net::Shutdown::Both);
        let _ = relay.plain.shutdown(std::net::Shutdown::Both);
    };
    std::thread::Builder::new().name("tls-relay".into()).spawn(run)?;
    Ok(theirs.into())
}

struct Relay {
    connection: Connection,
    socket: std::net::TcpStream,
    plain: UnixStream,
    /// Plain bytes on their way to the reactor, and how many of them have gone.
    from_tls: Vec<u8>,
    sent: usize,
    plain_ended: bool,
}

fn wait(fds: &mut [libc::pollfd]) -> io::Result<()> {
    // SAFETY: the array lives through the call.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
    if ready < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Relay {
    fn run(&mut self) -> io::Result<()> {
        loop {
            self.tls_out()?;
            self.plain_out()?;
            if self.plain_ended && !self.connection.wants_write() {
                return Ok(());
            }
            let taking = self.from_tls.len() < WAITING_BYTES;
            let mut of_socket = if taking { libc::POLLIN } else { 0 };
            let mut of_plain = 0;
            if self.connection.wants_write() {
                of_socket |= libc::POLLOUT;
            } else if !self.plain_ended {
                of_plain |= libc::POLLIN;
            }
            if !self.from_tls.is_empty() {
                of_plain |= libc::POLLOUT;
            }
            let fd = |fd: RawFd, events: i16| libc::pollfd { fd, events, revents: 0 };
            let mut fds = [fd(self.socket.as_raw_fd(), of_socket), fd(self.plain.as_raw_fd(), of_plain)];
            match wait(&mut fds) {
                Err(error) if would_block(&error) => continue,
                result => result?,
            }
            let came = |fd: &libc::pollfd| fd.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0;
            if came(&fds[0]) && taking {
                self.tls_in()?;
            }
            if came(&fds[1]) && of_plain & libc::POLLIN != 0 {
                self.plain_in()?;
            }
        }
    }

    fn tls_in(&mut self) -> io::Result<()> {
        match self.connection.read_tls(&mut self.socket) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if would_block(&error) => return Ok(()),
            result => result?,
        };
        self.connection.process_new_packets().map_err(io::Error::other)?;
        match self.connection.reader().read_to_end(&mut self.from_tls) {
            Err(error) if !would_block(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn tls_out(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Err(error) if would_block(&error) => break,
                result => result?,
            };
        }
        Ok(())
    }

    fn plain_in(&mut self) -> io::Result<()> {
        let mut buffer = [0; 64 << 10];
        match self.plain.read(&mut buffer) {
            Ok(0) => {
                self.plain_ended = true;
                self.connection.send_close_notify();
                Ok(())
            }
            Ok(bytes) => self.connection.writer().write_all(&buffer[..bytes]),
            Err(error) if would_block(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn plain_out(&mut self) -> io::Result<()> {
        while self.sent < self.from_tls.len() {
            match self.plain.write(&self.from_tls[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.from_tls.clear();
        self.sent = 0;
        Ok(())
    }
}
