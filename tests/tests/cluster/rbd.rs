//! A disk on an RBD image in a cluster: a drained host, a dead one that is fenced, and its return. A client uses the
//! disk all the time, except while no host has it.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use haversack_e2e::ceph::Ceph;
use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_connected};
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::written::Written;
use haversack_e2e::{Error, Place, Result, test_alone};
use rustix::process::Signal;
use serde_json::Value;

use super::daemons::{NAMES, cluster, has_event, named, status, until_host};

const MIB: u64 = 16;
/// The blocks that the client uses.
const BLOCKS: u64 = 512;
/// What is written stays dirty while the disk has a replica.
const DISK: &str = "cleaner = { age = \"10000h\", idle = \"10000h\" }\nreplicate = \"auto\"";

struct Scene<'a> {
    place: &'a Place,
    ceph: Ceph,
    _etcd: Etcd<'a>,
    daemons: Vec<Haversack<'a>>,
    written: Written,
}

impl<'a> Scene<'a> {
    /// Three hosts know the disk, which is alpha's.
    fn new(place: &'a Place, places: &'a [Place; 3]) -> Result<Self> {
        let (ceph, etcd) = (Ceph::start(place)?, Etcd::start(place)?);
        let origin = ceph.image("vm1", MIB)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let fence = tools::workspace().join("packaging/fence/fence-rbd").display().to_string();
        let hook = format!("hook = {:?}\nhook_time = \"60s\"\n", hook(place, places)?.display().to_string());
        let mut daemons = Vec::new();
        for (host, name) in places.iter().zip(NAMES) {
            let tables = hosts.tables(name);
            let tables = tables.replace("[migration]\n", &format!("[migration]\nfence = {fence:?}\n"));
            let settings = Settings { more: tables + &cluster(&etcd, &hook), ..Settings::new(64, vec![]) };
            daemons.push(Haversack::start(host, settings)?);
        }
        // A disk is known to the others when its first host has it.
        for (daemon, from) in daemons.iter_mut().zip(["none", "alpha", "alpha"]) {
            wait_until("the daemon", PATIENCE, || daemon.process()?.handles(Signal::HUP))?;
            let disk = Disk::new("vm1", &origin).with(&format!("from = \"{from}\"\n{DISK}"));
            daemon.settings().disks = vec![disk];
            daemon.reload(&daemon.configuration())?;
            wait_until("the disk", PATIENCE, || Ok(daemon.socket("vm1.sock").exists()))?;
        }
        let written = Written::new("vm1", BLOCKS);
        Ok(Self { place, ceph, _etcd: etcd, daemons, written })
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.daemons[host].socket("nbd.sock")
    }

    /// Runs the client at a host until a condition holds.
    fn work_until(&mut self, host: usize, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let socket = self.socket(host);
        let mut written = self.written.clone();
        let worked = written.during(&socket, || wait_until(what, PATIENCE, || is_so(self)));
        self.written = written;
        worked
    }

    /// Waits for a complete replica of the disk, and returns its host.
    fn replicated(&mut self, host: usize) -> Result<usize> {
        self.work_until(host, "a complete replica", |scene| Ok(scene.replica(host)?["state"] == "complete"))?;
        let at = self.replica(host)?["host"].clone();
        NAMES.iter().position(|name| at == *name).ok_or_else(|| Error::Check(format!("it is at {at}")))
    }

    fn replica(&self, host: usize) -> Result<Value> {
        Ok(self.daemons[host].json(&["disk", "show", "vm1"])?["replica"].clone())
    }

