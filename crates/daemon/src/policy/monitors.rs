//! The disks of a pool that are recorded, and who wants to know: the policy, a question for a curve, a trace.
//!
//! Invariants
//! - A disk is recorded only while somebody wants to know.
//! - Buffers are swapped, not copied. They are taken more often the fuller they are found.

use std::collections::BTreeMap;
use std::time::Duration;

use haversack_control::{Counters, Observer, ObserverConfig};
use haversack_core::{MonitorConfig, Records};
use haversack_engine::error::Result;
use haversack_model::{DiskHandle, Micros};
use haversack_policy::{DiskWindow, PolicyError};

use crate::backend::Backend;

use super::recording::Recording;

/// Records of a buffer; a disk has two.
const RECORDS: usize = 16_384;
/// Blocks of a sample of somebody who asks for a curve.
const SAMPLE_BLOCKS: usize = 1024;
/// The longest time between two looks.
const SLOWEST_US: Micros = 1_000_000;
/// The shortest: a buffer holds what 800,000 requests a second leave in it.
const FASTEST_US: Micros = 20_000;
/// How long a curve can still be asked for when its time is over.
const PATIENCE_US: Micros = 60_000_000;

/// A curve that somebody asked for without a policy that measures.
struct Asked {
    observer: Observer,
    until_us: Micros,
}

/// A disk that is recorded.
struct Monitored {
    disk: DiskHandle,
    /// The buffer that is swapped in next.
    spare: Records,
    by_policy: bool,
    asked: Option<Asked>,
    recordings: Vec<Recording>,
    lost: u64,
}

impl Monitored {
    fn is_wanted(&self) -> bool {
        self.by_policy || self.asked.is_some() || !self.recordings.is_empty()
    }

    fn note(&mut self, name: &str) {
        let records = &self.spare;
        self.lost += records.lost();
        if let Some(asked) = &mut self.asked {
            asked.observer.note(records);
        }
        self.recordings.retain_mut(|recording| recording.note(name, records));
    }
}

/// See the module documentation.
pub struct Monitors {
    disks: BTreeMap<String, Monitored>,
    pace_us: Micros,
}

impl Default for Monitors {
    fn default() -> Self {
        Monitors { disks: BTreeMap::new(), pace_us: SLOWEST_US }
    }
}

impl Monitors {
    fn begin(&mut self, backend: &dyn Backend, name: &str, disk: DiskHandle) -> Result<&mut Monitored> {
        if self.disks.get(name).is_some_and(|monitored| monitored.disk != disk) {
            // The disk was detached and attached again: what was recorded ended with it.
            self.forget(backend, name);
        }
        if !self.disks.contains_key(name) {
            backend.set_monitor(disk, Some(MonitorConfig { records: RECORDS, sample_shift: 0 }))?;
            let spare = Records::with_room(RECORDS);
            let (asked, recordings) = (None, Vec::new());
            let fresh = Monitored { disk, spare, by_policy: false, asked, recordings, lost: 0 };
            self.disks.insert(name.into(), fresh);
        }
        Ok(self.disks.get_mut(name).expect("just put there"))
    }

