//! Hosts, the links between them, one origin and VMs, driven by events in order of time.
//!
//! Invariants
//! - Events at the same time happen in the order in which they were planned, so that a run can be repeated.
//! - A VM's requests reach a core only on the host where it runs, and only while that host serves its disk.

use std::collections::{BTreeMap, VecDeque};

use haversack_core::{DiskConfig, MonitorConfig};
use haversack_migrate::Timing;
use haversack_trace::Access;

use super::event::What;
use super::host::{Arrived, Host, host_id};
use super::measure::Measure;
use super::moving::{Done, Move};
use crate::agenda::Agenda;
use crate::cluster::balance::Balance;
use crate::cluster::table::ClusterTable;
use crate::error::SimError;
use crate::governor::{Governed, Governor};
use crate::latency::Stations;
use crate::meter::Meter;
use crate::migration::link::{Direction, LinkModel};
use crate::production::pool::PoolMake;
use crate::production::requests;

/// The interval at which timers are checked.
const LOOK_NS: u64 = 1_000_000;

/// A VM with one disk.
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Where it runs.
    pub host: usize,
    /// Requests that it waits for.
    pub in_flight: u32,
    /// The hypervisor has stopped it: its requests wait.
    pub stopped: bool,
    /// Requests that it makes when it runs again.
    pub held: VecDeque<Arrived>,
    /// The move that it is in.
    pub moving: Option<Move>,
}

/// What a world is made of.
pub struct Make<'a> {
    /// Each host's pool.
    pub pool: PoolMake,
    /// The cluster's table.
    pub table: &'a ClusterTable,
    /// The volumes' disks, names and hosts, in order.
    pub disks: Vec<DiskConfig>,
    pub names: Vec<String>,
    pub homes: Vec<usize>,
    /// The model of time.
    pub stations: Stations,
    /// The balancer, unless nothing moves.
    pub balance: Option<Balance>,
}

/// See the module.
pub struct World<'a> {
    pub hosts: Vec<Host>,
    pub governors: Vec<Governor>,
    pub vms: Vec<Vm>,
    pub table: &'a ClusterTable,
    pub link: LinkModel,
    pub links: BTreeMap<(usize, usize), Direction>,
    pub stations: Stations,
    pub balance: Option<Balance>,
    pub measure: Measure,
    /// The moves that were done, in order.
    pub done: Vec<Done>,
    pub now_ns: u64,
    pub pool_blocks: u64,
    agenda: Agenda<What>,
    /// The control loops require a meter; its counts are not used.
    pub meter: Meter,
}

