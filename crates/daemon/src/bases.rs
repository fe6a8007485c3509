//! Disks that were made from a base image share its blocks in the cache: one copy serves all of them.
//!
//! A thread looks for attached disks that name a base and do not share its blocks yet, for example because the disk or
//! its base was just attached or has just moved here. It makes the core track changes, asks the disk's origin which of
//! its data comes from the base image, and passes the answer to the core. A disk that cannot share reads its own
//! origin: that is slower, never wrong.
//!
//! Invariants
//! - Only a read-only disk is a base.
//! - While a disk is attached, at most one question to its origin is pending: the answer to an earlier one would not
//!   account for data written before the core restarted tracking.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_api::{BaseStatus, DiskConfig, Size, redact};
use haversack_core::ManageError;
use haversack_engine::{Descent, DiskSnapshot, EngineError, Layers, OriginSpec};
use haversack_model::{BLOCK_BYTES, DiskHandle, DiskId};

use crate::daemon::{Daemon, Disk, DiskInner};
use crate::error::{DaemonError, Result};
use crate::exclusive::Store;
use crate::helper;
use crate::locked::Locked;
use crate::origin::{BlockDevice, Origin};
use crate::rbd;

/// How often the thread looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long after an attempt a disk is checked again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The maximum number of origins that are queried at the same time, each by its own thread.
const MOST_AT_A_TIME: usize = 16;

/// How far disks are with sharing the blocks of their bases.
#[derive(Default)]
pub struct Attempts(Mutex<HashMap<DiskId, Attempt>>);

/// The last attempt since a disk was attached.
struct Attempt {
    handle: DiskHandle,
    phase: Phase,
    /// Why the disk does not share, if it does not.
    problem: Option<String>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// The disk's origin is being asked.
    Asking,
    /// The attempt has ended. The next one starts at `look_at` or, if that is `None`, after the disk is attached again.
    Ended { look_at: Option<Instant> },
}

impl Attempts {
    /// Forgets all disks except those to keep.
    fn keep(&self, is_kept: impl Fn(&DiskId) -> bool) {
        self.0.locked().retain(|disk, _| is_kept(disk));
    }

    /// Returns whether a new attempt is due for a disk.
    fn is_due(&self, disk: DiskId, handle: DiskHandle) -> bool {
        let attempts = self.0.locked();
        let of_now = attempts.get(&disk).filter(|attempt| attempt.handle == handle);
        of_now.is_none_or(|attempt| match attempt.phase {
            Phase::Asking => false,
            Phase::Ended { look_at } => look_at.is_some_and(|at| Instant::now() >= at),
        })
    }

    /// Starts an attempt. Returns false if too many origins are being queried already.
    fn begin(&self, disk: DiskId, handle: DiskHandle) -> bool {
        let mut attempts = self.0.locked();
        let asking = attempts.values().filter(|attempt| matches!(attempt.phase, Phase::Asking)).count();
        if asking >= MOST_AT_A_TIME {
            return false;
        }
        let earlier = attempts.remove(&disk).filter(|attempt| attempt.handle == handle);
        let problem = earlier.and_then(|attempt| attempt.problem);
        attempts.insert(disk, Attempt { handle, phase: Phase::Asking, problem });
        true
    }

    /// Ends an attempt, unless the disk has been attached again since. Returns whether there is a new problem.
    fn end(&self, disk: DiskId, handle: DiskHandle, outcome: std::result::Result<(), &DaemonError>) -> bool {
        let is_final = matches!(outcome, Err(DaemonError::Engine(EngineError::OtherBase { .. })));
        let look_at = (!is_final).then(|| Instant::now() + AGAIN_AFTER);
        let problem = outcome.err().map(|error| error.to_string());
        let mut attempts = self.0.locked();
        let Some(attempt) = attempts.get_mut(&disk).filter(|attempt| attempt.handle == handle) else {
            return false;
        };
        let is_new = problem.is_some() && attempt.problem != problem;
        (attempt.phase, attempt.problem) = (Phase::Ended { look_at }, problem);
        is_new
    }

