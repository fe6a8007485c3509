//! NBD clients that ask for much and take little: memory is bounded, and another disk of the pool is served in time.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection, header};
use haversack_e2e::error::check;
use haversack_e2e::haversack::Haversack;
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::verify::Bystander;
use haversack_e2e::{Error, MIB, Result, test};

use crate::nbd::attacked;
use crate::seconds;

const DISK_BYTES: u64 = 256 * MIB;
/// What `client_memory` is in these tests.
const BUDGET: u64 = 64 * MIB;
/// Sockets, allocator, and what the daemon needs anyway.
const BESIDES: u64 = 64 * MIB;

/// Sends until the daemon takes no more, for a moment.
fn send_all(socket: &mut UnixStream, mut bytes: &[u8]) -> Result<()> {
    socket.set_write_timeout(Some(Duration::from_millis(200))).map_err(Error::io("set a time-out"))?;
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => return Err(Error::io("the NBD connection")(error)),
        }
    }
    Ok(())
}

fn greedy_clients(daemon: &Haversack, requests: &[u8]) -> Result<Vec<Connection>> {
    let mut clients = Vec::new();
    for _ in 0..32 {
        let mut client = Connection::open(&daemon.socket("nbd.sock"), "hostile")?;
        send_all(client.socket(), requests)?;
        clients.push(client);
    }
    Ok(clients)
}

/// Waits until the daemon has noticed that clients are gone.
fn all_are_gone(daemon: &Haversack) -> Result<()> {
    tools::wait_until("the end of the clients", PATIENCE, || {
        Ok(daemon.json(&["disk", "show", "hostile"])?["clients"] == 0)
    })
}

fn requests(command: Command, count: u64, length: u64) -> Vec<u8> {
    let at = |n: u64| n * length % DISK_BYTES;
    (0..count).flat_map(|n| header(command, n, at(n), length as u32)).collect()
}

/// Reads of all lengths, 2 GiB in all, and not one reply is taken.
#[test]
fn replies_that_nobody_reads_hold_no_more_than_the_budget() {
    test("unread replies", |place| {
        let (daemon, _) = attacked(place, "")?;
        for length in [32 * MIB, MIB, 64 << 10, 4 << 10] {
            let name = format!("{} KiB", length >> 10);
            let before = daemon.process()?.memory_bytes()?;
            let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
            let greedy =
                greedy_clients(&daemon, &requests(Command::Read, 64 * MIB / length.max(32 << 10), length))?;
            std::thread::sleep(seconds() / 3);
            let grown = daemon.process()?.memory_bytes()?.saturating_sub(before);
            println!("replies of {name}: {} MiB", grown / MIB);
            check(grown < BUDGET + BESIDES, format!("{} MiB for replies of {name}", grown / MIB))?;
            bystander.end()?;
            drop(greedy);
            all_are_gone(&daemon)?;
        }
        Ok(())
    });
}

