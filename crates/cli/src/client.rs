//! HTTP over the daemon's Unix socket.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haversack_api::{ErrorBody, Span};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::error::{CliError, Result};

/// The users' groups.
const GROUPS: &str = "/etc/group";
/// What to do about a daemon that does not answer.
const NOT_RUNNING: &str = "Is haversackd running? --socket or HAVERSACK_SOCKET names its socket";

/// A client of the daemon.
pub struct Client {
    socket: PathBuf,
    /// How long an answer, and each part of it, may take.
    patience: Duration,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Makes a client of the daemon on a socket. Does not connect yet.
    pub fn new(socket: PathBuf, patience: Duration) -> Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Client { socket, patience, runtime: runtime.map_err(|e| CliError::Failed(e.to_string()))? })
    }

    /// Returns the daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes a GET request and parses the JSON answer.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, None::<&()>)
    }

    /// Makes a GET request that the daemon may hold for `kept` before it answers.
    pub fn get_within<T: DeserializeOwned>(&self, path: &str, kept: Duration) -> Result<T> {
        let patience = self.patience.saturating_add(kept);
        parsed(path, &self.block_on(self.exchange(Method::GET, path, None, patience))?)
    }

    /// Makes a call and parses the JSON answer.
    pub fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        parsed(path, &self.send(method, path, body)?)
    }

    /// Makes a call and returns the answer unparsed.
    pub fn send(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<Bytes> {
        let json = body.map(serde_json::to_vec).transpose().map_err(|e| CliError::Failed(e.to_string()))?;
        self.block_on(self.exchange(method, path, json, self.patience))
    }

    /// Makes a GET request and returns the answer unparsed, also if it is a text that says what is not ready (503).
    pub fn look(&self, path: &str) -> Result<Bytes> {
        self.block_on(async {
            let answer = self.begin(Method::GET, path, None, self.patience).await?;
            let (status, bytes) = self.whole(answer).await?;
            let is_text = status == StatusCode::SERVICE_UNAVAILABLE
                && serde_json::from_slice::<ErrorBody>(&bytes).is_err();
            if status.is_success() || is_text { Ok(bytes) } else { Err(refusal(path, status, &bytes)) }
        })
    }

    /// Runs a future to completion. The future may use this client's calls.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Makes a call without a body and parses the JSON answer; for use within [`Client::block_on`].
    pub async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T> {
        parsed(path, &self.exchange(method, path, None, self.patience).await?)
    }

    /// As [`Client::ask`], with a body.
    pub async fn tell<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let json = serde_json::to_vec(body).map_err(|e| CliError::Failed(e.to_string()))?;
        parsed(path, &self.exchange(method, path, Some(json), self.patience).await?)
    }

    /// Makes a GET request whose answer arrives in pieces; the body is read within [`Client::block_on`].
    pub fn open(&self, path: &str) -> Result<Incoming> {
        self.block_on(async {
            let answer = self.begin(Method::GET, path, None, self.patience).await?;
            if answer.status().is_success() {
                return Ok(answer.into_body());
            }
            let (status, bytes) = self.whole(answer).await?;
            Err(refusal(path, status, &bytes))
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        json: Option<Vec<u8>>,
        patience: Duration,
    ) -> Result<Bytes> {
        let answer = self.begin(method, path, json, patience).await?;
        let (status, bytes) = self.whole(answer).await?;
        if status.is_success() { Ok(bytes) } else { Err(refusal(path, status, &bytes)) }
    }

    fn unreachable(&self, why: impl Display) -> CliError {
        CliError::Unreachable { socket: self.socket.clone(), why: why.to_string(), hint: NOT_RUNNING.into() }
    }

    /// Connects to the daemon; for use within [`Client::block_on`].
    pub async fn connect(&self) -> Result<UnixStream> {
        match tokio::time::timeout(self.patience, UnixStream::connect(&self.socket)).await {
            Ok(connected) => connected.map_err(|error| unconnected(&self.socket, &error)),
            Err(_) => Err(self.silent(self.patience)),
        }
    }

    fn silent(&self, waited: Duration) -> CliError {
        CliError::Silent { socket: self.socket.clone(), waited: Span(waited) }
    }

    /// Waits for the daemon, with a time limit.
    async fn within<T, E: Display>(
        &self,
        patience: Duration,
        work: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T> {
        match tokio::time::timeout(patience, work).await {
            Ok(result) => result.map_err(|error| self.unreachable(error)),
            Err(_) => Err(self.silent(patience)),
        }
    }

    async fn whole(&self, answer: Response<Incoming>) -> Result<(StatusCode, Bytes)> {
        let status = answer.status();
        let body = self.within(self.patience, answer.into_body().collect()).await?;
        Ok((status, body.to_bytes()))
    }

    /// Sends a request; the body of the answer is still to be read.
    async fn begin(
        &self,
        method: Method,
        path: &str,
        json: Option<Vec<u8>>,
        patience: Duration,
    ) -> Result<Response<Incoming>> {
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "haversack")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(json.unwrap_or_default())))
            .map_err(|e| CliError::Usage(e.to_string()))?;
        self.within(patience, sender.send_request(request)).await
    }
}

/// Describes why there is no connection.
fn unconnected(socket: &Path, error: &io::Error) -> CliError {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => match group_of(socket) {
            Some(group) => format!("Are you in its group ({group})?"),
            None => "Are you in its group?".into(),
        },
        _ => NOT_RUNNING.into(),
    };
    CliError::Unreachable { socket: socket.into(), why: error.to_string(), hint }
}

/// Returns the group of a socket or, if a directory above it hides it, of that directory.
fn group_of(socket: &Path) -> Option<String> {
    let visible = socket.ancestors().find_map(|path| std::fs::metadata(path).ok())?;
    let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
    Some(group_name(&groups, visible.gid()).map_or_else(|| visible.gid().to_string(), str::to_owned))
}

/// Finds the name of a group in the text of the file of groups.
fn group_name(groups: &str, gid: u32) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        fields.nth(1)?.parse::<u32>().is_ok_and(|id| id == gid).then_some(name)
    })
}

fn refusal(path: &str, status: StatusCode, bytes: &[u8]) -> CliError {
    match serde_json::from_slice::<ErrorBody>(bytes) {
        Ok(body) => CliError::Refused(body),
        Err(_) => CliError::Answer { path: path.into(), why: format!("status {status}") },
    }
}

fn parsed<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| CliError::Answer { path: path.into(), why: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_number() {
        let groups = "root:x:0:\n# comment\nhaversack:x:990:alice,bob\nodd\n";
        assert_eq!(group_name(groups, 990), Some("haversack"));
        assert_eq!(group_name(groups, 0), Some("root"));
        assert_eq!(group_name(groups, 7), None);
    }

    #[test]
    fn hints_tell_what_to_do_about_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let hint = |kind: ErrorKind| unconnected(&socket, &kind.into()).to_string();
        assert!(hint(ErrorKind::NotFound).contains("Is haversackd running?"));
        assert!(hint(ErrorKind::ConnectionRefused).contains("Is haversackd running?"));
        let denied = hint(ErrorKind::PermissionDenied);
        assert!(denied.contains("Are you in its group ("), "{denied}");
        assert!(!denied.contains("running"), "{denied}");
    }
}
