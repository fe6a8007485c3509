//! A host dies permanently, and another one takes its disks over: two daemons over TLS, one origin.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use haversack_e2e::ceph::Ceph;
use haversack_e2e::clients::qemu_io;
use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::process::Process;
use haversack_e2e::storage_daemon::StorageDaemon;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test, test_alone, tools};

const MIB: u64 = 64;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = (MIB << 20) / BLOCK;

/// What is written stays dirty until it is flushed.
const DIRTY: &str = "cleaner = { age = \"10000h\", idle = \"10000h\" }";
/// Takes the disk over, whatever is lost.
const OWN: [&str; 7] = ["disk", "own", "vm1", "--confirm", "vm1", "--accept-loss", "vm1"];

fn state(host: &Haversack<'_>) -> Result<String> {
    Ok(host.json(&["migrate", "status", "vm1"])?["state"].as_str().unwrap_or_default().to_owned())
}

fn client(host: &Haversack<'_>) -> Result<Connection> {
    Connection::open(&host.socket("nbd.sock"), "vm1")
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

fn settings(hosts: &Hosts, me: &str, disks: Vec<Disk>, more: &str) -> Settings {
    let more = hosts.tables(me).replace("[migration]\n", &format!("[migration]\n{more}\n"));
    Settings { more, ..Settings::new(256, disks) }
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
        let old = Disk::new("vm1", origin.uri()).with(DIRTY);
        let new = old.clone().with("from = \"none\"");
        let alpha = Haversack::start(&places[0], settings(&hosts, "alpha", vec![new], more))?;
        let beta = Haversack::start(&places[1], settings(&hosts, "beta", vec![old], more))?;
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
        let error = alpha.refused(&["disk", "forget", "vm1"])?;
        check(error.contains("not confirmed"), format!("what is dirty goes without a word: {error}"))?;
        alpha.command(&["disk", "forget", "vm1", "--confirm", "vm1"]).map(drop)
    }
}

fn origin_block(file: &Path, block: u64) -> Result<u8> {
    Ok(image::take(file, block * BLOCK, 1)?[0])
}

