//! SPDK's vhost target with OCF as its cache: one reactor, which polls on a processor core of its own, and one cache
//! for all disks. A configuration file says all of this when it starts.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::image_of_disk;
use super::process::Process;

/// Programs of SPDK that serve vhost-user-blk.
const PROGRAMS: [&str; 2] = ["spdk_tgt", "vhost"];
/// Memory that SPDK may use for its pools and for OCF's metadata: `spdk_tgt` needs 1.5 GiB.
const MEMORY_BYTES: u64 = 2 << 30;
/// Memory that it may use for each disk.
const DISK_MEMORY_BYTES: u64 = 16 << 20;
/// Its small and large buffers, which are as many as it has by default and some for each disk. A disk takes its share
/// even when it is idle, and without it does not start.
const BUFFERS: [u64; 2] = [8192, 1024];
const DISK_BUFFERS: [u64; 2] = [512, 64];
/// The sector of the disks, as of most virtual disks.
const SECTOR_BYTES: u64 = 512;
/// The sector of a zram device. OCF refuses disks whose sectors are smaller than the cache's.
const DEVICE_SECTOR_BYTES: u64 = 4096;
/// OCF's cache line: a block of the other caches.
const LINE_KIB: u64 = 4;

/// What the cache is on.
#[derive(Clone, Debug)]
pub enum CacheDevice {
    /// A new file of this size in bytes, or a block device; accessed past the page cache.
    File(PathBuf, u64),
    /// SPDK's own memory, of this size in bytes.
    Memory(u64),
}

/// When a write is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// When it is in the cache.
    WriteBack,
    /// When it is on the origin as well.
    WriteThrough,
}

/// What is served.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where sockets and the configuration are.
    pub directory: PathBuf,
    /// The image behind the first disk; the others have sparse ones beside it.
    pub image: PathBuf,
    /// Bytes of each disk.
    pub disk_bytes: u64,
    /// How many disks.
    pub disks: u16,
    /// The cache of all disks.
    pub cache: CacheDevice,
    /// How all disks are written.
    pub mode: Mode,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::WriteBack => "wb",
            Mode::WriteThrough => "wt",
        }
    }
}

impl Setup {
    /// A disk's socket.
    pub fn socket(&self, disk: u16) -> PathBuf {
        self.directory.join(format!("spdk-{disk}"))
    }

    fn sector_bytes(&self) -> u64 {
        match &self.cache {
            CacheDevice::File(path, _) if is_block_device(path) => DEVICE_SECTOR_BYTES,
            _ => SECTOR_BYTES,
        }
    }

