//! How long the first requests at the destination wait, counted from the moment when the VM has stopped at the source.
//! The VM writes at full speed until then: what it wrote last is dirty, and only a part of it was sent ahead. When QEMU
//! stops a VM, it flushes the VM's disks, except for vhost-user-blk disks, and has to wait for that flush with any
//! storage.

use std::time::{Duration, Instant};

use haversack_e2e::MIB;
use haversack_model::random::Random;

use super::scene::{Scene, blocks};
use super::{DIRTY_MIB, Failure, Figure, Size, share};
use crate::live::load::{Client, Kind, Request};
use crate::live::nbd_client::NbdClient;

const STALL_GOAL_MS: f64 = 50.0;
const SENT_GOAL: f64 = 1.1;

/// The results of one move.
struct Move {
    first_write: Duration,
    first_read: Duration,
    /// Bytes sent, as a multiple of the bytes that were cached or written since.
    sent_share: f64,
}

/// Moves the disk there and back.
pub fn run(scene: &Scene<'_>, size: &Size, moves: usize) -> Result<Vec<Figure>, Failure> {
    let mut random = Random::new(1);
    scene.write(0, 0..blocks(size.cached_mib))?;
    scene.flush(0)?;
    let mut from = 0;
    let mut move_on = |is_flushed| {
        let moved = move_once(scene, size, from, is_flushed, &mut random);
        from = 1 - from;
        moved
    };
    let mut run = |is_flushed| (0..moves).map(|_| move_on(is_flushed)).collect::<Result<Vec<_>, _>>();
    let (flushed, unflushed) = (run(true)?, run(false)?);
    let times = |moves: &[Move], of: fn(&Move) -> Duration| -> Vec<f64> {
        moves.iter().map(|it| of(it).as_secs_f64() * 1e3).collect()
    };
    let writes = times(&flushed, |it| it.first_write);
    let unflushed_writes = times(&unflushed, |it| it.first_write);
    let all: Vec<Move> = flushed.into_iter().chain(unflushed).collect();
    let reads = times(&all, |it| it.first_read);
    let sent: Vec<f64> = all.iter().map(|it| it.sent_share).collect();
    let stall = |what, figures: &[f64], of| Figure::at_most(what, "ms", STALL_GOAL_MS, share(figures, of));
    Ok(vec![
        stall("first write, p50", &writes, 0.5),
        stall("first write, p99", &writes, 0.99),
        stall("first write, not flushed at the source, p50", &unflushed_writes, 0.5),
        stall("first write, not flushed at the source, p99", &unflushed_writes, 0.99),
        stall("first read after it, p50", &reads, 0.5),
        stall("first read after it, p99", &reads, 0.99),
        Figure::at_most("sent, of what is cached or was written, p50", "times", SENT_GOAL, share(&sent, 0.5)),
        Figure::at_most(
            "sent, of what is cached or was written, most",
            "times",
            SENT_GOAL,
            share(&sent, 1.0),
        ),
    ])
}

fn move_once(
    scene: &Scene<'_>,
    size: &Size,
    from: usize,
    is_flushed: bool,
    random: &mut Random,
) -> Result<Move, Failure> {
    let all = blocks(size.cached_mib);
    let cached_bytes = scene.cached_bytes(from)?;
    let sent_before = scene.sent_bytes(from)?;
    scene.send_ahead(from)?;
    // As a hypervisor does, long before its guest comes.
    let mut destination = scene.client(1 - from)?;
    let first = random.below(all - blocks(DIRTY_MIB) + 1);
    let written = first..first + blocks(DIRTY_MIB);
    if is_flushed {
        scene.write_and_flush(from, written)?;
    } else {
        scene.write(from, written)?;
    }
    let stopped = Instant::now();
    ask(&mut destination, Kind::Write, random.below(all))?;
    let first_write = stopped.elapsed();
    let asked = Instant::now();
    ask(&mut destination, Kind::Read, first + random.below(blocks(DIRTY_MIB)))?;
    let first_read = asked.elapsed();
    scene.wait_until_moved(from)?;
    let due_bytes = cached_bytes + DIRTY_MIB * MIB;
    let sent_bytes = scene.sent_bytes(from)? - sent_before;
    Ok(Move { first_write, first_read, sent_share: sent_bytes as f64 / due_bytes as f64 })
}

fn ask(client: &mut NbdClient, kind: Kind, block: u64) -> std::io::Result<()> {
    client.start(0, Request::one(kind, block))?;
    client.wait(&mut Vec::new())
}
