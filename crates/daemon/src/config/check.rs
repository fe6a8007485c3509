//! Whether the parts of a configuration agree with each other.
//!
//! Invariants
//! - A configuration without a problem has unique names and ids of pools and disks, every disk's pool, and no path that
//!   two parts use.
//! - No file but the configuration's own is looked at, unless the caller allows it: one that does not answer must not
//!   keep the daemon from starting.
//! - A problem names the part of the file in which it is, by a byte offset.

use std::collections::HashMap;
use std::path::PathBuf;

use haversack_api::{ANY_HOST, DiskConfig};
use haversack_link::host_id;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::{Config, Files, PoolConfig};
use crate::exclusive::{self, KnownStore, Store};
use crate::settings;

/// The byte offsets at which the parts of the file begin.
#[derive(Default, Deserialize)]
pub(super) struct Places {
    daemon: Option<Spanned<IgnoredAny>>,
    api: Option<Spanned<IgnoredAny>>,
    access: Option<Spanned<IgnoredAny>>,
    sandbox: Option<Spanned<IgnoredAny>>,
    nbd: Option<Spanned<IgnoredAny>>,
    migration: Option<Spanned<IgnoredAny>>,
    lend: Option<Spanned<IgnoredAny>>,
    borrow: Option<Spanned<IgnoredAny>>,
    cluster: Option<Spanned<IgnoredAny>>,
    policy: Option<Spanned<IgnoredAny>>,
    #[serde(default)]
    pool: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    host: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    disk: Vec<Spanned<IgnoredAny>>,
}

impl Places {
    /// Whether the table of a disk is the last one in the file.
    pub(super) fn ends_with_disk(&self) -> bool {
        let tables = [&self.daemon, &self.api, &self.access, &self.sandbox, &self.nbd, &self.migration];
        let others = tables
            .into_iter()
            .chain([&self.policy, &self.cluster, &self.lend, &self.borrow])
            .flatten()
            .chain(&self.pool)
            .chain(&self.host)
            .map(|part| part.span().start)
            .max();
        self.disk.last().map(|disk| disk.span().start) > others
    }
}

impl Config {
    /// Checks consistency. Returns the first problem and its byte offset in the file.
    pub(super) fn check(&self, places: &Places, files: Files) -> Result<(), (usize, String)> {
        let at =
            |places: &[Spanned<IgnoredAny>], index: usize| places.get(index).map_or(0, |p| p.span().start);
        let start = |part: &Option<Spanned<IgnoredAny>>| part.as_ref().map_or(0, |p| p.span().start);
        self.check_removed().map_err(|what| (start(&places.daemon), what))?;
        let mut taken = Taken::new();
        if self.daemon.request_time.0.is_zero() {
            return Err((
                0,
                "request_time = \"0s\" would refuse every request: give a time such as 30s".into(),
            ));
        }
        claim(&mut taken, format!("path {}", self.daemon.control_socket().display()), "[daemon]".into())
            .map_err(|what| (0, what))?;
        for (index, pool) in self.pools.iter().enumerate() {
            self.check_pool(pool, &mut taken).map_err(|what| (at(&places.pool, index), what))?;
        }
        let mut earlier = Vec::new();
        for (index, disk) in self.disks.iter().enumerate() {
            self.check_disk(disk, &mut taken)
                .and_then(|()| self.check_origin(disk, &mut earlier, files))
                .map_err(|what| (at(&places.disk, index), what))?;
        }
        if let Some(api) = &self.api {
            api.check().map_err(|what| (start(&places.api), what))?;
        }
        if let Some(access) = &self.access {
            access.check(self.api.as_ref()).map_err(|what| (start(&places.access), what))?;
        }
        if let Some(sandbox) = &self.sandbox {
            sandbox.check().map_err(|what| (start(&places.sandbox), what))?;
        }
        if let Some(nbd) = &self.nbd {
            nbd.check(&mut taken).map_err(|what| (start(&places.nbd), what))?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            host.check().map_err(|what| (at(&places.host, index), what))?;
        }
        self.check_migration().map_err(|what| {
            let host = places.host.first().map_or(0, |host| host.span().start);
            (places.migration.as_ref().map_or(host, |part| part.span().start), what)
        })?;
        self.check_lend().map_err(|what| (start(&places.lend), what))?;
        self.check_borrow().map_err(|what| (start(&places.borrow), what))?;
        self.check_cluster().map_err(|what| (start(&places.cluster), what))?;
        self.check_policy().map_err(|what| (start(&places.policy), what))
    }

    fn check_removed(&self) -> Result<(), String> {
        match self.disks.iter().find(|disk| self.daemon.remove_disks.contains(&disk.name)) {
            None => Ok(()),
            Some(disk) => Err(format!(
                "disk '{0}' is configured and named in remove_disks: remove it from one of the two",
                disk.name
            )),
        }
    }

    fn check_migration(&self) -> Result<(), String> {
        match &self.migration {
            Some(migration) => migration.check(&self.hosts).map_err(|what| format!("[migration] {what}")),
            None if self.hosts.is_empty() => Ok(()),
            None => Err("[[host]] needs [migration]: give this host's name and certificates there".into()),
        }
    }

    fn check_lend(&self) -> Result<(), String> {
        let Some(lend) = &self.lend else { return Ok(()) };
        if self.migration.is_none() {
            return Err("[lend] needs [migration]: give this host's name and certificates there".into());
        }
        let pools = self.pools.iter().map(|pool| (pool.name.as_str(), pool.share_spare));
        lend.check(&self.hosts, pools).map_err(|what| format!("[lend] {what}"))
    }

