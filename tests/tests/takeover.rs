//! A host dies for good, and another one takes its disks over: two daemons over TLS, one origin.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use haversack_e2e::ceph::Ceph;
use haversack_e2e::clients::qemu_io;
use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test, tools};

const MIB: u64 = 64;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = (MIB << 20) / BLOCK;

fn state(host: &Haversack<'_>) -> Result<String> {
    Ok(host.json(&["migrate", "status", "vm1"])?["state"].as_str().unwrap_or_default().to_owned())
}

/// Runs a command that must fail; returns what it complained of.
fn refused(host: &Haversack<'_>, arguments: &[&str]) -> Result<String> {
    match host.command(arguments) {
        Ok(text) => Err(Error::Check(format!("{arguments:?} was not refused: {text}"))),
        Err(error) => Ok(error.to_string()),
    }
}

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
}

/// Fills blocks with a value.
fn write(guest: &mut Connection, blocks: std::ops::Range<u64>, value: u8) -> Result<()> {
    for block in blocks {
        guest.ask(Command::Write, block * BLOCK, BLOCK as u32, &mut vec![value; BLOCK as usize])?;
    }
    Ok(())
}

/// Reads a block; returns the value that fills it, or `None` if the read fails.
fn read(guest: &mut Connection, block: u64) -> Result<Option<u8>> {
    let mut data = vec![0; BLOCK as usize];
    match guest.ask(Command::Read, block * BLOCK, BLOCK as u32, &mut data) {
        Ok(()) => {
            let same = data.iter().all(|byte| *byte == data[0]);
            check(same, format!("block {block} is of several versions"))?;
            Ok(Some(data[0]))
        }
        Err(Error::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn program(place: &Place, name: &str, script: &str) -> Result<PathBuf> {
    let path = place.path(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).map_err(Error::io(name))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(Error::io(name))?;
    Ok(path)
}

struct Pair<'a> {
    alpha: Haversack<'a>,
    beta: Haversack<'a>,
    _origin: Nbdkit,
    file: PathBuf,
}

impl<'a> Pair<'a> {
    fn new(place: &Place, places: &'a [Place; 2], more: &str) -> Result<Self> {
        let file = image::zeroes(place, "vm1.img", MIB)?;
        let origin = Nbdkit::file(place, "origin1", &file)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let tables = |me: &str| {
            let (migration, others) = hosts.tables(me).split_once("\n[[host]]").map_or_else(
                || (hosts.tables(me), String::new()),
                |(migration, others)| (migration.to_string(), format!("\n[[host]]{others}")),
            );
            // The order of the hosts decides which table is first.
            match migration.contains("[migration]") {
                true => format!("{migration}{more}\n{others}"),
                false => format!("{others}{more}\n"),
            }
        };
        let new = Disk::new("vm1", origin.uri()).with("from = \"none\"");
        let old = Disk::new("vm1", origin.uri());
        let settings = |disk, me| Settings { more: tables(me), ..Settings::new(256, vec![disk]) };
        let alpha = Haversack::start(&places[0], settings(new, "alpha"))?;
        let beta = Haversack::start(&places[1], settings(old, "beta"))?;
        wait_until("the disk at both hosts", PATIENCE, || Ok(state(&beta)? == "waiting"))?;
        Ok(Self { alpha, beta, _origin: origin, file })
    }

    /// Starts the dead daemon, whose disk cannot be attached any more.
    fn start_alpha(&mut self) -> Result<()> {
        let disks = std::mem::take(&mut self.alpha.settings().disks);
        self.alpha.settings().disks = disks.into_iter().map(Disk::unattachable).collect();
        self.alpha.start_again()
    }

    fn check_overtaken(&mut self) -> Result<()> {
        let alpha = &self.alpha;
        wait_until("the refusal", PATIENCE, || {
            let shown = alpha.json(&["disk", "show", "vm1"])?;
            Ok(shown["error"].as_str().unwrap_or_default().contains("taken over by another host"))
        })?;
        let events = alpha.command(&["events", "vm1", "--last", "100"])?;
        check(events.contains("'beta' has taken the disk over"), format!("no event: {events}"))?;
        let error = refused(alpha, &["disk", "forget", "vm1"])?;
        check(error.contains("not confirmed"), format!("what is dirty goes without a word: {error}"))?;
        alpha.command(&["disk", "forget", "vm1", "--confirm", "vm1"]).map(drop)
    }
}

fn origin_block(file: &Path, block: u64) -> Result<u8> {
    Ok(image::take(file, block * BLOCK, 1)?[0])
}

/// The guest has come to beta, most of its dirty blocks have not, and alpha dies.
#[test]
fn what_only_a_dead_host_had_is_lost_and_nothing_else() {
    test("taking over what has not arrived", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::new(place, &places, "")?;
        // Attaching it at beta has it sent ahead; that is called off.
        let _ = pair.alpha.command(&["migrate", "abort", "vm1"]);
        let mut guest = client(&pair.alpha)?;
        write(&mut guest, 0..BLOCKS / 2, 1)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        drop(guest);
        let mut guest = client(&pair.beta)?;
        write(&mut guest, 7..8, 2)?;
        pair.alpha.kill()?;
        let shown = pair.beta.json(&["disk", "own", "vm1", "--dry-run"])?;
        let ranges = shown["ranges"].as_array().cloned().unwrap_or_default();
        let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
        let is_lost = |block: u64| {
            let at = block * BLOCK;
            let holds = |range: &serde_json::Value| {
                let first = number(&range["offset_bytes"]);
                (first..first + number(&range["length_bytes"])).contains(&at)
            };
            ranges.iter().any(holds)
        };
        check(number(&shown["lost_bytes"]) > 0 && !is_lost(7), format!("nothing would be lost: {shown}"))?;
        let error = refused(&pair.beta, &["disk", "own", "vm1"])?;
        check(error.contains("vm1"), format!("taken over without the disk's name: {error}"))?;
        pair.beta.command(&["disk", "own", "vm1", "--confirm", "vm1"])?;
        check(state(&pair.beta)? == "here", "it needs nobody any more")?;
        for block in 0..BLOCKS {
            let expected = match block {
                7 => Some(2),
                block if is_lost(block) => None,
                block => Some(u8::from(block < BLOCKS / 2)),
            };
            let found = read(&mut guest, block)?;
            check(found == expected, format!("block {block}: expected {expected:?}, found {found:?}"))?;
        }
        let lost = pair.beta.json(&["disk", "lost", "vm1"])?;
        check(lost["bytes"] == shown["lost_bytes"], format!("foretold {shown}, lost {lost}"))?;
        // What is written is whole again, and the dead host has no say.
        write(&mut guest, 0..BLOCKS, 3)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        pair.start_alpha()?;
        pair.check_overtaken()?;
        pair.beta.command(&["disk", "flush", "vm1"])?;
        for block in 0..BLOCKS {
            check(origin_block(&pair.file, block)? == 3, format!("block {block} of the origin"))?;
        }
        Ok(())
    });
}

/// The owner dies, with data that nobody else has.
#[test]
fn a_dead_owners_disk_is_fenced_and_taken_over() {
    test("taking over from an owner", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let told = place.path("fenced").display().to_string();
        let script = format!("echo \"$@\" >>{told}\ntest -e {told}.works");
        let fence = program(place, "fence", &script)?;
        let mut pair = Pair::new(place, &places, &format!("fence = {:?}", fence.display().to_string()))?;
        let mut guest = client(&pair.alpha)?;
        write(&mut guest, 0..64, 1)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        pair.alpha.command(&["disk", "flush", "vm1"])?;
        write(&mut guest, 32..64, 2)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        let own = ["disk", "own", "vm1", "--confirm", "vm1", "--accept-loss", "vm1"];
        let error = refused(&pair.beta, &own)?;
        check(error.contains("'alpha' answers"), format!("taken from a host that lives: {error}"))?;
        pair.alpha.kill()?;
        let error = refused(&pair.beta, &own[..5])?;
        check(error.contains("nobody knows which blocks"), format!("lost without a word: {error}"))?;
        let error = refused(&pair.beta, &own)?;
        check(error.contains("not fenced"), format!("taken over from a host that may write: {error}"))?;
        check(state(&pair.beta)? == "waiting", "nothing has changed")?;
        std::fs::write(format!("{told}.works"), "").map_err(Error::io("the fence"))?;
        pair.beta.command(&own)?;
        let called = std::fs::read_to_string(&told).map_err(Error::io("the fence"))?;
        check(called.lines().all(|line| line.starts_with("alpha 127.0.0.1:")), format!("fenced: {called}"))?;
        let mut moved = client(&pair.beta)?;
        for block in 0..64 {
            let found = read(&mut moved, block)?;
            check(found == Some(1), format!("block {block} is as the origin has it: {found:?}"))?;
        }
        write(&mut moved, 0..48, 3)?;
        moved.ask(Command::Flush, 0, 0, &mut [])?;
        pair.start_alpha()?;
        pair.check_overtaken()?;
        pair.beta.command(&["disk", "flush", "vm1"])?;
        for block in 0..64 {
            let expected = if block < 48 { 3 } else { 1 };
            check(origin_block(&pair.file, block)? == expected, format!("block {block} of the origin"))?;
        }
        Ok(())
    });
}

