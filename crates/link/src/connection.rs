//! A connection with a host that has proved its name: frames both ways, until it breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haversack_model::HostId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep_until, timeout};

use crate::frame::{Frame, HEAD_BYTES, Sent, checksum, decode, head};
use crate::peer::Peer;

/// How often a host is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(1);
/// A host that says nothing for this long is gone.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are written at a time, if there are as many.
const WRITE_BYTES: usize = 64 << 10;

/// A stream of either kind.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Takes in frames.
pub type Deliver = Arc<dyn Fn(HostId, Frame) + Send + Sync>;

/// Runs until the connection breaks or another one has taken its place. Returns why.
pub async fn run(stream: Box<dyn Stream>, peer: &Peer, deliver: &Deliver) -> String {
    let connection = peer.connected();
    tracing::info!(host = peer.config.name, "connected");
    let start = Instant::now();
    let (reader, writer) = tokio::io::split(stream);
    let why = tokio::select! {
        why = read(reader, peer, deliver, start) => why,
        why = write(writer, peer, connection, start) => why,
    };
    peer.disconnected(connection, why.clone());
    why
}

async fn read(mut stream: impl AsyncRead + Unpin, peer: &Peer, deliver: &Deliver, start: Instant) -> String {
    let mut body = Vec::new();
    loop {
        let sent = match timeout(SILENCE, read_one(&mut stream, &mut body)).await {
            Ok(Ok(sent)) => sent,
            Ok(Err(why)) => return why,
            Err(_) => return format!("no sign of it for {} s", SILENCE.as_secs()),
        };
        peer.received_bytes.fetch_add((HEAD_BYTES + body.len()) as u64, Ordering::Relaxed);
        match sent {
            Sent::Ping(number) => peer.send_own(&Sent::Pong(number)),
            Sent::Pong(sent_us) => {
                let now_us = start.elapsed().as_micros() as u64;
                peer.state().round_trip_us = Some(now_us.saturating_sub(sent_us));
            }
            Sent::Frame(frame) => deliver(peer.id, frame),
        }
    }
}

async fn read_one(stream: &mut (impl AsyncRead + Unpin), body: &mut Vec<u8>) -> Result<Sent, String> {
    let mut first = [0; HEAD_BYTES];
    stream.read_exact(&mut first).await.map_err(|error| error.to_string())?;
    let (length, crc) = head(first).map_err(|error| error.to_string())?;
    body.resize(length, 0);
    stream.read_exact(body).await.map_err(|error| error.to_string())?;
    if checksum(body) != crc {
        return Err("a frame fails its checksum".into());
    }
    decode(body).map_err(|error| error.to_string())
}

async fn write(mut stream: impl AsyncWrite + Unpin, peer: &Peer, connection: u64, start: Instant) -> String {
    let mut ping_at = Instant::now();
    let mut batch = Vec::new();
    loop {
        let now = Instant::now();
        if !peer.is_current(connection) {
            // The bell may have been rung for the other one.
            peer.bell.notify_one();
            return "the host has connected again".into();
        }
        if now >= ping_at {
            peer.send_own(&Sent::Ping(start.elapsed().as_micros() as u64));
            ping_at = now + PING_EVERY;
        }
        batch.clear();
        let mut next = None;
        while batch.len() < WRITE_BYTES {
            match peer.state().queue.next(now) {
                Ok(frame) => batch.extend(frame),
                Err(at) => {
                    next = at;
                    break;
                }
            }
        }
        if batch.is_empty() {
            let until = next.map_or(ping_at, |at| at.min(ping_at));
            tokio::select! {
                () = peer.bell.notified() => {}
                () = sleep_until(until.into()) => {}
            }
            continue;
        }
        let written = async {
            stream.write_all(&batch).await?;
            stream.flush().await
        };
        match timeout(SILENCE, written).await {
            Ok(Ok(())) => peer.sent_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("it takes nothing for {} s", SILENCE.as_secs()),
        };
    }
}
