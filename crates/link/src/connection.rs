//! A connection after its greetings, until it ends.
//!
//! Invariants
//! - One connection of a host is alive at a time. A newer one of the same peer ends the older one: the peer knows
//!   better than this side whether the older one still works.
//! - One frame is in memory for reading, packed and unpacked, and at most twice [`BATCH_BYTES`] and a frame for
//!   writing.
//! - Beyond what may wait to be handled ([`crate::inbox`]), what a peer sends stays in the socket.
//! - What waits to be sent waits in the queue, where control overtakes copies, and not in the socket.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::batch::{Batch, Packing};
use crate::error::ConnectionError;
use crate::host::Host;
use crate::inbox::Receipt;
use crate::links::{Event, Shared};
use crate::queue::Next;
use crate::wire::{HEADER_BYTES, Header, PACKED, PACKED_SINCE, Packet, Unpacker, WireError};

/// The interval at which a peer is asked whether it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a peer may send nothing, or accept nothing.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a frame may take to arrive.
const FRAME_TIME: Duration = Duration::from_secs(30);
/// Frames are written in batches of about this many bytes.
const BATCH_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 64 << 10;
/// Bytes in the socket's buffer, beyond those on their way, up to which more is written to it.
const UNSENT_BYTES: u32 = 32 << 10;

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A peer after its greeting.
pub(crate) struct Peer {
    pub stream: Box<dyn Stream>,
    /// The protocol version that both use.
    pub version: u32,
}

/// Prepares the socket of a connection.
pub(crate) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)
}

/// Makes this connection the host's current one, and returns why it ended.
pub(crate) async fn run(shared: &Shared, host: &Host, peer: Peer) -> ConnectionError {
    let mut mine = 0;
    host.newest.send_modify(|count| {
        *count += 1;
        mine = *count;
    });
    let mut newest = host.newest.subscribe();
    let turn = host.turn.lock().await;
    if *newest.borrow_and_update() != mine {
        return ConnectionError::Replaced;
    }
    host.connected();
    shared.deliver(host, Event::Connected, Receipt::default());
    tracing::info!(host = host.name, "connected");

    let pinged = AtomicU64::new(0);
    let (incoming, outgoing) = tokio::io::split(peer.stream);
    let packing = Packing::new(shared.compresses && peer.version >= PACKED_SINCE);
    let version = peer.version;
    let error = tokio::select! {
        error = ended(receive(shared, host, incoming, version, &pinged)) => error,
        error = ended(send(host, outgoing, version, packing)) => error,
        () = keep_alive(shared, host, &pinged) => unreachable!("it never ends"),
        _ = newest.wait_for(|count| *count != mine) => ConnectionError::Replaced,
    };

    host.lost();
    shared.deliver(host, Event::Lost, Receipt::default());
    drop(turn);
    error
}

/// Awaits something that only ends with an error.
async fn ended(work: impl Future<Output = Result<(), ConnectionError>>) -> ConnectionError {
    work.await.expect_err("it goes on until something fails")
}

async fn keep_alive(shared: &Shared, host: &Host, pinged: &AtomicU64) {
    let mut ticks = interval(KEEP_ALIVE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_us = shared.now_us();
        pinged.store(now_us, Relaxed);
        host.queue(|queue| queue.ping(now_us));
        host.queued.notify_one();
    }
}

async fn receive(
    shared: &Shared,
    host: &Host,
    stream: impl AsyncRead + Unpin,
    version: u32,
    pinged: &AtomicU64,
) -> Result<(), ConnectionError> {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    let mut body = Vec::new();
    let mut unpacker = Unpacker::default();
    loop {
        // Lets other hosts' tasks run too, when data from this one keeps coming.
        tokio::task::consume_budget().await;
        let header = read_header(&mut stream).await?;
        body.resize(header.body_bytes(), 0);
        let slow = |_| ConnectionError::SlowFrame(FRAME_TIME.as_secs());
        timeout(FRAME_TIME, fill(&mut stream, &mut body)).await.map_err(slow)??;
        host.counters.received_bytes.fetch_add((HEADER_BYTES + body.len()) as u64, Relaxed);
        if !header.is_packed() {
            take(shared, host, pinged, Packet::decode(&header, &body)?).await;
            continue;
        }
        if version < PACKED_SINCE {
            return Err(WireError::Kind(PACKED).into());
        }
        let mut frames = unpacker.unpack(&header, &body)?;
        while !frames.is_empty() {
            tokio::task::consume_budget().await;
            let (packet, rest) = Packet::decode_first(frames)?;
            take(shared, host, pinged, packet).await;
            frames = rest;
        }
    }
}

