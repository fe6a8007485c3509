//! How much flash to buy: the effect of each size on hits, latency and the origin, its price and its
//! lifetime.
//!
//! The *knee* is where the curve of mean latency over size is farthest from the straight line between its ends, both
//! scaled to 1 (Satopaa et al., "Finding a kneedle in a haystack", ICDCSW'11). A curve that stays within a tenth of
//! that line has no knee.
//!
//! The best possible policy is given the same memory as the production cache: its segments, which are whole, and its
//! staging area. A size that is smaller than the smallest pool is that pool, with its price, and is listed once.

use haversack_model::{BLOCK_BYTES, WriteMode};
use haversack_report::{Axis, LineChart, Page, Section, Table, Unit};
use serde::Serialize;

use crate::counts::ratio;
use crate::error::SimError;
use crate::outcome::{Report, Row};
use crate::reference::PolicyName;
use crate::settings::{Settings, Sizes};
use crate::sweep::{Progress, run_on, scan};
use crate::tape::{Opener, Tape};

/// The minimum bend of a curve with a knee.
const LEAST_BEND: f64 = 0.1;
const SECONDS_A_DAY: f64 = 86_400.0;
const DAYS_A_YEAR: f64 = 365.25;
const GIB: f64 = (1u64 << 30) as f64;

/// The price and endurance of flash.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Flash {
    /// Price of a GiB, in whatever currency.
    pub price_per_gib: f64,
    /// How often the whole device may be written during its lifetime.
    pub full_writes: f64,
    /// Bytes that the device writes internally for each byte written to it.
    pub write_amplification: f64,
}

impl Flash {
    /// Full writes of a device rated in drive writes per day over a warranty period.
    pub fn full_writes_of_dwpd(writes_a_day: f64, warranty_years: f64) -> f64 {
        writes_a_day * warranty_years * DAYS_A_YEAR
    }

    /// Full writes of a device of n bytes that is rated for n terabytes written (10^12 bytes).
    pub fn full_writes_of_tbw(terabytes: f64, device_bytes: u64) -> f64 {
        terabytes * 1e12 / device_bytes as f64
    }
}

/// One size of flash.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// Bytes of flash; 0 for no cache.
    pub size_bytes: u64,
    /// The same as a fraction of the trace's footprint.
    pub footprint_fraction: f64,
    /// Price.
    pub price: f64,
    /// Hits among block accesses.
    pub hit_ratio: f64,
    /// Bytes of blocks that the cache can hold at a time: on flash, in whole segments, and in its staging area.
    pub held_bytes: u64,
    /// Maximum hits of any policy that can hold as much.
    pub most_hit_ratio: f64,
    /// Mean latency of requests.
    pub mean_us: f64,
    /// 95th percentile of latency.
    pub p95_us: f64,
    /// I/Os to the origin per second.
    pub origin_ios_per_second: f64,
    /// Bytes from and to the origin per second.
    pub origin_bytes_per_second: f64,
    /// Bytes written to flash per day.
    pub flash_bytes_per_day: f64,
    /// Years until the rated endurance is reached; `None` if nothing is written, or the trace has no times.
    pub years_of_life: Option<f64>,
    /// Whether this is the recommended size.
    pub knee: bool,
}

/// The advice, with its reasons.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The assumptions about the flash.
    pub flash: Flash,
    /// The sizes, the one without flash first.
    pub choices: Vec<Choice>,
    /// The reasons, one sentence each.
    pub reasons: Vec<String>,
    /// Which of the requested sizes no pool can have, if there are any.
    pub note: Option<String>,
    /// The trace in one line.
    pub trace: String,
}

