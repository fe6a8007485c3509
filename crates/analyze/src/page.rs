//! An analysis as a page.

use haversack_report::{Axis, Chart, LineChart, Page, Section, StackedArea, Table, Unit, counted};

use crate::intervals::Interval;
use crate::results::{Analysis, Classes, CurvePoint, VolumeAnalysis};
use crate::tables::{ratio, share};
use crate::windows::Window;

const SINCE_FIRST: &str = "Time since the first request";
/// The most volumes in a chart: those with the most accesses; the others are in the tables.
const VOLUMES: usize = 8;

impl Analysis {
    /// Returns the whole analysis as a page. `title` names what was analysed.
    pub fn page(&self, title: &str) -> Page {
        let traffic = &self.overall.traffic;
        let span_s = traffic.last_ns.saturating_sub(traffic.first_ns) as f64 / 1e9;
        let span =
            if self.timed { format!("in {}", Unit::Seconds.format(span_s)) } else { "without times".into() };
        let depth = self.sampled_blocks.map_or_else(
            || "exact".to_string(),
            |blocks| format!("estimated from samples of at most {blocks} blocks"),
        );
        let lead = format!(
            "{}, {} {span}; blocks of {}; {depth}.",
            counted(self.volumes.len() as u64, "volume"),
            counted(traffic.requests(), "request"),
            Unit::Bytes.format(self.block_bytes as f64),
        );
        let page = Page::new(title)
            .lead(&lead)
            .section(self.overview())
            .section(self.curves())
            .section(self.reuse());
        let page = if self.timed { page.section(self.working_sets()) } else { page };
        let page = page.section(self.popularity());
        match self.interval_table() {
            Some(table) => page.section(self.intervals(table)),
            None => page,
        }
    }

    /// Returns the most important chart, for a page of its own.
    pub fn curve_chart(&self) -> LineChart {
        let curve = |value: fn(&CurvePoint) -> Option<f64>| points(&self.overall, value);
        LineChart::new("LRU cache shared by all volumes", size_axis(), Axis::share("Miss ratio"))
            .line("all accesses", curve(|p| p.miss_ratio))
            .line("reads", curve(|p| p.read_miss_ratio))
            .line("reads, if only reads enter", curve(|p| p.reads_alone_miss_ratio))
            .dashed("dirty evictions per write", curve(|p| p.dirty_eviction_ratio))
    }

    fn overview(&self) -> Section {
        let all = &self.overall;
        let traffic = &all.traffic;
        let references = (traffic.read_references + traffic.write_references) as f64;
        Section::new("Requests")
            .facts([
                ("Block accesses", Unit::Count.format(references)),
                ("Reads", share(traffic.read_references as f64, references)),
                ("Footprint", self.bytes(all.footprint_blocks as f64)),
                ("Cache for all re-reads (URD)", self.bytes(all.useful_distances.blocks as f64)),
                ("Cache for all reuse (TRD)", self.bytes(all.all_distances.blocks as f64)),
                ("Write ratio", ratio(Some(all.overwrite_ratio))),
            ])
            .table(self.traffic_table())
    }

    fn curves(&self) -> Section {
        let mut section = Section::new("Miss ratio")
            .text(
                "An LRU cache of each size: the share of accesses that miss, and the blocks that a write-back cache \
                 must write to the origin to make room, for each block written to it.",
            )
            .chart(self.curve_chart());
        if self.volumes.len() > 1 {
            let mut chart =
                LineChart::new("Read misses, each volume alone", size_axis(), Axis::share("Read miss ratio"));
            let largest =
                self.volumes.iter().filter_map(|volume| volume.curve.last()).map(|point| point.bytes).max();
            let largest = largest.unwrap_or(0) as f64;
            for volume in self.busiest() {
                let mut curve = points(volume, |point| point.read_miss_ratio);
                // Beyond its end a curve is level: all lines are extended to the end of the longest.
                let end =
                    curve.last().filter(|(size, _)| *size < largest).map(|(_, ratio)| (largest, *ratio));
                curve.extend(end);
                chart = chart.line(&volume.name, curve);
            }
            section = section.chart(chart);
        }
        section.table(self.curve_table())
    }

    fn reuse(&self) -> Section {
        Section::new("Reuse")
            .text(
                "Only accesses that read what is in the cache (RAR, RAW) gain from it; overwriting (WAR, WAW) does not. \
                 The write ratio is the share of the latter.",
            )
            .table(self.reuse_table())
            .table(self.distance_table())
    }

    fn working_sets(&self) -> Section {
        let window = Unit::Seconds.format(self.window_s);
        let text = format!(
            "Distinct blocks accessed in each window of {window} (WSS), and those accessed again within it (RWSS_1)."
        );
        Section::new("Working sets")
            .text(&text)
            .chart(self.working_set_chart("WSS over time", |window| window.blocks))
            .chart(self.working_set_chart("RWSS_1 over time", |window| window.reused_blocks[0]))
            .table(self.working_set_table())
    }

