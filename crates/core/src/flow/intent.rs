//! The write-intent bitmap: the regions of a disk where the origin may have newer data than the clean blocks
//! on flash.
//!
//! Before the origin is written past the cache, the region is marked durably. Recovery drops the clean blocks
//! of marked regions. Marks are cleared periodically: new writes are marked in a fresh map, the origin is
//! flushed, the pages that list overtaken content are rewritten, and then the fresh map replaces the old one.
//!
//! Invariants
//! - A region is marked durably before a write past the cache to it is started.
//! - A mark is cleared only when the origin is durable and no durable page lists overtaken content.

pub(crate) mod map;

use haversack_model::{BlockNo, DiskNo};

use super::request::AroundPhase;
use crate::bugs::{Bug, planted};
use crate::config::Persistence;
use crate::core::{Call, Core};
use crate::format::geometry;
use crate::format::page::{self, Header, Kind, Place};
use crate::io::{Io, OriginFlushReason, Purpose};
use crate::media::IoFailure;
use crate::memory::Memory;
use map::{Clearing, add, has, no_regions, set};

impl Core {
    /// Whether the block's region is durably marked, so that the origin may be written past the cache there.
    /// Requests the mark if it is not.
    pub(crate) fn intent_marked(&mut self, disk: DiskNo, block: BlockNo) -> bool {
        let no_devices = self.alive_devices().next().is_none();
        let d = self.disk_mut(disk);
        if d.persistence != Persistence::All || no_devices || planted(Bug::SkipIntent) {
            return true;
        }
        let map = &mut d.intents;
        if map.filling {
            return false;
        }
        let region = map.region(block);
        if map.clearing != Clearing::No {
            set(&mut map.fresh, region);
            // The page in flight may lack the mark.
            if map.clearing == Clearing::Write && !has(&map.on_page, region) {
                set(&mut map.wanted, region);
                map.any_wanted = true;
                return false;
            }
        }
        if has(&map.marked, region) {
            return true;
        }
        set(&mut map.wanted, region);
        map.any_wanted = true;
        false
    }
}

