//! Whether an origin is as some flush of the guest left it, plus some of the writes after that flush.

use super::{Oracle, Tick};
use crate::pattern::{Content, Version};

impl Oracle {
    /// Checks the content of an origin whose blocks are cleaned in the order of the guest's flushes: if it has anything
    /// that was written after a flush, it has everything that was acknowledged before that flush.
    ///
    /// # Errors
    /// A sector that is older.
    pub fn check_order(&self, disk: usize, contents: &[Content]) -> Result<(), String> {
        let d = &self.disks[disk];
        let contents: Vec<Content> = contents.iter().map(|content| self.of_disk(disk, *content)).collect();
        let zeroed = self.first_zeroes(disk, contents.len());
        let newest = contents.iter().zip(zeroed).filter_map(|(content, zeroed)| match content {
            Content::Data { version, .. } => self.writes.get(*version as usize).map(|write| write.start),
            _ => zeroed,
        });
        let newest = newest.max().unwrap_or(0);
        let before = d.flushes.iter().filter(|(begin, end)| *end < newest && *begin > d.ordered_since);
        let Some(flush) = before.map(|(begin, _)| *begin).max() else { return Ok(()) };
        let covered = self.last_writes_before(disk, contents.len(), flush);
        for (at, (content, last)) in contents.iter().zip(covered).enumerate() {
            let Some(last) = last else { continue };
            if !self.is_as_new_as(disk, at as u64, *content, last) {
                return Err(format!(
                    "disk {disk} sector {at}: the origin holds {content}, older than write {last}, which was flushed at \
                     {flush}, and elsewhere a write that began at {newest}"
                ));
            }
        }
        Ok(())
    }

    /// Called when a power cut may have lost what no flush covers.
    pub(super) fn lose_unflushed(&mut self) {
        let flushed = |disk: &super::Disk| disk.flushes.iter().map(|(begin, _)| *begin).max().unwrap_or(0);
        let flushed: Vec<Tick> = self.disks.iter().map(flushed).collect();
        for write in &mut self.writes {
            let until = flushed.get(usize::from(write.disk)).copied().unwrap_or(Tick::MAX);
            write.acknowledged &= write.end < until;
        }
    }

    /// Returns the last write of each sector that was acknowledged by this time.
    fn last_writes_before(&self, disk: usize, sectors: usize, time: Tick) -> Vec<Option<Version>> {
        let mut last = vec![None; sectors];
        let since = self.disks[disk].ordered_since;
        for (version, write) in self.writes.iter().enumerate() {
            let counts = write.acknowledged && write.start > since && write.end < time;
            if usize::from(write.disk) == disk && counts {
                let end = (write.sector as usize + write.sectors as usize).min(sectors);
                let first = (write.sector as usize).min(end);
                last[first..end].fill(Some(version as Version));
            }
        }
        last
    }

    fn is_as_new_as(&self, disk: usize, at: u64, content: Content, last: Version) -> bool {
        let start = self.writes[last as usize].start;
        match content {
            Content::Zero => self.was_zeroed_since(start, disk, at),
            Content::Data { disk: of, sector, version } => {
                let write = self.writes.get(version as usize).filter(|write| write.end >= start);
                usize::from(of) == disk && sector == at && write.is_some()
            }
            _ => false,
        }
    }

    /// Returns, for each sector that was not zero at first, when the first write began that made it zero.
    fn first_zeroes(&self, disk: usize, sectors: usize) -> Vec<Option<Tick>> {
        let mut first = vec![None; sectors];
        let d = &self.disks[disk];
        if self.writes[d.first as usize].zero || d.is_resized {
            return first;
        }
        for write in self.writes.iter().rev() {
            if usize::from(write.disk) == disk && write.zero && write.sectors > 0 {
                let end = (write.sector as usize + write.sectors as usize).min(sectors);
                first[(write.sector as usize).min(end)..end].fill(Some(write.start));
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn write(oracle: &mut Oracle, sector: u64) -> Version {
        let version = oracle.new_version(0, sector, 1, false);
        oracle.begin_write(version);
        oracle.end_write(version, Outcome::Done);
        version
    }

    fn data(sector: u64, version: Version) -> Content {
        Content::Data { disk: 0, sector, version }
    }

    #[test]
    fn nothing_of_a_later_group_is_there_before_all_of_an_earlier_one() {
        let mut oracle = Oracle::default();
        oracle.add_disk(3, true);
        let early = [write(&mut oracle, 0), write(&mut oracle, 1)];
        let flush = oracle.begin_flush();
        oracle.end_flush(0, flush);
        let late = write(&mut oracle, 1);
        let check = |contents: [Content; 3]| oracle.check_order(0, &contents).is_ok();
        assert!(check([Content::Zero, data(1, early[1]), Content::Zero]));
        assert!(check([data(0, early[0]), data(1, late), Content::Zero]));
        assert!(!check([Content::Zero, data(1, late), Content::Zero]));
    }

    #[test]
    fn writes_that_a_flush_does_not_separate_come_in_any_order() {
        let mut oracle = Oracle::default();
        oracle.add_disk(2, true);
        let flush = oracle.begin_flush();
        write(&mut oracle, 0);
        oracle.end_flush(0, flush);
        let late = write(&mut oracle, 1);
        assert!(oracle.check_order(0, &[Content::Zero, data(1, late)]).is_ok());
    }
}
