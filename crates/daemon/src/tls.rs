//! TLS for servers: certificates and keys from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or contains no PEM of the expected kind.
    #[error("{path}: cannot read the {what}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key do not match.
    #[error("{certificate} and {key}: {source}")]
    Unfit {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |why| TlsError::File { path: path.to_path_buf(), what: "certificate", why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match found.map_err(|e| unreadable(e.to_string()))? {
        none if none.is_empty() => Err(unreadable("no PEM certificate in it".into())),
        some => Ok(some),
    }
}

/// The client certificates that a server requests, and the file of their authorities, PEM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientCertificates<'a> {
    /// None.
    None,
    /// Clients may present one; one that cannot be verified is refused.
    Accepted(&'a Path),
    /// Clients must present one.
    Required(&'a Path),
}

/// Makes the configuration of a server that presents a certificate.
///
/// # Errors
/// See [`TlsError`].
pub fn server_config(
    certificate: &Path,
    key: &Path,
    clients: ClientCertificates<'_>,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit = |source| TlsError::Unfit { certificate: certificate.into(), key: key.into(), source };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unfit)?;
    let builder = match clients {
        ClientCertificates::None => builder.with_no_client_auth(),
        ClientCertificates::Accepted(path) => {
            builder.with_client_cert_verifier(client_verifier(path, false, provider)?)
        }
        ClientCertificates::Required(path) => {
            builder.with_client_cert_verifier(client_verifier(path, true, provider)?)
        }
    };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| TlsError::File {
        path: key.to_path_buf(),
        what: "private key",
        why: e.to_string(),
    })?;
    builder.with_single_cert(certificates(certificate)?, private).map_err(unfit)
}

fn client_verifier(
    path: &Path,
    is_required: bool,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let unusable = |why| TlsError::File { path: path.to_path_buf(), what: "certificate", why };
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|e| unusable(e.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if is_required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|e| unusable(e.to_string()))
}
