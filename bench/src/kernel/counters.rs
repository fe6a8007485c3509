//! What a contender has counted since it was set up, apart from times.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

use haversack_e2e::Guest;

use super::contenders::{Contender, DISK, Hosts, Kind};
use super::{Failure, caches};

/// The sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Reads of the load that the cache answered.
    pub hits: u64,
    /// Reads of the load that it did not.
    pub misses: u64,
    /// What the origin was asked.
    pub origin: Origin,
    /// Bytes written to the cache device.
    pub flash_bytes: u64,
}

/// Requests of an origin.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Origin {
    /// Read requests.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
}

impl Counters {
    /// What a contender has counted so far.
    ///
    /// # Errors
    /// If the guest, the daemon or the log does not tell.
    pub fn of(
        hosts: &Hosts,
        guest: &mut Guest,
        contender: &Contender,
        log: &mut Log,
    ) -> Result<Counters, Failure> {
        log.read_on(&contender.log)?;
        let origin = log.origin;
        if contender.kind == Kind::Haversack {
            return haversack(hosts, origin);
        }
        let [hits, misses] = caches::reads(guest, contender)?.unwrap_or_default();
        let flash_bytes = match &contender.cache {
            Some(disk) => caches::written_bytes(guest, disk)?,
            None => 0,
        };
        Ok(Counters { hits, misses, origin, flash_bytes })
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        let (now, then) = (&self.origin, &before.origin);
        Counters {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            origin: Origin {
                reads: now.reads - then.reads,
                read_bytes: now.read_bytes - then.read_bytes,
                writes: now.writes - then.writes,
                written_bytes: now.written_bytes - then.written_bytes,
            },
            flash_bytes: self.flash_bytes.saturating_sub(before.flash_bytes),
        }
    }
}

fn haversack(hosts: &Hosts, origin: Origin) -> Result<Counters, Failure> {
    let disk = hosts.daemon.json(&["disk", "show", DISK])?;
    let pool = hosts.daemon.json(&["pool", "status", &hosts.daemon.pool()])?;
    let number = |key: &str| {
        disk["requests"][key].as_u64().ok_or_else(|| format!("'haversack disk show' does not tell {key}"))
    };
    let written = pool["devices"][0]["written_bytes"].as_u64();
    let flash_bytes = written.ok_or("'haversack pool status' does not tell written_bytes")?;
    Ok(Counters { hits: number("read_hits")?, misses: number("read_misses")?, origin, flash_bytes })
}

/// The log of an origin's requests, read up to some place.
#[derive(Default, Debug)]
pub struct Log {
    /// The requests so far.
    origin: Origin,
    end: u64,
}

impl Log {
    /// Counts the lines that were added since the last time.
    fn read_on(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.end))?;
        let mut lines = BufReader::new(file);
        let mut line = String::new();
        // A line that is being written is left for the next time.
        while lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
            self.origin.count(&line);
            self.end += line.len() as u64;
            line.clear();
        }
        Ok(())
    }
}

impl Origin {
    /// Counts a line of nbdkit's log, if it is the begin of a read or a write.
    fn count(&mut self, line: &str) {
        let bytes = || {
            let digits = line.split_once("count=0x")?.1.split(' ').next()?;
            u64::from_str_radix(digits.trim(), 16).ok()
        };
        if line.contains(" Read id=") {
            self.reads += 1;
            self.read_bytes += bytes().unwrap_or(0);
        } else if line.contains(" Write id=") {
            self.writes += 1;
            self.written_bytes += bytes().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_nbdkit_is_understood() {
        let mut origin = Origin::default();
        for line in [
            "2026-01-01 02:07:23.080415 connection=1 Connect export=\"\" tls=0 size=0x10000000",
            "2026-01-01 02:07:23.080500 connection=1 Read id=1 offset=0x0 count=0x1000 ...",
            "2026-01-01 02:07:23.080600 connection=1 ...Read id=1 return=0",
            "2026-01-01 02:07:23.080700 connection=1 Write id=2 offset=0x2000 count=0x8000 fua=0 ...",
            "2026-01-01 02:07:23.080800 connection=1 ...Write id=2 return=0",
        ] {
            origin.count(line);
        }
        assert_eq!(origin, Origin { reads: 1, read_bytes: 4096, writes: 1, written_bytes: 32768 });
    }
}
