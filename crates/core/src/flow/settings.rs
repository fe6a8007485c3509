//! Settings of an attached disk: mode, target, admission, cleaner, sequential cut-off.
//!
//! Invariants
//! - An invalid setting changes nothing, and no setting loses, moves or reads data.
//! - A mode that defers writes to the origin takes effect only when the record durably says that the disk may
//!   be dirty.

use haversack_model::{DiskNo, Micros, WriteMode};

use crate::action::JobId;
use crate::config::{AdmissionConfig, CleanerConfig, DiskConfig, Persistence, Target};
use crate::core::Call;
use crate::error::ManageError;
use crate::jobs::JobKind;
use crate::memory::Memory;

impl<M: Memory> Call<'_, M> {
    /// Changes the write mode. No cached data is lost or reread.
    ///
    /// # Errors
    /// The disk is not attached, has a job, or has persistence `none` while the mode defers writes.
    pub fn set_mode(&mut self, now: Micros, disk: DiskNo, mode: WriteMode) -> Result<JobId, ManageError> {
        self.now = now;
        let persistence = self.attached(disk)?.persistence;
        self.idle(disk)?;
        if mode.defers_origin() && persistence == Persistence::None {
            let message =
                format!("persistence 'none' cannot be combined with mode {mode}: use wt, wa, wi or pt");
            return Err(ManageError::BadConfig(message));
        }
        let mut version = None;
        if mode.defers_origin() && !self.disk(disk).may_be_dirty {
            self.disk_mut(disk).may_be_dirty = true;
            version = Some(self.change_record());
        }
        Ok(self.start_job(disk, JobKind::Mode(mode), version))
    }

    pub(crate) fn end_mode(&mut self, disk: DiskNo, mode: WriteMode) {
        let d = self.disk_mut(disk);
        d.change_mode(mode, d.writes_through);
        self.end_job(disk, Ok(()));
    }

    /// From now on, the disk writes through even if its mode would defer writes, or stops doing so. Dirty
    /// blocks stay dirty.
    pub fn write_through(&mut self, now: Micros, disk: DiskNo, writes_through: bool) {
        self.now = now;
        let Some(d) = self.disks.get_mut(disk).filter(|d| d.writes_through != writes_through) else { return };
        d.change_mode(d.set_mode, writes_through);
        self.wake_around(disk);
        self.wake_dirty(disk);
        self.queue(disk);
        self.settle();
    }

    /// Changes the target of an attached disk, or of one that is expected. Moves no data.
    ///
    /// # Errors
    /// The disk is neither.
    pub fn set_target(&mut self, now: Micros, disk: DiskNo, target: Target) -> Result<(), ManageError> {
        self.now = now;
        if !self.known(disk)?.life.is_incoming() {
            self.attached(disk)?;
        }
        self.change_target(disk, target);
        self.wake_dirty(disk);
        self.settle();
        Ok(())
    }

    /// Changes which blocks may enter the cache.
    ///
    /// # Errors
    /// The disk is not attached or the setting is invalid.
    pub fn set_admission(
        &mut self,
        now: Micros,
        disk: DiskNo,
        config: AdmissionConfig,
    ) -> Result<(), ManageError> {
        self.now = now;
        let d = self.attached(disk)?;
        let tried = DiskConfig { admission: config, ..DiskConfig::new(d.id, d.sectors) };
        tried.check().map_err(ManageError::BadConfig)?;
        self.change_admission(disk, config);
        Ok(())
    }

    /// Takes over what [`DiskConfig::tuning`] returns of a configuration.
    ///
    /// # Errors
    /// The disk is not attached or a setting is invalid.
    pub fn tune(&mut self, now: Micros, disk: DiskNo, config: &DiskConfig) -> Result<(), ManageError> {
        self.now = now;
        self.attached(disk)?;
        config.check().map_err(ManageError::BadConfig)?;
        self.may_be_ordered(disk, config.cleaner)?;
        self.disk_mut(disk).tuning = config.tuning();
        self.change_order(disk);
        self.wake_around(disk);
        self.wake_dirty(disk);
        self.queue(disk);
        self.settle();
        Ok(())
    }

    /// Changes when dirty blocks are cleaned.
    ///
    /// # Errors
    /// The disk is not attached or the setting is invalid.
    pub fn set_cleaner(
        &mut self,
        now: Micros,
        disk: DiskNo,
        config: CleanerConfig,
    ) -> Result<(), ManageError> {
        self.now = now;
        let d = self.attached(disk)?;
        let tried = DiskConfig { cleaner: config, ..DiskConfig::new(d.id, d.sectors) };
        tried.check().map_err(ManageError::BadConfig)?;
        self.may_be_ordered(disk, config)?;
        self.disk_mut(disk).tuning.cleaner = config;
        self.change_order(disk);
        self.wake_around(disk);
        self.wake_dirty(disk);
        self.queue(disk);
        self.settle();
        Ok(())
    }

    /// Changes the sequential cut-off in bytes; 0 for none.
    ///
    /// # Errors
    /// The disk is not attached.
    pub fn set_sequential_cutoff(
        &mut self,
        now: Micros,
        disk: DiskNo,
        bytes: u64,
    ) -> Result<(), ManageError> {
        self.now = now;
        self.attached(disk)?;
        self.disk_mut(disk).tuning.sequential_cutoff_bytes = bytes;
        Ok(())
    }
}
