//! `haversack trace`: inspecting, converting, cutting and merging traces.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use haversack_api::{Size, Span};
use haversack_trace::{
    Damage, Format, MergeOptions, Merged, OpenOptions, Selection, Source, Summaries, Summary, Target,
    TraceError, Written, create, open,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::{CliError, Result};
use crate::output::{plural, print};

/// Commands for block traces.
#[derive(Subcommand)]
pub enum TraceCommand {
    /// Show statistics of traces: requests, bytes, blocks, sizes and rates, by volume and overall.
    Info {
        #[command(flatten)]
        traces: Traces,
    },
    /// Write a trace in another format.
    Convert {
        /// Trace file; - for standard input.
        input: PathBuf,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        reading: Reading,
    },
    /// Write part of a trace: a time span, some volumes, or both.
    Cut {
        /// Trace file; - for standard input.
        input: PathBuf,
        #[command(flatten)]
        output: Output,
        /// Start of the part, relative to the first request, such as 90s or 2h.
        #[arg(long)]
        from: Option<Span>,
        /// End of the part, relative to the first request.
        #[arg(long)]
        to: Option<Span>,
        /// Include only this volume; may be repeated.
        #[arg(long = "volume")]
        volumes: Vec<String>,
        /// Maximum number of requests.
        #[arg(long)]
        limit: Option<u64>,
        #[command(flatten)]
        reading: Reading,
    },
    /// Merge traces into one, by time.
    Merge {
        #[command(flatten)]
        traces: Traces,
        #[command(flatten)]
        output: NamedOutput,
    },
    /// Record the requests of a disk's clients through the daemon.
    Record(crate::record::Record),
    /// Generate a trace with a simple pattern, or one like a real volume.
    Generate(crate::generate::Generate),
    /// Find how long the policy's window should be: simulate CloudCache's allocation for each length, and pick the
    /// knee.
    Window(crate::window::Window),
    /// Print the first requests of a trace as CSV.
    Head {
        /// Trace file; - for standard input.
        input: PathBuf,
        /// Number of requests.
        #[arg(short = 'n', long, default_value_t = 10)]
        count: u64,
        #[command(flatten)]
        reading: Reading,
    },
}

/// How to read traces.
#[derive(Args, Clone)]
pub struct Reading {
    /// Format, if it should not be detected: haversack, csv, msr, spc, systor, fiu, alibaba, tencent, cydonia, disksim,
    /// blkparse, iolog, keys, blktrace, vscsi1, vscsi2, oracle-general, parquet, k5cloud.
    #[arg(long)]
    pub format: Option<Format>,
    /// Stop at the first damaged line.
    #[arg(long)]
    pub strict: bool,
    /// Bytes per block number in lists of keys (default 4096) and oracle-general (default 512).
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub key_bytes: Option<u32>,
    /// Time unit, such as 10ms, in formats that do not define one.
    #[arg(long)]
    pub time_unit: Option<Span>,
    /// Sort requests by time if they are at most this many positions out of order.
    #[arg(long, value_name = "REQUESTS", default_value_t = OpenOptions::default().sort_window)]
    pub sort_window: usize,
}

/// Traces on one clock.
#[derive(Args)]
pub struct Traces {
    /// Trace files; - for standard input. Several are merged by time.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Start all traces at the same time.
    #[arg(long)]
    pub align: bool,
    /// Treat volumes with the same name in several traces as different volumes.
    #[arg(long)]
    pub separate: bool,
    #[command(flatten)]
    pub reading: Reading,
}

/// Where to write, and how.
#[derive(Args)]
pub struct Output {
    /// Output file; - for standard output. CSV if its name ends in .csv, compressed if .gz, .xz or .zst follows;
    /// otherwise Haversack's own format.
    pub output: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub force: bool,
}

/// As [`Output`], where names of inputs come first.
#[derive(Args)]
pub struct NamedOutput {
    /// Output file. CSV if its name ends in .csv, otherwise Haversack's own format.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub force: bool,
}

impl Reading {
    /// Returns the options for opening this part of the trace.
    pub fn options(&self, selection: Selection) -> OpenOptions {
        let unit_ns = self.time_unit.map(|unit| unit.as_micros().saturating_mul(1000));
        OpenOptions {
            format: self.format,
            strict: self.strict,
            sort_window: self.sort_window,
            key_bytes: self.key_bytes,
            time_unit_ns: unit_ns,
            volume: None,
            selection,
        }
    }
}

impl Traces {
    /// Opens them all as one source.
    ///
    /// # Errors
    /// A trace cannot be read, or its format is not recognised.
    pub fn open(&self) -> Result<Box<dyn Source>> {
        let options = self.reading.options(Selection::default());
        let sources =
            self.files.iter().map(|file| open(file, &options)).collect::<std::result::Result<Vec<_>, _>>();
        let mut sources = sources.map_err(failed)?;
        if sources.len() == 1 && !self.align {
            return Ok(sources.remove(0));
        }
        let options = MergeOptions { align: self.align, separate: self.separate };
        Ok(Box::new(Merged::new(sources, options)))
    }
}

/// A failure to read or write a trace.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub fn failed(error: TraceError) -> CliError {
    CliError::Failed(error.to_string())
}

