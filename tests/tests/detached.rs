//! A VM is shut down on one host, where its disk is detached, and started on another one: two daemons, one origin.

use haversack_e2e::connection::Connection;
use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state, wait_until_connected};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test};

const MIB: u64 = 32;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;

fn client(host: &Haversack<'_>) -> Result<Connection> {
    let mut client = None;
    // A disk that has just been attached may not be exported yet.
    wait_until("the export", PATIENCE, || {
        client = Connection::open(&host.socket("nbd.sock"), "vm1").ok();
        Ok(client.is_some())
    })?;
    client.ok_or_else(|| Error::Check("no connection".into()))
}

/// Attaches the disk, with these settings of its table.
fn attach(host: &Haversack<'_>, origin: &Nbdkit, more: &[&str]) -> Result<()> {
    let (uri, pool) = (origin.uri(), host.pool());
    host.command(&[&["disk", "attach", "vm1", &uri, "--pool", &pool], more].concat()).map(drop)
}

/// Runs a command that must fail; returns its error output.
fn refused<T>(result: Result<T>) -> Result<String> {
    match result {
        Ok(_) => Err(Error::Check("it was not refused".into())),
        Err(error) => Ok(error.to_string()),
    }
}

/// Returns whether a host has on record that its pool may have dirty blocks of the disk.
fn may_be_dirty(host: &Haversack<'_>) -> Result<bool> {
    let text = std::fs::read_to_string(host.socket("state/uses.json")).map_err(Error::io("the uses"))?;
    let uses: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| Error::Check(format!("the uses: {error}")))?;
    Ok(uses[0]["may_be_dirty"] == true)
}

fn start<'a>(hosts: &Hosts, places: &'a [Place; 2], more: &str) -> Result<[Haversack<'a>; 2]> {
    let settings = |me| {
        let more = hosts.tables(me).replace("[migration]\n", &format!("[migration]\n{more}\n"));
        Settings { more, ..Settings::new(128, vec![]) }
    };
    let both = Haversack::start_both(places, [settings("alpha"), settings("beta")])?;
    both.iter().try_for_each(wait_until_connected)?;
    Ok(both)
}

#[test]
fn a_disk_that_its_host_has_detached_moves_when_it_is_used_elsewhere() {
    test("a detached disk moves", |place| {
        let origin = Nbdkit::file(place, "origin1", &image::zeroes(place, "vm1.img", MIB)?)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let [mut alpha, mut beta] = start(&hosts, &places, "")?;
        attach(&alpha, &origin, &["--from", "none"])?;
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..BLOCKS, 1)?;
        drop(guest);
        alpha.detach("vm1")?;
        alpha.kill_and_restart(std::time::Duration::from_millis(10))?;
        wait_until_connected(&alpha)?;
        wait_until_connected(&beta)?;
        attach(&beta, &origin, &[])?;
        check(state(&beta, "vm1")? == "waiting", "it is beta's before anybody uses it there")?;
        // A guest that boots reads first.
        let mut guest = client(&beta)?;
        guest.check_filled(0..1, 1)?;
        wait_until("the disk at beta", PATIENCE, || Ok(state(&beta, "vm1")? == "here"))?;
        guest.check_filled(0..BLOCKS, 1)?;
        guest.fill_durably(0..BLOCKS / 2, 2)?;
        drop(guest);
        // Back, to a guest that writes first. The host that has released the disk may die immediately.
        beta.detach("vm1")?;
        attach(&alpha, &origin, &[])?;
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..1, 3)?;
        beta.kill()?;
        guest.check_filled(0..1, 3)?;
        guest.check_filled(1..BLOCKS / 2, 2)?;
        guest.check_filled(BLOCKS / 2..BLOCKS, 1)?;
        alpha.kill_and_restart(std::time::Duration::from_millis(10))?;
        beta.start_again()?;
        wait_until("alpha's disk", PATIENCE, || Ok(state(&alpha, "vm1").is_ok_and(|state| state == "here")))?;
        client(&alpha)?.check_filled(0..1, 3)
    });
}

