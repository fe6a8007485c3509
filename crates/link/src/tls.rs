//! TLS 1.3 between hosts: the same certificate as a client and as a server.
//!
//! Invariants
//! - No session is resumed: every connection checks both certificates.
//! - A renewed certificate is used at most a minute after its file has changed. If the files cannot be used then, the
//!   old ones stay in use.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::config::TlsFiles;
use crate::error::LinkError;

/// How long files are not read again.
const FRESH: Duration = Duration::from_secs(60);

/// Configurations for both directions.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

/// Credentials that are read again from time to time.
#[derive(Debug)]
pub(crate) struct Keyring {
    name: String,
    files: TlsFiles,
    current: Credentials,
    read_at: Instant,
}

impl Keyring {
    /// Reads the files.
    pub fn open(name: &str, files: &TlsFiles) -> Result<Keyring, LinkError> {
        let current = load(name, files)?;
        Ok(Keyring { name: name.to_owned(), files: files.clone(), current, read_at: Instant::now() })
    }

    /// Returns the configuration for a connection that is made now.
    pub fn current(&mut self) -> Credentials {
        if self.read_at.elapsed() >= FRESH {
            self.read_at = Instant::now();
            match load(&self.name, &self.files) {
                Ok(new) => self.current = new,
                Err(error) => tracing::warn!(%error, "the certificate read before stays in use"),
            }
        }
        self.current.clone()
    }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let unreadable = |why| LinkError::File { path: path.to_path_buf(), what, why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match found.map_err(|e| unreadable(e.to_string()))? {
        none if none.is_empty() => Err(unreadable("no PEM certificate in it".into())),
        some => Ok(some),
    }
}

fn authorities(path: &Path) -> Result<Arc<RootCertStore>, LinkError> {
    let what = "authority";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, what)? {
        let unusable = |e: rustls::Error| LinkError::File { path: path.into(), what, why: e.to_string() };
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(Arc::new(roots))
}

fn load(name: &str, files: &TlsFiles) -> Result<Credentials, LinkError> {
    let TlsFiles { authority, certificate, key } = files;
    let roots = authorities(authority)?;
    let chain = certificates(certificate, "certificate")?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| LinkError::File {
        path: key.clone(),
        what: "private key",
        why: e.to_string(),
    })?;
    let unfit = |source| LinkError::Unfit { certificate: certificate.clone(), key: key.clone(), source };
    is_for(&chain[0], name).map_err(|source| LinkError::OtherName {
        certificate: certificate.clone(),
        name: name.to_owned(),
        source,
    })?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(unfit)?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.clone(), private.clone_key())
        .map_err(unfit)?;
    client.resumption = Resumption::disabled();

    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
    let verifier = verifier.map_err(|e| LinkError::File {
        path: authority.clone(),
        what: "authority",
        why: e.to_string(),
    })?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unfit)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, private)
        .map_err(unfit)?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Credentials { client: Arc::new(client), server: Arc::new(server) })
}

/// Checks that a certificate is valid for a host's name.
pub(crate) fn is_for(certificate: &CertificateDer<'_>, name: &str) -> Result<(), rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let name = ServerName::try_from(name).map_err(|e| rustls::Error::General(e.to_string()))?;
    verify_server_name(&parsed, &name)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    /// Writes a new certificate for `name`.
    fn renew(files: &TlsFiles, issuer: &Issuer<'_, KeyPair>, name: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_renewed_certificate_is_used_and_a_bad_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name| directory.path().join(name);
        let files =
            TlsFiles { authority: path("ca.pem"), certificate: path("cert.pem"), key: path("key.pem") };
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(&files.authority, parameters.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(parameters, key);
        renew(&files, &issuer, "a.test");

        let mut keyring = Keyring::open("a.test", &files).unwrap();
        let first = keyring.current();
        // A minute later.
        let later = |keyring: &mut Keyring| {
            keyring.read_at = Instant::now().checked_sub(FRESH).unwrap();
            keyring.current()
        };
        renew(&files, &issuer, "b.test");
        assert!(Arc::ptr_eq(&later(&mut keyring).server, &first.server), "it is for another host");
        std::fs::write(&files.certificate, "half of a cert").unwrap();
        assert!(Arc::ptr_eq(&later(&mut keyring).server, &first.server));
        renew(&files, &issuer, "a.test");
        assert!(Arc::ptr_eq(&keyring.current().server, &first.server), "a minute is not over");
        assert!(!Arc::ptr_eq(&later(&mut keyring).server, &first.server));
    }
}
