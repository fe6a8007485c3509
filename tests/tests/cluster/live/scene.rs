//! The hosts, their guests, and what must hold in the end.

use std::path::PathBuf;
use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::manager::{Manager, Site, Way};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::network::Network;
use haversack_e2e::scenario;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image};
use serde_json::Value;

const NAMES: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];
/// Members of etcd, on the first hosts.
const MEMBERS: usize = 3;
/// What each host sends at most, in million bits a second.
const MBITS: u32 = 1000;
const CACHE_MIB: u64 = 32;
/// The VMs, which are on one host in the beginning. Its cache is too small for their disks.
const VMS: [(&str, Way); 4] =
    [("vm1", Way::VhostUser), ("vm2", Way::Nbd), ("vm3", Way::VhostUser), ("vm4", Way::Nbd)];
/// The host that has all VMs in the beginning.
pub const FIRST: usize = 1;
const DISK_MIB: u64 = 12;
/// How long the origins take.
const DELAY: &str = "delay-read=4ms";
/// Requests a second of each VM while the load is balanced, and while hosts are drained.
const RATES: [u32; 2] = [250, 60];
/// The load of a host with too much demand, and the most that one has afterwards.
const TOO_MUCH: f64 = 1.0;
/// The part of the demand that must be there again after moves. What is measured in a few seconds varies.
const MEASURED: f64 = 0.75;

/// See the module.
pub struct Scene<'a> {
    place: &'a Place,
    pub etcd: Vec<Etcd<'a>>,
    pub daemons: Vec<Haversack<'a>>,
    pub manager: Manager<'a>,
    images: Vec<PathBuf>,
    _origins: Vec<Nbdkit>,
    _network: Network,
}

impl<'a> Scene<'a> {
    /// A place for each host.
    pub fn places(place: &Place) -> Result<Vec<Place>> {
        ["a", "b", "c", "d", "e"].iter().map(|name| place.host(name)).collect()
    }

    /// Starts everything.
    pub fn start(place: &'a Place, places: &'a [Place]) -> Result<Self> {
        let network = Network::new(place, NAMES.len(), MBITS)?;
        let etcd = Etcd::on(place, &network, MEMBERS)?;
        let hosts = Hosts::on(place, &NAMES, &network)?;
        let sites = NAMES.iter().zip(places).map(|(name, place)| Site::new(name, place)).collect();
        let mut manager = Manager::new(place, sites)?;
        let (mut images, mut origins) = (Vec::new(), Vec::new());
        for (name, _) in VMS {
            let image = image::pattern(place, &format!("{name}.img"), name, DISK_MIB)?;
            let file = image.display().to_string();
            origins.push(Nbdkit::start(
                place,
                &format!("origin-{name}"),
                &["--filter=delay", "file", &file, DELAY, "delay-write=4ms"],
            )?);
            images.push(image);
        }
        let endpoints: Vec<String> = etcd.iter().map(Etcd::endpoint).collect();
        let tables = format!(
            "\n[policy]\nallocator = \"trd\"\nspare = \"shared\"\nwindow = \"4s\"\n\
             \n[cluster]\nendpoints = {endpoints:?}\ninsecure = true\nreport_every = \"1s\"\nlease = \"3s\"\n\
             hook = \"{}\"\nhook_time = \"60s\"\n\
             \n[cluster.balance]\nwindow = \"2s\"\nwindows = 2\n",
            manager.program().display()
        );
        let mut daemons = Vec::new();
        for (number, host) in places.iter().enumerate() {
            let disk =
                |(name, origin): (&str, &Nbdkit)| Disk::new(name, origin.uri()).with("from = \"none\"");
            let named = VMS.iter().map(|(name, _)| *name).zip(&origins);
            let disks = if number == FIRST { named.map(disk).collect() } else { Vec::new() };
            let more = hosts.tables(NAMES[number]) + &tables;
            let network = Some(network.namespace(number));
            let settings = Settings { more, network, ..Settings::new(CACHE_MIB, disks) };
            daemons.push(Haversack::start(host, settings)?);
        }
        for ((name, way), origin) in VMS.into_iter().zip(&origins) {
            manager.boot(name, &origin.uri(), FIRST, way, "pattern")?;
        }
        let mut scene = Self { place, etcd, daemons, manager, images, _origins: origins, _network: network };
        scene.start_load("reads", RATES[0])?;
        Ok(scene)
    }

