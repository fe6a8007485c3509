//! The inputs and the result of a decision, in a form that can be logged and replayed.
//!
//! [`Inputs`] hold everything that [`decide`](crate::decide()) uses apart from the configuration. Numbers
//! survive JSON unchanged if they are read with `serde_json`'s feature `float_roundtrip`.

use std::collections::BTreeMap;

use haversack_model::{Micros, WriteMode};
use serde::{Deserialize, Serialize};

use crate::allocate::{Gap, Target};
use crate::demand::running_knee::Knee;
use crate::history::History;
use crate::tenants::TenantBounds;
use crate::window::DiskWindow;
use haversack_admission::Admit;

/// The state of a disk in the lifecycle of its VM, as far as the cache is concerned.
///
/// Source: vCacheShare (Meng et al., ATC'14), table 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// Attached or resumed, and no window has ended since: it gets its reservation.
    New,
    /// It takes part in the division.
    Active,
    /// It had no access in the last window: hits have no value for it; its demand is the forecast.
    Idle,
    /// Migrated from another host, and not used here in any window of the pool: it takes part with the figures measured
    /// there.
    MigratedIn,
    /// Stunned or suspended for a moment: its share is locked.
    Stunned,
    /// Its origin is being replaced: its share is locked, and the latency of the origin is unknown.
    StorageMigrating,
    /// Suspended: it gets nothing.
    Suspended,
    /// Migrated to another host: it gets nothing.
    MigratedOut,
}

impl DiskState {
    /// Returns the name used in logs.
    pub fn name(self) -> &'static str {
        match self {
            DiskState::New => "new",
            DiskState::Active => "active",
            DiskState::Idle => "idle",
            DiskState::MigratedIn => "migrated-in",
            DiskState::Stunned => "stunned",
            DiskState::StorageMigrating => "storage-migrating",
            DiskState::Suspended => "suspended",
            DiskState::MigratedOut => "migrated-out",
        }
    }

    /// Returns whether its target is locked.
    pub fn locked(self) -> bool {
        matches!(self, DiskState::Stunned | DiskState::StorageMigrating)
    }

    /// Returns whether it gets nothing.
    pub fn gone(self) -> bool {
        matches!(self, DiskState::Suspended | DiskState::MigratedOut)
    }
}

/// Where a disk's own window stands at the end of a window of the pool. It is as long, or several times as long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowStage {
    /// It has ended, and the figures are those of all of it.
    #[default]
    Ended,
    /// It has not ended; the figures are those of the previous one, except for intensity and latencies.
    GoesOn,
    /// It has not ended, and no earlier one has any access: the figures are those so far.
    SoFar,
}

impl WindowStage {
    fn is_ended(&self) -> bool {
        *self == WindowStage::Ended
    }
}

/// The facts about a disk when a decision is made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskInput {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The tenant that the VM belongs to.
    pub tenant: String,
    /// Its state.
    pub state: DiskState,
    /// Its priority; 1 unless configured.
    pub priority: f64,
    /// Its reservation in blocks: c_min.
    pub reservation_blocks: u64,
    /// Its limit in blocks: c_max.
    pub limit_blocks: u64,
    /// The size set by the operator.
    pub fixed_blocks: Option<u64>,
    /// Its share in the previous plan, or its usage in a shared pool.
    pub target_blocks: u64,
    /// Its write mode.
    #[serde(with = "mode_name")]
    pub write_mode: WriteMode,
    /// The forecast of its demand in the coming window, in blocks; `None` without a forecast.
    pub forecast_blocks: Option<u64>,
    /// The forecast's method, for the explanation.
    pub forecast_by: Option<String>,
    /// The measurements of the last window, or from the host that it came from.
    pub window: Option<DiskWindow>,
    /// Where its window stands, if the decision ends a window of the pool.
    #[serde(default, skip_serializing_if = "WindowStage::is_ended")]
    pub window_stage: WindowStage,
    /// How the length of its window was chosen while it runs. `None` if it is not, or was not chosen yet: then it is
    /// the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<Knee>,
    /// The last windows together, if the configuration wants more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
}

/// All inputs of a decision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inputs {
    /// The caller's time. Nothing depends on it.
    pub time_us: Micros,
    /// The size of the pool.
    pub pool_blocks: u64,
    /// Every disk that the pool knows.
    pub disks: Vec<DiskInput>,
    /// What tenants have here of their parts of a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantBounds>,
}

/// The decision for a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskPlan {
    /// Its target. Only the target changes; blocks move as disks need them.
    pub target: Target,
    /// The write mode it should have.
    #[serde(with = "mode_name")]
    pub write_mode: WriteMode,
    /// Which blocks are admitted.
    pub admission: Admit,
    /// Its demand in blocks.
    pub demand_blocks: u64,
    /// The explanation, in words.
    pub reason: String,
}

/// A decision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The time of the inputs.
    pub time_us: Micros,
    /// By disk.
    pub disks: BTreeMap<String, DiskPlan>,
    /// How close the result is to the optimum, if something was optimised.
    pub gap: Option<Gap>,
    /// The rule that decided, in words.
    pub reason: String,
}

impl Plan {
    /// Returns the space promised to all disks together; never more than the pool has.
    pub fn promised_blocks(&self) -> u64 {
        self.disks.values().map(|disk| disk.target.promised_blocks()).sum()
    }
}

/// Write modes by their names.
mod mode_name {
    use haversack_model::WriteMode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(mode: &WriteMode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<WriteMode, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A write mode by its name, or none.
pub(crate) mod some_mode {
    use haversack_model::WriteMode;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(mode: &Option<WriteMode>, serializer: S) -> Result<S::Ok, S::Error> {
        mode.map(WriteMode::name).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WriteMode>, D::Error> {
        let name: Option<String> = Option::deserialize(deserializer)?;
        name.map(|name| name.parse().map_err(D::Error::custom)).transpose()
    }
}
