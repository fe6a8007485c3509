//! Comparisons of methods of migration as tables, and as a page.

use haversack_migrate::Method;
use haversack_report::{Axis, Bars, LineChart, Page, Section, Table, Unit, counted};

use super::goals::{Goal, goals};
use super::summary::summaries;
use super::{MigrationComparison, Move, grouped};
use crate::compare::Estimate;
use crate::migration::measure::Figures;
use crate::migration::neighbours::Hardware;
use crate::migration::{LoadSample, OriginTraffic, Outcome, VmOutcome};

const MIB: f64 = 1024.0 * 1024.0;

fn optional(estimate: Option<&Estimate>, factor: f64, decimals: usize) -> String {
    estimate.map_or_else(|| "-".into(), |estimate| estimate.text(factor, decimals))
}

fn rises(both: &[Option<Estimate>; 2]) -> String {
    let one = |rise: &Option<Estimate>| {
        rise.map_or_else(|| "-".into(), |rise| format!("{:+.0}", rise.mean * 100.0))
    };
    both.iter().map(one).collect::<Vec<_>>().join(" / ")
}

fn bytes(bytes: u64) -> String {
    Unit::Bytes.format(bytes as f64)
}

/// Every method in a row, for each size and link: means over seeds with 95 % confidence intervals.
pub fn table(comparison: &MigrationComparison) -> Table {
    let mut table = Table::new([
        "method",
        "link",
        "pool %",
        "hits % before",
        "after",
        "90 % after s",
        "IOPS over none %",
        "mean us",
        "p90 us",
        "p99 us",
        "stall ms",
        "wire MiB",
        "sent / needed",
        "origin reads MiB",
        "independent after s",
        "p99 ahead %",
        "p99 after %",
    ])
    .words(1);
    for row in summaries(comparison) {
        table.row([
            row.method.to_string(),
            row.link.to_string(),
            format!("{:.1}", row.fraction * 100.0),
            row.hits_before.text(100.0, 1),
            row.hits_after.text(100.0, 1),
            optional(row.recovered_seconds.as_ref(), 1.0, 2),
            optional(row.iops_over_none.as_ref(), 100.0, 1),
            row.mean_us.text(1.0, 0),
            row.p90_us.text(1.0, 0),
            row.p99_us.text(1.0, 0),
            row.stall_ms.text(1.0, 1),
            row.wire_bytes.text(1.0 / MIB, 1),
            row.wire_over_needed.text(1.0, 2),
            row.origin_read_bytes.text(1.0 / MIB, 0),
            optional(row.alone_seconds.as_ref(), 1.0, 2),
            rises(&row.neighbours_ahead),
            rises(&row.neighbours_after),
        ]);
    }
    table
}

/// What the columns of [`table`] mean.
const COLUMNS: &str = "Hits: of the blocks that the moving VM reads, in the window before anything is sent and in the one that begins when it \
    stops. 90 %: when its hit ratio was 90 % of that before, to a fiftieth of the window. IOPS: requests done in the second window, \
    if the VM keeps requests in flight. Stall: what the cache adds to the hypervisor's downtime. Wire: bytes sent in both \
    directions until the window ends. Sent / needed: these over the bytes of blocks that were dirty or had been used more than \
    once when the VM stopped. Independent: when the source was no longer needed. P99 ahead: that of the worst neighbour on the \
    source and on the destination while memory is copied, over that with none; p99 after: the same in the second window.";

/// The goals, with the best and the worst over all sizes, links and seeds. The worst counts.
pub fn goals_table(goals: &[Goal]) -> Table {
    let mut table =
        Table::new(["measure", "goal", "best", "worst", "reached"]).words(1).words(2).words(3).words(4);
    for goal in goals {
        let reached = match goal.reached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
        table.row([goal.measure, goal.goal, &goal.best, &goal.worst, reached]);
    }
    table
}

