//! Origins that die and stay dead: no write, hit or flush of a write-back disk may notice while the cache has room.

use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{MIB, Place, Result, image, test};

/// Requests to an absent origin fail after this long.
const ORIGIN_WAIT: &str = "origin_wait = \"2s\"";
/// Longer than that.
const LONG_AWAY: Duration = Duration::from_secs(4);
/// A request that takes longer than this hangs. On a busy disk, a flush can take half a minute.
const PROMPT: Duration = Duration::from_secs(90);
const BLOCK: usize = 4096;

/// A client that writes blocks full of a number and flushes, and knows what it wrote.
struct Client {
    connection: Connection,
    written: Vec<(u64, u8)>,
}

impl Client {
    fn new(daemon: &Haversack, disk: &str) -> Result<Self> {
        let connection = Connection::open(&daemon.socket("nbd.sock"), disk)?;
        Ok(Self { connection, written: Vec::new() })
    }

    fn timed(&mut self, command: Command, offset: u64, length: u32, data: &mut [u8]) -> Result<()> {
        let start = Instant::now();
        self.connection.ask(command, offset, length, data)?;
        let taken = start.elapsed();
        check(taken < PROMPT, format!("{command:?} of {length} bytes at {offset} took {taken:?}"))
    }

    fn write(&mut self, block: u64, value: u8) -> Result<()> {
        self.timed(Command::Write, block * BLOCK as u64, BLOCK as u32, &mut [value; BLOCK])?;
        self.written.push((block, value));
        Ok(())
    }

    fn change(&mut self, command: Command, block: u64, blocks: u32) -> Result<()> {
        self.timed(command, block * BLOCK as u64, blocks * BLOCK as u32, &mut [])
    }

    fn flush(&mut self) -> Result<()> {
        self.timed(Command::Flush, 0, 0, &mut [])
    }

    /// Reads what was written last to each block.
    fn verify(&mut self) -> Result<()> {
        for (place, (block, value)) in self.written.clone().into_iter().enumerate() {
            if self.written[place + 1..].iter().any(|(later, _)| *later == block) {
                continue;
            }
            let mut data = [0; BLOCK];
            self.timed(Command::Read, block * BLOCK as u64, BLOCK as u32, &mut data)?;
            check(data == [value; BLOCK], format!("block {block}: not the bytes written last"))?;
        }
        Ok(())
    }
}

fn write_back(origin: &Nbdkit) -> Settings {
    Settings::new(128, vec![Disk::new("vm1", origin.uri()).with(ORIGIN_WAIT)])
}

fn away(place: &Place, origin: Nbdkit) -> Result<()> {
    origin.kill()?;
    place.say("the origin is dead");
    std::thread::sleep(LONG_AWAY);
    Ok(())
}

#[test]
fn flushes_need_no_origin_right_after_attach() {
    test("a dead origin after attach", |place| {
        let file = image::zeroes(place, "vm1.img", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let daemon = Haversack::start(place, write_back(&origin))?;
        away(place, origin)?;
        let mut client = Client::new(&daemon, "vm1")?;
        for block in 0..100 {
            client.write(block, block as u8)?;
        }
        client.flush()?;
        client.verify()
    });
}

#[test]
fn flushes_need_no_origin_after_the_cleaner_has_tried() {
    test("a dead origin after the cleaner", |place| {
        let file = image::zeroes(place, "vm1.img", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let daemon = Haversack::start(place, write_back(&origin))?;
        let mut client = Client::new(&daemon, "vm1")?;
        for block in 0..2000 {
            client.write(block, block as u8)?;
        }
        client.flush()?;
        // The cleaner is at work, and its writes fail from now on.
        std::thread::sleep(Duration::from_secs(1));
        away(place, origin)?;
        for block in 0..100 {
            client.write(block * 7, 200)?;
            client.flush()?;
        }
        client.verify()
    });
}

#[test]
fn flushes_need_no_origin_after_trims_zeroes_and_sequential_runs() {
    test("a dead origin after requests past the cache", |place| {
        let file = image::zeroes(place, "vm1.img", 64)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let daemon = Haversack::start(place, write_back(&origin))?;
        let mut client = Client::new(&daemon, "vm1")?;
        past_the_cache(&mut client)?;
        away(place, origin)?;
        client.flush()?;
        past_the_cache(&mut client)?;
        client.flush()?;
        client.verify()
    });
}

/// Without FUA a write is durable only after the server's flush.
#[test]
fn flushes_need_no_origin_that_has_no_fua() {
    test("a dead origin without FUA", |place| {
        let file = image::zeroes(place, "vm1.img", 64)?;
        let text = file.display().to_string();
        let origin = Nbdkit::start(place, "origin", &["--filter=fua", "file", &text])?;
        let daemon = Haversack::start(place, write_back(&origin))?;
        let mut client = Client::new(&daemon, "vm1")?;
        past_the_cache(&mut client)?;
        away(place, origin)?;
        client.flush()?;
        past_the_cache(&mut client)?;
        client.flush()?;
        client.verify()
    });
}

/// Trims, zeroes, and a run of writes as long as a copy of a large file.
fn past_the_cache(client: &mut Client) -> Result<()> {
    client.change(Command::Trim, 8192, 256)?;
    client.change(Command::Zeroes, 9000, 256)?;
    let bytes = (256 << 10) as u64;
    for run in 0..4 * MIB / bytes {
        let offset = 40 * MIB + run * bytes;
        client.timed(Command::Write, offset, bytes as u32, &mut vec![77; bytes as usize])?;
    }
    client.written.push((40 * MIB / BLOCK as u64, 77));
    client.written.push((44 * MIB / BLOCK as u64 - 1, 77));
    client.written.push((9000, 0));
    Ok(())
}
