//! Tells whether a daemon that has answered before is still running, although it does not answer now.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;

use crate::client::Client;
use crate::error::{CliError, Result};

/// A connection to the daemon on which nothing is sent. It ends when the daemon's process ends, and stays open while
/// the daemon merely does not answer. A connection that was not accepted yet ends when the listening socket is closed.
pub struct Witness(UnixStream);

impl Witness {
    /// Connects. As long as the witness [is alive](Witness::is_alive), all later answers of the daemon come from the
    /// process that it watches. For use within [`Client::block_on`].
    pub async fn connect(client: &Client) -> Result<Witness> {
        let stream = client.connect().await?.into_std();
        stream.map(Witness).map_err(|e| CliError::Failed(format!("cannot watch the daemon: {e}")))
    }

    /// Returns whether the process is known to be running. The daemon also closes a connection that was idle for long.
    pub fn is_alive(&self) -> bool {
        let mut stream = &self.0;
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_told_from_one_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let client = Client::new(path.clone(), Duration::from_secs(30)).unwrap();
        let connect = || client.block_on(Witness::connect(&client));
        assert!(matches!(connect(), Err(CliError::Unreachable { .. })));

        let daemon = UnixListener::bind(&path).unwrap();
        let (accepted, waiting) = (connect().unwrap(), connect().unwrap());
        let connection = daemon.accept().unwrap();
        assert!(accepted.is_alive() && waiting.is_alive());

        std::fs::remove_file(&path).unwrap();
        let next = UnixListener::bind(&path).unwrap();
        drop((connection, daemon));
        assert!(!accepted.is_alive() && !waiting.is_alive());
        assert!(connect().unwrap().is_alive());
        drop(next);
    }
}