    /// Makes the cache's device, and says how SPDK is to open it.
    fn cache(&self) -> io::Result<String> {
        match &self.cache {
            CacheDevice::File(path, bytes) => {
                if !is_block_device(path) {
                    File::create(path)?.set_len(*bytes)?;
                }
                Ok(file_device("cache", path, self.sector_bytes()))
            }
            CacheDevice::Memory(bytes) => {
                let blocks = bytes / SECTOR_BYTES;
                let sizes = format!(r#""num_blocks": {blocks}, "block_size": {SECTOR_BYTES}"#);
                Ok(call("bdev_malloc_create", &format!(r#""name": "cache", {sizes}"#)))
            }
        }
    }

    fn disk(&self, disk: u16) -> io::Result<[String; 3]> {
        let core = format!("core-{disk}");
        let mode = self.mode.word();
        let devices = format!(r#""cache_bdev_name": "cache", "core_bdev_name": "{core}""#);
        let cached =
            format!(r#""name": "disk-{disk}", "mode": "{mode}", "cache_line_size": {LINE_KIB}, {devices}"#);
        let all_enters = format!(r#""name": "disk-{disk}", "policy": "never""#);
        Ok([
            file_device(&core, &image_of_disk(&self.image, disk, self.disk_bytes)?, self.sector_bytes()),
            call("bdev_ocf_create", &cached),
            call("bdev_ocf_set_seqcutoff", &all_enters),
        ])
    }

    fn controller(disk: u16) -> String {
        call("vhost_create_blk_controller", &format!(r#""ctrlr": "spdk-{disk}", "dev_name": "disk-{disk}""#))
    }

    /// All of SPDK's configuration.
    fn configuration(&self) -> io::Result<String> {
        let only_errors = call("log_set_print_level", r#""level": "ERROR""#);
        let mut devices = vec![only_errors, self.cache()?];
        for disk in 0..self.disks {
            devices.extend(self.disk(disk)?);
        }
        let controllers: Vec<String> = (0..self.disks).map(Setup::controller).collect();
        let all = [("iobuf", vec![self.buffers()]), ("bdev", devices), ("vhost_blk", controllers)];
        let subsystems = all.map(|(name, calls)| subsystem(name, &calls));
        Ok(format!(r#"{{"subsystems": [{}]}}"#, subsystems.join(",\n")))
    }

    fn buffers(&self) -> String {
        let [small, large] = [0, 1].map(|at| BUFFERS[at] + DISK_BUFFERS[at] * u64::from(self.disks));
        let counts = format!(r#""small_pool_count": {small}, "large_pool_count": {large}"#);
        call("iobuf_set_options", &counts)
    }

    fn memory_mib(&self) -> u64 {
        let cache = match &self.cache {
            CacheDevice::File(..) => 0,
            CacheDevice::Memory(bytes) => *bytes,
        };
        (MEMORY_BYTES + DISK_MEMORY_BYTES * u64::from(self.disks) + cache) >> 20
    }
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device())
}

fn call(method: &str, parameters: &str) -> String {
    format!(r#"{{"method": "{method}", "params": {{{parameters}}}}}"#)
}

fn file_device(name: &str, path: &Path, sector_bytes: u64) -> String {
    let path = path.display().to_string().replace('\\', r"\\").replace('"', r#"\""#);
    call(
        "bdev_aio_create",
        &format!(r#""name": "{name}", "filename": "{path}", "block_size": {sector_bytes}"#),
    )
}

fn subsystem(name: &str, calls: &[String]) -> String {
    format!(r#"{{"subsystem": "{name}", "config": [{}]}}"#, calls.join(",\n"))
}

/// SPDK's program: the one that is asked for, or the first one on the search path.
pub fn find(option: Option<&Path>) -> Option<PathBuf> {
    if let Some(program) = option {
        return Some(program.to_path_buf());
    }
    let directories: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let mut candidates =
        PROGRAMS.iter().flat_map(|name| directories.iter().map(move |directory| directory.join(name)));
    candidates.find(|program| program.is_file())
}

/// SPDK with disks behind a cache, on a processor core that it keeps busy even when there is nothing to do.
pub fn vhost_user(program: &Path, core: usize, setup: &Setup) -> io::Result<Process> {
    fs::create_dir_all(&setup.directory)?;
    let configuration = setup.directory.join("spdk.json");
    fs::write(&configuration, setup.configuration()?)?;
    let mut command = Command::new(program);
    command.env("RUNTIME_DIRECTORY", &setup.directory);
    command.arg("--cpumask").arg(format!("[{core}]")).arg("--disable-cpumask-locks");
    command.args(["--no-huge", "--no-pci", "--mem-size"]).arg(setup.memory_mib().to_string());
    command.args(["--silence-noticelog", "--num-trace-entries", "0", "--no-rpc-server"]);
    command.args(["--env-context", "--log-level=lib.*:error"]);
    command.arg("--json").arg(&configuration).arg("-S").arg(&setup.directory);
    Process::start(command, "none: it is SPDK, built with OCF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_has_an_image_a_cache_and_a_socket() {
        let directory = std::env::temp_dir().join(format!("haversack-bench-spdk-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let setup = Setup {
            image: directory.join("image"),
            directory: directory.clone(),
            disk_bytes: 1 << 20,
            disks: 2,
            cache: CacheDevice::Memory(1 << 30),
            mode: Mode::WriteThrough,
        };
        let configuration = setup.configuration().unwrap();
        let count = |part: &str| configuration.matches(part).count();
        assert_eq!(count("bdev_malloc_create"), 1);
        for method in
            ["bdev_aio_create", "bdev_ocf_create", "bdev_ocf_set_seqcutoff", "vhost_create_blk_controller"]
        {
            assert_eq!(count(method), 2, "{method}");
        }
        assert!(configuration.contains("image-1\"") && configuration.contains(r#""mode": "wt""#));
        assert_eq!(fs::metadata(directory.join("image-1")).unwrap().len(), 1 << 20);
        assert_eq!((setup.memory_mib(), setup.socket(1)), (3104, directory.join("spdk-1")));
        fs::remove_dir_all(&directory).unwrap();
    }
}