    /// Drains a host, moves the client when the program asks for it, and returns the client's new host.
    fn drain(&mut self, from: usize) -> Result<usize> {
        let other = (from + 1) % NAMES.len();
        self.daemons[other].command(&["host", "drain", NAMES[from]])?;
        let asked = self.place.path("to");
        self.work_until(from, "the call of the program", |_| Ok(asked.exists()))?;
        let to = std::fs::read_to_string(&asked).map_err(Error::io("to"))?;
        let to = NAMES.iter().position(|name| to.trim() == *name);
        let to = to.ok_or_else(|| Error::Check("the program was called for no host".into()))?;
        std::fs::remove_file(&asked).map_err(Error::io("to"))?;
        self.work_until(to, "the move", |scene| {
            let left = state(&scene.daemons[from], "vm1")?;
            Ok(state(&scene.daemons[to], "vm1")? == "here" && (left == "away" || left == "waiting"))
        })?;
        std::fs::write(self.place.path("arrived"), "").map_err(Error::io("arrived"))?;
        self.work_until(to, "the end of the move in the directory", |scene| {
            let shown = status(&scene.daemons[to])?;
            Ok(named(&shown["disks"], "vm1")["host"] == NAMES[to] && shown["moves"] == serde_json::json!([]))
        })?;
        let list = self.daemons[from].command(&["disk", "list"])?;
        check(list.contains(&format!("is on host '{}'", NAMES[to])), list)?;
        self.place.say(&format!("{} is drained, and {} has the disk", NAMES[from], NAMES[to]));
        Ok(to)
    }

    /// The hosts that have the image locked.
    fn lockers(&self) -> Result<Vec<String>> {
        let host = |[_, description]: [String; 2]| description.rsplit(' ').next().map(str::to_owned);
        let mut hosts: Vec<String> = self.ceph.lockers("vm1")?.into_iter().filter_map(host).collect();
        hosts.sort_unstable();
        Ok(hosts)
    }
}

/// The program that moves the VM: it has the cache sent, asks the test to move the client, and waits until that is
/// done.
fn hook(place: &Place, places: &[Place; 3]) -> Result<PathBuf> {
    let socket = |host: &Place| host.path("run").join("control.sock").display().to_string();
    let cases: String =
        NAMES.iter().zip(places).map(|(name, host)| format!("{name}) s='{}' ;;\n", socket(host))).collect();
    let script = format!(
        "#!/bin/sh\nset -e\ncd '{}'\ncase \"$2\" in\n{cases}esac\n'{}' --socket \"$s\" migrate \"$1\" --to \"$3\"\n\
         echo \"$3\" >to.new\nmv to.new to\nwhile [ ! -e arrived ]; do sleep 0.05; done\nrm arrived\n",
        place.path("").display(),
        tools::own("haversack")?.get_program().display(),
    );
    let hook = place.path("hook");
    std::fs::write(&hook, script).map_err(Error::io("the hook"))?;
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).map_err(Error::io("the hook"))?;
    Ok(hook)
}

#[test]
fn a_disk_on_an_rbd_image_survives_a_drain_and_the_death_of_its_host() {
    test_alone("an RBD image in a cluster", |place| {
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let mut scene = Scene::new(place, &places)?;
        for daemon in &scene.daemons {
            NAMES.iter().try_for_each(|name| until_host(daemon, name, "alive"))?;
        }
        place.say("the hosts are there");
        scene.replicated(0)?;
        let dead = scene.drain(0)?;
        let heir = scene.replicated(dead)?;
        check(heir != 0, "a host that is drained gets the replica")?;
        place.say(&format!("{} has the replica", NAMES[heir]));
        die(&mut scene, dead)?;
        is_told(&scene, dead, heir)?;
        take_over(&mut scene, dead, heir)?;
        come_back(&mut scene, dead, heir)?;
        scene.daemons[0].command(&["host", "undrain", NAMES[dead]])?;
        let last = scene.drain(heir)?;
        check(last == dead, "the host that was dead gets no disk")?;
        scene.written.check(&scene.socket(last))?;
        check_image(&scene, last)
    });
}

/// A host dies under load with dirty blocks, and its lease in etcd ends.
fn die(scene: &mut Scene<'_>, dead: usize) -> Result<()> {
    let dirty = |daemon: &Haversack<'_>| {
        Ok::<_, Error>(daemon.json(&["disk", "show", "vm1"])?["usage"]["dirty_bytes"].as_u64())
    };
    scene.work_until(dead, "dirty blocks", |scene| {
        let reported = named(&status(&scene.daemons[0])?["disks"], "vm1")["is_replicated"] == true;
        Ok(reported && dirty(&scene.daemons[dead])? > Some(0))
    })?;
    let socket = scene.socket(dead);
    let (written, daemons) = (&mut scene.written, &mut scene.daemons);
    written.until_death(&socket, || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        daemons[dead].kill()
    })?;
    scene.place.say(&format!("{} is dead, after {} flushes", NAMES[dead], scene.written.flushes));
    until_host(&scene.daemons[0], NAMES[dead], "away")
}

