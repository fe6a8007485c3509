//! The server's side against the clients that people use.

#[path = "common/mod.rs"]
#[expect(dead_code, reason = "each test file uses a part of it")]
mod common;

use common::server::{SIZE_BYTES, Server};
use common::{Scratch, outcome, run};
use haversack_nbd::TlsPolicy;

/// Bytes that differ from place to place, with a zero hole in the second quarter.
fn pattern() -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..SIZE_BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bytes[SIZE_BYTES / 4..SIZE_BYTES / 2].fill(0);
    bytes
}

fn server() -> Server {
    Server::start(TlsPolicy::Off, false)
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let server = server();
    let json = run("nbdinfo", &["--json", &server.uri()]);
    for expected in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-name\": \"disk\"",
        "\"description\": \"a disk in memory\"",
        "\"base:allocation\"",
        "\"haversack:cache\"",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"is_read_only\": false",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        &format!("\"export-size\": {SIZE_BYTES}"),
    ] {
        assert!(json.contains(expected), "{expected} is not in\n{json}");
    }
    let list = run("nbdinfo", &["--list", "--json", &server.uri()]);
    assert!(list.contains("\"export-name\": \"disk\""), "{list}");
    assert_eq!(server.errors(), [""; 0]);
}

#[test]
fn nbdinfo_maps_zeroes_and_the_cache() {
    let server = server();
    server.fill(&pattern());
    let lines = |context: &str| -> Vec<Vec<String>> {
        let text = run("nbdinfo", &[&format!("--map={context}"), &server.uri()]);
        text.lines().map(|line| line.split_whitespace().take(3).map(str::to_owned).collect()).collect()
    };
    let quarter = SIZE_BYTES / 4;
    let line =
        |at: usize, length: usize, flags: u32| vec![at.to_string(), length.to_string(), flags.to_string()];
    let zeroes = [line(0, quarter, 0), line(quarter, quarter, 3), line(2 * quarter, 2 * quarter, 0)];
    assert_eq!(lines("base:allocation"), zeroes);
    let cache = [line(0, quarter, 3), line(quarter, quarter, 1), line(2 * quarter, 2 * quarter, 0)];
    assert_eq!(lines("haversack:cache"), cache);
}

#[test]
fn nbdcopy_copies_in_and_out() {
    let (server, scratch) = (server(), Scratch::new());
    let (source, copy) = (scratch.path("source"), scratch.path("copy"));
    std::fs::write(&source, pattern()).unwrap();
    run("nbdcopy", &["--flush", source.to_str().unwrap(), &server.uri()]);
    assert!(server.bytes() == pattern(), "what came in differs");
    run("nbdcopy", &[&server.uri(), copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == pattern(), "what went out differs");
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source.to_str().unwrap(), &server.uri()]);
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &server.uri()]);
    let hole = format!("\"start\": {}, \"length\": {}", SIZE_BYTES / 4, SIZE_BYTES / 4);
    assert!(map.contains(&hole) && map.contains("\"zero\": true"), "{map}");
    assert_eq!(server.errors(), [""; 0]);
}

#[test]
fn qemu_reads_and_writes() {
    let server = server();
    let mut arguments = vec!["-f", "raw"];
    let commands = [
        "write -P 0x5a 0 1M",
        "write -f -P 0x11 1M 4k",
        "write -z 64k 64k",
        "write -z -u 128k 64k",
        "discard 256k 128k",
        "flush",
        "read -P 0x5a 0 64k",
        "read -P 0 64k 128k",
        "read -P 0x11 1M 4k",
        "read -P 0 2M 1M",
    ];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    let uri = server.uri();
    arguments.push(&uri);
    let text = run("qemu-io", &arguments);
    assert!(!text.contains("failed"), "{text}");
    let bytes = server.bytes();
    assert!(bytes[..65536].iter().all(|byte| *byte == 0x5a) && bytes[1 << 20] == 0x11 && bytes[65536] == 0);
    assert_eq!(server.errors(), [""; 0]);
}

#[test]
fn read_only_means_read_only() {
    let server = Server::start(TlsPolicy::Off, true);
    let json = run("nbdinfo", &["--json", &server.uri()]);
    assert!(json.contains("\"is_read_only\": true") && json.contains("\"can_trim\": false"), "{json}");
    let (success, text) = outcome("qemu-io", &["-f", "raw", "-c", "write 0 4k", &server.uri()]);
    assert!(!success, "{text}");
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 4k", &server.uri()]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let server = server();
    let uri = format!("--uri={}", server.uri());
    run(
        "fio",
        &[
            "--name=nbd",
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            "--bs=4k",
            "--size=16m",
            "--iodepth=16",
            "--verify=crc32c",
            "--randseed=7",
        ],
    );
    assert_eq!(server.errors(), [""; 0]);
}

#[test]
fn refusals_reach_people() {
    let server = server();
    let other = server.uri().replace("/disk?", "/other?");
    let (success, text) = outcome("qemu-img", &["info", &other]);
    assert!(!success && text.contains("there is no such export"), "{text}");
    let tls = Server::start(TlsPolicy::Required, false);
    let (success, text) = outcome("nbdinfo", &[&tls.uri()]);
    assert!(!success && text.to_lowercase().contains("tls"), "{text}");
    let (success, text) = outcome("qemu-img", &["info", &tls.uri()]);
    assert!(!success && text.contains("TLS"), "{text}");
}

#[test]
fn libnbd_begins_tls_when_it_is_allowed() {
    let (server, scratch) = (Server::start(TlsPolicy::Allowed, false), Scratch::new());
    let keys = scratch.path("keys.psk");
    std::fs::write(&keys, "me:00112233445566778899aabbccddeeff\n").unwrap();
    let uri = server.uri().replace("nbd+unix://", "nbds+unix://me@");
    // This server ends where TLS begins, so the client fails then and not before.
    let (success, text) = outcome("nbdinfo", &[&format!("{uri}&tls-psk-file={}", keys.to_str().unwrap())]);
    assert!(!success, "{text}");
    assert_eq!(server.errors(), ["the client began TLS, which is not here"], "{text}");
}
