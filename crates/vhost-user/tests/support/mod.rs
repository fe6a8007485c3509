//! A guest for the tests: memory in a memfd, a virtqueue driver, a front end built on the `vhost` crate, and a small
//! disk in memory that drives the queues with poll(2).
//!
//! The guest touches its memory through the file, so no test needs unsafe code: on Linux that is coherent with the
//! back end's shared mappings.
#![allow(dead_code, missing_docs, reason = "each test file uses its own part")]

pub mod client;
pub mod disk;
pub mod driver;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use haversack_vhost_user::{GuestMemory, RegionDescription};

/// Size of each of the two regions of guest memory, which adjoin each other.
pub const REGION_BYTES: u64 = 4 << 20;
pub const RAM_BYTES: u64 = 2 * REGION_BYTES;
/// Where the front end claims to have the regions; far apart from each other.
pub const USER_ADDRESSES: [u64; 2] = [0x7000_0000_0000, 0x6000_0000_0000];

/// A file in memory.
pub fn memory_file(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.set_len(bytes).unwrap();
    file
}

/// Guest memory; guest addresses are offsets in the file.
#[derive(Clone, Debug)]
pub struct Ram {
    pub file: Arc<File>,
}

impl Ram {
    pub fn new() -> Self {
        Self { file: Arc::new(memory_file(RAM_BYTES)) }
    }

    pub fn regions() -> [RegionDescription; 2] {
        [0, 1].map(|i| RegionDescription {
            guest_address: i * REGION_BYTES,
            size_bytes: REGION_BYTES,
            user_address: USER_ADDRESSES[i as usize],
            file_offset: i * REGION_BYTES,
        })
    }

    pub fn mapped(&self) -> GuestMemory {
        let [a, b] = Self::regions();
        GuestMemory::default().with(b, self.file.as_fd()).unwrap().with(a, self.file.as_fd()).unwrap()
    }

    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub fn read(&self, at: u64, bytes: &mut [u8]) {
        self.file.read_exact_at(bytes, at).unwrap();
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes);
        bytes
    }

    pub fn u16(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    pub fn set_u16(&self, at: u64, value: u16) {
        self.write(at, &value.to_le_bytes());
    }

    pub fn u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}

/// The address that a ring part has in the front end's own memory.
pub fn user_address(guest_address: u64) -> u64 {
    let region = guest_address / REGION_BYTES;
    USER_ADDRESSES[region as usize] + guest_address % REGION_BYTES
}

/// A path for a socket that no other test uses.
pub fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("haversack-vhost-{}-{number}.sock", std::process::id()))
}
