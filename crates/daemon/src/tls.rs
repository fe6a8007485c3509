//! TLS for servers: certificates and keys from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has no PEM of the kind.
    #[error("{path}: cannot read the {what}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key do not fit.
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

/// A server that shows a certificate and asks clients for none.
///
/// # Errors
/// See [`TlsError`].
pub fn server_config(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let unreadable = |path: &Path, what, why: String| TlsError::File { path: path.to_path_buf(), what, why };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| unreadable(certificate, "certificate", e.to_string()))?;
    if chain.is_empty() {
        return Err(unreadable(certificate, "certificate", "no PEM certificate in it".into()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, "private key", e.to_string()))?;
    let unfit = |source| TlsError::Unfit { certificate: certificate.into(), key: key.into(), source };
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unfit)
}
