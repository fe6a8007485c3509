//! TLS as a client of origins: which certificates to trust and which to present.
//!
//! Invariants
//! - The files are read for every connection, so that a renewed certificate is used from the next connection
//!   on.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::config::TlsFiles;

/// The authorities' certificates: the bundle of Debian and other distributions, unless `SSL_CERT_FILE` names
/// another.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

fn in_file(path: &Path) -> impl Fn(rustls::pki_types::pem::Error) -> io::Error {
    move |error| io::Error::other(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match found.map_err(in_file(path))? {
        none if none.is_empty() => {
            Err(io::Error::other(format!("{}: no PEM certificate in it", path.display())))
        }
        some => Ok(some),
    }
}

fn authorities(files: &TlsFiles) -> io::Result<RootCertStore> {
    let usual = || std::env::var_os("SSL_CERT_FILE").unwrap_or_else(|| AUTHORITIES.into()).into();
    let path = files.ca.clone().unwrap_or_else(usual);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
    }
    Ok(roots)
}

/// Accepts any certificate: the user set `tls-verify-peer=false`.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

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

fn client_config(files: &TlsFiles, verify: bool) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = if verify {
        builder.with_root_certificates(authorities(files)?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider)))
    };
    let (Some(certificate), Some(key)) = (&files.certificate, &files.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let private = PrivateKeyDer::from_pem_file(key).map_err(in_file(key))?;
    let unfit = |e| io::Error::other(format!("{} and {}: {e}", certificate.display(), key.display()));
    builder.with_client_auth_cert(certificates(certificate)?, private).map_err(unfit)
}

/// Reads the files and checks that they match.
///
/// # Errors
/// A file cannot be read or is invalid, or the files do not match.
pub(crate) fn check(files: &TlsFiles, verify: bool) -> io::Result<()> {
    client_config(files, verify).map(drop)
}

/// The server closed the connection just after TLS began. Many do so, without an alert, when they reject a
/// certificate.
#[derive(Debug, thiserror::Error)]
#[error("{0}; a server does this if it rejects the client's certificate, or requires one")]
struct HungUp(io::Error);

/// Adds the likely reason to the error of a server that ends the connection as soon as TLS has begun.
pub(crate) fn hung_up(error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe => io::Error::other(HungUp(error)),
        _ => error,
    }
}

/// Returns whether one side rejects the other's certificate, so that retrying does not help.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let Some(inside) = error.get_ref() else { return false };
    if inside.is::<HungUp>() {
        return true;
    }
    match inside.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        _ => false,
    }
}

/// Starts TLS as a client, on a stream with timeouts set.
pub(crate) fn connect<S: Read + Write>(
    stream: S,
    host: &str,
    verify: bool,
    files: &TlsFiles,
) -> io::Result<StreamOwned<ClientConnection, S>> {
    let config = client_config(files, verify)?;
    let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, stream))
}