async fn take(shared: &Shared, host: &Host, pinged: &AtomicU64, packet: Packet) {
    match packet {
        Packet::Ping(number) => {
            host.queue(|queue| queue.pong(number));
            host.queued.notify_one();
        }
        Packet::Pong(number) if number == pinged.load(Relaxed) => {
            host.round_trip(shared.now_us().saturating_sub(number));
        }
        Packet::Pong(_) => {}
        Packet::Frame(frame) => {
            host.counters.received_frames.fetch_add(1, Relaxed);
            let receipt = host.inbox.receive(&frame).await;
            shared.deliver(host, Event::Received(frame), receipt);
        }
    }
}

async fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> Result<Header, ConnectionError> {
    let mut bytes = [0; HEADER_BYTES];
    match read_some(stream, &mut bytes).await? {
        0 => return Err(ConnectionError::Closed),
        some => fill(stream, &mut bytes[some..]).await?,
    }
    Ok(Header::read(bytes)?)
}

/// Fills `bytes` with the rest of a frame.
async fn fill(stream: &mut (impl AsyncRead + Unpin), bytes: &mut [u8]) -> Result<(), ConnectionError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read_some(stream, &mut bytes[filled..]).await {
            Ok(0) | Err(ConnectionError::Closed) => return Err(ConnectionError::ClosedInFrame),
            other => filled += other?,
        }
    }
    Ok(())
}

async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut [u8],
) -> Result<usize, ConnectionError> {
    match timeout(SILENCE, stream.read(bytes)).await {
        Ok(result) => result.map_err(ConnectionError::io),
        Err(_) => Err(ConnectionError::Silent(SILENCE.as_secs())),
    }
}

async fn send(
    host: &Host,
    mut stream: impl AsyncWrite + Unpin,
    version: u32,
    mut packing: Packing,
) -> Result<(), ConnectionError> {
    let mut batch = Batch::default();
    loop {
        batch.clear();
        let wait = gather(host, version, &mut batch);
        let is_limited = wait.is_some();
        if batch.is_empty() {
            match wait {
                Some(wait) => drop(timeout(wait, host.queued.notified()).await),
                None => host.queued.notified().await,
            }
            packing.link_was_slow(is_limited);
            continue;
        }
        let packed = packing.pack(&batch);
        host.queue(|queue| queue.saved(packed.saved_copy_bytes));
        let is_slow = write_all(&mut stream, packed.bytes).await?;
        host.counters.sent_frames.fetch_add(batch.frames(), Relaxed);
        host.counters.sent_bytes.fetch_add(packed.bytes.len() as u64, Relaxed);
        host.counters.saved_bytes.fetch_add((batch.bytes() - packed.bytes.len()) as u64, Relaxed);
        packing.link_was_slow(is_slow || is_limited);
    }
}

/// Encodes what is to be sent now. Returns how long the next frame has to wait for the limit.
fn gather(host: &Host, version: u32, batch: &mut Batch) -> Option<Duration> {
    while batch.bytes() < BATCH_BYTES {
        match host.queue(|queue| queue.next(Instant::now())) {
            Next::Send(mut packet) => {
                if packet.suits(version) {
                    packet.adapt(version);
                    batch.add(&packet);
                }
            }
            Next::Wait(wait) => return Some(wait),
            Next::Nothing => break,
        }
    }
    None
}

/// Writes all bytes. Returns whether the link was slower than this side, so that some had to wait.
async fn write_all(
    stream: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
) -> Result<bool, ConnectionError> {
    let stalled = |_| ConnectionError::Stalled(SILENCE.as_secs());
    let mut waited = false;
    while !bytes.is_empty() {
        let write = poll_fn(|context| {
            let written = Pin::new(&mut *stream).poll_write(context, bytes);
            waited |= written.is_pending();
            written
        });
        match timeout(SILENCE, write).await.map_err(stalled)?.map_err(ConnectionError::io)? {
            0 => return Err(ConnectionError::Closed),
            some => bytes = &bytes[some..],
        }
    }
    // TLS takes some bytes before they fit into the socket.
    let flush = poll_fn(|context| {
        let flushed = Pin::new(&mut *stream).poll_flush(context);
        waited |= flushed.is_pending();
        flushed
    });
    timeout(SILENCE, flush).await.map_err(stalled)?.map_err(ConnectionError::io)?;
    Ok(waited)
}
