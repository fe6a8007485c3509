//! Asks a disk's NBD server which blocks it reads from the image that the disk was made from, and compares some of them
//! with that image.
//!
//! QEMU's servers tell it in the metadata context `qemu:allocation-depth`: the layer of an image's chain that has the
//! data, 1 for the image itself, 2 and more for what is behind it, 0 for data that no layer has. The data behind the
//! image is what the base reads as.
//!
//! Each layer is compared separately: an image between the disk's and the base's, such as one made by a snapshot, may
//! have little data.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use haversack_core::BaseBlocks;
use haversack_model::random::Random;
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES};
use haversack_nbd::{ClientSession, Command, CommandFlags, Event};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::connector::{self, Connection, Server};
use super::file::OpenFile;
use crate::config::{OriginSpec, TlsFiles};
use crate::error::{EngineError, Result};

const CONTEXT: &str = "qemu:allocation-depth";
/// The depth of data that the image itself has.
const OWN_LAYER: u32 = 1;
/// The range of one question.
const STEP_BYTES: u64 = 1 << 30;
/// Layers that a chain of images may have.
const MOST_LAYERS: usize = 256;
/// Blocks of each layer that are compared with the base.
const COMPARED: usize = 256;
/// How many blocks of zeroes may be read for each compared block: nearly all images have some. Equal zeroes prove
/// nothing, so they do not count as compared.
const ZEROES: usize = 4;
/// How long the server may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the server may take to report all extents: this, plus a second for each `LEAST_BYTES_A_SECOND`.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(120);
const LEAST_BYTES_A_SECOND: u64 = 1 << 30;

/// How to find out which of a disk's data comes from its base.
#[derive(Clone, Debug)]
pub enum Layers {
    /// The disk's NBD server tells.
    Asked,
    /// These ranges of bytes, in order.
    Told(Vec<Range<u64>>),
}

/// A disk, and the base that it was made from.
#[derive(Clone, Debug)]
pub struct Descent {
    /// The disk's origin.
    pub origin: OriginSpec,
    /// The disk's size in sectors.
    pub sectors: u64,
    /// The grid phase of both.
    pub phase: u8,
    /// The base's origin.
    pub base: OriginSpec,
    /// The base's size in sectors.
    pub base_sectors: u64,
    /// How it is known which data comes from the base.
    pub layers: Layers,
}

impl Descent {
    /// Returns the blocks of the disk that its origin reads from the base.
    ///
    /// # Errors
    /// A server does not answer, the disk's does not tell where its data is, or the two origins differ where they
    /// should not.
    pub fn shared_blocks(&self) -> Result<BaseBlocks> {
        let OriginSpec::Nbd { uri, tls, .. } = &self.origin else {
            let why = "a file or device does not tell which of its data is another image's; the disk needs an origin \
                       qcow2:, or an NBD server of QEMU that was started with --allocation-depth";
            return Err(bad(&self.origin, why));
        };
        let context = matches!(self.layers, Layers::Asked).then_some(CONTEXT);
        let mut server = Asked::connect(&self.origin, uri, tls, context)?;
        let blocks = BaseBlocks::new(self.sectors, self.phase, self.base_sectors);
        let mut found = Found { blocks, runs: BTreeMap::new() };
        // The base may be smaller than the disk.
        let end = self.sectors.min(self.base_sectors) * SECTOR_BYTES as u64;
        match &self.layers {
            Layers::Told(ranges) => {
                for range in ranges {
                    found.add(range.start, range.end.min(end), OWN_LAYER + 1);
                }
            }
            Layers::Asked => {
                let deadline = PATIENCE_FOR_ALL + Duration::from_secs(end / LEAST_BYTES_A_SECOND);
                let begin = Instant::now();
                let mut at = 0;
                while at < end {
                    if begin.elapsed() > deadline || found.runs.len() > MOST_LAYERS {
                        let why = format!(
                            "its server reported {at} of {end} bytes in {} s, in {} layers, expected all in {} s and at most \
                             {MOST_LAYERS} layers",
                            begin.elapsed().as_secs(),
                            found.runs.len(),
                            deadline.as_secs()
                        );
                        return Err(bad(&self.origin, why));
                    }
                    let length = (end - at).min(STEP_BYTES) as u32;
                    at += server.extents(at, length, |from, bytes, depth| {
                        if depth != OWN_LAYER {
                            found.add(from, (from + bytes).min(end), depth);
                        }
                    })?;
                }
            }
        }
        for runs in found.runs.values() {
            self.compare(&mut server, runs)?;
        }
        Ok(found.blocks)
    }

