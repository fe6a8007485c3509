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

/// Who has which role. Without it, whoever can open the control socket is an admin.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Those who may look.
    pub readers: Principals,
    /// Those who may also run disks.
    pub operators: Principals,
    /// Those who may do everything.
    pub admins: Principals,
}

/// Those who have a role.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Principals {
    /// Groups of this host, by name.
    pub groups: Vec<String>,
    /// Names in client certificates (DNS names in subjectAltName).
    pub certificates: Vec<String>,
}

impl AccessConfig {
    /// Returns the roles, lowest first, and who has them.
    pub fn roles(&self) -> [(Role, &Principals); 3] {
        [(Role::Reader, &self.readers), (Role::Operator, &self.operators), (Role::Admin, &self.admins)]
    }

    /// Returns what is wrong, beside `[api]`.
    pub fn check(&self, api: Option<&ApiConfig>) -> Result<(), String> {
        let mut certificates = self.roles().into_iter().flat_map(|(_, principals)| &principals.certificates);
        if let Some(name) = certificates.clone().find(|name| DnsName::try_from(name.as_str()).is_err()) {
            return Err(format!(
                "[access] certificate '{name}': expected a DNS name such as ops.example.org"
            ));
        }
        if certificates.next().is_some() && api.and_then(|api| api.client_ca.as_ref()).is_none() {
            return Err("[access] names certificates, which need client_ca in [api]".into());
        }
        Ok(())
    }
}

impl ApiConfig {
    /// Returns what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.token_file.is_none() && self.client_ca.is_none() {
            return Err("[api] lets nobody in: give token_file, or client_ca and [access], or both".into());
        }
        Ok(())
    }
}
