//! What the balancer sees of the directory.

use std::collections::{BTreeMap, BTreeSet};

use haversack_cluster::{
    Borrows, Disk, DiskName, Host, HostName, HostState, Lends, Offers, Snapshot, Tenant, TenantName, Vm,
    VmName,
};
use haversack_directory::{DiskRecord, HostRecord, PoolRecord, Seen, TenantRecord, View};
use haversack_model::BLOCK_BYTES;
use haversack_policy::Curve;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The states of pools whose cache counts.
const USABLE: [&str; 2] = ["ok", "degraded"];
/// What a host without a limit can send to another one: a network of 10 Gbit/s.
const LINK_BYTES_PER_S: u64 = 1_250_000_000;

/// Returns the cluster as the directory has it.
///
/// A disk without a VM in its configuration is a VM by itself. Two disks with the same name, which cannot move to each
/// other's host, are told apart by their identities.
pub fn of(view: &View) -> Snapshot {
    let away = view.away();
    let capacity = |host: &str| -> u64 {
        let usable = |pool: &&PoolRecord| USABLE.contains(&pool.state.as_str());
        view.pools_of(host)
            .map(|(_, seen)| &seen.record)
            .filter(usable)
            .fold(0, |sum, pool| sum.saturating_add(pool.capacity_bytes / BLOCK))
    };
    let state = |name: &str, record: &HostRecord| match (record.moves_disks, view.drains.contains_key(name)) {
        // No disk can be moved from or to it.
        (false, _) => HostState::Away,
        (true, true) => HostState::Draining,
        (true, false) => HostState::Serving,
    };
    let alive = view.hosts.iter().map(|(name, seen)| Host {
        name: HostName(name.clone()),
        state: state(name, &seen.record),
        capacity_blocks: capacity(name),
        memory_bytes: seen.record.memory_bytes,
        vcpus: seen.record.processors,
        link_bytes_per_s: seen.record.link_bytes_per_s.unwrap_or(LINK_BYTES_PER_S),
    });
    let gone = away.iter().map(|name| Host {
        name: HostName((*name).into()),
        state: HostState::Away,
        capacity_blocks: capacity(name),
        memory_bytes: None,
        vcpus: None,
        link_bytes_per_s: LINK_BYTES_PER_S,
    });
    Snapshot { hosts: alive.chain(gone).collect(), vms: vms(view) }
}

/// Names VMs.
struct Names<'a> {
    /// How many disks have each name.
    disks: BTreeMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn new(view: &'a View) -> Names<'a> {
        let mut disks: BTreeMap<&str, usize> = BTreeMap::new();
        for disk in view.disks.values() {
            *disks.entry(&disk.record.name).or_default() += 1;
        }
        Names { disks }
    }

    /// Returns what a disk is called: by its name, or by its identity if another disk has that name as well.
    fn of_disk(&self, id: &'a str, record: &'a DiskRecord) -> &'a str {
        if self.disks.get(record.name.as_str()) == Some(&1) { &record.name } else { id }
    }

    /// Returns what a disk's VM is called.
    fn of_vm(&self, id: &'a str, record: &'a DiskRecord) -> &'a str {
        record.vm.as_deref().unwrap_or_else(|| self.of_disk(id, record))
    }
}

