//! The first bytes of a connection, both ways: who is there, and whom it expects; see docs/host-protocol.md.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The first bytes.
const MAGIC: [u8; 8] = *b"HAVERSAK";
/// The version of the protocol.
const VERSION: u32 = 1;
/// The longest name.
const MOST_NAME_BYTES: usize = 64;

/// What a host says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its name.
    pub name: String,
    /// The host that it wants to talk to; empty if it takes any.
    pub to: String,
}

/// Writes a hello.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), hello: &Hello) -> Result<(), String> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    for name in [&hello.name, &hello.to] {
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
    }
    stream.write_all(&bytes).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())
}

/// Reads a hello.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Hello, String> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.map_err(|error| error.to_string())?;
    if head[..8] != MAGIC {
        return Err("it does not speak this protocol".into());
    }
    let version = u32::from_le_bytes(head[8..].try_into().expect("four bytes"));
    if version != VERSION {
        return Err(format!(
            "it speaks version {version} of the protocol, this host version {VERSION}: update one of them"
        ));
    }
    Ok(Hello { name: name(stream).await?, to: name(stream).await? })
}

async fn name(stream: &mut (impl AsyncRead + Unpin)) -> Result<String, String> {
    let length = stream.read_u8().await.map_err(|error| error.to_string())?;
    if usize::from(length) > MOST_NAME_BYTES {
        return Err(format!("it has a name of {length} bytes"));
    }
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await.map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "its name is not text".into())
}