fn fence(program: &str) -> std::process::Command {
    std::process::Command::new(tools::workspace().join("packaging/fence").join(program))
}

/// A client of another host that has an image open can write no more, with a real cluster.
#[test]
fn a_client_of_a_dead_host_is_blocklisted() {
    test("fencing on RBD", |place| {
        let ceph = Ceph::start(place)?;
        let origin = ceph.image("vm1", 16)?;
        let dead = StorageDaemon::start(place, "dead", ceph.node("vm1"))?;
        let uri = dead.uri();
        qemu_io(&uri, &["write -P 1 0 64k", "flush"])?;
        let run = |address: &str, origin: &str| {
            let mut program = fence("fence-rbd");
            program.args(["alpha", address, "id", origin]).env("HAVERSACK_FENCE_HOSTS", place.path("hosts"));
            tools::run(program).unwrap_or_else(|error| error.to_string())
        };
        // The client is another host's.
        let said = run("10.0.0.1:1", &origin);
        check(said.contains("no client of host alpha"), format!("it says: {said}"))?;
        qemu_io(&uri, &["write -P 1 0 64k", "flush"])?;
        let said = run("127.0.0.1:1", &origin);
        check(said.contains("1 clients of vms/vm1 blocklisted"), format!("it says: {said}"))?;
        let written = qemu_io(&uri, &["write -P 2 0 64k", "flush"]);
        check(written.is_err(), "a blocklisted client writes")?;
        let copy = place.path("copy.img");
        ceph.export("vm1", &copy)?;
        check(image::take(&copy, 0, 1)? == [1], "the origin was written after the fencing")?;
        // Nobody has an image open: nobody knows whom to blocklist.
        let said = run("127.0.0.1:1", &ceph.image("vm2", 16)?);
        check(said.contains("no client of host alpha"), format!("it says: {said}"))
    });
}

