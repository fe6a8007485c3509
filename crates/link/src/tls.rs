//! TLS 1.3 with certificates of both hosts.

use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::config::{LinkConfig, LinkError, Security};

/// What both directions need.
#[derive(Clone)]
pub struct Tls {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

/// Reads certificates and key; `None` for connections without TLS.
pub fn load(config: &LinkConfig) -> Result<Option<Tls>, LinkError> {
    let Security::Tls { certificate, key, authority } = &config.security else { return Ok(None) };
    for name in config.peers.iter().map(|peer| &peer.name).chain([&config.name]) {
        ServerName::try_from(name.clone()).map_err(|_| LinkError::Name(name.clone()))?;
    }
    let unfit = |error: &dyn std::fmt::Display| LinkError::Certificate {
        certificate: certificate.clone(),
        why: error.to_string(),
    };
    let roots = Arc::new(roots(authority)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let verifier = verifier.map_err(|error| unfit(&error))?;
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unfit(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(certificate)?, private_key(key)?)
        .map_err(|error| unfit(&error))?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unfit(&error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
        .map_err(|error| unfit(&error))?;
    Ok(Some(Tls { client: Arc::new(client), server: Arc::new(server) }))
}

fn roots(path: &Path) -> Result<RootCertStore, LinkError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| LinkError::Certificate {
            certificate: path.to_path_buf(),
            why: error.to_string(),
        })?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let unreadable = |why| LinkError::File { path: path.to_path_buf(), what: "certificate", why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match found.map_err(|error| unreadable(error.to_string()))? {
        none if none.is_empty() => Err(unreadable("no PEM certificate in it".into())),
        some => Ok(some),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, LinkError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| LinkError::File {
        path: path.to_path_buf(),
        what: "private key",
        why: error.to_string(),
    })
}

/// Checks that the certificate that a host has shown is for its name.
pub fn check_name(certificate: Option<&CertificateDer<'_>>, name: &str) -> Result<(), String> {
    let certificate = certificate.ok_or("it has shown no certificate")?;
    let certificate = ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
    let server = ServerName::try_from(name).map_err(|error| error.to_string())?;
    verify_server_name(&certificate, &server).map_err(|error| format!("its certificate: {error}"))
}
