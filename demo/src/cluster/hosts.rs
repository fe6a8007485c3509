//! The hosts, what they share, and their VMs.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use haversack_api::{ClusterStatus, Status};
use haversack_e2e::certificates::Certificates;
use haversack_e2e::etcd::Etcd;
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::Hosts;
use haversack_e2e::manager::{Manager, Site, Way};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::{Error, MIB, Place, Result, image, tools};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::moment::Moment;
use crate::servers::{DELAY_MS, RATE_MIB};

/// The hosts.
pub const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
/// The VMs: each one's name, that of its disk, too; its host in the beginning; the size of its disk in MiB, all of
/// which it reads.
pub const VMS: [(&str, usize, u64); 5] =
    [("vm1", 0, 10), ("vm2", 0, 10), ("vm3", 0, 10), ("vm4", 1, 4), ("vm5", 2, 4)];
/// The cache device of each host.
const CACHE_MIB: u64 = 32;
/// Requests of each VM in a second: so few that guests without hardware virtualization do not wait for processors.
const REQUESTS_PER_S: u32 = 250;

/// What is about to be seen.
pub fn introduction() -> String {
    format!(
        "Three hosts with a cache of {CACHE_MIB} MiB each; five VMs, three of them on {}. A slow store for all: {DELAY_MS} ms each I/O, \
         {RATE_MIB} MiB/s.",
        NAMES[0]
    )
}

/// A place for each host.
///
/// # Errors
/// If one cannot be made.
pub fn places(place: &Place) -> Result<Vec<Place>> {
    ["a", "b", "c"].iter().map(|name| place.host(name)).collect()
}

/// Everything that runs.
pub struct Cluster<'a> {
    pub manager: Manager<'a>,
    daemons: Vec<Haversack<'a>>,
    ports: Vec<u16>,
    token: String,
    origin: Nbdkit,
    etcd: Etcd<'a>,
}

impl<'a> Cluster<'a> {
    /// Starts the store, etcd and the daemons. There are no VMs yet.
    ///
    /// # Errors
    /// If one of them does not start.
    pub fn start(place: &'a Place, places: &'a [Place]) -> Result<Self> {
        let disks = place.path("disks");
        std::fs::create_dir(&disks).map_err(Error::io(disks.display().to_string()))?;
        for (name, _, mebibytes) in VMS {
            image::pattern(place, &format!("disks/{name}"), name, mebibytes)?;
        }
        let (directory, rate) = (format!("dir={}", disks.display()), format!("rate={}", RATE_MIB * MIB * 8));
        let delays = [format!("delay-read={DELAY_MS}ms"), format!("delay-write={DELAY_MS}ms")];
        let filters = ["--filter=delay", "--filter=rate", "file", &directory, &delays[0], &delays[1], &rate];
        let origin = Nbdkit::start(place, "origin", &filters)?;
        let etcd = Etcd::start(place)?;
        let sites = NAMES.iter().zip(places).map(|(name, place)| Site::new(name, place)).collect();
        let manager = Manager::new(place, sites)?;
        let (ports, token) = (NAMES.map(|_| tools::free_port()), token()?);
        let mut cluster = Self {
            manager,
            daemons: Vec::new(),
            ports: ports.into_iter().collect::<Result<_>>()?,
            token,
            origin,
            etcd,
        };
        cluster.start_daemons(place, places)?;
        Ok(cluster)
    }