    fn check_borrow(&self) -> Result<(), String> {
        let Some(borrow) = &self.borrow else { return Ok(()) };
        if self.migration.is_none() {
            return Err("[borrow] needs [migration]: give this host's name and certificates there".into());
        }
        borrow.check(&self.hosts, self.cluster.is_some()).map_err(|what| format!("[borrow] {what}"))
    }

    fn check_cluster(&self) -> Result<(), String> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster.check(self.migration.as_ref()).map_err(|what| format!("[cluster] {what}"))
    }

    fn check_policy(&self) -> Result<(), String> {
        if let Some(settings) = &self.policy {
            haversack_control::settings::config(settings).map_err(|what| format!("[policy] {what}"))?;
        } else if self.cluster.is_none() {
            return Ok(());
        }
        self.pools.iter().try_for_each(|pool| {
            let disks = self.disks.iter().filter(|disk| disk.pool == pool.name);
            haversack_control::settings::check_weights(&pool.name, disks)
        })
    }

    fn check_pool(&self, pool: &PoolConfig, taken: &mut Taken) -> Result<(), String> {
        settings::check_name(&pool.name)?;
        claim(taken, format!("pool name '{}'", pool.name), "[[pool]]".into())?;
        if pool.devices.is_empty() {
            return Err(format!("pool '{}' has no devices: list at least one", pool.name));
        }
        for device in &pool.devices {
            claim(taken, format!("path {}", device.display()), format!("pool '{}'", pool.name))?;
        }
        if pool.accept_missing.as_ref().is_some_and(|name| *name != pool.name) {
            return Err(format!("accept_missing must repeat the pool's name, '{}'", pool.name));
        }
        if pool.io_times.is_some() && pool.clock_file.is_none() {
            return Err(format!("io_times of pool '{}' are for tests: they need a clock_file", pool.name));
        }
        for (key, size) in [("staging", pool.staging), ("transfer", pool.transfer)] {
            settings::blocks(size).map_err(|e| format!("{key} of pool '{}': {e}", pool.name))?;
        }
        Ok(())
    }

    /// Checks that the host configured for a disk's replica is in `[[host]]`; for `auto`, that there is any other host.
    fn check_replica_host(&self, disk: &DiskConfig) -> Result<(), String> {
        let Some(wanted) = disk.replica_host() else { return Ok(()) };
        let is_meant = |name: &str| wanted == ANY_HOST || host_id(name) == host_id(wanted);
        if self.hosts.iter().any(|host| is_meant(&host.name)) {
            return Ok(());
        }
        let names: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Err(format!(
            "disk '{}': replicate = \"{wanted}\" needs another host in [[host]] for it; hosts there: {names}",
            disk.name
        ))
    }

    fn check_disk(&self, disk: &DiskConfig, taken: &mut Taken) -> Result<(), String> {
        settings::check_disk(disk)?;
        settings::check_replica(disk)?;
        self.check_replica_host(disk)?;
        claim(taken, format!("disk name '{}'", disk.name), "[[disk]]".into())?;
        let part = format!("disk '{}'", disk.name);
        claim(taken, format!("disk id {}", settings::disk_id(disk)?), part.clone())?;
        if let Some(socket) = &disk.vhost_user {
            claim(taken, format!("path {}", socket.display()), part)?;
        }
        if self.pools.iter().any(|pool| pool.name == disk.pool) {
            return Ok(());
        }
        let names: Vec<_> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Err(format!(
            "disk '{}' names pool '{}', which is not configured; pools: {names}",
            disk.name, disk.pool
        ))
    }

    /// Checks that a disk's origin is not used by an earlier disk or by a pool, and adds it to the earlier disks.
    fn check_origin<'a>(
        &self,
        disk: &'a DiskConfig,
        earlier: &mut Vec<(&'a DiskConfig, KnownStore)>,
        files: Files,
    ) -> Result<(), String> {
        let store = Store::of(&disk.origin);
        let known = match files {
            Files::ByName => store.by_name(),
            Files::LookedUp => store.look_up(),
        };
        let conflict = |(other, of_other): &(&DiskConfig, KnownStore)| {
            exclusive::conflict((disk, &known), (*other, of_other))
        };
        if let Some(what) = earlier.iter().find_map(conflict) {
            return Err(what);
        }
        earlier.push((disk, known));
        let uses = |part: &PathBuf| match files {
            Files::ByName => store.files().contains(part),
            Files::LookedUp => store.uses(part),
        };
        for pool in &self.pools {
            if let Some(part) = pool.parts().find(uses) {
                return Err(format!(
                    "the origin of disk '{}' is {}, which is part of pool '{}': name the disk's own image",
                    disk.name,
                    part.display(),
                    pool.name
                ));
            }
        }
        Ok(())
    }
}

/// What only one part of the configuration may use, and the part that does.
pub(super) type Taken = HashMap<String, String>;

/// Claims something for a part of the configuration.
pub(super) fn claim(taken: &mut Taken, what: String, part: String) -> Result<(), String> {
    match taken.get(&what) {
        Some(other) if *other == part => {
            Err(format!("{what} is used twice in {part}: change one of the two"))
        }
        Some(other) => Err(format!("{what} is used in {other} and in {part}: change one of the two")),
        None => {
            taken.insert(what, part);
            Ok(())
        }
    }
}
