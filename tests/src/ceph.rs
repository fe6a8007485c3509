//! Ceph: one monitor and one OSD in memory, on the loopback interface, without authentication.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;
use crate::tools::PATIENCE;
use crate::{Error, Place, Result, tools};

/// The pool of the images.
const POOL: &str = "vms";

/// Haversack's lock of an image.
const LOCK: &str = "haversack";

/// An OSD, or a command, is started this many times at most.
const STARTS: u32 = 5;

/// A running cluster with a pool for images.
#[derive(Debug)]
pub struct Ceph {
    _monitor: Process,
    _osd: Process,
    config: PathBuf,
    network: Option<PathBuf>,
}

impl Ceph {
    /// Starts a cluster.
    ///
    /// # Errors
    /// If a daemon does not start or the pool cannot be created.
    pub fn start(place: &Place) -> Result<Self> {
        Self::start_in(place, None)
    }

    /// As [`Ceph::start`], in a network namespace.
    ///
    /// # Errors
    /// As [`Ceph::start`].
    pub fn start_in(place: &Place, network: Option<PathBuf>) -> Result<Self> {
        let config = place.path("ceph.conf");
        let directory = place.path("");
        let address = format!("v1:127.0.0.1:{}", tools::free_port()?);
        let cluster = uuid()?;
        std::fs::write(&config, configuration(&cluster, &address, &directory.display().to_string()))
            .map_err(Error::io(config.display().to_string()))?;
        let run = |program: &str, arguments: &[&str]| run(&config, network.as_deref(), program, arguments);
        for data in ["mon", "osd"] {
            let data = place.path(data);
            std::fs::create_dir(&data).map_err(Error::io(data.display().to_string()))?;
        }
        let map = place.path("monmap").display().to_string();
        run("monmaptool", &["--create", "--fsid", &cluster, "--addv", "a", &format!("[{address}]"), &map])?;
        run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map])?;
        let daemon = |program: &str, id: &str| -> Result<Process> {
            let mut command = tools::tool(program)?;
            command.env("CEPH_CONF", &config).args(["-f", "-i", id]);
            Process::start(place, program, &within(command, network.as_deref())?)
        };
        let monitor = daemon("ceph-mon", "a")?;
        let osd_id = uuid()?;
        run("ceph", &["osd", "new", &osd_id])?;
        run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &osd_id])?;
        run("ceph", &["osd", "crush", "add", "osd.0", "1", "host=localhost", "root=default"])?;
        let is_up = || Ok(run("ceph", &["osd", "stat"])?.contains("1 up"));
        let mut osd = daemon("ceph-osd", "0")?;
        // An OSD that queries the monitor before the monitor has told it the cluster's identity exits: the monitor
        // refuses its commands ("handle_command on fsid 00000000-... != ..."). The error output of the OSD varies, and
        // may be empty.
        for _ in 1..STARTS {
            match osd.wait_for(PATIENCE, is_up) {
                Err(Error::Failed { command, .. }) if command == "ceph-osd" => {
                    osd = daemon("ceph-osd", "0")?;
                }
                started => {
                    started?;
                    break;
                }
            }
        }
        osd.wait_for(PATIENCE, is_up)?;
        run("ceph", &["osd", "pool", "create", POOL, "8"])?;
        Ok(Self { _monitor: monitor, _osd: osd, config, network })
    }

    /// The file with the clients' configuration.
    pub fn configuration(&self) -> &Path {
        &self.config
    }

    /// Creates an image and returns its origin.
    ///
    /// # Errors
    /// The error output of `rbd`.
    pub fn image(&self, name: &str, mib: u64) -> Result<String> {
        self.rbd(&["create", &format!("{POOL}/{name}"), "--size", &format!("{mib}M")])?;
        Ok(format!("rbd:{POOL}/{name}:conf={}", self.config.display()))
    }

    /// Creates an image with the content of a file, with a snapshot of which clones can be made.
    ///
    /// # Errors
    /// The error output of `rbd`.
    pub fn base(&self, name: &str, snapshot: &str, file: &Path) -> Result<String> {
        self.rbd(&["import", "--no-progress", &file.display().to_string(), &format!("{POOL}/{name}")])?;
        let path = format!("{POOL}/{name}@{snapshot}");
        self.rbd(&["snap", "create", "--no-progress", &path])?;
        self.rbd(&["snap", "protect", &path])?;
        Ok(format!("rbd:{path}:conf={}", self.config.display()))
    }

    /// Creates a clone of a snapshot and returns its origin.
    ///
    /// # Errors
    /// The error output of `rbd`.
    pub fn clone(&self, base: &str, snapshot: &str, name: &str) -> Result<String> {
        self.rbd(&["clone", &format!("{POOL}/{base}@{snapshot}"), &format!("{POOL}/{name}")])?;
        Ok(format!("rbd:{POOL}/{name}:conf={}", self.config.display()))
    }

    /// Copies an image to a file.
    ///
    /// # Errors
    /// The error output of `rbd`.
    pub fn export(&self, name: &str, file: &Path) -> Result<()> {
        self.rbd(&["export", "--no-progress", &format!("{POOL}/{name}"), &file.display().to_string()])
    }

    /// An image as QEMU's `--blockdev` takes it.
    pub fn node(&self, name: &str) -> serde_json::Value {
        serde_json::json!({"driver": "rbd", "pool": POOL, "image": name, "conf": self.config})
    }

    /// Takes Haversack's lock of an image as another host would.
    ///
    /// # Errors
    /// Another client has the lock.
    pub fn lock(&self, name: &str, cookie: &str) -> Result<()> {
        let options =
            ["--lock-type", "exclusive", "--lock-cookie", cookie, "--lock-description", "elsewhere"];
        self.lock_command(name, "get", LOCK, &[], &options).map(|_| ())
    }

    /// Takes Haversack's shared lock of an image, as another host does to which the disk can move. The lock must have a
    /// holder.
    ///
    /// # Errors
    /// The lock is exclusive.
    pub fn lock_with_others(&self, name: &str, cookie: &str, host: &str) -> Result<()> {
        let tag = self.lock_info(name, LOCK)?["tag"].as_str().unwrap_or_default().to_owned();
        let description = format!("disk {name} of pool {cookie} on host {host}");
        let options = ["--lock-type", "shared", "--lock-tag", &tag, "--lock-cookie", cookie];
        let options = [&options[..], &["--lock-description", &description]].concat();
        self.lock_command(name, "get", LOCK, &[], &options).map(|_| ())
    }

    /// Returns the cookies and descriptions of those who have Haversack's lock of an image.
    ///
    /// # Errors
    /// The error output of `rados`.
    pub fn lockers(&self, name: &str) -> Result<Vec<[String; 2]>> {
        let lockers = self.holders(name, LOCK)?;
        Ok(lockers.into_iter().map(|[_, cookie, description]| [cookie, description]).collect())
    }

    /// Returns whether Haversack's lock of an image may have several holders.
    ///
    /// # Errors
    /// The error output of `rados`.
    pub fn is_shared(&self, name: &str) -> Result<bool> {
        Ok(self.lock_info(name, LOCK)?["type"] == "shared")
    }

    /// Returns the addresses of the clients that have an image open for writing, as far as the cluster has heard of
    /// them lately.
    ///
    /// # Errors
    /// The error output of `rbd`.
    pub fn watchers(&self, name: &str) -> Result<Vec<String>> {
        let status = self.run("rbd", &["status", "--format", "json", &format!("{POOL}/{name}")])?;
        let status: serde_json::Value =
            serde_json::from_str(&status).map_err(|error| Error::Check(error.to_string()))?;
        let watchers = status["watchers"].as_array().cloned().unwrap_or_default();
        Ok(watchers.iter().filter_map(|watcher| watcher["address"].as_str().map(str::to_owned)).collect())
    }

    /// Returns the entry of each client in an image's register of clients.
    ///
    /// # Errors
    /// The error output of `rados`.
    pub fn registered(&self, name: &str) -> Result<Vec<String>> {
        Ok(self.holders(name, "haversack.clients")?.into_iter().map(|[_, _, client]| client).collect())
    }

    /// Releases Haversack's lock of an image for all holders.
    ///
    /// # Errors
    /// The error output of `rados`.
    pub fn break_lock(&self, name: &str) -> Result<()> {
        self.break_lock_of(name, "")
    }

    /// Releases Haversack's lock of an image for the holders whose descriptions end with this text.
    ///
    /// # Errors
    /// The error output of `rados`.
    pub fn break_lock_of(&self, name: &str, end: &str) -> Result<()> {
        let holders = self.holders(name, LOCK)?;
        let mut named = holders.iter().filter(|[_, _, description]| description.ends_with(end));
        named.try_for_each(|[client, cookie, _]| {
            self.lock_command(name, "break", LOCK, &[client], &["--lock-cookie", cookie]).map(|_| ())
        })
    }

    /// Returns the addresses of the clients that the cluster has blocklisted because other clients have taken over from
    /// them.
    ///
    /// # Errors
    /// The error output of `ceph`.
    pub fn blocklist(&self) -> Result<Vec<String>> {
        let list = self.run("ceph", &["osd", "blocklist", "ls"])?;
        let clients = list.lines().filter_map(|line| line.split_whitespace().next());
        Ok(clients.filter(|client| client.contains(':')).map(str::to_owned).collect())
    }

    /// Blocklists the clients that currently have an image open for writing. The OSD lists them until it learns of the
    /// blocklist.
    ///
    /// # Errors
    /// The error output of `rbd` or `ceph`.
    pub fn block_clients(&self, name: &str) -> Result<()> {
        let clients = self.watchers(name)?;
        clients
            .iter()
            .try_for_each(|client| self.run("ceph", &["osd", "blocklist", "add", client, "3600"]).map(|_| ()))
    }

    fn holders(&self, name: &str, lock: &str) -> Result<Vec<[String; 3]>> {
        let info = self.lock_info(name, lock)?;
        let text =
            |locker: &serde_json::Value, key: &str| locker[key].as_str().unwrap_or_default().to_owned();
        let lockers = info["lockers"].as_array().cloned().unwrap_or_default();
        Ok(lockers.iter().map(|l| ["name", "cookie", "description"].map(|key| text(l, key))).collect())
    }

    fn lock_info(&self, name: &str, lock: &str) -> Result<serde_json::Value> {
        let info = self.lock_command(name, "info", lock, &[], &["--format", "json"])?;
        serde_json::from_str(&info).map_err(|e| Error::Check(e.to_string()))
    }

    fn lock_command(
        &self,
        name: &str,
        verb: &str,
        lock: &str,
        client: &[&str],
        options: &[&str],
    ) -> Result<String> {
        let info = self.run("rbd", &["info", "--format", "json", &format!("{POOL}/{name}")])?;
        let info: serde_json::Value = serde_json::from_str(&info).map_err(|e| Error::Check(e.to_string()))?;
        let header = format!("rbd_header.{}", info["id"].as_str().unwrap_or_default());
        let command = ["--pool", POOL, "lock", verb, &header, lock];
        self.run("rados", &[&command, client, options].concat())
    }

    fn rbd(&self, arguments: &[&str]) -> Result<()> {
        self.run("rbd", arguments).map(|_| ())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run(&self.config, self.network.as_deref(), program, arguments)
    }
}

