//! The libvirt hook, called as libvirt does: the arguments that it documents, and a domain's XML on stdin.

use std::io::{Seek, Write};
use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{self, Output, PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test};

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

/// Calls the hook on a host.
fn call(host: &Haversack<'_>, directory: &Path, operation: [&str; 2], xml: &str) -> Result<Output> {
    let mut command =
        std::process::Command::new(tools::workspace().join("packaging/hooks/libvirt-qemu-migrate"));
    command.args(["web1", operation[0], operation[1], "-"]);
    let haversack = tools::own("haversack")?;
    let programs = Path::new(haversack.get_program()).parent().unwrap_or(Path::new(".")).to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
    command.env("PATH", path.map_err(|error| Error::Check(error.to_string()))?);
    command.env("HAVERSACK_SOCKET", host.socket("control.sock")).env("HAVERSACK_SOCKETS", directory);
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

        // What says nothing of a domain that comes does nothing.
        for operation in [["start", "begin"], ["started", "begin"], ["stopped", "end"], ["release", "end"]] {
            for daemon in [&alpha, &beta] {
                ended(&call(daemon, &directory, operation, &xml)?, 0, "")?;
            }
        }
        let states = [state_or_none(&alpha, "vm1")?, state_or_none(&beta, "vm1")?];
        check(states == ["here", "none"], format!("something was done: {states:?}"))?;

        // Twice: the second time all is there.
        for operation in [["migrate", "begin"], ["prepare", "begin"]] {
            ended(&call(&beta, &directory, operation, &xml)?, 0, "")?;
            for disk in ["vm1", "vm2"] {
                check(state(&beta, disk)? == "waiting", format!("{disk} does not wait for its VM"))?;
                wait_until("the sending", PATIENCE, || Ok(state(&alpha, disk)? == "sending"))?;
            }
        }
        place.say("attached and sent");

        // At the host that has them, as when the domain starts there.
        ended(&call(&alpha, &directory, ["prepare", "begin"], &xml)?, 0, "")?;
        check(state(&alpha, "vm1")? == "sending", "the disk has moved")?;

        // A failure is told, and is the migration's only if QEMU could not be started.
        let strange = xml.replace("vm1.sock", "vm9.sock");
        ended(&call(&beta, &directory, ["migrate", "begin"], &strange)?, 1, "no disk 'with the socket")?;
        ended(&call(&beta, &directory, ["migrate", "begin"], "<domain>")?, 0, "cannot be read")?;
        beta.kill()?;
        ended(&call(&beta, &directory, ["migrate", "begin"], &xml)?, 1, "cannot reach the daemon")?;
        ended(&call(&beta, &directory, ["prepare", "begin"], &xml)?, 0, "cannot reach the daemon")
    });
}