fn figures_row(table: &mut Table, vm: &VmOutcome, when: &str, figures: &Figures) {
    let latency = &figures.latency;
    table.row([
        vm.name.clone(),
        if vm.moves { "moves".into() } else { vm.host.to_string() },
        when.into(),
        format!("{:.0}", figures.iops),
        format!("{:.1}", figures.hit_ratio * 100.0),
        format!("{:.0}", latency.mean_us),
        format!("{:.0}", latency.p50_us),
        format!("{:.0}", latency.p95_us),
        format!("{:.0}", latency.p99_us),
    ]);
}

/// Every VM of one migration: before it, while copies are sent ahead, and from the stop on.
pub fn outcome_table(outcome: &Outcome) -> Table {
    let mut table =
        Table::new(["VM", "host", "when", "IOPS", "hits %", "mean us", "p50 us", "p95 us", "p99 us"])
            .words(1)
            .words(2);
    for vm in &outcome.vms {
        for (when, figures) in [("before", &vm.before), ("ahead", &vm.ahead), ("after", &vm.after)] {
            figures_row(&mut table, vm, when, figures);
        }
    }
    table
}

/// The cost of a migration.
pub fn facts_table(outcome: &Outcome) -> Table {
    let mut table = Table::new(["what", "how much"]);
    let seconds =
        |value: Option<f64>| value.map_or_else(|| "not in the window".into(), |s| format!("{s:.3} s"));
    let microseconds = |us: u64| format!("{:.1} ms", us as f64 / 1e3);
    let Outcome { there, back, .. } = outcome;
    for (what, how_much) in [
        ("method", outcome.method.to_string()),
        ("pool of each host", bytes(outcome.pool_blocks * haversack_model::BLOCK_BYTES as u64)),
        ("time to drain requests at the source", microseconds(outcome.drain_us)),
        ("downtime of the hypervisor", microseconds(outcome.downtime_us)),
        ("stall that the cache adds", microseconds(outcome.stall_us)),
        ("back at 90 % of the earlier hit ratio after", seconds(outcome.recovered_seconds)),
        ("source no longer needed after", seconds(outcome.alone_seconds)),
        ("cached when the VM stopped", bytes(outcome.cached_bytes)),
        ("  of that used more than once", bytes(outcome.reused_bytes)),
        ("  of that dirty", bytes(outcome.dirty_bytes)),
        ("  of that dirty or used more than once", bytes(outcome.needed_bytes)),
        ("copies sent ahead", bytes(there.copy_bytes + back.copy_bytes)),
        ("blocks sent on demand and in the background", bytes(there.answer_bytes + back.answer_bytes)),
        ("all else on the wire", bytes(there.control_bytes + back.control_bytes)),
        ("copies refused for lack of room", outcome.refused_copies.to_string()),
        ("read from the origin before, ahead, after", origin(outcome, |o| o.read_bytes)),
        ("written to the origin before, ahead, after", origin(outcome, |o| o.written_bytes)),
        ("sectors read and verified", outcome.checked_sectors.to_string()),
    ] {
        table.row([what.to_string(), how_much]);
    }
    table
}

fn origin(outcome: &Outcome, figure: impl Fn(&OriginTraffic) -> u64) -> String {
    let all = [&outcome.origin_before, &outcome.origin_ahead, &outcome.origin_after];
    all.map(|traffic| bytes(figure(traffic))).join(", ")
}

/// One migration as a page.
pub fn outcome_page(title: &str, outcome: &Outcome) -> Page {
    let mut section = Section::new("Over time").text("The VM stops at the source at 0.");
    for (_, chart) in pictures(&[outcome]) {
        section = section.chart(chart);
    }
    Page::new(title)
        .section(Section::new("What it cost").table(facts_table(outcome)))
        .section(section)
        .section(Section::new("VMs").table(outcome_table(outcome)))
}

