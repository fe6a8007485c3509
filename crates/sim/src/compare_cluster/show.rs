//! Comparisons of clusters as tables and pages.

use haversack_report::{Axis, HeatMap, LineChart, Page, Section, Table, Unit};

use super::{ClusterComparison, Details, Goal, Run, Scenario, goals};
use crate::cluster::{System, model, traced};
use crate::compare::Estimate;

const GIB: f64 = (1u64 << 30) as f64;
/// Rows and columns of a heat map, about.
const ROWS: usize = 64;
const COLUMNS: usize = 144;

fn estimate(comparison: &ClusterComparison, system: System, figure: impl Fn(&Run) -> f64) -> Estimate {
    Estimate::of(&comparison.of(system).map(figure).collect::<Vec<f64>>())
}

/// Every rule in a row: means over seeds with 95 % confidence intervals. The lowest mean latency is marked.
pub fn table(comparison: &ClusterComparison) -> Table {
    let systems = comparison.systems();
    let lends = systems.contains(&System::Lending);
    let lent = lends.then_some("lent hits %");
    let names = ["rule", "hits %"].into_iter().chain(lent);
    let mut table =
        Table::new(names.chain(["mean us", "p90 us", "variance", "overloaded", "moves", "copied GiB"]));
    let mean = |system: System| estimate(comparison, system, |run| run.mean_us).mean;
    let best = systems.iter().copied().min_by(|a, b| mean(*a).total_cmp(&mean(*b)));
    for system in systems.iter().copied() {
        let of = |figure: fn(&Run) -> f64| estimate(comparison, system, figure);
        let measures = system.rule().is_some() || !matches!(system, System::Shared | System::Equal);
        let is_known = measures || matches!(comparison.scenario, Scenario::Model(_));
        let load = |text: String| if is_known { text } else { "-".into() };
        let lent = lends.then(|| of(|run| run.lent_hit_ratio).text(100.0, 2));
        let first = [system.to_string(), of(|run| run.hit_ratio).text(100.0, 2)].into_iter().chain(lent);
        let row = first.chain([
            of(|run| run.mean_us).text(1.0, 0),
            of(|run| run.p90_us).text(1.0, 0),
            load(of(|run| run.variance).text(1.0, 4)),
            load(of(|run| run.overloaded as f64).text(1.0, 0)),
            of(|run| run.moves as f64).text(1.0, 0),
            of(|run| run.moved_bytes as f64).text(1.0 / GIB, 2),
        ]);
        if Some(system) == best && systems.len() > 1 { table.marked_row(row) } else { table.row(row) }
    }
    table
}

/// What the columns of [`table`] mean.
const COLUMNS_TEXT: &str = "Hits, mean and p90: of the judged VMs, each with the same weight, if requests were simulated; otherwise \
    of all accesses, and p90 by the mean latency of each VM. Lent hits: served by flash of other hosts, besides the hits. Variance: of the hosts' loads, which are predicted demand over cache, \
    mean over windows. Overloaded: how often a host had more demand than the threshold at the end of a window.";

/// The goals, with mean and worst seed.
pub fn goals_table(goals: &[Goal]) -> Table {
    let mut table =
        Table::new(["measure", "goal", "mean", "worst", "reached"]).words(1).words(2).words(3).words(4);
    for goal in goals {
        let reached = match goal.reached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
        table.row([&goal.measure, &goal.goal, &goal.mean, &goal.worst, reached]);
    }
    table
}