    /// Whether data still comes from the base: the guest may have overwritten all or part of it.
    fn is_still_the_bases(&self, server: &mut Asked, at: u64, length: usize) -> Result<bool> {
        let mut is_own = false;
        if matches!(self.layers, Layers::Asked) {
            let end = at + length as u64;
            let mut next = at;
            while next < end && !is_own {
                let rest = (end - next) as u32;
                next += server.extents(next, rest, |_, _, depth| is_own |= depth == OWN_LAYER)?;
            }
        }
        Ok(!is_own)
    }

    /// Flushes the disk's server: everything that it has acknowledged so far becomes durable in its store.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn flush(&self) -> Result<()> {
        let OriginSpec::Nbd { uri, tls, .. } = &self.origin else { return Ok(()) };
        let mut server = Asked::connect(&self.origin, uri, tls, None)?;
        server.ask(Command::Flush, 0, 0, |_, _| Ok(0))
    }

    /// Compares some of a layer's data with the base: another image than the one that the disk was made from would give
    /// the guest wrong data.
    fn compare(&self, server: &mut Asked, runs: &[Range<u64>]) -> Result<()> {
        let total_bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if total_bytes == 0 {
            return Ok(());
        }
        let mut random = Random::new(self.sectors);
        let mut base = Reader::open(&self.base)?;
        let (mut compared, mut zeroes) = (0, 0);
        while compared < COMPARED && zeroes < COMPARED * ZEROES {
            let (at, length) = place_of(runs, random.below(total_bytes));
            let (mut own, mut theirs) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
            server.read(at, &mut own[..length])?;
            base.read(at, &mut theirs[..length])?;
            if own != theirs && self.is_still_the_bases(server, at, length)? {
                return Err(EngineError::OtherBase {
                    origin: name_of(&self.origin),
                    offset_bytes: at,
                    length_bytes: length as u64,
                });
            }
            if own == [0; BLOCK_BYTES] {
                zeroes += 1;
            } else {
                compared += 1;
            }
        }
        Ok(())
    }
}

/// Returns the place of the `nth` byte of the runs, and how many bytes of its block are in the same run.
fn place_of(runs: &[Range<u64>], mut nth: u64) -> (u64, usize) {
    for run in runs {
        let bytes = run.end - run.start;
        if nth < bytes {
            let at = run.start + nth / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
            return (at, (run.end - at).min(BLOCK_BYTES as u64) as usize);
        }
        nth -= bytes;
    }
    unreachable!("the byte is in one of the runs")
}

/// What a disk reads from its base.
struct Found {
    blocks: BaseBlocks,
    /// Runs of bytes of each layer, from which places to compare are chosen.
    runs: BTreeMap<u32, Vec<Range<u64>>>,
}

impl Found {
    fn add(&mut self, from: u64, to: u64, depth: u32) {
        // A sector that begins in one extent and ends in another belongs to neither.
        let (first, end) = (from.div_ceil(SECTOR_BYTES as u64), to / SECTOR_BYTES as u64);
        if first < end {
            self.blocks.add(first, end - first);
            let runs = self.runs.entry(depth).or_default();
            note_run(runs, first * SECTOR_BYTES as u64..end * SECTOR_BYTES as u64);
        }
    }
}

/// Adds a run to the list from which places to compare are chosen; it is kept short.
fn note_run(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    const MOST: usize = 4096;
    if let Some(last) = runs.last_mut().filter(|last| last.end == run.start) {
        last.end = run.end;
    } else if runs.len() < MOST {
        runs.push(run);
    } else {
        // It replaces an earlier one, so that all of the disk is represented.
        let at = (run.start / SECTOR_BYTES as u64) as usize % MOST;
        runs[at] = run;
    }
}

fn name_of(origin: &OriginSpec) -> String {
    match origin {
        OriginSpec::File { path } => path.display().to_string(),
        OriginSpec::Nbd { uri, .. } => uri.clone(),
    }
}

fn bad(origin: &OriginSpec, why: impl std::fmt::Display) -> EngineError {
    EngineError::Origin { origin: name_of(origin), why: why.to_string() }
}

/// An NBD server that is asked one question at a time.
struct Asked {
    origin: OriginSpec,
    socket: File,
    session: ClientSession,
}

