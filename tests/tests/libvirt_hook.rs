//! The libvirt hook, called as libvirt does: the arguments that it documents, and a domain's XML on stdin.
//! `make libvirt-test` has libvirt itself call it.

use std::io::{Seek, Write};
use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, Output, PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, clients, image, test};

/// A domain with disks of every kind; those in the directory are Haversack's.
fn domain(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "<domain type='kvm' id='3'>
  <name>web1</name>
  <memory unit='MiB'>512</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <devices>
    <disk type='vhostuser' device='disk'>
      <driver name='qemu' type='raw' queues='2'/>
      <source type='unix' path='{directory}/vm1.sock'><reconnect enabled='yes' timeout='1'/></source>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='none' discard='unmap'/>
      <source protocol='nbd' name='vm2'><host transport='unix' socket='{directory}/nbd.sock'/></source>
      <target dev='vdb' bus='virtio'/>
    </disk>
    <disk type='network' device='disk'>
      <source protocol='nbd' name='stranger'><host transport='unix' socket='/run/elsewhere/nbd.sock'/></source>
      <target dev='vdc' bus='virtio'/>
    </disk>
    <disk type='network' device='disk'>
      <source protocol='nbd' name='far'><host name='10.0.0.7' port='10809'/></source>
      <target dev='vdd' bus='virtio'/>
    </disk>
    <disk type='file' device='disk'><source file='/srv/a.img'/><target dev='vde' bus='virtio'/></disk>
    <disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>
  </devices>
</domain>
"
    )
}

/// A host whose sockets are in a directory that only its daemon sees, as on a machine of its own.
fn host<'a>(place: &'a Place, directory: &Path, tables: String) -> Result<Haversack<'a>> {
    let small = Some((directory.to_owned(), "1m".to_owned()));
    let settings = Settings { more: tables, small, ..Settings::new(64, Vec::new()) };
    let host = Haversack::start(place, settings)?;
    wait_until("the daemon", PATIENCE, || Ok(host.command(&["status"]).is_ok()))?;
    Ok(host)
}

/// Writes the hook's settings for a daemon whose vhost-user sockets are in `sockets`. `rules` is the end of the file.
/// If it does not set `detach_time`, the hook waits for as long as a busy machine may take.
fn settings(host: &Haversack<'_>, path: &Path, sockets: &Path, rules: &str) -> Result<()> {
    let program = tools::own("haversack")?;
    let detach_time = if rules.contains("detach_time") { "" } else { "detach_time = 60\n" };
    let text = format!(
        "program = {:?}\ncontrol = {:?}\nsockets = [{sockets:?}]\nattach_time = 60\n{detach_time}{rules}",
        Path::new(program.get_program()),
        host.socket("control.sock"),
    );
    std::fs::write(path, text).map_err(Error::io("the hook's settings"))
}

/// A rule of the hook's settings.
fn rule(name: &str, origin: &str, pool: &str) -> String {
    format!("\n[[rule]]\nname = \"{name}\"\norigin = \"{origin}\"\npool = \"{pool}\"\nmode = \"wb\"\n")
}

/// Calls the hook with these settings.
fn call(settings: &Path, operation: [&str; 2], xml: &str) -> Result<Output> {
    let mut command = std::process::Command::new(tools::workspace().join("packaging/hooks/libvirt-qemu"));
    command.args(["web1", operation[0], operation[1], "-"]).env("HAVERSACK_LIBVIRT_HOOK", settings);
    let mut stdin = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
    stdin.write_all(xml.as_bytes()).and_then(|()| stdin.rewind()).map_err(Error::io("a temporary file"))?;
    tools::output_from(command, stdin)
}

fn ended(output: &Output, code: i32, said: &str) -> Result<()> {
    let right =
        output.status.code() == Some(code) && output.stdout.is_empty() && output.stderr.contains(said);
    let quiet = !said.is_empty() || output.stderr.is_empty();
    check(right && quiet, format!("expected exit code {code} and '{said}', got {output:?}"))
}

/// The state of a disk, or "none" if the host does not have it attached.
fn state_or_none(host: &Haversack<'_>, disk: &str) -> Result<String> {
    let all = host.json(&["migrate", "status"])?;
    let is_there = all.as_array().into_iter().flatten().any(|known| known["disk"] == disk);
    if is_there { state(host, disk) } else { Ok("none".into()) }
}

/// The state of a disk of the daemon's list, or "none".
fn listed(host: &Haversack<'_>, disk: &str) -> Result<String> {
    let all = host.json(&["disk", "list"])?;
    let found = all.as_array().into_iter().flatten().find(|known| known["name"] == disk);
    Ok(found.and_then(|known| known["state"].as_str()).unwrap_or("none").to_owned())
}