    fn intervals(&self, table: Table) -> Section {
        let mut section = Section::new("Intervals").text(
            "The same over time. Blocks are known from the beginning of the trace: an access is cold only if its block was \
             never used before. Sizes are those for all reuse (TRD) and for all re-reads (URD) in an interval.",
        );
        for volume in self.busiest() {
            section = section.chart(self.class_chart(volume));
        }
        let bytes = |blocks: u64| Some(blocks as f64 * self.block_bytes as f64);
        let sizes = Axis::linear("Cache size", Unit::Bytes);
        section = section
            .chart(self.interval_chart("TRD size", sizes.clone(), |interval| bytes(interval.trd_blocks)))
            .chart(self.interval_chart("URD size", sizes, |interval| bytes(interval.urd_blocks)))
            .chart(self.interval_chart(
                "Reuse intensity",
                Axis::linear("Per second", Unit::Count),
                |interval| Some(interval.intensity_per_s),
            ));
        for (number, point) in self.overall.asked.iter().enumerate() {
            let title = format!("Read hits of an LRU cache of {}", Unit::Bytes.format(point.bytes as f64));
            let hits = |interval: &Interval| Some(1.0 - interval.asked.get(number)?.read_miss_ratio?);
            section = section.chart(self.interval_chart(&title, Axis::share("Read hits"), hits));
        }
        section.table(table)
    }

    fn class_chart(&self, volume: &VolumeAnalysis) -> StackedArea {
        let at = volume.intervals.iter().map(|interval| self.seconds(interval.start_ns)).collect();
        let (time, accesses) = (Axis::time(SINCE_FIRST), Axis::linear("Accesses to blocks", Unit::Count));
        let title = format!("{}: accesses by class", volume.name);
        let mut chart = StackedArea::new(&title, time, accesses, at);
        for (class, (name, _)) in Classes::default().named().into_iter().enumerate() {
            let values = volume.intervals.iter().map(|interval| interval.classes.named()[class].1 as f64);
            chart = chart.layer(name, values.collect());
        }
        chart
    }

    /// Returns a figure of the intervals of the busiest volumes over time.
    fn interval_chart(
        &self,
        title: &str,
        axis: Axis,
        figure: impl Fn(&Interval) -> Option<f64>,
    ) -> LineChart {
        let mut chart = LineChart::new(title, Axis::time(SINCE_FIRST), axis);
        for volume in self.busiest() {
            let points = volume.intervals.iter();
            let points = points.filter_map(|at| Some((self.seconds(at.start_ns), figure(at)?)));
            chart = chart.steps(&volume.name, points.collect());
        }
        chart
    }

    /// Returns the seconds since the first request.
    fn seconds(&self, time_ns: u64) -> f64 {
        time_ns.saturating_sub(self.overall.traffic.first_ns) as f64 / 1e9
    }

    fn popularity(&self) -> Section {
        let top = "Most popular blocks, of all blocks";
        let mut chart = LineChart::new(
            "Popularity",
            Axis::log(top, Unit::Share).range(0.001, 1.0),
            Axis::share("Of all accesses"),
        );
        for volume in self.busiest() {
            let tops = volume.popularity.top.iter().map(|top| (top.blocks, top.references));
            chart = chart.line(&volume.name, tops.chain([(1.0, 1.0)]).collect());
        }
        Section::new("Popularity")
            .text("How much of all accesses goes to how few blocks.")
            .chart(chart)
            .table(self.popularity_table())
    }

    fn busiest(&self) -> Vec<&VolumeAnalysis> {
        let mut volumes: Vec<_> = self.volumes.iter().collect();
        let references =
            |volume: &VolumeAnalysis| volume.traffic.read_references + volume.traffic.write_references;
        volumes.sort_by_key(|volume| std::cmp::Reverse(references(volume)));
        volumes.truncate(VOLUMES);
        volumes
    }

    fn working_set_chart(&self, title: &str, figure: impl Fn(&Window) -> u64) -> Chart {
        let seconds = |window: &Window| self.seconds(window.start_ns);
        let bytes = |window: &Window| figure(window) as f64 * self.block_bytes as f64;
        let (time, size) = (Axis::time(SINCE_FIRST), Axis::linear("Working set", Unit::Bytes));
        let windows = &self.overall.windows;
        let mut chart = StackedArea::new(title, time, size, windows.iter().map(seconds).collect());
        let shown = self.busiest();
        let mut rest: Vec<f64> = windows.iter().map(bytes).collect();
        for volume in &shown {
            let mut own = volume.windows.iter().peekable();
            let mut values = Vec::with_capacity(windows.len());
            for (window, rest) in windows.iter().zip(&mut rest) {
                let value = own.next_if(|own| own.start_ns == window.start_ns).map_or(0.0, bytes);
                *rest -= value;
                values.push(value);
            }
            chart = chart.layer(&volume.name, values);
        }
        if shown.len() < self.volumes.len() {
            chart = chart.layer("others", rest);
        }
        chart.into()
    }
}

fn size_axis() -> Axis {
    Axis::log("Cache size", Unit::Bytes)
}

/// Charts show sizes down to this fraction of the largest: smaller caches are not used in practice.
const SMALLEST_SHARE: f64 = 1.0 / 1024.0;

fn points(volume: &VolumeAnalysis, value: impl Fn(&CurvePoint) -> Option<f64>) -> Vec<(f64, f64)> {
    let largest = volume.curve.last().map_or(0.0, |point| point.bytes as f64);
    let shown = volume.curve.iter().filter(|point| point.bytes as f64 >= largest * SMALLEST_SHARE);
    shown.filter_map(|point| Some((point.bytes as f64, value(point)?))).collect()
}
