//! The values: JSON objects with a `version`.
//!
//! Fields may be added within a version, with a default; readers ignore those that they do not know. A record of a
//! later version is not understood, and is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of all records that are written.
pub const VERSION: u32 = 1;

/// A host that is alive.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostRecord {
    /// A number that the daemon has chosen at its start. It tells two daemons with the same name apart.
    pub instance: u64,
    /// Reports that the daemon has made since its start. It changes with each, so that all hosts can tell how old a
    /// host's figures are without comparing clocks.
    pub reports: u64,
    /// Time between two reports, in seconds.
    pub report_every_s: f64,
    /// The daemon's version.
    pub software: String,
    /// Other hosts to which this one is connected, and so to which its disks can move.
    #[serde(default)]
    pub reaches: BTreeSet<String>,
    /// Disks move between this host and others (`[migration]`).
    #[serde(default)]
    pub moves_disks: bool,
    /// Bytes a second that may be used to send caches to another host; none without a limit.
    #[serde(default)]
    pub link_bytes_per_s: Option<u64>,
    /// Memory for VMs in bytes; none if that limits nothing.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual processors that it may run; none if that limits nothing.
    #[serde(default)]
    pub processors: Option<u32>,
    /// What it lends of its flash (`[lend]`); none if it lends nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lends: Option<LendRecord>,
    /// What it borrows where the plan of the cluster says (`[borrow] from = "auto"`): bytes by lender; none if it does
    /// not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrows: Option<BTreeMap<String, u64>>,
}

/// What a host lends of its flash.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LendRecord {
    /// Free bytes that it would lend in addition to what it has lent.
    #[serde(default)]
    pub spare_bytes: u64,
    /// The hosts that it lends to; all if none are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<BTreeSet<String>>,
}

/// What a VM needs of its host besides cache.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VmNeeds {
    /// Memory in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Virtual processors.
    #[serde(default)]
    pub processors: u32,
    /// Groups of VMs of which no two may be on one host.
    #[serde(default)]
    pub apart: BTreeSet<String>,
}

impl VmNeeds {
    fn is_nothing(&self) -> bool {
        *self == VmNeeds::default()
    }
}

/// The load of a pool or a disk, over the last report's time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// Requests a second.
    pub requests_per_s: f64,
    /// Bytes that clients read and write, a second.
    pub bytes_per_s: f64,
    /// Bytes read from and written to the origin, a second: what the cache does not save.
    pub origin_bytes_per_s: f64,
    /// Bytes written to flash, a second.
    pub flash_bytes_per_s: f64,
    /// Blocks read that were in the cache, a second.
    pub read_hits_per_s: f64,
    /// Blocks read that were not, a second.
    pub read_misses_per_s: f64,
    /// Mean latency of the requests, in microseconds; 0 without requests.
    pub latency_us: f64,
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Its state: `running`, `degraded`, ...
    pub state: String,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// What its disks could use, in bytes; what they use, without a policy that knows it.
    pub demand_bytes: u64,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// What is asked of it.
    #[serde(default)]
    pub load: Load,
    /// The most that tenants with a limit have of it, in bytes, as long as its host knows of nothing else.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_limits: BTreeMap<String, u64>,
}

/// A disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to, if its configuration says so. A VM's disks move together.
    #[serde(default)]
    pub vm: Option<String>,
    /// The tenant that it belongs to, if its configuration says so.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The host that owns it, as recorded durably in that host's pool.
    pub host: String,
    /// The epoch of that record; 0 for a disk that does not move.
    pub epoch: u64,
    /// Its pool on that host.
    pub pool: String,
    /// `attached`, `detached`, ...
    pub state: String,
    /// It can move to another host.
    pub can_move: bool,
    /// What its VM needs, as its host's configuration says.
    #[serde(default, skip_serializing_if = "VmNeeds::is_nothing")]
    pub vm_needs: VmNeeds,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What it could use of a cache, in bytes; what it uses, without a policy that knows it.
    pub demand_bytes: u64,
    /// Cached bytes.
    pub usage_bytes: u64,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Connected clients.
    pub clients: u64,
    /// The host that its cache is being sent to.
    #[serde(default)]
    pub moving_to: Option<String>,
    /// The host that has a replica of its dirty blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_at: Option<String>,
    /// That replica has everything that was flushed.
    #[serde(default)]
    pub is_replicated: bool,
    /// What is asked of it.
    #[serde(default)]
    pub load: Load,
    /// What the policy knows of it.
    #[serde(default)]
    pub worth: Worth,
}

/// What a cache is worth to a disk.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Worth {
    /// The least that it gets, in bytes.
    pub reservation_bytes: u64,
    /// The most that it gets, in bytes.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// A factor of the worth of its hits; 1 if nothing is configured.
    pub priority: f64,
    /// What was reused recently, in bytes, and so is copied when it moves.
    pub reused_bytes: u64,
    /// Hit ratio by cache size in bytes, as a few points in rising order; empty without a policy.
    #[serde(default)]
    pub curve: Vec<(u64, f64)>,
    /// Mean latency of its origin, in microseconds; 0 if nothing was measured.
    pub origin_latency_us: f64,
    /// Mean latency of its pool's cache devices, in microseconds; 0 if nothing was measured.
    pub cache_latency_us: f64,
}

