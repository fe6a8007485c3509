//! `/readyz` and `/healthz`: what a monitor and a load balancer are told, at the metrics port and over the control
//! socket.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings, pool_of};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::{Error, Result, clients, image, test};

/// What curl prints: the answer's text, and the status in a line of its own.
fn curl(arguments: &[&str], url: &str) -> Result<String> {
    let mut curl = tools::tool("curl")?;
    curl.args(["--silent", "--show-error", "--max-time", "10", "--noproxy", "*"]);
    curl.args(["--write-out", "\n%{http_code}"]).args(arguments).arg(url);
    tools::run(curl)
}

/// What the control socket and the metrics port answer.
fn answers(daemon: &Haversack<'_>, port: u16, path: &str) -> Result<[String; 2]> {
    let socket = daemon.socket("control.sock").display().to_string();
    let at_socket = curl(&["--unix-socket", &socket], &format!("http://localhost{path}"))?;
    Ok([at_socket, curl(&[], &format!("http://127.0.0.1:{port}{path}"))?])
}

/// Waits until both answer `/readyz` with this text and status; meanwhile both say that the daemon is healthy.
fn wait_until_both_say(daemon: &Haversack<'_>, port: u16, text: &str, status: u16) -> Result<()> {
    let expected = format!("{text}\n{status}");
    tools::wait_until(&format!("the answer {expected:?}"), PATIENCE, || {
        let healthy = answers(daemon, port, "/healthz")?;
        check(healthy.iter().all(|answer| answer == "ok\n\n200"), format!("not healthy: {healthy:?}"))?;
        Ok(answers(daemon, port, "/readyz")?.iter().all(|answer| *answer == expected))
    })
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(Error::io(from.display().to_string()))
}

#[test]
fn a_daemon_that_is_not_ready_says_why_and_is_healthy() {
    test("/readyz", |place| {
        let file = image::zeroes(place, "vm1.img", 16)?;
        // A second pool, whose device is not there yet, and a disk whose origin is not there yet.
        let late = format!("{}-late", pool_of(place));
        let (device, elsewhere) = (place.path("late-cache.img"), place.path("elsewhere.img"));
        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", &late]).arg(&device).args(["--size", "64M"]);
        tools::run(create)?;
        rename(&device, &elsewhere)?;
        let port = tools::free_port()?;
        let vm2 = place.path("vm2.img").display().to_string();
        let disks = vec![Disk::new("vm1", file.display().to_string()), Disk::new("vm2", vm2).unattachable()];
        let mut settings = Settings::new(64, disks);
        settings.daemon = format!("metrics_listen = \"127.0.0.1:{port}\"\n");
        settings.more = format!("[[pool]]\nname = \"{late}\"\ndevices = [{device:?}]\nstaging = \"16MiB\"\n");
        let daemon = Haversack::start(place, settings)?;
        let pool = format!("pool {late} is failed\n");
        wait_until_both_say(&daemon, port, &format!("{pool}disk vm2 is waiting\n"), 503)?;
        image::zeroes(place, "vm2.img", 16)?;
        wait_until_both_say(&daemon, port, &pool, 503)?;
        place.say("the disk is attached, the pool still fails");
        rename(&elsewhere, &device)?;
        wait_until_both_say(&daemon, port, "ok\n", 200)
    });
}

/// How long callers and guests may wait for a daemon whose disks are being attached; it waits for these for longer.
const SOON: Duration = Duration::from_secs(15);

/// Asks a vhost-user server for its features, as front ends do first.
fn answers_front_ends(socket: &Path) -> Result<()> {
    let failed = |error| Error::io(socket.display().to_string())(error);
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(SOON)).map_err(failed)?;
    // VHOST_USER_GET_FEATURES of version 1, without data.
    let request = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
    stream.write_all(&request).map_err(failed)?;
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).map_err(failed)?;
    check(answer[..4] == request[..4], format!("not the features: {answer:?}"))
}

fn state(daemon: &Haversack<'_>, disk: &str) -> Result<String> {
    Ok(daemon.json(&["disk", "show", disk])?["state"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn an_origin_that_never_answers_delays_no_other_guest_and_no_caller() {
    test("a hung origin", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 16)?.display().to_string();
        // Connections are accepted by the system, and nobody reads what they say.
        let hung = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::io("a hung server"))?;
        let port = hung.local_addr().map_err(Error::io("a hung server"))?.port();
        let vm2 = Disk::new("vm2", format!("nbd://127.0.0.1:{port}/vm2")).unattachable();
        let metrics = tools::free_port()?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", &file), vm2]);
        settings.daemon = format!("metrics_listen = \"127.0.0.1:{metrics}\"\n");
        settings.early = true;
        let begun = Instant::now();
        let daemon = Haversack::start(place, settings)?;
        wait_until_both_say(&daemon, metrics, "starting\ndisk vm2 is attaching\n", 503)?;
        clients::compare(&daemon.uri("vm1"), &file)?;
        answers_front_ends(&daemon.socket("vm1.sock"))?;
        let list = daemon.command(&["disk", "list"])?;
        check(list.contains("vm1") && list.contains("vm2"), list)?;
        let refusal = daemon.refused(&["policy", "set", "equal"])?;
        check(refusal.contains("the daemon is starting"), refusal)?;
        let waited = begun.elapsed();
        check(waited < SOON, format!("all of this took {waited:?}"))?;
        check(state(&daemon, "vm2")? == "attaching", "vm2 is not being attached any more")?;
        place.say("served while the start goes on");

        tools::wait_until("the end of the start", PATIENCE, || {
            Ok(daemon.json(&["status"])?["starting"] != true)
        })?;
        daemon.wait_for_log(&["still being attached", "vm2"])?;
        daemon.command(&["policy", "set", "equal"]).map(|_| ())
    });
}

#[test]
fn a_guest_that_comes_back_before_its_disk_waits_for_it() {
    test("NBD during the start", |place| {
        let file = image::pattern(place, "vm1.img", "vm1", 16)?;
        let server = Nbdkit::file(place, "origin", &file)?;
        let mut settings = Settings::new(64, vec![Disk::new("vm1", server.uri()).unattachable()]);
        settings.early = true;
        server.process().pause()?;
        let daemon = Haversack::start(place, settings)?;
        let (named, nameless) = (daemon.uri("vm1"), daemon.uri(""));
        let sizes = std::thread::scope(|scope| {
            let guests = [&named, &nameless].map(|uri| scope.spawn(|| clients::nbdinfo(uri)));
            std::thread::sleep(Duration::from_secs(1));
            let attaches = state(&daemon, "vm1").is_ok_and(|state| state == "attaching");
            let waits = attaches && guests.iter().all(|guest| !guest.is_finished());
            let resumed = server.process().resume();
            let infos = guests.map(|guest| guest.join().expect("it does not panic"));
            check(waits, "the guests did not wait").and(resumed)?;
            infos
                .into_iter()
                .map(|info| Ok(info?["exports"][0]["export-size"].clone()))
                .collect::<Result<Vec<_>>>()
        })?;
        check(sizes == [16 << 20, 16 << 20], format!("the exports: {sizes:?}"))?;
        clients::compare(&named, &file.display().to_string())
    });
}