    fn start_daemons(&mut self, place: &Place, places: &'a [Place]) -> Result<()> {
        let certificates = Certificates::make(place, "api")?;
        let token = place.path("token");
        std::fs::write(&token, format!("{}\n", self.token))
            .and_then(|()| std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)))
            .map_err(Error::io(token.display().to_string()))?;
        let hosts = Hosts::new(place, &NAMES)?;
        for (number, host) in places.iter().enumerate() {
            let more = format!(
                "\n[policy]\nallocator = \"trd\"\nspare = \"shared\"\nwindow = \"4s\"\n\
                 \n[cluster]\nendpoints = [\"{}\"]\ninsecure = true\nreport_every = \"1s\"\nlease = \"3s\"\n\
                 hook = \"{}\"\nhook_time = \"2min\"\n\
                 \n[cluster.balance]\nwindow = \"4s\"\n\
                 \n[api]\nlisten = \"127.0.0.1:{}\"\ncertificate = {:?}\nkey = {:?}\ntoken_file = {token:?}\n",
                self.etcd.endpoint(),
                self.manager.program().display(),
                self.ports[number],
                certificates.path("server-cert.pem"),
                certificates.path("server-key.pem"),
            );
            let own = VMS.iter().filter(|(_, host, _)| *host == number);
            let disks = own.map(|(name, _, _)| Disk::new(name, self.uri(name)).with("from = \"none\""));
            let settings = Settings::new(CACHE_MIB, disks.collect());
            let settings = Settings { more: hosts.tables(NAMES[number]) + &more, ..settings };
            self.daemons.push(Haversack::start(host, settings)?);
        }
        Ok(())
    }

    /// The URI of a disk's origin.
    fn uri(&self, disk: &str) -> String {
        format!("nbd+unix:///{disk}?socket={}", self.origin.socket().display())
    }

    /// Boots a VM on its host.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn boot(&mut self, name: &str, host: usize) -> Result<()> {
        let uri = self.uri(name);
        self.manager.boot(name, &uri, host, Way::VhostUser, "pattern")
    }

    /// Starts the load of all VMs.
    ///
    /// # Errors
    /// A guest does not answer.
    pub fn begin_load(&mut self) -> Result<()> {
        for (seed, vm) in self.manager.vms_mut().iter_mut().enumerate() {
            vm.ask(&format!("start vda {seed} reads {REQUESTS_PER_S}"))?;
        }
        Ok(())
    }

    /// What is known now.
    ///
    /// # Errors
    /// A daemon does not answer.
    pub fn moment(&self) -> Result<Moment> {
        let cluster: ClusterStatus = parse(self.daemons[0].json(&["cluster", "status"])?)?;
        let statuses: Result<Vec<Status>> =
            self.daemons.iter().map(|daemon| parse(daemon.json(&["status"])?)).collect();
        Ok(Moment::new(Instant::now(), &NAMES, &cluster, &statuses?))
    }

    /// What the hosts have said of balancing.
    ///
    /// # Errors
    /// A daemon does not answer.
    pub fn balancing(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (daemon, name) in self.daemons.iter().zip(NAMES) {
            // One JSON object a line.
            for line in daemon.command(&["--json", "events", "--last", "100"])?.lines() {
                let event: Value = serde_json::from_str(line).unwrap_or_default();
                let (kind, message) = (event["kind"].as_str(), event["message"].as_str().unwrap_or_default());
                match kind {
                    Some("balancing") => found.push(format!("{name} balances: {message}")),
                    Some("balance-failed") => found.push(format!("{name}: the move has failed: {message}")),
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    /// Where the dashboards are.
    pub fn dashboards(&self) -> String {
        let url = |(name, port): (&str, &u16)| format!("  {name:<8} https://127.0.0.1:{port}/\n");
        let urls: String = NAMES.into_iter().zip(&self.ports).map(url).collect();
        format!(
            "Dashboards (their certificate is the demo's own; any user name, password {}):\n{urls}",
            self.token
        )
    }

    /// How to go on.
    pub fn hint(&self) -> String {
        // A daemon that runs has been started by this program.
        let command = self.daemons[0].command_line(&["cluster", "status", "--disks"]);
        let line = command.map(|command| tools::line_of(&command)).unwrap_or_default();
        let drain = line.replace("cluster status --disks", &format!("host drain {}", NAMES[1]));
        format!("All of it runs on until Ctrl-C. To see and to change it:\n\n  {line}\n  {drain}\n")
    }
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Error::Check(format!("haversack printed something else: {error}")))
}

/// A password for the dashboards.
fn token() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0; 12];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::io("/dev/urandom"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