fn vms(view: &View) -> Vec<Vm> {
    let names = Names::new(view);
    // The key includes the host: a VM whose disks are on two hosts is being moved.
    let mut vms: BTreeMap<(&str, &str), Vm> = BTreeMap::new();
    for (id, seen) in &view.disks {
        let record = &seen.record;
        let (name, vm) = (names.of_disk(id, record), names.of_vm(id, record));
        let entry = vms.entry((vm, record.host.as_str())).or_insert_with(|| Vm {
            name: VmName(vm.into()),
            tenant: TenantName(record.tenant.clone().unwrap_or_default()),
            host: HostName(record.host.clone()),
            ..Vm::default()
        });
        let intent = view.intents.get(id).map(|intent| &intent.record);
        let intent = intent.filter(|intent| !view.progress(id, intent).is_over()).map(|intent| &intent.to);
        if let Some(to) = record.moving_to.as_ref().or(intent).filter(|to| view.hosts.contains_key(*to)) {
            entry.moving_to = Some(HostName(to.clone()));
        }
        if entry.pinned.is_none() {
            entry.pinned = pinned(record);
        }
        let needs = &record.vm_needs;
        // All disks of a VM say the same, unless one of them was not reported again yet.
        entry.memory_bytes = entry.memory_bytes.max(needs.memory_bytes);
        entry.vcpus = entry.vcpus.max(needs.processors);
        entry.anti_affinity.extend(needs.apart.iter().cloned());
        entry.disks.push(disk(name, record));
    }
    // A VM with disks on two hosts would appear as two VMs with one name: `set_apart` renames its parts, and none of
    // them moves.
    let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
    vms.keys().for_each(|(name, _)| *parts.entry(name).or_default() += 1);
    let finished = vms.into_iter().map(|((name, _), mut vm)| {
        vm.anti_affinity.sort();
        vm.anti_affinity.dedup();
        if parts[name] > 1 {
            set_apart(&mut vm, &parts);
        }
        vm
    });
    finished.collect()
}

/// Gives a part of a VM that is on several hosts a name that no other VM has; it does not move.
fn set_apart(part: &mut Vm, others: &BTreeMap<&str, usize>) {
    part.pinned = Some(format!("disks of VM '{}' are on several hosts", part.name));
    part.name.0 = format!("{}@{}", part.name, part.host);
    while others.contains_key(part.name.0.as_str()) {
        part.name.0.push('@');
    }
}

fn pinned(disk: &DiskRecord) -> Option<String> {
    match disk.state.as_str() {
        _ if !disk.can_move => Some(format!("disk '{}' does not move", disk.name)),
        "attached" => None,
        state => Some(format!("disk '{}' is {state}", disk.name)),
    }
}

fn disk(name: &str, record: &DiskRecord) -> Disk {
    let worth = &record.worth;
    let blocks = |bytes: u64| bytes / BLOCK;
    let curve = worth.curve.iter().map(|(bytes, ratio)| (blocks(*bytes), *ratio)).collect();
    Disk {
        name: DiskName(name.into()),
        demand_blocks: blocks(record.demand_bytes),
        reservation_blocks: blocks(worth.reservation_bytes),
        limit_blocks: worth.limit_bytes.map(blocks),
        priority: if worth.priority.is_finite() { worth.priority.max(0.0) } else { 1.0 },
        cached_blocks: blocks(record.usage_bytes),
        dirty_blocks: blocks(record.dirty_bytes),
        reused_blocks: blocks(worth.reused_bytes),
        accesses_per_s: record.load.requests_per_s,
        // A curve that another version has written in another format is treated as empty.
        curve: Curve::new(curve).unwrap_or_default(),
        origin_latency_us: worth.origin_latency_us,
        cache_latency_us: worth.cache_latency_us,
    }
}

/// Returns the tenants that operators have set.
pub fn tenants(view: &View) -> Vec<Tenant> {
    let tenant = |(name, seen): (&String, &Seen<TenantRecord>)| Tenant {
        name: TenantName(name.clone()),
        weight: seen.record.weight,
        reservation_blocks: seen.record.reservation_bytes / BLOCK,
        limit_blocks: seen.record.limit_bytes.map(|bytes| bytes / BLOCK),
    };
    view.tenants.iter().map(tenant).collect()
}

/// Returns what hosts that are alive say about loans of flash.
pub fn offers(view: &View) -> Offers {
    let named =
        |names: &BTreeSet<String>| -> BTreeSet<HostName> { names.iter().cloned().map(HostName).collect() };
    let mut offers = Offers { moves_are_made: view.leader.is_some(), ..Offers::default() };
    for (name, seen) in &view.hosts {
        let (name, record) = (HostName(name.clone()), &seen.record);
        if let Some(lends) = &record.lends {
            let (spare_blocks, to) = (lends.spare_bytes / BLOCK, lends.to.as_ref().map(named));
            offers.lenders.insert(name.clone(), Lends { spare_blocks, to });
        }
        if let Some(borrows) = &record.borrows {
            let from = borrows.iter().map(|(host, bytes)| (HostName(host.clone()), bytes / BLOCK)).collect();
            offers.borrowers.insert(name, Borrows { from, reaches: named(&record.reaches) });
        }
    }
    offers
}