impl<M: Memory> Call<'_, M> {
    pub(crate) fn drive_intents(&mut self, disk: DiskNo) {
        self.finish_intent_write(disk);
        self.clear_intents(disk);
        let map = &self.disk(disk).intents;
        if map.any_wanted && !map.is_being_written() && map.clearing != Clearing::Write {
            let map = &mut self.disk_mut(disk).intents;
            let mut page = map.marked.clone();
            add(&mut page, &map.wanted);
            map.on_page = page;
            self.write_intents(disk);
        }
    }

    fn write_intents(&mut self, disk: DiskNo) {
        let devices: Vec<_> = self.alive_devices().collect();
        if !self.frames.suffices(devices.len()) || devices.is_empty() {
            if self.disk(disk).intents.clearing == Clearing::Write {
                self.disk_mut(disk).intents.clearing = Clearing::Rewrite;
            }
            return;
        }
        let seq = self.durability.take(devices.len() as u32);
        let map = &mut self.disk_mut(disk).intents;
        map.generation += 1;
        map.again = false;
        (map.writing, map.written_seq) = (devices.len() as u32, Some(seq));
        let (generation, content) = (map.generation, map.on_page.clone());
        let header = Header {
            generation,
            flushed_seq: self.durability.mark(),
            owner: disk.0,
            kind: Kind::Intent,
            opening: self.durability.record.opening(),
        };
        let offset_bytes = geometry::intent_bytes(disk, generation);
        for device in devices {
            let frame = self.frames.take().expect("frames were counted");
            let place = Place { device_seed: self.devices.seed(device), offset_bytes };
            page::seal(self.memory.frame_mut(frame), header, &content[..], place);
            let io = self.new_io(Purpose::Intent { seq });
            self.ios[io].disk = Some(disk);
            self.ios[io].frames.push(frame);
            self.write_device(io, device, offset_bytes);
            self.disk_mut(disk).stats.flash_intent_pages += 1;
        }
    }

    pub(crate) fn intent_done(&mut self, io: &Io, seq: u64, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("a map is of a disk");
        self.free_frame(io.frames[0], false);
        if result.is_err() {
            self.device_failed(io.device.expect("a map is on a device"));
        }
        self.sequence_done(seq);
        self.disk_mut(disk).intents.writing -= 1;
        self.durability.want(seq);
        self.queue(disk);
    }

    fn finish_intent_write(&mut self, disk: DiskNo) {
        let flushed_seq = self.durability.flushed();
        let (now, every) = (self.now, self.config.intent_clear_us);
        let map = &mut self.disk_mut(disk).intents;
        let every = if map.soon { 0 } else { every };
        let durable = map.writing == 0 && map.written_seq.is_some_and(|seq| seq <= flushed_seq);
        if !durable {
            if map.writing == 0
                && let Some(seq) = map.written_seq
            {
                self.durability.want(seq);
            }
            return;
        }
        map.written_seq = None;
        if !map.any_marked {
            map.next_clear_us = now + every;
        }
        map.marked = map.on_page.clone();
        if map.clearing == Clearing::Write {
            map.clearing = Clearing::No;
            map.next_clear_us = now + every;
        }
        for (wanted, marked) in map.wanted.iter_mut().zip(map.marked.iter()) {
            *wanted &= !marked;
        }
        map.any_wanted = map.again || map.wanted.iter().any(|b| *b != 0);
        map.any_marked = map.marked.iter().any(|b| *b != 0);
        map.filling &= map.any_wanted;
        self.wake_around(disk);
    }

    fn clear_intents(&mut self, disk: DiskNo) {
        let now = self.now;
        let d = self.disk(disk);
        let map = &d.intents;
        match map.clearing {
            Clearing::No => {
                // While the size changes, recovery may read the map with the region size of the other disk
                // size.
                let resizes = d.job.as_ref().is_some_and(|job| job.resizes_to().is_some());
                let due = map.any_marked && map.next_clear_us <= now && !resizes && !self.pool.rests();
                if due && d.life.writes_origin() && map.idle() && self.alive_devices().next().is_some() {
                    self.start_clearing(disk);
                }
            }
            Clearing::FlushOrigin => {}
            Clearing::Rewrite => self.rewrite_stale(disk),
            Clearing::Write => {}
        }
    }

    fn start_clearing(&mut self, disk: DiskNo) {
        let mut fresh = no_regions();
        for (_, request) in self.requests.iter().filter(|(_, r)| r.disk == disk) {
            if request.phase != AroundPhase::Check {
                let map = &self.disk(disk).intents;
                for block in request.next..request.next + request.window {
                    set(&mut fresh, map.region(BlockNo(block)));
                }
            }
        }
        let d = self.disk_mut(disk);
        for block in d.cleaner.staged_blocks() {
            set(&mut fresh, d.intents.region(block));
        }
        let map = &mut d.intents;
        map.fresh = fresh;
        if planted(Bug::ClearIntentEarly) {
            map.clearing = Clearing::Write;
            map.on_page = map.fresh.clone();
            self.write_intents(disk);
            return;
        }
        map.clearing = Clearing::FlushOrigin;
        self.flush_origin(OriginFlushReason::Intent, disk);
    }

    pub(crate) fn intent_flush_done(&mut self, io: &Io, result: Result<(), IoFailure>) {
        let disk = io.disk.expect("the flush is of a disk");
        if result.is_err() {
            self.give_up_clearing(disk);
        } else {
            self.collect_stale(disk);
            self.disk_mut(disk).intents.clearing = Clearing::Rewrite;
        }
        self.queue(disk);
    }

    fn give_up_clearing(&mut self, disk: DiskNo) {
        let retry = self.now + self.config.clean_retry_us;
        let map = &mut self.disk_mut(disk).intents;
        map.clearing = Clearing::No;
        map.next_clear_us = retry;
        map.failures += 1;
    }

    fn collect_stale(&mut self, disk: DiskNo) {
        let flushed_seq = self.durability.flushed();
        let mut list = std::mem::take(&mut self.disk_mut(disk).intents.stale);
        list.clear();
        for segment in &self.store.disks[disk].segments {
            let s = &self.store.segments[*segment];
            if s.stale {
                list.push((*segment, None));
            } else if !s.page_ready(flushed_seq) {
                list.push((*segment, Some(s.page_seq)));
            }
        }
        self.disk_mut(disk).intents.stale = list;
    }

    /// Rewrites each page that lists overtaken content and then, when all of that is durable, the map.
    fn rewrite_stale(&mut self, disk: DiskNo) {
        let mut left = std::mem::take(&mut self.disk_mut(disk).intents.stale);
        let flushed_seq = self.durability.flushed();
        left.retain_mut(|(segment, seq)| {
            let s = &self.store.segments[*segment];
            if seq.is_none() && !s.stale {
                // The page was already rewritten for another reason.
                *seq = Some(s.page_seq);
            }
            if s.owner != disk.0 || seq.is_some_and(|seq| seq <= flushed_seq) {
                return false;
            }
            let page_seq = s.page_seq;
            if seq.is_some() || !s.page_ready(flushed_seq) {
                self.durability.want(page_seq);
            } else if self.shrink_page(*segment) {
                let s = &self.store.segments[*segment];
                *seq = (!s.stale).then_some(s.page_seq);
            }
            true
        });
        let map = &mut self.disk_mut(disk).intents;
        let done = left.is_empty() && !map.is_being_written();
        map.stale = left;
        if done {
            map.clearing = Clearing::Write;
            map.on_page = map.fresh.clone();
            add(&mut map.on_page, &map.wanted);
            self.write_intents(disk);
        }
    }
}