/// The guest runs at beta, most of its dirty blocks are still at alpha, and alpha dies.
#[test]
fn what_only_a_dead_host_had_is_lost_and_nothing_else() {
    test("taking over what has not arrived", |place| {
        let places = [place.host("a")?, place.host("b")?];
        let mut pair = Pair::new(place, &places, "method = \"on-demand\"")?;
        // Attaching the disk at beta makes alpha send it; that is cancelled.
        wait_until("the beginning", PATIENCE, || Ok(state(&pair.alpha)? == "sending"))?;
        pair.alpha.command(&["migrate", "abort", "vm1"])?;
        let mut guest = client(&pair.alpha)?;
        guest.fill(0..BLOCKS / 2, 1)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        drop(guest);
        let mut guest = client(&pair.beta)?;
        guest.fill(7..8, 2)?;
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
        let error = pair.beta.refused(&["disk", "own", "vm1"])?;
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
        // Blocks that are written again are valid, whatever the dead host has.
        guest.fill(0..BLOCKS, 3)?;
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
        let script = format!(
            "echo \"$@\" >>{told}\nwhile test -e {told}.waits; do sleep 0.1; done\ntest -e {told}.works"
        );
        let fence = program(place, "fence", &script)?;
        let mut pair = Pair::new(place, &places, &format!("fence = {:?}", fence.display().to_string()))?;
        let mut guest = client(&pair.alpha)?;
        guest.fill(0..64, 1)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        pair.alpha.command(&["disk", "flush", "vm1"])?;
        guest.fill(32..64, 2)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        let error = pair.beta.refused(&OWN)?;
        check(error.contains("'alpha' answers"), format!("taken from a host that lives: {error}"))?;
        pair.alpha.kill()?;
        let error = pair.beta.refused(&OWN[..5])?;
        check(error.contains("not known which blocks"), format!("lost without a word: {error}"))?;
        let error = pair.beta.refused(&OWN)?;
        check(error.contains("not fenced"), format!("taken over from a host that may write: {error}"))?;
        check(state(&pair.beta)? == "waiting", "nothing has changed")?;
        let calls = || std::fs::read_to_string(&told).map_err(Error::io("the fence"));
        let before = calls()?.lines().count();
        for file in ["works", "waits"] {
            std::fs::write(format!("{told}.{file}"), "").map_err(Error::io("the fence"))?;
        }
        let mut first = Process::start(place, "own", &pair.beta.command_line(&OWN)?)?;
        wait_until("the fence", PATIENCE, || Ok(calls()?.lines().count() > before))?;
        let error = pair.beta.refused(&OWN)?;
        check(error.contains("being taken over already"), format!("taken over twice at a time: {error}"))?;
        std::fs::remove_file(format!("{told}.waits")).map_err(Error::io("the fence"))?;
        check(first.wait(PATIENCE)?.success(), "it is not taken over")?;
        let called = calls()?;
        check(called.lines().count() == before + 1, format!("fenced twice: {called}"))?;
        check(called.lines().all(|line| line.starts_with("alpha 127.")), format!("fenced: {called}"))?;
        let mut moved = client(&pair.beta)?;
        for block in 0..64 {
            let found = read(&mut moved, block)?;
            check(found == Some(1), format!("block {block} is as the origin has it: {found:?}"))?;
        }
        moved.fill(0..48, 3)?;
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

/// Returns whether a host is connected to all others.
fn knows_all(host: &Haversack<'_>) -> Result<bool> {
    let hosts = host.json(&["host", "list"])?;
    Ok(hosts.as_array().is_some_and(|hosts| hosts.iter().all(|host| host["is_connected"] == true)))
}

/// A takeover fails after one of the other hosts has recorded it. The dead host comes back, and still owns the disk.
#[test]
fn a_take_over_that_came_to_nothing_takes_no_disk_away() {
    test("a takeover that fails half-way", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let hosts = Hosts::new(place, &["alpha", "beta", "gamma", "delta"])?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?, place.host("d")?];
        let disk = |from: &str| vec![Disk::new("vm1", origin.uri()).with(DIRTY).with(from)];
        // Delta has been asked for the disk, and dies before it can note anything.
        let victim = place.path("delta.pid");
        let script = format!("kill -9 $(cat {})\nsleep 1", victim.display());
        let fence = format!("fence = {:?}", program(place, "fence", &script)?.display().to_string());
        let mut alpha = Haversack::start(&places[0], settings(&hosts, "alpha", disk("from = \"none\""), ""))?;
        let mut beta =
            Haversack::start(&places[1], settings(&hosts, "beta", disk("from = \"alpha\""), &fence))?;
        let mut gamma = Haversack::start(&places[2], settings(&hosts, "gamma", Vec::new(), ""))?;
        let delta = Haversack::start(&places[3], settings(&hosts, "delta", Vec::new(), ""))?;
        wait_until("the hosts", PATIENCE, || Ok(knows_all(&beta)? && knows_all(&gamma)?))?;
        let mut guest = client(&alpha)?;
        guest.fill(0..64, 1)?;
        guest.ask(Command::Flush, 0, 0, &mut [])?;
        drop(guest);
        std::fs::write(&victim, delta.process()?.id().to_string()).map_err(Error::io("delta"))?;
        alpha.kill()?;
        let error = beta.refused(&OWN)?;
        check(error.contains("stopped answering"), format!("taken over without delta: {error}"))?;
        // Only beta can say whether it has taken the disk.
        beta.kill()?;
        let disks = std::mem::take(&mut alpha.settings().disks);
        alpha.settings().disks = disks.into_iter().map(Disk::unattachable).collect();
        alpha.start_again()?;
        wait_until("the refusal", PATIENCE, || {
            let shown = alpha.json(&["disk", "show", "vm1"])?;
            Ok(shown["error"].as_str().unwrap_or_default().contains("'beta' may have taken the disk over"))
        })?;
        beta.start_again()?;
        wait_until(
            "the disk",
            PATIENCE,
            || Ok(alpha.json(&["disk", "show", "vm1"])?["state"] == "attached"),
        )?;
        let mut guest = client(&alpha)?;
        for block in 0..64 {
            let found = read(&mut guest, block)?;
            check(found == Some(1), format!("block {block} of a disk that nobody has taken: {found:?}"))?;
        }
        let error = beta.refused(&OWN)?;
        check(error.contains("'alpha' answers, and has it"), format!("taken from its owner: {error}"))?;
        // Gamma, which has recorded the takeover, does not keep the disk from moving there.
        drop(guest);
        gamma.kill()?;
        gamma.settings().disks = disk("from = \"alpha\"");
        gamma.start_again()?;
        let mut guest = client(&gamma)?;
        guest.fill(0..1, 2)?;
        check(read(&mut guest, 1)? == Some(1), "the disk is at gamma")
    });
}

/// A connected host that cannot report whether it has the disk is not considered dead. The error names the hosts that
/// are not fenced.
#[test]
fn a_host_that_cannot_say_what_it_has_is_not_taken_for_dead() {
    test("a host with a closed pool", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let hosts = Hosts::new(place, &["alpha", "beta", "gamma"])?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let disk = |from: &str| vec![Disk::new("vm1", origin.uri()).with(DIRTY).with(from)];
        let mut alpha = Haversack::start(&places[0], settings(&hosts, "alpha", disk("from = \"none\""), ""))?;
        let beta = Haversack::start(&places[1], settings(&hosts, "beta", disk("from = \"alpha\""), ""))?;
        let mut closed = settings(&hosts, "gamma", Vec::new(), "");
        closed.more += "\n[[pool]]\nname = \"gone\"\ndevices = [\"/nowhere/cache\"]\nstaging = \"16MiB\"\n";
        let mut gamma = Haversack::start(&places[2], closed)?;
        wait_until("the hosts", PATIENCE, || Ok(knows_all(&beta)? && knows_all(&gamma)?))?;
        alpha.kill()?;
        let why = "'gamma' is connected and has not answered: it has a pool that is not open";
        let error = beta.refused(&[&OWN[..], &["--without-fence", "alpha"]].concat())?;
        check(error.contains(why), format!("taken over although gamma may have it: {error}"))?;
        // A host that was away does not serve the disk before all connected hosts have answered.
        let disks = std::mem::take(&mut alpha.settings().disks);
        alpha.settings().disks = disks.into_iter().map(Disk::unattachable).collect();
        alpha.start_again()?;
        wait_until("the refusal", PATIENCE, || {
            let shown = alpha.json(&["disk", "show", "vm1"])?;
            Ok(shown["error"].as_str().unwrap_or_default().contains(why))
        })?;
        alpha.kill()?;
        gamma.kill()?;
        for named in ["alpha", "alpha,beta", "gamma"] {
            let error = beta.refused(&[&OWN[..], &["--without-fence", named]].concat())?;
            check(
                ["'alpha'", "'gamma'"].iter().all(|host| error.contains(host)),
                format!("who is not fenced is not said: {error}"),
            )?;
        }
        beta.command(&[&OWN[..], &["--without-fence", "gamma,alpha"]].concat())?;
        check(state(&beta)? == "here", "it is not taken over")
    });
}

