//! The engine as a server in a process of its own: one pool, some disks, an NBD socket and a vhost-user socket for each
//! disk. It prints its figures for each line of input, and ends when its input ends.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use haversack_core::{AdmissionConfig, DiskConfig};
use haversack_engine::pool::{Formatting, Shape};
use haversack_engine::{
    DiskSpec, Histogram, NbdClient, OpenPool, OriginSpec, PoolHandle, PoolSettings, Snapshot,
    VhostUserConfig, WriteCacheSetting, pool,
};
use haversack_model::{DiskHandle, DiskId, WriteMode, WriteThroughAck};
use haversack_nbd::{
    BlockSize, ExportInfo, Exports, Negotiated, ServerNegotiation, ServerStep, TlsPolicy,
    TransmissionFlags as F,
};

use super::place::image_of_disk;
use super::process::Process;

/// How disks are cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Writes are deferred, and every block that is missed enters.
    WriteBack,
    /// Writes wait for the origin, and every block that is missed enters.
    WriteThrough,
    /// Writes are deferred, and a block enters only when it has been missed before.
    OnSecondMiss,
}

impl Caching {
    const WORDS: [(Caching, &str); 3] = [
        (Caching::WriteBack, "write-back"),
        (Caching::WriteThrough, "write-through"),
        (Caching::OnSecondMiss, "on-second-miss"),
    ];

    fn word(self) -> &'static str {
        Caching::WORDS.iter().find(|(caching, _)| *caching == self).map_or("", |(_, word)| word)
    }

    fn parse(word: &str) -> Option<Caching> {
        Caching::WORDS.iter().find(|(_, name)| *name == word).map(|(caching, _)| *caching)
    }

    fn apply(self, config: &mut DiskConfig, cache_bytes: u64) {
        match self {
            Caching::WriteBack => {}
            Caching::WriteThrough => config.mode = WriteMode::WriteThrough(WriteThroughAck::Origin),
            Caching::OnSecondMiss => {
                config.admission = AdmissionConfig::Larc { cache_blocks: cache_bytes / 4096 }
            }
        }
    }
}

/// What is served.
#[derive(Clone, Debug)]
pub struct Service {
    /// Where sockets and the cache are.
    pub directory: PathBuf,
    /// The image behind the first disk; the others have sparse ones of their own beside it.
    pub image: PathBuf,
    /// Bytes of each disk.
    pub disk_bytes: u64,
    /// How many disks.
    pub disks: u16,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// How long the reactor looks for work before it sleeps.
    pub poll_us: u32,
    /// How all disks are cached.
    pub caching: Caching,
    /// Reactors.
    pub arenas: u8,
    /// The cache: a block device, or a file that is made.
    pub cache: PathBuf,
}

/// Figures of a serving process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Blocks read that were cached.
    pub hits: u64,
    /// Blocks read that were not.
    pub misses: u64,
    /// Bytes read from the cache device.
    pub device_bytes: u64,
    /// Medians and 99th percentiles since the figures were last asked for.
    pub times: [Times; STAGES.len()],
}

/// The stages whose times are reported: the reads of the first disk's NBD clients, as the engine counts them; the
/// reactor's turns; I/Os on cache devices.
pub const STAGES: [&str; 4] = ["engine", "turn", "flash read", "flash write"];

/// The median and the 99th percentile of a duration, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The median.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
}

impl Service {
    /// The NBD socket.
    pub fn nbd_socket(&self) -> PathBuf {
        self.directory.join("haversack-nbd")
    }

    /// A disk's vhost-user socket.
    pub fn vhost_user_socket(&self, disk: u16) -> PathBuf {
        self.directory.join(format!("haversack-{disk}"))
    }

    /// The staging area: always in memory.
    pub fn staging(&self) -> PathBuf {
        let name = self.directory.display().to_string().replace('/', "-");
        PathBuf::from(format!("/dev/shm/haversack-staging{name}"))
    }

    /// Starts a process that serves.
    pub fn start(&self) -> io::Result<Process> {
        self.start_with(&std::env::current_exe()?)
    }