/// Checks the states of disks in the daemon's list.
fn check_listed(host: &Haversack<'_>, expected: &[(&str, &str)]) -> Result<()> {
    for (disk, state) in expected {
        let found = listed(host, disk)?;
        check(found == *state, format!("{disk} is {found}, not {state}"))?;
    }
    Ok(())
}

const PREPARE: [&str; 2] = ["prepare", "begin"];
const RELEASE: [&str; 2] = ["release", "end"];
const MIGRATE: [&str; 2] = ["migrate", "begin"];

#[test]
fn disks_of_a_domain_that_comes_are_attached() {
    test("the libvirt hook", |place| {
        let files = [image::zeroes(place, "vm1.img", 16)?, image::zeroes(place, "vm2.img", 16)?];
        let origins =
            [Nbdkit::file(place, "origin1", &files[0])?, Nbdkit::file(place, "origin2", &files[1])?];
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let directory = place.path("sockets");
        std::fs::create_dir(&directory).map_err(Error::io("sockets"))?;
        let alpha = host(&places[0], &directory, hosts.tables("alpha"))?;
        let mut beta = host(&places[1], &directory, hosts.tables("beta"))?;
        let (pool, socket) = (alpha.pool(), directory.join("vm1.sock").display().to_string());
        let common = ["--pool", &pool, "--from", "none"];
        let vm1 = ["disk", "attach", "vm1", &origins[0].uri(), "--vhost-user", &socket];
        alpha.command(&[&vm1[..], &common].concat())?;
        alpha.command(&[&["disk", "attach", "vm2", &origins[1].uri()], &common[..]].concat())?;
        let xml = domain(&directory);
        let hooks = [place.path("hook-alpha.toml"), place.path("hook-beta.toml")];
        settings(&alpha, &hooks[0], &directory, "")?;
        settings(&beta, &hooks[1], &directory, "")?;

        // Operations that do not announce an incoming domain do not change disks that others have attached.
        for operation in [["start", "begin"], ["started", "begin"], ["stopped", "end"], RELEASE] {
            for hook in &hooks {
                ended(&call(hook, operation, &xml)?, 0, "")?;
            }
        }
        let states = [state_or_none(&alpha, "vm1")?, state_or_none(&beta, "vm1")?];
        check(states == ["here", "none"], format!("something was done: {states:?}"))?;

        // Twice: the second time all is there.
        for operation in [MIGRATE, PREPARE] {
            ended(&call(&hooks[1], operation, &xml)?, 0, "")?;
            for disk in ["vm1", "vm2"] {
                check(state(&beta, disk)? == "waiting", format!("{disk} does not wait for its VM"))?;
                wait_until("the sending", PATIENCE, || Ok(state(&alpha, disk)? == "sending"))?;
            }
        }
        place.say("attached and sent");

        // At the host that has them, as when the domain starts there.
        ended(&call(&hooks[0], PREPARE, &xml)?, 0, "")?;
        check(state(&alpha, "vm1")? == "sending", "the disk has moved")?;

        // A disk that is being moved is not detached on either host, although a rule names its origin.
        let rules = rule("vm1", &origins[0].uri(), &pool) + &rule("vm2", &origins[1].uri(), &pool);
        settings(&alpha, &hooks[0], &directory, &rules)?;
        settings(&beta, &hooks[1], &directory, &rules)?;
        for hook in &hooks {
            ended(&call(hook, RELEASE, &xml)?, 0, "")?;
        }
        let states = [state_or_none(&alpha, "vm1")?, state_or_none(&beta, "vm1")?];
        check(states == ["sending", "waiting"], format!("the disk is not on its way any more: {states:?}"))?;

        // A failure is told, and ends the migration.
        let strange = xml.replace("vm1.sock", "vm9.sock");
        ended(&call(&hooks[1], MIGRATE, &strange)?, 1, "no disk 'with the socket")?;
        ended(&call(&hooks[1], MIGRATE, "<domain>")?, 1, "cannot be read")?;
        beta.kill()?;
        for operation in [MIGRATE, PREPARE] {
            ended(&call(&hooks[1], operation, &xml)?, 1, "cannot reach the daemon")?;
        }
        ended(&call(&hooks[1], RELEASE, &xml)?, 0, "cannot reach the daemon")
    });
}