/// A move of a disk: written before anything is sent, and removed when the disk is there or the move is given up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntentRecord {
    /// The disk's name.
    pub name: String,
    /// Its owner when the move began.
    pub from: String,
    /// The epoch under which that host owned it. A disk's entry with a higher one says that the move is over.
    pub epoch: u64,
    /// Its destination.
    pub to: String,
    /// The host whose daemon has begun it.
    pub by: String,
    /// The [`HostRecord::instance`] of that daemon. When that daemon has ended, nobody drives the move.
    pub instance: u64,
    /// Why, for people.
    pub reason: String,
    /// An operator has ordered it: it ends when the operator says so. Otherwise it is the balancer's.
    #[serde(default)]
    pub is_ordered: bool,
    /// The longest time, in milliseconds, that the daemon driving the move needs once the intent is there, as promised
    /// by the daemon that began the move. None if it is not known.
    #[serde(default)]
    pub most_ms: Option<u64>,
}

impl IntentRecord {
    /// Returns whether another intent is for the same move by the same daemon. The reason for the move does not matter.
    pub fn is_same_move(&self, other: &IntentRecord) -> bool {
        let of = |intent: &IntentRecord| {
            let IntentRecord { from, epoch, to, by, instance, .. } = intent.clone();
            (from, epoch, to, by, instance)
        };
        of(self) == of(other)
    }
}

/// A host that is draining.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DrainRecord {
    /// Who wants that, for people.
    #[serde(default)]
    pub by: String,
}

/// What a tenant may use. Its disks name it in their configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Its weight when caches are divided, against those of other tenants.
    pub weight: f64,
    /// What its disks get together, on all hosts, before others get more than their reservations, in bytes.
    #[serde(default)]
    pub reservation_bytes: u64,
    /// The most that its disks get together, on all hosts, in bytes.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
}

/// The host that balances.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// Its name.
    pub host: String,
    /// Its [`HostRecord::instance`].
    pub instance: u64,
}

/// What the host that balances has observed, for the next one that does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BalanceRecord {
    /// The time of the cluster in microseconds: it advances while a host balances, by that host's monotonic clock. It
    /// is not the time of day.
    pub clock_us: u64,
    /// What was observed and moved. Copies of a record share it.
    #[serde(with = "shared")]
    pub state: Arc<serde_json::Value>,
}

/// A value that is shared in memory is written like any other.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub fn serialize<S: Serializer>(value: &Arc<Value>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Arc<Value>, D::Error> {
        Value::deserialize(from).map(Arc::new)
    }
}

/// The most bytes of a name: hosts, pools, disks, VMs and tenants.
pub(crate) const MOST_NAME_BYTES: usize = 255;
/// The most bytes of a text for people.
const MOST_TEXT_BYTES: usize = 4096;
/// The most entries of a list within a record.
const MOST_ENTRIES: usize = 100_000;

/// What can be read from under a key. Names and texts in it are shown, logged and given to programs, so they are
/// checked.
pub(crate) trait Record: DeserializeOwned {
    /// Returns why the record cannot be used.
    fn check(&self) -> Result<(), String>;
}

/// Returns whether a name can be shown: not empty, not too long, and without spaces at its ends and characters that a
/// terminal may obey.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MOST_NAME_BYTES
        && name.trim() == name
        && !name.chars().any(|c| c.is_control() || c == '/')
}

fn names<'a>(all: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    match all.into_iter().find(|name| !is_name(name)) {
        None => Ok(()),
        Some(bad) => {
            let start: String = bad.chars().take(40).collect();
            Err(format!(
                "{start:?} is not a name: expected 1 to {MOST_NAME_BYTES} bytes without control characters"
            ))
        }
    }
}

fn text(what: &str, text: &str) -> Result<(), String> {
    if text.len() <= MOST_TEXT_BYTES && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!("{what}: expected at most {MOST_TEXT_BYTES} bytes without control characters"))
}

fn few(what: &str, count: usize) -> Result<(), String> {
    let message = || format!("{what}: {count} entries, expected at most {MOST_ENTRIES}");
    if count <= MOST_ENTRIES { Ok(()) } else { Err(message()) }
}

impl Record for HostRecord {
    fn check(&self) -> Result<(), String> {
        text("software", &self.software)?;
        few("reaches", self.reaches.len())?;
        names(&self.reaches)?;
        let to = self.lends.as_ref().and_then(|lends| lends.to.as_ref());
        few("lends", to.map_or(0, BTreeSet::len))?;
        names(to.into_iter().flatten())?;
        few("borrows", self.borrows.as_ref().map_or(0, BTreeMap::len))?;
        names(self.borrows.iter().flat_map(BTreeMap::keys))
    }
}