    /// Records a disk for the policy, or no more.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn for_policy(
        &mut self,
        backend: &dyn Backend,
        name: &str,
        disk: DiskHandle,
        wanted: bool,
    ) -> Result<()> {
        if wanted {
            self.begin(backend, name, disk)?.by_policy = true;
        } else if let Some(monitored) = self.disks.get_mut(name) {
            monitored.by_policy = false;
        }
        self.drop_unwanted(backend);
        Ok(())
    }

    /// Observes a disk for somebody who wants its curve.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn ask(
        &mut self,
        backend: &dyn Backend,
        (name, disk, disk_blocks): (&str, DiskHandle, u64),
        (now_us, time): (Micros, Duration),
        counters: &Counters,
    ) -> Result<std::result::Result<(), PolicyError>> {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).saturating_add(PATIENCE_US);
        let config = ObserverConfig {
            window_us: time_us,
            measurement_us: time_us,
            sample_blocks: SAMPLE_BLOCKS,
            touches: false,
        };
        let observer = match Observer::new(config, now_us, disk_blocks, counters) {
            Ok(observer) => observer,
            Err(error) => return Ok(Err(error)),
        };
        let until_us = now_us.saturating_add(time_us);
        self.begin(backend, name, disk)?.asked = Some(Asked { observer, until_us });
        Ok(Ok(()))
    }

    /// What was observed so far for somebody who wanted a curve, and how many records were lost.
    pub fn asked(&self, name: &str, now_us: Micros, counters: &Counters) -> Option<(DiskWindow, u64)> {
        let asked = self.disks.get(name)?.asked.as_ref()?;
        Some((asked.observer.window(now_us, counters), asked.observer.lost()))
    }

    /// Adds a recording.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn record(
        &mut self,
        backend: &dyn Backend,
        name: &str,
        disk: DiskHandle,
        recording: Recording,
    ) -> Result<()> {
        self.begin(backend, name, disk)?.recordings.push(recording);
        Ok(())
    }

    /// A disk is gone: its recordings end.
    pub fn forget(&mut self, backend: &dyn Backend, name: &str) {
        if let Some(mut gone) = self.disks.remove(name) {
            gone.recordings.drain(..).for_each(Recording::finish);
            end(backend, &gone);
        }
    }

    /// Takes what was recorded, and shows it to whoever wants to know; the policy through `note`.
    ///
    /// # Errors
    /// The pool has stopped.
    pub fn take(
        &mut self,
        backend: &dyn Backend,
        now_us: Micros,
        mut note: impl FnMut(&str, &Records),
    ) -> Result<()> {
        if self.disks.is_empty() {
            return Ok(());
        }
        let buffers = self.disks.values_mut().map(|m| (m.disk, std::mem::take(&mut m.spare))).collect();
        let taken = backend.take_records(buffers)?;
        let mut fullest = 0.0f64;
        for ((name, monitored), (_, records)) in self.disks.iter_mut().zip(taken) {
            fullest = fullest.max(records.fill());
            monitored.spare = records;
            if monitored.by_policy {
                note(name, &monitored.spare);
            }
            monitored.note(name);
            let (over, on) = std::mem::take(&mut monitored.recordings)
                .into_iter()
                .partition(|recording| recording.until_us() <= now_us);
            monitored.recordings = on;
            over.into_iter().for_each(Recording::finish);
            monitored.asked.take_if(|asked| asked.until_us <= now_us);
        }
        self.pace_us = match fullest {
            full if full > 0.5 => (self.pace_us / 4).max(FASTEST_US),
            full if full < 0.1 => (self.pace_us * 2).min(SLOWEST_US),
            _ => self.pace_us,
        };
        self.drop_unwanted(backend);
        Ok(())
    }

    fn drop_unwanted(&mut self, backend: &dyn Backend) {
        self.disks.retain(|_, monitored| {
            let wanted = monitored.is_wanted();
            if !wanted {
                end(backend, monitored);
            }
            wanted
        });
    }

    /// When records are to be taken next; none if nothing is recorded.
    pub fn due_us(&self, now_us: Micros) -> Option<Micros> {
        let ends = |monitored: &Monitored| monitored.recordings.iter().map(Recording::until_us).min();
        let first = self.disks.values().filter_map(ends).min();
        (!self.disks.is_empty()).then(|| first.unwrap_or(u64::MAX).min(now_us + self.pace_us).max(now_us))
    }

    /// Records of a disk that were lost since this was last asked.
    pub fn take_lost(&mut self, name: &str) -> u64 {
        self.disks.get_mut(name).map_or(0, |monitored| std::mem::take(&mut monitored.lost))
    }
}

/// Recording ends. A pool that has stopped records nothing anyway.
fn end(backend: &dyn Backend, monitored: &Monitored) {
    if let Err(error) = backend.set_monitor(monitored.disk, None) {
        tracing::debug!("recording is not ended: {error}");
    }
}
