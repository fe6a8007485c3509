//! Tests of the harness's networks: limits and cuts work, and nothing is left of a network when it ends.

use std::time::{Duration, Instant};

use haversack_e2e::error::check;
use haversack_e2e::network::Network;
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, PATIENCE, wait_until};
use haversack_e2e::{Error, MIB, Result, test};

const MEBIBYTES: u64 = 8;

#[test]
fn links_are_limited_and_cut_and_heal() {
    test("a network", |place| {
        let network = Network::new(place, 2, 1000)?;
        let address = network.address(1).to_string();
        let mut server = tools::tool("nbdkit")?;
        let size = format!("{MEBIBYTES}M");
        server.args(["--foreground", "--ipaddr", &address, "pattern", &size]);
        let _server = Process::start(place, "server", &tools::in_network(&server, &network.namespace(1))?)?;
        let uri = format!("nbd://{address}");
        let ask = |limit: &str, tool: &str, more: &[&str]| -> Result<String> {
            let mut command = tools::tool("timeout")?;
            command.args([limit, tool, &uri]).args(more);
            tools::run(tools::in_network(&command, &network.namespace(0))?)
        };
        let download = || ask("120", "nbdcopy", &["null:"]);
        let reach = || ask("3", "nbdinfo", &["--size"]);
        wait_until("the server", PATIENCE, || Ok(reach().is_ok()))?;

        let before = network.sent_bytes(1)?;
        download()?;
        let sent = network.sent_bytes(1)? - before;
        check(
            (MEBIBYTES * MIB..MEBIBYTES * MIB * 11 / 10).contains(&sent),
            format!("{MEBIBYTES} MiB were sent as {sent} bytes"),
        )?;

        network.limit(1, 16)?;
        let start = Instant::now();
        download()?;
        let took = start.elapsed();
        let least = Duration::from_secs_f64(MEBIBYTES as f64 * MIB as f64 * 8.0 / 16e6 * 0.9);
        check(took > least, format!("{MEBIBYTES} MiB came in {took:?} at 16 Mbit/s"))?;

        network.limit(1, 1000)?;
        network.cut(0)?;
        check(reach().is_err(), "the host that is cut off reaches the other one")?;
        network.heal(0)?;
        wait_until("the healed link", PATIENCE, || Ok(reach().is_ok()))?;

        let namespace = network.namespace(0);
        drop(network);
        match std::fs::read_link(&namespace) {
            Err(_) => Ok(()),
            Ok(_) => Err(Error::Check("a network's namespace outlives it".into())),
        }
    });
}
