//! Origins that `haversackd` reaches through a helper: iSCSI, qcow2 and RBD. The helper is killed under load, and so
//! is the daemon.

use std::path::Path;
use std::time::Duration;

use haversack_e2e::ceph::Ceph;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::scenario::{self, Load};
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tgt::Tgt;
use haversack_e2e::tools::PATIENCE;
use haversack_e2e::{Guest, Place, Result, image, test, test_alone, tools};

/// How often the daemon is killed under load.
const KILLS: u32 = 5;

/// A load on a small cache before `origin`, with kills. Returns the digest of the disk, all of which is at the origin.
fn load_with_kills(place: &Place, origin: String) -> Result<String> {
    let mut daemon = Haversack::start(place, Settings::new(32, vec![Disk::new("vm1", origin)]))?;
    let mut guest = Guest::boot(place, "guest", &[daemon.vhost_user("vm1")])?;
    guest.ask("open vda vm1 zeroes")?;
    let mut load = Load::start(place, &mut guest, &["vda"], 1)?;
    load.advance(300)?;
    let helpers = daemon.kill_helpers()?;
    check(helpers > 0, "the daemon has no helper process")?;
    place.say("helper killed");
    load.advance(500)?;
    for _ in 0..KILLS {
        daemon.kill_and_restart(Duration::from_millis(100))?;
        load.advance(100)?;
    }
    place.say(&format!("daemon killed and restarted {KILLS} times"));
    load.stop()?;
    let digest = scenario::verify(place, &mut guest, "vda")?;
    guest.off()?;
    daemon.command(&["disk", "flush", "vm1"])?;
    daemon.stop()?;
    Ok(digest)
}

#[test]
fn an_iscsi_origin() {
    test("iSCSI origin", |place| {
        let file = image::zeroes(place, "lun.img", 64)?;
        let target = Tgt::start(place, "tgt", &file, None)?;
        let digest = load_with_kills(place, target.uri())?;
        scenario::same_digest(&file, &digest)
    });
}

#[test]
fn a_qcow2_origin() {
    test("qcow2 origin", |place| {
        let (image, raw) = (place.path("origin.qcow2"), place.path("origin.img"));
        qemu_img(&["create", "-q", "-f", "qcow2"], &image, &["64M"])?;
        let digest = load_with_kills(place, format!("qcow2:{}", image.display()))?;
        // The helper that was killed may have left clusters that nothing refers to. Anything worse is an error.
        qemu_img(&["check", "-q", "-r", "leaks"], &image, &[])?;
        qemu_img(&["convert", "-f", "qcow2", "-O", "raw"], &image, &[&raw.display().to_string()])?;
        scenario::same_digest(&raw, &digest)
    });
}

#[test]
fn an_rbd_origin() {
    test_alone("RBD origin", |place| {
        let ceph = Ceph::start(place)?;
        let digest = load_with_kills(place, ceph.image("vm1", 64)?)?;
        // Only the helper that was killed itself has left the image open. Those of the daemons have closed it.
        let blocked = ceph.blocklist()?;
        check(blocked.len() <= 1, format!("helpers of killed daemons had the image open: {blocked:?}"))?;
        let copy = place.path("vm1.img");
        ceph.export("vm1", &copy)?;
        scenario::same_digest(&copy, &digest)
    });
}

#[test]
fn an_rbd_image_that_another_client_has_open_is_refused() {
    test_alone("RBD image in use", |place| {
        let ceph = Ceph::start(place)?;
        let origin = ceph.image("vm1", 64)?;
        let daemon = Haversack::start(place, Settings::new(32, vec![]))?;
        let pool = daemon.pool();
        let attach = ["disk", "attach", "vm1", &origin, "--pool", &pool];
        let other = StorageDaemon::start(place, "other", ceph.node("vm1"))?;
        let refused = daemon.command(&attach).expect_err("another client has it open").to_string();
        check(refused.contains("RBD image vms/vm1 is open on") && refused.contains("127.0.0.1:"), &refused)?;
        drop(other);
        // A client that did not close the image stays listed for a while.
        tools::wait_until("the end of the other client's watch", PATIENCE, || {
            Ok(daemon.command(&attach).is_ok())
        })
    });
}

/// The lock is the pool's: it stays while the daemon is down, and goes with the disk.
#[test]
fn an_rbd_image_is_locked_for_the_pool_that_caches_it() {
    test_alone("RBD lock", |place| {
        let ceph = Ceph::start(place)?;
        let origin = ceph.image("vm1", 64)?;
        let mut daemon = Haversack::start(place, Settings::new(32, vec![]))?;
        let pool = daemon.pool();
        let attach = ["disk", "attach", "vm1", &origin, "--pool", &pool];

        ceph.lock("vm1", "another-pool/vm1")?;
        let refused = daemon.command(&attach).expect_err("another pool has the lock").to_string();
        let told = ["is locked by elsewhere", "lock break", "--lock-cookie another-pool/vm1"];
        check(told.iter().all(|words| refused.contains(words)), &refused)?;
        check(ceph.lockers("vm1")?[0][0] == "another-pool/vm1", "the other pool's lock is gone")?;
        ceph.break_lock("vm1")?;

        daemon.command(&attach)?;
        let [cookie, description] = ceph.lockers("vm1")?.pop().unwrap_or_default();
        check(description.starts_with(&format!("disk vm1 of pool {pool} on ")), &description)?;
        check(ceph.lock("vm1", "another-pool/vm1").is_err(), "a second pool gets the lock")?;
        daemon.kill()?;
        check(ceph.lock("vm1", "another-pool/vm1").is_err(), "the lock ends with the daemon")?;
        daemon.start_again()?;
        tools::wait_until("the disk", PATIENCE, || {
            Ok(daemon.json(&["disk", "show", "vm1"]).is_ok_and(|disk| disk["state"] == "attached"))
        })?;
        check(ceph.lockers("vm1")?[0][0] == cookie, "it is not the same lock")?;
        daemon.command(&["disk", "detach", "vm1"])?;
        check(ceph.lockers("vm1")?.is_empty(), "the lock stays after a detach")?;
        ceph.lock("vm1", "another-pool/vm1")
    });
}

fn qemu_img(before: &[&str], image: &Path, after: &[&str]) -> Result<()> {
    let mut command = tools::tool("qemu-img")?;
    command.args(before).arg(image).args(after);
    tools::run(command).map(|_| ())
}
