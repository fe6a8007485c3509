//! The Ansible role with Debian's ansible-core, on this host but in the test's place, as for an image in which no
//! systemd runs. `scripts/ansible-test` has it set up a host with the package and systemd.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use haversack_e2e::error::check;
use haversack_e2e::haversack::pool_of;
use haversack_e2e::process::Process;
use haversack_e2e::tools::{self, Output, PATIENCE, wait_until};
use haversack_e2e::{Error, MIB, Place, Result, clients, image, test};
use serde_json::{Value, json};

const PLAYBOOK: &str = "- hosts: localhost
  connection: local
  gather_facts: false
  roles: [haversack]
";

/// How long one run of the role may take, on a busy machine.
const PLAY_LIMIT: Duration = Duration::from_secs(900);
/// Blocks of the origin, 4 KiB each.
const BLOCKS: u64 = 4096;

/// A host that the role sets up.
struct Host<'a> {
    place: &'a Place,
    programs: PathBuf,
    variables: Value,
}

impl<'a> Host<'a> {
    fn new(place: &'a Place, origin: &Path) -> Result<Self> {
        let haversack = tools::own("haversack")?;
        let programs = Path::new(haversack.get_program()).parent().unwrap_or(Path::new(".")).to_owned();
        let run = place.path("run");
        for directory in [&run, &place.path("state")] {
            std::fs::create_dir(directory).map_err(Error::io(directory.display().to_string()))?;
        }
        let variables = json!({
            "ansible_python_interpreter": "/usr/bin/python3",
            "haversack_package": "",
            "haversack_service_manager": "none",
            "haversack_bin_dir": programs,
            "haversack_user": "root",
            "haversack_group": "root",
            "haversack_config_file": place.path("etc/haversackd.toml"),
            "haversack_daemon": { "runtime_dir": run, "state_dir": place.path("state") },
            "haversack_nbd": { "listen": [format!("unix:{}", run.join("nbd.sock").display())] },
            "haversack_pools": [{
                "name": pool_of(place),
                "devices": [place.path("cache.img")],
                // There is room for the whole disk: what is read while none is free is not cached.
                "staging": "32MiB",
                "create": { "size": "64M" },
            }],
            "haversack_disks": [{ "name": "vm1", "pool": pool_of(place), "origin": origin, "mode": "wb" }],
        });
        Ok(Self { place, programs, variables })
    }

    /// Runs the role.
    fn play(&self) -> Result<Output> {
        let [playbook, variables] = ["playbook.yml", "variables.json"].map(|name| self.place.path(name));
        std::fs::write(&playbook, PLAYBOOK).map_err(Error::io("the playbook"))?;
        std::fs::write(&variables, self.variables.to_string()).map_err(Error::io("the variables"))?;
        let mut ansible = tools::tool("ansible-playbook")?;
        ansible.args(["--inventory", "localhost,"]).arg(&playbook);
        ansible.arg("--extra-vars").arg(format!("@{}", variables.display()));
        ansible.env("ANSIBLE_ROLES_PATH", tools::workspace().join("packaging/ansible/roles"));
        ansible.env("ANSIBLE_HOME", self.place.path("ansible"));
        ansible.env("ANSIBLE_REMOTE_TMP", self.place.path("ansible/remote"));
        ansible.env("ANSIBLE_PIPELINING", "true").env("ANSIBLE_NOCOLOR", "true");
        // Ansible takes no other encoding.
        ansible.env("LC_ALL", "C.UTF-8");
        tools::output_within(ansible, PLAY_LIMIT)
    }

    /// Runs the role, and returns how many tasks have changed something.
    fn changes(&self) -> Result<u32> {
        let output = self.play()?;
        let recap = output.stdout.lines().rfind(|line| line.contains("changed=")).unwrap_or_default();
        let changed = recap.split_whitespace().find_map(|word| word.strip_prefix("changed=")?.parse().ok());
        match changed.filter(|_| output.status.success()) {
            Some(changed) => Ok(changed),
            None => Err(Error::Check(format!("the role fails: {}{}", output.stdout, output.stderr))),
        }
    }

    fn configuration(&self) -> PathBuf {
        self.place.path("etc/haversackd.toml")
    }

    fn start_daemon(&self) -> Result<Process> {
        let mut command = Command::new(self.programs.join("haversackd"));
        command.arg("--config").arg(self.configuration());
        let mut daemon = Process::start(self.place, "haversackd", &command)?;
        daemon.wait_for(PATIENCE, || Ok(self.disk().is_ok_and(|disk| disk["state"] == "attached")))?;
        Ok(daemon)
    }

    /// What the daemon tells of the disk.
    fn disk(&self) -> Result<Value> {
        let mut command = Command::new(self.programs.join("haversack"));
        command.arg("--socket").arg(self.place.path("run/control.sock"));
        command.args(["--json", "disk", "show", "vm1"]);
        let text = tools::run(command)?;
        serde_json::from_str(&text).map_err(|error| Error::Check(format!("no JSON ({error}): {text}")))
    }
}

#[test]
fn the_role_sets_a_host_up_once() {
    test("the Ansible role", |place| {
        if !rustix::process::geteuid().is_root() {
            place.say("not run: the role must be root");
            return Ok(());
        }
        let origin = image::pattern(place, "vm1.img", "vm1", BLOCKS * 4096 / MIB)?;
        let mut host = Host::new(place, &origin)?;

        // Somebody's image among the devices: the role fails, and it is not touched.
        let foreign = image::pattern(place, "foreign.img", "foreign", 64)?;
        let digest = image::digest(&foreign)?;
        let pools = host.variables["haversack_pools"].take();
        host.variables["haversack_pools"] = json!([pools[0], { "name": "foreign", "devices": [foreign] }]);
        let output = host.play()?;
        check(
            !output.status.success() && output.stdout.contains("is on it and would be lost"),
            format!("not refused: {output:?}"),
        )?;
        check(image::digest(&foreign)? == digest, "the image was overwritten")?;
        check(!host.configuration().exists(), "a configuration without its pool was written")?;
        place.say("refused what is not blank");

        host.variables["haversack_pools"] = pools;
        check(host.changes()? > 0, "nothing was set up")?;
        check(host.changes()? == 0, "the second run changes what is as it should be")?;
        let daemon = host.start_daemon()?;
        let uri = format!("nbd+unix:///vm1?socket={}", place.path("run/nbd.sock").display());
        for _ in 0..2 {
            clients::compare(&uri, &origin.display().to_string())?;
        }
        let disk = host.disk()?;
        let hits = disk["requests"]["read_hits"].as_u64();
        check(hits >= Some(BLOCKS), format!("the second time is not served by the cache: {disk}"))?;
        place.say("set up once, and read through the cache");

        host.variables["haversack_disks"][0]["mode"] = json!("wt");
        check(host.changes()? == 1, "a changed mode is not one change")?;
        daemon.hang_up()?;
        wait_until("mode wt", PATIENCE, || Ok(host.disk()?["config"]["mode"] == "wt"))?;
        let status = daemon.terminate(PATIENCE)?;
        // The staging area outlives the daemon on purpose.
        let _ = std::fs::remove_file(format!("/dev/shm/haversack-{}", pool_of(place)));
        check(status.success(), format!("haversackd ended with {status}"))
    });
}
