//! The state of the pool as a whole: whether dirty blocks have their mirrored copies, whether clean blocks can be
//! trusted, whether it is stopping.
//!
//! Invariants
//! - Only a redundant pool is ever degraded.
//! - A pool that becomes degraded is whole again only when everything up to a number that was set after that is
//!   durable, and when the record says so.
//! - A pool that stops does not start again.

use haversack_model::{ArenaId, Uuid};

use crate::durability::record::RecordVersion;

/// See the module.
pub(crate) struct PoolState {
    /// Its identity.
    arena: ArenaId,
    /// Dirty blocks should be on two devices.
    redundant: bool,
    /// Some dirty blocks may have only one copy although they should have two.
    degraded: bool,
    /// Once this sequence number is durable, every dirty block has its mirrored copy again.
    rebuilt_seq: Option<u64>,
    /// The version of the record that says that the pool is no longer degraded.
    whole_version: RecordVersion,
    /// The record must say that clean blocks are not to be trusted at the next start.
    distrust_clean: bool,
    /// No new requests and jobs are taken.
    stopping: bool,
    /// The identity that the next clean stop gets in the record; zero for none.
    stop_name: Uuid,
    /// Everything is committed: nothing begins any more in the background.
    rests: bool,
    /// The record durably says that the stop was clean.
    stopped: bool,
    /// The caller has durably noted that the contents of lost devices are void.
    loss_recorded: bool,
}

impl PoolState {
    /// Returns the state that the record describes.
    pub fn recorded(arena: ArenaId, redundant: bool, degraded: bool, distrust_clean: bool) -> PoolState {
        PoolState {
            arena,
            redundant,
            degraded: redundant && degraded,
            rebuilt_seq: None,
            whole_version: RecordVersion::default(),
            distrust_clean,
            stopping: false,
            stop_name: Uuid::default(),
            rests: false,
            stopped: false,
            loss_recorded: false,
        }
    }

    pub fn arena(&self) -> ArenaId {
        self.arena
    }

    /// Whether dirty blocks should be on two devices.
    pub fn is_redundant(&self) -> bool {
        self.redundant
    }

    /// Whether some dirty blocks may have only one copy although they should have two.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Called when dirty blocks of a redundant pool may have only one copy.
    pub fn degrade(&mut self) {
        (self.degraded, self.rebuilt_seq) = (self.redundant, None);
    }

    /// Called when mirrored copies are still missing.
    pub fn is_not_rebuilt(&mut self) {
        self.rebuilt_seq = None;
    }

    /// Called when commits up to `last_seq` contain every mirrored copy. Keeps an earlier number if one is already set.
    /// Returns the number that must be durable.
    pub fn is_rebuilt_at(&mut self, last_seq: u64) -> u64 {
        *self.rebuilt_seq.get_or_insert(last_seq)
    }

    /// Called when every dirty block has its mirrored copy. This version of the record will say so.
    pub fn become_whole(&mut self, version: RecordVersion) {
        (self.degraded, self.whole_version) = (false, version);
    }

    /// Returns the version of the record that last called the pool whole.
    pub fn whole_version(&self) -> RecordVersion {
        self.whole_version
    }

    /// Whether the record must say that clean blocks are not to be trusted at the next start.
    pub fn distrusts_clean(&self) -> bool {
        self.distrust_clean
    }

    /// Called when pages list versions that would be trusted wrongly.
    pub fn distrust_clean(&mut self) {
        self.distrust_clean = true;
    }

    /// Called when pages list no such versions any more; returns whether they did.
    pub fn trust_clean(&mut self) -> bool {
        std::mem::take(&mut self.distrust_clean)
    }

    /// Takes no new requests and jobs from now on.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Names the next clean stop.
    pub fn name_stop(&mut self, name: Uuid) {
        self.stop_name = name;
    }

    /// Returns the identity of the next clean stop.
    pub fn stop_name(&self) -> Uuid {
        self.stop_name
    }

    /// Begins nothing in the background from now on.
    pub fn rest(&mut self) {
        self.rests = true;
    }

    /// Whether nothing begins any more in the background.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Called when the record durably says that the stop was clean.
    pub fn has_stopped(&mut self) {
        self.stopped = true;
    }

    /// Whether the record durably says that the stop was clean.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Called when the caller has durably recorded that the contents of lost devices are void.
    pub fn record_loss(&mut self) {
        self.loss_recorded = true;
    }

    /// Whether the caller has durably noted that the contents of lost devices are void.
    pub fn is_loss_recorded(&self) -> bool {
        self.loss_recorded
    }
}
