//! `haversack trace generate`: traces of simple patterns, and traces like real volumes.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use haversack_api::{Size, Span};
use haversack_trace::Source;
use haversack_trace::generate::{
    Distances, GenerateError, Generator, Kind, Mix, Pattern, Profile, Workload, Zone, not_calibrated, preset,
    presets,
};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::output::print;
use crate::trace::{NamedOutput, request_count, write_file};

/// The size of a block.
const BLOCK_BYTES: u64 = 4096;

/// What to generate.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Generate {
    #[command(subcommand)]
    kind: Option<Command>,
    /// Imitate a real volume: msr:VOLUME or cloudphysics:VM, such as msr:web_0. 'generate presets' lists them and the
    /// figures that are not calibrated.
    #[arg(long, required = true)]
    like: Option<String>,
    /// Number of requests; the footprint is scaled with it.
    #[arg(long, conflicts_with = "scale")]
    requests: Option<Count>,
    /// Fraction of the requests and of the footprint to generate.
    #[arg(long)]
    scale: Option<f64>,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Output file. CSV if its name ends in .csv, otherwise Haversack's own format.
    #[arg(short, long, required = true)]
    output: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
}

/// A count: 1500, 10k, 1M or 2G, with decimal suffixes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Count(u64);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("'{text}' is not a count: expected a number, perhaps with k, M or G");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" => 1,
            "k" | "K" => 1_000,
            "m" | "M" => 1_000_000,
            "g" | "G" => 1_000_000_000,
            _ => return Err(wrong()),
        };
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(unit).map(Count).ok_or_else(wrong);
        }
        let count = digits.parse::<f64>().map_err(|_| wrong())? * unit as f64;
        let fits = (0.0..1e18).contains(&count) && (count - count.round()).abs() < 1e-6;
        if fits { Ok(Count(count.round() as u64)) } else { Err(wrong()) }
    }
}

/// A value and its weight, as in 64k:0.3; alone its weight is 1.
#[derive(Clone, Copy, Debug)]
struct Weighted<T> {
    value: T,
    weight: f64,
}

impl<T: FromStr<Err = String>> FromStr for Weighted<T> {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (value, weight) = text.split_once(':').unwrap_or((text, "1"));
        let weight = weight.parse().map_err(|_| format!("'{weight}' is not a weight: expected a number"))?;
        Ok(Weighted { value: value.parse()?, weight })
    }
}

fn zone(text: &str) -> std::result::Result<Zone, String> {
    let number = |text: &str| text.parse::<f64>().ok();
    let zone = text.split_once('/').and_then(|(requests, size)| {
        Some(Zone { requests_percent: number(requests)?, size_percent: number(size)? })
    });
    zone.ok_or_else(|| {
        format!("'{text}' is not a zone: expected percent of requests / percent of size, as in 50/5")
    })
}

/// What every pattern needs.
#[derive(Args)]
struct Load {
    /// Blocks of 4 KiB of each volume.
    #[arg(long)]
    blocks: Count,
    /// Total number of requests.
    #[arg(long)]
    requests: Count,
    /// Mean requests per second, over all volumes; arrival times are random.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Number of volumes, chosen at random for each request.
    #[arg(long, default_value_t = 1)]
    volumes: u32,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: NamedOutput,
}

/// Reads, writes and sizes.
#[derive(Args)]
struct Mixture {
    /// Fraction of reads, 0 to 1.
    #[arg(long, default_value_t = 0.7)]
    read: f64,
    /// Request sizes, with weights if there are several: 4k, or 4k:0.8,64k:0.2.
    #[arg(long, value_delimiter = ',', default_value = "4k")]
    size: Vec<Weighted<Size>>,
}