impl Asked {
    fn connect(
        origin: &OriginSpec,
        uri: &str,
        tls: &TlsFiles,
        context: Option<&'static str>,
    ) -> Result<Asked> {
        let uri = uri.parse().map_err(|error| bad(origin, error))?;
        let server = Server { uri, tls: tls.clone(), context };
        let connection = connector::connect_within(&server, PATIENCE).map_err(|error| bad(origin, error))?;
        let Connection { socket, connected, .. } = connection;
        if let Some(context) = context.filter(|_| connected.context_id.is_none()) {
            let why = format!(
                "its server does not offer {context}, so it does not tell which data is the base's; start QEMU's NBD server \
                 with --allocation-depth"
            );
            return Err(bad(origin, why));
        }
        let socket = File::from(socket);
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).map_err(|error| bad(origin, error))?;
        Ok(Asked { origin: origin.clone(), socket, session: ClientSession::new(&connected, 1) })
    }

    fn fail(&self, why: impl std::fmt::Display) -> EngineError {
        bad(&self.origin, why)
    }

    /// Reports the extents from an offset on: offset and length in bytes, and depth. Returns how many bytes they cover,
    /// more than 0.
    fn extents(&mut self, offset: u64, length: u32, mut each: impl FnMut(u64, u64, u32)) -> Result<u64> {
        let mut covered = 0;
        self.ask(Command::BlockStatus, offset, length, |event, _| {
            if let Event::Extent { length: bytes, flags, .. } = event {
                if covered >= u64::from(length) {
                    return Err("it reports extents beyond those that it was asked for");
                }
                each(offset + covered, u64::from(bytes), flags);
                covered += u64::from(bytes);
            }
            Ok(0)
        })?;
        if covered == 0 { Err(self.fail("it reports no extent")) } else { Ok(covered) }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.ask(Command::Read, offset, into.len() as u32, |event, input| {
            Ok(match event {
                Event::Data { offset: at, length, .. } => {
                    let at = (at - offset) as usize;
                    let here = input.len().min(length as usize);
                    into[at..at + here].copy_from_slice(&input[..here]);
                    here
                }
                Event::Zero { offset: at, length, .. } => {
                    let at = (at - offset) as usize;
                    into[at..at + length as usize].fill(0);
                    0
                }
                _ => 0,
            })
        })
    }

    /// Sends a request and handles the events of its reply. `handle` returns how many bytes of the input it took.
    fn ask(
        &mut self,
        command: Command,
        offset: u64,
        length: u32,
        mut handle: impl FnMut(Event, &[u8]) -> std::result::Result<usize, &'static str>,
    ) -> Result<()> {
        let started = self.session.start(command, CommandFlags::NONE, offset, length);
        let (_, head) = started.map_err(|error| bad(&self.origin, error))?;
        self.socket.write_all(&head).map_err(|error| bad(&self.origin, error))?;
        let asked = Instant::now();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let bytes = self.socket.read(&mut buffer).map_err(|error| bad(&self.origin, error))?;
            if bytes == 0 {
                return Err(self.fail("its server closed the connection"));
            }
            if asked.elapsed() > PATIENCE {
                return Err(self.fail(format!("{command:?} takes longer than {} s", PATIENCE.as_secs())));
            }
            let mut input = &buffer[..bytes];
            while let Some(event) =
                self.session.receive(&mut input).map_err(|error| bad(&self.origin, error))?
            {
                if let Event::Done { result, .. } = event {
                    return result
                        .map_err(|errno| self.fail(format!("{command:?} at byte {offset}: {errno}")));
                }
                let taken = handle(event, input).map_err(|why| bad(&self.origin, why))?;
                input = &input[taken..];
                self.session.data_taken(taken as u32);
                if matches!(event, Event::Data { length, .. } if taken < length as usize) {
                    break;
                }
            }
        }
    }
}

/// Reads an origin in the calling thread.
enum Reader {
    File(File, OriginSpec),
    Nbd(Asked),
}

impl Reader {
    fn open(origin: &OriginSpec) -> Result<Reader> {
        match origin {
            OriginSpec::File { path } => {
                Ok(Reader::File(OpenFile::examine(path, true)?.into_file(), origin.clone()))
            }
            OriginSpec::Nbd { uri, tls, .. } => Asked::connect(origin, uri, tls, None).map(Reader::Nbd),
        }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Reader::File(file, origin) => {
                file.read_exact_at(into, offset).map_err(|error| bad(origin, error))
            }
            Reader::Nbd(server) => server.read(offset, into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_compare_lie_within_the_runs() {
        let runs = [0..512, 8192..8192 + 6144];
        assert_eq!(place_of(&runs, 511), (0, 512));
        assert_eq!(place_of(&runs, 512), (8192, 4096));
        assert_eq!(place_of(&runs, 512 + 6143), (8192 + 5632, 512));
    }

    #[test]
    fn the_list_of_runs_stays_short() {
        let mut runs = Vec::new();
        for run in 0..100_000 {
            note_run(&mut runs, run * 1024..run * 1024 + 512);
        }
        assert!(runs.len() <= 4096);
        let mut runs = vec![0..512, 1024..1536];
        note_run(&mut runs, 1536..2048);
        assert_eq!(runs, [0..512, 1024..2048]);
    }
}
