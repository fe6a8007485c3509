//! Certificates for TLS, in a directory as nbdkit and libnbd want it.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::{Error, Place, Result};

/// The names that servers' certificates are for.
const SERVER_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The certificate of an authority, and one of a server and a client that it has signed, with their keys.
#[derive(Debug)]
pub struct Certificates {
    directory: PathBuf,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Check(format!("cannot make a certificate: {error}"))
}

impl Certificates {
    /// Makes them in the directory `name` of the place: `ca-cert.pem`, `server-cert.pem`, `server-key.pem`,
    /// `client-cert.pem`, `client-key.pem`.
    ///
    /// # Errors
    /// If they cannot be made or written.
    pub fn make(place: &Place, name: &str) -> Result<Self> {
        let (certificates, issuer) = Self::authority(place, name)?;
        certificates.issue("server", &SERVER_NAMES, &[ExtendedKeyUsagePurpose::ServerAuth], &issuer)?;
        certificates.issue("client", &[], &[ExtendedKeyUsagePurpose::ClientAuth], &issuer)?;
        Ok(certificates)
    }

    fn authority(place: &Place, name: &str) -> Result<(Self, Issuer<'static, KeyPair>)> {
        let directory = place.path(name);
        std::fs::create_dir(&directory).map_err(Error::io(directory.display().to_string()))?;
        let certificates = Self { directory };
        let mut authority = CertificateParams::new(Vec::new()).map_err(failed)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        authority.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().map_err(failed)?;
        certificates.write("ca-cert.pem", &authority.self_signed(&key).map_err(failed)?.pem())?;
        Ok((certificates, Issuer::new(authority, key)))
    }

    /// Makes an authority and certificates of hosts: `ca-cert.pem`, and for each `NAME-cert.pem` and `NAME-key.pem`.
    ///
    /// # Errors
    /// If they cannot be made or written.
    pub fn of_hosts(place: &Place, name: &str, hosts: &[&str]) -> Result<Self> {
        let (certificates, issuer) = Self::authority(place, name)?;
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        hosts.iter().try_for_each(|host| certificates.issue(host, &[host], &both, &issuer))?;
        Ok(certificates)
    }

    fn issue(
        &self,
        who: &str,
        names: &[&str],
        purposes: &[ExtendedKeyUsagePurpose],
        issuer: &Issuer<'_, KeyPair>,
    ) -> Result<()> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names).map_err(failed)?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, who);
        parameters.extended_key_usages = purposes.to_vec();
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = parameters.signed_by(&key, issuer).map_err(failed)?;
        self.write(&format!("{who}-cert.pem"), &certificate.pem())?;
        self.write(&format!("{who}-key.pem"), &key.serialize_pem())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(Error::io(path.display().to_string()))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
