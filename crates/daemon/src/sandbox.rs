//! The sandbox: what the daemon and its programs may open once the configuration is read. Landlock enforces it; see the
//! crate `haversack-sandbox`.
//!
//! Invariants
//! - Without `[sandbox]`, nothing is restricted. With it, the daemon does not start unconfined unless
//!   `required = false` is set; then only the daemon's own checks refuse what is outside.
//! - Origins and added devices must be in `paths` or belong to configured disks. They cannot be what the daemon opens
//!   for itself (its directories, keys, the pools' devices), so that nobody reads or changes that through a disk.
//! - A helper may open less than the daemon: no pool, no staging area, no state, and no keys if its image is a local
//!   file.
//! - Paths that do not exist at the start stay outside until the next start. The sandbox is not widened for them.

mod system;

use std::path::{Path, PathBuf};

use haversack_api::{DiskConfig, SandboxStatus};
use haversack_engine::{PoolSettings, pool};
pub use haversack_sandbox::SandboxError;
use haversack_sandbox::{Access, Confined, Rules, confine};
use serde::Deserialize;

use crate::config::{Config, NbdConfig};
use crate::exclusive::Store;
use crate::origin::{BlockDevice, Origin};

/// `[sandbox]` of the configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxConfig {
    /// The daemon does not start if the kernel cannot confine it.
    pub required: bool,
    /// Files, directories and devices that origins may be, besides those that the file names.
    pub paths: Vec<PathBuf>,
}

impl Default for SandboxConfig {
    fn default() -> SandboxConfig {
        SandboxConfig { required: true, paths: Vec::new() }
    }
}

impl SandboxConfig {
    /// Checks the paths. Whether they exist is checked only at the start.
    pub(crate) fn check(&self) -> Result<(), String> {
        for path in &self.paths {
            if !path.is_absolute() {
                return Err(format!("[sandbox] paths: '{}' is not an absolute path", path.display()));
            }
            if path.parent().is_none() {
                return Err("[sandbox] paths: '/' leaves nothing outside: leave [sandbox] out instead".into());
            }
        }
        Ok(())
    }

    /// Returns what the paths allow.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn rules(&self) -> Result<Rules, SandboxError> {
        let mut rules = Rules::default();
        self.paths.iter().try_for_each(|path| rules.allow(path, Access::Write))?;
        Ok(rules)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Sandbox {
    is_required: bool,
    paths: Vec<PathBuf>,
    /// What the daemon needs for itself.
    own: Rules,
    /// What origins and added devices may be.
    stores: Rules,
    /// What every helper needs.
    helpers: Rules,
    /// What helpers of remote stores need in addition.
    remote_helpers: Rules,
    /// What the configuration names but does not exist.
    missing: Vec<PathBuf>,
    confined: Option<Confined>,
}

impl Sandbox {
    /// Computes what a configuration allows. `config_path` is its file's.
    ///
    /// # Errors
    /// One of the `paths` does not exist.
    pub fn of(config_path: &Path, config: &Config) -> Result<Option<Sandbox>, SandboxError> {
        let Some(table) = &config.sandbox else { return Ok(None) };
        let mut sandbox = Sandbox {
            is_required: table.required,
            paths: table.paths.clone(),
            own: Rules::default(),
            stores: table.rules()?,
            helpers: Rules::default(),
            remote_helpers: Rules::default(),
            missing: Vec::new(),
            confined: None,
        };
        sandbox.allow_disks(&config.disks);
        sandbox.allow_own(config_path, config);
        sandbox.allow_system(config);
        Ok(Some(sandbox))
    }

    /// Confines the process if `[sandbox]` is configured. Must be called before threads are started.
    ///
    /// # Errors
    /// One of the `paths` does not exist, or the kernel refuses.
    pub fn enter(config_path: &Path, config: &Config) -> Result<Option<Sandbox>, SandboxError> {
        let Some(mut sandbox) = Sandbox::of(config_path, config)? else { return Ok(None) };
        for path in &sandbox.missing {
            tracing::warn!(
                path = %path.display(),
                "does not exist: it stays outside of the sandbox until haversackd is restarted, unless its directory is in [sandbox] \
                 paths"
            );
        }
        sandbox.note(confine(&[&sandbox.own, &sandbox.stores], system::needs_abstract_sockets()))?;
        Ok(Some(sandbox))
    }

