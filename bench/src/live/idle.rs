//! What a server with 100 disks and nothing to do uses: processor time and memory.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::guest::{Guest, Waiting};
use super::load::BLOCK_BYTES;
use super::nbd_client::NbdClient;
use super::place::Place;
use super::process::Process;
use super::serve::{Caching, Service};
use super::{CACHE_BYTES, Options, SETTLING};
use crate::output::say;
use crate::spread::Spread;
use crate::table::{self, row};

const DISKS: u16 = 100;
const DISK_BLOCKS: u64 = 4096;
/// Intervals that are looked at.
const INTERVALS: usize = 7;
/// Their length, in rounds.
const ROUNDS_OF_INTERVAL: u32 = 2;

struct Idle {
    what: &'static str,
    core_percent: Spread,
    resident_bytes: u64,
    /// Resident, and what of the staging area is allocated but not mapped yet.
    claimed_bytes: u64,
    threads: usize,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let place = Place::new(&std::env::temp_dir())?;
    let service = Service {
        cache: place.path("cache"),
        directory: place.path(""),
        image: place.image("image", DISK_BLOCKS)?,
        disk_bytes: DISK_BLOCKS * BLOCK_BYTES as u64,
        disks: DISKS,
        cache_bytes: CACHE_BYTES,
        poll_us: options.poll_us,
        caching: Caching::WriteBack,
        arenas: 1,
    };
    let (name, staging, mut server) = match &options.haversackd {
        Some(program) => ("haversackd", daemon_staging(), daemon(program, &service)?),
        None => ("the engine", service.staging(), service.start()?),
    };
    let connect = || NbdClient::connect(&service.nbd_socket(), "disk");
    drop(server.patiently(connect)?);
    std::thread::sleep(SETTLING);
    let mut states = vec![measure(options, "sockets open, no client", &server, &staging)?];
    let mut guests = Vec::new();
    let mut clients = Vec::new();
    for disk in 0..DISKS {
        let socket = service.vhost_user_socket(disk);
        guests.push(server.patiently(|| Guest::boot(&socket, Waiting::Interrupt, true))?);
        let export = if disk == 0 { "disk".to_string() } else { format!("disk{disk}") };
        clients.push(server.patiently(|| NbdClient::connect(&service.nbd_socket(), &export))?);
    }
    std::thread::sleep(SETTLING);
    states.push(measure(options, "a guest and an NBD client on each", &server, &staging)?);
    print(options, name, &states);
    drop(server);
    let _ = std::fs::remove_file(staging);
    Ok(())
}

/// The name of the daemon's pool, chosen so that no other pool uses its staging area.
fn pool_name() -> String {
    format!("bench-{}", std::process::id())
}

fn daemon_staging() -> PathBuf {
    PathBuf::from(format!("/dev/shm/haversack-{}", pool_name()))
}

/// A daemon with the same disks, configured as a user would.
fn daemon(program: &Path, service: &Service) -> Result<Process, Box<dyn Error>> {
    let directory = service.directory.display();
    let cache = service.directory.join("cache");
    haversack_engine::pool::create(
        std::slice::from_ref(&cache),
        haversack_engine::pool::Formatting { size_bytes: Some(service.cache_bytes), overwrite: true },
        haversack_engine::pool::Shape::default(),
    )?;
    let mut text = format!(
        "[daemon]\nruntime_dir = \"{directory}/run\"\nstate_dir = \"{directory}/state\"\nlog = \"error\"\n\n[[pool]]\nname = \"{}\"\n\
         devices = [\"{}\"]\n\n[nbd]\nlisten = [\"unix:{}\"]\n",
        pool_name(),
        cache.display(),
        service.nbd_socket().display()
    );
    for disk in 0..service.disks {
        let name = if disk == 0 { "disk".to_string() } else { format!("disk{disk}") };
        let socket = service.vhost_user_socket(disk);
        write!(
            text,
            "\n[[disk]]\nname = \"{name}\"\npool = \"{}\"\norigin = \"{}\"\nvhost_user = \"{}\"\n",
            pool_name(),
            service.image.display(),
            socket.display()
        )?;
    }
    let config = service.directory.join("haversackd.toml");
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.arg("--config").arg(config);
    Ok(Process::start(command, "none: it is built from this repository")?)
}

fn measure(options: &Options, what: &'static str, server: &Process, staging: &Path) -> std::io::Result<Idle> {
    let interval = options.round * ROUNDS_OF_INTERVAL;
    let mut percents = Vec::new();
    for _ in 0..INTERVALS {
        let before = server.processor_time()?;
        std::thread::sleep(interval);
        let used: Duration = server.processor_time()?.saturating_sub(before);
        percents.push(used.as_secs_f64() / interval.as_secs_f64() * 100.0);
    }
    let memory = server.memory()?;
    let staging_bytes = std::fs::metadata(staging).map_or(0, |about| about.len());
    Ok(Idle {
        what,
        core_percent: Spread::of(percents),
        resident_bytes: memory.resident,
        claimed_bytes: memory.resident + staging_bytes.saturating_sub(memory.shared),
        threads: server.threads()?,
    })
}

fn print(options: &Options, name: &str, states: &[Idle]) {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut rows =
        vec![row(["", "% of a core", "goal", "resident MiB", "with all of staging MiB", "goal", "threads"])];
    for idle in states {
        let Spread { median, least, most } = idle.core_percent;
        if options.json {
            say!(
                "{{\"benchmark\":\"idle\",\"server\":\"{name}\",\"disks\":{DISKS},\"state\":\"{}\",\"core_percent\":{median:.4},\
                 \"resident_bytes\":{},\"claimed_bytes\":{},\"threads\":{}}}",
                idle.what,
                idle.resident_bytes,
                idle.claimed_bytes,
                idle.threads
            );
        }
        let percent = format!("{median:.3} ({least:.3} to {most:.3})");
        let (resident, claimed) = (mib(idle.resident_bytes), mib(idle.claimed_bytes));
        let threads = idle.threads.to_string();
        rows.push(row([idle.what, &percent, "0.5", &resident, &claimed, "200", &threads]));
    }
    if !options.json {
        table::print(&format!("idle: {name} with {DISKS} disks"), &rows);
    }
}