/// A disk's identity and name.
pub type Named = (String, String);

/// Returns the disks of some VMs as [`of`] names them, each on a host.
pub fn disks_of<'a>(
    view: &'a View,
    vms: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<(&'a str, &'a str), Vec<Named>> {
    let mut all: BTreeMap<_, Vec<Named>> = vms.into_iter().map(|vm| (vm, Vec::new())).collect();
    if all.is_empty() {
        return all;
    }
    let names = Names::new(view);
    for (id, seen) in &view.disks {
        let record = &seen.record;
        if let Some(disks) = all.get_mut(&(names.of_vm(id, record), record.host.as_str())) {
            disks.push((id.clone(), record.name.clone()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use haversack_directory::{DrainRecord, LendRecord, VmNeeds};

    use super::*;
    use crate::samples::{add_disk, add_host, seen};

    fn names(snapshot: &Snapshot) -> Vec<(&str, &str, usize)> {
        snapshot.vms.iter().map(|vm| (vm.name.0.as_str(), vm.host.0.as_str(), vm.disks.len())).collect()
    }

    #[test]
    fn hosts_have_all_their_pools_and_their_state() {
        let mut view = View::default();
        add_host(&mut view, "alpha", true);
        add_host(&mut view, "beta", true);
        add_host(&mut view, "gamma", false);
        view.drains.insert("beta".into(), seen(DrainRecord::default()));
        let snapshot = of(&view);
        let hosts: Vec<_> = snapshot
            .hosts
            .iter()
            .map(|host| (host.name.0.as_str(), host.state, host.capacity_blocks))
            .collect();
        let expected = [
            ("alpha", HostState::Serving, 200),
            ("beta", HostState::Draining, 200),
            ("gamma", HostState::Away, 200),
        ];
        assert_eq!(hosts, expected);
    }

    #[test]
    fn what_cannot_take_a_vm_offers_nothing() {
        let mut view = View::default();
        add_host(&mut view, "alpha", true);
        add_host(&mut view, "beta", true);
        view.pools.get_mut(&("alpha".into(), "b".into())).unwrap().record.state = "failed".into();
        view.hosts.get_mut("beta").unwrap().record.moves_disks = false;
        let snapshot = of(&view);
        let hosts: Vec<_> = snapshot.hosts.iter().map(|host| (host.state, host.capacity_blocks)).collect();
        assert_eq!(hosts, [(HostState::Serving, 100), (HostState::Away, 200)]);
    }

    #[test]
    fn what_hosts_say_of_loans_is_known_while_they_are_alive() {
        let mut view = View::default();
        for name in ["alpha", "beta", "gamma"] {
            add_host(&mut view, name, name != "gamma");
        }
        let to = Some(BTreeSet::from(["alpha".to_string()]));
        let of = |view: &mut View, name: &str| view.hosts.remove(name).unwrap().record;
        let mut alpha = of(&mut view, "alpha");
        alpha.borrows = Some(BTreeMap::from([("beta".into(), 3 * BLOCK)]));
        alpha.reaches.insert("beta".into());
        let mut beta = of(&mut view, "beta");
        beta.lends = Some(LendRecord { spare_bytes: 7 * BLOCK, to });
        view.hosts.insert("alpha".into(), seen(alpha));
        view.hosts.insert("beta".into(), seen(beta));
        let offers = offers(&view);
        let lends = &offers.lenders[&HostName::from("beta")];
        assert_eq!((lends.spare_blocks, lends.to.as_ref().unwrap().len()), (7, 1));
        let borrows = &offers.borrowers[&HostName::from("alpha")];
        assert_eq!(borrows.from, BTreeMap::from([("beta".into(), 3)]));
        assert!(borrows.reaches.contains(&HostName::from("beta")));
        assert!(offers.lenders.len() == 1 && offers.borrowers.len() == 1 && !offers.moves_are_made);
    }

    #[test]
    fn disks_of_a_vm_are_together_and_others_are_vms_of_their_own() {
        let mut view = View::default();
        add_host(&mut view, "alpha", true);
        add_disk(&mut view, "1", "web-root", Some("web"), "alpha");
        add_disk(&mut view, "2", "web-data", Some("web"), "alpha");
        add_disk(&mut view, "3", "db", None, "alpha");
        let snapshot = of(&view);
        assert_eq!(names(&snapshot), [("db", "alpha", 1), ("web", "alpha", 2)]);
        let web = &snapshot.vms[1];
        assert_eq!((web.pinned.as_deref(), web.tenant.0.as_str()), (None, "shop"));
        assert_eq!(
            (web.disks[0].demand_blocks, web.disks[0].cached_blocks, web.disks[0].dirty_blocks),
            (10, 8, 2)
        );
        assert_eq!(web.disks[0].curve.points(), [(1, 0.5), (4, 0.75)]);
        let of = |vm: &str, host: &str| {
            let disks = disks_of(&view, [(vm, host)]).remove(&(vm, host)).unwrap();
            disks.into_iter().map(|(id, name)| id + " " + &name).collect::<Vec<_>>()
        };
        assert_eq!(of("web", "alpha"), ["1 web-root", "2 web-data"]);
        assert_eq!(of("db", "alpha"), ["3 db"]);
        assert!(of("db", "beta").is_empty());
    }

    #[test]
    fn what_vms_need_and_hosts_have_is_known() {
        let mut view = View::default();
        add_host(&mut view, "alpha", true);
        add_disk(&mut view, "1", "web-root", Some("web"), "alpha");
        add_disk(&mut view, "2", "web-data", Some("web"), "alpha");
        let host = &mut view.hosts.get_mut("alpha").unwrap().record;
        (host.memory_bytes, host.processors) = (Some(64 << 30), Some(16));
        for id in ["1", "2"] {
            let needs =
                VmNeeds { memory_bytes: 4 << 30, processors: 2, apart: BTreeSet::from(["web".into()]) };
            view.disks.get_mut(id).unwrap().record.vm_needs = needs;
        }
        let Snapshot { hosts, vms } = of(&view);
        assert_eq!((hosts[0].memory_bytes, hosts[0].vcpus), (Some(64 << 30), Some(16)));
        assert_eq!(
            (vms[0].memory_bytes, vms[0].vcpus, &*vms[0].anti_affinity),
            (4 << 30, 2, &["web".to_string()][..])
        );
    }

    #[test]
    fn what_must_not_move_is_pinned() {
        let mut view = View::default();
        add_host(&mut view, "alpha", true);
        add_host(&mut view, "beta", true);
        add_disk(&mut view, "1", "web-root", Some("web"), "alpha");
        add_disk(&mut view, "2", "web-data", Some("web"), "beta");
        // The same name for two disks, as on hosts whose disks do not move.
        add_disk(&mut view, "3", "local", None, "alpha");
        add_disk(&mut view, "4", "local", None, "beta");
        for id in ["3", "4"] {
            view.disks.get_mut(id).unwrap().record.can_move = false;
        }
        let snapshot = of(&view);
        let expected =
            [("3", "alpha", 1), ("4", "beta", 1), ("web@alpha", "alpha", 1), ("web@beta", "beta", 1)];
        assert_eq!(names(&snapshot), expected);
        assert!(snapshot.vms.iter().all(|vm| vm.pinned.is_some()), "{:?}", snapshot.vms);
        assert_eq!(disks_of(&view, [("3", "alpha")])[&("3", "alpha")], [("3".into(), "local".into())]);
        // A VM with the name that a part of another VM would get.
        add_disk(&mut view, "5", "odd", Some("web@alpha"), "beta");
        let names: BTreeSet<String> = of(&view).vms.into_iter().map(|vm| vm.name.0).collect();
        assert!(names.len() == 5 && names.contains("web@alpha@"), "{names:?}");
    }
}
