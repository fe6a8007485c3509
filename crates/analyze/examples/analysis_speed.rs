//! References a second of each analysis, on a skewed load over a million blocks or more, a third of them writes:
//! `cargo run --release -p haversack-analyze --example analysis_speed [MILLIONS [MILLIONS OF BLOCKS]]`.

use std::time::Instant;

use haversack_analyze::{Kind, Parallel, Reference, Sampler};

/// Blocks by rank to the power of three of a uniform number: the first percent of them gets a fifth of the accesses.
fn load(count: usize, blocks: usize) -> Vec<Reference> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let reference = |_| {
        let rank = (random().powi(3) * blocks as f64) as u64;
        let kind = if random() < 1.0 / 3.0 { Kind::Write } else { Kind::Read };
        // Ranks are scattered over the disk.
        Reference::new(rank.wrapping_mul(0x9e37_79b9) & ((1 << 32) - 1), kind)
    };
    (0..count).map(reference).collect()
}

fn measure(name: &str, references: &[Reference], run: impl FnOnce(&[Reference])) {
    let begin = Instant::now();
    run(references);
    let seconds = begin.elapsed().as_secs_f64();
    println!("{name:<34} {:>7.1} million references a second", references.len() as f64 / 1e6 / seconds);
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number of millions"));
    let mut millions = |other: usize| 1_000_000 * arguments.next().unwrap_or(other);
    let references = load(millions(50), millions(1));
    for threads in [1, 2] {
        measure(&format!("exact, typed, {threads} thread(s)"), &references, |references| {
            let mut parallel = Parallel::new(&[], threads);
            references.chunks(1 << 24).for_each(|batch| parallel.take(batch));
        });
    }
    let sample = |mut sampler: Sampler, references: &[Reference]| {
        references.iter().for_each(|reference| sampler.access(reference.key(), reference.kind()));
    };
    measure("sampled, 8192 blocks, 1 thread", &references, |r| sample(Sampler::fixed_size(8192), r));
    measure("sampled, rate 0.001, 1 thread", &references, |r| sample(Sampler::fixed_rate(0.001), r));
}