/// Simulates the production cache with every size, and no cache, and compares them.
///
/// # Errors
/// See [`run`](crate::run).
pub fn advise(
    opener: &Opener<'_>,
    settings: &Settings,
    flash: Flash,
    progress: &Progress<'_>,
) -> Result<Advice, SimError> {
    let prices = [flash.price_per_gib, flash.full_writes, flash.write_amplification];
    if !prices.iter().all(|number| number.is_finite() && *number > 0.0) {
        return Err(SimError::Settings(format!(
            "price, endurance and write amplification must be above 0, found {prices:?}"
        )));
    }
    let latency = Some(settings.latency.clone().unwrap_or_default());
    let settings = Settings { policies: vec![PolicyName::Core], latency, ..settings.clone() };
    settings.check()?;
    let tape = scan(opener, &settings, progress)?;
    let report = run_on(&tape, &settings, progress)?;
    let bare = without_cache(&tape, &settings, progress)?;
    Ok(weigh(&report, &bare, flash))
}

/// The origin without a cache.
fn without_cache(tape: &Tape<'_>, settings: &Settings, progress: &Progress<'_>) -> Result<Report, SimError> {
    let mode = WriteMode::PassThrough;
    let (policies, sizes) = (vec![PolicyName::Lru], Sizes::Blocks(vec![1]));
    run_on(tape, &Settings { policies, sizes, mode, ..settings.clone() }, progress)
}

fn weigh(report: &Report, bare: &Report, flash: Flash) -> Advice {
    let mut rows: Vec<_> = report.of(PolicyName::Core).collect();
    rows.sort_by_key(|row| row.blocks);
    rows.dedup_by_key(|row| flash_blocks(row));
    let most = |row: &Row| {
        report.of(PolicyName::Min).find(|min| min.blocks == row.held_blocks).map_or(1.0, hit_ratio)
    };
    let mut choices: Vec<_> = bare.of(PolicyName::Lru).map(|row| choice(report, row, None, flash)).collect();
    choices.extend(rows.iter().map(|row| choice(report, row, Some(most(row)), flash)));
    let knee = knee(&choices);
    if let Some(knee) = knee {
        choices[knee].knee = true;
    }
    let reasons = reasons(report, &choices, knee, flash);
    let note = crate::show::raised(report);
    Advice { flash, choices, reasons, note, trace: crate::show::trace_line(report) }
}

/// Blocks of flash to buy for a cache: as many as requested, or those of the smallest pool.
fn flash_blocks(row: &Row) -> u64 {
    row.raised_to().or(row.blocks).unwrap_or(0)
}

fn hit_ratio(row: &Row) -> f64 {
    ratio(row.hits, row.accesses)
}

/// Turns a cache into a choice. `most_hit_ratio` is the most hits of any policy with as much memory; `None` means no
/// cache.
fn choice(report: &Report, row: &Row, most_hit_ratio: Option<f64>, flash: Flash) -> Choice {
    let is_cache = most_hit_ratio.is_some();
    let bytes = |blocks: u64| if is_cache { blocks * report.block_bytes } else { 0 };
    let (size_bytes, held_bytes) = (bytes(flash_blocks(row)), bytes(row.held_blocks.unwrap_or(0)));
    let seconds = row.counted_seconds.max(1e-9);
    let latency = row.latency.map(|latency| latency.all).unwrap_or_default();
    let counts = &row.counts;
    let flash_bytes_per_day = (row.flash_writes * BLOCK_BYTES as u64) as f64 / seconds * SECONDS_A_DAY;
    let years = flash.full_writes * size_bytes as f64
        / (flash_bytes_per_day * flash.write_amplification * DAYS_A_YEAR);
    Choice {
        size_bytes,
        footprint_fraction: size_bytes as f64 / (report.trace.footprint_blocks * report.block_bytes) as f64,
        price: size_bytes as f64 / GIB * flash.price_per_gib,
        hit_ratio: if is_cache { hit_ratio(row) } else { 0.0 },
        held_bytes,
        most_hit_ratio: most_hit_ratio.unwrap_or(0.0),
        mean_us: latency.mean_us,
        p95_us: latency.p95_us,
        origin_ios_per_second: (counts.origin_reads + counts.origin_writes) as f64 / seconds,
        origin_bytes_per_second: (counts.origin_read_bytes + counts.origin_written_bytes) as f64 / seconds,
        flash_bytes_per_day,
        years_of_life: (report.trace.timed && row.flash_writes > 0).then_some(years),
        knee: false,
    }
}

