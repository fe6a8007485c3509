//! NBD clients that are many, slow or greedy: others of the daemon's disks notice nothing, and get right bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::verify::Bystander;
use haversack_e2e::{Error, Place, Result, image, test, tools};

/// The time for a negotiation, here.
pub const NEGOTIATION: Duration = Duration::from_secs(2);
/// What a busy machine may add to a deadline.
pub const SLACK: Duration = Duration::from_secs(10);

/// A daemon with the disks `quiet` and `hostile`, on `nbd.sock` and a TCP port, and more lines of `[nbd]`.
pub fn attacked<'a>(place: &'a Place, nbd: &str) -> Result<(Haversack<'a>, u16)> {
    let disk = |name: &str| -> Result<Disk> {
        let file = image::zeroes(place, &format!("{name}.img"), 256)?;
        Ok(Disk::new(name, file.display().to_string()))
    };
    let mut settings = Settings::new(256, vec![disk("quiet")?, disk("hostile")?]);
    let port = tools::free_port()?;
    settings.pool = "client_memory = \"64MiB\"\n".to_owned();
    let socket = place.path("run").join("nbd.sock");
    settings.nbd = format!(
        "listen = [\"unix:{}\", \"tcp:127.0.0.1:{port}\"]\nnegotiation_time = \"{}s\"\n{nbd}",
        socket.display(),
        NEGOTIATION.as_secs(),
    );
    Ok((Haversack::start(place, settings)?, port))
}

pub fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).map_err(Error::io("connect"))?;
    stream.set_read_timeout(Some(NEGOTIATION + SLACK)).map_err(Error::io("set a time-out"))?;
    Ok(stream)
}

/// Whether the server has greeted; one that turns a client away closes instead.
fn is_greeted(stream: &mut impl Read) -> bool {
    stream.read_exact(&mut [0; 18]).is_ok()
}

/// Whether the server closes the connection in time, whatever it sends until then.
pub fn is_closed_by(stream: &mut impl Read, deadline: Instant) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            Ok(_) if Instant::now() > deadline => return false,
            Ok(_) => {}
        }
    }
}

/// Threads of the daemon.
pub fn threads(daemon: &Haversack) -> Result<usize> {
    count(&format!("/proc/{}/task", daemon.process()?.id()))
}

fn count(directory: &str) -> Result<usize> {
    Ok(std::fs::read_dir(directory).map_err(Error::io(directory.to_owned()))?.count())
}

#[test]
fn silent_negotiations_end_and_block_no_other_listener_or_peer() {
    test("silent negotiations", |place| {
        let (daemon, port) = attacked(place, "max_negotiations = 16\n")?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let start = Instant::now();
        let mut silent: Vec<TcpStream> = (0..100).map(|_| connect(port)).collect::<Result<_>>()?;
        let mut greeted: Vec<&mut TcpStream> =
            silent.iter_mut().filter_map(|stream| is_greeted(stream).then_some(stream)).collect();
        // On a slow machine, the first ones may have ended before the last ones came.
        let most = 4 * (1 + start.elapsed().as_secs() / NEGOTIATION.as_secs()) as usize;
        check(
            (4..=most).contains(&greeted.len()),
            format!("{} of one peer negotiate: expected 4 to {most}", greeted.len()),
        )?;
        check(threads(&daemon)? < 64, format!("{} threads", threads(&daemon)?))?;
        let mut another = Connection::open(&daemon.socket("nbd.sock"), "hostile")?;
        another.ask(Command::Write, 0, 512, &mut [1; 512])?;
        for stream in &mut greeted {
            let closed = is_closed_by(*stream, start + NEGOTIATION + SLACK);
            check(closed, "a silent negotiation goes on".to_owned())?;
        }
        // A connection is closed a moment before its place is free.
        tools::wait_until("a negotiation after the others have ended", SLACK, || {
            Ok(is_greeted(&mut connect(port)?))
        })?;
        bystander.end().map(|_| ())
    });
}

/// An endless series of options, each sent in time, whose replies nobody reads.
#[test]
fn a_negotiation_that_never_ends_has_one_deadline() {
    test("an endless negotiation", |place| {
        let (daemon, port) = attacked(place, "")?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        for pause in [Duration::ZERO, Duration::from_millis(50)] {
            let mut stream = connect(port)?;
            stream.set_write_timeout(Some(NEGOTIATION + SLACK)).map_err(Error::io("set a time-out"))?;
            let start = Instant::now();
            let mut list = 3u32.to_be_bytes().to_vec();
            while stream.write_all(&list).is_ok() && start.elapsed() < NEGOTIATION + SLACK {
                list = [&b"IHAVEOPT"[..], &3u32.to_be_bytes(), &0u32.to_be_bytes()].concat();
                std::thread::sleep(pause);
            }
            let taken = start.elapsed();
            check(taken < NEGOTIATION + SLACK, format!("a negotiation goes on after {taken:?}"))?;
        }
        bystander.end().map(|_| ())
    });
}