/// Of several clients only the dead host's are blocklisted, whatever their addresses look like. The cluster is a fake one.
#[test]
fn clients_of_living_hosts_are_not_blocklisted() {
    test("whom to blocklist", |place| {
        let clients =
            ["10.0.0.1:0/11", "10.0.0.11:0/12", "10.0.0.2:0/13", "[fd00::1]:0/14", "[fd00::11]:0/15"];
        let watchers = clients.map(|client| format!("{{\"address\":\"{client}\",\"client\":1}}")).join(",");
        program(place, "rbd", &format!("echo '{{\"watchers\":[{watchers}]}}'"))?;
        let list = place.path("blocked");
        let script = "case $3 in add) echo \"$4 until\" >>LIST;; ls) cat LIST;; esac"
            .replace("LIST", &list.display().to_string());
        program(place, "ceph", &script)?;
        let names = place.path("hosts");
        std::fs::write(&names, "# host and addresses\ngamma 10.0.0.2 fd00::11\n")
            .map_err(Error::io("hosts"))?;
        let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap_or_default());
        for (host, address, expected) in [
            ("alpha", "10.0.0.1:10810", &["10.0.0.1:0/11"][..]),
            ("beta", "[fd00::1]:10810", &["[fd00::1]:0/14"]),
            ("gamma", "10.0.0.1:10810", &["10.0.0.2:0/13", "[fd00::11]:0/15"]),
        ] {
            std::fs::write(&list, "").map_err(Error::io("the list"))?;
            let mut command = fence("fence-rbd");
            command.env("PATH", &path).env("HAVERSACK_FENCE_HOSTS", &names);
            command.args([host, address, "id", "/dev/rbd/vms/vm1"]);
            tools::run(command)?;
            let blocked = std::fs::read_to_string(&list).map_err(Error::io("the list"))?;
            let blocked: Vec<&str> = blocked.lines().filter_map(|line| line.split(' ').next()).collect();
            check(blocked == expected, format!("blocklisted for {host}: {blocked:?}"))?;
        }
        Ok(())
    });
}

