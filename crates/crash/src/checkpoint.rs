//! Checkpoints of clean stops. The next start may find the file whole, missing, truncated or damaged, or find a file
//! that an earlier start has already used.

use haversack_core::{CheckpointUse, Core, MemoryCheckpoint, OpenOptions, OpenReport};
use haversack_model::Uuid;
use haversack_model::random::Random;

use crate::media::FakeMedia;
use crate::run::tell;
use crate::world::{CrashKind, Device, Flow, Stop, World, violation};

/// The file with the checkpoint, and the choices about it.
pub struct Checkpoints {
    rng: Random,
    file: Option<MemoryCheckpoint>,
}

impl Checkpoints {
    /// There is none yet.
    pub fn new(rng: Random) -> Checkpoints {
        Checkpoints { rng, file: None }
    }

    /// Makes an identity for a stop.
    pub fn name(&mut self) -> Uuid {
        let words = [self.rng.bits(), self.rng.bits()].map(u64::to_le_bytes);
        Uuid(words.as_flattened().try_into().expect("two words"))
    }

    /// Whether a host is stopped in order, once in `n` times.
    pub fn stops(&mut self, n: u64) -> bool {
        self.rng.one_in(n)
    }

    /// Writes the checkpoint of a stopped core to the file. Sometimes the write is cut short. Sometimes nothing is
    /// written, and the file of an earlier stop stays.
    pub fn save(&mut self, core: Core) {
        if self.rng.one_in(8) {
            return;
        }
        let mut left = if self.rng.one_in(4) { self.rng.below(8) } else { u64::MAX };
        let mut pieces = MemoryCheckpoint::default();
        let saved = core.checkpoint(&mut |piece| {
            left = left.checked_sub(1).ok_or("cut short")?;
            pieces.push(piece);
            Ok::<(), &str>(())
        });
        tell(|| format!("           a checkpoint of {} pieces: {saved:?}", pieces.pieces.len()));
        self.file = Some(pieces);
    }

    /// Returns what a start finds of the file.
    pub fn found(&mut self) -> Option<MemoryCheckpoint> {
        let mut pieces = self.file.clone()?;
        match self.rng.below(8) {
            0 => return None,
            1 => pieces.pieces.truncate(self.rng.below(pieces.pieces.len() as u64 + 1) as usize),
            2 if !pieces.pieces.is_empty() => {
                let at = self.rng.below(pieces.pieces.len() as u64) as usize;
                let piece = &mut pieces.pieces[at];
                let byte = self.rng.below(piece.len() as u64) as usize;
                piece[byte] ^= 1 << self.rng.below(8);
            }
            _ => {}
        }
        Some(pieces)
    }

    /// The pool is open: the file is removed, unless a crash undoes that.
    pub fn opened(&mut self) {
        if self.rng.one_in(2) {
            self.file = None;
        }
    }
}

impl World {
    /// Names the stop that is about to begin.
    pub(crate) fn name_stop(&mut self) {
        if let Some(name) = self.checkpoints.as_mut().map(Checkpoints::name) {
            self.core().name_stop(name);
        }
    }

    /// Leaves a checkpoint of the core, which has stopped. I/Os of its background work may be in flight.
    pub(crate) fn leave_checkpoint(&mut self) {
        if let Some((checkpoints, core)) = self.checkpoints.as_mut().zip(self.core.take()) {
            checkpoints.save(core);
        }
    }

    /// In runs with checkpoints, sometimes stops in order and starts again.
    pub(crate) fn may_restart(&mut self, n: u64) -> Flow {
        if !self.checkpoints.as_mut().is_some_and(|checkpoints| checkpoints.stops(n)) {
            return Ok(());
        }
        self.heal();
        self.drain()?;
        self.wait("management jobs", |world| world.jobs.is_empty())?;
        let wait = self.checkpoints.as_mut().is_some_and(|checkpoints| checkpoints.stops(2));
        if wait {
            self.wait("background work", |world| world.due.is_empty())?;
        }
        let crash = self.checkpoints.as_mut().is_some_and(|checkpoints| checkpoints.stops(4));
        if !crash {
            return self.restart();
        }
        self.name_stop();
        self.shutdown()?;
        self.note_marks();
        self.note_lost();
        self.note_whole();
        self.leave_checkpoint();
        let is_kill = self.checkpoints.as_mut().is_some_and(|checkpoints| checkpoints.stops(2));
        Err(Stop::Crash(if is_kill { CrashKind::Kill } else { CrashKind::Power }))
    }

    /// Copies the devices, so that they can be opened from their pages as well.
    pub(crate) fn copies(&self) -> Option<Vec<Device>> {
        let is_sound = !self.plan.faults.of_devices() && self.losses.is_none() && self.damages.is_none();
        is_sound.then(|| self.devices.iter().map(Device::copy).collect())
    }

    /// Compares a core that was opened from a checkpoint with what the pages of the same devices say.
    pub(crate) fn compare(
        &self,
        (core, report): (&Core, &OpenReport),
        copies: Option<Vec<Device>>,
        order: &[usize],
        options: &OpenOptions,
    ) -> Flow {
        let Some(mut devices) = copies.filter(|_| report.checkpoint == CheckpointUse::Loaded) else {
            return Ok(());
        };
        let unit = self.plan.tear_unit;
        let mut media = FakeMedia::new(&mut devices, order.to_vec(), None, Random::scrambled(0), unit);
        let mut memory = self.fresh_memory();
        let opened = Core::open(&mut media, &mut memory, self.plan.core, options, self.now);
        match opened
            .map_err(|error| error.to_string())
            .and_then(|(scanned, _)| core.compare_with_scan(&scanned))
        {
            Ok(()) => Ok(()),
            Err(what) => violation!("the checkpoint and the pages differ: {what}"),
        }
    }
}
