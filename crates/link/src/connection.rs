//! A connection after its greetings, until it ends.
//!
//! Invariants
//! - One connection of a host is alive at a time. A newer one of the same peer ends the older: the peer knows better
//!   than this side whether the older one still works.
//! - One frame is in memory for reading, and at most [`BATCH_BYTES`] and a frame for writing.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::error::ConnectionError;
use crate::host::Host;
use crate::links::{Event, Shared};
use crate::queue::Next;
use crate::wire::{HEADER_BYTES, Header, Packet};

/// How often a peer is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a peer may send nothing, or take nothing.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a frame may take to arrive.
const FRAME_TIME: Duration = Duration::from_secs(30);
/// Frames are written in batches of about this many bytes.
const BATCH_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 64 << 10;

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Makes this connection the host's, and returns why it ended.
pub(crate) async fn run(shared: &Shared, host: &Host, stream: Box<dyn Stream>) -> ConnectionError {
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
    shared.deliver(host, Event::Connected);
    tracing::info!(host = host.name, "connected");

    let pinged = AtomicU64::new(0);
    let (incoming, outgoing) = tokio::io::split(stream);
    let error = tokio::select! {
        error = ended(receive(shared, host, incoming, &pinged)) => error,
        error = ended(send(host, outgoing)) => error,
        () = keep_alive(shared, host, &pinged) => unreachable!("it never ends"),
        _ = newest.wait_for(|count| *count != mine) => ConnectionError::Replaced,
    };

    host.lost();
    shared.deliver(host, Event::Lost);
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
    pinged: &AtomicU64,
) -> Result<(), ConnectionError> {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    let mut body = Vec::new();
    loop {
        // Lets other hosts' tasks run, too, when more and more comes from this one.
        tokio::task::consume_budget().await;
        let header = read_header(&mut stream).await?;
        body.resize(header.body_bytes(), 0);
        let slow = |_| ConnectionError::SlowFrame(FRAME_TIME.as_secs());
        timeout(FRAME_TIME, fill(&mut stream, &mut body)).await.map_err(slow)??;
        host.counters.received_bytes.fetch_add((HEADER_BYTES + body.len()) as u64, Relaxed);
        match Packet::decode(&header, &body)? {
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
                shared.deliver(host, Event::Received(frame));
            }
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

async fn send(host: &Host, mut stream: impl AsyncWrite + Unpin) -> Result<(), ConnectionError> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let (frames, wait) = gather(host, &mut bytes);
        if bytes.is_empty() {
            match wait {
                Some(wait) => drop(timeout(wait, host.queued.notified()).await),
                None => host.queued.notified().await,
            }
            continue;
        }
        write_all(&mut stream, &bytes).await?;
        host.counters.sent_frames.fetch_add(frames, Relaxed);
        host.counters.sent_bytes.fetch_add(bytes.len() as u64, Relaxed);
    }
}

/// Encodes what is to be sent now. Returns how many frames that is, and how long the next one has to wait.
fn gather(host: &Host, bytes: &mut Vec<u8>) -> (u64, Option<Duration>) {
    let mut frames = 0;
    while bytes.len() < BATCH_BYTES {
        match host.queue(|queue| queue.next(Instant::now())) {
            Next::Send(packet) => {
                packet.encode(bytes).expect("frames are checked before they are queued");
                frames += u64::from(matches!(packet, Packet::Frame(_)));
            }
            Next::Wait(wait) => return (frames, Some(wait)),
            Next::Nothing => break,
        }
    }
    (frames, None)
}

async fn write_all(stream: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) -> Result<(), ConnectionError> {
    let stalled = |_| ConnectionError::Stalled(SILENCE.as_secs());
    while !bytes.is_empty() {
        let written = timeout(SILENCE, stream.write(bytes)).await.map_err(stalled)?;
        match written.map_err(ConnectionError::io)? {
            0 => return Err(ConnectionError::Closed),
            some => bytes = &bytes[some..],
        }
    }
    timeout(SILENCE, stream.flush()).await.map_err(stalled)?.map_err(ConnectionError::io)
}
