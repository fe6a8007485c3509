//! One HTML page for a paper: for each figure what the paper claims, our plots and table, and the difference in words.

use haversack_report::{Axis, Bars, Chart, LineChart, Page, Section, StackedArea, Table, Unit};

use crate::claim::{Claim, Judged, Verdict};
use crate::measure::{Measure, Quantity};
use crate::outcome::{CourseOf, Outcome, Point};
use crate::recipe::{Figure, Paper, Parts, Plot, XUnit};
use crate::run::FigureResult;

/// The page of a paper.
pub fn page(paper: &Paper, results: &[FigureResult]) -> Page {
    let made = results.iter().map(|result| result.seconds).sum::<f64>();
    let lead = format!(
        "{} Figures and tables reproduced by Haversack's simulator in {}. What the paper says is quoted with its own numbers; all \
         else is computed from the results. What is marked \"by the paper\" in a plot is the paper's number on our scale: a \
         difference is applied to our result for the system that it is from.",
        paper.source,
        Unit::Seconds.format(made)
    );
    let mut page =
        Page::new(&format!("{}, reproduced", paper.name)).lead(&lead).section(summary(paper, results));
    for (figure, result) in paper.figures.iter().zip(results) {
        page = page.section(section(figure, result));
    }
    page
}

/// Counts the claims by verdict.
fn summary(paper: &Paper, results: &[FigureResult]) -> Section {
    let mut table = Table::new([
        "figure",
        "shows",
        "as in the paper",
        "smaller",
        "no difference",
        "contradicted",
        "not judged",
    ])
    .words(1);
    for (figure, result) in paper.figures.iter().zip(results) {
        let count = |verdicts: &[Verdict]| {
            result.claims.iter().filter(|claim| verdicts.contains(&claim.verdict)).count().to_string()
        };
        table.row([
            figure.name.clone(),
            figure.title.clone(),
            count(&[Verdict::Same]),
            count(&[Verdict::Smaller]),
            count(&[Verdict::None]),
            count(&[Verdict::Other]),
            count(&[Verdict::NotTold, Verdict::Missing]),
        ]);
    }
    Section::new("Claims").text("The number of claims that came out in each way.").table(table)
}

fn section(figure: &Figure, result: &FigureResult) -> Section {
    let mut section = Section::new(&format!("{}: {}", figure.name, figure.title)).text(&figure.place);
    if let Some(played) = &result.outcome.played {
        let damaged = match played.damaged_lines {
            0 => String::new(),
            lines => format!(" {lines} damaged lines of the traces were left out."),
        };
        section = section.text(&format!(
            "Played: {} requests in {}, which access {}.{damaged}",
            Unit::Count.format(played.requests as f64),
            Unit::Seconds.format(played.seconds),
            Unit::Bytes.format(played.footprint_bytes as f64)
        ));
    }
    if result.seeds > 1 {
        section = section.text(&format!(
            "Plots and table are of the first of {} seeds. A claim is judged with each of them, and counts as the least \
             favourable came out.",
            result.seeds
        ));
    }
    for assumption in &result.assumptions {
        section = section.text(assumption);
    }
    for plot in &figure.plot {
        section = section.chart(chart(plot, &figure.claims, &result.outcome));
    }
    section.table(table(figure, &result.outcome)).table(claims_table(&result.claims))
}

/// The measures of each point that has one of them.
pub fn table(figure: &Figure, outcome: &Outcome) -> Table {
    let known = |measure: &&Measure| outcome.points.iter().any(|point| point.values.contains_key(*measure));
    let measures: Vec<&Measure> = figure.table.iter().filter(known).collect();
    let x = outcome.points.iter().any(|point| point.x.is_some() && shows(point, &measures));
    let unit = figure.plot.iter().find_map(|plot| match plot {
        Plot::Lines { unit, x, .. } => Some((*unit, x.as_str())),
        _ => None,
    });
    let (unit, title) = unit.unwrap_or((XUnit::Number, "at"));
    let titles = measures.iter().map(|measure| measure.title());
    let first = ["system".to_string()].into_iter().chain(x.then(|| title.to_lowercase()));
    let mut table = Table::new(first.chain(titles));
    for point in outcome.points.iter().filter(|point| shows(point, &measures)) {
        let at = point.x.map_or_else(String::new, |x| x_unit(unit).format(x));
        let cells = measures.iter().map(|measure| {
            point.values.get(*measure).map_or_else(|| "-".into(), |value| measure.format(*value))
        });
        table.row([point.system.clone()].into_iter().chain(x.then_some(at)).chain(cells));
    }
    table
}

fn shows(point: &Point, measures: &[&Measure]) -> bool {
    measures.iter().any(|measure| point.values.contains_key(*measure))
}

