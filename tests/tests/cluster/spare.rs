//! Where a VM cannot move, spare flash does: an overloaded host borrows what the cluster's plan says, and gives it
//! back.

use std::ops::Range;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings, pool_of};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Place, Result, image, test};
use serde_json::Value;

const NAMES: [&str; 2] = ["alpha", "beta"];
const MIB: u64 = 96;
/// What the guest reads at a time.
const CHUNK: u64 = 32 << 10;
/// Reads that it has in flight.
const DEPTH: usize = 16;

/// A host of the cluster. Nothing carries moves out: it has no program for that.
fn tables(hosts: &Hosts, etcd: &Etcd<'_>, name: &str, more: &str) -> String {
    hosts.tables(name)
        + &format!(
            "\n[cluster]\nendpoints = [\"{}\"]\ninsecure = true\nreport_every = \"1s\"\nlease = \"3s\"\n\
             [cluster.balance]\nwindow = \"5s\"\nwindows = 2\n{more}",
            etcd.endpoint(),
        )
}

/// Reads a part of the disk in an order that is not sequential, with several reads in flight.
fn read(guest: &mut Connection, mebibytes: Range<u64>) -> Result<()> {
    let (first, chunks) = (mebibytes.start << 20, ((mebibytes.end - mebibytes.start) << 20) / CHUNK);
    let (mut next, mut open) = (0..chunks, 0);
    loop {
        while open < DEPTH
            && let Some(at) = next.next()
        {
            guest.send(Command::Read, first + at * 1021 % chunks * CHUNK, CHUNK as u32, &[])?;
            open += 1;
        }
        if open == 0 {
            return Ok(());
        }
        guest.answer(|_| CHUNK as usize)?;
        open -= 1;
    }
}

fn list(value: &Value, key: &str) -> Vec<Value> {
    value[key].as_array().cloned().unwrap_or_default()
}

/// Returns the loan that alpha's disk has from beta, if the plan names beta.
fn borrowed(alpha: &Haversack<'_>) -> Result<Option<Value>> {
    let mut loans = list(&alpha.json(&["loan", "list"])?, "borrowed");
    check(loans.len() <= 1 && loans.iter().all(|loan| loan["host"] == "beta"), format!("{loans:?}"))?;
    Ok(loans.pop())
}

fn start<'a>(
    place: &Place,
    places: &'a [Place; 2],
    etcd: &Etcd<'_>,
    hosts: &Hosts,
) -> Result<([Haversack<'a>; 2], Nbdkit)> {
    let file = image::zeroes(place, "vm1.img", MIB)?.display().to_string();
    let origin = Nbdkit::start(place, "origin", &["--filter=delay", "file", &file, "rdelay=3ms"])?;
    let disk = Disk::new("vm1", origin.uri()).with("from = \"none\"");
    let borrow = "[borrow]\nfrom = \"auto\"\n";
    let lend = format!("[lend]\npool = \"{}\"\ncapacity = \"300MiB\"\n", pool_of(&places[1]));
    let mut settings = [Settings::new(64, vec![disk]), Settings::new(512, Vec::new())];
    settings[0].more = tables(hosts, etcd, "alpha", borrow);
    settings[1].more = tables(hosts, etcd, "beta", &lend);
    Ok((Haversack::start_both(places, settings)?, origin))
}

#[test]
fn a_host_that_is_overloaded_borrows_what_another_has_to_spare_and_gives_it_back() {
    test("spare flash", |place| {
        let etcd = Etcd::start(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?];
        let ([alpha, beta], _origin) = start(place, &places, &etcd, &hosts)?;
        let mut guest = Connection::open(&alpha.socket("nbd.sock"), "vm1")?;

        place.say("alpha's cache is too small");
        check(borrowed(&alpha)?.is_none(), "it borrows without need")?;
        wait_until("blocks of beta", PATIENCE, || {
            read(&mut guest, 0..MIB)?;
            Ok(borrowed(&alpha)?.is_some_and(|loan| loan["hit_blocks"].as_u64() > Some(1000)))
        })?;
        let is_it = |loan: &Value| {
            loan["borrower"] == "alpha" && loan["lender"] == "beta" && loan["is_begun"] == true
        };
        // Beta's windows end at other times.
        wait_until("beta's plan", PATIENCE, || {
            read(&mut guest, 0..MIB)?;
            let loans = list(&beta.json(&["cluster", "plan"])?, "loans");
            Ok(loans.len() == 1 && is_it(&loans[0]))
        })?;
        let lent = list(&beta.json(&["loan", "list"])?, "lent");
        check(
            lent.len() == 1 && lent[0]["host"] == "alpha" && lent[0]["disk"] == "vm1",
            format!("{lent:?}"),
        )?;
        place.say(&beta.command(&["loan", "list"])?);
        place.say(&alpha.command(&["loan", "list"])?);
        let events = alpha.command(&["events"])?;
        check(events.contains("loan-planned"), events)?;

        place.say("the guest needs less");
        wait_until("everything to be given back", PATIENCE, || {
            read(&mut guest, 0..8)?;
            let lent = list(&beta.json(&["loan", "list"])?, "lent");
            Ok(lent.is_empty() && borrowed(&alpha)?.is_none())
        })?;
        // Beta's windows end at other times.
        wait_until("a plan without loans", PATIENCE, || {
            read(&mut guest, 0..8)?;
            Ok(list(&beta.json(&["cluster", "plan"])?, "loans").is_empty())
        })?;
        let events = alpha.command(&["events"])?;
        check(events.contains("loan-ended"), events)?;
        Ok(())
    });
}

#[test]
fn a_disk_that_is_not_to_borrow_does_not() {
    test("a disk that does not borrow", |place| {
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?];
        let file = image::zeroes(place, "vm1.img", MIB)?;
        let origin = Nbdkit::file(place, "origin", &file)?;
        let own = Disk::new("vm1", origin.uri()).with("from = \"none\"").with("borrow = false");
        let mut settings = [Settings::new(64, vec![own]), Settings::new(384, Vec::new())];
        settings[0].more = hosts.tables("alpha") + "\n[borrow]\nfrom = [\"beta\"]\n";
        let lend = format!("\n[lend]\npool = \"{}\"\ncapacity = \"300MiB\"\n", pool_of(&places[1]));
        settings[1].more = hosts.tables("beta") + &lend;
        let [alpha, _beta] = Haversack::start_both(&places, settings)?;
        check(list(&alpha.json(&["loan", "list"])?, "borrowed").is_empty(), "vm1 borrows")?;
        alpha.command(&["disk", "detach", "vm1"])?;
        let other = Nbdkit::file(place, "other", &image::zeroes(place, "vm2.img", MIB)?)?;
        alpha.command(&["disk", "attach", "vm2", &other.uri(), "--from", "none"])?;
        let disks = list(&alpha.json(&["loan", "list"])?, "borrowed");
        check(disks.len() == 1 && disks[0]["disk"] == "vm2", format!("{disks:?}"))
    });
}
