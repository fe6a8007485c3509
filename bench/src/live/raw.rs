//! The device itself: direct reads and writes of a file through io_uring, and nothing in between.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode};

use super::load::{BLOCK_BYTES, Client, Kind, MOST_BLOCKS, MOST_DEPTH, Request, check_block};
use super::shared::Shared;
use haversack_model::random::Random;

/// A file opened for direct I/O.
pub struct RawClient {
    ring: IoUring,
    file: File,
    buffers: Shared,
    requests: [Request; MOST_DEPTH],
    checks: bool,
}

const BUFFER_BYTES: usize = MOST_BLOCKS * BLOCK_BYTES;

impl RawClient {
    /// Opens a file. `checks` says whether blocks that are read must have their numbers in them.
    pub fn open(path: &Path, checks: bool) -> io::Result<RawClient> {
        Ok(RawClient {
            ring: IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(MOST_DEPTH as u32)?,
            file: open(path)?,
            buffers: Shared::new(MOST_DEPTH * BUFFER_BYTES)?,
            requests: [Request::FLUSH; MOST_DEPTH],
            checks,
        })
    }
}

/// Opens a file for direct I/O.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Reads or writes random parts of a file, one after the other, until told to stop.
pub fn attack(path: &Path, kind: Kind, bytes: usize, rng: &mut Random, stop: &AtomicBool) -> io::Result<()> {
    let file = open(path)?;
    let places = file.metadata()?.len() / bytes as u64;
    let shared = Shared::new(bytes)?;
    // SAFETY: mapped as long as `shared` lives, and used by this thread alone.
    let memory = unsafe { std::slice::from_raw_parts_mut(shared.address(0, bytes), bytes) };
    while !stop.load(Ordering::Relaxed) {
        let offset = rng.below(places) * bytes as u64;
        match kind {
            Kind::Read => file.read_exact_at(memory, offset)?,
            Kind::Write => file.write_all_at(memory, offset)?,
            Kind::Flush => file.sync_data()?,
        }
    }
    Ok(())
}

impl Client for RawClient {
    fn start(&mut self, number: usize, request: Request) -> io::Result<()> {
        let (fd, at, bytes) = (Fd(self.file.as_raw_fd()), number * BUFFER_BYTES, request.bytes() as u32);
        let buffer = self.buffers.address(at, BUFFER_BYTES);
        self.requests[number] = request;
        let entry = match request.kind {
            Kind::Read => opcode::Read::new(fd, buffer, bytes).offset(request.offset()).build(),
            Kind::Write => {
                for block in 0..request.blocks {
                    self.buffers
                        .write(at + block * BLOCK_BYTES, &(request.block + block as u64).to_le_bytes());
                }
                opcode::Write::new(fd, buffer, bytes).offset(request.offset()).build()
            }
            Kind::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the buffer is mapped as long as the client lives, and used by this request alone until it is done.
        unsafe { self.ring.submission().push(&entry.user_data(number as u64)) }.map_err(io::Error::other)
    }

    fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        self.ring.submit_and_wait(1)?;
        for completion in self.ring.completion() {
            let number = completion.user_data() as usize;
            let request = self.requests[number];
            if completion.result() != request.bytes() as i32 {
                return Err(io::Error::other(format!("direct I/O gives {}", completion.result())));
            }
            if self.checks && request.kind == Kind::Read {
                let mut first = [0; 8];
                self.buffers.read(number * BUFFER_BYTES, &mut first);
                check_block(request.block, &first)?;
            }
            done.push(number);
        }
        Ok(())
    }
}
