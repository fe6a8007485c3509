//! Daemons in a cluster that measure what disks demand, and keep tenants to their parts of it.

use std::ops::Range;
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test};
use serde_json::Value;

const NAMES: [&str; 2] = ["alpha", "beta"];
const WINDOW: Duration = Duration::from_secs(4);
const BLOCK: u64 = 4096;

fn cluster(etcd: &Etcd<'_>, more: &str) -> String {
    format!(
        "\n[cluster]\nendpoints = [\"{}\"]\ninsecure = true\nreport_every = \"1s\"\nlease = \"3s\"\n{more}\n\
         [cluster.balance]\nwindow = \"{}s\"\n",
        etcd.endpoint(),
        WINDOW.as_secs()
    )
}

/// An origin that takes its time, so that a cache is worth something.
fn origin(place: &Place, name: &str, mib: u64) -> Result<Nbdkit> {
    let file = image::zeroes(place, &format!("{name}.img"), mib)?;
    let text = file.display().to_string();
    Nbdkit::start(place, &format!("{name}-origin"), &["--filter=delay", "file", &text, "rdelay=3ms"])
}

fn disk(name: &str, origin: &Nbdkit, more: &str) -> Disk {
    Disk::new(name, origin.uri()).with("from = \"none\"").with(more)
}

/// Starts the hosts with caches of these sizes, and more lines of their `[cluster]`. None of them has a policy in its
/// file.
fn start<'a>(
    places: &'a [Place],
    etcd: &Etcd<'_>,
    hosts: &Hosts,
    all: [(u64, Vec<Disk>); 2],
    of_cluster: [&str; 2],
) -> Result<Vec<Haversack<'a>>> {
    let mut daemons = Vec::new();
    for (number, (mib, disks)) in all.into_iter().enumerate() {
        let more = hosts.tables(NAMES[number]) + &cluster(etcd, of_cluster[number]);
        daemons.push(Haversack::start(&places[number], Settings { more, ..Settings::new(mib, disks) })?);
    }
    wait_until("both hosts", PATIENCE, || {
        let shown = daemons[0].json(&["cluster", "status"])?;
        Ok(shown["hosts"]
            .as_array()
            .is_some_and(|hosts| hosts.iter().filter(|host| host["state"] == "alive").count() == 2))
    })?;
    Ok(daemons)
}

fn read(guest: &mut Connection, mebibytes: Range<u64>) -> Result<()> {
    let mut data = vec![0; 1 << 20];
    for mebibyte in mebibytes {
        guest.ask(Command::Read, mebibyte << 20, 1 << 20, &mut data)?;
    }
    Ok(())
}

fn guest(daemon: &Haversack<'_>, disk: &str) -> Result<Connection> {
    Connection::open(&daemon.socket("nbd.sock"), disk)
}

fn usage(daemon: &Haversack<'_>, disk: &str) -> Result<u64> {
    let shown = daemon.json(&["disk", "show", disk])?;
    shown["usage"]["usage_bytes"].as_u64().ok_or_else(|| Error::Check(format!("{shown}")))
}