/// Runs a command.
pub fn run(command: &TraceCommand, as_json: bool) -> Result<()> {
    match command {
        TraceCommand::Info { traces } => info(traces, as_json),
        TraceCommand::Convert { input, output, reading } => {
            let source = open(input, &reading.options(Selection::default())).map_err(failed)?;
            write(source, &output.output, output.force, as_json)
        }
        TraceCommand::Cut { input, output, from, to, volumes, limit, reading } => {
            let ns = |span: &Span| span.as_micros().saturating_mul(1000);
            let span_ns = from.as_ref().map_or(0, ns)..to.as_ref().map_or(u64::MAX, ns);
            let selection = Selection {
                span_ns: (from.is_some() || to.is_some()).then_some(span_ns),
                volumes: Some(volumes.clone()).filter(|volumes| !volumes.is_empty()),
                limit: *limit,
            };
            let source = open(input, &reading.options(selection)).map_err(failed)?;
            write(source, &output.output, output.force, as_json)
        }
        TraceCommand::Merge { traces, output } => {
            write(traces.open()?, &output.output, output.force, as_json)
        }
        // This one needs the daemon.
        TraceCommand::Record(_) => Ok(()),
        TraceCommand::Generate(generate) => crate::generate::run(generate, as_json),
        TraceCommand::Window(window) => crate::window::run(window, as_json),
        TraceCommand::Head { input, count, reading } => {
            let selection = Selection { limit: Some(*count), ..Selection::default() };
            let source = open(input, &reading.options(selection)).map_err(failed)?;
            if as_json { head_as_json(source) } else { write(source, Path::new("-"), false, false) }
        }
    }
}

