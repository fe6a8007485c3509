//! The protocol, explored exhaustively: hosts that crash and restart, a network that loses, delays, repeats and
//! reorders, a VM that moves, is rolled back, or for a moment seems to run on two hosts, guests that write,
//! cleaners, and hosts that fetch each other's dirty blocks. A disk has one block.
//!
//! The network is the set of all messages ever sent: any of them may arrive at any time, or never.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::machine::Flaw;
use crate::{HostId, Message, Ownership, Record, Step};

/// How much of everything happens.
#[derive(Clone, Debug)]
struct World {
    hosts: u64,
    moves: u8,
    crashes: u8,
    writes: u8,
    /// How often QEMU runs a VM at a host where it does not run any more.
    ghosts: u8,
    flaw: Option<Flaw>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Host {
    side: Ownership,
    up: bool,
    writing: Option<(Record, bool)>,
    /// The dirty block: the epoch under which it was written, and its version.
    dirty: Option<(u64, u8)>,
    /// A guest that should not run uses the disk.
    ghost: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    hosts: BTreeMap<HostId, Host>,
    network: BTreeSet<(HostId, HostId, Message)>,
    /// Where the VM runs, or last ran if it is on its way.
    vm: HostId,
    /// The VM runs.
    runs: bool,
    origin: u8,
    acknowledged: u8,
    moves: u8,
    crashes: u8,
    ghosts: u8,
}

#[derive(Clone, PartialEq, Debug)]
enum Action {
    Deliver(HostId, HostId, Message),
    Recorded(HostId),
    /// The host goes down; what it was recording may be durable.
    Crash(HostId, bool),
    Restart(HostId),
    /// The VM's queues are started at its host, or the host looks again for what it waits for.
    Kick(HostId),
    /// The VM stops at its host.
    Stop,
    Arrive(HostId),
    Ghost(HostId),
    GhostGoes(HostId),
    Write(HostId),
    Clean(HostId),
    Drain(HostId),
}

impl State {
    /// Returns the newest version that a host can find, or `None` if it must wait for a peer.
    fn newest(&self, id: HostId) -> Option<u8> {
        let host = &self.hosts[&id];
        let mut found = host.dirty;
        if found.is_some_and(|(epoch, _)| epoch == host.side.record().epoch()) {
            return found.map(|f| f.1);
        }
        for peer in host.side.peers() {
            let peer = &self.hosts[&peer];
            if !peer.up {
                return None;
            }
            found = found.max(peer.dirty);
        }
        Some(found.map_or(self.origin, |f| f.1))
    }

    fn is_served(&self) -> bool {
        self.runs && self.hosts[&self.vm].up && self.hosts[&self.vm].side.may_serve()
    }

    fn step(&mut self, id: HostId, step: Option<Step>) {
        match step {
            Some(Step::Send(to, message)) => {
                self.network.insert((id, to, message));
            }
            Some(Step::Write { record, drops_dirty }) => {
                self.host(id).writing = Some((record, drops_dirty));
            }
            None => {}
        }
    }

    fn host(&mut self, id: HostId) -> &mut Host {
        self.hosts.get_mut(&id).expect("a host")
    }

