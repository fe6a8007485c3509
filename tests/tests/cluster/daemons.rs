//! Daemons in a cluster: what an operator sees on each of them, and that failures of etcd do not affect guests.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::error::check;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, state};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::{Error, Place, Result, image, test};
use serde_json::Value;

use super::raw::Raw;

pub(super) const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
const MIB: u64 = 32;
const BLOCKS: u64 = (MIB << 20) / 4096;

/// The table for the end of a host's file.
pub(super) fn cluster(etcd: &Etcd<'_>, more: &str) -> String {
    format!(
        "\n[cluster]\nendpoints = [\"{}\"]\ninsecure = true\nreport_every = \"1s\"\nlease = \"3s\"\n{more}\n\
         [cluster.balance]\nwindow = \"1s\"\n",
        etcd.endpoint()
    )
}

/// Starts the daemons of all hosts, each with one disk of its own: vm1, vm2, vm3.
fn start<'a>(
    places: &'a [Place],
    etcd: &Etcd<'_>,
    hosts: &Hosts,
    origins: &[Nbdkit],
    more: &str,
) -> Result<Vec<Haversack<'a>>> {
    let mut daemons = Vec::new();
    for (number, (place, origin)) in places.iter().zip(origins).enumerate() {
        let disk = Disk::new(&format!("vm{}", number + 1), origin.uri()).with("from = \"none\"");
        let more = hosts.tables(NAMES[number]) + &cluster(etcd, more);
        daemons.push(Haversack::start(place, Settings { more, ..Settings::new(128, vec![disk]) })?);
    }
    Ok(daemons)
}

fn origins(place: &Place) -> Result<Vec<Nbdkit>> {
    let origin = |number: usize| {
        let file = image::zeroes(place, &format!("vm{number}.img"), MIB)?;
        Nbdkit::file(place, &format!("origin{number}"), &file)
    };
    (1..=NAMES.len()).map(origin).collect()
}

pub(super) fn status(daemon: &Haversack<'_>) -> Result<Value> {
    daemon.json(&["cluster", "status"])
}

pub(super) fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array().into_iter().flatten().find(|one| one["name"] == name).unwrap_or(&Value::Null)
}

/// Waits until a daemon shows a host in a state.
pub(super) fn until_host(daemon: &Haversack<'_>, host: &str, state: &str) -> Result<()> {
    wait_until(&format!("host {host} {state}"), PATIENCE, || {
        Ok(named(&status(daemon)?["hosts"], host)["state"] == state)
    })
}

/// Asks a path of the control API that the command line does not show.
fn get(daemon: &Haversack<'_>, path: &str) -> Result<String> {
    let mut curl = tools::tool("curl")?;
    curl.args(["--silent", "--fail", "--unix-socket"]).arg(daemon.socket("control.sock"));
    curl.arg(format!("http://daemon{path}"));
    tools::run(curl)
}

pub(super) fn has_event(daemon: &Haversack<'_>, kind: &str) -> Result<bool> {
    // One JSON object a line.
    let events = daemon.command(&["--json", "events", "--last", "1000"])?;
    Ok(events.lines().any(|line| line.contains(&format!("\"kind\":\"{kind}\""))))
}

