//! What the engine's tests share: pools on files, and a blocking NBD client and server.
#![allow(dead_code)]

pub mod departing;
pub mod hosts;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use haversack_core::{DiskConfig, OpenReport};
use haversack_engine::pool::{Formatting, Shape};
use haversack_engine::{DiskSpec, NbdClient, OpenPool, OriginSpec, PoolHandle, PoolSettings, pool};
use haversack_model::{DiskHandle, DiskId};
use haversack_nbd::{
    BlockSize, ClientSession, Command, CommandFlags, Connected, Errno, Event, ExportInfo, Exports,
    MetaContexts, Negotiated, ServerNegotiation, ServerStep, TlsPolicy, TransmissionFlags as F,
};

pub const MIB: u64 = 1 << 20;

/// A directory that goes with the test.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("haversack-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A pool of files of n MiB.
    pub fn pool(&self, sizes_mib: &[u64], redundancy: bool) -> PoolSettings {
        let devices: Vec<PathBuf> = (0..sizes_mib.len()).map(|at| self.path(&format!("cache{at}"))).collect();
        for (device, mib) in devices.iter().zip(sizes_mib) {
            File::create(device).unwrap().set_len(mib * MIB).unwrap();
        }
        pool::create(&devices, Formatting::default(), Shape { redundancy, ..Shape::default() }).unwrap();
        self.settings(devices)
    }

    pub fn settings(&self, devices: Vec<PathBuf>) -> PoolSettings {
        let mut config = PoolSettings::new("test", devices);
        config.staging_path = self.path("staging");
        (config.staging_blocks, config.transfer_blocks) = (1024, 1024);
        config
    }

    /// An origin file of n MiB, every sector of which says its number.
    pub fn origin(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.path(name);
        let bytes: Vec<u8> = (0..mib * MIB / 512).flat_map(|sector| pattern(sector, 0)).collect();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A sector's content in a version.
pub fn pattern(sector: u64, version: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    for (at, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (sector << 20 ^ version << 8 ^ at as u64).to_le_bytes();
    }
    bytes
}

pub fn patterns(sector: u64, sectors: u64, version: u64) -> Vec<u8> {
    (sector..sector + sectors).flat_map(|sector| pattern(sector, version)).collect()
}

pub fn spec(number: u8, mib: u64, origin: OriginSpec) -> DiskSpec {
    DiskSpec {
        name: format!("disk{number}"),
        config: DiskConfig::new(DiskId([number; 16]), mib * MIB / 512),
        epoch: 1,
        accept_loss: false,
        is_outdated: false,
        origin,
        origin_holds_pool: false,
        origin_wait: Duration::from_secs(20),
        read_only: false,
        borrows: true,
        moves: None,
        beside: None,
    }
}

pub fn start(config: &PoolSettings) -> (OpenPool, OpenReport) {
    OpenPool::start(config).unwrap()
}

pub fn attach(open: &OpenPool, spec: DiskSpec) -> DiskHandle {
    let (disk, job) = open.handle().attach(spec).unwrap();
    job.wait().unwrap();
    disk
}

fn export(size_bytes: u64) -> ExportInfo {
    let features =
        [F::SEND_FLUSH, F::SEND_FUA, F::SEND_TRIM, F::SEND_WRITE_ZEROES, F::SEND_CACHE, F::CAN_MULTI_CONN];
    ExportInfo {
        name: "disk".into(),
        description: String::new(),
        size_bytes,
        read_only: false,
        block_size: BlockSize::new(512, 4096, 32 << 20).unwrap(),
        features: features.into_iter().fold(F::NONE, |all, one| all | one),
    }
}

pub fn negotiated(size_bytes: u64) -> Negotiated {
    let export = export(size_bytes);
    Negotiated {
        flags: export.transmission_flags(true),
        export,
        structured_replies: true,
        meta_contexts: MetaContexts::default(),
        no_zeroes: true,
        block_size_agreed: true,
        tls: false,
    }
}

/// Waits until `question` returns true.
pub fn wait_until(what: &str, mut question: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !question() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that waits for each of its requests.
pub struct Client {
    socket: UnixStream,
    session: ClientSession,
}

impl Client {
    pub fn new(handle: &PoolHandle, disk: DiskHandle, size_bytes: u64) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let negotiated = negotiated(size_bytes);
        let connected = Connected {
            size_bytes,
            flags: negotiated.flags,
            block_size: negotiated.export.block_size,
            structured_replies: true,
            context_id: None,
            tls: false,
        };
        handle
            .arena(disk)
            .add_nbd_client(NbdClient {
                disk,
                socket: theirs.into(),
                negotiated,
                max_connections: 64,
                held: Arc::new(()),
                peer: "a test".into(),
            })
            .unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { socket: ours, session: ClientSession::new(&connected, 16) }
    }

    /// Sends a request and does not wait for its answer.
    pub fn ask_only(mut self, command: Command, sector: u64, sectors: u64, payload: &[u8]) -> UnixStream {
        let (offset, length) = (sector * 512, (sectors * 512) as u32);
        let (_, head) = self.session.start(command, CommandFlags::NONE, offset, length).unwrap();
        self.socket.write_all(&head).unwrap();
        self.socket.write_all(payload).unwrap();
        self.socket
    }

    pub fn ask(
        &mut self,
        command: Command,
        flags: CommandFlags,
        sector: u64,
        sectors: u64,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let (offset, length) = (sector * 512, (sectors * 512) as u32);
        let (_, head) = self.session.start(command, flags, offset, length).unwrap();
        self.socket.write_all(&head).unwrap();
        self.socket.write_all(payload).unwrap();
        let mut data = vec![0; if command == Command::Read { length as usize } else { 0 }];
        let mut buffer = vec![0; 1 << 16];
        loop {
            let bytes = self.socket.read(&mut buffer).unwrap();
            assert!(bytes > 0, "the server closed the connection");
            let mut input = &buffer[..bytes];
            while let Some(event) = self.session.receive(&mut input).unwrap() {
                match event {
                    Event::Data { offset: at, length, .. } => {
                        let here = input.len().min(length as usize);
                        if here == 0 {
                            break;
                        }
                        let at = (at - offset) as usize;
                        data[at..at + here].copy_from_slice(&input[..here]);
                        input = &input[here..];
                        self.session.data_taken(here as u32);
                    }
                    Event::Done { result, .. } => return result.map(|()| data),
                    Event::Zero { .. } | Event::Extent { .. } | Event::Error { .. } => {}
                }
            }
        }
    }

    pub fn read(&mut self, sector: u64, sectors: u64) -> Vec<u8> {
        self.ask(Command::Read, CommandFlags::NONE, sector, sectors, &[]).unwrap()
    }

    pub fn write(&mut self, sector: u64, sectors: u64, version: u64) {
        self.ask(Command::Write, CommandFlags::NONE, sector, sectors, &patterns(sector, sectors, version))
            .unwrap();
    }

    pub fn flush(&mut self) {
        self.ask(Command::Flush, CommandFlags::NONE, 0, 0, &[]).unwrap();
    }

    pub fn trim(&mut self, sector: u64, sectors: u64) {
        self.ask(Command::Trim, CommandFlags::NONE, sector, sectors, &[]).unwrap();
    }
}

struct One(u64);

impl Exports for One {
    fn names(&mut self) -> Vec<String> {
        vec!["disk".into()]
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        (name == "disk").then(|| export(self.0))
    }
}

fn greet(stream: &mut UnixStream, size_bytes: u64) -> Option<Negotiated> {
    let mut output = Vec::new();
    let mut negotiation = ServerNegotiation::new(TlsPolicy::Off, &mut output);
    stream.write_all(&output).ok()?;
    let mut buffer = vec![0; 8192];
    loop {
        let bytes = &mut buffer[..negotiation.wanted_bytes()];
        stream.read_exact(bytes).ok()?;
        output.clear();
        let step = negotiation.receive(&mut &*bytes, &mut One(size_bytes), &mut output).ok()?;
        stream.write_all(&output).ok()?;
        match step {
            ServerStep::Continue => {}
            ServerStep::Transmission(negotiated) => return Some(*negotiated),
            ServerStep::StartTls | ServerStep::Aborted => return None,
        }
    }
}

/// Serves a pool's disk on a Unix socket, as an origin for another pool, until the pool ends.
pub fn serve(handle: PoolHandle, disk: DiskHandle, size_bytes: u64, socket: &Path) {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(negotiated) = greet(&mut stream, size_bytes) else { continue };
            let socket: OwnedFd = stream.into();
            if handle
                .arena(disk)
                .add_nbd_client(NbdClient {
                    disk,
                    socket,
                    negotiated,
                    max_connections: 64,
                    held: Arc::new(()),
                    peer: "a test".into(),
                })
                .is_err()
            {
                break;
            }
        }
    });
}