/// The choice at the knee, among those with a cache.
fn knee(choices: &[Choice]) -> Option<usize> {
    let (first, last) = (choices.first()?, choices.last()?);
    let saved = first.mean_us - last.mean_us;
    if saved <= 0.0 || last.size_bytes == 0 {
        return None;
    }
    let bend = |choice: &Choice| {
        (first.mean_us - choice.mean_us) / saved - choice.size_bytes as f64 / last.size_bytes as f64
    };
    let bends = choices.iter().map(bend).enumerate().skip(1);
    bends.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, bend)| *bend >= LEAST_BEND).map(|(at, _)| at)
}

fn bytes(bytes: f64) -> String {
    Unit::Bytes.format(bytes)
}

fn reasons(report: &Report, choices: &[Choice], knee: Option<usize>, flash: Flash) -> Vec<String> {
    let mut reasons = Vec::new();
    let (Some(none), Some(largest)) = (choices.first(), choices.last()) else { return reasons };
    let chosen = match knee {
        Some(at) => {
            reasons.push(knee_reason(choices, at));
            &choices[at]
        }
        None => {
            reasons.push(no_knee_reason(choices));
            largest
        }
    };
    let never = report.of(PolicyName::Unlimited).next().map_or(0.0, |row| ratio(row.misses, row.accesses));
    reasons.push(format!(
        "It has {:.1} % hits. The best possible policy would have {:.1} % with as much memory, which is {} with the staging \
         area; {:.1} % of the accesses are the first to their block and miss in any cache.",
        chosen.hit_ratio * 100.0,
        chosen.most_hit_ratio * 100.0,
        bytes(chosen.held_bytes as f64),
        never * 100.0
    ));
    reasons.push(format!(
        "The origin is left with {:.0} I/Os and {} a second of {:.0} and {}.",
        chosen.origin_ios_per_second,
        bytes(chosen.origin_bytes_per_second),
        none.origin_ios_per_second,
        bytes(none.origin_bytes_per_second)
    ));
    reasons.extend(held_back_reason(choices));
    reasons.push(life_reason(report, chosen, flash));
    if report.trace.timed && report.trace.span_seconds < SECONDS_A_DAY {
        reasons.push(format!(
            "The trace covers {}: rates a second and years of life hold only if that time is like all others.",
            Unit::Seconds.format(report.trace.span_seconds)
        ));
    }
    reasons
}

fn no_knee_reason(choices: &[Choice]) -> String {
    match choices {
        [none, only] => format!(
            "Only {} was simulated, so there is no knee: mean latency changes from {:.0} to {:.0} us.",
            bytes(only.size_bytes as f64),
            none.mean_us,
            only.mean_us
        ),
        _ => "There is no clear knee: latency falls about evenly with size, or hardly at all. Let price and life \
              decide; the figures below are those of the largest size."
            .into(),
    }
}

fn knee_reason(choices: &[Choice], at: usize) -> String {
    let (none, chosen) = (&choices[0], &choices[at]);
    let before = (none.mean_us - chosen.mean_us) / (chosen.size_bytes as f64 / GIB);
    let size = bytes(chosen.size_bytes as f64);
    let start = format!(
        "{size} is the knee: mean latency falls from {:.0} to {:.0} us, {before:.0} us for each GiB",
        none.mean_us, chosen.mean_us
    );
    match choices.last().filter(|last| last.size_bytes > chosen.size_bytes) {
        None => format!("{start}; it is also the largest size tried, so try larger ones."),
        Some(last) => {
            let more = (last.size_bytes - chosen.size_bytes) as f64 / GIB;
            let after = (chosen.mean_us - last.mean_us) / more;
            format!(
                "{start}; beyond it each GiB saves {after:.0} us (to {:.0} us with {}).",
                last.mean_us,
                bytes(last.size_bytes as f64)
            )
        }
    }
}

fn life(years: f64) -> String {
    if years < 1.0 { format!("{:.0} days", years * DAYS_A_YEAR) } else { format!("{years:.1} years") }
}