#[test]
fn three_daemons_and_an_etcd_that_dies() {
    test("a cluster", |place| {
        let mut etcd = Etcd::start(place)?;
        let origins = origins(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let mut daemons = start(&places, &etcd, &hosts, &origins, "")?;
        for daemon in &daemons {
            NAMES.iter().try_for_each(|name| until_host(daemon, name, "alive"))?;
            wait_until("all disks", PATIENCE, || {
                Ok(status(daemon)?["disks"].as_array().is_some_and(|disks| disks.len() == 3))
            })?;
        }
        let shown = status(&daemons[0])?;
        let disk = named(&shown["disks"], "vm2");
        check(disk["host"] == "beta" && disk["can_move"] == true, format!("{disk}"))?;
        let pool = &named(&shown["hosts"], "beta")["pools"][0];
        let own = daemons[1].json(&["pool", "list"])?;
        check(pool["capacity_bytes"] == own[0]["capacity_bytes"], format!("{pool} is not {own}"))?;
        check(shown["directory"]["age_s"].as_f64().is_some_and(|age| age < 3.0), format!("{shown}"))?;

        place.say("a daemon is killed");
        daemons[2].kill()?;
        until_host(&daemons[0], "gamma", "away")?;
        let shown = status(&daemons[0])?;
        let disk = named(&shown["disks"], "vm3");
        check(disk["host"] == "gamma" && disk["is_host_alive"] == false, format!("{disk}"))?;
        wait_until("the event", PATIENCE, || has_event(&daemons[0], "host-away"))?;

        place.say("etcd is killed");
        let mut guest = Connection::open(&daemons[0].socket("nbd.sock"), "vm1")?;
        guest.fill(0..BLOCKS / 2, 1)?;
        etcd.kill()?;
        let killed = Instant::now();
        let mut value = 1;
        wait_until("the loss of etcd", PATIENCE, || {
            value += 1;
            guest.fill(0..64, value)?;
            Ok(status(&daemons[0])?["directory"]["endpoint"].is_null())
        })?;
        while killed.elapsed() < Duration::from_secs(6) {
            value = value % 200 + 1;
            let begin = Instant::now();
            guest.fill(0..64, value)?;
            guest.ask(Command::Flush, 0, 0, &mut [])?;
            guest.check_filled(0..64, value)?;
            // A flush takes long on a busy disk.
            check(begin.elapsed() < Duration::from_secs(30), format!("I/O took {:?}", begin.elapsed()))?;
        }
        daemons[0].command(&["disk", "flush", "vm1"])?;
        let shown = status(&daemons[0])?;
        check(shown["disks"].as_array().is_some_and(|disks| disks.len() == 3), "the view is gone")?;
        check(shown["directory"]["age_s"].as_f64().is_some_and(|age| age > 3.0), format!("{shown}"))?;
        let text = daemons[0].command(&["cluster", "status"])?;
        check(text.contains("etcd has been away for") && text.contains(&etcd.endpoint()), text)?;
        let plan = daemons[0].command(&["cluster", "plan"])?;
        check(plan.contains("etcd has been away for"), plan)?;
        let refused = daemons[0].refused(&["host", "drain", "beta"])?;
        check(refused.contains("etcd cannot be reached"), refused)?;
        let ready = get(&daemons[0], "/readyz")?;
        check(ready.starts_with("ok\n") && ready.contains("directory of the cluster has been away"), ready)?;
        check(
            get(&daemons[0], "/metrics")?.contains("\nhaversack_cluster_connected 0\n"),
            "the metric is not 0",
        )?;
        wait_until("the event", PATIENCE, || has_event(&daemons[0], "directory-away"))?;

        place.say("etcd is back");
        etcd.start_again()?;
        daemons[2].start_again()?;
        NAMES.iter().try_for_each(|name| until_host(&daemons[0], name, "alive"))?;
        wait_until("a new view", PATIENCE, || {
            let shown = status(&daemons[0])?;
            Ok(shown["directory"]["age_s"].as_f64().is_some_and(|age| age < 2.0))
        })?;
        wait_until("the event", PATIENCE, || has_event(&daemons[0], "directory-back"))?;
        check(get(&daemons[0], "/readyz")? == "ok\n", "it complains still")?;
        guest.check_filled(64..BLOCKS / 2, 1)?;

        place.say("a host is forgotten");
        let alive = daemons[0].refused(&["host", "forget", "gamma", "--confirm", "gamma"])?;
        check(alive.contains("host 'gamma' is alive"), alive)?;
        // The command reports the reason before it asks for the name.
        for (host, why) in [("gamma", "host 'gamma' is alive"), ("delta", "no host 'delta'")] {
            let asked = daemons[0].refused(&["host", "forget", host])?;
            check(asked.contains(why) && !asked.contains("type '"), asked)?;
        }
        daemons[0].command(&["host", "drain", "gamma"])?;
        daemons[2].kill()?;
        until_host(&daemons[0], "gamma", "away")?;
        let other = daemons[0].refused(&["host", "forget", "gamma", "--confirm", "beta"])?;
        check(other.contains("not confirmed"), other)?;
        let unknown = daemons[0].refused(&["host", "forget", "delta", "--confirm", "delta"])?;
        check(unknown.contains("no host 'delta'"), unknown)?;
        daemons[0].command(&["host", "forget", "gamma", "--confirm", "gamma"])?;
        for daemon in &daemons[..2] {
            wait_until("two hosts and their disks", PATIENCE, || {
                let shown = status(daemon)?;
                Ok(named(&shown["hosts"], "gamma").is_null() && named(&shown["disks"], "vm3").is_null())
            })?;
        }
        check(has_event(&daemons[0], "host-forgotten")?, "there is no event")?;
        // The host is not dead: when it starts again, it reports its state.
        daemons[2].start_again()?;
        until_host(&daemons[0], "gamma", "alive")?;
        wait_until("its disk", PATIENCE, || {
            Ok(named(&status(&daemons[0])?["disks"], "vm3")["host"] == "gamma")
        })
    });
}

#[test]
fn a_drained_host_is_planned_empty_and_a_move_is_an_intent() {
    test("a drained host", |place| {
        let etcd = Etcd::start(place)?;
        let origins = origins(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let daemons = start(&places, &etcd, &hosts, &origins, "")?;
        let [alpha, beta, gamma] = &daemons[..] else { return Err(Error::Check("not three".into())) };
        NAMES.iter().try_for_each(|name| until_host(alpha, name, "alive"))?;
        let plan = gamma.json(&["cluster", "plan"])?;
        check(plan["moves"].as_array().is_some_and(Vec::is_empty), format!("{plan}"))?;
        let unknown = alpha.refused(&["host", "drain", "delta"])?;
        check(unknown.contains("no host 'delta'"), unknown)?;
        alpha.command(&["host", "drain", "beta"])?;
        // Every host sees it.
        until_host(gamma, "beta", "draining")?;
        wait_until("the proposal", PATIENCE, || {
            let plan = gamma.json(&["cluster", "plan"])?;
            let moves = plan["moves"].as_array().cloned().unwrap_or_default();
            Ok(moves.len() == 1 && moves[0]["vm"] == "vm2" && moves[0]["from"] == "beta")
        })?;
        place.say(&gamma.command(&["cluster", "plan"])?);

        // An operator moves the VM as planned. Attaching the disk at alpha already makes beta send it; that is
        // cancelled.
        let pool = alpha.pool();
        alpha.command(&[
            "disk",
            "attach",
            "vm2",
            &origins[1].uri(),
            "--pool",
            &pool,
            "--mode",
            "wb",
            "--from",
            "beta",
        ])?;
        wait_until("the beginning", PATIENCE, || Ok(state(beta, "vm2")? == "sending"))?;
        beta.command(&["migrate", "abort", "vm2"])?;
        beta.command(&["migrate", "vm2", "--to", "alpha"])?;
        wait_until("the intent", PATIENCE, || {
            let moves = status(gamma)?["moves"].as_array().cloned().unwrap_or_default();
            Ok(moves.len() == 1
                && moves[0]["disk"] == "vm2"
                && moves[0]["to"] == "alpha"
                && moves[0]["state"] == "sending")
        })?;
        let refused = beta.refused(&["migrate", "vm2", "--to", "gamma", "--wait"])?;
        place.say(&refused);
        // The guest comes to alpha.
        let mut guest = Connection::open(&alpha.socket("nbd.sock"), "vm2")?;
        guest.fill(0..8, 7)?;
        wait_until("the move", PATIENCE, || {
            let shown = status(gamma)?;
            let disk = named(&shown["disks"], "vm2");
            Ok(disk["host"] == "alpha"
                && disk["epoch"].as_u64() > Some(0)
                && shown["moves"] == serde_json::json!([]))
        })?;
        check(state(alpha, "vm2")? == "here" || state(alpha, "vm2")? == "arriving", "it is not at alpha")?;
        wait_until("an empty plan", PATIENCE, || {
            Ok(gamma.json(&["cluster", "plan"])?["moves"].as_array().is_some_and(Vec::is_empty))
        })?;
        gamma.command(&["host", "undrain", "beta"])?;
        until_host(alpha, "beta", "alive")?;

        let wrong = alpha.refused(&["tenant", "set", "shop", "--weight", "0"])?;
        check(wrong.contains("expected a number from"), wrong)?;
        alpha.command(&["tenant", "set", "shop", "--weight", "2", "--reservation", "1GiB"])?;
        gamma.command(&["disk", "set", "vm3", "--tenant", "shop"])?;
        wait_until("the tenant", PATIENCE, || {
            let tenants = beta.json(&["tenant", "show", "shop"])?;
            Ok(tenants[0]["settings"]["weight"] == 2.0 && tenants[0]["disks"] == 1)
        })?;
        beta.command(&["tenant", "remove", "shop"])?;
        let again = beta.refused(&["tenant", "remove", "shop"])?;
        check(again.contains("no tenant 'shop'"), again)
    });
}

/// The program is minimal: it has the cache sent, and a client of the disk connects to the other host.
#[test]
fn a_drained_host_is_emptied_by_the_program_of_the_operator() {
    test("a hook", |place| {
        let etcd = Etcd::start(place)?;
        let origins = origins(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let choose = |variable: &str, value: &dyn Fn(usize) -> String| {
            let case = |number: usize| format!("{}) v='{}' ;;\n", NAMES[number], value(number));
            let cases: String = (0..NAMES.len()).map(case).collect();
            format!("case \"${variable}\" in\n{cases}esac\n")
        };
        let socket = |name: &'static str| {
            let places = &places;
            move |number: usize| places[number].path("run").join(name).display().to_string()
        };
        let pool = |number: usize| haversack_e2e::haversack::pool_of(&places[number]);
        let haversack = tools::own("haversack")?.get_program().display().to_string();
        let qemu_io = tools::tool("qemu-io")?.get_program().display().to_string();
        let refuses = place.path("refuses");
        let script = format!(
            "#!/bin/sh\nset -e\ncat >>{input}\necho \"$@\" >>{calls}\n\
             {pool}p=$v\n\
             {there}{haversack} --socket \"$v\" disk attach \"$1\" '{origin}' --pool \"$p\" --mode wb --from \"$2\" ||\n\
             {haversack} --socket \"$v\" disk show \"$1\"\n\
             {here}{haversack} --socket \"$v\" migrate \"$1\" --to \"$3\"\n\
             [ ! -e {refuses} ] || {{ echo not now; exit 3; }}\n\
             {nbd}exec {qemu_io} -f raw -c 'write -P 7 0 4k' \"nbd+unix:///$1?socket=$v\"\n",
            input = place.path("input").display(),
            calls = place.path("calls").display(),
            refuses = refuses.display(),
            pool = choose("3", &pool),
            there = choose("3", &socket("control.sock")),
            origin = origins[1].uri(),
            here = choose("2", &socket("control.sock")),
            nbd = choose("3", &socket("nbd.sock")),
        );
        let hook = place.path("hook");
        std::fs::write(&hook, script).map_err(Error::io("the hook"))?;
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755))
            .map_err(Error::io("the hook"))?;
        std::fs::write(&refuses, "").map_err(Error::io("the hook"))?;
        let more = format!("hook = \"{}\"\nhook_time = \"60s\"\n", hook.display());
        let daemons = start(&places, &etcd, &hosts, &origins, &more)?;
        let alpha = &daemons[0];
        NAMES.iter().try_for_each(|name| until_host(alpha, name, "alive"))?;
        let leader = || -> Result<Option<usize>> {
            let shown = status(alpha)?;
            Ok(NAMES.iter().position(|name| shown["leader"] == *name))
        };
        wait_until("a leader", PATIENCE, || Ok(leader()?.is_some()))?;
        alpha.command(&["host", "drain", "beta"])?;
        // Another host may lead by now, or none for a moment.
        wait_until("a failure", PATIENCE, || {
            daemons.iter().try_fold(false, |found, daemon| Ok(found || has_event(daemon, "balance-failed")?))
        })?;
        wait_until("no intent", PATIENCE, || Ok(status(alpha)?["moves"] == serde_json::json!([])))?;
        // The program has begun to send the disk and does not end that; the source does.
        wait_until("the end of the sending", PATIENCE, || Ok(state(&daemons[1], "vm2")? == "here"))?;
        wait_until("the reason why it ended", PATIENCE, || {
            let events = daemons[1].command(&["--json", "events", "--last", "1000"])?;
            Ok(events.contains("the balancer's move of its VM was given up"))
        })?;
        let calls = std::fs::read_to_string(place.path("calls")).map_err(Error::io("calls"))?;
        check(calls.starts_with("vm2 beta ") && calls.lines().count() == 1, format!("called with {calls}"))?;
        let input = std::fs::read_to_string(place.path("input")).map_err(Error::io("input"))?;
        let input: Value =
            serde_json::from_str(&input).map_err(|error| Error::Check(format!("{input}: {error}")))?;
        check(input["disks"][0]["name"] == "vm2", format!("{input}"))?;

        // A leader does not move a VM again for a while after a failed move, but the next leader does.
        std::fs::remove_file(&refuses).map_err(Error::io("the hook"))?;
        let mut daemons = daemons;
        let mut first = None;
        wait_until("a leader", PATIENCE, || {
            let shown = status(&daemons[0])?;
            first = NAMES.iter().position(|name| shown["leader"] == *name);
            Ok(first.is_some())
        })?;
        let first = first.ok_or_else(|| Error::Check("no host leads".into()))?;
        place.say(&format!("{} led", NAMES[first]));
        daemons[first].stop()?;
        let looker = (first + 2) % 3;
        wait_until("another leader", PATIENCE, || {
            let shown = status(&daemons[looker])?;
            Ok(NAMES.iter().enumerate().any(|(number, name)| number != first && shown["leader"] == *name))
        })?;
        daemons[first].start_again()?;
        wait_until("the move", PATIENCE, || {
            let shown = status(&daemons[looker])?;
            let disk = named(&shown["disks"], "vm2");
            Ok(disk["host"] != "beta" && disk["host"].is_string() && shown["moves"] == serde_json::json!([]))
        })
    });
}

