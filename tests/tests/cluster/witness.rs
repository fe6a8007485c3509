//! The directory tells hosts who has taken a disk over by force, even if no host that knows of it answers.

use std::time::Duration;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Place, Result, image, test};

use super::daemons::{NAMES, cluster, has_event, named, status};

const MIB: u64 = 32;
/// What is written stays dirty until it is flushed to the origin.
const DIRTY: &str = "cleaner = { age = \"10000h\", idle = \"10000h\" }";
/// A guest that waits asks for its disk several times in this time.
const QUESTIONS: Duration = Duration::from_secs(5);

fn fill(host: &Haversack<'_>, value: u8) -> Result<()> {
    let mut guest = Connection::open(&host.socket("nbd.sock"), "vm1")?;
    guest.fill(0..64, value)?;
    guest.ask(Command::Flush, 0, 0, &mut [])
}

/// A cluster whose first host owns a disk, for which the others wait.
struct Scene<'a> {
    daemons: Vec<Haversack<'a>>,
    tables: Vec<String>,
    _origin: Nbdkit,
}

impl<'a> Scene<'a> {
    fn new(place: &Place, places: &'a [Place], etcd: &Etcd<'_>) -> Result<Self> {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let names = &NAMES[..places.len()];
        let hosts = Hosts::new(place, names)?;
        let tables: Vec<String> = names.iter().map(|name| hosts.tables(name)).collect();
        let disk = Disk::new("vm1", origin.uri()).with(DIRTY);
        let mut daemons = Vec::new();
        for (place, table) in places.iter().zip(&tables) {
            let disk = if daemons.is_empty() { disk.clone().with("from = \"none\"") } else { disk.clone() };
            let more = table.clone() + &cluster(etcd, "");
            daemons.push(Haversack::start(place, Settings { more, ..Settings::new(128, vec![disk]) })?);
        }
        for daemon in &daemons[1..] {
            wait_until("the disk at all hosts", PATIENCE, || Ok(state(daemon, "vm1")? == "waiting"))?;
        }
        Ok(Self { daemons, tables, _origin: origin })
    }

    /// Takes the disk over on the last host; all others are dead. Waits until the directory shows the takeover, and
    /// kills the last host.
    fn take_over_and_die(&mut self) -> Result<()> {
        let last = self.daemons.len() - 1;
        let heir = &mut self.daemons[last];
        let dead = NAMES[..last].join(",");
        heir.command(&[
            "disk",
            "own",
            "vm1",
            "--confirm",
            "vm1",
            "--accept-loss",
            "vm1",
            "--without-fence",
            &dead,
        ])?;
        fill(heir, 3)?;
        wait_until("the new entry", PATIENCE, || {
            Ok(named(&status(heir)?["disks"], "vm1")["host"] == NAMES[last])
        })?;
        heir.kill()
    }

    /// Starts a killed daemon again, whose disk cannot be attached at first.
    fn start_again(&mut self, host: usize) -> Result<()> {
        let settings = self.daemons[host].settings();
        settings.disks = std::mem::take(&mut settings.disks).into_iter().map(Disk::unattachable).collect();
        self.daemons[host].start_again()
    }
}

fn disk_error(host: &Haversack<'_>) -> Result<String> {
    Ok(host.json(&["disk", "show", "vm1"])?["error"].as_str().unwrap_or_default().to_owned())
}

/// Waits until a former owner refuses to attach the disk because it was taken over.
fn until_refused(host: &Haversack<'_>) -> Result<()> {
    wait_until("the refusal", PATIENCE, || Ok(disk_error(host)?.contains("taken over by another host")))
}

/// The host that has taken the disk over is down when the former owner starts: no host can tell the former owner.
#[test]
fn a_former_owner_learns_of_a_take_over_from_the_directory() {
    test("a former owner that only the directory tells", |place| {
        let etcd = Etcd::start(place)?;
        let places = [place.host("a")?, place.host("b")?];
        let mut scene = Scene::new(place, &places, &etcd)?;
        fill(&scene.daemons[0], 1)?;
        scene.daemons[0].kill()?;
        scene.take_over_and_die()?;
        scene.start_again(0)?;
        let alpha = &scene.daemons[0];
        until_refused(alpha)?;
        check(has_event(alpha, "directory-overtaken")?, "no event says why")?;

        place.say("the directory is gone as well");
        scene.daemons[0].kill()?;
        drop(etcd);
        scene.daemons[0].start_again()?;
        let alpha = &scene.daemons[0];
        until_refused(alpha)?;

        place.say("the new owner is back");
        scene.daemons[1].start_again()?;
        let mut guest = Connection::open(&scene.daemons[1].socket("nbd.sock"), "vm1")?;
        guest.check_filled(0..64, 3)
    });
}

/// A host that never had the disk does not take it from a former owner that has not heard of the takeover.
#[test]
fn a_host_that_the_directory_tells_of_a_take_over_takes_nothing_from_a_former_owner() {
    test("a former owner that misleads no other host", |place| {
        let etcd = Etcd::start(place)?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let mut scene = Scene::new(place, &places, &etcd)?;
        fill(&scene.daemons[0], 1)?;
        scene.daemons[0].kill()?;
        scene.daemons[1].kill()?;
        scene.take_over_and_die()?;

        place.say("the former owner starts without a directory");
        let with = scene.tables[0].clone() + &cluster(&etcd, "");
        let file = &mut scene.daemons[0].settings().more;
        *file = file.replace(&with, &scene.tables[0]);
        scene.daemons[0].start_again()?;
        check(state(&scene.daemons[0], "vm1")? == "here", "nothing tells the former owner")?;

        place.say("the third host starts with one");
        scene.start_again(1)?;
        let beta = &scene.daemons[1];
        // Either the directory was known when the disk was attached, or it was a moment later.
        wait_until("the news", PATIENCE, || {
            let is_refused = disk_error(beta)?.contains("this host knows that it was owned under epoch");
            Ok(is_refused || has_event(beta, "overtaken")?)
        })?;
        let socket = beta.socket("nbd.sock");
        let is_there = disk_error(beta)?.is_empty();
        let guest = is_there
            .then(|| std::thread::spawn(move || Connection::open(&socket, "vm1")?.check_filled(0..64, 3)));
        std::thread::sleep(QUESTIONS);
        // Beta may have asked for the cache before the directory was known.
        let state_there = state(&scene.daemons[0], "vm1")?;
        let is_owner = ["here", "sending"].contains(&state_there.as_str());
        check(is_owner, format!("the former owner gave the disk away: {state_there}"))?;

        place.say("the new owner is back");
        scene.daemons[2].start_again()?;
        if let Some(guest) = guest {
            return guest.join().expect("the guest does not panic");
        }
        wait_until("the disk at beta", PATIENCE, || {
            drop(scene.daemons[1].attach("vm1"));
            Ok(state(&scene.daemons[1], "vm1").is_ok_and(|state| state == "waiting"))
        })?;
        Connection::open(&scene.daemons[1].socket("nbd.sock"), "vm1")?.check_filled(0..64, 3)
    });
}
