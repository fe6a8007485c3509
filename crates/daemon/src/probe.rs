//! How large an origin is, for disks whose size is not configured.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use haversack_engine::config::OriginSpec;
use haversack_engine::error::EngineError;
use haversack_nbd::{ClientNegotiation, ClientStep, Connected, NbdUri, TlsPolicy, Transport};

use crate::error::Result;

/// How long a server may take for each of its answers.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Bytes of an origin.
///
/// # Errors
/// It cannot be reached, or its size cannot be found out this way.
pub fn size_bytes(origin: &OriginSpec) -> Result<u64> {
    match origin {
        OriginSpec::File { path } => {
            let size = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
            Ok(size.map_err(|source| EngineError::Io { action: "find out the size of", path: path.clone(), source })?)
        }
        OriginSpec::Nbd { uri, .. } => nbd_size_bytes(uri)
            .map_err(|why| EngineError::Origin { origin: uri.clone(), why }.into()),
    }
}

fn nbd_size_bytes(uri: &str) -> std::result::Result<u64, String> {
    let parsed: NbdUri = uri.parse().map_err(|e: haversack_nbd::UriError| e.to_string())?;
    if parsed.tls {
        return Err("its size is not looked up over TLS; give the disk's size".into());
    }
    let connected = match &parsed.transport {
        Transport::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            negotiate(stream, &parsed.export)
        }),
        Transport::Unix { socket } => UnixStream::connect(socket).and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            negotiate(stream, &parsed.export)
        }),
    };
    connected.map(|c| c.size_bytes).map_err(|e| format!("{e}; check that the server runs and exports '{}'", parsed.export))
}

fn negotiate(mut stream: impl Read + Write, export: &str) -> io::Result<Connected> {
    let mut negotiation = ClientNegotiation::new(export, TlsPolicy::Off).map_err(io::Error::other)?;
    let mut output = Vec::new();
    let mut buffer = vec![0; 8192];
    loop {
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes)?;
        let step = negotiation.receive(&mut &*bytes, &mut output);
        stream.write_all(&output)?;
        output.clear();
        match step.map_err(io::Error::other)? {
            ClientStep::Continue => {}
            ClientStep::StartTls => return Err(io::Error::other("the server wants TLS; use nbds://")),
            ClientStep::Connected(connected) => return Ok(connected),
        }
    }
}