/// The host that balances dies while its program has a disk sent. Nothing drives the move any more, and the source
/// cancels it.
#[test]
fn a_disk_that_was_on_its_way_when_the_host_that_balances_died_stays_where_it_is() {
    test("a driver that dies", |place| {
        let etcd = Etcd::start(place)?;
        let origins = origins(place)?;
        let names = &NAMES[..2];
        let hosts = Hosts::new(place, names)?;
        let places = [place.host("a")?, place.host("b")?];
        let pool = haversack_e2e::haversack::pool_of(&places[0]);
        let haversack = tools::own("haversack")?.get_program().display().to_string();
        let socket = |number: usize| places[number].path("run").join("control.sock").display().to_string();
        let script = format!(
            "#!/bin/sh\nset -e\n\
             {haversack} --socket {there} disk attach vm2 '{origin}' --pool {pool} --mode wb --from beta\n\
             {haversack} --socket {here} migrate vm2 --to alpha --no-wait\n\
             sleep 1000\n",
            there = socket(0),
            here = socket(1),
            origin = origins[1].uri(),
        );
        let hook = place.path("hook");
        std::fs::write(&hook, script).map_err(Error::io("the hook"))?;
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755))
            .map_err(Error::io("the hook"))?;
        let mut daemons = Vec::new();
        for (number, (host, origin)) in places.iter().zip(&origins).enumerate() {
            let disk = Disk::new(&format!("vm{}", number + 1), origin.uri()).with("from = \"none\"");
            // Only alpha can balance.
            let program = if number == 0 {
                format!("hook = \"{}\"\nhook_time = \"20s\"\n", hook.display())
            } else {
                String::new()
            };
            let more = hosts.tables(NAMES[number]) + &cluster(&etcd, &program);
            daemons.push(Haversack::start(host, Settings { more, ..Settings::new(128, vec![disk]) })?);
        }
        names.iter().try_for_each(|name| until_host(&daemons[1], name, "alive"))?;
        daemons[1].command(&["host", "drain", "beta"])?;
        wait_until("the sending", PATIENCE, || Ok(state(&daemons[1], "vm2")? == "sending"))?;
        wait_until("the move", PATIENCE, || {
            Ok(status(&daemons[1])?["moves"].as_array().is_some_and(|moves| {
                moves.iter().any(|one| one["disk"] == "vm2" && one["state"] == "sending")
            }))
        })?;
        let died = Instant::now();
        daemons[0].kill()?;
        wait_until("the end of the lease", PATIENCE, || {
            Ok(named(&status(&daemons[1])?["hosts"], "alpha")["state"] == "away")
        })?;
        // The end of the lease may be seen late.
        check(
            state(&daemons[1], "vm2")? == "sending" || died.elapsed() >= Duration::from_secs(12),
            "the move is ended although its program may still run",
        )?;
        wait_until("the end of the sending", PATIENCE, || Ok(state(&daemons[1], "vm2")? == "here"))?;
        place.say(&format!("ended {:.0} s after the host that balances died", died.elapsed().as_secs_f64()));
        check(
            died.elapsed() >= Duration::from_secs(12),
            "ended before it was certain that nobody drives it",
        )?;
        check(status(&daemons[1])?["moves"] == serde_json::json!([]), "the intent stays")
    });
}

