//! Two daemons, each in a network namespace of its own, with a link in between, and an origin that both reach.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::network::Network;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{MIB, Place, image};
use haversack_model::random::Random;

use super::{Failure, Size};
use crate::live::load::{BLOCK_BYTES, Kind, Load, Round, pass, run};
use crate::live::nbd_client::NbdClient;

/// The disk that moves.
pub const DISK: &str = "vm1";
const NAMES: [&str; 2] = ["alpha", "beta"];
/// The disk of each host that stays there.
const NEIGHBOUR: &str = "neighbour";
const NEIGHBOUR_MIB: u64 = 16;
/// What the link carries, in million bits a second.
pub const LINK_MBITS: u32 = 1000;
const STAGING_MIB: u64 = 64;
/// How long the origin takes for a request.
const ORIGIN_DELAYS: [&str; 2] = ["rdelay=2ms", "wdelay=2ms"];
/// Pieces of a neighbour's load, after each of which it looks whether to end.
const PIECE: Duration = Duration::from_millis(50);

/// See the module.
pub struct Scene<'a> {
    /// The hosts.
    pub daemons: [Haversack<'a>; 2],
    network: Network,
    _origins: Vec<Nbdkit>,
}

/// Converts MiB to blocks.
pub fn blocks(mebibytes: u64) -> u64 {
    mebibytes * MIB / BLOCK_BYTES as u64
}

impl<'a> Scene<'a> {
    /// Starts it. The disk is at the first host and has nothing cached.
    pub fn start(place: &'a Place, places: &'a [Place; 2], size: &Size) -> Result<Self, Failure> {
        let mut origins = Vec::new();
        let mut origin = |name: &str, mebibytes| -> Result<String, Failure> {
            let file = image::zeroes(place, &format!("{name}.img"), mebibytes)?.display().to_string();
            let words = [&["--filter=delay", "file", &file][..], &ORIGIN_DELAYS].concat();
            origins.push(Nbdkit::start(place, name, &words)?);
            Ok(origins[origins.len() - 1].uri())
        };
        let moving = origin("origin", size.cached_mib)?;
        let network = Network::new(place, NAMES.len(), LINK_MBITS)?;
        let hosts = Hosts::on(place, &NAMES, &network)?;
        let mut start = |host: usize| -> Result<Haversack<'a>, Failure> {
            let own = origin(&format!("own-{}", NAMES[host]), NEIGHBOUR_MIB)?;
            let disk = Disk::new(DISK, moving.clone());
            let disk = if host == 0 { disk.with("from = \"none\"") } else { disk };
            let neighbour = Disk::new(&format!("{NEIGHBOUR}-{}", NAMES[host]), own).with("from = \"none\"");
            let settings = Settings {
                more: hosts.tables(NAMES[host]),
                network: Some(network.namespace(host)),
                staging_mib: STAGING_MIB,
                ..Settings::new(size.cache_mib, vec![neighbour, disk])
            };
            Ok(Haversack::start(&places[host], settings)?)
        };
        let daemons = [start(0)?, start(1)?];
        // The daemon starts to send a disk by itself if the disk is attached at the other host as well. The benchmark
        // sends the disk only when it measures a move.
        wait_until("the beginning", PATIENCE, || Ok(state(&daemons[0], DISK)? == "sending"))?;
        daemons[0].command(&["migrate", "abort", DISK])?;
        Ok(Self { daemons, network, _origins: origins })
    }

    /// A client of the disk that moves, at a host.
    pub fn client(&self, host: usize) -> std::io::Result<NbdClient> {
        NbdClient::connect(&self.daemons[host].socket("nbd.sock"), DISK)
    }

    /// Writes blocks of the disk once.
    pub fn write(&self, host: usize, range: Range<u64>) -> std::io::Result<()> {
        pass(&mut self.client(host)?, Kind::Write, range)
    }

    /// Writes blocks of the disk once, and flushes, as QEMU does with an NBD disk when it stops a VM.
    pub fn write_and_flush(&self, host: usize, range: Range<u64>) -> std::io::Result<()> {
        let mut client = self.client(host)?;
        pass(&mut client, Kind::Write, range)?;
        client.flush()
    }

    /// Writes back what is dirty.
    pub fn flush(&self, host: usize) -> Result<(), Failure> {
        Ok(self.daemons[host].command(&["disk", "flush", DISK]).map(drop)?)
    }

    /// Makes a host send the disk to the other host. Returns when the VM should move.
    pub fn send_ahead(&self, from: usize) -> Result<(), Failure> {
        Ok(self.daemons[from].command(&["migrate", DISK, "--to", NAMES[1 - from]]).map(drop)?)
    }

    /// Waits until nothing of the disk is left at the source.
    pub fn wait_until_moved(&self, from: usize) -> Result<(), Failure> {
        Ok(wait_until_moved(&self.daemons[from], &self.daemons[1 - from], DISK)?)
    }

    /// Bytes that a host has sent to the other one, headers included.
    pub fn sent_bytes(&self, host: usize) -> Result<u64, Failure> {
        Ok(self.network.sent_bytes(host)?)
    }

    /// Bytes of the disk that are cached at a host.
    pub fn cached_bytes(&self, host: usize) -> Result<u64, Failure> {
        let shown = self.daemons[host].json(&["disk", "show", DISK])?;
        Ok(shown["usage"]["usage_bytes"].as_u64().unwrap_or(0))
    }

    /// Blocks that were read at a host: those that were cached, and those that were not.
    pub fn hits(&self, host: usize) -> Result<[u64; 2], Failure> {
        let shown = self.daemons[host].json(&["disk", "show", DISK])?;
        Ok(["read_hits", "read_misses"].map(|key| shown["requests"][key].as_u64().unwrap_or(0)))
    }

    /// Fills the cache with a host's own disk.
    pub fn fill_neighbour(&self, host: usize) -> std::io::Result<()> {
        pass(&mut self.neighbour_client(host)?, Kind::Write, 0..blocks(NEIGHBOUR_MIB))
    }

    fn neighbour_client(&self, host: usize) -> std::io::Result<NbdClient> {
        let disk = format!("{NEIGHBOUR}-{}", NAMES[host]);
        NbdClient::connect(&self.daemons[host].socket("nbd.sock"), &disk)
    }

    /// Reads a host's own disk, one request at a time, until told to end. All of it is cached.
    pub fn neighbour(
        &self,
        host: usize,
        burst: Option<(u64, Duration)>,
        ends: &AtomicBool,
    ) -> std::io::Result<Round> {
        let mut client = self.neighbour_client(host)?;
        let load = Load { burst, ..Load::random(Kind::Read, 1, blocks(NEIGHBOUR_MIB)) };
        run_until(&mut client, load, ends)
    }
}

/// Puts a client under load until told to end.
pub fn run_until(client: &mut NbdClient, load: Load, ends: &AtomicBool) -> std::io::Result<Round> {
    let (mut all, mut random) = (Round::default(), Random::new(1));
    while !ends.load(Ordering::Relaxed) {
        let piece = run(client, load, PIECE, &mut random)?;
        all.requests += piece.requests;
        all.busy += piece.busy;
        all.latencies_ns.extend(piece.latencies_ns);
    }
    all.latencies_ns.sort_unstable();
    Ok(all)
}
