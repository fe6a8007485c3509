//! Settings.

use haversack_directory::DirectoryError;
use std::path::PathBuf;
use std::time::Duration;

/// The shortest lease: etcd does not grant shorter ones than about its election time-out.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Settings of the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The members of etcd: `http://HOST:PORT` or `https://HOST:PORT`. One is used at a time.
    pub endpoints: Vec<String>,
    /// The files for TLS; none on a private network.
    pub tls: Option<TlsFiles>,
    /// The user of etcd, and the file with its password; none if etcd asks for none, or knows the host by its
    /// certificate.
    pub user: Option<(String, PathBuf)>,
    /// This host's name.
    pub name: String,
    /// How long this host counts as alive after it was heard of last. Rounded up to whole seconds, and at least two.
    pub lease: Duration,
}

/// PEM files for TLS. They are read for each connection, so renewed ones are used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The authorities that sign the certificates of etcd's members.
    pub authority: PathBuf,
    /// This host's certificate chain, and its private key, if etcd asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Config {
    /// Checks what can be checked without etcd.
    ///
    /// # Errors
    /// No endpoint, an endpoint of another form than TLS needs, or a name that cannot be part of a key.
    pub fn check(&self) -> Result<(), DirectoryError> {
        if self.endpoints.is_empty() {
            return Err(DirectoryError::NoEndpoint);
        }
        if self.name.is_empty() || self.name.contains('/') {
            return Err(DirectoryError::Name(self.name.clone()));
        }
        let (scheme, expected) = match &self.tls {
            Some(_) => ("https://", "https://HOST:PORT, since certificates are given"),
            None => ("http://", "http://HOST:PORT; https needs the file of an authority"),
        };
        for endpoint in &self.endpoints {
            let rest = endpoint.strip_prefix(scheme);
            let port = rest.and_then(|rest| rest.rsplit_once(':')).and_then(|(host, port)| {
                (!host.is_empty() && !host.contains(['/', '@', ' ']))
                    .then(|| port.parse::<u16>().ok())
                    .flatten()
            });
            if port.is_none_or(|port| port == 0) {
                return Err(DirectoryError::Endpoint { endpoint: endpoint.clone(), expected });
            }
        }
        Ok(())
    }

    /// Returns the lease in seconds, as etcd counts it.
    pub(crate) fn lease_s(&self) -> i64 {
        let lease = self.lease.max(SHORTEST_LEASE);
        let whole = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
        i64::try_from(whole).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(endpoint: &str, tls: bool) -> Config {
        let tls = tls.then(|| TlsFiles { authority: "/ca.pem".into(), identity: None });
        Config {
            endpoints: vec![endpoint.into()],
            tls,
            user: None,
            name: "alpha".into(),
            lease: Duration::from_secs(10),
        }
    }

    #[test]
    fn endpoints_are_checked() {
        for good in ["http://10.0.0.1:2379", "http://etcd.example:2379", "http://[fd00::1]:2379"] {
            config(good, false).check().unwrap();
        }
        config("https://10.0.0.1:2379", true).check().unwrap();
        for bad in [
            "",
            "10.0.0.1:2379",
            "http://10.0.0.1",
            "http://:2379",
            "http://a:0",
            "http://a:b",
            "https://a:1",
        ] {
            let error = config(bad, false).check().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("http://HOST:PORT"), "{error}");
        }
        assert!(config("http://a:1", true).check().is_err());
        assert!(Config { endpoints: Vec::new(), ..config("", false) }.check().is_err());
        assert!(Config { name: "a/b".into(), ..config("http://a:1", false) }.check().is_err());
    }

    #[test]
    fn leases_are_whole_seconds_and_not_too_short() {
        let lease_s = |ms| Config { lease: Duration::from_millis(ms), ..config("", false) }.lease_s();
        assert_eq!([lease_s(0), lease_s(2000), lease_s(2001), lease_s(10_000)], [2, 2, 3, 10]);
    }
}