/// A progress bar for reading a source, shown only on a terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// The number of steps of the bar.
    const STEPS: u64 = 1000;

    /// Makes a bar that names the operation.
    pub fn new(doing: &'static str) -> Self {
        let bar = ProgressBar::new(Self::STEPS);
        let style = ProgressStyle::with_template("{msg} {bar:30} {percent} %, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// Shows how much of a source has been read.
    pub fn show(&self, source: &dyn Source) {
        if let Some(share) = source.progress() {
            self.0.set_position((share * Self::STEPS as f64) as u64);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Warns about damage in a trace; JSON output includes it already.
pub fn warn(damage: &Damage, as_json: bool) {
    if as_json {
        return;
    }
    if damage.lines > 0 {
        let some = damage.lines > damage.examples.len() as u64;
        let what = if some { "; the first of them:" } else { ":" };
        let lines = plural(damage.lines, "line");
        eprintln!("haversack: skipped {} damaged {lines}{what}", grouped(damage.lines));
        damage.examples.iter().for_each(|bad| eprintln!("  {bad}"));
    }
    if damage.late > 0 {
        let (late, verb) = (request_count(damage.late), if damage.late == 1 { "was" } else { "were" });
        eprintln!("haversack: {late} {verb} outside the sort window; use a larger --sort-window");
    }
}

#[derive(Serialize)]
struct Converted<'a> {
    output: &'a Path,
    requests: u64,
    bytes: u64,
    bytes_per_request: f64,
    volumes: &'a [String],
    damage: Damage,
}

/// Writes all of a source to a file. Returns `None` if the output was standard output and its reader has
/// stopped reading.
pub fn write_file(source: &mut dyn Source, output: &Path, force: bool) -> Result<Option<Written>> {
    let progress = Progress::new("writing");
    let target = Target::of(output);
    let written = create(output, target, force, source, &mut |source| progress.show(source));
    drop(progress);
    match written {
        Err(TraceError::Io { error, .. }) if error.kind() == ErrorKind::BrokenPipe => Ok(None),
        Err(TraceError::Io { path, error }) if error.kind() == ErrorKind::AlreadyExists => {
            Err(CliError::Usage(format!("{}: {error}; --force replaces it", path.display())))
        }
        written => written.map(Some).map_err(failed),
    }
}

/// Writes all of a source to a file and reports the result.
pub fn write(mut source: Box<dyn Source>, output: &Path, force: bool, as_json: bool) -> Result<()> {
    let Some(written) = write_file(&mut *source, output, force)? else { return Ok(()) };
    let damage = source.damage();
    warn(&damage, as_json);
    if output == Path::new("-") {
        return Ok(());
    }
    let bytes_per_request = written.bytes as f64 / written.accesses.max(1) as f64;
    let (count, size) = (request_count(written.accesses), Size(written.bytes).rounded());
    let text = format!("{}: {count}, {size}, {bytes_per_request:.2} bytes per request\n", output.display());
    let (requests, bytes, volumes) = (written.accesses, written.bytes, source.volumes());
    print(as_json, &Converted { output, requests, bytes, bytes_per_request, volumes, damage }, &text)
}

/// A request as an object.
#[derive(Serialize)]
struct Row<'a> {
    timestamp_ns: u64,
    volume: &'a str,
    op: char,
    offset_bytes: u64,
    length_bytes: u32,
}

fn head_as_json(mut source: Box<dyn Source>) -> Result<()> {
    let mut accesses = Vec::new();
    while source.read(&mut accesses).map_err(failed)? > 0 {}
    let row = |access: &haversack_trace::Access| Row {
        timestamp_ns: access.time_ns,
        volume: &source.volumes()[access.volume.0 as usize],
        op: access.op.letter(),
        offset_bytes: access.offset_bytes,
        length_bytes: access.length_bytes,
    };
    print(true, &accesses.iter().map(row).collect::<Vec<_>>(), "")
}

#[derive(Serialize)]
struct Info {
    overall: Summary,
    volumes: Vec<Summary>,
    damage: Damage,
}

fn info(traces: &Traces, as_json: bool) -> Result<()> {
    let mut source = traces.open()?;
    let progress = Progress::new("reading");
    let (mut summaries, mut batch) = (Summaries::default(), Vec::new());
    while source.read(&mut batch).map_err(failed)? > 0 {
        summaries.add(&batch);
        batch.clear();
        progress.show(&*source);
    }
    drop(progress);
    let known = |summary: Summary| if source.is_timed() { summary } else { summary.without_times() };
    let overall = known(summaries.overall());
    let volumes = summaries.volumes(source.volumes()).into_iter().map(known).collect();
    let info = Info { overall, volumes, damage: source.damage() };
    warn(&info.damage, as_json);
    print(as_json, &info, &info_text(&info))
}

/// Formats what traces hold: totals, then one line per volume.
fn info_text(info: &Info) -> String {
    let all = &info.overall;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} to {} {}",
        request_count(all.requests),
        match info.volumes.as_slice() {
            [volume] => volume.volume.clone(),
            volumes => format!("{} volumes", volumes.len()),
        },
        rates(all),
    );
    let _ = writeln!(
        out,
        "\n{:<10} {:>13} {:>10} {:>13} {:>13}  {:>9} {:>8} {:>8} {:>8}",
        "", "REQUESTS", "BYTES", "4 KiB REFS", "UNIQUE 4 KiB", "MEAN SIZE", "P50", "P90", "P99"
    );
    for (name, requests, bytes, refs, unique, sizes) in [
        ("reads", all.reads, all.read_bytes, all.read_refs_4k, all.unique_read_4k, all.read_size),
        ("writes", all.writes, all.write_bytes, all.write_refs_4k, all.unique_write_4k, all.write_size),
    ] {
        let size = |bytes: u32| Size(bytes.into()).rounded();
        let _ = writeln!(
            out,
            "{name:<10} {:>13} {:>10} {:>13} {:>13}  {:>9} {:>8} {:>8} {:>8}",
            grouped(requests),
            Size(bytes).rounded(),
            grouped(refs),
            grouped(unique),
            size(sizes.mean_bytes as u32),
            size(sizes.p50_bytes),
            size(sizes.p90_bytes),
            size(sizes.p99_bytes),
        );
    }
    let _ = writeln!(out, "{:<10} {:>13}", "flushes", grouped(all.flushes));
    let _ = writeln!(
        out,
        "{:<10} {:>13} {:>10}",
        "discards",
        grouped(all.discards),
        Size(all.discard_bytes).rounded()
    );
    let (refs, unique) = (grouped(all.refs_4k), grouped(all.unique_4k));
    let bytes = Size(all.read_bytes + all.write_bytes).rounded();
    let _ = writeln!(out, "{:<10} {:>13} {bytes:>10} {refs:>13} {unique:>13}", "all", grouped(all.requests));
    let _ = writeln!(out, "\nBegin and end on a block of 4 KiB: {}", percent(all.aligned_4k_ratio));
    if info.volumes.len() > 1 {
        out.push_str(&volumes_text(&info.volumes));
    }
    out
}

