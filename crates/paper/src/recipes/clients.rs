//! Clients of a remote flash cache behind their memory: without the flash, with queries to it for every read, and with
//! an index of it. Reads only.
//!
//! Latencies are those of the simulator's model. A query, a read of the remote flash and one of the origin each cross
//! the network once and back.
//!
//! Source: Liu et al., 2015, sections 3.2 and 5.2, equation 1, figures 2 and 9.

use std::path::Path;

use haversack_model::BLOCK_BYTES;
use haversack_policy::admission::lru::Lru;
use haversack_sim::agenda::Agenda;
use haversack_sim::latency::{IoKind, LatencyModel, Mean, Stations};
use haversack_sim::mix::Mix;
use haversack_sim::tape::Tape;
use haversack_sim::{Progress, SimError, Stage, Traffic};
use haversack_trace::{Op, Source};

use crate::error::Failure;
use crate::measure::Quantity;
use crate::outcome::{Outcome, Played, Point};
use crate::par_bf::ParBf;
use crate::recipe::Clients;

const SEED: u64 = 1;

/// What a client knows of the flash.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    WithoutFlash,
    Unaware,
    Aware,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::WithoutFlash, "without flash"), (Kind::Unaware, "cache-unaware"), (Kind::Aware, "cache-aware")];

/// Simulates.
pub(crate) fn run(recipe: &Clients, mix: &Mix, progress: &Progress<'_>) -> Result<Outcome, Failure> {
    let is_share = |part: f64| part > 0.0 && part < 1.0;
    if !is_share(recipe.false_positives) {
        return Err(Failure::Recipe("false positives are a share above 0 and below 1".into()));
    }
    let opener = || -> Result<Box<dyn Source>, SimError> { mix.open(Path::new(".")) };
    let seen = |part| progress(Stage::Survey, part);
    let tape = Tape::new(&opener, &Traffic::default(), BLOCK_BYTES as u64, &seen)?;
    let model = recipe.latency.over(LatencyModel::default());
    let blocks = |part: f64| (tape.survey.footprint_blocks as f64 * part).max(1.0) as u32;
    let mut outcome =
        Outcome { played: Some(Played::of(&tape.survey, BLOCK_BYTES as u64)), ..Outcome::default() };
    for (done, memory) in recipe.memory.iter().enumerate() {
        for (kind, name) in KINDS {
            let mut client = Client::new(recipe, kind, blocks(*memory), blocks(recipe.flash), &model);
            let (mut playback, mut batch) = (tape.play()?, Vec::new());
            playback.next(&mut batch)?;
            while !batch.is_empty() {
                for access in batch.iter().filter(|access| access.op == Op::Read) {
                    access.blocks(BLOCK_BYTES as u64).for_each(|block| client.read(access.time_ns, block));
                }
                playback.next(&mut batch)?;
            }
            client.pass(u64::MAX);
            outcome.points.push(client.point(name, *memory, &model));
        }
        progress(Stage::Play, (done + 1) as f64 / recipe.memory.len() as f64);
    }
    Ok(outcome)
}

/// A client with its memory and the flash.
struct Client {
    kind: Kind,
    memory: Lru,
    flash: Lru,
    index: ParBf,
    stations: Stations,
    round_trip_ns: u64,
    latency: Mean,
    /// Reads of the origin that have not reached it, and when each was requested.
    origin_reads: Agenda<u64>,
    reads: u64,
    memory_hits: u64,
    flash_hits: u64,
    /// Queries for blocks that the flash does not have.
    wasted: u64,
}

impl Client {
    fn new(recipe: &Clients, kind: Kind, memory: u32, flash: u32, model: &LatencyModel) -> Client {
        Client {
            kind,
            memory: Lru::new(memory),
            flash: Lru::new(flash),
            index: ParBf::new(flash as usize, recipe.filter_blocks as usize, recipe.false_positives),
            stations: Stations::new(model, 1, SEED),
            round_trip_ns: (model.network_round_trip_us * 1000.0) as u64,
            latency: Mean::default(),
            origin_reads: Agenda::new(),
            reads: 0,
            memory_hits: 0,
            flash_hits: 0,
            wasted: 0,
        }
    }

    fn read(&mut self, now_ns: u64, block: u64) {
        self.reads += 1;
        let start_ns = now_ns + self.stations.host_ns();
        self.pass(start_ns);
        if self.memory.get(block).is_some() {
            self.memory_hits += 1;
            self.latency.add(start_ns - now_ns);
        } else {
            self.fetch(now_ns, start_ns, block);
        }
        self.memory.put(block, 0);
    }

    /// Begins the reads of the origin that reach it by now: it serves them in this order.
    fn pass(&mut self, now_ns: u64) {
        while let Some((start_ns, since_ns)) = self.origin_reads.pop_due(now_ns) {
            let done_ns = self.stations.origin(start_ns, IoKind::Read, BLOCK_BYTES as u64);
            self.latency.add(done_ns - since_ns);
        }
    }

