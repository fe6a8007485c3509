//! Views for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use haversack_directory::{DiskRecord, HostRecord, Load, PoolRecord, Seen, View, VmNeeds, Worth};
use haversack_model::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Returns a record that was seen just now.
pub fn seen<T>(record: T) -> Seen<T> {
    Seen { record, created: 1, revision: 1, lease: 0, at: Instant::now() }
}

/// Adds a host with two pools of 100 blocks, `a` and `b`.
pub fn add_host(view: &mut View, name: &str, is_alive: bool) {
    let host = HostRecord {
        instance: 1,
        reports: 1,
        report_every_s: 10.0,
        software: "0".into(),
        reaches: BTreeSet::new(),
        moves_disks: true,
        link_bytes_per_s: None,
        memory_bytes: None,
        processors: None,
        lends: None,
        borrows: None,
    };
    if is_alive {
        view.hosts.insert(name.into(), seen(host));
    }
    let pool = PoolRecord {
        state: "ok".into(),
        capacity_bytes: 100 * BLOCK,
        demand_bytes: 0,
        usage_bytes: 0,
        dirty_bytes: 0,
        load: Load::default(),
        tenant_limits: BTreeMap::new(),
    };
    view.pools.insert((name.into(), "a".into()), seen(pool.clone()));
    view.pools.insert((name.into(), "b".into()), seen(pool));
}

/// Adds a disk that demands 10 blocks of pool `a`.
pub fn add_disk(view: &mut View, id: &str, name: &str, vm: Option<&str>, host: &str) {
    let disk = DiskRecord {
        name: name.into(),
        vm: vm.map(Into::into),
        tenant: Some("shop".into()),
        host: host.into(),
        epoch: 1,
        pool: "a".into(),
        state: "attached".into(),
        can_move: true,
        vm_needs: VmNeeds::default(),
        size_bytes: 1000 * BLOCK,
        demand_bytes: 10 * BLOCK,
        usage_bytes: 8 * BLOCK,
        dirty_bytes: 2 * BLOCK,
        clients: 1,
        moving_to: None,
        replica_at: None,
        is_replicated: false,
        load: Load::default(),
        worth: Worth { priority: 1.0, curve: vec![(BLOCK, 0.5), (4 * BLOCK, 0.75)], ..Worth::default() },
    };
    view.disks.insert(id.into(), seen(disk));
}