/// A cache that is too small for the writes slows them down.
fn held_back_reason(choices: &[Choice]) -> Option<String> {
    let none = choices.first()?;
    let slower =
        choices.iter().filter(|choice| choice.mean_us > none.mean_us).max_by_key(|c| c.size_bytes)?;
    Some(format!(
        "With {} or less the mean is worse than without a cache: so little flash fills with dirty blocks faster than they \
         are cleaned, and writes wait. Modes other than wb do not have that.",
        bytes(slower.size_bytes as f64)
    ))
}

fn life_reason(report: &Report, chosen: &Choice, flash: Flash) -> String {
    let rate = bytes(chosen.flash_bytes_per_day);
    match chosen.years_of_life {
        _ if !report.trace.timed => {
            "The trace has no times, so rates and the life of the flash cannot be computed.".into()
        }
        None => "It writes nothing to flash.".into(),
        Some(years) => {
            let full = flash.full_writes;
            let lasts = format!(
                "It writes {rate} a day to flash; rated for {full:.0} full writes it lives {}.",
                life(years)
            );
            if years < 3.0 {
                format!(
                    "{lasts} That is short: a larger one, one with more endurance, or admission 'reuse' lives longer."
                )
            } else {
                lasts
            }
        }
    }
}

/// The choices as a table; the knee is marked.
pub fn table(advice: &Advice) -> Table {
    let mut table = Table::new([
        "flash",
        "price",
        "of footprint",
        "holds",
        "hit ratio",
        "best possible",
        "mean us",
        "p95 us",
        "origin IO/s",
        "origin/s",
        "flash/day",
        "life",
    ]);
    for choice in &advice.choices {
        let none = choice.size_bytes == 0;
        let cells = [
            if none { "none".into() } else { bytes(choice.size_bytes as f64) },
            format!("{:.2}", choice.price),
            format!("{:.1} %", choice.footprint_fraction * 100.0),
            bytes(choice.held_bytes as f64),
            format!("{:.1} %", choice.hit_ratio * 100.0),
            format!("{:.1} %", choice.most_hit_ratio * 100.0),
            format!("{:.0}", choice.mean_us),
            format!("{:.0}", choice.p95_us),
            format!("{:.0}", choice.origin_ios_per_second),
            bytes(choice.origin_bytes_per_second),
            bytes(choice.flash_bytes_per_day),
            choice.years_of_life.map_or(String::new(), life),
        ];
        if choice.knee { table.marked_row(cells) } else { table.row(cells) }
    }
    if advice.choices.iter().any(|choice| choice.knee) {
        table = table.note("Marked: the knee.");
    }
    match &advice.note {
        Some(note) => table.note(note),
        None => table,
    }
}

/// Hit ratio and latency over size. Latencies without a cache are a level, since a logarithmic axis has no place for
/// a size of 0.
fn curves(advice: &Advice) -> Section {
    let caches = || advice.choices.iter().filter(|choice| choice.size_bytes > 0);
    let sizes: Vec<f64> = caches().map(|choice| choice.size_bytes as f64).collect();
    let points =
        |value: fn(&Choice) -> f64| -> Vec<_> { sizes.iter().copied().zip(caches().map(value)).collect() };
    let size = || Axis::sizes("Flash", sizes.iter().copied());
    let mut latency = LineChart::new("Latency", size(), Axis::linear("Latency", Unit::Seconds))
        .line("mean", points(|choice| choice.mean_us / 1e6))
        .line("95th percentile", points(|choice| choice.p95_us / 1e6));
    if let Some(none) = advice.choices.iter().find(|choice| choice.size_bytes == 0) {
        let level = |us: f64| sizes.iter().map(|size| (*size, us / 1e6)).collect();
        latency = latency
            .dashed("mean without a cache", level(none.mean_us))
            .dashed("95th percentile without a cache", level(none.p95_us));
    }
    let mut hits = LineChart::new("Hit ratio", size(), Axis::share("Hit ratio"))
        .line("production cache", points(|choice| choice.hit_ratio))
        .dashed("best possible", points(|choice| choice.most_hit_ratio));
    if let Some(knee) = caches().find(|choice| choice.knee) {
        latency = latency.mark(knee.size_bytes as f64, knee.mean_us / 1e6, "knee");
        hits = hits.mark(knee.size_bytes as f64, knee.hit_ratio, "knee");
    }
    Section::new("Curves")
        .text("The best possible policy has the same memory as the production cache: its flash and its staging area.")
        .chart(hits)
        .chart(latency)
}