    /// Returns why a disk does not share.
    fn problem(&self, disk: DiskId, handle: DiskHandle) -> Option<String> {
        let attempts = self.0.locked();
        let of_now = attempts.get(&disk).filter(|attempt| attempt.handle == handle);
        of_now.and_then(|attempt| attempt.problem.clone())
    }
}

/// Returns whether a problem disappears by itself once a disk is attached or has moved, and need not be reported.
fn is_passing(error: &DaemonError) -> bool {
    use ManageError::{Busy, Migrating, NotAttached};
    matches!(
        error,
        DaemonError::Engine(
            EngineError::Manage(Busy | Migrating(_) | NotAttached(_)) | EngineError::Detached
        )
    )
}

impl Daemon {
    /// Returns what a disk shares with its base, if it names one.
    pub(crate) fn base_status(&self, disk: &Disk, shown: &DiskSnapshot) -> Option<BaseStatus> {
        let name = disk.config().base?;
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        Some(BaseStatus {
            name,
            shared_bytes: bytes(shown.base.map_or(0, |base| base.shared_blocks)),
            read_bytes: bytes(shown.stats.base_blocks),
            problem: self.base_attempts.problem(disk.id, shown.disk).filter(|_| shown.base.is_none()),
        })
    }

    /// Starts a thread for each disk that does not share the blocks of its base yet, so that a server that does not
    /// answer delays few other disks.
    fn share_bases(self: &Arc<Self>) {
        let disks = self.disks();
        self.base_attempts.keep(|id| disks.iter().any(|(_, disk)| disk.id == *id));
        for (name, disk) in disks {
            let wanted = |inner: &mut DiskInner| {
                Some((inner.config.base.clone()?, inner.config.pool.clone(), inner.handle?))
            };
            let Some((base, pool, handle)) = disk.with(wanted) else { continue };
            if !self.base_attempts.is_due(disk.id, handle) {
                continue;
            }
            if !self.base_attempts.begin(disk.id, handle) {
                return;
            }
            let usage = self.pool(&pool).and_then(|pool| Ok(pool.backend.base_usage(handle)?));
            if usage.is_ok_and(|usage| usage.is_some_and(|usage| usage.is_known)) {
                self.base_attempts.end(disk.id, handle, Ok(()));
                continue;
            }
            let (daemon, asked) = (self.clone(), disk.clone());
            let run = move || daemon.try_to_share(&name, &asked, handle, &base);
            if let Err(error) = std::thread::Builder::new().name("base".into()).spawn(run) {
                let error = DaemonError::conflict(
                    format!("cannot start a thread: {error}"),
                    "it is retried automatically",
                );
                self.base_attempts.end(disk.id, handle, Err(&error));
            }
        }
    }

    fn try_to_share(&self, name: &str, disk: &Disk, handle: DiskHandle, base: &str) {
        let shared = self.share_base(disk, handle, base);
        let is_new = self.base_attempts.end(disk.id, handle, shared.as_ref().map(|_| ()));
        match shared {
            Ok(bytes) => {
                tracing::info!(disk = name, base, bytes, "shares the blocks of its base");
                self.events.add("base-shared", name, format!("{} of disk '{base}'", Size(bytes).rounded()));
            }
            Err(error) if is_new && !is_passing(&error) => {
                tracing::warn!(disk = name, base, "does not share the blocks of its base: {error}");
                self.events.add("base-not-shared", name, error.to_string());
            }
            Err(_) => {}
        }
    }

