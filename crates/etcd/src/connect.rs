//! Connections to a member of etcd.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};

use crate::config::{Config, TlsFiles};
use crate::error::failed;
use haversack_directory::DirectoryError;

/// How long a connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How long a call may take.
pub(crate) const CALL_TIME: Duration = Duration::from_secs(3);
/// After how much silence a connection is probed. Etcd ends connections that probe more often than every five seconds.
const PROBE_EVERY: Duration = Duration::from_secs(6);
/// How long the answer to that may take.
const PROBE_TIME: Duration = Duration::from_secs(3);

/// Makes a client of one member. It connects with the first call.
///
/// Two clients never share a connection: after a call that has run out of time, its connection is not used again.
pub(crate) async fn client(config: &Config, endpoint: &str) -> Result<Client, DirectoryError> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIME)
        .with_keep_alive(PROBE_EVERY, PROBE_TIME)
        .with_keep_alive_while_idle(true)
        // A member that was cut off from the others says so, instead of answering with what it had then.
        .with_require_leader(true);
    if let Some(files) = &config.tls {
        options = options.with_tls(tls(files)?);
    }
    if let Some((user, file)) = &config.user {
        options = options.with_user(user, password(file)?);
    }
    in_time(endpoint, "connecting", Client::connect([endpoint], Some(options))).await
}

fn tls(files: &TlsFiles) -> Result<TlsOptions, DirectoryError> {
    let authority = read(&files.authority, "authority")?;
    let options = TlsOptions::new().ca_certificate(Certificate::from_pem(authority));
    Ok(match &files.identity {
        None => options,
        Some((certificate, key)) => {
            let certificate = read(certificate, "certificate")?;
            options.identity(Identity::from_pem(certificate, read(key, "private key")?))
        }
    })
}

/// Returns the first line of a file.
fn password(file: &Path) -> Result<String, DirectoryError> {
    let bytes = read(file, "password")?;
    let text = String::from_utf8(bytes).map_err(|_| DirectoryError::Password(file.into()))?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() { Err(DirectoryError::Password(file.into())) } else { Ok(line.into()) }
}

fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, DirectoryError> {
    std::fs::read(path).map_err(|source| DirectoryError::File { path: path.into(), what, source })
}

/// Waits for a call, at most [`CALL_TIME`]. `what` names it, with its key.
pub(crate) async fn in_time<T>(
    endpoint: &str,
    what: &str,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, DirectoryError> {
    match tokio::time::timeout(CALL_TIME, call).await {
        Ok(result) => result.map_err(|error| failed(endpoint, what, &error)),
        Err(_) => Err(DirectoryError::Time {
            endpoint: endpoint.into(),
            what: what.into(),
            seconds: CALL_TIME.as_secs_f64(),
        }),
    }
}
