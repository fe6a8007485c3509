//! The client's side against the servers that people use.

#[path = "common/mod.rs"]
#[expect(dead_code, reason = "each test file uses a part of it")]
mod common;

use common::client::Client;
use common::{Peer, Scratch, run};
use haversack_nbd::{BlockSize, Command, Errno, TlsPolicy, TransmissionFlags};

const MIB: u64 = 1 << 20;

/// Writes, reads, zeroes and flushes, one by one and at once.
fn exercise(mut client: Client) {
    let features = client.connected.flags;
    assert!(features.contains(TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_WRITE_ZEROES));
    let pattern: Vec<u8> = (0..65536_u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(client.request(Command::Write, MIB, 65536, &pattern), Ok(Vec::new()));
    assert_eq!(client.request(Command::Flush, 0, 0, b""), Ok(Vec::new()));
    assert_eq!(client.request(Command::Read, MIB, 65536, b""), Ok(pattern.clone()));
    assert_eq!(client.request(Command::WriteZeroes, MIB + 4096, 4096, b""), Ok(Vec::new()));
    let zeroed = [&pattern[..4096], &[0; 4096], &pattern[8192..]].concat();
    let mixed = [&[0; 4096], &zeroed[..]].concat();
    let reads = [
        (Command::Read, MIB, 65536),
        (Command::Read, MIB - 4096, 4096 + 65536),
        (Command::Read, 2 * MIB, 1 << 20),
        (Command::Trim, 3 * MIB, 65536),
        (Command::Read, MIB + 512, 512),
    ];
    let answers = client.requests(&reads, b"");
    let expected = [zeroed.clone(), mixed, vec![0; 1 << 20], Vec::new(), zeroed[512..1024].to_vec()];
    for (answer, expected) in answers.into_iter().zip(expected) {
        assert!(answer == Ok(expected), "a read at once differs");
    }
    client.disconnect();
}

fn start(tool: &str, arguments: &[&str], scratch: &Scratch) -> (Peer, std::path::PathBuf) {
    let socket = scratch.path("nbd.sock");
    let path = socket.to_str().unwrap().to_owned();
    let image = scratch.path("image").to_str().unwrap().to_owned();
    let arguments: Vec<String> =
        arguments.iter().map(|part| part.replace("SOCKET", &path).replace("IMAGE", &image)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    (Peer::start(tool, &arguments, &socket), socket)
}

fn connect(socket: &std::path::Path, export: &str) -> Client {
    Client::connect(socket, export, TlsPolicy::Off).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn nbdkit() {
    let scratch = Scratch::new();
    let (_peer, socket) = start("nbdkit", &["-f", "-U", "SOCKET", "memory", "16M"], &scratch);
    let client = connect(&socket, "any");
    assert!(client.connected.structured_replies && client.connected.size_bytes == 16 * MIB);
    exercise(client);
    let client = Client::connect(&socket, "any", TlsPolicy::Allowed).unwrap();
    assert!(!client.connected.tls, "nbdkit was started without TLS");
}

#[test]
fn nbdkit_without_structured_replies() {
    let scratch = Scratch::new();
    let (_peer, socket) = start("nbdkit", &["-f", "--no-sr", "-U", "SOCKET", "memory", "16M"], &scratch);
    let client = connect(&socket, "");
    assert!(!client.connected.structured_replies);
    exercise(client);
}

#[test]
fn nbdkit_that_knows_export_name_only() {
    let scratch = Scratch::new();
    for mask in ["0", "2"] {
        let mask = format!("--mask-handshake={mask}");
        let (_peer, socket) = start("nbdkit", &["-f", &mask, "-U", "SOCKET", "memory", "16M"], &scratch);
        let client = connect(&socket, "");
        assert!(!client.connected.structured_replies);
        assert_eq!(client.connected.block_size, BlockSize::CLIENT_DEFAULT);
        exercise(client);
        std::fs::remove_file(&socket).unwrap();
    }
}

#[test]
fn nbdkit_of_the_oldstyle_is_refused() {
    let scratch = Scratch::new();
    let (_peer, socket) = start("nbdkit", &["-f", "-o", "-U", "SOCKET", "memory", "16M"], &scratch);
    let error = Client::connect(&socket, "", TlsPolicy::Off).unwrap_err().to_string();
    assert!(error.contains("oldstyle"), "{error}");
}

#[test]
fn nbdkit_tells_block_sizes_and_errors() {
    let scratch = Scratch::new();
    let arguments = [
        "-f",
        "-U",
        "SOCKET",
        "--filter=blocksize-policy",
        "--filter=error",
        "memory",
        "16M",
        "blocksize-minimum=4096",
        "blocksize-preferred=65536",
        "blocksize-maximum=1M",
        "error-pread=ENOMEM",
        "error-pread-rate=100%",
    ];
    let (_peer, socket) = start("nbdkit", &arguments, &scratch);
    let mut client = connect(&socket, "");
    assert_eq!(client.connected.block_size, BlockSize::new(4096, 65536, 1 << 20).unwrap());
    assert_eq!(client.request(Command::Read, 0, 4096, b""), Err(Errno::ENOMEM));
    assert_eq!(client.request(Command::Write, 0, 4096, &[1; 4096]), Ok(Vec::new()));
    client.disconnect();
}

#[test]
fn nbdkit_that_requires_or_refuses_tls() {
    let scratch = Scratch::new();
    let keys = scratch.path("keys.psk");
    std::fs::write(&keys, "me:00112233445566778899aabbccddeeff\n").unwrap();
    let keys = format!("--tls-psk={}", keys.to_str().unwrap());
    let arguments = ["-f", "--tls=require", &keys, "-U", "SOCKET", "memory", "16M"];
    let (_peer, socket) = start("nbdkit", &arguments, &scratch);
    let error = Client::connect(&socket, "x", TlsPolicy::Off).unwrap_err().to_string();
    assert!(error.contains("export \"x\": the server requires TLS"), "{error}");
    let agreed = Client::connect(&socket, "x", TlsPolicy::Required).unwrap_err().to_string();
    assert_eq!(agreed, "TLS is not here", "STARTTLS was agreed on");
    let plain = Scratch::new();
    let (_peer, socket) = start("nbdkit", &["-f", "-U", "SOCKET", "memory", "16M"], &plain);
    let error = Client::connect(&socket, "x", TlsPolicy::Required).unwrap_err().to_string();
    assert!(error.contains("refuses TLS"), "{error}");
}

#[test]
fn qemu_nbd() {
    let scratch = Scratch::new();
    run("qemu-img", &["create", "-q", "-f", "qcow2", scratch.path("image").to_str().unwrap(), "16M"]);
    let arguments =
        ["-t", "-e", "4", "-k", "SOCKET", "-x", "disk", "-f", "qcow2", "--discard=unmap", "IMAGE"];
    let (_peer, socket) = start("qemu-nbd", &arguments, &scratch);
    let client = connect(&socket, "disk");
    assert!(client.connected.structured_replies);
    exercise(client);
    let error = Client::connect(&socket, "other", TlsPolicy::Off).unwrap_err().to_string();
    assert!(error.contains("export \"other\"") && error.contains("no such export"), "{error}");
}

/// Returns the extents of the first MiB: lengths and flags.
fn status(client: &mut Client) -> Vec<(u32, u32)> {
    let answer = client.request(Command::BlockStatus, 0, MIB as u32, b"").expect("it is answered");
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    answer.chunks(8).map(|extent| (number(&extent[..4]), number(&extent[4..]))).collect()
}

#[test]
fn qemu_tells_how_deep_in_its_chain_data_is() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    run("qemu-img", &["create", "-q", "-f", "raw", &path("base"), "16M"]);
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &path("base"), "-F", "raw", &path("image")]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 128k 64k", &path("image")]);
    let arguments = ["-t", "-e", "4", "-k", "SOCKET", "-x", "disk", "-f", "qcow2", "-A", "IMAGE"];
    let (_peer, socket) = start("qemu-nbd", &arguments, &scratch);
    let mut client = Client::with_context(&socket, "disk", "qemu:allocation-depth").unwrap();
    assert_eq!(status(&mut client), [(128 << 10, 2), (64 << 10, 1), (832 << 10, 2)]);
    exercise(client);
    let without = connect(&socket, "disk");
    assert_eq!(without.connected.context_id, None);
    let unknown = Client::with_context(&socket, "disk", "other:context").unwrap();
    assert_eq!(unknown.connected.context_id, None);
}

#[test]
fn without_structured_replies_there_is_no_context() {
    let scratch = Scratch::new();
    let (_peer, socket) = start("nbdkit", &["-f", "--no-sr", "-U", "SOCKET", "memory", "16M"], &scratch);
    let client = Client::with_context(&socket, "", "base:allocation").unwrap();
    assert_eq!(client.connected.context_id, None);
    let (_peer, socket) = {
        std::fs::remove_file(&socket).unwrap();
        start("nbdkit", &["-f", "-U", "SOCKET", "memory", "16M"], &scratch)
    };
    let mut client = Client::with_context(&socket, "", "base:allocation").unwrap();
    assert_eq!(status(&mut client), [(1 << 20, 3)], "a hole that reads as zeroes");
}

#[test]
fn qemu_storage_daemon() {
    let scratch = Scratch::new();
    run("qemu-img", &["create", "-q", "-f", "raw", scratch.path("image").to_str().unwrap(), "16M"]);
    let arguments = [
        "--blockdev",
        "file,node-name=disk,filename=IMAGE,discard=unmap",
        "--nbd-server",
        "addr.type=unix,addr.path=SOCKET",
        "--export",
        "nbd,id=export,node-name=disk,name=disk,writable=on",
    ];
    let (_peer, socket) = start("qemu-storage-daemon", &arguments, &scratch);
    exercise(connect(&socket, "disk"));
}