    /// Makes a disk share the blocks of its base. Returns the number of bytes shared.
    fn share_base(&self, disk: &Disk, handle: DiskHandle, base: &str) -> Result<u64> {
        let config = disk.config();
        let backend = &self.pool(&config.pool)?.backend;
        let original = self.disk(base)?;
        let base_handle = original.attached()?;
        let base_config = original.config();
        check_base(&config, &base_config)?;
        let descent = Descent {
            origin: self.origin_spec(&config)?,
            sectors: disk.with(|inner| inner.sectors),
            phase: config.phase,
            base: self.origin_spec(&base_config)?,
            base_sectors: original.with(|inner| inner.sectors),
            layers: Layers::Asked,
        };
        let sharing = backend.share_base(handle, base_handle)?;
        // Ask the origin only now: the core already tracks changes.
        let blocks = layers(&config, &base_config, &descent)
            .and_then(|layers| Ok(Descent { layers, ..descent.clone() }.shared_blocks()?))
            .map_err(|error| if_written_since(error, &config, &base_config, &descent));
        let shared = blocks.and_then(|blocks| Ok(backend.share_blocks(handle, sharing, blocks)?));
        if shared.is_err() {
            backend.end_sharing(handle)?;
        }
        if !shared? {
            return Err(DaemonError::conflict(
                format!("disk '{}' was detached, moved or resized while its origin was queried", config.name),
                "it is retried automatically",
            ));
        }
        let blocks = backend.base_usage(handle)?.map_or(0, |usage| usage.shared_blocks);
        Ok(blocks * BLOCK_BYTES as u64)
    }

    /// Returns how an attached disk's origin is accessed.
    fn origin_spec(&self, config: &DiskConfig) -> Result<OriginSpec> {
        let origin = Origin::parse(&config.origin).map_err(DaemonError::Bad)?;
        let helper_uri = matches!(origin, Origin::Helper(_))
            .then(|| helper::uri(&helper::socket(&self.config.runtime_dir, &config.name)));
        Ok(origin.engine_spec(1, config.origin_tls.clone(), helper_uri))
    }
}

/// If the guest has written to the differing range since the origin was asked, replaces the error that the disk differs
/// from its base by one that is retried.
fn if_written_since(
    error: DaemonError,
    disk: &DiskConfig,
    base: &DiskConfig,
    descent: &Descent,
) -> DaemonError {
    let DaemonError::Engine(EngineError::OtherBase { offset_bytes, length_bytes, .. }) = &error else {
        return error;
    };
    // Checking both ends is enough: no range is shorter than the unit of comparison.
    let ends = [*offset_bytes, offset_bytes + length_bytes.saturating_sub(1)];
    match layers(disk, base, descent) {
        Ok(Layers::Told(ranges))
            if !ends.iter().all(|end| ranges.iter().any(|range| range.contains(end))) =>
        {
            let what =
                format!("byte {offset_bytes} of disk '{}' was written while it was compared", disk.name);
            DaemonError::conflict(what, "it is retried automatically")
        }
        _ => error,
    }
}

/// Returns how to find out which data of a disk comes from its base.
fn layers(disk: &DiskConfig, base: &DiskConfig, descent: &Descent) -> Result<Layers> {
    let (Origin::Helper(device), true) =
        (Origin::parse(&disk.origin).map_err(DaemonError::Bad)?, disk.origin.starts_with("rbd:"))
    else {
        return Ok(Layers::Asked);
    };
    let behind = match Origin::parse(&base.origin) {
        Ok(Origin::Helper(behind)) => behind,
        _ => BlockDevice { nodes: Vec::new() },
    };
    // Writes that the helper's client has acknowledged may be missing from the object map until a flush.
    descent.flush()?;
    let ranges = rbd::descent::shared_ranges(&device, &behind);
    ranges.map(Layers::Told).map_err(|why| {
        DaemonError::conflict(
            why,
            "see 'Disks made from one image' in origins.md, in /usr/share/doc/haversack",
        )
    })
}