/// Every host says what would be lost, and which host has the replica.
fn is_told(scene: &Scene<'_>, dead: usize, heir: usize) -> Result<()> {
    let third = &scene.daemons[0];
    let shown = named(&status(third)?["disks"], "vm1").clone();
    check(shown["is_host_alive"] == false && shown["dirty_bytes"].as_u64() > Some(0), format!("{shown}"))?;
    let text = third.command(&["cluster", "status", "--disks"])?;
    let replica = format!("a complete replica on host '{}'", NAMES[heir]);
    check(text.contains(&format!("{} (away)", NAMES[dead])) && text.contains(&replica), text)?;
    let refused = third.refused(&["disk", "own", "vm1", "--dry-run"])?;
    let right = format!("host '{}' answers, and has a complete replica of it", NAMES[heir]);
    check(refused.contains(&right), refused)
}

fn take_over(scene: &mut Scene<'_>, dead: usize, heir: usize) -> Result<()> {
    let daemon = &scene.daemons[heir];
    let shown = daemon.json(&["disk", "own", "vm1", "--dry-run"])?;
    check(shown["replica"]["is_complete"] == true && shown["host"] == NAMES[dead], format!("{shown}"))?;
    check(shown["fenced_first"] == serde_json::json!([NAMES[dead]]), format!("{shown}"))?;
    daemon.command(&["disk", "own", "vm1", "--confirm", "vm1", "--owner-stopped"])?;
    check(has_event(daemon, "fenced")?, "it was not fenced")?;
    check(!scene.ceph.blocklist()?.is_empty(), "no client is blocklisted")?;
    check(!scene.lockers()?.contains(&NAMES[dead].to_owned()), format!("locked by {:?}", scene.lockers()?))?;
    scene.written.check(&scene.socket(heir))?;
    scene.place.say(&format!("{} has taken it over, and what was flushed is there", NAMES[heir]));
    scene.work_until(heir, "the new owner in the directory", |scene| {
        Ok(named(&status(&scene.daemons[0])?["disks"], "vm1")["host"] == NAMES[heir])
    })
}

/// The fenced host is back, and does not use the disk until an operator readmits it.
fn come_back(scene: &mut Scene<'_>, dead: usize, heir: usize) -> Result<()> {
    // After this flush nothing overwrites the image, so the check would find a write of the fenced host.
    scene.daemons[heir].command(&["disk", "flush", "vm1"])?;
    scene.daemons[0].command(&["host", "drain", NAMES[dead]])?;
    let back = &mut scene.daemons[dead];
    back.settings().disks[0].attachable = false;
    back.start_again()?;
    scene.work_until(heir, "the return", |scene| {
        let error = scene.daemons[dead].json(&["disk", "show", "vm1"])?["error"].clone();
        let taken = format!("host '{}' has taken over disk 'vm1'", NAMES[heir]);
        let is_told = has_event(&scene.daemons[dead], "overtaken")?;
        Ok(is_told && error.as_str().is_some_and(|why| why.contains(&taken)))
    })?;
    scene.place.say(&format!("{} is back", NAMES[dead]));
    check(!scene.lockers()?.contains(&NAMES[dead].to_owned()), "it has locked the image again")?;
    check_image(scene, heir)?;
    scene.daemons[dead].command(&["disk", "forget", "vm1", "--confirm", "vm1"])?;
    wait_until_connected(&scene.daemons[dead])?;
    scene.daemons[dead].attach("vm1")?;
    check(state(&scene.daemons[dead], "vm1")? == "waiting", "it has the disk")?;
    check(scene.lockers()? == NAMES, format!("locked by {:?}", scene.lockers()?))?;
    scene.place.say("it is let in again");
    Ok(())
}

/// Has the owner write everything back, and checks each byte of the image.
fn check_image(scene: &Scene<'_>, owner: usize) -> Result<()> {
    scene.daemons[owner].command(&["disk", "flush", "vm1"])?;
    let copy = scene.place.path("copy.img");
    let _ = std::fs::remove_file(&copy);
    scene.ceph.export("vm1", &copy)?;
    scene.written.check_image(&copy)
}