/// The skew of popularity.
#[derive(Args)]
struct Skew {
    /// Zipf exponent: the block of rank k is accessed in proportion to 1 / k^theta; 0 is uniform.
    #[arg(long, default_value_t = 0.9)]
    theta: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Letter {
    A,
    B,
    C,
    D,
    E,
    F,
}

#[derive(Subcommand)]
enum Command {
    /// Uniform: all blocks are equally likely.
    Uniform {
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// Zipf: some blocks are far more popular than others.
    Zipf {
        #[command(flatten)]
        skew: Skew,
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// Zones with their own share of the requests, as with fio's random_distribution=zoned.
    Zoned {
        /// Percent of requests / percent of the volume, for each zone; both sum to 100.
        #[arg(long, value_delimiter = ':', value_parser = zone, default_value = "50/5:30/15:20/80")]
        zones: Vec<Zone>,
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// Sequential passes over the volume.
    Scan {
        /// Blocks between the starts of two requests [default: each request starts where the last one ended].
        #[arg(long)]
        stride: Option<Count>,
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// YCSB core workload with one block per record.
    Ycsb {
        /// Workload.
        #[arg(long, ignore_case = true)]
        workload: Letter,
        #[command(flatten)]
        load: Load,
    },
    /// Boot storm: machines with the same image start within a short time, one volume each.
    BootStorm {
        /// Fraction of the image that a boot reads, 0 to 1.
        #[arg(long, default_value_t = 0.05)]
        image_read: f64,
        /// Fraction of the trace in which all machines have started, 0 to 1.
        #[arg(long, default_value_t = 0.2)]
        storm: f64,
        #[command(flatten)]
        load: Load,
    },
    /// Zipf workload with a concurrent scan of the whole volume.
    Backup {
        /// Fraction of the requests that belong to the scan while it runs, 0 to 1.
        #[arg(long, default_value_t = 0.5)]
        share: f64,
        #[command(flatten)]
        skew: Skew,
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// Phases with different working sets.
    Phases {
        /// How many.
        #[arg(long, default_value_t = 4)]
        phases: u32,
        /// Blocks of each working set.
        #[arg(long)]
        working_set: Count,
        #[command(flatten)]
        skew: Skew,
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// Zipf workload with a varying rate.
    Diurnal {
        /// Amplitude of the rate, as a fraction of its mean.
        #[arg(long, default_value_t = 0.8)]
        amplitude: f64,
        /// Time between peaks.
        #[arg(long, default_value = "24h")]
        period: Span,
        #[command(flatten)]
        skew: Skew,
        #[command(flatten)]
        mixture: Mixture,
        #[command(flatten)]
        load: Load,
    },
    /// Workload with given reuse distances.
    Reuse(Reuse),
    /// List the real volumes that --like accepts.
    Presets,
}

/// A volume with given reuse distances.
#[derive(Args)]
struct Reuse {
    /// Ranges of reuse distances in blocks, as upper bound and fraction of the repeated accesses: 64:0.3,4k:0.5,1M:0.2.
    #[arg(long, value_delimiter = ',', required = true)]
    distances: Vec<Weighted<Count>>,
    /// Number of distinct blocks.
    #[arg(long)]
    unique: Count,
    /// Number of distinct blocks read [default: all].
    #[arg(long)]
    unique_read: Option<Count>,
    /// Number of distinct blocks written [default: all].
    #[arg(long)]
    unique_write: Option<Count>,
    /// Total number of requests.
    #[arg(long)]
    requests: Count,
    /// Mean requests per second; arrival times are random.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Probability that a new block directly follows the previous new block, 0 to 1.
    #[arg(long, default_value_t = 0.5)]
    sequential: f64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    mixture: Mixture,
    #[command(flatten)]
    output: NamedOutput,
}

impl Mixture {
    fn mix(&self) -> Result<Mix> {
        let bytes = |size: &Weighted<Size>| u32::try_from(size.value.0).map(|bytes| (bytes, size.weight));
        let sizes = self.size.iter().map(bytes).collect::<std::result::Result<_, _>>();
        let sizes = sizes.map_err(|_| CliError::Usage("request sizes must be below 4 GiB".into()))?;
        Ok(Mix { read: self.read, sizes })
    }
}

impl Reuse {
    fn profile(&self) -> Result<Profile> {
        let mix = self.mixture.mix()?;
        let generator = Generator {
            pattern: Pattern::Uniform,
            blocks: self.unique.0,
            mix: mix.clone(),
            volumes: 1,
            requests: self.requests.0,
            rate: self.rate,
            seed: self.seed,
        };
        // The same rules for mixture and rate as for any other load.
        generator.source().map_err(|error| refused(&error))?;
        let sizes: Vec<(f64, f64)> = mix
            .sizes
            .iter()
            .map(|(bytes, weight)| (u64::from(*bytes).div_ceil(BLOCK_BYTES) as f64, *weight))
            .collect();
        let sum: f64 = sizes.iter().map(|size| size.1).sum();
        let mean_blocks = sizes.iter().map(|(blocks, weight)| blocks * weight).sum::<f64>() / sum;
        let mean_bytes =
            mix.sizes.iter().map(|(bytes, weight)| f64::from(*bytes) * weight).sum::<f64>() / sum;
        let kind = |requests: u64| Kind {
            requests,
            refs: (requests as f64 * mean_blocks).round() as u64,
            bytes: Some((requests as f64 * mean_bytes).round() as u64),
            sizes: sizes.clone(),
        };
        let requests = self.requests.0;
        let reads = (requests as f64 * mix.read).round() as u64;
        let (reads, writes) = (kind(reads), kind(requests - reads));
        let unique = self.unique.0;
        let known = |given: Option<Count>, kind: &Kind| given.map_or(unique.min(kind.refs), |count| count.0);
        let distances = self.distances.iter();
        Ok(Profile {
            name: "vol0".into(),
            unique,
            unique_read: known(self.unique_read, &reads),
            unique_write: known(self.unique_write, &writes),
            reads,
            writes,
            span_blocks: unique,
            span_s: requests.saturating_sub(1) as f64 / self.rate,
            median_gap_s: None,
            distances: distances
                .map(|range| Distances { upto: range.value.0, share: range.weight })
                .collect(),
            sequential: self.sequential,
            keep_mix: true,
        })
    }
}

/// Converts a generator's refusal into a usage error.
fn refused(error: &GenerateError) -> CliError {
    CliError::Usage(error.to_string())
}

/// Runs the command.
pub fn run(generate: &Generate, as_json: bool) -> Result<()> {
    match &generate.kind {
        Some(Command::Presets) => {
            let presets: Vec<Preset> = presets().into_iter().map(Preset::new).collect();
            print(as_json, &presets, &presets.iter().map(Preset::line).collect::<String>())
        }
        Some(Command::Reuse(reuse)) => {
            let NamedOutput { output, force } = &reuse.output;
            of_profile(&reuse.profile()?, reuse.seed, output, *force, as_json)
        }
        Some(command) => of_pattern(command, as_json),
        None => like(generate, as_json),
    }
}

/// A known real volume.
#[derive(Serialize)]
struct Preset {
    name: String,
    /// The figures that are not calibrated, and why.
    not_calibrated: Option<&'static str>,
}

impl Preset {
    fn new(name: String) -> Self {
        Preset { not_calibrated: not_calibrated(&name), name }
    }

    fn line(&self) -> String {
        let Preset { name, not_calibrated } = self;
        not_calibrated.map_or_else(|| format!("{name}\n"), |what| format!("{name}  not calibrated: {what}\n"))
    }
}

/// Generates a trace like a real volume.
fn like(generate: &Generate, as_json: bool) -> Result<()> {
    let (Some(name), Some(output)) = (&generate.like, &generate.output) else {
        return Err(CliError::Usage("nothing to generate: give a pattern or --like VOLUME".into()));
    };
    let whole = preset(name).map_err(|error| refused(&error))?;
    let requests = generate.requests.map(|count| count.0 as f64 / whole.requests() as f64);
    let scale = requests.or(generate.scale).unwrap_or(1.0);
    if !(scale.is_finite() && scale > 0.0) {
        return Err(CliError::Usage(format!("scale {scale}: expected a number above 0")));
    }
    of_profile(&whole.scaled(scale), generate.seed, output, generate.force, as_json)
}

fn of_profile(profile: &Profile, seed: u64, output: &Path, force: bool, as_json: bool) -> Result<()> {
    let mut source = profile.source(seed).map_err(|error| refused(&error))?;
    let not_calibrated = not_calibrated(&profile.name);
    write(&mut *source, Made::Profile { profile, seed, not_calibrated }, output, force, as_json)
}

fn of_pattern(command: &Command, as_json: bool) -> Result<()> {
    let (pattern, mixture, load) = match command {
        Command::Uniform { mixture, load } => (Pattern::Uniform, Some(mixture), load),
        Command::Zipf { skew, mixture, load } => (Pattern::Zipf { theta: skew.theta }, Some(mixture), load),
        Command::Zoned { zones, mixture, load } => {
            (Pattern::Zoned { zones: zones.clone() }, Some(mixture), load)
        }
        Command::Scan { stride, mixture, load } => {
            (Pattern::Scan { stride: stride.map(|count| count.0) }, Some(mixture), load)
        }
        Command::Ycsb { workload, load } => {
            let workload = match workload {
                Letter::A => Workload::A,
                Letter::B => Workload::B,
                Letter::C => Workload::C,
                Letter::D => Workload::D,
                Letter::E => Workload::E,
                Letter::F => Workload::F,
            };
            (Pattern::Ycsb { workload }, None, load)
        }
        Command::BootStorm { image_read, storm, load } => {
            (Pattern::BootStorm { read: *image_read, storm: *storm }, None, load)
        }
        Command::Backup { share, skew, mixture, load } => {
            (Pattern::Backup { theta: skew.theta, share: *share }, Some(mixture), load)
        }
        Command::Phases { phases, working_set, skew, mixture, load } => {
            let (phases, working_set, theta) = (*phases, working_set.0, skew.theta);
            (Pattern::Phases { phases, working_set, theta }, Some(mixture), load)
        }
        Command::Diurnal { amplitude, period, skew, mixture, load } => {
            let period_s = period.as_micros() as f64 / 1e6;
            (Pattern::Diurnal { theta: skew.theta, amplitude: *amplitude, period_s }, Some(mixture), load)
        }
        Command::Reuse(_) | Command::Presets => unreachable!("they make no pattern"),
    };
    let generator = Generator {
        pattern,
        blocks: load.blocks.0,
        mix: mixture.map_or(Ok(Mix::default()), Mixture::mix)?,
        volumes: load.volumes,
        requests: load.requests.0,
        rate: load.rate,
        seed: load.seed,
    };
    let mut source = generator.source().map_err(|error| refused(&error))?;
    write(&mut *source, Made::Pattern(&generator), &load.output.output, load.output.force, as_json)
}

/// The result.
#[derive(Serialize)]
#[serde(untagged)]
enum Made<'a> {
    Pattern(&'a Generator),
    Profile { profile: &'a Profile, seed: u64, not_calibrated: Option<&'static str> },
}

#[derive(Serialize)]
struct Generated<'a> {
    output: &'a Path,
    requests: u64,
    bytes: u64,
    volumes: &'a [String],
    #[serde(flatten)]
    made: Made<'a>,
}

fn write(source: &mut dyn Source, made: Made<'_>, path: &Path, force: bool, as_json: bool) -> Result<()> {
    let Some(written) = write_file(source, path, force)? else { return Ok(()) };
    if path == Path::new("-") {
        return Ok(());
    }
    let (count, bytes) = (written.accesses, written.bytes);
    let mut text = format!("{}: {}, {}\n", path.display(), request_count(count), Size(bytes).rounded());
    if let Made::Profile { not_calibrated: Some(what), .. } = made {
        text += &format!("Not calibrated: {what}\n");
    }
    print(
        as_json,
        &Generated { output: path, requests: count, bytes, volumes: source.volumes(), made },
        &text,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_weights_are_read() {
        let count = |text: &str| text.parse::<Count>().map(|count| count.0);
        assert_eq!(
            ["7", "10k", "1M", "1.5M", "2G"].map(count),
            [Ok(7), Ok(10_000), Ok(1_000_000), Ok(1_500_000), Ok(2_000_000_000)]
        );
        for wrong in ["", "M", "-1", "1.5", "1X", "99999999999G", "1kk"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
        let size = "64k:0.3".parse::<Weighted<Size>>().unwrap();
        assert_eq!((size.value, size.weight), (Size(65_536), 0.3));
        assert!("64k:x".parse::<Weighted<Size>>().is_err());
        assert!(zone("50/5").is_ok() && zone("50").is_err());
    }
}