/// What the paper says, and what we found. What contradicts the paper, or does not show its difference, is marked.
pub fn claims_table(claims: &[Judged]) -> Table {
    let mut table = Table::new(["the paper says", "where", "here"]).words(1).words(2);
    for claim in claims {
        let cells = [claim.says.clone(), claim.place.clone(), claim.words.clone()];
        let is_marked = matches!(claim.verdict, Verdict::Other | Verdict::None);
        if is_marked { table.marked_row(cells) } else { table.row(cells) }
    }
    table
}

fn chart(plot: &Plot, claims: &[Claim], outcome: &Outcome) -> Chart {
    match plot {
        Plot::Bars { measure } => bars(measure, claims, outcome).into(),
        Plot::Lines { measure, x, unit } => lines(measure, x, *unit, claims, outcome).into(),
        Plot::Course { system, of } => course(system, *of, outcome).into(),
        Plot::HitsOverTime => hits_over_time(outcome).into(),
    }
}

/// The paper's numbers about a measure, on our scale: the system, the place on the x axis, and the value.
fn by_the_paper<'a>(
    measure: &'a Measure,
    claims: &'a [Claim],
    outcome: &'a Outcome,
) -> impl Iterator<Item = (String, Option<f64>, f64)> + 'a {
    claims.iter().filter(|claim| claim.measure == *measure).filter_map(|claim| {
        let value = claim.paper_value(outcome)?;
        let against = claim.against.as_ref().filter(|other| **other != claim.of);
        let from = against.map_or_else(String::new, |other| format!(" from {other}"));
        Some((format!("{}, by the paper{from}", claim.of), claim.x, value))
    })
}

fn bars(measure: &Measure, claims: &[Claim], outcome: &Outcome) -> Bars {
    let mut bars = Bars::new(&capital(&measure.title()), measure.quantity.unit());
    for point in &outcome.points {
        if let Some(value) = point.values.get(measure) {
            bars = bars.bar(&point.system, *value);
        }
    }
    for (name, _, value) in by_the_paper(measure, claims, outcome) {
        bars = bars.bar_of(&name, value, 1);
    }
    bars
}

fn lines(measure: &Measure, x: &str, unit: XUnit, claims: &[Claim], outcome: &Outcome) -> LineChart {
    let title = capital(&measure.title());
    let x = match unit {
        XUnit::Bytes | XUnit::Seconds => Axis::log(x, x_unit(unit)),
        XUnit::Time => Axis::time(x),
        XUnit::Number | XUnit::Share => Axis::linear(x, x_unit(unit)),
    };
    let mut chart = LineChart::new(&title, x, Axis::linear(&title, measure.quantity.unit()));
    for system in outcome.systems() {
        let of_system = outcome.points.iter().filter(|point| point.system == system);
        let place = |point: &Point| Some((point.x?, *point.values.get(measure)?));
        let mut points: Vec<(f64, f64)> = of_system.filter_map(place).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if !points.is_empty() {
            chart = chart.line(system, points);
        }
    }
    // The papers give few points of their curves in numbers.
    let mut theirs: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for (name, at, value) in by_the_paper(measure, claims, outcome) {
        let Some(at) = at else { continue };
        match theirs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((at, value)),
            None => theirs.push((name, vec![(at, value)])),
        }
    }
    for (name, mut points) in theirs {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart = chart.dots(&name, points);
    }
    chart
}

fn course(system: &str, of: Parts, outcome: &Outcome) -> StackedArea {
    let (of, what) = match of {
        Parts::Targets => (CourseOf::Targets, "targets"),
        Parts::Usage => (CourseOf::Usage, "cache in use"),
    };
    let found = outcome.courses.iter().find(|course| course.system == system && course.of == of);
    let times = found.map(|course| course.times_s.clone()).unwrap_or_default();
    let title = format!("{system}: {what}");
    let mut chart = StackedArea::new(&title, Axis::time("Time"), Axis::linear("Bytes", Unit::Bytes), times);
    for (name, values) in found.iter().flat_map(|course| &course.parts) {
        chart = chart.layer(name, values.clone());
    }
    chart
}

fn hits_over_time(outcome: &Outcome) -> LineChart {
    let mut chart =
        LineChart::new("Hits over time", Axis::time("Time"), Axis::share(&capital(Quantity::Hits.title())));
    for course in outcome.courses.iter().filter(|course| course.of == CourseOf::Hits) {
        for (_, values) in &course.parts {
            let points = course.times_s.iter().copied().zip(values.iter().copied()).collect();
            chart = chart.line(&course.system, points);
        }
    }
    chart
}

fn x_unit(unit: XUnit) -> Unit {
    match unit {
        XUnit::Number => Unit::Named(""),
        XUnit::Share => Unit::Share,
        XUnit::Bytes => Unit::Bytes,
        XUnit::Seconds | XUnit::Time => Unit::Seconds,
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