/// Says in how much time how many requests came.
fn rates(all: &Summary) -> String {
    match (all.span_s, all.requests_per_s, all.peak_requests_per_s) {
        (Some(span_s), Some(per_s), Some(peak)) => {
            format!("in {}: {per_s:.1} per second, at most {} in one second", time(span_s), grouped(peak))
        }
        _ => "without times".into(),
    }
}

fn volumes_text(volumes: &[Summary]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\n{:<24} {:>13} {:>8} {:>10} {:>10} {:>13} {:>10} {:>8} {:>11}",
        "VOLUME", "REQUESTS", "READS", "READ", "WRITTEN", "UNIQUE 4 KiB", "PER SECOND", "ALIGNED", "SPAN"
    );
    for volume in volumes {
        let reads = volume.reads as f64 / volume.requests.max(1) as f64;
        let _ = writeln!(
            out,
            "{:<24} {:>13} {:>8} {:>10} {:>10} {:>13} {:>10} {:>8} {:>11}",
            volume.volume,
            grouped(volume.requests),
            percent(reads),
            Size(volume.read_bytes).rounded(),
            Size(volume.write_bytes).rounded(),
            grouped(volume.unique_4k),
            volume.requests_per_s.map_or("-".into(), |per_s| format!("{per_s:.1}")),
            percent(volume.aligned_4k_ratio),
            volume.span_s.map_or("-".into(), time),
        );
    }
    out
}

/// Formats a number with a comma after every three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number of requests: `1 request`, `1,000 requests`.
pub fn request_count(count: u64) -> String {
    format!("{} {}", grouped(count), plural(count, "request"))
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0015, 90.0, 1650.0, 7e3, 604_800.0].map(time),
            ["1.5 ms", "90.0 s", "27.5 min", "116.7 min", "7.0 days"]
        );
    }
}
