//! `[api]` and `[access]` of the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustls::pki_types::DnsName;
use serde::Deserialize;

use super::Role;

/// The control API over TCP.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// A file whose only line is the token that makes a client an admin.
    pub token_file: Option<PathBuf>,
    /// The authorities whose client certificates are accepted, PEM.
    pub client_ca: Option<PathBuf>,
}

/// Who has which role. Without this table, anyone who can open the control socket is an admin.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Those who can view everything.
    pub readers: Principals,
    /// Those who can also manage disks.
    pub operators: Principals,
    /// Those who can do everything.
    pub admins: Principals,
}

/// Those who have a role.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Principals {
    /// Groups of this host, by name.
    pub groups: Vec<String>,
    /// Names in client certificates (DNS names in subjectAltName).
    pub certificates: Vec<CertificateName>,
}

/// A DNS name in a client certificate.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct CertificateName(pub DnsName<'static>);

impl TryFrom<String> for CertificateName {
    type Error = String;

    fn try_from(name: String) -> Result<CertificateName, String> {
        let error = format!("'{name}': expected a DNS name such as ops.example.org");
        DnsName::try_from(name).map(CertificateName).map_err(|_| error)
    }
}

impl AccessConfig {
    /// Returns the roles, lowest first, and who has them.
    pub fn roles(&self) -> [(Role, &Principals); 3] {
        [(Role::Reader, &self.readers), (Role::Operator, &self.operators), (Role::Admin, &self.admins)]
    }

    /// Returns what is wrong, beside `[api]`.
    pub fn check(&self, api: Option<&ApiConfig>) -> Result<(), String> {
        let names_certificates =
            self.roles().iter().any(|(_, principals)| !principals.certificates.is_empty());
        if names_certificates && api.and_then(|api| api.client_ca.as_ref()).is_none() {
            return Err("[access] names certificates, which need client_ca in [api]".into());
        }
        Ok(())
    }
}

impl ApiConfig {
    /// Returns what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.token_file.is_none() && self.client_ca.is_none() {
            return Err("[api] has no way to authenticate clients: set token_file, or client_ca and [access], or both".into());
        }
        Ok(())
    }
}
