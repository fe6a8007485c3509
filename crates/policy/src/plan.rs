//! What a decision is made from and what comes out, in a form that can be logged and decided again.
//!
//! [`Inputs`] hold everything that [`decide`](crate::decide()) looks at beside the configuration. Numbers survive JSON
//! unchanged if they are read with `serde_json`'s feature `float_roundtrip`.

use std::collections::BTreeMap;

use haversack_model::{Micros, WriteMode};
use serde::{Deserialize, Serialize};

use crate::allocate::{Gap, Target};
use crate::window::DiskWindow;
use haversack_admission::Admit;

/// A disk in the life of its VM, as far as the cache is concerned.
///
/// Source: vCacheShare (Meng et al., ATC'14), table 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// Attached or resumed, and no window has ended since: it gets its reservation.
    New,
    /// It takes part in the division.
    Active,
    /// It had no access in the last window: hits are worth nothing to it, its demand is what is forecast from that.
    Idle,
    /// Come from another host with the figures measured there: it takes part with those.
    MigratedIn,
    /// Stunned or suspended for a moment: what it has is locked.
    Stunned,
    /// Its origin is being exchanged: what it has is locked, the latency of the origin is unknown.
    StorageMigrating,
    /// Suspended: it gets nothing.
    Suspended,
    /// Gone to another host: it gets nothing.
    MigratedOut,
}

impl DiskState {
    /// The name as it is logged.
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

    /// Whether its target is locked.
    pub fn locked(self) -> bool {
        matches!(self, DiskState::Stunned | DiskState::StorageMigrating)
    }

    /// Whether it gets nothing.
    pub fn gone(self) -> bool {
        matches!(self, DiskState::Suspended | DiskState::MigratedOut)
    }
}

/// What is known of a disk when a decision is made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskInput {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The tenant that the VM belongs to.
    pub tenant: String,
    /// Where it is in its life.
    pub state: DiskState,
    /// How much it counts; 1 unless configured.
    pub priority: f64,
    /// What it must have, in blocks: c_min.
    pub reservation_blocks: u64,
    /// What it may have, in blocks: c_max.
    pub limit_blocks: u64,
    /// The size that the operator gave it.
    pub fixed_blocks: Option<u64>,
    /// What the plan before gave it, or what it had in a shared pool.
    pub target_blocks: u64,
    /// The write mode that it has.
    #[serde(with = "mode_name")]
    pub write_mode: WriteMode,
    /// What it is forecast to demand in the coming window, in blocks; none without a forecast.
    pub forecast_blocks: Option<u64>,
    /// How the forecast was made, for the reason.
    pub forecast_by: Option<String>,
    /// What was measured in the last window, or on the host that it came from.
    pub window: Option<DiskWindow>,
}

/// Everything that a decision looks at.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inputs {
    /// When, on the caller's clock. Nothing depends on it.
    pub time_us: Micros,
    /// What there is to divide.
    pub pool_blocks: u64,
    /// Every disk that the pool knows.
    pub disks: Vec<DiskInput>,
}

/// What is decided for a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskPlan {
    /// How much it gets. Only the target changes; blocks move as disks need them.
    pub target: Target,
    /// The write mode it should have.
    #[serde(with = "mode_name")]
    pub write_mode: WriteMode,
    /// What may enter.
    pub admission: Admit,
    /// What it demands, in blocks.
    pub demand_blocks: u64,
    /// Why, in words.
    pub reason: String,
}

/// What is decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// When, as the inputs say.
    pub time_us: Micros,
    /// By disk.
    pub disks: BTreeMap<String, DiskPlan>,
    /// How near to the best it is, where something was optimised.
    pub gap: Option<Gap>,
    /// What decided, in words.
    pub reason: String,
}

impl Plan {
    /// What is promised to all disks together; never more than the pool has.
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