fn uuid() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    Ok(std::fs::read_to_string(path).map_err(Error::io(path))?.trim().to_owned())
}

/// The command in a network namespace, if there is one.
fn within(command: Command, network: Option<&Path>) -> Result<Command> {
    match network {
        Some(network) => tools::in_network(&command, network),
        None => Ok(command),
    }
}

/// Runs a program against the cluster with this configuration. The monitor refuses a command that arrives before its
/// client has received the cluster's identity from the monitor; in that case the program is run again.
fn run(config: &Path, network: Option<&Path>, program: &str, arguments: &[&str]) -> Result<String> {
    let once = || {
        let mut command = tools::tool(program)?;
        command.env("CEPH_CONF", config).args(arguments);
        tools::run(within(command, network)?)
    };
    (1..STARTS).fold(once(), |result, _| match result {
        Err(error) if error.to_string().contains("getting command descriptions") => once(),
        result => result,
    })
}

fn configuration(cluster: &str, address: &str, directory: &str) -> String {
    format!(
        "[global]
fsid = {cluster}
mon host = {address}
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 1073741824
mon data = {directory}/mon
osd data = {directory}/osd
run dir = {directory}
log file = {directory}/$name.log
[mon]
admin socket =
mon allow pool size one = true
# A monitor ends if less than this share of the disk is free, in percent.
mon data avail crit = 0
[osd]
admin socket =
# A client that died is forgotten after this time, by default after 30 s.
osd client watch timeout = 15
"
    )
}