    fn write_record(&mut self, id: HostId) -> Option<Record> {
        let host = self.host(id);
        let (record, drops_dirty) = host.writing.take()?;
        if drops_dirty {
            host.dirty = None;
        }
        Some(record)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let host = |id: u64| {
            let owner = Record::Owner { epoch: 1, peers: BTreeSet::new() };
            let record = if id == 0 { owner } else { Record::Unknown };
            let mut side = Ownership::new(HostId(id), record);
            side.flaw = self.flaw;
            if id == 0 {
                assert_eq!(side.guest_runs(HostId(0)), None);
            }
            (HostId(id), Host { side, up: true, writing: None, dirty: None, ghost: false })
        };
        let state = State {
            hosts: (0..self.hosts).map(host).collect(),
            network: BTreeSet::new(),
            vm: HostId(0),
            runs: true,
            origin: 0,
            acknowledged: 0,
            moves: 0,
            crashes: 0,
            ghosts: 0,
        };
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let deliverable = state.network.iter().filter(|(_, to, _)| state.hosts[to].up);
        actions.extend(deliverable.map(|(from, to, message)| Action::Deliver(*from, *to, message.clone())));
        for (id, host) in &state.hosts {
            if !host.up {
                actions.push(Action::Restart(*id));
                continue;
            }
            if host.writing.is_some() {
                actions.push(Action::Recorded(*id));
            }
            if state.crashes < self.crashes {
                actions.extend([false, true].map(|written| Action::Crash(*id, written)));
            }
            let wanted = state.runs && state.vm == *id || host.ghost;
            if wanted && !host.side.may_serve() {
                actions.push(Action::Kick(*id));
            }
            if host.side.may_serve() && state.acknowledged < self.writes && state.newest(*id).is_some() {
                actions.push(Action::Write(*id));
            }
            actions.extend([Action::Clean(*id), Action::Drain(*id)]);
            if host.ghost {
                actions.push(Action::GhostGoes(*id));
            } else if state.ghosts < self.ghosts && !wanted {
                actions.push(Action::Ghost(*id));
            }
        }
        if state.runs && state.moves < self.moves {
            actions.push(Action::Stop);
        }
        if !state.runs {
            actions.extend(state.hosts.keys().map(|id| Action::Arrive(*id)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(from, to, message) => {
                let step = state.host(to).side.message(from, message);
                state.step(to, step);
            }
            Action::Recorded(id) => {
                state.write_record(id);
                let step = state.host(id).side.recorded();
                state.step(id, step);
            }
            Action::Crash(id, written) => {
                if written {
                    let record = state.write_record(id)?;
                    let host = state.host(id);
                    host.side = Ownership::new(id, record);
                } else {
                    let host = state.host(id);
                    host.writing = None;
                    host.side = Ownership::new(id, host.side.record().clone());
                }
                state.host(id).up = false;
                state.crashes += 1;
            }
            Action::Restart(id) => {
                let host = state.host(id);
                host.side = Ownership::new(id, host.side.record().clone());
                host.side.flaw = self.flaw;
                host.up = true;
            }
            Action::Kick(id) => {
                // Wherever it was: its last known place.
                let source = state.hosts.keys().copied().find(|other| *other != id)?;
                let step = state.host(id).side.guest_runs(source);
                state.step(id, step);
            }
            Action::Stop => {
                let vm = state.vm;
                (state.runs, state.moves) = (false, state.moves + 1);
                if state.hosts[&vm].up && !state.hosts[&vm].ghost {
                    state.host(vm).side.guest_stopped();
                }
            }
            Action::Arrive(id) => (state.vm, state.runs) = (id, true),
            Action::Ghost(id) => {
                state.host(id).ghost = true;
                state.ghosts += 1;
            }
            Action::GhostGoes(id) => {
                let stays = state.runs && state.vm == id;
                let host = state.host(id);
                host.ghost = false;
                if !stays {
                    host.side.guest_stopped();
                }
            }
            Action::Write(id) => {
                state.acknowledged += 1;
                let version = state.acknowledged;
                let host = state.host(id);
                host.dirty = Some((host.side.record().epoch(), version));
            }
            Action::Clean(id) => {
                let host = &state.hosts[&id];
                let (epoch, version) = host.dirty?;
                let newest = epoch == host.side.record().epoch() || host.side.peers().is_empty();
                if !host.side.may_write_origin() || !newest {
                    return None;
                }
                state.origin = version;
                state.host(id).dirty = None;
            }
            Action::Drain(id) => {
                let peers = state.hosts[&id].side.peers();
                if peers.is_empty() || peers.iter().any(|peer| !state.hosts[peer].up) {
                    return None;
                }
                let newest = peers.iter().map(|peer| state.hosts[peer].dirty).max().flatten();
                let host = state.host(id);
                host.dirty = host.dirty.max(newest);
                let step = host.side.drained();
                state.step(id, step);
            }
        }
        (state != *last).then_some(state)
    }

    /// Some planted mistakes let the epoch grow for ever.
    fn within_boundary(&self, state: &State) -> bool {
        let most = u64::from(self.moves) * 2 + 2;
        self.flaw.is_none() || state.hosts.values().all(|host| host.side.record().epoch() <= most)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one host writes the origin", |_, state: &State| {
                state.hosts.values().filter(|host| host.up && host.side.may_write_origin()).count() <= 1
            }),
            Property::always("one host serves", |_, state: &State| {
                state.hosts.values().filter(|host| host.up && host.side.may_serve()).count() <= 1
            }),
            Property::always("nothing acknowledged is lost", |_, state: &State| {
                let serves = |(_, host): &(&HostId, &Host)| host.up && host.side.may_serve();
                state
                    .hosts
                    .iter()
                    .filter(serves)
                    .all(|(id, _)| state.newest(*id).is_none_or(|version| version == state.acknowledged))
            }),
            Property::always("an epoch has one owner", |_, state: &State| {
                let owners = state.hosts.values().filter(|host| host.side.record().is_owner());
                let epochs: Vec<u64> = owners.map(|host| host.side.record().epoch()).collect();
                epochs.len() == epochs.iter().collect::<BTreeSet<_>>().len()
            }),
        ]
    }
}