    /// Records how far the process is confined.
    fn note(&mut self, confined: Result<Confined, SandboxError>) -> Result<(), SandboxError> {
        self.confined = match confined {
            Ok(confined) => {
                tracing::info!(landlock = confined.version, paths = ?self.paths, "confined to the sandbox");
                for what in &confined.unrestricted {
                    tracing::warn!("this kernel's Landlock is too old to restrict {what}");
                }
                Some(confined)
            }
            Err(error @ SandboxError::Unsupported) if !self.is_required => {
                tracing::warn!(
                    "NOT CONFINED, since [sandbox] has required = false: {error}. haversackd itself refuses origins outside of the \
                     sandbox; nothing else keeps it and its helpers inside"
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Allows a configured path, or records that it is missing.
    fn allow(&mut self, path: &Path, access: Access) {
        if !self.own.allow_if_there(path, access) {
            self.missing.push(path.to_path_buf());
        }
    }

    /// Allows the directory of a file, because the file may be replaced by a new one.
    fn allow_beside(&mut self, path: &Path, access: Access) {
        // If the file is a link, as for renewed certificates, the directory of its target is allowed as well.
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        for directory in [path.parent(), real.parent()].into_iter().flatten() {
            self.allow(directory, access);
        }
    }

    /// Allows the origins and sockets of configured disks.
    fn allow_disks(&mut self, disks: &[DiskConfig]) {
        for disk in disks {
            for path in Store::of(&disk.origin).files() {
                if !self.stores.allow_if_there(path, access_to(disk)) {
                    self.missing.push(path.clone());
                }
            }
            if let Ok(Origin::Helper(device)) = Origin::parse(&disk.origin) {
                let named = device.nodes.iter().filter_map(|node| node["conf"].as_str());
                for path in named {
                    self.remote_helpers.allow_if_there(Path::new(path), Access::Read);
                }
            }
            if let Some(tls) = &disk.origin_tls {
                let files = [&tls.ca, &tls.certificate, &tls.key];
                files.into_iter().flatten().for_each(|file| self.allow_beside(file, Access::Read));
            }
            if let Some(directory) = disk.vhost_user.as_deref().and_then(Path::parent) {
                self.allow(directory, Access::Sockets);
            }
        }
    }

    /// Allows what the rest of the configuration names.
    fn allow_own(&mut self, config_path: &Path, config: &Config) {
        let daemon = &config.daemon;
        for directory in [&daemon.runtime_dir, &daemon.state_dir] {
            self.allow(directory, Access::Write);
        }
        self.allow(daemon.policy_log_dir(), Access::Write);
        // An editor may replace the configuration file by a new one.
        let config_path = std::path::absolute(config_path).unwrap_or_else(|_| config_path.to_path_buf());
        self.allow_beside(&config_path, Access::Read);
        for pool in &config.pools {
            for device in pool::places(&pool.name, &pool.devices) {
                self.allow(&device, Access::Write);
            }
            pool.clock_file.iter().for_each(|file| self.allow(file, Access::Read));
            if let Some(directory) = PoolSettings::staging_path_of(&pool.name).parent() {
                self.allow(directory, Access::Write);
            }
        }
        for socket in config.nbd.iter().flat_map(NbdConfig::sockets) {
            socket.parent().into_iter().for_each(|directory| self.allow(directory, Access::Sockets));
        }
        for file in keys(config) {
            self.allow_beside(&file, Access::Read);
        }
        for program in config.migration.iter().filter_map(|migration| migration.fence.as_ref()) {
            program.all().for_each(|program| self.allow(program, Access::Run));
        }
        for program in config.cluster.iter().filter_map(|cluster| cluster.hook.as_ref()) {
            self.allow(program, Access::Run);
        }
    }

    /// Allows the system files that libraries and programs need.
    fn allow_system(&mut self, config: &Config) {
        system::allow_programs(&mut self.helpers);
        let daemon = &config.daemon;
        if let Some(program) = system::find_program(&daemon.qemu_storage_daemon) {
            self.helpers.allow_if_there(&program, Access::Run);
        }
        system::allow_settings(&mut self.remote_helpers);
        self.own.add(&self.helpers);
        self.own.add(&self.remote_helpers);
        self.helpers.allow_if_there(&daemon.runtime_dir, Access::Sockets);
        system::allow_harmless_settings(&mut self.helpers);
    }

    /// Checks that a disk's origin and socket are inside.
    ///
    /// # Errors
    /// One is not.
    pub fn check_disk(&self, disk: &DiskConfig) -> Result<(), SandboxError> {
        Store::of(&disk.origin)
            .files()
            .iter()
            .try_for_each(|path| self.stores.check(path, access_to(disk)))?;
        disk.vhost_user.as_deref().map_or(Ok(()), |socket| {
            self.own.check(socket, Access::Sockets).or_else(|_| self.stores.check(socket, Access::Sockets))
        })
    }

    /// Checks that a device that is to be added to a pool is inside.
    ///
    /// # Errors
    /// It is not.
    pub fn check_added_device(&self, path: &Path) -> Result<(), SandboxError> {
        self.stores.check(path, Access::Write)
    }

    /// Checks that the devices that a pool is configured with are inside, since they may have come after the start.
    ///
    /// # Errors
    /// One is not.
    pub fn check_pool(&self, name: &str, devices: &[PathBuf]) -> Result<(), SandboxError> {
        pool::places(name, devices).iter().filter(|path| path.exists()).try_for_each(|path| {
            self.own.check(path, Access::Write).or_else(|error| {
                match self.stores.check(path, Access::Write) {
                    Ok(()) => Ok(()),
                    Err(_) => Err(error),
                }
            })
        })
    }

    /// Returns what the helper of a disk may open; none if the kernel cannot confine it.
    pub fn helper_rules(&self, device: &BlockDevice) -> Option<Rules> {
        self.confined.as_ref()?;
        Some(self.rules_of_helper(device))
    }

    fn rules_of_helper(&self, device: &BlockDevice) -> Rules {
        let mut rules = self.helpers.clone();
        rules.add(&self.stores);
        if system::is_remote(device) {
            rules.add(&self.remote_helpers);
        }
        rules
    }

    /// Returns the state of the sandbox for the control API.
    pub fn status(&self) -> SandboxStatus {
        let confined = self.confined.as_ref();
        SandboxStatus {
            landlock: confined.map_or(0, |confined| confined.version),
            paths: self.paths.iter().map(|path| path.display().to_string()).collect(),
            unrestricted: confined.iter().flat_map(|c| &c.unrestricted).map(ToString::to_string).collect(),
        }
    }
}

/// Returns which access the sandbox permits to a disk's origin. Only a read-only plain file is restricted to reading.
fn access_to(disk: &DiskConfig) -> Access {
    let is_file = matches!(Origin::parse(&disk.origin), Ok(Origin::File(_)));
    if disk.read_only && is_file { Access::Read } else { Access::Write }
}

/// Returns the files of certificates, keys and tokens that the daemon itself uses.
fn keys(config: &Config) -> Vec<PathBuf> {
    let api = config.api.iter().flat_map(|api| {
        [Some(&api.certificate), Some(&api.key), api.token_file.as_ref(), api.client_ca.as_ref()]
    });
    let nbd = config.nbd.iter().flat_map(|nbd| {
        [nbd.tls_certificate.as_ref(), nbd.tls_key.as_ref(), nbd.tls_client_ca.as_ref(), None]
    });
    let migration = config.migration.iter().flat_map(|migration| {
        [migration.certificate.as_ref(), migration.key.as_ref(), migration.authority.as_ref(), None]
    });
    let cluster = config.cluster.iter().flat_map(|cluster| cluster.files().map(Some));
    api.chain(nbd).chain(migration).chain(cluster).flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory with a configuration of two disks, both outside of `paths`: `vm1` is writable, `gold` is read-only.
    struct Place {
        _directory: tempfile::TempDir,
        path: PathBuf,
        config: Config,
    }

    impl Place {
        fn new(sandbox: &str) -> Place {
            let directory = tempfile::tempdir().unwrap();
            let path = fs::canonicalize(directory.path()).unwrap();
            for name in ["images", "run", "state", "settings", "keys", "elsewhere"] {
                fs::create_dir(path.join(name)).unwrap();
            }
            for name in
                ["cache.img", "vm1.img", "gold.img", "keys/nbd.key", "state/state.json", "elsewhere/a"]
            {
                fs::write(path.join(name), "").unwrap();
            }
            let text = TEXT.replace("SANDBOX", sandbox).replace("PLACE", path.to_str().unwrap());
            let config = Config::parse(Path::new("c.toml"), &text).unwrap();
            Place { _directory: directory, path, config }
        }

        fn sandbox(&self) -> Sandbox {
            Sandbox::of(&self.path.join("settings/haversackd.toml"), &self.config).unwrap().unwrap()
        }

        /// A disk with an origin in which `PLACE` stands for the place.
        fn disk(&self, origin: &str) -> DiskConfig {
            DiskConfig::new("vm2", "main", &origin.replace("PLACE", self.path.to_str().unwrap()))
        }
    }

    const TEXT: &str = r#"
[daemon]
runtime_dir = "PLACE/run"
state_dir = "PLACE/state"
SANDBOX
[[pool]]
name = "main"
devices = ["faulty:PLACE/cache.img", "PLACE/nvme*"]
[nbd]
listen = ["unix:PLACE/run/nbd.sock"]
tls_certificate = "PLACE/keys/nbd.crt"
tls_key = "PLACE/keys/nbd.key"
[[disk]]
name = "vm1"
pool = "main"
origin = "PLACE/vm1.img"
[[disk]]
name = "gold"
pool = "main"
origin = "PLACE/gold.img"
read_only = true
[[disk]]
name = "late"
pool = "main"
origin = "PLACE/elsewhere/late.img"
"#;
    const TABLE: &str = "[sandbox]\npaths = [\"PLACE/images\"]";

    #[test]
    fn without_the_table_there_is_no_sandbox() {
        let place = Place::new("");
        assert!(Sandbox::of(Path::new("/c.toml"), &place.config).unwrap().is_none());
        let place = Place::new("[sandbox]");
        place.sandbox().check_disk(&place.disk("PLACE/vm1.img")).unwrap();
        place.sandbox().check_disk(&place.disk("PLACE/images/a")).unwrap_err();
    }

    #[test]
    fn origins_come_from_the_paths_and_from_configured_disks() {
        let place = Place::new(TABLE);
        let sandbox = place.sandbox();
        let nested = r#"qemu:{"driver": "raw", "file": {"driver": "file", "filename": "PLACE/elsewhere/a"}}"#;
        for inside in ["PLACE/images/new", "PLACE/vm1.img", "qcow2:PLACE/images/a", "nbd://h/x", "rbd:vms/a"]
        {
            sandbox.check_disk(&place.disk(inside)).unwrap();
        }
        // Files that the daemon opens for itself are not allowed as origins either.
        let own =
            ["PLACE/cache.img", "PLACE/state/state.json", "PLACE/keys/nbd.key", "/etc/passwd", "/dev/null"];
        for outside in own.into_iter().chain(["PLACE/elsewhere/a", "qcow2:PLACE/elsewhere/a", nested]) {
            for read_only in [false, true] {
                let disk = DiskConfig { read_only, ..place.disk(outside) };
                let error = sandbox.check_disk(&disk).unwrap_err().to_string();
                assert!(error.contains("outside of the sandbox"), "{outside}: {error}");
            }
        }
        let gold = place.disk("PLACE/gold.img");
        sandbox.check_disk(&DiskConfig { read_only: true, ..gold.clone() }).unwrap();
        sandbox.check_disk(&gold).unwrap_err();
    }

    #[test]
    fn sockets_and_added_devices_are_inside_too() {
        let place = Place::new(TABLE);
        let sandbox = place.sandbox();
        let with_socket = |socket: &str| DiskConfig {
            vhost_user: Some(place.path.join(socket)),
            ..place.disk("PLACE/vm1.img")
        };
        for socket in ["run/vm1.sock", "images/vm1.sock"] {
            sandbox.check_disk(&with_socket(socket)).unwrap();
        }
        for socket in ["elsewhere/vm1.sock", "keys/vm1.sock"] {
            sandbox.check_disk(&with_socket(socket)).unwrap_err();
        }
        sandbox.check_added_device(&place.path.join("images/second")).unwrap();
        sandbox.check_added_device(&place.path.join("elsewhere/second")).unwrap_err();
        sandbox.check_pool("main", &place.config.pools[0].devices).unwrap();
        sandbox.check_pool("main", std::slice::from_ref(&place.path.join("elsewhere/a"))).unwrap_err();
    }

    #[test]
    fn a_helper_has_less_than_the_daemon() {
        let place = Place::new(TABLE);
        let sandbox = place.sandbox();
        let rules = |origin: &str| match Origin::parse(origin) {
            Ok(Origin::Helper(device)) => sandbox.rules_of_helper(&device),
            other => panic!("{origin}: {other:?}"),
        };
        let (local, remote) = (rules("qcow2:/a"), rules("rbd:vms/a"));
        for rules in [&local, &remote] {
            rules.check(&place.path.join("images/a"), Access::Write).unwrap();
            rules.check(&place.path.join("run/helper.sock"), Access::Sockets).unwrap();
            rules.check(Path::new("/usr/bin/env"), Access::Run).unwrap();
            let own = [
                "cache.img",
                "state/state.json",
                "keys/nbd.key",
                "settings/haversackd.toml",
                "run/control.sock",
            ];
            for path in
                own.map(|name| place.path.join(name)).iter().chain([&"/dev/shm/haversack-main".into()])
            {
                rules.check(path, Access::Read).unwrap_err();
            }
        }
        local.check(Path::new("/etc/passwd"), Access::Read).unwrap();
        local.check(Path::new("/etc/haversack-secret"), Access::Read).unwrap_err();
        remote.check(Path::new("/etc/haversack-secret"), Access::Read).unwrap();
        remote.check(Path::new("/etc/haversack-secret"), Access::Write).unwrap_err();
    }

    #[test]
    fn what_does_not_exist_at_the_start_stays_outside() {
        let place = Place::new(TABLE);
        let sandbox = place.sandbox();
        let late = place.path.join("elsewhere/late.img");
        assert_eq!(sandbox.missing, std::slice::from_ref(&late));
        fs::write(&late, "").unwrap();
        sandbox.check_disk(&place.disk("PLACE/elsewhere/late.img")).unwrap_err();
        place.sandbox().check_disk(&place.disk("PLACE/elsewhere/late.img")).unwrap();
        let place = Place::new("[sandbox]\npaths = [\"PLACE/nowhere\"]");
        let error = Sandbox::of(Path::new("/c.toml"), &place.config).unwrap_err().to_string();
        assert!(error.contains("nowhere") && error.contains("when haversackd starts"), "{error}");
    }

    #[test]
    fn without_landlock_the_daemon_starts_only_if_its_configuration_says_so() {
        let unsupported = || Err(SandboxError::Unsupported);
        let mut required = Place::new("[sandbox]\npaths = [\"PLACE/images\"]").sandbox();
        let error = required.note(unsupported()).unwrap_err().to_string();
        assert!(error.contains("required = false"), "{error}");

        let place = Place::new("[sandbox]\nrequired = false\npaths = [\"PLACE/images\"]");
        let mut sandbox = place.sandbox();
        sandbox.note(unsupported()).unwrap();
        assert_eq!(sandbox.status().landlock, 0);
        let origin = place.disk("qcow2:PLACE/vm1.img").origin;
        let Ok(Origin::Helper(device)) = Origin::parse(&origin) else { panic!("{origin} needs a helper") };
        assert!(sandbox.helper_rules(&device).is_none(), "the helper could not start");
        // What the daemon checks itself holds all the same.
        assert!(sandbox.check_disk(&place.disk("PLACE/elsewhere/a")).is_err());
        // Any other failure remains an error.
        assert!(sandbox.note(Err(SandboxError::Threads { threads: 2 })).is_err());
    }
}
