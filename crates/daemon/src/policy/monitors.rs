//! The recorded disks of a pool, and who needs the records: the policy, a request for a curve, or a trace.
//!
//! Invariants
//! - A disk is recorded only while its records are needed.
//! - Buffers are swapped, not copied. The fuller they are found, the more often they are taken.

use std::collections::BTreeMap;
use std::time::Duration;

use haversack_control::{Counters, Observer, ObserverConfig};
use haversack_core::{MonitorConfig, Records};
use haversack_engine::error::Result;
use haversack_model::{DiskHandle, Micros};
use haversack_policy::{DiskWindow, PolicyError};

use crate::backend::Backend;

use super::recording::Recording;

/// Records in a buffer; a disk has two buffers.
const RECORDS: usize = 16_384;
/// Sample size, in blocks, of a requested curve.
const SAMPLE_BLOCKS: usize = 1024;
/// The longest time between two collections.
const SLOWEST_US: Micros = 1_000_000;
/// The shortest time between two collections: in it a buffer can hold the records of 800,000 requests a second.
const FASTEST_US: Micros = 20_000;
/// How long a curve can still be read after its time is over.
const PATIENCE_US: Micros = 60_000_000;

/// A requested curve, for a disk that the policy does not measure.
struct Asked {
    observer: Observer,
    until_us: Micros,
}

/// A disk that is recorded.
struct Monitored {
    disk: DiskHandle,
    /// The buffer to swap in next.
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
            // The disk was detached and attached again; its recordings ended with the detach.
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

    /// Starts or stops recording a disk for the policy.
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

    /// Observes a disk for a requested curve.
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
            sample_blocks: Some(SAMPLE_BLOCKS),
            unit_blocks: 1,
            whole_blocks: false,
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

    /// Returns what was observed so far for a requested curve, and how many records were lost.
    pub fn asked(&self, name: &str, now_us: Micros, counters: &Counters) -> Option<(DiskWindow, u64)> {
        let asked = self.disks.get(name)?.asked.as_ref()?;
        Some((asked.observer.window(now_us, counters), asked.observer.lost()))
    }

    /// Starts a recording.
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

    /// Ends the recordings of a disk that is gone.
    pub fn forget(&mut self, backend: &dyn Backend, name: &str) {
        if let Some(mut gone) = self.disks.remove(name) {
            gone.recordings.drain(..).for_each(Recording::finish);
            end(backend, &gone);
        }
    }

    /// Takes the new records and passes them to their users; to the policy through `note`.
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

    /// Returns when records must be taken next; `None` if nothing is recorded.
    pub fn due_us(&self, now_us: Micros) -> Option<Micros> {
        let ends = |monitored: &Monitored| monitored.recordings.iter().map(Recording::until_us).min();
        let first = self.disks.values().filter_map(ends).min();
        (!self.disks.is_empty()).then(|| first.unwrap_or(u64::MAX).min(now_us + self.pace_us).max(now_us))
    }

    /// Returns how many records of a disk were lost since the last call.
    pub fn take_lost(&mut self, name: &str) -> u64 {
        self.disks.get_mut(name).map_or(0, |monitored| std::mem::take(&mut monitored.lost))
    }
}

/// Ends recording. A pool that has stopped records nothing anyway.
fn end(backend: &dyn Backend, monitored: &Monitored) {
    if let Err(error) = backend.set_monitor(monitored.disk, None) {
        tracing::debug!("cannot stop recording: {error}");
    }
}
