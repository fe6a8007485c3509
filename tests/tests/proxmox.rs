//! The Proxmox plug-in, called as Proxmox does by the programs in `tests/proxmox`, which have stand-ins of Proxmox's
//! own modules.

use std::path::Path;
use std::time::Duration;

use haversack_e2e::haversack::{Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::{Error, Place, Result, test, tools};

/// How long a program may take on a busy machine. A daemon waits several times for a host that does not answer.
const LIMIT: Duration = Duration::from_secs(600);
const CACHE_MIB: u64 = 128;

/// Runs a program with a daemon for each of its nodes.
fn run(place: &Place, program: &str, nodes: &[(&str, &Haversack<'_>)]) -> Result<()> {
    let scratch = place.path("scene");
    std::fs::create_dir(&scratch).map_err(Error::io("scene"))?;
    let haversack = tools::own("haversack")?;
    let programs = Path::new(haversack.get_program()).parent().unwrap_or(Path::new(".")).to_owned();
    let mut perl = tools::tool("perl")?;
    // As Proxmox's daemons: what comes from outside must be checked before it becomes an argument of a command.
    perl.arg("-T").arg(tools::workspace().join("tests/proxmox").join(program));
    perl.env("HAVERSACK_PROGRAMS", programs).env("SCENE_DIRECTORY", scratch);
    for (node, daemon) in nodes {
        let socket = daemon.socket("control.sock");
        let sockets = socket.parent().unwrap_or(&socket).display();
        perl.env(format!("SCENE_{node}"), format!("{sockets}:{}", daemon.pool()));
    }
    tools::run_within(perl, LIMIT).map(drop)
}

#[test]
fn proxmox_makes_uses_and_removes_volumes() {
    test("a Proxmox storage", |place| {
        let daemon = Haversack::start(place, Settings::new(CACHE_MIB, Vec::new()))?;
        run(place, "life.pl", &[("ALPHA", &daemon)])
    });
}

#[test]
fn proxmox_moves_volumes_between_nodes_that_know_each_other() {
    test("a Proxmox storage of two nodes", |place| {
        let hosts = Hosts::new(place, &["alpha", "beta", "gamma"])?;
        let places = [place.host("a")?, place.host("b")?];
        let settings = |me| Settings { more: hosts.tables(me), ..Settings::new(CACHE_MIB, Vec::new()) };
        let [alpha, beta] = Haversack::start_both(&places, [settings("alpha"), settings("beta")])?;
        run(place, "nodes.pl", &[("ALPHA", &alpha), ("BETA", &beta)])
    });
}