/// What the disks of the tenant use on both hosts.
fn together(daemons: &[Haversack<'_>]) -> Result<u64> {
    Ok(usage(&daemons[0], "vm1")? + usage(&daemons[1], "vm2")?)
}

/// The last decision about a host's pool.
fn decision(daemon: &Haversack<'_>) -> Result<Value> {
    let log = daemon.command(&["--json", "policy", "log", "--count", "1"])?;
    let entries: Value =
        serde_json::from_str(&log).map_err(|error| Error::Check(format!("{log}: {error}")))?;
    Ok(entries.get(0).cloned().unwrap_or(entries))
}

#[test]
fn a_host_without_a_policy_says_what_its_disks_demand_and_is_relieved() {
    test("demand", |place| {
        let etcd = Etcd::start(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?];
        let (large, small) = (origin(place, "large", 160)?, origin(place, "small", 32)?);
        let of_alpha = vec![disk("large", &large, "vm = \"web\""), disk("small", &small, "")];
        // Beta has too little memory for the VM.
        let needs = "[[cluster.vm]]\nname = \"web\"\nmemory = \"2GiB\"\nprocessors = 2";
        let of_cluster = [needs, "memory = \"1GiB\"\nprocessors = 8"];
        let all = [(128, of_alpha), (512, Vec::new())];
        let mut daemons = start(&places, &etcd, &hosts, all, of_cluster)?;
        let mut guest = guest(&daemons[0], "large")?;
        let alpha = |daemons: &[Haversack<'_>]| -> Result<Value> {
            let shown = daemons[1].json(&["cluster", "status"])?;
            let hosts = shown["hosts"].as_array().cloned().unwrap_or_default();
            let host = hosts.into_iter().find(|host| host["name"] == "alpha");
            host.map(|host| host["pools"][0].clone()).ok_or_else(|| Error::Check(format!("{shown}")))
        };
        wait_until("a demand above the cache", PATIENCE, || {
            read(&mut guest, 0..160)?;
            let pool = alpha(&daemons)?;
            Ok(pool["demand_bytes"].as_u64() > pool["capacity_bytes"].as_u64())
        })?;
        // It cannot have that much in its cache.
        let pool = alpha(&daemons)?;
        check(pool["usage_bytes"].as_u64() <= pool["capacity_bytes"].as_u64(), format!("{pool}"))?;
        let policy = daemons[0].json(&["policy", "show"])?;
        check(policy["settings"]["allocator"] == "auto", format!("{policy}"))?;
        let moves = |daemons: &[Haversack<'_>]| -> Result<Vec<Value>> {
            let plan = daemons[0].json(&["cluster", "plan"])?;
            Ok(plan["moves"].as_array().cloned().unwrap_or_default())
        };
        let begin = Instant::now();
        while begin.elapsed() < WINDOW * 5 {
            read(&mut guest, 0..160)?;
            check(moves(&daemons)?.is_empty(), "it is to move to a host without memory for it")?;
        }
        daemons[1].stop()?;
        daemons[1].settings().more =
            hosts.tables(NAMES[1]) + &cluster(&etcd, "memory = \"4GiB\"\nprocessors = 8");
        daemons[1].start_again()?;
        wait_until("a proposal", PATIENCE, || {
            read(&mut guest, 0..160)?;
            let moves = moves(&daemons)?;
            Ok(moves.len() == 1 && moves[0]["vm"] == "web" && moves[0]["to"] == "beta")
        })?;
        place.say(&daemons[0].command(&["cluster", "status", "--disks"])?);
        place.say(&daemons[0].command(&["cluster", "plan"])?);
        Ok(())
    });
}

#[test]
fn tenants_are_kept_to_their_parts_over_two_hosts_with_and_without_etcd() {
    test("tenants", |place| {
        const LIMIT_MIB: u64 = 48;
        // One commit may be in progress while the blocks of another are replaced.
        const MOST_BYTES: u64 = (LIMIT_MIB + 4) << 20;
        let mut etcd = Etcd::start(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?];
        let origins = [origin(place, "vm1", 512)?, origin(place, "vm2", 512)?, origin(place, "vm3", 256)?];
        // A filter could keep out the new blocks that make a disk give up old ones.
        let shop = "tenant = \"shop\"\nadmission = \"always\"";
        let all = [
            (
                128,
                vec![
                    disk("vm1", &origins[0], shop),
                    disk("vm3", &origins[2], "tenant = \"lab\"\nadmission = \"always\""),
                ],
            ),
            (128, vec![disk("vm2", &origins[1], shop)]),
        ];
        let mut daemons = start(&places, &etcd, &hosts, all, [""; 2])?;
        let mut guests = [guest(&daemons[0], "vm1")?, guest(&daemons[1], "vm2")?];
        guests.iter_mut().try_for_each(|guest| read(guest, 0..64))?;
        check(together(&daemons)? > MOST_BYTES, "there is no need of a limit")?;

        // A disk gives up its surplus only when it gets new blocks, so each round reads one more MiB.
        let mut rounds = 0;
        let mut work = |guests: &mut [Connection; 2]| -> Result<()> {
            rounds += 1;
            let new = 64 + rounds % 448;
            guests.iter_mut().try_for_each(|guest| {
                read(guest, 0..64)?;
                read(guest, new..new + 1)
            })
        };
        place.say("a limit over both hosts");
        daemons[1].command(&["tenant", "set", "shop", "--limit", &format!("{LIMIT_MIB}MiB")])?;
        wait_until("the limit", PATIENCE, || {
            work(&mut guests)?;
            Ok(together(&daemons)? <= MOST_BYTES)
        })?;
        // The first shares are computed before any demand is measured, so the hosts exchange space once more.
        let begin = Instant::now();
        while begin.elapsed() < WINDOW * 3 || together(&daemons)? > MOST_BYTES {
            work(&mut guests)?;
        }
        let mut holds =
            |daemons: &[Haversack<'_>], guests: &mut [Connection; 2], time: Duration| -> Result<()> {
                let (begin, mut held, mut exceeded) = (Instant::now(), Instant::now(), 0);
                while begin.elapsed() < time {
                    work(guests)?;
                    let bytes = together(daemons)?;
                    // When demand is measured differently, the hosts exchange space, and one of them gives its part up
                    // only as its disk gets new blocks.
                    exceeded += 1;
                    if bytes <= MOST_BYTES {
                        (held, exceeded) = (Instant::now(), 0);
                    }
                    check(
                        exceeded < 3 || held.elapsed() < WINDOW * 2,
                        format!("{bytes} bytes with a limit of {LIMIT_MIB} MiB"),
                    )?;
                }
                Ok(())
            };
        holds(&daemons, &mut guests, WINDOW * 3)?;
        let both = [usage(&daemons[0], "vm1")?, usage(&daemons[1], "vm2")?];
        check(both.iter().all(|bytes| *bytes > 8 << 20), format!("one of them has nothing: {both:?}"))?;
        place.say(&daemons[0].command(&["tenant", "show"])?);
        place.say(&daemons[0].command(&["policy", "explain", "vm1"])?);

        place.say("etcd is killed");
        etcd.kill()?;
        holds(&daemons, &mut guests, WINDOW * 3)?;
        place.say("a daemon starts again without etcd");
        drop(guests);
        daemons[1].stop()?;
        daemons[1].start_again()?;
        let mut guests = [guest(&daemons[0], "vm1")?, guest(&daemons[1], "vm2")?];
        holds(&daemons, &mut guests, WINDOW * 2)?;
        etcd.start_again()?;

        place.say("a reservation against a neighbour that reads much more");
        wait_until("etcd", PATIENCE, || {
            Ok(daemons[0].command(&["tenant", "set", "shop", "--reservation", "40MiB"]).is_ok())
        })?;
        let mut greedy = guest(&daemons[0], "vm3")?;
        let hot = 0..32;
        let least_blocks = 30 * (1 << 20) / BLOCK;
        wait_until("the reservation", PATIENCE, || {
            for _ in 0..3 {
                read(&mut guests[0], hot.clone())?;
            }
            read(&mut greedy, 0..256)?;
            let target = decision(&daemons[0])?["plan"]["disks"]["vm1"]["target"]["shared"].clone();
            Ok(target["at_least_blocks"].as_u64() >= Some(least_blocks)
                && usage(&daemons[0], "vm1")? > 30 << 20)
        })?;
        for _ in 0..3 {
            for _ in 0..3 {
                read(&mut guests[0], hot.clone())?;
            }
            read(&mut greedy, 0..256)?;
            let bytes = usage(&daemons[0], "vm1")?;
            check(bytes > 28 << 20, format!("{bytes} bytes are left of the reservation"))?;
        }
        // What a tenant does not demand is free for others.
        wait_until("the end of the reservation", PATIENCE, || {
            read(&mut greedy, 0..16)?;
            let target = decision(&daemons[0])?["plan"]["disks"]["vm1"]["target"]["shared"].clone();
            Ok(target["at_least_blocks"].as_u64().is_some_and(|blocks| blocks < least_blocks / 8))
        })?;
        daemons[0].command(&["tenant", "remove", "shop"])?;
        wait_until("no tenants", PATIENCE, || Ok(decision(&daemons[0])?["inputs"]["tenants"].is_null()))
    });
}