impl<'a> World<'a> {
    /// Attaches all disks, each on its host, and starts the control loops. `governor` makes a host's.
    ///
    /// # Errors
    /// A disk is refused.
    pub fn new(
        make: Make<'a>,
        governor: impl Fn(Vec<Governed>, &mut Host, &mut Meter) -> Result<Governor, SimError>,
        governed: impl Fn() -> Vec<Governed>,
    ) -> Result<World<'a>, SimError> {
        let Make { pool, table, disks, names, homes, stations, balance } = make;
        let vm = |(name, host): (&String, &usize)| Vm {
            name: name.clone(),
            host: *host,
            in_flight: 0,
            stopped: false,
            held: VecDeque::new(),
            moving: None,
        };
        let mut world = World {
            hosts: Vec::new(),
            governors: Vec::new(),
            vms: names.iter().zip(&homes).map(vm).collect(),
            table,
            link: table.link(),
            links: BTreeMap::new(),
            stations,
            balance,
            measure: Measure::new(names.len(), table.hosts.len()),
            done: Vec::new(),
            now_ns: 0,
            pool_blocks: pool.capacity_blocks(),
            agenda: Agenda::new(),
            meter: Meter::new(Default::default()),
        };
        for number in 0..table.hosts.len() {
            let mut host = Host::new(number, &pool, &disks, &names)?;
            for (volume, disk) in disks.iter().enumerate() {
                host.add(host_id(number), disk, homes[volume] == number, Timing::default())?;
            }
            world.hosts.push(host);
        }
        (0..world.hosts.len()).for_each(|host| world.plan_at(LOOK_NS, What::Look { host }));
        (0..world.hosts.len()).try_for_each(|host| world.pump(host))?;
        world.run_until(|world| (0..world.vms.len()).all(|volume| world.is_served(volume)))?;
        // Attaching takes no time that counts.
        let mut window_ns = u64::MAX;
        for number in 0..world.hosts.len() {
            let mut disks = governed();
            disks
                .iter_mut()
                .zip(&homes)
                .filter(|(_, home)| **home != number)
                .for_each(|(disk, _)| disk.leave());
            let host = &mut world.hosts[number];
            host.now_us = world.now_ns / 1000;
            let made = governor(disks, host, &mut world.meter)?;
            window_ns = window_ns.min(made.due_ns());
            world.governors.push(made);
            world.pump(number)?;
        }
        world.plan_at(window_ns, What::Window);
        Ok(world)
    }

    /// Whether a VM's disk is served where it runs.
    pub fn is_served(&mut self, volume: usize) -> bool {
        let host = self.vms[volume].host;
        self.hosts[host].serves(volume)
    }

    /// The time, as cores count it.
    pub fn now_us(&self) -> u64 {
        self.now_ns / 1000
    }

    /// Plans an event.
    pub fn plan_at(&mut self, time_ns: u64, what: What) {
        self.agenda.plan(time_ns, what);
    }

    /// Processes events until a condition holds.
    fn run_until(&mut self, mut is_true: impl FnMut(&mut Self) -> bool) -> Result<(), SimError> {
        while !is_true(self) {
            let Some((time_ns, what)) = self.agenda.pop() else {
                return Err(SimError::Migration("nothing is left to happen".into()));
            };
            self.now_ns = self.now_ns.max(time_ns);
            self.happen(what)?;
        }
        Ok(())
    }

    /// Advances the time and does what is due by then.
    ///
    /// # Errors
    /// A decision is refused, or a move goes wrong.
    pub fn advance(&mut self, to_ns: u64) -> Result<(), SimError> {
        while self.agenda.next_ns().is_some_and(|next_ns| next_ns <= to_ns) {
            let Some((time_ns, what)) = self.agenda.pop() else { break };
            self.now_ns = self.now_ns.max(time_ns);
            self.happen(what)?;
        }
        self.now_ns = self.now_ns.max(to_ns);
        Ok(())
    }

    fn happen(&mut self, what: What) -> Result<(), SimError> {
        match what {
            What::IoDone { host, io, read } => {
                let now_ns = self.now_ns;
                let at = &mut self.hosts[host];
                at.measure(now_ns, read);
                at.core.with(&mut at.memory).complete(now_ns / 1000, io, Ok(()));
                self.pump(host)
            }
            What::LinkFree { from, to } => {
                self.link(from, to).departed();
                self.depart(from, to);
                // Copies may have waited for room.
                self.pump(from)
            }
            What::Arrives { from, to, parcel } => self.message(from, to, parcel),
            What::Look { host } => {
                let now = self.now_us();
                self.hosts[host].look(now);
                self.plan_at(self.now_ns + LOOK_NS, What::Look { host });
                self.pump(host)
            }
            What::Window => self.window(),
            What::Stop { volume } => self.stop(volume),
            What::Resume { volume } => self.resume(volume),
        }
    }

    /// Handles a request of a VM, at its time.
    ///
    /// # Errors
    /// A decision is refused, or a move goes wrong.
    pub fn request(&mut self, access: &Access) -> Result<(), SimError> {
        self.advance(access.time_ns)?;
        let volume = access.volume.0 as usize;
        for request in requests::of(access) {
            let arrived = Arrived { volume, request, time_ns: access.time_ns };
            let vm = &mut self.vms[volume];
            if vm.stopped {
                vm.held.push_back(arrived);
            } else {
                vm.in_flight += 1;
                self.hosts[vm.host].waiting.push_back(arrived);
            }
        }
        let host = self.vms[volume].host;
        self.pump(host)?;
        let (governor, at) = (&mut self.governors[host], &mut self.hosts[host]);
        governor.take(haversack_model::DiskNo(volume as u16), at);
        Ok(())
    }

    /// Runs until no request is in flight.
    ///
    /// # Errors
    /// A move goes wrong.
    pub fn run_out(&mut self) -> Result<(), SimError> {
        self.run_until(|world| world.vms.iter().all(|vm| vm.in_flight == 0 && vm.held.is_empty()))
    }

    /// Ends a window: every host decides, then the balancer.
    fn window(&mut self) -> Result<(), SimError> {
        for number in 0..self.hosts.len() {
            let now_us = self.now_us();
            let (governor, host) = (&mut self.governors[number], &mut self.hosts[number]);
            host.now_us = now_us;
            governor.act(host, &mut self.meter)?;
            self.pump(number)?;
        }
        self.sample();
        self.balance()?;
        self.plan_at(self.governors[0].due_ns(), What::Window);
        Ok(())
    }

    /// Ends a sample of the measurements.
    pub fn sample(&mut self) {
        let loads: Vec<f64> = (0..self.hosts.len()).map(|host| self.load(host)).collect();
        let places = self.vms.iter().map(|vm| vm.host).collect();
        self.measure.sample(self.now_ns, &self.hosts, places, loads, self.done.len());
    }

    /// Starts to record the requests of a disk that has arrived at a host.
    pub fn monitor_arrived(&mut self, volume: usize, host: usize) -> Result<(), SimError> {
        let disk = haversack_model::DiskNo(volume as u16);
        self.hosts[host].monitor_disk(disk, MonitorConfig::default())
    }
}
