//! Tests how long it takes to process a large cluster.

use std::time::{Duration, Instant};

use haversack_cluster::{Balancer, Settings};
use haversack_directory::{TenantRecord, View};
use haversack_model::BLOCK_BYTES;
use haversack_moves::samples::{add_disk, add_host, seen};
use haversack_moves::snapshot;

use super::{show, tenants};

const HOSTS: usize = 200;
const DISKS: usize = 1000;
/// What nothing may take, even on a busy machine and without optimisation.
const MOST: Duration = Duration::from_secs(20);

fn large() -> View {
    let mut view = View::default();
    for host in 0..HOSTS {
        let host = format!("host-{host}");
        add_host(&mut view, &host, true);
        for disk in 0..DISKS {
            let name = format!("{host}-disk-{disk}");
            let id = format!("{name}-0c6b1b5e-7b0c-4f0e-a5a0");
            add_disk(&mut view, &id, &name, None, &host);
            let record = &mut view.disks.get_mut(&id).unwrap().record;
            record.tenant = Some(format!("tenant-{}", disk % 50));
            record.worth.curve =
                (1..=16).map(|point| (point * BLOCK_BYTES as u64, point as f64 / 20.0)).collect();
        }
    }
    for tenant in 0..50 {
        let record = TenantRecord { weight: 1.0, reservation_bytes: 0, limit_bytes: Some(1 << 40) };
        view.tenants.insert(format!("tenant-{tenant}"), seen(record));
    }
    view
}

fn timed<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = act();
    let took = begin.elapsed();
    eprintln!("{what}: {:.0} ms", took.as_secs_f64() * 1e3);
    assert!(took < MOST, "{what} took {took:?}");
    result
}

#[test]
fn two_hundred_thousand_disks_are_looked_at_in_bounded_time() {
    let view = large();
    assert_eq!(view.disks.len(), HOSTS * DISKS);
    // The view is copied if the directory changes while somebody reads the view.
    drop(timed("a copy of the view", || view.clone()));
    let snapshot = timed("a snapshot", || snapshot::of(&view));
    assert_eq!((snapshot.hosts.len(), snapshot.vms.len()), (HOSTS, HOSTS * DISKS));
    let parts = timed("tenants' parts", || tenants::parts_of(&view)).unwrap();
    assert_eq!(parts.bounds.len(), HOSTS * 50);
    let hosts = timed("the hosts' status", || show::hosts(&view, Instant::now()));
    assert!(hosts.iter().all(|host| host.disks == DISKS as u64));
    let mut balancer = Balancer::new(Settings::default()).unwrap();
    timed("a look of the balancer", || balancer.observe(&snapshot)).unwrap();
    timed("a plan", || balancer.plan(1, &snapshot)).unwrap();
}