/// FirepanIF's model compared with the simulation: requests per second of a VM on each host, before and
/// after.
pub fn neighbours_table(comparison: &MigrationComparison) -> Option<Table> {
    let is_default = |one: &&Move| one.outcome.method == Method::default();
    let one = comparison.moves.iter().find(is_default).or(comparison.moves.first())?;
    let outcome = &one.outcome;
    let all = outcome.vms.len();
    let mut table = Table::new(["VMs", "when", "number", "hits %", "IOPS of each", "the model", "of it %"])
        .words(1)
        .caption(&format!("Each host's VMs with {}", outcome.method));
    for (host, is_after) in [('a', false), ('b', false), ('a', true), ('b', true)] {
        let is_there = |vm: &&VmOutcome| if vm.moves { is_after == (host == 'b') } else { vm.host == host };
        let vms: Vec<&VmOutcome> = outcome.vms.iter().filter(is_there).collect();
        let of = |vm: &VmOutcome| if is_after { vm.after } else { vm.before };
        let depth = vms.first()?.depth?;
        let mean = |figure: &dyn Fn(Figures) -> f64| {
            vms.iter().map(|vm| figure(of(vm))).sum::<f64>() / vms.len() as f64
        };
        let (hits, reads, iops) = (mean(&|f| f.hit_ratio), mean(&|f| f.read_share), mean(&|f| f.iops));
        let hardware = Hardware::of(&comparison.latency, reads, hits, depth);
        let model = hardware.iops(reads * hits, vms.len(), all);
        table.row([
            if host == 'a' { "source" } else { "destination" }.to_string(),
            if is_after { "after" } else { "before" }.into(),
            vms.len().to_string(),
            format!("{:.1}", hits * 100.0),
            format!("{iops:.0}"),
            format!("{model:.0}"),
            format!("{:.0}", iops / model * 100.0),
        ]);
    }
    Some(table)
}

/// The migrations with one size and link, with the first seed.
fn groups(comparison: &MigrationComparison) -> Vec<Vec<&Move>> {
    let seed = comparison.moves.first().map(|one| one.outcome.seed);
    grouped(comparison.moves.iter().filter(|one| Some(one.outcome.seed) == seed), Move::is_alike)
}

fn over_time(
    title: &str,
    y: Axis,
    outcomes: &[&Outcome],
    points: impl Fn(&Outcome) -> Vec<(f64, f64)>,
) -> LineChart {
    let chart = LineChart::new(title, Axis::linear("Seconds since the VM stopped", Unit::Named("s")), y);
    outcomes.iter().fold(chart, |chart, one| chart.line(one.method.name(), points(one)))
}

fn of_vms(
    outcome: &Outcome,
    vms: impl Fn(&VmOutcome) -> bool,
    figure: impl Fn(&crate::migration::measure::Sample) -> f64,
) -> Vec<(f64, f64)> {
    let vms: Vec<&VmOutcome> = outcome.vms.iter().filter(|vm| vms(vm)).collect();
    let Some(first) = vms.first() else { return Vec::new() };
    let mean = |at: usize| {
        vms.iter().filter_map(|vm| vm.samples.get(at)).map(&figure).sum::<f64>() / vms.len() as f64
    };
    first.samples.iter().enumerate().map(|(at, sample)| (sample.time_seconds, mean(at))).collect()
}

fn of_load(outcome: &Outcome, figure: impl Fn(&LoadSample) -> f64) -> Vec<(f64, f64)> {
    outcome.samples.iter().map(|sample| (sample.time_seconds, figure(sample))).collect()
}

/// The charts of the first size and link, by name.
pub fn first_pictures(comparison: &MigrationComparison) -> Vec<(&'static str, LineChart)> {
    groups(comparison).first().map(|moves| pictures(&outcomes(moves))).unwrap_or_default()
}

fn outcomes<'a>(moves: &[&'a Move]) -> Vec<&'a Outcome> {
    moves.iter().map(|one| &one.outcome).collect()
}

