//! Peers with a wrong identity.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;

use common::raw::{connect, connect_tls, hello, join, read_greeting, read_versioned_greeting, refusal};
use common::{Authority, NOWHERE, Running, config};
use haversack_link::wire::{OLDEST_VERSION, VERSION};
use haversack_link::{Event, LinkError, Links, Security, TlsFiles, host_id};
use rustls::version::{TLS12, TLS13};

/// Starts `b.test`, which waits for `a.test`.
fn waiting(security: Security) -> Running {
    Running::start(&config("b.test", security, &[("a.test", NOWHERE)]))
}

/// Starts `a.test`, which connects to `b.test`.
fn connecting(security: Security, address: &str) -> Running {
    Running::start(&config("a.test", security, &[("b.test", address)]))
}

#[test]
fn another_authority_is_refused_by_both_sides() {
    let b = waiting(Authority::new().security("b.test"));
    let a = connecting(Authority::new().security("a.test"), &b.address().to_string());
    a.expect_error("UnknownIssuer");
    b.expect_refusal("TLS: ");
    assert!(a.state().connected_since.is_none() && b.state().connected_since.is_none());
}

#[test]
fn the_certificate_of_an_accepting_host_is_for_its_name() {
    let authority = Authority::new();
    let c = Running::start(&config("c.test", authority.security("c.test"), &[("a.test", NOWHERE)]));
    let a = connecting(authority.security("a.test"), &c.address().to_string());
    a.expect_error("not valid for name");
    assert!(a.state().last_error.unwrap().contains("b.test"));
}

#[test]
fn the_certificate_of_a_connecting_host_is_for_its_name() {
    let authority = Authority::new();
    let b = waiting(authority.security("b.test"));
    let mut stream = connect_tls(b.address(), "b.test", &authority.files("c.test"), true, &TLS13);
    stream.write_all(&hello(VERSION, "a.test", "b.test")).unwrap();
    let (kind, why) = read_greeting(&mut stream);
    assert_eq!(kind, 1, "{}", String::from_utf8_lossy(&why));
    b.expect_error("the certificate of a host that says it is 'a.test' is not valid for that name");
    assert!(b.state().connected_since.is_none());
    // The same bytes with the right certificate are accepted.
    let mut stream = connect_tls(b.address(), "b.test", &authority.files("a.test"), true, &TLS13);
    stream.write_all(&hello(VERSION, "a.test", "b.test")).unwrap();
    assert_eq!(read_greeting(&mut stream).0, 0);
    assert_eq!(b.next(), (host_id("a.test"), Event::Connected));
}

#[test]
fn a_peer_without_certificate_is_refused() {
    let authority = Authority::new();
    let b = waiting(authority.security("b.test"));
    let mut stream = connect_tls(b.address(), "b.test", &authority.files("a.test"), false, &TLS13);
    let _ = stream.write_all(&hello(VERSION, "a.test", "b.test"));
    stream.read_exact(&mut [0; 1]).unwrap_err();
    b.expect_refusal("peer sent no certificates");
}

#[test]
fn older_tls_is_refused() {
    let authority = Authority::new();
    let b = waiting(authority.security("b.test"));
    let mut stream = connect_tls(b.address(), "b.test", &authority.files("a.test"), true, &TLS12);
    stream.write_all(&hello(VERSION, "a.test", "b.test")).unwrap_err();
    b.expect_refusal("TLS: ");
}

#[test]
fn tls_on_one_side_only_is_an_error_on_both() {
    let authority = Authority::new();
    let b = waiting(authority.security("b.test"));
    let a = connecting(Security::Insecure, &b.address().to_string());
    a.expect_error("only one side uses TLS");
    b.expect_refusal("TLS: ");
    let b = waiting(Security::Insecure);
    let a = connecting(authority.security("a.test"), &b.address().to_string());
    a.expect_error("TLS: ");
    b.expect_refusal("only one side uses TLS");
}

#[test]
fn a_greeting_that_is_none_is_refused() {
    let b = waiting(Security::Insecure);
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", "not a Haversack host"),
        (&[0xff; 64], "not a Haversack host"),
        (b"HAVRLINK\x02\0\0\0\0\0\xff\xff", "malformed"),
        (b"HAVRLINK\x02\0\0\0\0\0\0\0\0\0\0\0", "checksum"),
    ];
    for (bytes, words) in cases {
        let mut stream = connect(b.address());
        stream.write_all(bytes).unwrap();
        b.expect_refusal(words);
        drop(stream);
    }
    let mut stream = connect(b.address());
    stream.write_all(&hello(VERSION, "a.test", "b.test")[..20]).unwrap();
    drop(stream);
    b.expect_refusal("before its greeting was complete");
    assert_eq!(b.links.refused().count, 5);
}

