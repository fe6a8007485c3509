//! `/readyz` and `/healthz`: what a monitor and a load balancer are told, at the metrics port and over the control
//! socket.

use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Disk, Haversack, Settings, pool_of};
use haversack_e2e::tools::{self, PATIENCE};
use haversack_e2e::{Error, Result, image, test};

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
