//! Pooled flash: a host with a small cache reads through the spare flash of another one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings, pool_of};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::network::Network;
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::{Place, Result, image, test};

const MIB: u64 = 96;
const BLOCK: u64 = 4096;
/// What the guest reads at a time.
const CHUNK: u64 = 8;
const BLOCKS: u64 = (MIB << 20) / BLOCK;
const CHUNKS: u64 = BLOCKS / CHUNK;
/// Reads that the guest has in flight.
const DEPTH: usize = 16;

/// A guest that knows what it has written: the value that fills each block.
struct Guest {
    connection: Connection,
    values: Vec<u8>,
    random: u64,
}

impl Guest {
    fn below(&mut self, n: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn write(&mut self, block: u64, value: u8) -> Result<()> {
        self.values[block as usize] = value;
        self.connection.fill(block..block + 1, value)
    }

    /// Reads chunks and checks every byte. Returns the longest wait for an answer.
    fn read(&mut self, chunks: &[u64]) -> Result<Duration> {
        let bytes = (CHUNK * BLOCK) as usize;
        let mut open: HashMap<u64, (u64, Instant)> = HashMap::new();
        let (mut next, mut longest) = (chunks.iter(), Duration::ZERO);
        loop {
            while open.len() < DEPTH
                && let Some(chunk) = next.next()
            {
                let offset = chunk * CHUNK * BLOCK;
                let cookie = self.connection.send(Command::Read, offset, bytes as u32, &[])?;
                open.insert(cookie, (*chunk, Instant::now()));
            }
            if open.is_empty() {
                return Ok(longest);
            }
            let (cookie, data) = self.connection.answer(|_| bytes)?;
            let (chunk, since) = open.remove(&cookie).expect("it was asked for");
            longest = longest.max(since.elapsed());
            for (at, found) in data.chunks(BLOCK as usize).enumerate() {
                let block = chunk * CHUNK + at as u64;
                let value = self.values[block as usize];
                let wrong = found.iter().find(|byte| **byte != value);
                check(wrong.is_none(), format!("block {block}: {wrong:?}, not {value}"))?;
            }
        }
    }

    /// Reads the whole disk in an order that is not sequential.
    fn read_all(&mut self) -> Result<Duration> {
        let chunks: Vec<u64> = (0..CHUNKS).map(|at| at * 1021 % CHUNKS).collect();
        self.read(&chunks)
    }

    /// Writes and reads at random.
    fn mix(&mut self, rounds: u64) -> Result<()> {
        for round in 0..rounds {
            for _ in 0..4 {
                let (block, value) = (self.below(BLOCKS), (round % 250) as u8 + 1);
                self.write(block, value)?;
            }
            let chunks: Vec<u64> = (0..24).map(|_| self.below(CHUNKS)).collect();
            self.read(&chunks)?;
        }
        Ok(())
    }
}

/// Returns a figure of a daemon.
fn metric(daemon: &Haversack<'_>, name: &str) -> Result<f64> {
    let mut curl = tools::tool("curl")?;
    curl.args(["--silent", "--fail", "--unix-socket"]).arg(daemon.socket("control.sock"));
    curl.arg("http://daemon/metrics");
    let text = tools::run(curl)?;
    let samples = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    Ok(samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}

fn hits(daemon: &Haversack<'_>) -> Result<f64> {
    metric(daemon, "haversack_borrowed_hit_blocks_total")
}

struct Scene<'a> {
    borrower: Haversack<'a>,
    lender: Haversack<'a>,
    guest: Guest,
    _origin: Nbdkit,
}

/// Starts a host with a small cache whose disk is behind an origin that reads for 30 ms, and a host with a large cache,
/// and fills the disk.
fn start<'a>(place: &Place, places: &'a [Place; 2], lends: &str) -> Result<Scene<'a>> {
    let hosts = Hosts::new(place, &["alpha", "beta"])?;
    start_on(place, places, &hosts, None, lends, 30)
}

fn start_on<'a>(
    place: &Place,
    places: &'a [Place; 2],
    hosts: &Hosts,
    network: Option<&Network>,
    lends: &str,
    origin_ms: u64,
) -> Result<Scene<'a>> {
    let file = image::zeroes(place, "vm1.img", MIB)?;
    let file = file.to_str().expect("a path of the test is UTF-8");
    let delay = format!("rdelay={origin_ms}ms");
    let origin = Nbdkit::start(place, "origin", &["--filter=delay", "file", file, &delay])?;
    let disk = Disk::new("vm1", origin.uri()).with("from = \"none\"");
    let borrow = "\n[borrow]\nfrom = [\"beta\"]\n";
    let mut settings = [Settings::new(64, vec![disk]), Settings::new(384, Vec::new())];
    settings[0].more = hosts.tables("alpha") + borrow;
    settings[1].more =
        hosts.tables("beta") + &format!("\n[lend]\npool = \"{}\"\n{lends}\n", pool_of(&places[1]));
    for (host, settings) in settings.iter_mut().enumerate() {
        settings.network = network.map(|network| network.namespace(host));
    }
    let [borrower, lender] = Haversack::start_both(places, settings)?;
    let connection = Connection::open(&borrower.socket("nbd.sock"), "vm1")?;
    let mut guest = Guest { connection, values: vec![0; BLOCKS as usize], random: 1 };
    for block in (0..BLOCKS).step_by(3) {
        guest.write(block, (block % 251) as u8)?;
    }
    guest.connection.ask(Command::Flush, 0, 0, &mut [])?;
    borrower.command(&["disk", "flush", "vm1"])?;
    Ok(Scene { borrower, lender, guest, _origin: origin })
}