#[test]
fn connections_of_a_listener_and_a_peer_are_limited_all_their_life() {
    test("many connections", |place| {
        let (daemon, _) = attacked(place, "max_connections = 40\nmax_connections_per_peer = 20\n")?;
        let socket = daemon.socket("nbd.sock");
        let bystander = Bystander::begin(&socket, "quiet")?;
        let mut taken = fill(&socket)?;
        check(taken.len() == 19, format!("{} connections beside one: expected 19", taken.len()))?;
        // Another process is another peer.
        daemon_is_reached(&daemon, "quiet")?;
        taken.truncate(10);
        tools::wait_until("places of connections that ended", SLACK, || {
            Ok(Connection::open(&socket, "hostile").is_ok())
        })?;
        bystander.end().map(|_| ())
    });
}

/// Connects to the hostile disk until the server refuses.
fn fill(socket: &Path) -> Result<Vec<Connection>> {
    let mut connections = Vec::new();
    while let Ok(mut connection) = Connection::open(socket, "hostile") {
        if connection.ask(Command::Read, 0, 512, &mut [0; 512]).is_err() {
            break;
        }
        connections.push(connection);
        check(connections.len() < 200, "connections have no limit".to_owned())?;
    }
    Ok(connections)
}

fn daemon_is_reached(daemon: &Haversack, disk: &str) -> Result<()> {
    let told = haversack_e2e::clients::nbdinfo(&daemon.uri(disk))?;
    check(told["exports"][0]["export-size"] == 256 << 20, format!("nbdinfo says {told}"))
}

/// More connections than descriptors: existing connections continue, and the others are closed instead of waiting.
#[test]
fn descriptors_that_run_out_stop_no_client() {
    test("no descriptors", |place| {
        let (daemon, port) = attacked(
            place,
            "max_connections = 5000\nmax_connections_per_peer = 5000\nmax_negotiations = 5000\n",
        )?;
        let bystander = Bystander::begin(&daemon.socket("nbd.sock"), "quiet")?;
        let open = count(&format!("/proc/{}/fd", daemon.process()?.id()))?;
        daemon.process()?.limit_descriptors(open as u64 + 50)?;
        let start = Instant::now();
        let mut flood: Vec<TcpStream> = (0..300).map(|_| connect(port)).collect::<Result<_>>()?;
        let greeted = flood.iter_mut().filter_map(|stream| is_greeted(stream).then_some(())).count();
        // Some of those that were open before may have been closed since.
        check((1..150).contains(&greeted), format!("{greeted} negotiate with 50 descriptors"))?;
        check(start.elapsed() < NEGOTIATION + SLACK, "connections wait for descriptors".to_owned())?;
        drop(flood);
        tools::wait_until("descriptors again", SLACK, || {
            Ok(Connection::open(&daemon.socket("nbd.sock"), "hostile").is_ok())
        })?;
        bystander.end().map(|_| ())
    });
}

/// Hundreds of connections that fail: the log names only the first ones.
#[test]
fn a_flood_of_connections_does_not_fill_the_log() {
    test("a flood of connections", |place| {
        let (daemon, port) = attacked(place, "")?;
        let lines = || daemon.log().lines().count();
        let before = lines();
        for _ in 0..300 {
            // One client sends nothing that the daemon understands, one disconnects immediately, one is served, and one
            // is served and breaks the protocol.
            let mut stranger = connect(port)?;
            stranger.write_all(&[0xff; 64]).map_err(Error::io("write"))?;
            is_closed_by(&mut stranger, Instant::now() + SLACK);
            drop(connect(port)?);
            drop(Connection::open(&daemon.socket("nbd.sock"), "hostile")?);
            let mut liar = Connection::open(&daemon.socket("nbd.sock"), "hostile")?;
            liar.socket().write_all(&[0xff; 64]).map_err(Error::io("write"))?;
            is_closed_by(liar.socket(), Instant::now() + SLACK);
        }
        let mut served = Connection::open(&daemon.socket("nbd.sock"), "quiet")?;
        served.ask(Command::Read, 0, 4096, &mut [0; 4096])?;
        let told = lines() - before;
        place.say(&format!("1200 connections, {told} lines"));
        check(told > 10, "the log tells nothing")?;
        // Twenty a minute of each listener; a busy machine may take some minutes.
        check(told < 300, format!("{told} lines for 1200 connections"))
    });
}
