//! The groups of loads on vhost-user-blk, and what the back ends of each group serve.

use std::time::Duration;

use super::BLOCKS;
use super::contest::Event;
use super::load::{BLOCK_BYTES, Kind, Load, MOST_BLOCKS, MOST_DEPTH, Order};
use super::serve::Caching;

/// Blocks that are written: 16 MiB, so that little is dirty and the cleaner has no reason to work.
const WRITTEN_BLOCKS: u64 = 4096;
/// The number of writes that fit in the staging area, and the pause in which they are committed to flash.
const BURST: (u64, Duration) = (4096, Duration::from_millis(200));
/// Blocks of a disk that is always missed: 1 TiB, of which 1 GiB fits in the cache. Its image is sparse, so a miss costs what the
/// caches do about it.
const MISSED_BLOCKS: u64 = 1 << 28;

/// What the back ends of a contest serve.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How disks are cached.
    pub caching: Caching,
    /// How many there are.
    pub disks: u16,
    /// Blocks of each disk.
    pub blocks: u64,
}

impl Setup {
    /// Bytes of a disk.
    pub fn disk_bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }

    /// Whether the cache holds all blocks.
    pub fn is_cached(&self) -> bool {
        self.blocks * u64::from(self.disks) <= BLOCKS
    }

    /// Whether blocks have their numbers in them.
    pub fn has_numbers(&self) -> bool {
        self.disks == 1 && self.is_cached()
    }
}

/// A contest: back ends that are set up alike, and loads.
pub struct Group {
    /// Its title.
    pub title: &'static str,
    /// What is served.
    pub setup: Setup,
    /// The loads.
    pub events: Vec<Event>,
}

fn one(caching: Caching, blocks: u64) -> Setup {
    Setup { caching, disks: 1, blocks }
}

fn many(disks: u16) -> Setup {
    Setup { caching: Caching::WriteBack, disks, blocks: BLOCKS / u64::from(disks) }
}

fn group<const N: usize>(title: &'static str, setup: Setup, loads: [(&'static str, Load); N]) -> Group {
    Group { title, setup, events: loads.map(|(name, load)| Event::new(name, load)).to_vec() }
}

fn mixed(depth: usize, blocks: u64) -> Load {
    Load { reads_percent: 70, ..Load::random(Kind::Read, depth, blocks) }
}

fn writes(depth: usize) -> Load {
    Load::random(Kind::Write, depth, WRITTEN_BLOCKS)
}

fn write_back() -> Group {
    let reads = |depth| Load::random(Kind::Read, depth, BLOCKS);
    let flushed = |depth| Load { flushes: true, ..writes(depth) };
    let runs = Load { order: Order::Sequential, request_blocks: MOST_BLOCKS, ..reads(8) };
    let loads = [
        ("read hit QD1", reads(1)),
        ("read hit QD8", reads(8)),
        ("read hit QD32", reads(MOST_DEPTH)),
        ("read hit 128 KiB sequential QD8", runs),
        ("write QD1 in bursts of 16 MiB", Load { burst: Some(BURST), ..writes(1) }),
        ("write QD1", writes(1)),
        ("write QD8", writes(8)),
        ("write QD32", writes(MOST_DEPTH)),
        ("write and flush QD1", flushed(1)),
        ("write and flush QD8", flushed(8)),
        ("70 % reads QD1", mixed(1, BLOCKS)),
        ("70 % reads QD8", mixed(8, BLOCKS)),
        ("70 % reads QD32", mixed(MOST_DEPTH, BLOCKS)),
    ];
    group("one disk, write-back", one(Caching::WriteBack, BLOCKS), loads)
}

fn write_through() -> Group {
    let loads = [
        ("write QD1", writes(1)),
        ("write QD8", writes(8)),
        ("write QD32", writes(MOST_DEPTH)),
        ("70 % reads QD8", mixed(8, BLOCKS)),
    ];
    group("one disk, write-through", one(Caching::WriteThrough, BLOCKS), loads)
}

fn misses(title: &'static str, caching: Caching) -> Group {
    let misses = |depth| Load::random(Kind::Read, depth, MISSED_BLOCKS);
    let loads = [("miss QD1", misses(1)), ("miss QD8", misses(8)), ("miss QD32", misses(MOST_DEPTH))];
    group(title, one(caching, MISSED_BLOCKS), loads)
}

/// All groups.
pub fn groups() -> Vec<Group> {
    let (four, hundred) = (many(4), many(100));
    vec![
        write_back(),
        write_through(),
        misses("one disk, misses that enter", Caching::WriteBack),
        misses("one disk, misses that are kept out", Caching::OnSecondMiss),
        group(
            "4 disks",
            four,
            [
                ("read hit QD8 each", Load::random(Kind::Read, 4 * 8, four.blocks)),
                ("70 % reads QD8 each", mixed(4 * 8, four.blocks)),
            ],
        ),
        group(
            "100 disks",
            hundred,
            [
                ("read hit QD1 each", Load::random(Kind::Read, 100, hundred.blocks)),
                ("70 % reads QD1 each", mixed(100, hundred.blocks)),
            ],
        ),
    ]
}