/// Reads the disk until much of what is not in the small cache is served by the lender.
fn warm(scene: &mut Scene<'_>) -> Result<()> {
    wait_until("blocks from the lender", PATIENCE, || {
        let before = hits(&scene.borrower)?;
        scene.guest.read_all()?;
        Ok(hits(&scene.borrower)? - before > BLOCKS as f64 / 6.0)
    })
}

#[test]
fn a_small_cache_reads_through_the_flash_of_another_host() {
    test("a loan", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut scene = start(place, &places, "capacity = \"300MiB\"")?;
        warm(&mut scene)?;

        let lent = metric(&scene.lender, "haversack_lent_bytes")?;
        check(lent > (MIB << 17) as f64, format!("{lent} bytes are lent"))?;

        place.say("writes in between");
        scene.guest.mix(150)?;
        scene.borrower.command(&["disk", "flush", "vm1"])?;
        scene.guest.read_all()?;

        place.say("the flash of the lender rots");
        let device = scene.lender.settings().device_files(&places[1]).remove(0);
        let length = std::fs::metadata(&device).map_or(0, |found| found.len());
        for offset in (32 << 20..length - BLOCK).step_by(3 * BLOCK as usize) {
            image::put(&device, offset + 100, &[0xee])?;
        }
        let before = metric(&scene.borrower, "haversack_borrowed_missing_blocks_total")?;
        scene.guest.read_all()?;
        let missing = metric(&scene.borrower, "haversack_borrowed_missing_blocks_total")? - before;
        check(missing > 0.0, "no damaged block was asked for")?;
        scene.guest.read_all()?;

        place.say("the lender hangs");
        scene.lender.process()?.pause()?;
        let longest = scene.guest.read_all()?;
        check(longest < Duration::from_secs(2), format!("a read took {longest:?}"))?;
        scene.guest.mix(20)?;
        scene.lender.process()?.resume()?;

        place.say("the lender is killed under load, and comes back");
        scene.guest.mix(20)?;
        scene.lender.kill()?;
        scene.guest.mix(20)?;
        scene.lender.start_again()?;
        scene.guest.mix(20)?;
        warm(&mut scene)?;

        place.say("the borrower is killed");
        scene.borrower.kill()?;
        scene.borrower.start_again()?;
        scene.guest.connection = Connection::open(&scene.borrower.socket("nbd.sock"), "vm1")?;
        scene.guest.read_all()?;
        scene.guest.mix(50)?;
        scene.guest.read_all()?;
        Ok(())
    });
}

#[test]
fn lent_space_is_given_back_when_the_lender_needs_it() {
    test("a loan that is given back", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut scene = start(place, &places, "capacity = \"300MiB\"")?;
        warm(&mut scene)?;
        let lent = metric(&scene.lender, "haversack_lent_bytes")?;

        place.say("a disk of the lender needs its flash");
        let file = image::zeroes(place, "vm2.img", 512)?;
        let own = Nbdkit::file(place, "own", &file)?;
        scene.lender.command(&["disk", "attach", "vm2", &own.uri(), "--from", "none"])?;
        let mut guest = Connection::open(&scene.lender.socket("nbd.sock"), "vm2")?;
        let begin = Instant::now();
        let mut data = vec![7; 64 << 10];
        let mut offsets = (0..512 << 20).step_by(data.len());
        wait_until("the loans to be given back", PATIENCE, || {
            for offset in offsets.by_ref().take(64) {
                guest.ask(Command::Write, offset, data.len() as u32, &mut data)?;
            }
            Ok(metric(&scene.lender, "haversack_lent_bytes")? == 0.0)
        })?;
        let took = begin.elapsed();
        println!("{} MiB given back within {took:?} of the first write", lent as u64 >> 20);
        check(metric(&scene.lender, "haversack_lent_given_back_total")? > 0.0, "nothing was given back")?;
        scene.guest.read_all()?;
        Ok(())
    });
}

#[test]
fn a_lent_block_comes_sooner_than_the_origins_over_shaped_links() {
    test("a loan over shaped links", |place| {
        for (mbits, origin_ms) in [(10_000, 30), (1_000, 30)] {
            let place = place.host(&format!("{mbits}"))?;
            let places = [place.host("a")?, place.host("b")?];
            let network = Network::new(&place, 2, mbits)?;
            let hosts = Hosts::on(&place, &["alpha", "beta"], &network)?;
            let lends = "capacity = \"300MiB\"";
            let mut scene = start_on(&place, &places, &hosts, Some(&network), lends, origin_ms)?;
            warm(&mut scene)?;
            // One read at a time.
            let chunks: Vec<u64> = (0..1000).map(|at| at * 1021 % CHUNKS).collect();
            chunks.chunks(1).try_for_each(|chunk| scene.guest.read(chunk).map(drop))?;
            let figure = |name: &str| metric(&scene.borrower, &format!("haversack_borrowed_{name}"));
            let (lender_us, origin_us) = (figure("lender_seconds")? * 1e6, figure("origin_seconds")? * 1e6);
            let (asked, missing) = (figure("asked_blocks_total")?, figure("missing_blocks_total")?);
            println!(
                "{mbits} Mbit/s, origin {origin_ms} ms: a lender answers in {lender_us:.0} us, the origin in {origin_us:.0} us; \
                 {missing} of {asked} blocks were not there"
            );
            check(lender_us > 0.0 && lender_us < origin_us, format!("{lender_us}, {origin_us}"))?;
            check(missing < asked / 50.0, format!("{missing} of {asked} were not there"))?;
        }
        Ok(())
    });
}
