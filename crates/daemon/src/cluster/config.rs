//! `[cluster]` of the configuration file.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use haversack_api::{Size, Span};
use haversack_cluster::{Rule, Settings};
use haversack_directory::VmNeeds;
use haversack_etcd::{Config, TlsFiles};
use serde::Deserialize;

use crate::hosts::config::{MigrationConfig, check_insecure};
use crate::program;
use crate::settings::check_name;

/// The shortest time between two reports, and the shortest lease.
const SHORTEST: Duration = Duration::from_secs(1);
/// How often a lease must be renewable before it ends, so that one lost message does not end it.
const RENEWALS: u32 = 3;

/// The directory of the cluster.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// The members of etcd: `https://HOST:PORT`, or `http://HOST:PORT` with `insecure`.
    pub endpoints: Vec<String>,
    /// The authorities that sign the certificates of etcd's members, PEM.
    pub authority: Option<PathBuf>,
    /// This host's certificate chain for etcd, PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// The user of etcd, if etcd authenticates hosts by user and password.
    pub user: Option<String>,
    /// The file with the user's password in its first line.
    pub password_file: Option<PathBuf>,
    /// Talk to etcd without TLS: only on a private network.
    #[serde(default)]
    pub insecure: bool,
    /// This host's name in the directory; that of `[migration]` if not set.
    pub name: Option<String>,
    /// How often this host reports.
    #[serde(default = "report_every")]
    pub report_every: Span,
    /// The program that moves a VM. With it, this host carries out the balancer's proposals while it is the
    /// host that balances.
    pub hook: Option<PathBuf>,
    /// How long that may take.
    #[serde(default = "hook_time")]
    pub hook_time: Span,
    /// How long this host counts as alive after etcd last heard from it.
    #[serde(default = "lease")]
    pub lease: Span,
    /// Memory of this host for VMs with disks in the cluster; if not set, it does not limit what is proposed.
    pub memory: Option<Size>,
    /// Virtual processors that this host may run for such VMs; if not set, they do not limit what is proposed.
    pub processors: Option<u32>,
    /// What VMs need that run on this host, or may come to it.
    #[serde(default, rename = "vm")]
    pub vms: Vec<VmConfig>,
    /// How VMs are balanced.
    #[serde(default)]
    pub balance: BalanceConfig,
}

/// `[[cluster.vm]]`: what a VM needs besides cache.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// The name of the VM, as `vm` of its disks gives it; the name of its disk if the disk has no `vm`.
    pub name: String,
    /// Its memory.
    #[serde(default)]
    pub memory: Size,
    /// Its virtual processors.
    #[serde(default)]
    pub processors: u32,
    /// Groups of VMs of which no two may be on one host.
    #[serde(default)]
    pub apart: BTreeSet<String>,
}

/// `[cluster.balance]`: when the balancer acts, by which rule, and how much at a time.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalanceConfig {
    /// The time between two looks at the hosts' demands.
    pub window: Span,
    /// Which VM moves where.
    pub rule: Rule,
    /// The part of a host's cache above which its demand is too much.
    pub threshold: f64,
    /// The windows in a row with too much demand after which VMs move away.
    pub windows: u32,
    /// The most moves to balance in an hour, in the whole cluster.
    pub max_moves_per_hour: u32,
    /// The least time between two moves of a VM.
    pub residence: Span,
}

impl Default for BalanceConfig {
    fn default() -> BalanceConfig {
        let settings = Settings::default();
        BalanceConfig {
            window: Span(Duration::from_secs(300)),
            rule: settings.rule,
            threshold: settings.threshold,
            windows: settings.windows,
            max_moves_per_hour: settings.max_moves_per_hour,
            residence: Span(Duration::from_micros(settings.min_residence_us)),
        }
    }
}

impl BalanceConfig {
    /// Returns the balancer's settings.
    pub(crate) fn settings(&self) -> Settings {
        let of_rule = match self.rule {
            Rule::LeastVariance => Settings::cloudcache(),
            Rule::LeastLatency => Settings::default(),
        };
        Settings {
            rule: self.rule,
            threshold: self.threshold,
            windows: self.windows,
            max_moves_per_hour: self.max_moves_per_hour,
            min_residence_us: u64::try_from(self.residence.0.as_micros()).unwrap_or(u64::MAX),
            ..of_rule
        }
    }
}

