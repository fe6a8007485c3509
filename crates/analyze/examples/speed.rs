//! References a second of each analysis, on a skewed load over a million blocks, a third of them writes:
//! `cargo run --release -p haversack-analyze --example speed [MILLIONS]`.

use std::time::Instant;

use haversack_analyze::{Kind, Parallel, Reference, Sampler};

/// Blocks by rank to the power of three of a uniform number: the first percent of them gets a fifth of the accesses.
fn load(count: usize) -> Vec<Reference> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let reference = |_| {
        let rank = (random().powi(3) * 1e6) as u64;
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
    let millions = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(50);
    let references = load(millions * 1_000_000);
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