    fn start_load(&mut self, mix: &str, rate: u32) -> Result<()> {
        for (seed, vm) in self.manager.vms_mut().iter_mut().enumerate() {
            vm.ask(&format!("start vda {seed} {mix} {rate}"))?;
        }
        Ok(())
    }

    /// Requests of all kinds from now on.
    pub fn change_load(&mut self) -> Result<()> {
        self.manager.settle()?;
        for vm in self.manager.vms_mut() {
            let answer = vm.ask("stop vda")?.clean()?;
            self.place.say(&format!("{}: {answer}", vm.name()));
        }
        self.start_load("mixed", RATES[1])
    }

    /// The cluster as a host shows it.
    fn status(&self, host: usize) -> Result<Value> {
        self.daemons[host].json(&["cluster", "status"])
    }

    /// The load of each host: what its disks demand over its cache.
    fn loads(&self) -> Result<Vec<f64>> {
        let status = self.status(0)?;
        let load = |name: &&str| {
            let hosts = status["hosts"].as_array().into_iter().flatten();
            let pool = hosts.filter(|host| host["name"] == **name).map(|host| &host["pools"][0]).next();
            let figure = |key: &str| pool.and_then(|pool| pool[key].as_f64()).unwrap_or(0.0);
            figure("demand_bytes") / figure("capacity_bytes").max(1.0)
        };
        Ok(NAMES.iter().map(load).collect())
    }

    /// Waits until the first host has too much demand. Returns all hosts' load.
    pub fn wait_for_overload(&mut self) -> Result<Vec<f64>> {
        let mut loads = Vec::new();
        wait_until("too much demand", PATIENCE, || {
            loads = self.loads()?;
            // The balancer may be quick.
            self.manager.attend()?;
            std::thread::sleep(Duration::from_millis(200));
            Ok(loads[FIRST] > TOO_MUCH)
        })?;
        Ok(loads)
    }

    /// Waits until no host has too much demand, nothing moves, and the hosts have measured again most of the demand
    /// that there was. Returns all hosts' load.
    pub fn wait_for_balance(&mut self, before: &[f64]) -> Result<Vec<f64>> {
        let mut loads: Vec<f64> = Vec::new();
        let most = before.iter().sum::<f64>() * MEASURED;
        let found = wait_until("an even load", PATIENCE, || {
            loads = self.loads()?;
            self.manager.attend()?;
            std::thread::sleep(Duration::from_millis(200));
            let moves = self.manager.vms().iter().any(|vm| vm.moves_to().is_some());
            let is_even = loads.iter().all(|load| *load < TOO_MUCH) && loads.iter().sum::<f64>() > most;
            Ok(is_even && !moves && self.status(0)?["moves"] == serde_json::json!([]))
        });
        found.map_err(|error| Error::Check(format!("{error}: loads {loads:.2?}")))?;
        Ok(loads)
    }

    /// Returns whether a VM lives.
    pub fn is_alive(&self, vm: usize) -> bool {
        self.manager.vms()[vm].is_alive()
    }

    /// A VM that is being moved.
    pub fn moving(&self) -> Option<usize> {
        self.manager.vms().iter().position(|vm| vm.moves_to().is_some() && vm.is_alive())
    }

    /// Returns whether VMs live on a host.
    pub fn has_guests(&self, host: usize) -> bool {
        self.manager.vms().iter().any(|vm| vm.is_alive() && vm.site() == host)
    }

    /// Drains a host, or stops draining it. Like an operator, this tries again when etcd does not answer.
    pub fn drain(&self, host: usize, is_drained: bool) -> Result<()> {
        let word = if is_drained { "drain" } else { "undrain" };
        let asked = (host + 1) % NAMES.len();
        let mut last = None;
        let done = wait_until(&format!("{word} {}", NAMES[host]), PATIENCE, || {
            last = self.daemons[asked].command(&["host", word, NAMES[host]]).err();
            Ok(last.is_none())
        });
        done.map_err(|error| {
            Error::Check(format!("{error}: {}", last.map(|last| last.to_string()).unwrap_or_default()))
        })
    }

    /// `kill -9` of the daemon of the host that balances, if there is one, and a new start.
    pub fn kill_leader(&mut self, lasts: Duration) -> Result<()> {
        let leader = self.status(0)?["leader"].as_str().map(str::to_owned);
        let leader = NAMES.iter().position(|name| leader.as_deref() == Some(*name));
        let Some(leader) = leader else { return Ok(()) };
        self.place.say(&format!("{} led, and is killed", NAMES[leader]));
        self.daemons[leader].kill_and_restart(lasts)
    }