/// The moves of the first seed, if requests were simulated.
pub fn moves_table(comparison: &ClusterComparison) -> Option<Table> {
    let mut table = Table::new([
        "rule",
        "VM",
        "from",
        "to",
        "begun s",
        "took s",
        "stood still ms",
        "sent MiB",
        "blocks there",
        "brought",
    ])
    .words(1);
    for system in comparison.systems() {
        let Some(Details::Traced(outcome)) = comparison.of(system).next().map(|run| &run.details) else {
            continue;
        };
        for moved in &outcome.moves {
            table.row([
                system.to_string(),
                moved.vm.clone(),
                (moved.from + 1).to_string(),
                (moved.to + 1).to_string(),
                format!("{:.1}", moved.begun_seconds),
                format!("{:.1}", moved.served_seconds - moved.begun_seconds),
                format!("{:.0}", moved.stopped_seconds * 1e3),
                format!("{:.1}", moved.sent_bytes as f64 / f64::from(1 << 20)),
                moved.blocks[0].to_string(),
                moved.blocks[1].to_string(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Hits and latencies of each VM with each rule, of the first seed, if requests were simulated.
pub fn vms_table(comparison: &ClusterComparison) -> Option<Table> {
    let runs: Vec<(System, &traced::Outcome)> = comparison
        .systems()
        .into_iter()
        .filter_map(|system| match &comparison.of(system).next()?.details {
            Details::Traced(outcome) => Some((system, outcome)),
            Details::Model(_) => None,
        })
        .collect();
    let (_, first) = runs.first()?;
    let mut table =
        Table::new(std::iter::once("VM: hits % / p90 us").chain(runs.iter().map(|(s, _)| s.name())));
    for (number, vm) in first.vms.iter().enumerate() {
        let cell = |(_, outcome): &(System, &traced::Outcome)| {
            let vm = &outcome.vms[number];
            format!("{:.1} / {:.0}", vm.hits.ratio().unwrap_or(0.0) * 100.0, vm.latency.p90_us)
        };
        table.row(std::iter::once(vm.name.clone()).chain(runs.iter().map(cell)));
    }
    Some(table)
}

/// One figure of each rule over time, of the first seed.
fn over_time(
    comparison: &ClusterComparison,
    title: &str,
    y: Axis,
    points: impl Fn(&Details) -> Vec<(f64, f64)>,
) -> LineChart {
    let chart = LineChart::new(title, Axis::time("Time"), y);
    comparison.systems().into_iter().fold(chart, |chart, system| match comparison.of(system).next() {
        Some(run) => chart.line(system.name(), points(&run.details)),
        None => chart,
    })
}

fn points(
    details: &Details,
    of_trace: impl Fn(&traced::WindowSample) -> f64,
    of_model: impl Fn(&model::Sample) -> f64,
) -> Vec<(f64, f64)> {
    match details {
        Details::Traced(outcome) => outcome.windows.iter().map(|w| (w.time_seconds, of_trace(w))).collect(),
        Details::Model(outcome) => {
            outcome.windows.iter().map(|w| (w.time_hours * 3600.0, of_model(w))).collect()
        }
    }
}

fn hits(window: &traced::WindowSample) -> f64 {
    let (hits, accesses) =
        window.hits.iter().fold((0, 0), |(hits, all), vm| (hits + vm.hits, all + vm.accesses));
    hits as f64 / accesses.max(1) as f64
}

/// Loads of hosts over time: each row a group of hosts, with the highest load among them.
fn heat(system: System, title: &str, threshold: f64, times: &[f64], loads: &[Vec<f64>]) -> HeatMap {
    let hosts = loads.first().map_or(0, Vec::len);
    let (group, stride) = (hosts.div_ceil(ROWS).max(1), times.len().div_ceil(COLUMNS).max(1));
    let at: Vec<f64> = times.iter().copied().skip(stride - 1).step_by(stride).collect();
    let chart = HeatMap::new(&format!("{title}: {system}"), Axis::time("Time"), at, Unit::Share, (0.3, 1.3));
    (0..hosts).step_by(group).fold(chart.limit(threshold), |chart, first| {
        let last = (first + group).min(hosts);
        let highest = |windows: &[Vec<f64>]| {
            windows.iter().flat_map(|loads| &loads[first..last]).copied().fold(0.0, f64::max)
        };
        let name = if group == 1 { format!("{}", first + 1) } else { format!("{}-{last}", first + 1) };
        chart.row(&name, loads.chunks_exact(stride).map(highest).collect())
    })
}

fn heat_of(system: System, threshold: f64, details: &Details) -> HeatMap {
    match details {
        Details::Traced(outcome) => {
            let times: Vec<f64> = outcome.windows.iter().map(|window| window.time_seconds).collect();
            let loads: Vec<Vec<f64>> = outcome.windows.iter().map(|window| window.loads.clone()).collect();
            heat(system, "Load of hosts", threshold, &times, &loads)
        }
        Details::Model(outcome) => {
            let times: Vec<f64> = outcome.windows.iter().map(|window| window.time_hours * 3600.0).collect();
            let wide = |loads: &Vec<f32>| loads.iter().map(|load| f64::from(*load)).collect();
            let loads: Vec<Vec<f64>> = outcome.loads.iter().map(wide).collect();
            heat(system, "Highest load in groups of hosts", threshold, &times, &loads)
        }
    }
}

fn variance_of(window: &traced::WindowSample) -> f64 {
    crate::cluster::variance(&window.loads)
}

/// Adds what is lent over time, if any rule lends.
fn with_loans(comparison: &ClusterComparison, section: Section) -> Section {
    if !comparison.systems().contains(&System::Lending) {
        return section;
    }
    section
        .chart(over_time(comparison, "Flash lent", Axis::linear("Lent", Unit::Bytes), |details| {
            points(details, |_| 0.0, |w| w.lent_bytes as f64)
        }))
        .chart(over_time(comparison, "Hosts that borrow", Axis::linear("Hosts", Unit::Count), |details| {
            points(details, |_| 0.0, |w| w.borrowers as f64)
        }))
        .chart(over_time(
            comparison,
            "Accesses that lenders serve",
            Axis::linear("Hits", Unit::Share),
            |details| points(details, |_| 0.0, |w| w.lent_hit_ratio),
        ))
}

fn sections(comparison: &ClusterComparison) -> Vec<Section> {
    let seconds = |title: &str| Axis::linear(title, Unit::Seconds);
    let count = |title: &str| Axis::linear(title, Unit::Count);
    let first = Section::new(comparison.scenario.title())
        .table(goals_table(&goals(comparison)))
        .text(COLUMNS_TEXT)
        .table(table(comparison));
    let time = Section::new("Over time")
        .text("Of the first seed.")
        .chart(over_time(comparison, "Mean latency", seconds("Latency"), |details| {
            points(details, |w| w.mean_us / 1e6, |w| w.mean_us / 1e6)
        }))
        .chart(over_time(comparison, "Hits", Axis::linear("Hits", Unit::Share), |details| {
            points(details, hits, |w| w.hit_ratio)
        }))
        .chart(over_time(comparison, "Variance of load over hosts", count("Variance"), |details| {
            points(details, variance_of, |w| w.variance)
        }))
        .chart(over_time(comparison, "Moves so far", count("Moves"), |details| {
            let mut sum = 0;
            match details {
                Details::Traced(_) => points(details, |w| w.moves as f64, |_| 0.0),
                Details::Model(outcome) => {
                    let so_far = outcome.windows.iter().map(|w| {
                        sum += w.moves;
                        (w.time_hours * 3600.0, sum as f64)
                    });
                    so_far.collect()
                }
            }
        }));
    let time = with_loans(comparison, time);
    let threshold = comparison.scenario.threshold();
    let mut loads = Section::new("Load over hosts and time").text(&format!(
        "Predicted demand over cache at the end of each window, after its moves. Hosts above the threshold of {:.0} % are in \
         the second colour.",
        threshold * 100.0
    ));
    let is_known = |system: &System| {
        matches!(comparison.scenario, Scenario::Model(_)) || !matches!(system, System::Shared | System::Equal)
    };
    for system in comparison.systems().into_iter().filter(is_known) {
        if let Some(run) = comparison.of(system).next() {
            loads = loads.chart(heat_of(system, threshold, &run.details));
        }
    }
    let mut all = vec![first, time, loads];
    if let Some(table) = moves_table(comparison) {
        all.push(Section::new("Moves").text("Of the first seed.").table(table));
    }
    if let Some(table) = vms_table(comparison) {
        all.push(Section::new("VMs").text("Of the first seed.").table(table));
    }
    all
}

/// Comparisons of several scenarios as a page.
pub fn page(comparisons: &[ClusterComparison]) -> Page {
    let titles: Vec<&str> = comparisons.iter().map(|comparison| comparison.scenario.title()).collect();
    let page = Page::new("Rules of balancing compared").lead(&titles.join(", "));
    comparisons.iter().flat_map(sections).fold(page, Page::section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_and_windows_are_grouped_by_their_highest_load() {
        let times: Vec<f64> = (1..=300).map(f64::from).collect();
        let mut loads = vec![vec![0.5; 130]; 300];
        loads[10][129] = 1.0;
        let svg = heat(System::Local, "t", 0.9, &times, &loads).to_svg();
        // Rows of three hosts, columns of three windows; two of the legend's six samples are above the limit.
        let above = svg.matches("class=\"heat c1\"").count();
        assert_eq!(above, 3, "{svg}");
        assert!(svg.contains(">1-3</text>"), "{svg}");
    }
}
