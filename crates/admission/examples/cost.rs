//! What an access costs in each filter: `cargo run --release -p haversack-admission --example cost`.

use std::time::Instant;

use haversack_admission::{Access, Admit, Op, StagingKind};
use haversack_model::BlockNo;
use haversack_model::random::Random;

const ACCESSES: usize = 4_000_000;
/// The disk: 64 GiB.
const DISK_BLOCKS: u64 = 1 << 24;
/// The blocks that are accessed, and how long one stays in the cache.
const BLOCKS: u64 = 1 << 20;
const STAY: u64 = 1_000_000;

fn main() {
    let mut random = Random::new(1);
    // Half of the accesses go to a sixteenth of the blocks.
    let blocks: Vec<u64> =
        (0..ACCESSES).map(|at| random.below(if at % 2 == 0 { BLOCKS / 16 } else { BLOCKS })).collect();
    let staging = Admit::Staging { kind: StagingKind::Address, reuses: 1, bytes: 8 << 20 };
    for admit in [Admit::Always, Admit::Learned, Admit::Larc { cache_blocks: BLOCKS / 4 }, staging] {
        let mut filter = admit.build(DISK_BLOCKS);
        let (mut admitted, mut now) = (0, 0);
        let mut nanoseconds = [0; 5];
        for round in &mut nanoseconds {
            let begin = Instant::now();
            for block in &blocks {
                now += 1;
                let op = if block % 4 == 0 { Op::Write } else { Op::Read };
                let stay = Some(STAY);
                let blocks = 1 + (block % 8) as u32;
                let access = Access { blocks, now, stay, ..Access::from(op) };
                admitted += u64::from(filter.miss(BlockNo(*block), access).admit);
            }
            *round = begin.elapsed().as_nanos() as u64 / ACCESSES as u64;
        }
        nanoseconds.sort_unstable();
        println!(
            "{}: {} ns an access, {} bytes, {admitted} admitted",
            admit.name(),
            nanoseconds[0],
            filter.bytes()
        );
    }
}