/// Checks that a disk can be the base of another.
fn check_base(disk: &DiskConfig, base: &DiskConfig) -> Result<()> {
    let refuse = |what: String, todo: &'static str| Err(DaemonError::conflict(what, todo));
    let (name, base_name) = (&disk.name, &base.name);
    if !base.read_only {
        let what = format!("disk '{base_name}' is the base of '{name}', but it may be written");
        return refuse(what, "attach it with read_only = true");
    }
    if base.pool != disk.pool {
        let what =
            format!("disk '{name}' is in pool '{}', its base '{base_name}' in '{}'", disk.pool, base.pool);
        return refuse(what, "attach both in one pool");
    }
    let Some(image) = disk.origin.strip_prefix("qcow2:") else { return Ok(()) };
    let image = Path::new(image.strip_prefix("//").unwrap_or(image));
    let behind = backing_of(image).map_err(|error| {
        DaemonError::conflict(
            format!("{}: cannot read which image is behind it: {error}", image.display()),
            "check it",
        )
    })?;
    match behind {
        Some(behind) if Store::without_backing(&base.origin).uses(&behind) => Ok(()),
        Some(behind) => {
            let what = format!(
                "{} was made from {}, not from the image of disk '{base_name}', {}",
                image.display(),
                behind.display(),
                redact::text(&base.origin)
            );
            refuse(what, "name the disk of that image as base")
        }
        None => refuse(format!("{} has no image behind it", image.display()), "leave out base"),
    }
}

/// Returns the file behind a qcow2 image, if there is one.
fn backing_of(image: &Path) -> io::Result<Option<PathBuf>> {
    const MAGIC: &[u8; 4] = b"QFI\xfb";
    /// QEMU refuses longer names.
    const LONGEST: usize = 1023;
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let file = File::open(image)?;
    let mut head = [0; 20];
    file.read_exact_at(&mut head, 0)?;
    if &head[..4] != MAGIC {
        return Err(bad("it is not a qcow2 image".into()));
    }
    let offset = u64::from_be_bytes(head[8..16].try_into().expect("8 bytes"));
    let length = u32::from_be_bytes(head[16..20].try_into().expect("4 bytes")) as usize;
    if offset == 0 || length == 0 {
        return Ok(None);
    }
    if length > LONGEST {
        return Err(bad(format!(
            "the name of its backing file has {length} bytes, expected at most {LONGEST}"
        )));
    }
    let mut name = vec![0; length];
    file.read_exact_at(&mut name, offset)?;
    let name =
        String::from_utf8(name).map_err(|_| bad("the name of its backing file is not UTF-8".into()))?;
    let plain = name.strip_prefix("file:").unwrap_or(&name);
    if plain.starts_with("json:") || plain.contains("://") {
        return Err(bad(format!("its backing image is not a file: {name}")));
    }
    let beside = image.parent().unwrap_or(Path::new("/"));
    Ok(Some(beside.join(plain)))
}