    /// Starts another build of this program.
    pub fn start_with(&self, program: &Path) -> io::Result<Process> {
        let mut command = Command::new(program);
        command.arg("serve").arg(&self.directory).arg(&self.image);
        let numbers =
            [self.disk_bytes, self.disks.into(), self.cache_bytes, self.poll_us.into(), self.arenas.into()];
        command.args(numbers.map(|n| n.to_string())).arg(self.caching.word()).arg(&self.cache);
        Process::start(command, "none: it is this program")
    }

    /// What `start` has put on the command line.
    pub fn parse(words: &[String]) -> Option<Service> {
        let [directory, image, disk_bytes, disks, cache_bytes, poll_us, arenas, caching, cache] = words
        else {
            return None;
        };
        Some(Service {
            directory: directory.into(),
            image: image.into(),
            disk_bytes: disk_bytes.parse().ok()?,
            disks: disks.parse().ok()?,
            cache_bytes: cache_bytes.parse().ok()?,
            poll_us: poll_us.parse().ok()?,
            caching: Caching::parse(caching)?,
            arenas: arenas.parse().ok()?,
            cache: cache.into(),
        })
    }
}

/// Asks a serving process for its figures.
pub fn figures(process: &mut Process) -> io::Result<Figures> {
    let gone = || io::Error::other("the serving process is gone");
    process.child().stdin.as_mut().ok_or_else(gone)?.write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(process.child().stdout.as_mut().ok_or_else(gone)?).read_line(&mut line)?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [hits, misses, device_bytes, ref times @ ..] = numbers[..] else { return Err(gone()) };
    let pairs = times.as_chunks::<2>().0;
    let times = std::array::from_fn(|at| {
        pairs
            .get(at)
            .map_or_else(Times::default, |[p50_us, p99_us]| Times { p50_us: *p50_us, p99_us: *p99_us })
    });
    Ok(Figures { hits, misses, device_bytes, times })
}

struct Named {
    disk: DiskHandle,
    export: ExportInfo,
}

struct Catalog<'a>(&'a [Named]);

impl Exports for Catalog<'_> {
    fn names(&mut self) -> Vec<String> {
        self.0.iter().map(|named| named.export.name.clone()).collect()
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        self.0.iter().find(|named| named.export.name == name).map(|named| named.export.clone())
    }
}

fn greet(stream: &mut UnixStream, catalog: &[Named]) -> Result<Negotiated, Box<dyn Error>> {
    let (mut output, mut buffer) = (Vec::new(), vec![0; 8192]);
    let mut negotiation = ServerNegotiation::new(TlsPolicy::Off, &mut output);
    loop {
        stream.write_all(&output)?;
        output.clear();
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes)?;
        let step = negotiation.receive(&mut &*bytes, &mut Catalog(catalog), &mut output)?;
        stream.write_all(&output)?;
        output.clear();
        match step {
            ServerStep::Continue => {}
            ServerStep::Transmission(negotiated) => return Ok(*negotiated),
            ServerStep::StartTls | ServerStep::Aborted => return Err("the client gave up".into()),
        }
    }
}

fn listen(handle: &PoolHandle, socket: &Path, catalog: &[Named]) -> Result<(), Box<dyn Error>> {
    for stream in UnixListener::bind(socket)?.incoming() {
        let mut stream = stream?;
        let negotiated = greet(&mut stream, catalog)?;
        let named = catalog.iter().find(|named| named.export.name == negotiated.export.name);
        let disk = named.ok_or("an export that was looked up is there")?.disk;
        handle.arena(disk).add_nbd_client(NbdClient {
            disk,
            socket: stream.into(),
            negotiated,
            max_connections: u32::MAX,
            held: Arc::new(()),
            peer: "a load".into(),
        })?;
    }
    Ok(())
}

/// The name of a disk, and of its export.
fn name_of(disk: u16) -> String {
    if disk == 0 { "disk".to_string() } else { format!("disk{disk}") }
}