fn report_every() -> Span {
    Span(Duration::from_secs(10))
}

fn hook_time() -> Span {
    Span(Duration::from_secs(3600))
}

fn lease() -> Span {
    Span(Duration::from_secs(15))
}

impl ClusterConfig {
    /// Checks that the settings fit together, and `[migration]` with them.
    pub(crate) fn check(&self, migration: Option<&MigrationConfig>) -> Result<(), String> {
        check_insecure(self.insecure, [&self.authority, &self.certificate, &self.key])?;
        if !self.insecure && self.authority.is_none() {
            return Err(
                "authority is missing: whoever can write to etcd can have disks moved, so give the file of the authority that \
                 signs its certificates. On a private network, set insecure = true instead"
                    .into(),
            );
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(format!(
                "{} is missing: certificate and key belong together, so give both or none",
                if self.key.is_none() { "key" } else { "certificate" }
            ));
        }
        if self.user.is_some() != self.password_file.is_some() {
            return Err(format!(
                "{} is missing: user and password_file belong together, so give both or none",
                if self.user.is_none() { "user" } else { "password_file" }
            ));
        }
        if let (Some(name), Some(migration)) = (&self.name, migration)
            && !name.eq_ignore_ascii_case(&migration.name)
        {
            return Err(format!(
                "name = '{name}', but [migration] has '{}': hosts must find each other, so leave it out here",
                migration.name
            ));
        }
        if self.report_every.0 < SHORTEST {
            return Err(format!("report_every = \"{}\": give 1s or more", self.report_every));
        }
        if self.lease.0 < SHORTEST * RENEWALS {
            return Err(format!(
                "lease = \"{}\": give 3s or more, so that one lost message does not end it",
                self.lease
            ));
        }
        if let Some(hook) = &self.hook {
            program::check(hook).map_err(|what| format!("hook: {what}"))?;
            if self.hook_time.0.is_zero() {
                return Err("hook_time = \"0s\" leaves no time to run: give a time such as 1h".into());
            }
        }
        let mut names = BTreeSet::new();
        for vm in &self.vms {
            check_name(&vm.name).map_err(|what| format!("name of a [[cluster.vm]]: {what}"))?;
            for group in &vm.apart {
                check_name(group).map_err(|what| format!("apart of [[cluster.vm]] '{}': {what}", vm.name))?;
            }
            if !names.insert(&vm.name) {
                return Err(format!("[[cluster.vm]] '{}' appears twice: remove one of them", vm.name));
            }
        }
        if self.balance.window.0 < self.report_every.0 {
            return Err(format!(
                "balance.window = \"{}\" is shorter than report_every = \"{}\": hosts would be looked at twice with the same report",
                self.balance.window, self.report_every
            ));
        }
        self.balance.settings().check().map_err(|error| format!("balance: {error}"))?;
        let config = self.directory(migration)?;
        check_name(&config.name).map_err(|what| format!("name: {what}"))?;
        config.check().map_err(|error| format!("endpoints: {error}"))
    }

    /// Returns the settings of the directory.
    ///
    /// # Errors
    /// The host has no name.
    pub(crate) fn directory(&self, migration: Option<&MigrationConfig>) -> Result<Config, String> {
        let name = self.name.as_ref().or(migration.map(|migration| &migration.name));
        let name = name.ok_or(
            "name is missing: give this host's name here, since there is no [migration] that has it",
        )?;
        let identity = self.certificate.clone().zip(self.key.clone());
        Ok(Config {
            endpoints: self.endpoints.clone(),
            tls: self.authority.clone().map(|authority| TlsFiles { authority, identity }),
            user: self.user.clone().zip(self.password_file.clone()),
            name: name.to_ascii_lowercase(),
            lease: self.lease.0,
        })
    }

    /// Returns what VMs need, by their names.
    pub(crate) fn needs(&self) -> HashMap<String, VmNeeds> {
        let needs = |vm: &VmConfig| VmNeeds {
            memory_bytes: vm.memory.0,
            processors: vm.processors,
            apart: vm.apart.clone(),
        };
        self.vms.iter().map(|vm| (vm.name.clone(), needs(vm))).collect()
    }

    /// Returns the files with certificates and the password.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.authority, &self.certificate, &self.key, &self.password_file].into_iter().flatten()
    }
}
