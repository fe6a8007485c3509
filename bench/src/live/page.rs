//! The results as a page with pictures: for each load, requests a second, latency and processor time of every contender.

use haversack_report::{Bars, Page, Section, Table, Unit};

use super::contest::{Figures, Outcome, ROUNDS};

/// Makes the page.
pub fn of(outcomes: &[Outcome]) -> Page {
    let lead = format!(
        "Medians of {ROUNDS} interleaved rounds, with the least and the greatest. All contenders ran in turn, on the same \
         machine, under the same loads."
    );
    let page = Page::new("Caches side by side").lead(&lead);
    outcomes.iter().fold(page, |page, outcome| {
        outcome.events().fold(page, |page, event| page.section(section(outcome, event)))
    })
}

fn section(outcome: &Outcome, event: usize) -> Section {
    let section = Section::new(&outcome.title_of(event));
    [
        ("Requests a second", Unit::Count, (|f| f.iops) as fn(&Figures) -> f64),
        ("99 % of the requests are done within", Unit::Seconds, |f| f.p99_us / 1e6),
        ("Processor time of the server for a request", Unit::Seconds, |f| f.server_us / 1e6),
    ]
    .into_iter()
    .fold(section, |section, (title, unit, of)| section.chart(bars(outcome, event, title, unit, of)))
    .table(table(outcome, event))
}

fn bars(outcome: &Outcome, event: usize, title: &str, unit: Unit, of: fn(&Figures) -> f64) -> Bars {
    outcome.names().enumerate().fold(Bars::new(title, unit), |bars, (contender, name)| {
        let group = usize::from(!name.starts_with("haversack"));
        bars.bar_of(name, outcome.spread(contender, event, of).median, group)
    })
}

fn table(outcome: &Outcome, event: usize) -> Table {
    let mut rows = outcome.rows(event).into_iter();
    let mut table = Table::new(rows.next().unwrap_or_default());
    rows.for_each(|row| table.row(row));
    table
}