    /// The states of a disk on the hosts that know it.
    fn states(&self, disk: &str) -> Vec<(usize, String)> {
        let state = |(host, daemon)| state(daemon, disk).ok().map(|state| (host, state));
        self.daemons.iter().enumerate().filter_map(state).collect()
    }

    /// The host that has a disk, once nothing of it is on another one.
    fn owner(&self, disk: &str) -> Result<usize> {
        let mut states = Vec::new();
        let found = wait_until("the owner", PATIENCE, || {
            states = self.states(disk);
            std::thread::sleep(Duration::from_millis(100));
            let others = states.iter().filter(|(_, state)| state != "here");
            let here = states.len() - others.clone().count();
            Ok(here == 1 && others.clone().all(|(_, state)| ["away", "waiting"].contains(&state.as_str())))
        });
        found.map_err(|error| Error::Check(format!("{error} of {disk}: {states:?}")))?;
        let owner = states.iter().find(|(_, state)| state == "here").map(|(host, _)| *host);
        owner.ok_or_else(|| Error::Check(format!("nobody has {disk}")))
    }

    /// An operator detaches the disks of VMs that were killed.
    pub fn detach_dead(&mut self) -> Result<()> {
        for vm in self.manager.vms().iter().filter(|vm| !vm.is_alive()) {
            let disk = vm.name();
            for daemon in &self.daemons {
                // One sends it until it is told to stop.
                let _ = daemon.command(&["migrate", "abort", disk]);
            }
            let owner = self.owner(disk)?;
            let shown = self.daemons[owner].json(&["disk", "show", disk])?;
            if shown["state"] == "attached" {
                self.daemons[owner].command(&["disk", "detach", disk])?;
            }
        }
        Ok(())
    }

    /// Ends the load, and checks everything.
    pub fn check(mut self) -> Result<()> {
        self.manager.settle()?;
        for (vm, image) in self.manager.vms_mut().iter_mut().zip(&self.images) {
            if !vm.is_alive() {
                continue;
            }
            let (name, site) = (vm.name().to_owned(), vm.site());
            let guest = vm.guest()?;
            let answer = guest.ask("stop vda")?.clean()?;
            self.place.say(&format!("{name}: {answer}"));
            let digest = scenario::verify(self.place, guest, "vda")?;
            guest.no_complaints()?;
            self.daemons[site].command(&["disk", "flush", &name])?;
            scenario::same_digest(image, &digest)?;
        }
        for vm in self.manager.vms().iter().filter(|vm| vm.is_alive()) {
            let owner = self.owner(vm.name())?;
            check(owner == vm.site(), format!("{} has {}", NAMES[owner], vm.name()))?;
        }
        self.check_directory()
    }

    /// Every host shows that each disk is where its VM is, that nothing moves, and no problem.
    fn check_directory(&self) -> Result<()> {
        let is_right = |status: &Value| {
            let disks = status["disks"].as_array().cloned().unwrap_or_default();
            let at = |name: &str| disks.iter().filter(|disk| disk["name"] == name).collect::<Vec<_>>();
            let right = self.manager.vms().iter().filter(|vm| vm.is_alive()).all(|vm| {
                matches!(at(vm.name())[..], [disk] if disk["host"] == self.manager.site(vm.site()) && disk["is_host_alive"] == true)
            });
            right && status["moves"] == serde_json::json!([]) && status["directory"]["problems"].is_null()
        };
        for (host, name) in NAMES.iter().enumerate() {
            let mut last = Value::Null;
            let found = wait_until("one directory", PATIENCE, || {
                last = self.status(host)?;
                std::thread::sleep(Duration::from_millis(100));
                Ok(is_right(&last))
            });
            found.map_err(|error| Error::Check(format!("{error} at {name}: {last}")))?;
            let events = self.daemons[host].command(&["--json", "events", "--last", "1000"])?;
            check(!events.contains("\"directory-conflict\""), format!("{name}: {events}"))?;
            let complaint = "cannot apply the plan";
            check(
                !self.daemons[host].log().contains(complaint),
                format!("{} logs: {complaint}", NAMES[host]),
            )?;
        }
        Ok(())
    }
}
