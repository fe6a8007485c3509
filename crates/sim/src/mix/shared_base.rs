//! Disks that begin as copies of a base: a read of a block that its disk has not written yet is a read of the base's
//! block, so that one copy in the cache serves all of them; writes go to the disk itself. Nothing writes to a base.
//!
//! Source: vCacheShare (Meng et al., ATC'14), section 7.5: virtual desktops with shared master images.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use haversack_trace::{Access, Damage, Op, Source, TraceError, VolumeNo};

use super::is_of;
use crate::grid::Grids;

/// A source whose disks have bases: pairs of a disk and the name of its base.
pub struct SharedBase {
    source: Box<dyn Source>,
    bases: Vec<(String, String)>,
    names: Vec<String>,
    /// Of each volume of the source: its number here, and that of its base.
    numbers: Vec<(VolumeNo, Option<VolumeNo>)>,
    by_name: HashMap<String, VolumeNo>,
    written: HashSet<(VolumeNo, u64)>,
    grids: Grids,
    batch: Vec<Access>,
}

impl SharedBase {
    /// Plays a source with these bases. A base is a volume of the source, or exists only as a base.
    pub fn new(source: Box<dyn Source>, bases: Vec<(String, String)>, grids: Grids) -> SharedBase {
        SharedBase {
            source,
            bases,
            names: Vec::new(),
            numbers: Vec::new(),
            by_name: HashMap::new(),
            written: HashSet::new(),
            grids,
            batch: Vec::new(),
        }
    }

    fn number(&mut self, name: &str) -> VolumeNo {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let new = VolumeNo(self.names.len() as u32);
        self.names.push(name.into());
        self.by_name.insert(name.into(), new);
        new
    }

    /// Numbers the volumes that the source has named since.
    fn number_new(&mut self) {
        while let Some(name) = self.source.volumes().get(self.numbers.len()).cloned() {
            let base = self.bases.iter().find(|(disk, _)| is_of(&name, disk)).map(|(_, base)| base.clone());
            let own = self.number(&name);
            let base = base.map(|base| self.number(&base));
            self.numbers.push((own, base));
        }
        self.grids.name(&self.names);
    }

    fn take(&mut self, access: &Access, into: &mut Vec<Access>) {
        let (own, base) = self.numbers[access.volume.0 as usize];
        let access = Access { volume: own, ..*access };
        let Some(base) = base else { return into.push(access) };
        match access.op {
            Op::Read => self.split(&access, base, into),
            Op::Write | Op::Discard => {
                // A block written in part is copied from the base: all of it is the disk's from then on.
                self.written.extend(self.grids.blocks(&access).map(|block| (own, block)));
                into.push(access);
            }
            Op::Flush => into.push(access),
        }
    }

    /// Splits a read into runs of blocks of the disk and of its base.
    fn split(&self, access: &Access, base: VolumeNo, into: &mut Vec<Access>) {
        let start_bytes = |block| self.grids.start_bytes(access.volume, block);
        let end = access.offset_bytes + u64::from(access.length_bytes);
        let first = into.len();
        for block in self.grids.blocks(access) {
            let is_own = self.written.contains(&(access.volume, block));
            let volume = if is_own { access.volume } else { base };
            let from = access.offset_bytes.max(start_bytes(block));
            let length_bytes = (end.min(start_bytes(block + 1)) - from) as u32;
            match into[first..].last_mut() {
                Some(run) if run.volume == volume => run.length_bytes += length_bytes,
                _ => into.push(Access { volume, offset_bytes: from, length_bytes, ..*access }),
            }
        }
    }
}

impl Source for SharedBase {
    fn read(&mut self, into: &mut Vec<Access>) -> Result<usize, TraceError> {
        let before = into.len();
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        self.source.read(&mut batch)?;
        self.number_new();
        batch.iter().for_each(|access| self.take(access, into));
        self.batch = batch;
        Ok(into.len() - before)
    }

    fn volumes(&self) -> &[String] {
        &self.names
    }

    fn progress(&self) -> Option<f64> {
        self.source.progress()
    }

    fn is_timed(&self) -> bool {
        self.source.is_timed()
    }

    fn read_once(&self) -> Option<&Path> {
        self.source.read_once()
    }

    fn damage(&self) -> Damage {
        self.source.damage()
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::BLOCK_BYTES;
    use haversack_trace::MemorySource;

    use super::*;

    fn access(op: Op, block: u64, blocks: u32) -> Access {
        let bytes = BLOCK_BYTES as u64;
        Access { op, offset_bytes: block * bytes, length_bytes: blocks * 4096, ..Access::default() }
    }

    fn played(accesses: Vec<Access>) -> Vec<(String, u64, u32)> {
        let source = Box::new(MemorySource::of_one("clone", accesses));
        let grids = Grids::new(BLOCK_BYTES as u64, 0, Vec::new());
        let mut shared = SharedBase::new(source, vec![("clone".into(), "golden".into())], grids);
        let mut read = Vec::new();
        while shared.read(&mut read).unwrap() > 0 {}
        let name = |access: &Access| shared.volumes()[access.volume.0 as usize].clone();
        let place = |access: &Access| (name(access), access.offset_bytes / 4096, access.length_bytes / 4096);
        read.iter().map(place).collect()
    }

    #[test]
    fn blocks_are_the_base_s_until_they_are_written() {
        let played = played(vec![
            access(Op::Read, 0, 4),
            access(Op::Write, 1, 1),
            access(Op::Read, 0, 4),
            access(Op::Read, 1, 1),
        ]);
        let of = |name: &str, block, blocks| (name.to_string(), block, blocks);
        assert_eq!(
            played,
            [
                of("golden", 0, 4),
                of("clone", 1, 1),
                of("golden", 0, 1),
                of("clone", 1, 1),
                of("golden", 2, 2),
                of("clone", 1, 1),
            ]
        );
    }
}