/// Starts the thread.
///
/// # Errors
/// It cannot be started.
pub fn start(daemon: &Arc<Daemon>) -> io::Result<()> {
    let daemon = daemon.clone();
    let run = move || {
        // The thread ends with the process: nothing waits for it.
        while !daemon.is_stopping() {
            daemon.share_bases();
            std::thread::sleep(LOOK_EVERY);
        }
    };
    std::thread::Builder::new().name("bases".into()).spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use haversack_model::{ArenaNo, DiskNo};

    use super::*;

    /// Returns the header of a qcow2 image whose backing file has this name, stored at byte 100.
    fn image(name: &[u8], length: u32) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        bytes[8..16].copy_from_slice(&100_u64.to_be_bytes());
        bytes[16..20].copy_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(name);
        bytes
    }

    #[test]
    fn the_file_behind_an_image_is_in_its_head() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image.qcow2");
        let behind = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("written");
            backing_of(&path).map_err(|error| error.to_string())
        };
        assert_eq!(behind(&image(b"base.raw", 8)), Ok(Some(dir.path().join("base.raw"))));
        assert_eq!(behind(&image(b"/images/base", 12)), Ok(Some("/images/base".into())));
        assert_eq!(behind(&image(b"file:/images/base", 17)), Ok(Some("/images/base".into())));
        assert_eq!(behind(&image(b"", 0)), Ok(None));
        let expected = [
            (image(b"base", 5), "failed to fill whole buffer"),
            (image(b"base", 1 << 20), "1048576 bytes, expected at most 1023"),
            (image(b"\xff", 1), "not UTF-8"),
            (image(b"nbd://h/x", 9), "is not a file: nbd://h/x"),
            (b"raw".to_vec(), "failed to fill whole buffer"),
            (vec![0; 512], "not a qcow2 image"),
        ];
        for (bytes, why) in expected {
            let found = behind(&bytes).expect_err(why);
            assert!(found.contains(why), "{found}, expected {why}");
        }
    }

    fn handle(attachment: u32) -> DiskHandle {
        DiskHandle::new(ArenaNo(0), DiskNo(3), attachment)
    }

    #[test]
    fn the_end_of_an_earlier_attachment_does_not_end_the_attempt_of_a_later_one() {
        let (attempts, disk) = (Attempts::default(), DiskId([1; 16]));
        assert!(attempts.begin(disk, handle(1)) && attempts.begin(disk, handle(2)));
        let detached = DaemonError::Engine(EngineError::Detached);
        assert!(!attempts.end(disk, handle(1), Err(&detached)));
        assert!(!attempts.is_due(disk, handle(2)), "its origin is being asked");
        assert!(!attempts.end(disk, handle(1), Ok(())));
        assert!(!attempts.is_due(disk, handle(2)), "its origin is being asked");
        let error = DaemonError::Bad("no answer".into());
        assert!(attempts.end(disk, handle(2), Err(&error)) && attempts.begin(disk, handle(2)));
        assert!(attempts.problem(disk, handle(2)).is_some(), "it is shown until another attempt ends well");
        assert!(!attempts.end(disk, handle(2), Err(&error)), "it is the same problem");
        assert!(attempts.begin(disk, handle(2)) && !attempts.end(disk, handle(2), Ok(())));
        assert_eq!(attempts.problem(disk, handle(2)), None);
        assert!(attempts.is_due(disk, handle(3)), "the next attachment is looked at at once");
    }

    #[test]
    fn another_image_is_not_asked_again() {
        let (attempts, disk) = (Attempts::default(), DiskId([1; 16]));
        let other = DaemonError::Engine(EngineError::OtherBase {
            origin: "nbd://h/x".into(),
            offset_bytes: 0,
            length_bytes: 512,
        });
        assert!(attempts.begin(disk, handle(1)) && attempts.end(disk, handle(1), Err(&other)));
        let look_at = |attempts: &Attempts| match attempts.0.locked()[&disk].phase {
            Phase::Ended { look_at } => look_at,
            Phase::Asking => panic!("it has ended"),
        };
        assert_eq!(look_at(&attempts), None);
        assert!(attempts.begin(disk, handle(2)));
        attempts.end(disk, handle(2), Ok(()));
        assert!(look_at(&attempts).is_some(), "sharing may end, so it is looked at");
    }

    #[test]
    fn few_origins_are_asked_at_a_time() {
        let attempts = Attempts::default();
        let disk = |number: usize| DiskId([number as u8; 16]);
        assert!((0..MOST_AT_A_TIME).all(|number| attempts.begin(disk(number), handle(1))));
        assert!(!attempts.begin(disk(MOST_AT_A_TIME), handle(1)));
        attempts.end(disk(0), handle(1), Ok(()));
        assert!(attempts.begin(disk(MOST_AT_A_TIME), handle(1)));
    }

    #[test]
    fn a_base_is_read_only_and_in_the_same_pool() {
        let disk = DiskConfig::new("vm1", "main", "nbd://h/vm1");
        let base = DiskConfig { read_only: true, ..DiskConfig::new("golden", "main", "/golden.img") };
        check_base(&disk, &base).expect("it can be the base");
        let why = |base: &DiskConfig| check_base(&disk, base).expect_err("it cannot").to_string();
        assert!(why(&DiskConfig { read_only: false, ..base.clone() }).contains("may be written"));
        assert!(why(&DiskConfig { pool: "other".into(), ..base }).contains("in pool 'main', its base"));
    }
}