/// A move that cannot begin was not tried: it begins soon after it can.
#[test]
fn a_move_that_is_in_the_way_of_a_proposed_one_does_not_put_it_off_for_long() {
    test("a proposal and an intent", |place| {
        let etcd = Etcd::start(place)?;
        let origins = origins(place)?;
        let hosts = Hosts::new(place, &NAMES)?;
        let places = [place.host("a")?, place.host("b")?, place.host("c")?];
        let (hook, calls) = (place.path("hook"), place.path("calls"));
        let script = format!("#!/bin/sh\necho \"$@\" >>{}\n", calls.display());
        std::fs::write(&hook, script).map_err(Error::io("the hook"))?;
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755))
            .map_err(Error::io("the hook"))?;
        let more = format!("hook = \"{}\"\n", hook.display());
        let daemons = start(&places, &etcd, &hosts, &origins, &more)?;
        NAMES.iter().try_for_each(|name| until_host(&daemons[0], name, "alive"))?;
        let shown = status(&daemons[0])?;
        let disk = named(&shown["disks"], "vm2");
        // To a host that is not in the cluster, so that nobody takes the VM for one that is on its way.
        let intent = serde_json::json!({
            "version": 1, "name": "vm2", "from": "beta", "epoch": disk["epoch"], "to": "delta", "by": "delta", "instance": 1,
            "reason": "a test",
        });
        let key = format!("/haversack/v1/intents/{}", disk["id"].as_str().unwrap_or_default());
        let raw = Raw::connect(&etcd.endpoint())?;
        raw.put(&key, &intent.to_string())?;
        daemons[0].command(&["host", "drain", "beta"])?;
        wait_until("a proposal that cannot begin", PATIENCE, || {
            Ok(daemons.iter().any(|daemon| daemon.log().contains("not moved now")))
        })?;
        check(!calls.exists(), "the program is called although another move is in the directory")?;
        raw.delete(&key)?;
        let removed = Instant::now();
        // If the move counted as failed, the program would be called only after ten minutes.
        wait_until("the call of the program", Duration::from_secs(120), || Ok(calls.exists()))?;
        place.say(&format!("called after {:.1} s", removed.elapsed().as_secs_f64()));
        Ok(())
    });
}