/// Beta gives up alpha's blocks, writes newer ones, and dies. What gamma has on record keeps alpha from using its old
/// blocks, until an operator has discarded them.
#[test]
fn blocks_that_were_given_up_do_not_replace_newer_ones() {
    test("a host whose blocks were given up", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let hosts = Hosts::new(place, &["alpha", "beta", "gamma"])?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let lazy = "method = \"on-demand\"";
        let disk = vec![Disk::new("vm1", origin.uri()).with(DIRTY).with("from = \"none\"")];
        let mut alpha = Haversack::start(&places[0], settings(&hosts, "alpha", disk, lazy))?;
        let mut beta = Haversack::start(&places[1], settings(&hosts, "beta", Vec::new(), lazy))?;
        let gamma = Haversack::start(&places[2], settings(&hosts, "gamma", Vec::new(), lazy))?;
        wait_until("the hosts", PATIENCE, || {
            Ok(knows_all(&alpha)? && knows_all(&beta)? && knows_all(&gamma)?)
        })?;
        let attach = |host: &Haversack<'_>, from: &str| {
            let (uri, pool) = (origin.uri(), host.pool());
            host.command(&["disk", "attach", "vm1", &uri, "--pool", &pool, "--from", from])
        };
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..BLOCKS / 2, 1)?;
        drop(guest);
        attach(&beta, "alpha")?;
        let mut guest = client(&beta)?;
        guest.fill_durably(7..8, 2)?;
        check(state(&beta)? == "arriving", "nothing is left at alpha")?;
        alpha.process()?.pause()?;
        wait_until("beta without alpha", PATIENCE, || Ok(beta.command(&OWN).is_ok()))?;
        guest.fill_durably(0..BLOCKS / 2, 3)?;
        drop(guest);
        beta.command(&["disk", "flush", "vm1"])?;
        beta.kill()?;
        alpha.process()?.resume()?;
        let own = [&OWN[..], &["--without-fence", "beta"]].concat();
        let mut error = String::new();
        wait_until("the refusal", PATIENCE, || {
            error = alpha.refused(&own)?;
            Ok(error.contains("'beta' may have taken over disk 'vm1'"))
        })?;
        check(error.contains("'gamma' has that on record"), format!("who says so: {error}"))?;
        alpha.stop()?;
        attach(&gamma, "beta")?;
        gamma.command(&[&OWN[..], &["--without-fence", "alpha,beta"]].concat())?;
        client(&gamma)?.check_filled(0..BLOCKS / 2, 3)
    });
}