    /// Reads a block that is not in memory and was requested at `since_ns`.
    fn fetch(&mut self, since_ns: u64, now_ns: u64, block: u64) {
        let asks = match self.kind {
            Kind::WithoutFlash => return self.origin_reads.plan(now_ns, since_ns),
            Kind::Unaware => true,
            Kind::Aware => self.index.may_have(block),
        };
        let is_cached = self.flash.get(block).is_some();
        self.flash.put(block, 0);
        if asks && is_cached {
            self.flash_hits += 1;
            let half_ns = self.round_trip_ns / 2;
            let read_ns = self.stations.device(now_ns + half_ns, 0, IoKind::Read, BLOCK_BYTES as u64);
            return self.latency.add(read_ns + half_ns - since_ns);
        }
        self.wasted += u64::from(asks);
        if self.kind == Kind::Aware {
            let flash = &self.flash;
            self.index.insert(block, |key| flash.get(key).is_some());
        }
        // The remote table is in memory: a query takes the way there and back.
        self.origin_reads.plan(if asks { now_ns + self.round_trip_ns } else { now_ns }, since_ns);
    }

    fn point(&self, name: &str, memory: f64, model: &LatencyModel) -> Point {
        let share = |count: u64| count as f64 / self.reads.max(1) as f64;
        let mut point = Point::new(name, Some(memory));
        point.set(Quantity::MeanLatency, self.latency.us().map(|us| us / 1e6));
        point.set(Quantity::MemoryHits, share(self.memory_hits));
        point.set(Quantity::FlashHits, share(self.flash_hits));
        point.set(Quantity::WastedTrips, share(self.wasted));
        point.set(Quantity::ExpectedLatency, self.expected_s(model));
        if self.kind == Kind::Aware {
            point.set(Quantity::BitsAKey, self.index.bits_a_key(self.flash.len() as usize));
        }
        point
    }

    /// Equation 1: C1 h1 + C2 h2 + C3 (1 - h1 - h2), from mean times without queues, in seconds.
    fn expected_s(&self, model: &LatencyModel) -> f64 {
        let share = |count: u64| count as f64 / self.reads.max(1) as f64;
        let (h1, h2) = (share(self.memory_hits), share(self.flash_hits));
        let transfer_us = |bytes_per_second: f64| BLOCK_BYTES as f64 / bytes_per_second * 1e6;
        let (host, trip) = (model.host_us, model.network_round_trip_us);
        let station = |mean: f64, speed: f64| host + trip + mean + transfer_us(speed);
        let c2 = station(model.device.read.mean_us(), model.device.bytes_per_second);
        let c3 = station(model.origin.read.mean_us(), model.origin.bytes_per_second)
            + transfer_us(model.network_bytes_per_second);
        let asked = if self.kind == Kind::Unaware { trip } else { 0.0 };
        (host * h1 + c2 * h2 + (c3 + asked) * (1.0 - h1 - h2)) / 1e6
    }
}

#[cfg(test)]
mod tests {
    use haversack_sim::latency::StationModel;
    use haversack_sim::latency::distribution::Distribution;

    use super::*;

    const HOST_US: f64 = 1.0;
    const TRIP_US: f64 = 20.0;
    const FLASH_US: f64 = 10.0;
    const ORIGIN_US: f64 = 100.0;

    fn model() -> LatencyModel {
        let station = |us| StationModel {
            read: Distribution::Constant(us),
            write: Distribution::Constant(us),
            flush: Distribution::Constant(us),
            servers: 1,
            bytes_per_second: f64::INFINITY,
        };
        LatencyModel {
            device: station(FLASH_US),
            origin: station(ORIGIN_US),
            network_round_trip_us: TRIP_US,
            network_bytes_per_second: f64::INFINITY,
            host_us: HOST_US,
        }
    }

    /// One block of memory and two of flash. The second read hits memory, the last one flash.
    fn client(kind: Kind) -> Client {
        let recipe = "memory = [0.1]\nflash = 0.2\nfilter-blocks = 64\nfalse-positives = 0.001\n";
        let recipe: Clients = toml::from_str(recipe).unwrap();
        let mut client = Client::new(&recipe, kind, 1, 2, &model());
        for (second, block) in [(0, 7), (1, 7), (2, 8), (3, 7)] {
            client.read(second * 1_000_000_000, block);
        }
        client.pass(u64::MAX);
        client
    }

    #[test]
    fn latencies_of_each_client_are_those_of_its_trips() {
        let (from_origin, from_flash) = (HOST_US + TRIP_US + ORIGIN_US, HOST_US + TRIP_US + FLASH_US);
        let cases = [
            (Kind::WithoutFlash, 3.0 * from_origin + HOST_US, 0),
            (Kind::Unaware, 2.0 * (from_origin + TRIP_US) + HOST_US + from_flash, 2),
            (Kind::Aware, 2.0 * from_origin + HOST_US + from_flash, 0),
        ];
        for (kind, sum_us, wasted) in cases {
            let client = client(kind);
            assert_eq!((client.reads, client.memory_hits, client.wasted), (4, 1, wasted));
            assert_eq!(client.flash_hits, u64::from(kind != Kind::WithoutFlash));
            let mean_us = client.latency.us().unwrap();
            assert!((mean_us - sum_us / 4.0).abs() < 1e-6, "{mean_us} for {}", sum_us / 4.0);
            // Nothing queues, so equation 1 says the same.
            let expected_us = client.expected_s(&model()) * 1e6;
            assert!((expected_us - mean_us).abs() < 1e-6, "{expected_us} for {mean_us}");
        }
    }
}