/// Replies that wait because the client does not read are intact when it does, although more were added meanwhile.
#[test]
fn replies_that_wait_are_intact() {
    test("replies that wait", |place| {
        const LENGTH: u64 = 16 << 10;
        const COUNT: u64 = 200;
        let (daemon, _) = attacked(place, "")?;
        let mut client = Connection::open(&daemon.socket("nbd.sock"), "hostile")?;
        let piece = |n: u64| vec![n as u8 + 1; LENGTH as usize];
        for n in 0..COUNT {
            client.ask(Command::Write, n * LENGTH, LENGTH as u32, &mut piece(n))?;
        }
        for round in 0..5 {
            let mut reader = Connection::open(&daemon.socket("nbd.sock"), "hostile")?;
            for asked in requests(Command::Read, COUNT, LENGTH).chunks(40 * 28) {
                reader.socket().write_all(asked).map_err(Error::io("the NBD connection"))?;
                // The socket is full and a send waits when the next ones are done.
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut seen = vec![false; COUNT as usize];
            let (mut head, mut data) = ([0; 16], vec![0; LENGTH as usize]);
            for _ in 0..COUNT {
                reader.socket().read_exact(&mut head).map_err(Error::io("a reply's head"))?;
                reader.socket().read_exact(&mut data).map_err(Error::io("a reply's data"))?;
                let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes"));
                check(
                    head[..8] == [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0],
                    format!("round {round}: {head:02x?}"),
                )?;
                check(cookie < COUNT && data == piece(cookie), format!("round {round}: data of {cookie}"))?;
                check(!std::mem::replace(&mut seen[cookie as usize], true), format!("{cookie} twice"))?;
            }
        }
        Ok(())
    });
}

/// Headers of the longest writes, with a byte of data each.
#[test]
fn headers_reserve_no_memory() {
    test("headers without data", |place| {
        let (daemon, _) = attacked(place, "")?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let before = daemon.process()?.memory_bytes()?;
        // The reply to the request before it shows that the daemon has received the header, too.
        let mut begun = [header(Command::Read, 1, 0, 512), header(Command::Write, 2, 0, 32 << 20)].concat();
        begun.push(7);
        let mut greedy = greedy_clients(&daemon, &begun)?;
        for client in &mut greedy {
            client.socket().read_exact(&mut [0; 16 + 512]).map_err(Error::io("a reply"))?;
        }
        let grown = daemon.process()?.memory_bytes()?.saturating_sub(before);
        println!("{} MiB", grown / MIB);
        check(grown < 16 * MIB, format!("{} MiB for headers", grown / MIB))?;
        // Another client of that disk gets its small requests through.
        let mut other = Connection::open(&daemon.socket("nbd.sock"), "hostile")?;
        other.ask(Command::Write, 0, 4096, &mut [9; 4096])?;
        drop(greedy);
        // The memory that these clients held is free again.
        other.ask(Command::Read, 0, 32 << 20, &mut vec![0; 32 << 20])?;
        bystander.end().map(|_| ())
    });
}

/// A request of each length is answered, however many greedy clients there are, with right bytes.
#[test]
fn long_requests_work_beside_greedy_clients() {
    test("long requests", |place| {
        let (daemon, _) = attacked(place, "")?;
        let _greedy = greedy_clients(&daemon, &requests(Command::Read, 64, MIB))?;
        let mut client = Connection::open(&daemon.socket("nbd.sock"), "quiet")?;
        for length in [512, 4096, 520 << 10, 1 << 20, (1 << 20) + 512, 32 << 20] {
            for offset in [0, 512, 4096 + 512] {
                let data: Vec<u8> = (0..length).map(|at| (at / 512 * 31 + at) as u8).collect();
                client.ask(Command::Write, offset, length as u32, &mut data.clone())?;
                let mut read = vec![0; length];
                client.ask(Command::Read, offset, length as u32, &mut read)?;
                check(read == data, format!("{length} bytes at {offset}: wrong bytes"))?;
            }
        }
        Ok(())
    });
}

/// How clients of the hostile disk keep the pool busy.
const LOADS: [(&str, Command, u64, u64); 4] = [
    ("32 MiB reads", Command::Read, 4, 32 * MIB),
    ("1 MiB reads", Command::Read, 32, MIB),
    ("4 KiB reads", Command::Read, 256, 4096),
    ("32 MiB writes", Command::Write, 2, 32 * MIB),
];
const HOSTILE_CLIENTS: usize = 8;

/// The most that all hostile clients together may read for each request of the quiet client; without turns it is 8 MiB
/// or more. Writes are only printed: the quiet client's own ones wait with them for room in the staging area.
const MOST_BESIDE: u64 = 4 * MIB;

/// Requests of 4 KiB at depth 1, alone and beside hostile clients. Their latency is printed; the amount that the
/// hostile clients read meanwhile is checked.
#[test]
fn a_quiet_disk_is_served_beside_hostile_ones() {
    test("fairness", |place| {
        let (daemon, _) = attacked(place, "")?;
        let socket = daemon.socket("nbd.sock");
        let moved = AtomicU64::new(0);
        let quiet = || -> Result<(Duration, u64)> {
            let before = moved.load(Ordering::Relaxed);
            let bystander = Bystander::begin(&socket, "quiet")?;
            std::thread::sleep(seconds() / 2);
            let beside = moved.load(Ordering::Relaxed) - before;
            let times = bystander.end()?;
            Ok((times.p99(), beside / times.count() as u64))
        };
        let (alone, _) = quiet()?;
        for (name, command, depth, length) in LOADS {
            let stop = AtomicBool::new(false);
            let (p99, beside) = std::thread::scope(|scope| {
                for _ in 0..HOSTILE_CLIENTS {
                    scope.spawn(|| load(&socket, command, depth, length, &stop, &moved));
                }
                std::thread::sleep(seconds() / 3);
                let mut measured = quiet();
                // A quiet client that waits for a busy machine's processor looks like one that waits for its turn, but
                // not every time.
                for _ in 0..2 {
                    if command == Command::Read
                        && matches!(measured, Ok((_, beside)) if beside >= MOST_BESIDE)
                    {
                        measured = quiet();
                    }
                }
                stop.store(true, Ordering::Relaxed);
                measured
            })?;
            let (ratio, beside_kib) = (p99.as_secs_f64() / alone.as_secs_f64(), beside >> 10);
            println!("{name}: p99 alone {alone:?}, beside {p99:?}, ratio {ratio:.1}");
            println!("{name}: {beside_kib} KiB for each request of the quiet client");
            let is_fair = command == Command::Write || beside < MOST_BESIDE;
            check(is_fair, format!("{name}: {beside_kib} KiB go ahead of a request"))?;
        }
        Ok(())
    });
}

/// Keeps `depth` requests in flight, and counts the bytes of data that it moves. It ends with its connection, or when
/// told.
fn load(
    socket: &Path,
    command: Command,
    depth: u64,
    length: u64,
    stop: &AtomicBool,
    moved: &AtomicU64,
) -> Result<()> {
    let mut connection = Connection::open(socket, "hostile")?;
    let socket = connection.socket();
    socket.set_read_timeout(Some(Duration::from_secs(1))).map_err(Error::io("set a time-out"))?;
    let mut sender = socket.try_clone().map_err(Error::io("a second handle"))?;
    let sending = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let payload = vec![1; if command == Command::Write { length as usize } else { 0 }];
            let mut next = 0;
            while !stop.load(Ordering::Relaxed) {
                let ask = [header(command, next, next * length % DISK_BYTES, length as u32), payload.clone()]
                    .concat();
                if sender.write_all(&ask).is_err() {
                    break;
                }
                moved.fetch_add(payload.len() as u64, Ordering::Relaxed);
                next += 1;
                if next > depth && command == Command::Read {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            sending.store(false, Ordering::Relaxed);
        });
        let (start, mut buffer) = (Instant::now(), vec![0; 1 << 20]);
        while !stop.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(600) {
            match socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => _ = moved.fetch_add(count as u64, Ordering::Relaxed),
                Err(_) => {}
            }
        }
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    Ok(())
}
