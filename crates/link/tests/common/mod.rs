//! Shared by the tests: an authority, and hosts on loopback.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod raw;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use haversack_link::{Config, Event, Frame, HostConfig, HostId, HostState, Links, Security, TlsFiles};
use haversack_migrate::{Message, Position, Session};
use haversack_model::{BLOCK_BYTES, BlockNo, DiskId};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// The longest that a test waits for something. The results do not depend on it.
const PATIENCE: Duration = Duration::from_secs(30);

pub const DISK: DiskId = DiskId([9; 16]);

/// An authority with the certificates that it has signed.
pub struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let directory = tempfile::tempdir().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = directory.path().display().to_string();
        parameters.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority { directory, issuer: Issuer::new(parameters, key) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a certificate for a name, for clients and servers.
    pub fn files(&self, name: &str) -> TlsFiles {
        let mut parameters = CertificateParams::new([name.to_owned()]).unwrap();
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let files = TlsFiles {
            authority: self.path("ca.pem"),
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    pub fn security(&self, name: &str) -> Security {
        Security::Tls(self.files(name))
    }
}

/// A running host, and what its links have reported.
pub struct Running {
    pub links: Links,
    pub events: Receiver<(HostId, Event)>,
}

/// An address at which no host listens and to which none connects.
pub const NOWHERE: &str = "127.0.0.1:1";

pub fn config(name: &str, security: Security, hosts: &[(&str, &str)]) -> Config {
    let host = |(name, address): &(&str, &str)| HostConfig {
        name: (*name).into(),
        address: (*address).into(),
        copy_bytes_per_second: 0,
    };
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let hosts = hosts.iter().map(host).collect();
    Config { name: name.into(), listen, hosts, security, compresses: true }
}

impl Running {
    pub fn start(config: &Config) -> Running {
        let (report, events) = channel();
        let links = Links::start(config, move |host, event, _| {
            let _ = report.send((host, event));
        });
        Running { links: links.unwrap(), events }
    }

    pub fn address(&self) -> SocketAddr {
        self.links.addresses()[0]
    }

    pub fn next(&self) -> (HostId, Event) {
        self.events.recv_timeout(PATIENCE).expect("something happens")
    }

    pub fn expect(&self, event: &Event) {
        assert_eq!(&self.next().1, event);
    }

    /// Returns the state of the only other host.
    pub fn state(&self) -> HostState {
        let [state] = self.links.state().try_into().unwrap();
        state
    }

    /// Waits for an error of the other host, and checks that it contains these words.
    pub fn expect_error(&self, words: &str) {
        let has_it = || self.state().last_error.filter(|error| error.contains(words));
        wait_or_say(has_it, || format!("{words}: {:?}", self.state().last_error));
    }

    /// Waits for a refused connection, and checks why it was refused.
    pub fn expect_refusal(&self, words: &str) {
        let has_it = || self.links.refused().last.filter(|why| why.contains(words));
        wait_or_say(has_it, || format!("{words}: {:?}", self.links.refused()));
    }
}

/// Repeats a question until there is an answer.
pub fn wait_for<T>(ask: impl FnMut() -> Option<T>) -> T {
    wait_or_say(ask, || "nothing happened".into())
}

/// Describes why there was none.
fn wait_or_say<T>(mut ask: impl FnMut() -> Option<T>, say: impl Fn() -> String) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{}", say());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn withdraw(count: u64) -> Frame {
    let session = Session { incarnation: 1, count };
    Frame::Migrate { disk: DISK, message: Message::Withdraw { session } }
}

pub fn copy(order: u64) -> Frame {
    let message = Message::Copy {
        session: Session { incarnation: 1, count: 1 },
        taker: 2,
        at: Position { round: 0, next: order },
        block: BlockNo(order),
        mask: 0xff,
        reused: true,
        data: vec![order as u8; BLOCK_BYTES],
    };
    Frame::Migrate { disk: DISK, message }
}