/// What `sg_persist` says of a device, for one that is not there: its registrations and its reservation are two files.
const SG_PERSIST: &str = r#"
for word in "$@"; do
    case $word in
    --param-rk=*) mine=${word#*=} ;;
    --param-sark=*) key=${word#*=} ;;
    --prout-type=*) type=${word#*=} ;;
    --*) action=$word ;;
    *) device=$word ;;
    esac
done
touch "$device.keys"
case $action in
--register-ignore) grep -qx "$key" "$device.keys" || echo "$key" >>"$device.keys" ;;
--reserve) grep -qx "$mine" "$device.keys" && test ! -e "$device.holder" && test "$type" = 5 && echo "$mine" >"$device.holder" ;;
--preempt-abort)
    grep -qx "$mine" "$device.keys" && grep -qx "$key" "$device.keys" || exit 24
    grep -vx "$key" "$device.keys" >"$device.new"
    mv "$device.new" "$device.keys"
    if grep -qx "$key" "$device.holder"; then echo "$mine" >"$device.holder"; fi
    ;;
--read-keys) echo "  PR generation=0x1, registered reservation keys follow:"; cat "$device.keys" ;;
--read-reservation)
    if test -e "$device.holder"; then
        echo "  PR generation=0x1, Reservation follows:"
        echo "    Key=$(cat "$device.holder")"
        echo "    scope: LU_SCOPE,  type: Write Exclusive, registrants only"
    else
        echo "  PR generation=0x1, there is NO reservation held"
    fi
    ;;
*) exit 1 ;;
esac
"#;

/// The registration of a dead host is preempted. There is no real device here: it is tried against a fake `sg_persist`.
#[test]
fn the_registration_of_a_dead_host_is_preempted() {
    test("fencing on SCSI", |place| {
        program(place, "sg_persist", SG_PERSIST)?;
        let device = place.path("lun").display().to_string();
        let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap_or_default());
        let run = |arguments: &[&str], by: &str| {
            let input = place.path("input.json");
            std::fs::write(&input, format!("{{\"host\":\"x\",\"by\":\"{by}\"}}\n"))
                .map_err(Error::io("input"))?;
            let input = std::fs::File::open(&input).map_err(Error::io("input"))?;
            let mut command = fence("fence-scsi");
            command.env("PATH", &path).args(arguments);
            let output = tools::output_from(command, input)?;
            Ok::<_, Error>((output.status.success(), output.stderr))
        };
        let keys = || {
            let keys = std::fs::read_to_string(format!("{device}.keys")).map_err(Error::io("the keys"))?;
            Ok::<_, Error>(keys.lines().count())
        };
        for host in ["alpha", "beta", "gamma"] {
            check(run(&["register", host, &device], "")?.0, format!("{host} is not registered"))?;
        }
        check(keys()? == 3, "three hosts are registered")?;
        let (done, errors) = run(&["alpha", "10.0.0.1:1", "id", &device], "beta")?;
        check(done && keys()? == 2, format!("alpha is not fenced: {errors}"))?;
        // Again, when it is not registered any more; and the one that holds the reservation.
        check(run(&["alpha", "10.0.0.1:1", "id", &device], "beta")?.0, "fenced twice")?;
        let (done, errors) = run(&["beta", "10.0.0.2:1", "id", &device], "gamma")?;
        check(done && keys()? == 1, format!("beta is not fenced: {errors}"))?;
        // A host that was fenced stays so when it boots, and fences nobody, until it is let in again.
        let (done, errors) = run(&["register", "alpha", &device], "")?;
        check(!done && errors.contains("unfence") && keys()? == 1, format!("alpha is back: {errors}"))?;
        let (done, _) = run(&["gamma", "10.0.0.3:1", "id", &device], "alpha")?;
        check(!done && keys()? == 1, "a host that is fenced has fenced another one")?;
        check(run(&["register", "gamma", &device], "")?.0, "a registered host may register again")?;
        check(run(&["unfence", "alpha", &device], "")?.0 && keys()? == 2, "alpha is still fenced")?;
        check(run(&["register", "alpha", &device], "")?.0 && keys()? == 2, "alpha is registered")?;
        let (done, _) = run(&["alpha", "10.0.0.1:1", "id", "nbd://host/x"], "gamma")?;
        check(!done, "something that is no device was fenced")
    });
}
