//! Setting up the kernel's caches in the guest, and what they count.

use haversack_e2e::{Guest, MIB};

use super::contenders::{Contender, Kind};
use super::{CACHE_MIB, DISK_MIB, Failure};

const SECTOR_BYTES: u64 = 512;
/// Where dm-cache has its metadata, at the start of its cache device: as much as LVM gives to a small cache.
const METADATA_SECTORS: u64 = 8 * MIB / SECTOR_BYTES;
/// dm-cache's block: the smallest that it allows, which suits small requests best.
const DM_CACHE_BLOCK_SECTORS: u64 = 64;
/// bcache's bucket: a quarter of its default, so that the small cache has 1024 of them.
const BUCKET: &str = "128k";

/// Sets up a contender's device.
///
/// # Errors
/// What the guest answers.
pub fn set_up(guest: &mut Guest, contender: &Contender) -> Result<(), Failure> {
    let Contender { kind, disk, cache, .. } = contender;
    let cache = cache.as_deref().unwrap_or_default();
    match kind {
        Kind::Haversack | Kind::Bare => Ok(()),
        Kind::DmCache => dm_cache(guest, disk, cache),
        Kind::Writecache => writecache(guest, disk, cache),
        Kind::Bcache => bcache(guest, disk, cache),
    }
}

fn ask(guest: &mut Guest, command: &str) -> Result<String, Failure> {
    Ok(guest.ask(command)?.to_string())
}

/// Makes a device of a table's line.
fn map(guest: &mut Guest, name: &str, line: &str) -> Result<(), Failure> {
    ask(guest, &format!("put /tmp/table {line}"))?;
    ask(guest, &format!("tool dmsetup create --noudevsync {name} /tmp/table"))?;
    // The guest has no udev, which would do it.
    ask(guest, &format!("tool dmsetup mknodes {name}")).map(drop)
}

fn disk_sectors() -> u64 {
    DISK_MIB * MIB / SECTOR_BYTES
}

fn dm_cache(guest: &mut Guest, origin: &str, cache: &str) -> Result<(), Failure> {
    ask(guest, "modules peers")?;
    let data = CACHE_MIB * MIB / SECTOR_BYTES - METADATA_SECTORS;
    map(guest, "metadata", &format!("0 {METADATA_SECTORS} linear /dev/{cache} 0"))?;
    map(guest, "blocks", &format!("0 {data} linear /dev/{cache} {METADATA_SECTORS}"))?;
    let line = format!(
        "0 {} cache /dev/mapper/metadata /dev/mapper/blocks /dev/{origin} {DM_CACHE_BLOCK_SECTORS} \
         2 metadata2 writeback smq 0",
        disk_sectors()
    );
    map(guest, "dmcache", &line)
}

fn writecache(guest: &mut Guest, origin: &str, cache: &str) -> Result<(), Failure> {
    ask(guest, "modules peers")?;
    let line = format!("0 {} writecache s /dev/{origin} /dev/{cache} 4096 0", disk_sectors());
    map(guest, "writecache", &line)
}

/// Everything is cached: no request is sequential, and the cache device is never too slow.
fn bcache(guest: &mut Guest, origin: &str, cache: &str) -> Result<(), Failure> {
    ask(guest, "modules peers")?;
    let tool = format!("tool make-bcache --writeback --bucket {BUCKET} -C /dev/{cache} -B /dev/{origin}");
    ask(guest, &tool)?;
    for disk in [cache, origin] {
        ask(guest, &format!("put /sys/fs/bcache/register /dev/{disk}"))?;
    }
    let settings = [
        ("sequential_cutoff", "0"),
        ("cache_mode", "writeback"),
        ("cache/congested_read_threshold_us", "0"),
        ("cache/congested_write_threshold_us", "0"),
    ];
    for (file, value) in settings {
        ask(guest, &format!("put /sys/block/bcache0/bcache/{file} {value}"))?;
    }
    Ok(())
}

/// Read requests that a cache of the kernel has answered, and those of them that it had to ask its origin for; none for
/// what is no cache of the kernel.
///
/// # Errors
/// What the guest answers, or that it is not understood.
pub fn reads(guest: &mut Guest, contender: &Contender) -> Result<Option<[u64; 2]>, Failure> {
    match contender.kind {
        Kind::Haversack | Kind::Bare => Ok(None),
        Kind::DmCache => {
            let status = ask(guest, "tool dmsetup status dmcache")?;
            // Start, length, `cache`, block of the metadata, its usage, block, usage, hits, misses.
            Ok(Some([word(&status, 7)?, word(&status, 8)?]))
        }
        Kind::Writecache => {
            let status = ask(guest, "tool dmsetup status writecache")?;
            // Start, length, `writecache`, error, blocks, free, written back, reads, hits of them.
            let [all, hits] = [word(&status, 7)?, word(&status, 8)?];
            Ok(Some([hits, all.saturating_sub(hits)]))
        }
        Kind::Bcache => {
            let total = "get /sys/block/bcache0/bcache/stats_total/cache";
            let [hits, misses] =
                [ask(guest, &format!("{total}_hits"))?, ask(guest, &format!("{total}_misses"))?];
            Ok(Some([word(&hits, 0)?, word(&misses, 0)?]))
        }
    }
}

/// Bytes written to a disk of the guest.
///
/// # Errors
/// What the guest answers, or that it is not understood.
pub fn written_bytes(guest: &mut Guest, disk: &str) -> Result<u64, Failure> {
    let stat = ask(guest, &format!("get /sys/block/{disk}/stat"))?;
    Ok(word(&stat, 6)? * SECTOR_BYTES)
}

/// A number in a line of words.
fn word(line: &str, at: usize) -> Result<u64, Failure> {
    let found = line.split_whitespace().nth(at).and_then(|word| word.parse().ok());
    Ok(found.ok_or_else(|| format!("no number in place {at} of: {line}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_status_are_numbers() {
        let status = "0 524288 cache 8 27/2048 64 5/3840 17 3 0 0 0 5 0";
        assert_eq!((word(status, 7).ok(), word(status, 8).ok()), (Some(17), Some(3)));
        assert!(word(status, 2).is_err() && word(status, 40).is_err());
    }
}