fn world(hosts: u64, moves: u8, crashes: u8, writes: u8, ghosts: u8) -> World {
    World { hosts, moves, crashes, writes, ghosts, flaw: None }
}

/// The worlds that are explored: the more of one thing happens, the less of another.
fn worlds() -> Vec<World> {
    vec![
        world(2, 2, 1, 1, 0),
        world(2, 1, 1, 1, 1),
        world(2, 3, 0, 2, 0),
        world(3, 2, 1, 1, 0),
        world(2, 3, 1, 2, 0),
        world(2, 2, 1, 1, 1),
    ]
}

#[test]
fn no_two_hosts_write_and_nothing_is_lost() {
    for world in worlds() {
        let checker = world.clone().checker().threads(2).spawn_bfs().join();
        println!("{world:?}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

/// Returns a state from which no way leads to one in which the disk is served where its VM runs.
fn dead_end(world: &World) -> Option<State> {
    let first = world.init_states().remove(0);
    let (mut numbers, mut states) = (HashMap::from([(first.clone(), 0usize)]), vec![first]);
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut next = 0;
    while next < states.len() {
        let mut actions = Vec::new();
        world.actions(&states[next], &mut actions);
        for action in actions {
            let Some(state) = world.next_state(&states[next], action) else { continue };
            let fresh = states.len();
            let number = *numbers.entry(state.clone()).or_insert(fresh);
            if number == fresh {
                states.push(state);
                before.push(Vec::new());
            }
            before[number].push(next);
        }
        next += 1;
    }
    let mut good: Vec<bool> = states.iter().map(State::is_served).collect();
    let mut queue: VecDeque<usize> = (0..states.len()).filter(|number| good[*number]).collect();
    while let Some(number) = queue.pop_front() {
        for earlier in std::mem::take(&mut before[number]) {
            if !std::mem::replace(&mut good[earlier], true) {
                queue.push_back(earlier);
            }
        }
    }
    good.iter().position(|good| !good).map(|number| states.swap_remove(number))
}

#[test]
fn there_is_always_a_way_forward() {
    for world in [world(2, 2, 1, 1, 0), world(2, 1, 1, 1, 1), world(3, 2, 0, 1, 0)] {
        let stuck = dead_end(&world);
        assert!(stuck.is_none(), "{world:?}: {stuck:?}");
    }
}

/// The model finds what it is there to find.
#[test]
fn planted_mistakes_are_found() {
    let flaws = [
        Flaw::TellEarly,
        Flaw::ServeEarly,
        Flaw::ServeReleased,
        Flaw::ReleaseUndrained,
        Flaw::OldGrant,
        Flaw::VoidUnrecorded,
        Flaw::KeepObsolete,
        Flaw::DropNeeded,
        Flaw::CleanUndrained,
    ];
    let mut missed = Vec::new();
    for flaw in flaws {
        let found = worlds().into_iter().find_map(|world| {
            let world = World { flaw: Some(flaw), ..world };
            let checker = world.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
            let found = checker.discoveries().into_iter().next();
            found.map(|(property, path)| (property, path.into_actions().len()))
        });
        match found {
            Some((property, steps)) => println!("{flaw:?}: not '{property}' after {steps} steps"),
            None => missed.push(flaw),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