fn fence(program: &str) -> std::process::Command {
    std::process::Command::new(tools::workspace().join("packaging/fence").join(program))
}

/// A client of another host that has an image open can write no more, with a real cluster.
#[test]
fn a_client_of_a_dead_host_is_blocklisted() {
    test_alone("fencing on RBD", |place| {
        let ceph = Ceph::start(place)?;
        ceph.image("vm1", 16)?;
        let dead = StorageDaemon::start(place, "dead", ceph.node("vm1"))?;
        let uri = dead.uri();
        qemu_io(&uri, &["write -P 1 0 64k", "flush"])?;
        let run = |address: &str, origin: &str| {
            let mut program = fence("fence-rbd");
            program.args(["alpha", address, "id", origin]).env("HAVERSACK_FENCE_HOSTS", place.path("hosts"));
            program.env("CEPH_CONF", ceph.configuration());
            tools::run(program).unwrap_or_else(|error| error.to_string())
        };
        // The client is another host's.
        let mapped = "/dev/rbd/vms/vm1";
        let said = run("10.0.0.1:1", mapped);
        check(said.contains("no client of host alpha"), format!("it says: {said}"))?;
        qemu_io(&uri, &["write -P 1 0 64k", "flush"])?;
        let said = run("127.0.0.1:1", mapped);
        check(said.contains("1 client of vms/vm1 blocklisted"), format!("it says: {said}"))?;
        // The OSD hears of the blocklist from the monitor, or from the next client that knows it.
        ceph.watchers("vm1")?;
        let written = qemu_io(&uri, &["write -P 2 0 64k", "flush"]);
        check(written.is_err(), "a blocklisted client writes")?;
        let copy = place.path("copy.img");
        ceph.export("vm1", &copy)?;
        check(image::take(&copy, 0, 1)? == [1], "the origin was written after the fencing")?;
        // No client has the image open, so the program does not know which client to blocklist.
        ceph.image("vm2", 16)?;
        let said = run("127.0.0.1:1", "/dev/rbd/vms/vm2");
        check(said.contains("no client of host alpha"), format!("it says: {said}"))
    });
}

/// Of several clients only the dead host's are blocklisted, whatever their addresses look like. The cluster is a fake
/// one.
#[test]
fn clients_of_living_hosts_are_not_blocklisted() {
    test("whom to blocklist", |place| {
        let clients =
            ["10.0.0.1:0/11", "10.0.0.11:0/12", "10.0.0.2:0/13", "[fd00::1]:0/14", "[fd00::11]:0/15"];
        let watchers = clients.map(|client| format!("{{\"address\":\"{client}\",\"client\":1}}")).join(",");
        program(place, "rbd", &format!("echo '{{\"watchers\":[{watchers}]}}'"))?;
        let list = place.path("blocked");
        // A busy monitor refuses every other command.
        let script = "if [ ! -e LIST.asked ]; then touch LIST.asked; echo 'problem getting command descriptions' >&2; exit 1; fi; \
            rm LIST.asked; case $3 in add) echo \"$4 until\" >>LIST;; ls) cat LIST;; esac"
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
