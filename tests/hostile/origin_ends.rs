//! Servers of origins that are stopped with SIGTERM and started again, under load. A server that is stopping may answer
//! requests with errors before it disconnects, and no client of the cache may see such an error.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::process::Process;
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::verify::Verifier;
use haversack_e2e::{Place, Result, image, test};
use haversack_model::random::Random;

use crate::{rounds, seed};

/// Clients of a disk, each with blocks of its own: the cache has no room for all of them.
const CLIENTS: usize = 4;
const BLOCKS: usize = 512;
/// A run of this many blocks is sequential, and goes past the cache.
const RUN_BLOCKS: usize = 24;

/// A server of an origin that is up.
enum Server {
    Nbdkit(Nbdkit),
    StorageDaemon(StorageDaemon),
    QemuNbd(Process),
}

/// How an origin is served.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Nbdkit,
    /// Requests take time, and are abandoned when the server ends.
    SlowNbdkit,
    /// A write is made durable by a flush.
    NbdkitWithoutFua,
    StorageDaemon,
    QemuNbd,
}

const KINDS: [Kind; 5] =
    [Kind::Nbdkit, Kind::SlowNbdkit, Kind::NbdkitWithoutFua, Kind::StorageDaemon, Kind::QemuNbd];

impl Kind {
    fn start(self, place: &Place, name: &str, file: &Path) -> Result<Server> {
        let text = file.display().to_string();
        let slow = ["--filter=delay", "file", &text, "rdelay=3ms", "wdelay=10ms"];
        let without_fua = ["--filter=delay", "--filter=fua", "file", &text, "wdelay=2ms"];
        Ok(match self {
            Kind::Nbdkit => Server::Nbdkit(Nbdkit::start(place, name, &["file", &text])?),
            Kind::SlowNbdkit => Server::Nbdkit(Nbdkit::start(place, name, &slow)?),
            Kind::NbdkitWithoutFua => Server::Nbdkit(Nbdkit::start(place, name, &without_fua)?),
            Kind::StorageDaemon => Server::StorageDaemon(StorageDaemon::file(place, name, file)?),
            Kind::QemuNbd => Server::QemuNbd(qemu_nbd(place, name, file)?),
        })
    }

    fn uri(self, place: &Place, name: &str) -> String {
        match self {
            Kind::StorageDaemon => format!("nbd+unix:///{name}?socket={}", nbd_socket(place, name).display()),
            _ => format!("nbd+unix:///?socket={}", place.path(format!("{name}.sock")).display()),
        }
    }
}

fn nbd_socket(place: &Place, name: &str) -> PathBuf {
    place.path(format!("{name}-nbd.sock"))
}

fn qemu_nbd(place: &Place, name: &str, file: &Path) -> Result<Process> {
    let (socket, ready) = (place.path(format!("{name}.sock")), place.path(format!("{name}.pid")));
    for leftover in [&socket, &ready] {
        let _ = std::fs::remove_file(leftover);
    }
    let mut command = tools::tool("qemu-nbd")?;
    command.args(["--persistent", "--shared=8", "--format=raw", "--discard=unmap", "--socket"]).arg(&socket);
    command.arg("--pid-file").arg(&ready).arg(file);
    let mut process = Process::start(place, name, &command)?;
    process.wait_for_file(&ready)?;
    Ok(process)
}

impl Server {
    fn stop(self) -> Result<()> {
        match self {
            Server::Nbdkit(server) => server.stop(),
            Server::StorageDaemon(server) => server.stop(),
            Server::QemuNbd(server) => server.terminate(PATIENCE).map(|_| ()),
        }
    }
}

/// Random requests, sequential runs among them, until told to end.
fn load(client: &mut Verifier, ends: &AtomicBool, requests: &AtomicU64) -> Result<()> {
    while !ends.load(Ordering::Relaxed) {
        for _ in 0..100 {
            client.step()?;
            requests.fetch_add(1, Ordering::Relaxed);
            if ends.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        client.write_in_order(RUN_BLOCKS)?;
    }
    Ok(())
}

#[test]
fn a_server_that_is_ended_and_started_again_fails_no_request() {
    test("origins' servers that end", |place| {
        let mut random = Random::new(seed("origins' servers that end"));
        let mut below = |most: u64| random.below(most);
        let name = |at: usize| format!("vm{at}");
        let mut files = Vec::new();
        let (mut servers, mut disks) = (Vec::new(), Vec::new());
        for (at, kind) in KINDS.into_iter().enumerate() {
            let file = image::zeroes(place, &format!("vm{at}.img"), 64)?;
            servers.push(Some(kind.start(place, &name(at), &file)?));
            let disk = Disk::new(&name(at), kind.uri(place, &name(at)));
            disks.push(
                disk.with("sequential_cutoff = \"64KiB\"")
                    .with("cleaner = { low_watermark = 0.02, high_watermark = 0.05, dirty_limit = 0.1 }"),
            );
            files.push(file);
        }
        let daemon = Haversack::start(place, Settings::new(32, disks))?;
        let socket = daemon.socket("nbd.sock");
        let mut clients: Vec<Verifier> = (0..KINDS.len() * CLIENTS)
            .map(|at| {
                let client = Verifier::new(&socket, &name(at / CLIENTS), BLOCKS, below(1 << 30));
                client.from_block(at % CLIENTS * BLOCKS)
            })
            .collect();
        let (ends, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let loads: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(|| {
                        let result = load(client, &ends, &requests);
                        // A client that fails ends all of them.
                        ends.store(ends.load(Ordering::Relaxed) || result.is_err(), Ordering::Relaxed);
                        result
                    })
                })
                .collect();
            let ended = rounds(|_| {
                check(!ends.load(Ordering::Relaxed), "a client has failed")?;
                std::thread::sleep(Duration::from_millis(below(400)));
                let at = below(KINDS.len() as u64) as usize;
                servers[at].take().map_or(Ok(()), Server::stop)?;
                std::thread::sleep(Duration::from_millis(below(300)));
                servers[at] = Some(KINDS[at].start(place, &name(at), &files[at])?);
                Ok(())
            });
            ends.store(true, Ordering::Relaxed);
            let loads: Vec<Result<()>> =
                loads.into_iter().map(|load| load.join().expect("no panic")).collect();
            loads.into_iter().chain([ended]).collect::<Result<()>>()
        })?;
        let told = daemon.log().matches("the server is shutting down").count();
        let requests = requests.load(Ordering::Relaxed);
        place.say(&format!("{requests} requests, {told} connections of servers that said that they end"));
        std::thread::scope(|scope| {
            let checks: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.verify_all())).collect();
            checks.into_iter().try_for_each(|check| check.join().expect("no panic"))
        })
    });
}
