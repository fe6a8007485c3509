//! Writes a page with one of everything: `cargo run -p haversack-report --example specimen FILE`.

use std::path::PathBuf;

use haversack_report::{Axis, Bars, LineChart, Page, Section, StackedArea, Table, Unit};

fn main() -> std::io::Result<()> {
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("specimen.html"), PathBuf::from);
    let sizes: Vec<f64> = (0..60).map(|n| 4096.0 * 2f64.powf(f64::from(n) / 3.0)).collect();
    let curve = |half: f64| sizes.iter().map(|s| (*s, 0.05 + 0.95 * half / (half + s))).collect::<Vec<_>>();
    let mut lines =
        LineChart::new("Miss ratio", Axis::log("Cache size", Unit::Bytes), Axis::share("Miss ratio"));
    for n in 0..9 {
        lines = lines.line(&format!("policy {n}"), curve(65536.0 * 2f64.powi(n)));
    }
    let lines = lines.dashed("bound", curve(20000.0)).mark(2f64.powi(24), 0.3, "knee");
    let at: Vec<f64> = (0..120).map(|n| f64::from(n) * 60.0).collect();
    let layer = |phase: f64| at.iter().map(|t| 1e9 * (1.5 + (t / 900.0 + phase).sin())).collect::<Vec<_>>();
    let mut area =
        StackedArea::new("Cache in use", Axis::time("Time"), Axis::linear("Cached", Unit::Bytes), at.clone());
    for n in 0..5 {
        area = area.layer(&format!("vm{n}"), layer(f64::from(n)));
    }
    let series = |phase| at.iter().copied().zip(layer(phase)).map(|(t, v)| (t, v / 1e5)).collect();
    let load = LineChart::new("Load", Axis::time("Time"), Axis::linear("I/Os per second", Unit::Count))
        .steps("vm0", series(0.0))
        .line("vm1", series(1.0));
    let bars = Bars::new("Mean latency", Unit::Seconds)
        .bar("LRU", 0.0012)
        .bar("S3-FIFO", 0.00098)
        .bar_of("MIN", 0.0006, 2);
    let mut table = Table::new(["policy", "size", "miss ratio", "mean latency", "why"]).words(4);
    table.row(["LRU", "16 GiB", "31.2 %", "1.2 ms", "the reference"]);
    table.marked_row(["S3-FIFO", "16 GiB", "26.9 %", "0.98 ms", "the knee"]);
    let page = Page::new("One of everything")
        .lead("Every kind of block that a page can hold.")
        .section(
            Section::new("Overview")
                .facts([
                    ("Requests", "1.2 M".to_string()),
                    ("Footprint", "12.3 GiB".to_string()),
                    ("Reads", "61 %".to_string()),
                ])
                .text("Charts that follow each other stand side by side where there is room.")
                .table(table),
        )
        .section(Section::new("Charts").chart(lines).chart(area).chart(load).chart(bars));
    page.write(&file)
}
