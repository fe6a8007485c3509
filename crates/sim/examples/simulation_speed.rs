//! How fast the simulator is: `simulation_speed TRACE BLOCKS [POLICY...]` prints millions of block accesses a second of
//! each policy, one after the other on one thread, without the time that reading takes.
//!
//! `zipf:REQUESTS,BLOCKS` in place of a file makes requests up while they are played.

use std::path::PathBuf;
use std::time::Instant;

use haversack_model::random::Random;
use haversack_sim::{PolicyName, Settings, SimError, Sizes, Traffic, run};
use haversack_trace::{Access, Source, TraceError};

/// Skewed reads of one block each, generated one batch at a time.
struct Made {
    left: u64,
    made: u64,
    blocks: u64,
    rng: Random,
    names: [String; 1],
}

impl Source for Made {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let count = self.left.min(4096);
        for _ in 0..count {
            // The density of ranks falls like that of Zipf's law with exponent 0.9.
            let rank = (self.rng.open_unit().powi(10) * self.blocks as f64) as u64;
            let block = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks;
            self.made += 1;
            into.push(Access {
                time_ns: self.made * 10_000,
                offset_bytes: block * 4096,
                length_bytes: 4096,
                ..Access::default()
            });
        }
        self.left -= count;
        Ok(count as usize)
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }
}

fn made(text: &str) -> Option<(u64, u64)> {
    let (requests, blocks) = text.strip_prefix("zipf:")?.split_once(',')?;
    Some((requests.parse().ok()?, blocks.parse().ok()?))
}

fn main() -> Result<(), SimError> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [trace, blocks, policies @ ..] = &arguments[..] else {
        return Err(SimError::Settings("usage: speed TRACE BLOCKS [POLICY...]".into()));
    };
    let opener = || -> Result<Box<dyn Source>, SimError> {
        match made(trace) {
            Some((left, blocks)) => {
                let names = ["made".into()];
                Ok(Box::new(Made { left, made: 0, blocks, rng: Random::new(1), names }))
            }
            None => Ok(haversack_trace::open(&PathBuf::from(trace), &Default::default())?),
        }
    };
    let sizes = blocks.split(',').filter_map(|blocks| blocks.parse().ok()).collect();
    let policies = match policies {
        [] => PolicyName::ALL.to_vec(),
        some => some.iter().map(|name| name.parse()).collect::<Result<_, _>>()?,
    };
    let settings = Settings {
        policies,
        sizes: Sizes::Blocks(sizes),
        threads: 1,
        traffic: Traffic::default(),
        ..Settings::default()
    };
    let start = Instant::now();
    let report = run(&opener, &settings, &|_, _| {})?;
    print!("{}", haversack_sim::show::table(&report, true).to_text());
    println!("{:.1} s in all", start.elapsed().as_secs_f64());
    Ok(())
}