#[test]
fn disks_are_attached_before_a_domain_starts_and_detached_when_it_has_ended() {
    test("the libvirt hook's rules", |place| {
        let files = [image::zeroes(place, "vm1.img", 16)?, image::zeroes(place, "vm2.img", 16)?];
        let host = Haversack::start(place, Settings::new(64, Vec::new()))?;
        let (pool, sockets) = (host.pool(), place.path("run"));
        let xml = domain(&sockets);
        let hook = place.path("hook.toml");
        let template = place.path("{name}.img").display().to_string();
        let rules = rule("vm?", &template, &pool);
        settings(&host, &hook, &sockets, &rules)?;
        let both = |state| [("vm1", state), ("vm2", state)];

        for operation in
            [["start", "begin"], ["started", "begin"], ["stopped", "end"], RELEASE, ["reconnect", "begin"]]
        {
            ended(&call(&hook, operation, &xml)?, 0, "")?;
        }
        check_listed(&host, &both("none"))?;

        // Twice: the second time all is there.
        for _ in 0..2 {
            ended(&call(&hook, PREPARE, &xml)?, 0, "")?;
            check_listed(&host, &both("attached"))?;
        }
        check(sockets.join("vm1.sock").exists(), "the disk has no socket")?;
        for operation in [["start", "begin"], ["started", "begin"], ["reconnect", "begin"]] {
            ended(&call(&hook, operation, &xml)?, 0, "")?;
        }
        clients::qemu_io(&host.uri("vm2"), &["write -P 7 0 1M"])?;
        ended(&call(&hook, ["stopped", "end"], &xml)?, 0, "")?;
        check_listed(&host, &both("attached"))?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "")?;
        check_listed(&host, &both("detached"))?;
        clients::qemu_io(&files[1].display().to_string(), &["read -P 7 0 1M"])?;
        place.say("attached, written, detached");

        // A disk that is used is not detached.
        ended(&call(&hook, PREPARE, &xml)?, 0, "")?;
        let mut client = tools::tool("qemu-io")?;
        client.args(["-f", "raw", "-c", "sleep 1000000", &host.uri("vm2")]);
        let client = Process::start(place, "client", &client)?;
        wait_until("the client", PATIENCE, || Ok(host.json(&["disk", "show", "vm2"])?["clients"] == 1))?;
        // The hook gives up after 3 s.
        settings(&host, &hook, &sockets, &format!("detach_time = 3\n{rules}"))?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "is in use by NBD client")?;
        wait_until("the detach of vm1", PATIENCE, || Ok(listed(&host, "vm1")? == "detached"))?;
        check_listed(&host, &[("vm2", "attached")])?;
        settings(&host, &hook, &sockets, &rules)?;
        client.kill()?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "")?;
        check_listed(&host, &both("detached"))?;

        // An origin that is away: the domain does not start, and what libvirt does then cleans up.
        let away = place.path("away.img");
        std::fs::rename(&files[1], &away).map_err(Error::io("away.img"))?;
        ended(&call(&hook, PREPARE, &xml)?, 1, "disk vm2 of domain web1: ")?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "")?;
        check_listed(&host, &both("detached"))?;
        std::fs::rename(&away, &files[1]).map_err(Error::io("vm2.img"))?;

        // Attached by hand with another origin: neither used nor detached.
        let other = image::zeroes(place, "other.img", 16)?.display().to_string();
        let socket = sockets.join("vm1.sock").display().to_string();
        host.command(&["disk", "attach", "vm1", &other, "--pool", &pool, "--vhost-user", &socket])?;
        ended(&call(&hook, PREPARE, &xml)?, 1, "is attached with the origin")?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "is attached with the origin")?;
        check_listed(&host, &[("vm1", "attached"), ("vm2", "detached")])?;
        host.detach("vm1")?;

        // A domain or settings that cannot be parsed prevent a start, but not the end of a domain.
        let (broken, wide) = (place.path("broken.toml"), place.path("wide.toml"));
        settings(&host, &broken, &sockets, &rule("vm?", "/srv/{nothing}.img", &pool))?;
        settings(&host, &wide, &sockets, &rule("*", &template, &pool))?;
        let outside = xml.replace("vm2", "../vm2");
        for (hook, xml, why) in [
            (&hook, "<domain>", "cannot be read"),
            (&broken, xml.as_str(), "there is no {nothing}"),
            (&wide, outside.as_str(), "cannot be part of it"),
        ] {
            ended(&call(hook, PREPARE, xml)?, 1, why)?;
            ended(&call(hook, RELEASE, xml)?, 0, why)?;
            ended(&call(hook, ["reconnect", "begin"], xml)?, 0, "")?;
        }
        check_listed(&host, &both("detached"))?;

        // Without a rule, and without other hosts that could have the disks.
        settings(&host, &hook, &sockets, "")?;
        ended(&call(&hook, PREPARE, &xml)?, 1, "is not attached here")?;
        ended(&call(&hook, MIGRATE, &xml)?, 1, "is not attached here")
    });
}