#[test]
fn greetings_that_do_not_fit_are_refused_with_a_reason() {
    let b =
        Running::start(&config("b.test", Security::Insecure, &[("a.test", NOWHERE), ("c.test", NOWHERE)]));
    let cases = [
        (hello(OLDEST_VERSION - 1, "a.test", "b.test"), "version 1"),
        (hello(VERSION, "x.test", "b.test"), "host 'x.test' is not in the configuration"),
        (hello(VERSION, "a.test", "c.test"), "this is 'b.test'"),
        (hello(VERSION, "c.test", "b.test"), "its name comes after this host's"),
    ];
    for (bytes, words) in cases {
        let mut stream = connect(b.address());
        stream.write_all(&bytes).unwrap();
        let (kind, why) = read_greeting(&mut stream);
        let why = String::from_utf8(why).unwrap();
        assert!(kind == 1 && why.contains(words), "{why}");
        b.expect_refusal(words);
    }
    join(b.address(), "a.test", "b.test");
}

#[test]
fn what_an_accepting_host_answers_is_checked() {
    let cases = [
        (hello(VERSION, "c.test", "a.test"), "says that it is 'c.test': expected 'b.test'"),
        (hello(VERSION, "b.test", "c.test"), "this is 'a.test'"),
        (hello(9, "b.test", "a.test"), "version 9"),
        (vec![0; 100], "not a Haversack host"),
        (Vec::new(), "before its greeting was complete"),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = connecting(Security::Insecure, &listener.local_addr().unwrap().to_string());
    for (answer, words) in cases {
        let (mut stream, _) = listener.accept().unwrap();
        assert_eq!(read_greeting(&mut stream).0, 0);
        stream.write_all(&answer).unwrap();
        drop(stream);
        a.expect_error(words);
    }
    assert_eq!(a.state().connections, 0);
}

#[test]
fn a_host_of_an_older_version_is_spoken_to_in_that_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = connecting(Security::Insecure, &listener.local_addr().unwrap().to_string());
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(read_versioned_greeting(&mut stream).0, VERSION);
    stream.write_all(&refusal(OLDEST_VERSION, "the peer speaks version 3: expected 2")).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let (version, kind, body) = read_versioned_greeting(&mut stream);
    assert_eq!((version, kind, &body[..]), (OLDEST_VERSION, 0, &b"\x06a.testb.test"[..]));
    stream.write_all(&hello(OLDEST_VERSION, "b.test", "a.test")).unwrap();
    a.expect(&Event::Connected);
    assert_eq!(a.state().last_error, None);
    drop(stream);
    a.expect(&Event::Lost);
    // The peer may have been upgraded meanwhile, so the newest version is tried first.
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(read_versioned_greeting(&mut stream).0, VERSION);
    stream.write_all(&refusal(OLDEST_VERSION, "no")).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(read_versioned_greeting(&mut stream).0, OLDEST_VERSION);
    stream.write_all(&refusal(OLDEST_VERSION, "host 'a.test' is not in the configuration")).unwrap();
    a.expect_error("host 'a.test' is not in the configuration");
}

#[test]
fn files_are_checked_at_the_start() {
    let authority = Authority::new();
    let start = |files: TlsFiles| {
        Links::start(&config("b.test", Security::Tls(files), &[]), |_, _, _| {}).unwrap_err()
    };
    let (mine, other) = (authority.files("b.test"), authority.files("c.test"));
    assert!(matches!(start(other.clone()), LinkError::OtherName { name, .. } if name == "b.test"));
    let mixed = TlsFiles { key: other.key, ..mine.clone() };
    assert!(matches!(start(mixed), LinkError::Unfit { .. }));
    let missing = TlsFiles { authority: "/nonexistent/ca.pem".into(), ..mine.clone() };
    assert!(matches!(start(missing), LinkError::File { what: "authority", .. }));
    let empty = TlsFiles { authority: mine.key.clone(), ..mine.clone() };
    assert!(matches!(start(empty), LinkError::File { what: "authority", .. }));
    let no_key = TlsFiles { key: mine.certificate.clone(), ..mine };
    assert!(matches!(start(no_key), LinkError::File { what: "private key", .. }));
}