/// The advice as a page.
pub fn page(advice: &Advice, title: &str) -> Page {
    let mut reasons = Section::new("What to buy");
    for reason in &advice.reasons {
        reasons = reasons.text(reason);
    }
    Page::new(title).lead(&advice.trace).section(reasons.table(table(advice))).section(curves(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(mean_us: &[f64]) -> Vec<Choice> {
        let choice = |(at, mean_us): (usize, &f64)| Choice {
            size_bytes: at as u64 * 1000,
            footprint_fraction: 0.0,
            price: 0.0,
            hit_ratio: 0.0,
            held_bytes: 0,
            most_hit_ratio: 0.0,
            mean_us: *mean_us,
            p95_us: 0.0,
            origin_ios_per_second: 0.0,
            origin_bytes_per_second: 0.0,
            flash_bytes_per_day: 0.0,
            years_of_life: None,
            knee: false,
        };
        mean_us.iter().enumerate().map(choice).collect()
    }

    #[test]
    fn the_knee_is_where_the_curve_bends() {
        assert_eq!(knee(&choices(&[100.0, 60.0, 20.0, 18.0, 16.0, 14.0])), Some(2));
        assert_eq!(knee(&choices(&[100.0, 80.0, 60.0, 40.0, 20.0])), None);
        assert_eq!(knee(&choices(&[100.0, 100.0])), None);
        assert_eq!(knee(&choices(&[])), None);
    }

    fn advice(choices: Vec<Choice>, note: Option<&str>) -> Advice {
        let flash = Flash { price_per_gib: 1.0, full_writes: 1.0, write_amplification: 1.0 };
        let note = note.map(String::from);
        Advice { flash, choices, reasons: Vec::new(), note, trace: "a trace".into() }
    }

    #[test]
    fn the_knee_is_marked_and_sizes_that_no_pool_has_are_noted() {
        let mut some = choices(&[100.0, 60.0, 20.0]);
        let plain = table(&advice(some.clone(), None)).to_text();
        assert!(!plain.contains('<') && !plain.contains("Marked"), "{plain}");
        some[1].knee = true;
        let marked = table(&advice(some, Some("No pool is so small."))).to_text();
        let lines: Vec<_> = marked.lines().collect();
        assert!(lines[2].ends_with(" <") && lines[3..].iter().all(|line| !line.ends_with('<')), "{marked}");
        assert_eq!(lines[4..], ["Marked: the knee.", "No pool is so small."]);
    }

    /// Sizes of 1,000 to 9,000 bytes are drawn by their logarithms: twice as much is as far to the right.
    #[test]
    fn sizes_that_span_much_are_drawn_by_their_logarithms() {
        let mut some = choices(&[100.0, 60.0, 20.0, 18.0]);
        let html = |some: &[Choice]| page(&advice(some.to_vec(), None), "t").to_html();
        let near = html(&some);
        some[3].size_bytes = 9_000;
        let far = html(&some);
        assert!(near.contains("mean without a cache") && far.contains("mean without a cache"));
        // 1,000 bytes are a third of the way to 3,000 on a linear axis, and the left end of a logarithmic one.
        let first_point = |html: &str| html.split("d=\"M88 ").count();
        assert!(first_point(&far) > first_point(&near));
    }

    #[test]
    fn endurance_is_counted_in_full_writes() {
        assert_eq!(Flash::full_writes_of_dwpd(1.0, 5.0), 1826.25);
        assert_eq!(Flash::full_writes_of_tbw(600.0, 1_000_000_000_000), 600.0);
    }
}
