//! Sequential cut-off: requests that continue a long run go past the cache, as in bcache and Open CAS.

const STREAMS: usize = 16;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// The sector that would continue the run.
    next_sector: u64,
    /// Length of the run so far; 0: unused.
    run_bytes: u64,
    /// Value of `clock` when it was last used.
    used: u64,
}

/// The last few sequential streams of a disk.
#[derive(Default)]
pub struct Sequential {
    streams: [Stream; STREAMS],
    /// Requests noted so far.
    clock: u64,
}

impl Sequential {
    /// Records a request; returns the bytes of its run so far, itself included.
    pub fn note(&mut self, sector: u64, sectors: u32) -> u64 {
        self.clock += 1;
        let bytes = u64::from(sectors) * haversack_model::SECTOR_BYTES as u64;
        let known = self.streams.iter().position(|s| s.run_bytes > 0 && s.next_sector == sector);
        let at = known.unwrap_or_else(|| {
            let oldest = self.streams.iter().enumerate().min_by_key(|(_, s)| s.used);
            oldest.map_or(0, |(at, _)| at)
        });
        let stream = &mut self.streams[at];
        let before = if known.is_some() { stream.run_bytes } else { 0 };
        *stream =
            Stream { next_sector: sector + u64::from(sectors), run_bytes: before + bytes, used: self.clock };
        stream.run_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_interleaved_runs_are_both_detected() {
        let mut streams = Sequential::default();
        assert_eq!(streams.note(0, 8), 4096);
        assert_eq!(streams.note(1000, 8), 4096);
        assert_eq!(streams.note(8, 8), 8192);
        assert_eq!(streams.note(1008, 16), 12288);
        assert_eq!(streams.note(500, 8), 4096);
    }
}
