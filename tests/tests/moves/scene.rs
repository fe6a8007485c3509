//! Two hosts, the network between them, the origins that both can reach, and what fails.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haversack_e2e::connection::{Command, Connection};
use haversack_e2e::haversack::{Disk, Haversack, Settings};
use haversack_e2e::hosts::{Hosts, wait_until_moved};
use haversack_e2e::nbdkit::Nbdkit;
use haversack_e2e::network::Network;
use haversack_e2e::process::Process;
use haversack_e2e::tools::{PATIENCE, wait_until};
use haversack_e2e::verify::Bystander;
use haversack_e2e::{Error, MIB, Place, Result, image};
use haversack_model::random::Random;

use crate::plan::{Fault, Plan, Step};

const NAMES: [&str; 2] = ["alpha", "beta"];
/// The disk of each host that stays there and is always in use.
const NEIGHBOUR: &str = "neighbour";
const NEIGHBOUR_MIB: u64 = 8;
/// The disk of each host that fills its cache with dirty blocks at times.
const FLOOD: &str = "flood";
const FLOOD_MIB: u64 = 128;
const FLOOD_WRITE_BYTES: u64 = 64 << 10;
/// The caches are too small for all disks.
const CACHE_MIB: u64 = 96;
/// What the link between the hosts carries, in million bits a second, and what it carries when it is slow.
const FAST: u32 = 1000;
const SLOW: u32 = 20;

/// See the module.
pub struct Scene<'a> {
    pub place: &'a Place,
    pub daemons: [Haversack<'a>; 2],
    disks: Vec<String>,
    origins: Vec<Origin>,
    network: Network,
    floods: Vec<Nbdkit>,
    _neighbours: Vec<Nbdkit>,
}

/// The origin of a disk that moves.
struct Origin {
    name: String,
    file: PathBuf,
    server: Option<Nbdkit>,
}

impl Origin {
    fn start(place: &Place, disk: &str, file: &Path) -> Result<Self> {
        let mut origin = Self { name: format!("origin-{disk}"), file: file.to_owned(), server: None };
        origin.start_again(place)?;
        Ok(origin)
    }

    fn start_again(&mut self, place: &Place) -> Result<()> {
        self.server = Some(Nbdkit::file(place, &self.name, &self.file)?);
        Ok(())
    }

    fn server(&self) -> Result<&Nbdkit> {
        self.server.as_ref().ok_or_else(|| Error::Check(format!("{} does not run", self.name)))
    }
}

impl<'a> Scene<'a> {
    /// Starts everything. The disks that move are at the first host. Their images are given.
    pub fn start(place: &'a Place, places: &'a [Place; 2], disks: &[(&str, PathBuf)]) -> Result<Self> {
        let start = |(disk, file): &(&str, PathBuf)| Origin::start(place, disk, file);
        let origins: Vec<Origin> = disks.iter().map(start).collect::<Result<_>>()?;
        let own = |name: &str, mebibytes| {
            let image = image::zeroes(place, &format!("{name}.img"), mebibytes)?;
            Nbdkit::file(place, name, &image)
        };
        let of_both = |disk: &str, mebibytes| -> Result<Vec<Nbdkit>> {
            NAMES.iter().map(|host| own(&format!("{disk}-{host}"), mebibytes)).collect()
        };
        let (neighbours, floods) = (of_both(NEIGHBOUR, NEIGHBOUR_MIB)?, of_both(FLOOD, FLOOD_MIB)?);
        let network = Network::new(place, NAMES.len(), FAST)?;
        let hosts = Hosts::on(place, &NAMES, &network)?;
        let settings = |host: usize| -> Result<Settings> {
            let disk = |name: String, origin: &Nbdkit, is_new| {
                let disk = Disk::new(&name, origin.uri());
                if is_new { disk.with("from = \"none\"") } else { disk }
            };
            let mut all = vec![
                disk(format!("{NEIGHBOUR}-{}", NAMES[host]), &neighbours[host], true),
                disk(format!("{FLOOD}-{}", NAMES[host]), &floods[host], true),
            ];
            for ((name, _), origin) in disks.iter().zip(&origins) {
                all.push(disk((*name).to_owned(), origin.server()?, host == 0));
            }
            let network = Some(network.namespace(host));
            let more = hosts.tables(NAMES[host]);
            Ok(Settings { more, network, ..Settings::new(CACHE_MIB, all) })
        };
        let daemons = Haversack::start_both(places, [settings(0)?, settings(1)?])?;
        let disks = disks.iter().map(|(disk, _)| (*disk).to_owned()).collect();
        Ok(Self { place, daemons, disks, origins, network, floods, _neighbours: neighbours })
    }

    /// Clients that use the hosts' own disks all the time.
    pub fn neighbours(&self) -> Result<Vec<Bystander>> {
        let begin = |(host, name): (&Haversack<'_>, _)| {
            Bystander::begin(&host.socket("nbd.sock"), &format!("{NEIGHBOUR}-{name}"))
        };
        self.daemons.iter().zip(NAMES).map(begin).collect()
    }

    /// The NBD socket of a host.
    pub fn socket(&self, host: usize) -> PathBuf {
        self.daemons[host].socket("nbd.sock")
    }

    /// The NBD socket of the origin of the disk of this number.
    pub fn origin(&self, disk: usize) -> Result<PathBuf> {
        Ok(self.origins[disk].server()?.socket().to_owned())
    }

