//! Connections between hosts, over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use haversack_link::{Frame, HostState, LinkConfig, LinkError, Links, PeerConfig, Security, host_id};
use haversack_model::{DiskId, HostId};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

const DISK: DiskId = DiskId([7; 16]);

/// An authority, and a directory for what it signs.
struct Authority {
    directory: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { directory, issuer }
    }

    /// Signs a certificate for a host.
    fn security(&self, name: &str) -> Security {
        let path = |kind: &str| -> PathBuf { self.directory.path().join(format!("{name}-{kind}.pem")) };
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(path("cert"), certificate.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        let authority = self.directory.path().join("ca.pem");
        Security::Tls { certificate: path("cert"), key: path("key"), authority }
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

struct Host {
    links: Links,
    heard: Receiver<(HostId, Frame)>,
}

fn start(name: &str, listen: SocketAddr, other: (&str, SocketAddr), security: Security) -> Host {
    let peers = vec![PeerConfig { name: other.0.into(), address: other.1.to_string() }];
    let config = LinkConfig { name: name.into(), listen: vec![listen], peers, security, copy_rate_bytes: 0 };
    let (sender, heard) = channel();
    let links = Links::start(config, move |from, frame| drop(sender.send((from, frame)))).unwrap();
    Host { links, heard }
}

fn wait_for(host: &Host, what: &str, accept: impl Fn(&HostState) -> bool) -> HostState {
    let start = Instant::now();
    loop {
        let state = host.links.state().remove(0);
        if accept(&state) {
            return state;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what} does not come: {state:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn connected(host: &Host) {
    wait_for(host, "the connection", |state| state.is_connected);
}

fn note(text: &str) -> Frame {
    Frame::Note { disk: DISK, text: text.into() }
}

/// Sends until it arrives: frames are lost while the other side is not connected yet.
fn exchange(from: &Host, from_name: &str, to: &Host, to_name: &str, text: &str) {
    let start = Instant::now();
    loop {
        from.links.sender().send(host_id(to_name), note(text));
        if let Ok(heard) = to.heard.recv_timeout(Duration::from_millis(100)) {
            assert_eq!(heard, (host_id(from_name), note(text)));
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nothing arrives");
    }
    while to.heard.recv_timeout(Duration::from_millis(20)).is_ok() {}
}

#[test]
fn frames_go_both_ways_and_again_after_a_restart() {
    let authority = Authority::new();
    let (a_at, b_at) = (free_address(), free_address());
    let a = start("alpha", a_at, ("beta", b_at), authority.security("alpha"));
    let b = start("beta", b_at, ("alpha", a_at), authority.security("beta"));
    connected(&a);
    exchange(&a, "alpha", &b, "beta", "there");
    exchange(&b, "beta", &a, "alpha", "and back");
    wait_for(&a, "the time there and back", |state| state.round_trip_us.is_some());
    drop(b);
    wait_for(&a, "the end", |state| !state.is_connected && state.last_error.is_some());
    a.links.sender().send(host_id("beta"), note("lost"));
    let b = start("beta", b_at, ("alpha", a_at), authority.security("beta"));
    connected(&a);
    exchange(&a, "alpha", &b, "beta", "again");
}

/// Of both hosts' errors, the one that connects learns that it was refused.
fn refused(a: Security, b: Security, b_name: &str) -> String {
    let (a_at, b_at) = (free_address(), free_address());
    let a = start("alpha", a_at, ("beta", b_at), a);
    let b = start(b_name, b_at, ("alpha", a_at), b);
    let listens = if host_id("alpha") < host_id(b_name) { &b } else { &a };
    let connects = if std::ptr::eq(listens, &b) { &a } else { &b };
    let tried = |state: &HostState| state.last_error.as_ref().is_some_and(|error| !error.contains("yet"));
    let state = wait_for(connects, "the refusal", tried);
    assert!(!state.is_connected && !listens.links.state()[0].is_connected);
    connects.links.sender().send(state.id, note("not for you"));
    assert!(listens.heard.recv_timeout(Duration::from_millis(200)).is_err());
    state.last_error.unwrap()
}

#[test]
fn only_hosts_that_prove_their_names_are_heard() {
    let (authority, other) = (Authority::new(), Authority::new());
    let wrong_authority = refused(authority.security("alpha"), other.security("beta"), "beta");
    assert!(
        wrong_authority.contains("certificate") || wrong_authority.contains("refuses"),
        "{wrong_authority}"
    );
    // A certificate of the right authority, but of another host.
    let wrong_name = refused(authority.security("alpha"), authority.security("gamma"), "beta");
    assert!(wrong_name.contains("certificate") || wrong_name.contains("refuses"), "{wrong_name}");
    let no_tls = refused(authority.security("alpha"), Security::Insecure, "beta");
    assert!(!no_tls.is_empty());
}

#[test]
fn a_host_that_is_not_configured_is_refused() {
    let (a_at, b_at) = (free_address(), free_address());
    let a = start("alpha", a_at, ("beta", b_at), Security::Insecure);
    let b = start("delta", b_at, ("alpha", a_at), Security::Insecure);
    let (host, tried) = (if host_id("delta") < host_id("alpha") { &b } else { &a }, |state: &HostState| {
        state.last_error.as_ref().is_some_and(|error| !error.contains("yet"))
    });
    wait_for(host, "the refusal", tried);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!a.links.state()[0].is_connected && !b.links.state()[0].is_connected);
}

/// Greets like host beta, over plain TCP.
fn intrude(alpha: SocketAddr, version: u32) -> TcpStream {
    let mut stream = TcpStream::connect(alpha).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut hello = b"HAVERSAK".to_vec();
    hello.extend(version.to_le_bytes());
    for name in ["beta", "alpha"] {
        hello.push(name.len() as u8);
        hello.extend(name.as_bytes());
    }
    stream.write_all(&hello).unwrap();
    stream
}

/// Whether the other side closes the connection before it has sent more than its hello and a few questions.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut bytes = [0; 512];
    for _ in 0..100 {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
    false
}

#[test]
fn what_breaks_the_protocol_ends_the_connection_alone() {
    let (a_at, b_at) = (free_address(), free_address());
    let a = start("alpha", a_at, ("beta", b_at), Security::Insecure);
    let attacks: [&[u8]; 4] = [
        // A frame that is too long, one that fails its checksum, one of no known kind, and no frame at all.
        &[0xff; 8],
        &[1, 0, 0, 0, 0, 0, 0, 0, 9],
        &[1, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for attack in attacks {
        let mut stream = intrude(a_at, 1);
        let _ = stream.write_all(attack);
        assert!(is_closed(stream), "{attack:?}");
    }
    assert!(is_closed(intrude(a_at, 2)), "another version");
    let mut nonsense = TcpStream::connect(a_at).unwrap();
    nonsense.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    nonsense.write_all(&[0; 64]).unwrap();
    assert!(is_closed(nonsense));
    assert!(a.heard.try_recv().is_err());
    // Many that say nothing only keep others out for a moment.
    let silent: Vec<TcpStream> = (0..80).filter_map(|_| TcpStream::connect(a_at).ok()).collect();
    let b = start("beta", b_at, ("alpha", a_at), Security::Insecure);
    connected(&b);
    exchange(&b, "beta", &a, "alpha", "still there");
    drop(silent);
}

#[test]
fn what_cannot_be_used_is_named() {
    let authority = Authority::new();
    let config = |security, listen| LinkConfig {
        name: "alpha".into(),
        listen: vec![listen],
        peers: Vec::new(),
        security,
        copy_rate_bytes: 0,
    };
    let fails = |config| Links::start(config, |_, _| {}).err().map(|error: LinkError| error.to_string());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = fails(config(Security::Insecure, taken.local_addr().unwrap())).unwrap();
    assert!(error.contains("cannot listen on 127.0.0.1"), "{error}");
    let Security::Tls { certificate, authority, .. } = authority.security("alpha") else { unreachable!() };
    let missing = Security::Tls { key: "/nowhere/key.pem".into(), certificate, authority };
    let error = fails(config(missing, free_address())).unwrap();
    assert!(error.contains("/nowhere/key.pem") && error.contains("private key"), "{error}");
}