#[test]
fn disks_of_the_metadata_are_attached() {
    test("the libvirt hook and metadata", |place| {
        let files = [image::zeroes(place, "one.img", 16)?, image::zeroes(place, "two.img", 16)?];
        let host = Haversack::start(place, Settings::new(64, Vec::new()))?;
        let (pool, sockets) = (host.pool(), place.path("run"));
        let hook = place.path("hook.toml");
        settings(&host, &hook, &sockets, "")?;
        let with = |more: &str| {
            let metadata = format!(
                "<metadata>
    <haversack:disks xmlns:haversack='urn:haversack:libvirt:1'>
      <haversack:disk name='one' dev='vda' origin='{}' pool='{pool}' mode='wt'{more}/>
      <haversack:disk name='vm2' origin='{}' pool='{pool}' read-only='yes'/>
    </haversack:disks>
  </metadata>
  <devices>",
                files[0].display(),
                files[1].display()
            );
            domain(&sockets).replace("<devices>", &metadata)
        };

        ended(&call(&hook, PREPARE, &with(""))?, 0, "")?;
        check_listed(&host, &[("one", "attached"), ("vm2", "attached"), ("vm1", "none")])?;
        let one = host.json(&["disk", "show", "one"])?;
        let socket = sockets.join("vm1.sock").display().to_string();
        check(one["mode"] == "wt" && one["config"]["vhost_user"] == socket, format!("attached as {one}"))?;
        let two = host.json(&["disk", "show", "vm2"])?;
        check(two["config"]["read_only"] == true, format!("attached as {two}"))?;
        // The disk is attached with settings that differ from the metadata.
        let writable = with("").replace(" read-only='yes'", "");
        ended(&call(&hook, PREPARE, &writable)?, 1, "is attached read-only")?;
        ended(&call(&hook, RELEASE, &with(""))?, 0, "")?;
        check_listed(&host, &[("one", "detached"), ("vm2", "detached")])?;

        // Confirmations that a person must give are not accepted as attributes, nor are misspelled ones.
        for (more, why) in [
            (" accept-loss='one'", "accept-loss is not known"),
            (" accept-origin-change='one'", "accept-origin-change is not known"),
            (" modus='wb'", "modus is not known"),
            (" read-only='perhaps'", "read-only is yes or no"),
        ] {
            ended(&call(&hook, PREPARE, &with(more))?, 1, why)?;
        }
        let elsewhere = with("").replace("dev='vda' origin", "dev='vdz' origin");
        ended(&call(&hook, PREPARE, &elsewhere)?, 1, "no vhost-user or NBD disk vdz")?;
        // The settings can forbid it: then there is no rule for these disks.
        settings(&host, &hook, &sockets, "metadata = false\n")?;
        ended(&call(&hook, PREPARE, &with(""))?, 1, "is not attached here")?;
        check_listed(&host, &[("one", "detached"), ("vm2", "detached")])
    });
}

#[test]
fn a_domain_that_starts_again_does_not_wait_for_the_writing_back() {
    test("the libvirt hook and a slow origin", |place| {
        let origin = Nbdkit::start(place, "slow", &["--filter=delay", "memory", "16M", "wdelay=12"])?;
        let host = Haversack::start(place, Settings::new(64, Vec::new()))?;
        let sockets = place.path("run");
        let hook = place.path("hook.toml");
        let rules = rule("vm1", &origin.uri(), &host.pool()) + &rule("vm2", &origin.uri(), &host.pool());
        settings(&host, &hook, &sockets, &format!("detach_time = 3\n{rules}"))?;
        let whole = domain(&sockets);
        // One disk: two must not have one origin.
        let (before, after) = whole.split_once("    <disk type='vhostuser'").unwrap_or_default();
        let rest = after.split_once("</disk>").unwrap_or_default().1;
        let xml = format!("{before}{rest}");

        ended(&call(&hook, PREPARE, &xml)?, 0, "")?;
        clients::qemu_io(&host.uri("vm2"), &["write -P 7 0 1M"])?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "still being written back")?;
        check_listed(&host, &[("vm2", "detaching")])?;
        ended(&call(&hook, PREPARE, &xml)?, 0, "")?;
        check_listed(&host, &[("vm2", "attached")])?;
        clients::qemu_io(&host.uri("vm2"), &["read -P 7 0 1M"])?;

        // If it does not start again, the daemon detaches it. What was dirty before may be written back by now.
        clients::qemu_io(&host.uri("vm2"), &["write -P 7 0 1M"])?;
        ended(&call(&hook, RELEASE, &xml)?, 0, "still being written back")?;
        wait_until("the detach", PATIENCE, || Ok(listed(&host, "vm2")? == "detached"))?;
        clients::qemu_io(&origin.uri(), &["read -P 7 0 1M"]).map(|_| ())
    });
}