fn attach(open: &OpenPool, service: &Service, number: u16) -> Result<Named, Box<dyn Error>> {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&number.to_le_bytes());
    let name = name_of(number);
    let mut config = DiskConfig::new(DiskId(id), service.disk_bytes / 512);
    service.caching.apply(&mut config, service.cache_bytes);
    let spec = DiskSpec {
        name: name.clone(),
        config,
        epoch: 1,
        accept_loss: false,
        is_outdated: false,
        origin: OriginSpec::File { path: image_of_disk(&service.image, number, service.disk_bytes)? },
        origin_holds_pool: false,
        origin_wait: Duration::from_secs(10),
        read_only: false,
        borrows: true,
        moves: None,
        beside: None,
    };
    let (disk, job) = open.handle().attach(spec)?;
    job.wait()?;
    let features = F::SEND_FLUSH | F::SEND_FUA | F::SEND_TRIM | F::SEND_WRITE_ZEROES | F::CAN_MULTI_CONN;
    let export = ExportInfo {
        name,
        description: String::new(),
        size_bytes: service.disk_bytes,
        read_only: false,
        block_size: BlockSize::SERVER_DEFAULT,
        features,
    };
    Ok(Named { disk, export })
}

/// Removes what a server that was killed has left in the directory.
fn tidy(service: &Service) {
    let sockets = (0..service.disks).map(|disk| service.vhost_user_socket(disk));
    let left = [service.staging(), service.nbd_socket()];
    let file = service.cache.is_file().then(|| service.cache.clone());
    for path in sockets.chain(left).chain(file) {
        let _ = std::fs::remove_file(path);
    }
}

/// Serves until the input ends.
pub fn run(service: &Service) -> Result<(), Box<dyn Error>> {
    tidy(service);
    let devices = vec![service.cache.clone()];
    pool::create(
        &devices,
        Formatting { size_bytes: Some(service.cache_bytes), overwrite: true },
        Shape { arenas: service.arenas, ..Shape::default() },
    )?;
    let mut config = PoolSettings::new("bench", devices);
    (config.staging_path, config.poll_us) = (service.staging(), service.poll_us);
    let (open, _) = OpenPool::start(&config)?;
    let handle = open.handle();
    let mut servers = Vec::new();
    let mut catalog = Vec::new();
    for number in 0..service.disks {
        let named = attach(&open, service, number)?;
        let config = VhostUserConfig {
            serial: named.export.name.clone(),
            queues: 1,
            read_only: false,
            write_cache: WriteCacheSetting::On,
            on_switch: None,
        };
        let (sectors, socket) = (service.disk_bytes / 512, service.vhost_user_socket(number));
        servers.push(handle.arena(named.disk).serve_vhost_user(named.disk, sectors, &socket, &config)?);
        catalog.push(named);
    }
    let socket = service.nbd_socket();
    let listener = handle.clone();
    std::thread::spawn(move || {
        if let Err(error) = listen(&listener, &socket, &catalog) {
            eprintln!("the NBD socket: {error}");
        }
    });
    let mut before = Histograms::default();
    for line in io::stdin().lines() {
        line?;
        tell(&handle, &mut before)?;
    }
    drop(servers);
    drop(open);
    let _ = std::fs::remove_file(service.staging());
    Ok(())
}

/// What [`STAGES`] names, since the start.
type Histograms = [Histogram; STAGES.len()];

fn histograms(snapshot: &Snapshot) -> Histograms {
    let [mut reads, mut writes] = [Histogram::default(), Histogram::default()];
    for device in &snapshot.devices {
        reads.merge(&device.latency.read);
        writes.merge(&device.latency.write);
    }
    let first = snapshot.disks.iter().find(|disk| disk.name == name_of(0));
    let served = first.map(|disk| disk.nbd_latency.read.clone()).unwrap_or_default();
    [served, snapshot.turns.clone(), reads, writes]
}

fn tell(handle: &PoolHandle, before: &mut Histograms) -> Result<(), Box<dyn Error>> {
    let snapshot = handle.snapshot()?;
    let sum = |of: fn(&haversack_core::DiskStats) -> u64| -> u64 {
        snapshot.disks.iter().map(|disk| of(&disk.stats)).sum()
    };
    let device_bytes: u64 = snapshot.devices.iter().map(|device| device.read_bytes).sum();
    let now = histograms(&snapshot);
    print!("{} {} {device_bytes}", sum(|s| s.read_hits), sum(|s| s.read_misses));
    for (now, before) in now.iter().zip(&*before) {
        let since = now.since(before);
        print!(" {} {}", since.quantile_us(0.5), since.quantile_us(0.99));
    }
    println!();
    *before = now;
    Ok(())
}
