//! From an installation without a pool to the first cached read: docs/quick-start.md.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use haversack_e2e::error::check;
use haversack_e2e::haversack::{Haversack, Settings};
use haversack_e2e::{Error, Place, Result, clients, image, test, tools};

/// What tells an operator what is missing.
const CREATE: &str = "haversack pool create";

/// A daemon as it is after the installation: without a pool.
fn installed(place: &Place) -> Result<Haversack<'_>> {
    Haversack::start_on_devices(place, Settings { devices: Vec::new(), ..Settings::new(0, Vec::new()) })
}

/// Creates the pool in `cache.img` and adds it to the daemon's file.
fn create_pool(place: &Place, daemon: &Haversack<'_>) -> Result<String> {
    let mut create = tools::own("haversack")?;
    create.args(["pool", "create", &daemon.pool()]).arg(place.path("cache.img"));
    create.args(["--size", "64M", &format!("--configure={}", daemon.configuration_file().display())]);
    tools::run(create)
}

fn metadata(path: &Path) -> Result<std::fs::Metadata> {
    std::fs::metadata(path).map_err(Error::io(path.display().to_string()))
}

#[test]
fn a_daemon_without_a_pool_runs_and_gets_one() {
    test("the first start", |place| {
        let mut daemon = installed(place)?;
        let status = daemon.command(&["status"])?;
        check(status.contains("no pool is configured") && status.contains(CREATE), status)?;
        daemon.command(&["pool", "status"])?;
        daemon.command(&["policy", "show"])?;
        daemon.command(&["events"])?;
        let mut ready = tools::tool("curl")?;
        ready.args(["--silent", "--fail", "--unix-socket"]).arg(daemon.socket("control.sock"));
        ready.args(["http://localhost/readyz", "http://localhost/metrics", "http://localhost/v1/history"]);
        tools::run(ready)?;
        let origin = image::pattern(place, "vm1.img", "vm1", 16)?.display().to_string();
        let pool = daemon.pool();
        let attach = ["disk", "attach", "vm1", &origin, "--pool", &pool];
        let why = daemon.refused(&attach)?;
        check(why.contains("no pool is configured") && why.contains(CREATE), why)?;
        place.say("it runs without a pool, and says what to do");

        let said = create_pool(place, &daemon)?;
        check(said.contains("restart haversackd"), said)?;
        check(create_pool(place, &daemon).is_err(), "the pool is added twice")?;
        daemon.process()?.hang_up()?;
        daemon.wait_for_log(&["[[pool]] has changed", "next start"])?;
        daemon.stop()?;
        daemon.start_unchanged()?;
        daemon.command(&attach)?;
        for _ in 0..2 {
            clients::compare(&daemon.uri("vm1"), &origin)?;
        }
        let hits = daemon.json(&["disk", "show", "vm1"])?["requests"]["read_hits"].as_u64();
        check(hits.is_some_and(|hits| hits >= 2048), format!("{hits:?} hits"))
    });
}

#[test]
fn a_file_that_has_lost_its_pools_starts_no_daemon() {
    test("a file without its pools", |place| {
        let mut daemon = installed(place)?;
        create_pool(place, &daemon)?;
        daemon.stop()?;
        daemon.start_unchanged()?;
        let origin = image::zeroes(place, "vm1.img", 16)?.display().to_string();
        daemon.command(&["disk", "attach", "vm1", &origin, "--pool", &daemon.pool()])?;
        // The settings have no pool.
        daemon.reload(&daemon.configuration())?;
        daemon.wait_for_log(&["reload refused", "no longer has a [[pool]]", "complete"])?;
        daemon.stop()?;
        let Err(error) = daemon.start_again() else {
            return Err(Error::Check("it starts without the pool of an attached disk".into()));
        };
        let why = error.to_string() + &daemon.log();
        check(why.contains("these disks are attached: 'vm1'") && why.contains("remove_disks"), why)?;
        daemon.settings().daemon = "remove_disks = [\"vm1\"]\n".to_owned();
        daemon.start_again()
    });
}

#[test]
fn a_file_that_root_makes_belongs_to_the_owner_of_its_directory() {
    test("the owner of a pool's file", |place| {
        let directory = place.path("state");
        std::fs::create_dir(&directory).map_err(Error::io("the directory"))?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).map_err(Error::io("chown"))?;
        }
        let made = directory.join("cache.img");
        let mut create = tools::own("haversack")?;
        create.args(["pool", "create", "main"]).arg(&made).args(["--size", "64M"]);
        tools::run(create)?;
        let (directory, made) = (metadata(&directory)?, metadata(&made)?);
        check((made.uid(), made.gid()) == (directory.uid(), directory.gid()), "the file has another owner")?;
        check(made.permissions().mode() & 0o777 == 0o600, "others can open the file")
    });
}
