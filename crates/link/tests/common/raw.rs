//! A peer that works with single bytes, following `docs/host-protocol.md` or not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use haversack_link::TlsFiles;
use haversack_link::wire::{Frame, Packet, VERSION};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

fn crc(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Returns the bytes of a hello.
pub fn hello(version: u32, name: &str, peer: &str) -> Vec<u8> {
    let body = [&[name.len() as u8], name.as_bytes(), peer.as_bytes()].concat();
    let length = (body.len() as u16).to_le_bytes();
    let mut bytes = [&b"HAVRLINK"[..], &version.to_le_bytes(), &[0, 0], &length, &body].concat();
    bytes.extend_from_slice(&crc(&bytes));
    bytes
}

pub fn encode(frame: Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    Packet::Frame(frame).encode(&mut bytes).unwrap();
    bytes
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Reads a greeting, and returns its kind and body.
pub fn read_greeting(stream: &mut impl Read) -> (u8, Vec<u8>) {
    let (_, kind, body) = read_versioned_greeting(stream);
    (kind, body)
}

/// Reads a greeting, and returns its version, kind and body.
pub fn read_versioned_greeting(stream: &mut impl Read) -> (u32, u8, Vec<u8>) {
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    let version = u32::from_le_bytes(head[8..12].try_into().unwrap());
    let mut body = vec![0; u16::from_le_bytes([head[14], head[15]]).into()];
    stream.read_exact(&mut body).unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    (version, head[12], body)
}

/// Connects without TLS as a host, and exchanges greetings.
pub fn join(address: SocketAddr, name: &str, peer: &str) -> TcpStream {
    join_in(VERSION, address, name, peer)
}

/// As above, in a given version of the protocol.
pub fn join_in(version: u32, address: SocketAddr, name: &str, peer: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(&hello(version, name, peer)).unwrap();
    let (kind, body) = read_greeting(&mut stream);
    assert_eq!((kind, body), (0, [&[peer.len() as u8], peer.as_bytes(), name.as_bytes()].concat()));
    stream
}

/// Returns a refusal.
pub fn refusal(version: u32, why: &str) -> Vec<u8> {
    let length = (why.len() as u16).to_le_bytes();
    let mut bytes = [&b"HAVRLINK"[..], &version.to_le_bytes(), &[1, 0], &length, why.as_bytes()].concat();
    bytes.extend_from_slice(&crc(&bytes));
    bytes
}

/// Returns a frame of this kind, with a valid checksum.
pub fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let head = [&(body.len() as u32).to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
    let crc = crc(&[&head, body].concat());
    [&head, &crc[..], body].concat()
}

/// Reads until the other side ends the connection.
pub fn read_to_the_end(stream: &mut impl Read) {
    let mut bytes = [0; 4_096];
    while matches!(stream.read(&mut bytes), Ok(1..)) {}
}

/// Connects with TLS of any version and with or without a certificate.
pub fn connect_tls(
    address: SocketAddr,
    name: &str,
    files: &TlsFiles,
    shows_certificate: bool,
    version: &'static SupportedProtocolVersion,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = if shows_certificate {
        let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
        builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap()).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), connect(address))
}