    /// Has the disks sent ahead, if that is planned, until it is time to move the VM.
    pub fn send_ahead(&mut self, plan: &Plan) -> Result<()> {
        if !plan.announced {
            return self.fail_at(Step::SentAhead, plan);
        }
        let disks = self.disks.clone();
        let mut words = vec!["migrate", "--to", NAMES[plan.to]];
        words.extend(disks.iter().map(String::as_str));
        let mut sending =
            Process::start(self.place, "migrate", &self.daemons[plan.from].command_line(&words)?)?;
        self.fail_at(Step::SentAhead, plan)?;
        if sending.wait(PATIENCE)?.success() {
            return Ok(());
        }
        // The fault has cancelled the sending.
        let mut last = None;
        let sent = wait_until("the cache's being sent", PATIENCE, || {
            last = self.daemons[plan.from].command(&words).err();
            Ok(last.is_none())
        });
        sent.map_err(|error| {
            Error::Check(format!("{error}: {}", last.map(|it| it.to_string()).unwrap_or_default()))
        })
    }

    /// Waits until nothing is left at the source, unless the next move is planned to begin earlier.
    pub fn end_move(&self, plan: &Plan) -> Result<()> {
        if plan.hastens {
            return Ok(());
        }
        let (from, to) = (&self.daemons[plan.from], &self.daemons[plan.to]);
        self.disks.iter().try_for_each(|disk| wait_until_moved(from, to, disk))
    }

    /// Causes the planned failure of this step, and undoes it.
    pub fn fail_at(&mut self, step: Step, plan: &Plan) -> Result<()> {
        let Some(fault) = plan.fault.filter(|_| plan.step == step) else { return Ok(()) };
        std::thread::sleep(plan.after);
        match fault {
            Fault::SourceKilled => self.daemons[plan.from].kill_and_restart(plan.lasts),
            Fault::DestinationKilled => self.daemons[plan.to].kill_and_restart(plan.lasts),
            Fault::BothKilled => {
                self.daemons[plan.from].kill()?;
                self.daemons[plan.to].kill_and_restart(plan.lasts)?;
                self.daemons[plan.from].start_again()
            }
            Fault::OriginsKilled => {
                self.origins
                    .iter_mut()
                    .filter_map(|origin| origin.server.take())
                    .try_for_each(Nbdkit::kill)?;
                std::thread::sleep(plan.lasts);
                self.origins.iter_mut().try_for_each(|origin| origin.start_again(self.place))
            }
            Fault::LinkCut | Fault::LinkSlow | Fault::PoolFull | Fault::OriginsPaused => {
                self.outside().fail(fault, plan)
            }
        }
    }

    /// What can fail while the daemons are in use.
    pub fn outside(&self) -> Outside<'_> {
        let flooded = self.daemons.iter().map(|host| host.socket("nbd.sock")).collect();
        Outside { network: &self.network, origins: &self.origins, floods: &self.floods, flooded }
    }
}

/// What can fail, and be undone, without a new process.
pub struct Outside<'a> {
    network: &'a Network,
    origins: &'a [Origin],
    floods: &'a [Nbdkit],
    /// The NBD sockets of the hosts.
    flooded: Vec<PathBuf>,
}

impl Outside<'_> {
    /// Causes the planned failure, and undoes it.
    pub fn fail(&self, fault: Fault, plan: &Plan) -> Result<()> {
        let servers = || self.origins.iter().map(Origin::server);
        match fault {
            Fault::LinkCut => {
                self.network.cut(plan.to)?;
                std::thread::sleep(plan.lasts);
                self.network.heal(plan.to)
            }
            Fault::LinkSlow => {
                (0..NAMES.len()).try_for_each(|host| self.network.limit(host, SLOW))?;
                std::thread::sleep(plan.lasts);
                (0..NAMES.len()).try_for_each(|host| self.network.limit(host, FAST))
            }
            Fault::PoolFull => self.flood(plan.to, plan.lasts),
            Fault::OriginsPaused => {
                servers().try_for_each(|server| server?.process().pause())?;
                std::thread::sleep(plan.lasts);
                servers().try_for_each(|server| server?.process().resume())
            }
            Fault::SourceKilled | Fault::DestinationKilled | Fault::BothKilled | Fault::OriginsKilled => {
                Err(Error::Check(format!("{fault:?} needs new processes")))
            }
        }
    }

    /// Fills a host's cache with dirty blocks, whose origin does not take them.
    fn flood(&self, host: usize, lasts: Duration) -> Result<()> {
        self.floods[host].process().pause()?;
        let mut client = Connection::open(&self.flooded[host], &format!("{FLOOD}-{}", NAMES[host]))?;
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| {
                let mut random = Random::new(lasts.as_millis() as u64);
                let mut data = vec![1; FLOOD_WRITE_BYTES as usize];
                while !ends.load(Ordering::Relaxed) {
                    let offset = random.below(FLOOD_MIB * MIB / FLOOD_WRITE_BYTES) * FLOOD_WRITE_BYTES;
                    client.ask(Command::Write, offset, FLOOD_WRITE_BYTES as u32, &mut data)?;
                }
                Ok(())
            });
            std::thread::sleep(lasts);
            ends.store(true, Ordering::Relaxed);
            self.floods[host].process().resume()?;
            writes.join().map_err(|_| Error::Check("the flood panicked".into()))?
        })
    }
}