/// The charts of migrations that differ only in the method, by name.
fn pictures(moves: &[&Outcome]) -> Vec<(&'static str, LineChart)> {
    let hits = |o: &Outcome| {
        let samples = o.moving().samples.iter();
        samples.filter_map(|sample| Some((sample.time_seconds, sample.hit_ratio?))).collect()
    };
    let seconds = || Axis::linear("Latency", Unit::Seconds);
    let rate = || Axis::linear("Bytes a second", Unit::Bytes);
    let iops = || Axis::linear("Requests a second", Unit::Count);
    vec![
        ("hits", over_time("Hits of the moving VM", Axis::linear("Hits", Unit::Share), moves, hits)),
        (
            "iops",
            over_time("Requests of the moving VM", iops(), moves, |o| of_vms(o, |vm| vm.moves, |s| s.iops)),
        ),
        (
            "mean",
            over_time("Mean latency of the moving VM", seconds(), moves, |o| {
                of_vms(o, |vm| vm.moves, |s| s.mean_us / 1e6)
            }),
        ),
        (
            "p99",
            over_time("99th percentile of the moving VM", seconds(), moves, |o| {
                of_vms(o, |vm| vm.moves, |s| s.p99_us / 1e6)
            }),
        ),
        ("link", over_time("The link", rate(), moves, |o| of_load(o, |s| s.link_bytes_per_second))),
        ("origin", over_time("The origin", rate(), moves, |o| of_load(o, |s| s.origin_bytes_per_second))),
        (
            "source",
            over_time("Requests of the source's neighbours", iops(), moves, |o| {
                of_vms(o, |vm| !vm.moves && vm.host == 'a', |s| s.iops)
            }),
        ),
        (
            "destination",
            over_time("Requests of the destination's neighbours", iops(), moves, |o| {
                of_vms(o, |vm| !vm.moves && vm.host == 'b', |s| s.iops)
            }),
        ),
    ]
}

fn group_section(moves: &[&Move]) -> Section {
    let first = &moves[0];
    let title = format!(
        "Over time: {}, pools of {:.1} % of the footprint",
        first.outcome.link.speed,
        first.fraction * 100.0
    );
    let mut section = Section::new(&title).text("With the first seed. The VM stops at the source at 0.");
    for (_, chart) in pictures(&outcomes(moves)) {
        section = section.chart(chart);
    }
    let bars = |title: &str, unit: Unit, figure: &dyn Fn(&Outcome) -> f64| {
        let bars = Bars::new(title, unit);
        moves.iter().fold(bars, |bars, one| bars.bar(one.outcome.method.name(), figure(&one.outcome)))
    };
    section
        .chart(bars("Stall that the cache adds", Unit::Seconds, &|o| o.stall_us as f64 / 1e6))
        .chart(bars("Bytes on the wire", Unit::Bytes, &|o| o.wire_bytes() as f64))
        .chart(bars("Bytes read from the origin after the stop", Unit::Bytes, &|o| {
            o.origin_after.read_bytes as f64
        }))
}

fn sections(comparison: &MigrationComparison) -> Vec<Section> {
    let trace = &comparison.trace;
    let lead = format!(
        "{}, {} in the loads, footprint {}.",
        counted(trace.volumes.len() as u64, "disk"),
        counted(trace.requests, "request"),
        bytes(trace.footprint_blocks * haversack_model::BLOCK_BYTES as u64),
    );
    let mut sections = vec![
        Section::new(&comparison.mix.title).text(&lead).table(goals_table(&goals(comparison))),
        Section::new("All methods").text(COLUMNS).table(table(comparison)),
    ];
    sections.extend(groups(comparison).iter().map(|moves| group_section(moves)));
    if let Some(table) = neighbours_table(comparison) {
        let text = "Requests per second of a VM by FirepanIF's model, with the simulated hit ratio, and as simulated.";
        sections.push(Section::new("Neighbours").text(text).table(table));
    }
    let mut vms = Section::new("VMs").text("Each VM with each method, with the first seed, size and link.");
    for one in groups(comparison).first().into_iter().flatten() {
        vms = vms.table(outcome_table(&one.outcome).caption(one.outcome.method.name()));
    }
    sections.push(vms);
    sections
}

/// Comparisons of several mixes as a page.
pub fn page(comparisons: &[MigrationComparison]) -> Page {
    let titles: Vec<&str> = comparisons.iter().map(|comparison| comparison.mix.title.as_str()).collect();
    let page = Page::new("Methods of migration compared").lead(&titles.join(", "));
    comparisons.iter().flat_map(sections).fold(page, Page::section)
}
