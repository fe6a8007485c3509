//! Tables and lines of JSON.

use super::contenders::Kind;
use super::counters::Counters;
use super::{CACHE_MIB, DISK_MIB, ORIGIN_MS, Options, STAGING_MIB};
use crate::output::say;
use crate::spread::Spread;
use crate::table;

/// One round of a contender.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Requests a second.
    pub iops: f64,
    /// The median latency.
    pub median_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}

/// A contender's rounds under a load, and what was counted meanwhile.
#[derive(Debug)]
pub struct Result {
    /// The contender.
    pub kind: Kind,
    /// Its rounds.
    pub rounds: Vec<Figures>,
    /// The counters of all rounds and of the rest after them.
    pub counted: Counters,
}

/// The results of a load.
#[derive(Debug)]
pub struct Outcome {
    event: &'static str,
    rounds: usize,
    /// Requests of a contender in all rounds.
    requests: u64,
    has_reads: bool,
    results: Vec<Result>,
}

/// Says what is measured, and what emulation distorts.
pub fn introduce(options: &Options, kernel: &str) {
    if options.json {
        return;
    }
    say!(
        "the caches of Linux {kernel} and Haversack, in one guest in QEMU's software emulation\n  \
         each: a disk of {DISK_MIB} MiB whose origin takes {ORIGIN_MS} ms for a read or a write, and a cache device of {CACHE_MIB} MiB; \
         write-back\n  \
         haversack also has {STAGING_MIB} MiB of staging area in memory, which survives a crash of its process but not of the host;\n  \
         a flush makes everything durable with all of them\n  \
         TIMES ARE DISTORTED: the code of the kernel's caches and of their disks' drivers is emulated, that of haversack is not,\n  \
         so times favour haversack; hits, the origin's I/O and writes to the cache device do not depend on the emulation\n"
    );
}

impl Outcome {
    /// The results of a load.
    pub fn new(event: &'static str, options: &Options, reads: u64, results: Vec<Result>) -> Outcome {
        let requests = options.requests * options.rounds as u64;
        Outcome { event, rounds: options.rounds, requests, has_reads: reads > 0, results }
    }

    /// Prints a table, or an object for each contender.
    pub fn print(&self, json: bool) {
        if json {
            for result in &self.results {
                self.print_object(result);
            }
        } else {
            self.print_table();
        }
    }

    /// The ratio of the first contender to another one, round by round.
    fn first_to(&self, other: &Result, of: fn(&Figures) -> f64) -> Spread {
        let first = self.results.first().map_or(&[][..], |result| &result.rounds);
        Spread::of(first.iter().zip(&other.rounds).map(|(first, other)| of(first) / of(other)))
    }

    fn each(&self, count: u64) -> f64 {
        count as f64 / self.requests as f64
    }

    /// The share of reads that were hits, in percent; none where nothing is cached or nothing is read.
    fn hit_percent(&self, result: &Result) -> Option<f64> {
        let Counters { hits, misses, .. } = result.counted;
        let is_there = self.has_reads && result.kind != Kind::Bare && hits + misses > 0;
        is_there.then(|| 100.0 * hits as f64 / (hits + misses) as f64)
    }

    fn print_table(&self) {
        let mut rows = vec![table::row([
            "",
            "requests/s",
            "median us",
            "99 % us",
            "first/this: requests/s",
            "read hits",
            "origin reads",
            "(KiB)",
            "origin writes",
            "(KiB)",
            "cache device KiB written",
        ])];
        for result in &self.results {
            let spread = |of: fn(&Figures) -> f64| Spread::of(result.rounds.iter().map(of));
            let origin = &result.counted.origin;
            let kib = |bytes: u64| format!("{:.2}", self.each(bytes) / 1024.0);
            rows.push(vec![
                result.kind.name().to_owned(),
                spread(|f| f.iops).shown(0),
                spread(|f| f.median_us).shown(0),
                spread(|f| f.p99_us).shown(0),
                self.first_to(result, |f| f.iops).shown(2),
                self.hit_percent(result).map_or("-".to_owned(), |percent| format!("{percent:.1} %")),
                format!("{:.3}", self.each(origin.reads)),
                kib(origin.read_bytes),
                format!("{:.3}", self.each(origin.writes)),
                kib(origin.written_bytes),
                kib(result.counted.flash_bytes),
            ]);
        }
        let title = format!(
            "{}: medians of {} interleaved rounds (least to greatest); I/O of origin and cache device per request",
            self.event, self.rounds
        );
        table::print(&title, &rows);
    }

    fn print_object(&self, result: &Result) {
        let figure = |of: fn(&Figures) -> f64| Spread::of(result.rounds.iter().map(of)).json();
        let origin = &result.counted.origin;
        say!(
            "{{\"benchmark\":\"kernel\",\"load\":\"{}\",\"contender\":\"{}\",\"requests_s\":{},\"median_us\":{},\
             \"p99_us\":{},\"first_to_this_requests_s\":{},\"read_hit_percent\":{},\"origin_reads\":{:.4},\
             \"origin_read_bytes\":{:.1},\"origin_writes\":{:.4},\"origin_written_bytes\":{:.1},\
             \"cache_device_written_bytes\":{:.1}}}",
            self.event,
            result.kind.name(),
            figure(|f| f.iops),
            figure(|f| f.median_us),
            figure(|f| f.p99_us),
            self.first_to(result, |f| f.iops).json(),
            self.hit_percent(result).map_or("null".to_owned(), |percent| format!("{percent:.2}")),
            self.each(origin.reads),
            self.each(origin.read_bytes),
            self.each(origin.writes),
            self.each(origin.written_bytes),
            self.each(result.counted.flash_bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(kind: Kind, iops: [f64; 3], hits: u64) -> Result {
        let round = |iops| Figures { iops, median_us: 1.0, p99_us: 2.0 };
        let counted = Counters { hits, misses: 10, ..Counters::default() };
        Result { kind, rounds: iops.map(round).to_vec(), counted }
    }

    #[test]
    fn ratios_are_of_the_same_round_and_hits_of_all_reads() {
        let results = vec![
            result(Kind::Haversack, [10.0, 20.0, 40.0], 30),
            result(Kind::DmCache, [5.0, 10.0, 10.0], 0),
            result(Kind::Bare, [1.0, 1.0, 1.0], 0),
        ];
        let options = Options { json: false, requests: 100, rounds: 3 };
        let outcome = Outcome::new("test", &options, 70, results);
        assert_eq!(outcome.first_to(&outcome.results[1], |f| f.iops).shown(1), "2.0 (2.0 to 4.0)");
        let hits = [0, 1, 2].map(|at| outcome.hit_percent(&outcome.results[at]));
        assert_eq!(hits, [Some(75.0), Some(0.0), None]);
        assert_eq!(outcome.each(600), 2.0);
    }
}