impl Record for PoolRecord {
    fn check(&self) -> Result<(), String> {
        text("state", &self.state)?;
        few("tenant_limits", self.tenant_limits.len())?;
        // The entry for disks without a tenant has an empty name.
        names(self.tenant_limits.keys().filter(|name| !name.is_empty()))
    }
}

impl Record for DiskRecord {
    fn check(&self) -> Result<(), String> {
        names([&self.name, &self.host, &self.pool])?;
        names([&self.vm, &self.tenant, &self.moving_to, &self.replica_at].into_iter().flatten())?;
        few("apart", self.vm_needs.apart.len())?;
        names(&self.vm_needs.apart)?;
        text("state", &self.state)?;
        few("curve", self.worth.curve.len())
    }
}

impl Record for IntentRecord {
    fn check(&self) -> Result<(), String> {
        names([&self.name, &self.from, &self.to, &self.by])?;
        text("reason", &self.reason)
    }
}

impl Record for DrainRecord {
    fn check(&self) -> Result<(), String> {
        text("by", &self.by)
    }
}

impl Record for TenantRecord {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Record for LeaderRecord {
    fn check(&self) -> Result<(), String> {
        names([&self.host])
    }
}

impl Record for BalanceRecord {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The owner of a disk, which can be read from an entry of any version.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Owner {
    pub host: String,
    pub epoch: u64,
}

/// A value that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// It is of a later version.
    #[error(
        "version {found} is later than {VERSION}, which this daemon knows: update haversack on this host"
    )]
    Later {
        /// Its version.
        found: u32,
    },
    /// It is not what is expected under its key.
    #[error("not a record of the kind that its key names: {0}")]
    Malformed(String),
}

#[derive(Serialize)]
struct Out<'a, T> {
    version: u32,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Returns the bytes of a record.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // The records have only text keys, so this cannot fail.
    serde_json::to_vec(&Out { version: VERSION, record }).unwrap_or_default()
}

/// Reads a record.
pub(crate) fn decode<T: Record>(bytes: &[u8]) -> Result<T, RecordError> {
    let malformed = |error: serde_json::Error| RecordError::Malformed(error.to_string());
    // All records that are written begin like this. Others are read twice.
    if !bytes.starts_with(br#"{"version":1,"#) {
        let Version { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if version > VERSION {
            return Err(RecordError::Later { found: version });
        }
    }
    let record: T = serde_json::from_slice(bytes).map_err(malformed)?;
    record.check().map_err(RecordError::Malformed)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_unknown_fields_are_ignored() {
        let drain = DrainRecord { by: "operator".into() };
        let bytes = encode(&drain);
        assert_eq!(String::from_utf8_lossy(&bytes), r#"{"version":1,"by":"operator"}"#);
        assert_eq!(decode::<DrainRecord>(&bytes).unwrap(), drain);
        assert_eq!(decode::<DrainRecord>(br#"{"version":1,"by":"operator","new":[1]}"#).unwrap(), drain);
        assert_eq!(decode::<DrainRecord>(br#"{"version":1}"#).unwrap(), DrainRecord::default());
        // The version need not come first.
        assert_eq!(decode::<DrainRecord>(br#"{"by":"operator","version":1}"#).unwrap(), drain);
    }

    #[test]
    fn a_later_version_and_nonsense_are_errors() {
        for later in [&br#"{"version":2,"by":"operator"}"#[..], br#"{"by":"operator","version":2}"#] {
            assert_eq!(decode::<DrainRecord>(later), Err(RecordError::Later { found: 2 }));
        }
        for bytes in [&b""[..], b"1", b"{}", b"{\"version\":-1}", b"\xff"] {
            assert!(matches!(decode::<DrainRecord>(bytes), Err(RecordError::Malformed(_))));
        }
        assert!(matches!(decode::<LeaderRecord>(br#"{"version":1}"#), Err(RecordError::Malformed(_))));
    }

    #[test]
    fn names_that_a_terminal_may_obey_or_nobody_can_read_are_refused() {
        let leader =
            |host: &str| decode::<LeaderRecord>(&encode(&LeaderRecord { host: host.into(), instance: 1 }));
        for good in ["alpha", "10.0.0.1", "vm 1", "\u{e9}", &"a".repeat(255)] {
            assert!(leader(good).is_ok(), "{good}");
        }
        for bad in ["", "a\u{1b}[2J", "a\nb", "a/b", " a", &"a".repeat(256)] {
            assert!(
                matches!(leader(bad), Err(RecordError::Malformed(why)) if why.contains("not a name")),
                "{bad}"
            );
        }
        let intent = IntentRecord {
            name: "vm1".into(),
            from: "alpha".into(),
            epoch: 3,
            to: "beta".into(),
            by: "alpha".into(),
            instance: 7,
            reason: "\u{7}".repeat(5),
            is_ordered: false,
            most_ms: None,
        };
        assert!(decode::<IntentRecord>(&encode(&intent)).is_err());
        assert!(decode::<IntentRecord>(&encode(&IntentRecord { reason: "why".into(), ..intent })).is_ok());
    }
}