#[test]
fn a_disk_that_was_detached_with_dirty_blocks_stays_until_it_is_clean() {
    test("a detached disk that is dirty", |place| {
        let file = image::zeroes(place, "vm1.img", MIB)?;
        let origin = Nbdkit::file(place, "origin1", &file)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let [mut alpha, beta] = start(&hosts, &places, "")?;
        attach(&alpha, &origin, &["--from", "none", "--origin-wait", "1s"])?;
        let mut guest = client(&alpha)?;
        origin.process().pause()?;
        guest.fill_durably(0..8, 1)?;
        drop(guest);
        origin.kill()?;
        alpha.kill_and_restart(std::time::Duration::from_millis(10))?;
        wait_until("the end of an attempt to attach it", PATIENCE, || {
            Ok(alpha.json(&["disk", "show", "vm1"]).is_ok_and(|shown| shown["state"] == "waiting"))
        })?;
        let error = refused(alpha.command(&["disk", "detach", "vm1"]))?;
        check(error.contains("dirty"), format!("detached with dirty blocks: {error}"))?;
        alpha.command(&["disk", "detach", "vm1", "--force"])?;
        let origin = Nbdkit::file(place, "origin1", &file)?;
        wait_until_connected(&alpha)?;
        wait_until_connected(&beta)?;
        let error = refused(attach(&beta, &origin, &[]))?;
        check(error.contains("32768 bytes of it that its origin does not have"), format!("dirty: {error}"))?;
        // Doing what the error says works.
        attach(&alpha, &origin, &[])?;
        alpha.detach("vm1")?;
        attach(&beta, &origin, &[])?;
        client(&beta)?.check_filled(0..8, 1)
    });
}

#[test]
fn a_disk_is_detached_when_its_blocks_have_come_from_where_it_was() {
    test("detaching what has not arrived", |place| {
        let file = image::zeroes(place, "vm1.img", MIB)?;
        let origin = Nbdkit::file(place, "origin1", &file)?;
        let hosts = Hosts::new(place, &["alpha", "beta"])?;
        let places = [place.host("a")?, place.host("b")?];
        let [mut alpha, beta] = start(&hosts, &places, "method = \"on-demand\"")?;
        let lazy = Disk::new("vm1", origin.uri()).with("cleaner = { age = \"10000h\", idle = \"10000h\" }");
        alpha.settings().disks = vec![lazy.with("from = \"none\"")];
        alpha.reload(&alpha.configuration())?;
        wait_until("the disk", PATIENCE, || Ok(state(&alpha, "vm1").is_ok_and(|state| state == "here")))?;
        let mut guest = client(&alpha)?;
        guest.fill_durably(0..BLOCKS, 1)?;
        drop(guest);
        attach(&beta, &origin, &[])?;
        let mut guest = client(&beta)?;
        guest.fill_durably(0..1, 2)?;
        check(state(&beta, "vm1")? == "arriving", "nothing is left at alpha")?;
        // Beta fetches the rest as soon as it is to detach the disk, so alpha detaches it before.
        alpha.detach("vm1")?;
        check(may_be_dirty(&alpha)?, "alpha has dirty blocks for beta, and has not recorded that")?;
        alpha.process()?.pause()?;
        let error = refused(beta.command(&["disk", "detach", "vm1", "--force"]))?;
        check(error.contains("only on host 'alpha'"), format!("without alpha: {error}"))?;
        check(state(&beta, "vm1")? == "arriving", "it was not detached")?;
        alpha.process()?.resume()?;
        drop(guest);
        beta.detach("vm1")?;
        wait_until("alpha's record", PATIENCE, || may_be_dirty(&alpha).map(|is_dirty| !is_dirty))?;
        for block in 0..BLOCKS {
            let expected = if block == 0 { 2 } else { 1 };
            check(
                image::take(&file, block * BLOCK, 1)?[0] == expected,
                format!("block {block} of the origin"),
            )?;
        }
        Ok(())
    });
}
