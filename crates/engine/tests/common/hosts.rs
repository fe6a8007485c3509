//! Hosts between which a disk moves, and the network between them, which loses, repeats and reorders messages.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use haversack_engine::{
    DiskSpec, HostMessage, HostSettings, Moves, OpenPool, OriginSpec, PoolHandle, PoolSettings, ReadRefusal,
};
use haversack_migrate::{Method, ReplicaPolicy};
use haversack_model::random::Random;
use haversack_model::{DiskHandle, DiskId, HostId};

use super::{Place, spec, start};

type Letter = (HostId, HostId, DiskId, HostMessage);

/// What the hosts have in common.
pub struct Network {
    hosts: Mutex<Vec<Option<PoolHandle>>>,
    /// Messages that overtake or are lost, and what decides that.
    late: Mutex<(Random, Vec<Letter>)>,
    faults: bool,
    is_cut: AtomicBool,
    is_full: AtomicBool,
    refused_reads: AtomicU32,
}

impl Network {
    /// With `faults`, one message in a hundred is lost, late or repeated.
    pub fn new(faults: bool, seed: u64) -> Arc<Network> {
        let late = Mutex::new((Random::scrambled(seed), Vec::new()));
        Arc::new(Network {
            hosts: Mutex::default(),
            late,
            faults,
            is_cut: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            refused_reads: AtomicU32::new(0),
        })
    }

    /// Drops all messages, or stops dropping them.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Release);
    }

    /// Has no room for copies, or has room again.
    pub fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Release);
    }

    fn room(&self) -> usize {
        if self.is_full.load(Ordering::Acquire) { 0 } else { usize::MAX }
    }

    /// Returns how many reads for another host were refused because too much was being read for it.
    pub fn refused_reads(&self) -> u32 {
        self.refused_reads.load(Ordering::Relaxed)
    }

    fn send(&self, letter: Letter) {
        if let HostMessage::ReadDone { data: Err(ReadRefusal::Busy), .. } = letter.3 {
            self.refused_reads.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_cut.load(Ordering::Acquire) {
            return;
        }
        let mut deliver = vec![letter];
        if self.faults {
            let (random, late) = &mut *self.late.lock().unwrap();
            if random.one_in(100) {
                match random.below(3) {
                    0 => deliver.clear(),
                    1 => late.append(&mut deliver),
                    _ => deliver.push(deliver[0].clone()),
                }
            } else if random.one_in(20) {
                deliver.append(late);
            }
        }
        for (from, to, disk, message) in deliver {
            let host = self.hosts.lock().unwrap().get(to.0 as usize - 1).cloned().flatten();
            if let Some(host) = host {
                host.host_said(from, disk, message, Arc::new(()));
            }
        }
    }
}

/// A host: a pool that can be killed and opened again.
pub struct Host {
    pub id: HostId,
    pub open: Option<OpenPool>,
    /// Its pool, as it is opened at its next start.
    pub settings: PoolSettings,
    network: Arc<Network>,
    starts: u64,
    /// The method of moves that name none, from its next start on.
    pub method: Method,
    /// What it may fetch in a period, at its next start.
    pub fetched_a_period: Option<u32>,
}

impl Host {
    /// Makes the host with this number, from 1 on, with a new pool in `place`.
    pub fn new(place: &Place, number: u64, network: &Arc<Network>) -> Host {
        let mut host = Host {
            id: HostId(number),
            open: None,
            settings: place.pool(&[64], false),
            network: network.clone(),
            starts: 0,
            fetched_a_period: None,
            method: Method::PreCopy,
        };
        host.start();
        host
    }

    /// Opens the pool.
    pub fn start(&mut self) {
        self.starts += 1;
        let (open, _) = start(&self.settings);
        let (me, network, same) = (self.id, self.network.clone(), self.network.clone());
        let host = HostSettings {
            me,
            incarnation: self.starts << 32,
            method: self.method,
            fetched_a_period: self.fetched_a_period,
            room: Arc::new(move |_| same.room()),
            send: Arc::new(move |to, disk, message| network.send((me, to, disk, message))),
        };
        open.handle().join_hosts(&host).unwrap();
        let mut hosts = self.network.hosts.lock().unwrap();
        if hosts.len() < me.0 as usize {
            hosts.resize(me.0 as usize, None);
        }
        hosts[me.0 as usize - 1] = Some(open.handle());
        self.open = Some(open);
    }

    /// Simulates a kill of the process.
    pub fn kill(&mut self) {
        self.network.hosts.lock().unwrap()[self.id.0 as usize - 1] = None;
        self.open = None;
    }

    pub fn handle(&self) -> PoolHandle {
        self.open.as_ref().unwrap().handle()
    }

    /// Attaches disk 1, which may come from another host.
    pub fn attach(&self, mib: u64, origin: OriginSpec, from: Option<HostId>) -> DiskHandle {
        self.attach_replicated(mib, origin, from, None)
    }

    /// Attaches disk 1, which has a replica at a host.
    pub fn attach_replicated(
        &self,
        mib: u64,
        origin: OriginSpec,
        from: Option<HostId>,
        replica: Option<ReplicaPolicy>,
    ) -> DiskHandle {
        let spec = DiskSpec { moves: Some(Moves { from, replica, known_epoch: 0 }), ..spec(1, mib, origin) };
        let (disk, job) = self.handle().attach(spec).unwrap();
        job.wait().unwrap();
        disk
    }
}
