//! Two hosts, the link between them, one origin, and VMs, driven by events in order of time.
//!
//! The cores and the protocol are the daemon's. Their actions are carried out as in the reactor.
//!
//! Invariants
//! - Events at the same time happen in the order in which they were planned, so that a run can be repeated.
//! - A VM's requests reach a core only on the host where it runs, and only while that host serves the disk.

mod actions;
mod course;
mod event;
mod figures;
mod requests;

use haversack_core::{DiskConfig, Op, Request, RequestTag};
use haversack_model::{DiskNo, SECTORS_PER_BLOCK, SectorNo};
use haversack_trace::VolumeNo;

use super::checker::Checker;
use super::content::OriginContent;
use super::host::{Arrived, Host, host_id};
use super::link::Direction;
use super::measure::VmMeter;
use super::outcome::{LoadSample, OriginTraffic};
use super::plan::MigrationPlan;
use super::vm::{Role, Vm};
use crate::agenda::Agenda;
use crate::error::SimError;
use crate::grid::Grids;
use crate::key::KeySet;
use crate::latency::{IoKind, Stations};
use event::What;

pub use course::Moments;
pub use figures::Cached;

/// The interval at which timers are checked.
const LOOK_NS: u64 = 1_000_000;
/// A simulation that is not done this long after its end is considered to hang.
const PATIENCE_NS: u64 = 3_600_000_000_000;
/// Reads in flight during the final check.
const LAST_READS: usize = 64;

/// The host on which the VM starts.
pub const SOURCE: usize = 0;
/// The host that it moves to.
pub const DESTINATION: usize = 1;

/// See the module.
pub struct World<'a> {
    pub plan: MigrationPlan,
    pub hosts: [Host; 2],
    pub vms: Vec<Vm<'a>>,
    pub meters: Vec<VmMeter>,
    /// By direction: from the source, from the destination.
    pub links: [Direction; 2],
    pub moments: Moments,
    pub cached: Cached,
    pub checker: Checker,
    /// Copies for which the destination had no space.
    pub refused_copies: u64,
    /// The origin's traffic at each mark.
    pub origin_marks: Vec<OriginTraffic>,
    pub samples: Vec<LoadSample>,
    stations: Stations,
    origin: OriginContent,
    origin_traffic: OriginTraffic,
    /// The VM of each volume.
    vm_of: Vec<usize>,
    /// The blocks of the volumes' disks.
    grids: Grids,
    agenda: Agenda<What>,
    now_ns: u64,
    /// When everything was attached: the loads' times count from here.
    zero_ns: u64,
    sample_ns: u64,
    /// Bytes on the link and the origin's traffic when the last sample ended.
    sampled: Option<(u64, OriginTraffic)>,
    seen: KeySet,
    reused: KeySet,
    marks: usize,
    is_over: bool,
}

fn wrong(why: String) -> SimError {
    SimError::Migration(why)
}

