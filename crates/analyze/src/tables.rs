//! An analysis as tables and as CSV.

use std::fmt::Write;

use haversack_report::{Table, Unit};

use crate::results::{Analysis, Classes, CurvePoint, VolumeAnalysis};
use crate::windows::Window;

/// Sizes in a table of the curve if none were given.
const ROWS: usize = 10;
/// Volumes side by side in the table of the curve.
const COLUMNS: usize = 8;

pub(crate) fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", part * 100.0 / whole) } else { "-".into() }
}

pub(crate) fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:.2} %", value * 100.0))
}

/// Mean and largest of a figure of the windows.
pub(crate) fn mean_and_largest(windows: &[Window], figure: impl Fn(&Window) -> u64) -> (f64, f64) {
    let sum: f64 = windows.iter().map(|window| figure(window) as f64).sum();
    let largest = windows.iter().map(&figure).max().unwrap_or(0);
    (sum / windows.len().max(1) as f64, largest as f64)
}

impl Analysis {
    /// Returns each volume, and all together if there are several.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &VolumeAnalysis> {
        let overall = (self.volumes.len() > 1).then_some(&self.overall);
        self.volumes.iter().chain(overall)
    }

    /// Returns the most important results, in a few tables.
    pub fn tables(&self) -> Vec<Table> {
        [self.traffic_table(), self.reuse_table(), self.distance_table()]
            .into_iter()
            .chain(self.timed.then(|| self.working_set_table()))
            .chain([self.popularity_table(), self.curve_table()])
            .chain(self.interval_table())
            .collect()
    }

    pub(crate) fn bytes(&self, blocks: f64) -> String {
        Unit::Bytes.format(blocks * self.block_bytes as f64)
    }

    pub(crate) fn traffic_table(&self) -> Table {
        let columns =
            ["volume", "requests", "reads", "read", "written", "footprint", "of it read", "sequential reads"];
        let more = ["sequential writes", "mean read run", "mean write run"];
        let mut table = Table::new(columns.into_iter().chain(more)).caption("Requests");
        for volume in self.rows() {
            let (traffic, runs) = (&volume.traffic, &volume.sequentiality);
            let sequential = |runs: &crate::Runs| share(runs.sequential_bytes as f64, runs.bytes as f64);
            table.row([
                volume.name.clone(),
                traffic.requests().to_string(),
                share(traffic.reads as f64, (traffic.reads + traffic.writes) as f64),
                Unit::Bytes.format(traffic.read_bytes as f64),
                Unit::Bytes.format(traffic.written_bytes as f64),
                self.bytes(volume.footprint_blocks as f64),
                self.bytes(volume.read_footprint_blocks as f64),
                sequential(&runs.reads),
                sequential(&runs.writes),
                Unit::Bytes.format(runs.reads.mean_bytes()),
                Unit::Bytes.format(runs.writes.mean_bytes()),
            ]);
        }
        table
    }

    pub(crate) fn reuse_table(&self) -> Table {
        let columns = [
            "volume",
            "block accesses",
            "cold reads",
            "cold writes",
            "RAR",
            "RAW",
            "WAR",
            "WAW",
            "write ratio",
            "to flash, WB",
            "to flash, RO",
        ];
        let caption = "Accesses to blocks by what came before them; what would be written to flash, as ECI-Cache counts it";
        let mut table = Table::new(columns).caption(caption);
        for volume in self.rows() {
            let all = (volume.traffic.read_references + volume.traffic.write_references) as f64;
            let c = volume.classes;
            let classes = [c.cold_reads, c.cold_writes, c.rar, c.raw, c.war, c.waw];
            let mut row = vec![volume.name.clone(), Unit::Count.format(all)];
            row.extend(classes.map(|class| share(class as f64, all)));
            row.push(ratio(Some(volume.overwrite_ratio)));
            let written_back = c.cold_reads + c.cold_writes + c.war + c.waw;
            row.extend([written_back, c.cold_reads].map(|blocks| share(blocks as f64, all)));
            table.row(row);
        }
        table
    }

    pub(crate) fn distance_table(&self) -> Table {
        let columns = [
            "volume", "TRD p50", "TRD p90", "TRD p99", "TRD size", "URD p50", "URD p90", "URD p99",
            "URD size",
        ];
        let mut table = Table::new(columns).caption(
            "Reuse distances as cache sizes: of all accesses (TRD) and of reads (URD); the size hits all of them",
        );
        for volume in self.rows() {
            let mut row = vec![volume.name.clone()];
            for d in [&volume.all_distances, &volume.useful_distances] {
                let sizes = [d.p50, d.p90, d.p99].map(|blocks| blocks + u64::from(d.blocks > 0));
                row.extend(sizes.map(|blocks| self.bytes(blocks as f64)));
                row.push(self.bytes(d.blocks as f64));
            }
            table.row(row);
        }
        table
    }

    pub(crate) fn working_set_table(&self) -> Table {
        let columns =
            ["volume", "WSS mean", "WSS max", "RWSS_1 mean", "RWSS_1 max", "RWSS_3 mean", "RWSS_3 max"];
        let caption = format!(
            "Working sets in windows of {}, reuse intensity per second in windows of {}",
            Unit::Seconds.format(self.window_s),
            Unit::Seconds.format(self.intensity_window_s)
        );
        let more = ["reuse intensity", "its max"];
        let mut table = Table::new(columns.into_iter().chain(more)).caption(&caption);
        for volume in self.rows() {
            let reused = |times: usize| move |window: &Window| window.reused_blocks[times - 1];
            let sizes = [
                mean_and_largest(&volume.windows, |window| window.blocks),
                mean_and_largest(&volume.windows, reused(1)),
                mean_and_largest(&volume.windows, reused(3)),
            ];
            let mut row = vec![volume.name.clone()];
            row.extend(sizes.iter().flat_map(|(mean, largest)| [self.bytes(*mean), self.bytes(*largest)]));
            let intensity = volume.intensity.unwrap_or_default();
            row.extend([intensity.mean_per_s, intensity.largest_per_s].map(|per_s| format!("{per_s:.4}")));
            table.row(row);
        }
        table
    }

    /// Returns the figures by interval, if there are any.
    pub(crate) fn interval_table(&self) -> Option<Table> {
        let length = Unit::Seconds.format(self.interval_s?);
        let first_ns = self.overall.traffic.first_ns;
        let sizes = || self.overall.asked.iter().map(|point| Unit::Bytes.format(point.bytes as f64));
        let classes = Classes::default().named().map(|(name, _)| name.to_owned());
        let columns = ["volume", "from", "accesses"].map(String::from).into_iter().chain(classes);
        let columns =
            columns.chain(["write ratio", "TRD size", "URD size", "reuse intensity"].map(String::from));
        let columns =
            columns.chain(sizes().flat_map(|size| [format!("{size} hits"), format!("{size} read hits")]));
        let mut table = Table::new(columns).caption(&format!(
            "Intervals of {length}: classes of accesses, cache for all of them that are reuse, hits of LRU caches"
        ));
        for volume in &self.volumes {
            for interval in &volume.intervals {
                let classes = interval.classes.named().map(|(_, accesses)| accesses as f64);
                let all: f64 = classes.iter().sum();
                let from_s = interval.start_ns.saturating_sub(first_ns) as f64 / 1e9;
                let mut row =
                    vec![volume.name.clone(), Unit::Seconds.format(from_s), Unit::Count.format(all)];
                row.extend(classes.map(|accesses| share(accesses, all)));
                row.push(ratio(Some(interval.overwrite_ratio)));
                row.extend(
                    [interval.trd_blocks, interval.urd_blocks].map(|blocks| self.bytes(blocks as f64)),
                );
                row.push(format!("{:.4}", interval.intensity_per_s));
                let hits = |misses: Option<f64>| ratio(misses.map(|misses| 1.0 - misses));
                row.extend(interval.asked.iter().flat_map(|p| [hits(p.miss_ratio), hits(p.read_miss_ratio)]));
                table.row(row);
            }
        }
        Some(table)
    }

    pub(crate) fn popularity_table(&self) -> Table {
        let columns = [
            "volume",
            "top 0.1 %",
            "top 1 %",
            "top 10 %",
            "top 50 %",
            "used once",
            "Zipf exponent",
            "its fit",
        ];
        let mut table = Table::new(columns)
            .caption("Share of all accesses that the most popular blocks have; blocks used only once");
        for volume in self.rows() {
            let popularity = &volume.popularity;
            let top = |blocks: f64| {
                let found = popularity.top.iter().find(|top| top.blocks == blocks);
                found.map_or_else(|| "-".into(), |top| share(top.references, 1.0))
            };
            let two_digits =
                |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
            let mut row = vec![volume.name.clone()];
            row.extend([0.001, 0.01, 0.1, 0.5].map(top));
            row.push(share(popularity.once, 1.0));
            row.push(two_digits(popularity.zipf_exponent));
            row.push(two_digits(popularity.zipf_fit));
            table.row(row);
        }
        table
    }

    /// Returns the results of LRU caches of a few sizes: the given ones, or some along the curve.
    pub(crate) fn curve_table(&self) -> Table {
        let some = |curve: &[CurvePoint]| {
            let every = curve.len().div_ceil(ROWS).max(1);
            curve.iter().rev().step_by(every).rev().copied().collect::<Vec<_>>()
        };
        let overall = &self.overall;
        let points = if overall.asked.is_empty() { some(&overall.curve) } else { overall.asked.clone() };
        let columns = ["LRU cache", "blocks", "misses", "read misses", "reads alone", "dirty evictions"];
        let apart = self.volumes.len() > 1 && !overall.asked.is_empty();
        let volumes = self.volumes.iter().take(if apart { COLUMNS } else { 0 });
        let names = volumes.clone().map(|volume| format!("{} read misses", volume.name));
        let mut table = Table::new(columns.map(String::from).into_iter().chain(names)).caption(
            "Miss ratios of a shared LRU cache: of all accesses, of reads, of reads if only they enter; evictions per write",
        );
        for (number, point) in points.iter().enumerate() {
            let apart = volumes.clone().map(|volume| ratio(volume.asked[number].read_miss_ratio));
            let shared = [
                Unit::Bytes.format(point.bytes as f64),
                point.blocks.to_string(),
                ratio(point.miss_ratio),
                ratio(point.read_miss_ratio),
                ratio(point.reads_alone_miss_ratio),
                ratio(point.dirty_eviction_ratio),
            ];
            table.row(shared.into_iter().chain(apart));
        }
        table
    }

    /// Returns all curves as CSV: the points of every volume and of all together (`all`).
    pub fn curves_csv(&self) -> String {
        let mut out = String::from(
            "volume,blocks,bytes,miss_ratio,read_miss_ratio,reads_alone_miss_ratio,dirty_eviction_ratio\n",
        );
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        for volume in self.volumes.iter().chain([&self.overall]) {
            let name = quoted(&volume.name);
            for p in volume.points() {
                let values =
                    [p.miss_ratio, p.read_miss_ratio, p.reads_alone_miss_ratio, p.dirty_eviction_ratio];
                // Writing to a string cannot fail.
                let _ = writeln!(out, "{name},{},{},{}", p.blocks, p.bytes, values.map(number).join(","));
            }
        }
        out
    }
}

/// Returns a name as a field of CSV.
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.into()
    }
}