impl<'a> World<'a> {
    /// Attaches all disks. `disks` are the volumes' settings, in order.
    ///
    /// # Errors
    /// A disk is refused.
    pub fn new(
        plan: MigrationPlan,
        hosts: [Host; 2],
        vms: Vec<Vm<'a>>,
        disks: &[DiskConfig],
        stations: Stations,
        sample_ns: u64,
    ) -> Result<World<'a>, SimError> {
        let mut vm_of = vec![0; disks.len()];
        for (at, vm) in vms.iter().enumerate() {
            vm.volumes.iter().for_each(|volume| vm_of[volume.0 as usize] = at);
        }
        let mut world = World {
            plan,
            hosts,
            meters: vms.iter().map(|_| VmMeter::default()).collect(),
            vms,
            links: [plan.link, plan.link].map(Direction::new),
            moments: Moments::default(),
            cached: Cached::default(),
            checker: Checker::default(),
            refused_copies: 0,
            origin_marks: Vec::new(),
            samples: Vec::new(),
            stations,
            origin: OriginContent::default(),
            origin_traffic: OriginTraffic::default(),
            vm_of,
            grids: Grids::of_volumes(disks),
            agenda: Agenda::new(),
            now_ns: 0,
            zero_ns: 0,
            sample_ns,
            sampled: None,
            seen: KeySet::default(),
            reused: KeySet::default(),
            marks: 0,
            is_over: false,
        };
        [SOURCE, DESTINATION].into_iter().for_each(|host| world.plan_at(LOOK_NS, What::Look { host }));
        disks.iter().enumerate().try_for_each(|(at, disk)| world.attach(VolumeNo(at as u32), disk))?;
        world.zero_ns = world.now_ns;
        Ok(world)
    }

    fn attach(&mut self, volume: VolumeNo, config: &DiskConfig) -> Result<(), SimError> {
        let vm = &self.vms[self.vm_of[volume.0 as usize]];
        let (role, name) = (vm.role, vm.name.clone());
        let refused = |error| SimError::Manage { disk: name.clone(), error };
        let now = self.now_us();
        if role == Role::Moves {
            let MigrationPlan { method, timing, .. } = self.plan;
            for (place, host) in self.hosts.iter_mut().enumerate() {
                host.add_mover(now, place, volume, config.clone(), method, timing);
            }
            let host = &mut self.hosts[SOURCE];
            let mover = host.movers.last_mut().expect("it was just added");
            let mut call = host.core.with(&mut host.memory);
            mover.migration.create(&mut call, now).map_err(refused)?;
            mover.migration.guest_runs(&mut call, now, host_id(SOURCE));
            self.pump(SOURCE)?;
            return self.run_until(|world| world.hosts[SOURCE].serves(volume));
        }
        let host = &mut self.hosts[role.host()];
        let (number, _) = host.core.with(&mut host.memory).attach(now, config, 1, false).map_err(refused)?;
        host.note(number, volume);
        let jobs = host.jobs_done + 1;
        self.pump(role.host())?;
        self.run_until(|world| world.hosts[role.host()].jobs_done == jobs)
    }

    /// Plays the loads and the migration.
    ///
    /// # Errors
    /// A load cannot be read, or the migration goes wrong.
    pub fn run(&mut self) -> Result<(), SimError> {
        let marks_ns = self.plan.marks_ns();
        marks_ns.into_iter().for_each(|ns| self.plan_at(self.zero_ns + ns, What::Mark));
        self.plan_at(self.zero_ns + marks_ns[1], What::Begin);
        self.plan_at(self.zero_ns + marks_ns[2], What::Stop);
        // A sample ends when the VM stops: none is of both before and after.
        let first_ns = marks_ns[0] + (marks_ns[2] - marks_ns[0]) % self.sample_ns;
        self.plan_at(self.zero_ns + first_ns, What::Sample);
        for vm in 0..self.vms.len() {
            if self.vms[vm].is_closed() { self.feed(vm)? } else { self.plan_next(vm)? }
        }
        let end_ns = self.zero_ns + marks_ns[3];
        self.run_until(|world| world.now_ns > end_ns && world.moments.served_ns.is_some())?;
        self.is_over = true;
        self.run_until(|world| world.hosts.iter().all(Host::is_idle))
    }

    fn now_us(&self) -> u64 {
        self.now_ns / 1_000
    }

    fn plan_at(&mut self, time_ns: u64, what: What) {
        self.agenda.plan(time_ns, what);
    }

    /// Processes events until a condition holds.
    fn run_until(&mut self, mut is_true: impl FnMut(&mut Self) -> bool) -> Result<(), SimError> {
        let since_ns = self.now_ns.max(self.zero_ns + self.plan.marks_ns()[3]);
        while !is_true(self) {
            let Some((time_ns, what)) = self.agenda.pop() else {
                return Err(wrong("nothing is left to happen".into()));
            };
            self.now_ns = self.now_ns.max(time_ns);
            if self.now_ns > since_ns + PATIENCE_NS {
                let tasks: Vec<String> = self
                    .hosts
                    .iter()
                    .flat_map(|host| host.movers.iter().map(|mover| mover.migration.describe()))
                    .collect();
                return Err(wrong(format!("it hangs: {}", tasks.join("; "))));
            }
            self.happen(what)?;
        }
        Ok(())
    }

    fn happen(&mut self, what: What) -> Result<(), SimError> {
        match what {
            What::DeviceDone { host, io, device, first, kind } => {
                if kind != IoKind::Flush {
                    self.hosts[host].device_io(io, device, first, kind == IoKind::Write);
                }
                self.io_done(host, io)
            }
            What::OriginDone { host, io, does } => {
                self.origin_io(host, io, does);
                self.io_done(host, io)
            }
            What::LinkFree { from } => {
                self.links[from].departed();
                self.depart(from);
                // Copies may have waited for room.
                self.pump(from)
            }
            What::Arrives { to, parcel } => self.message(to, parcel),
            What::Look { host } => {
                let now = self.now_us();
                self.hosts[host].look(now);
                self.plan_at(self.now_ns + LOOK_NS, What::Look { host });
                self.pump(host)
            }
            What::Comes { vm } => self.request_comes(vm),
            What::Frees { vm } => {
                self.vms[vm].in_flight -= 1;
                self.feed(vm)?;
                self.look_at_move()
            }
            What::Begin => self.begin(),
            What::Stop => self.stop(),
            What::Resume => self.resume(),
            What::Mark => {
                self.mark();
                Ok(())
            }
            What::Sample => {
                self.sample();
                Ok(())
            }
        }
    }

    /// Reads every block that the VM has ever written, at the destination, when the loads have ended. This
    /// fetches the blocks that are still at the source, so nothing is measured afterwards.
    ///
    /// # Errors
    /// A block is wrong.
    pub fn read_everything(&mut self) -> Result<(), SimError> {
        let volumes: Vec<VolumeNo> =
            self.hosts[DESTINATION].movers.iter().map(|mover| mover.volume).collect();
        for volume in volumes {
            for blocks in self.checker.written_blocks(volume).chunks(LAST_READS) {
                for block in blocks {
                    let request = Request {
                        tag: RequestTag(0),
                        disk: DiskNo(0),
                        op: Op::Read,
                        sector: SectorNo(block * SECTORS_PER_BLOCK),
                        sectors: SECTORS_PER_BLOCK as u32,
                    };
                    let arrived = Arrived { vm: None, volume, request, time_ns: self.now_ns };
                    self.hosts[DESTINATION].waiting.push_back(arrived);
                }
                self.pump(DESTINATION)?;
                self.run_until(|world| world.hosts[DESTINATION].is_idle())?;
            }
        }
        Ok(())
    }
}
