//! The decoded value of a key of any kind.

use crate::key::Key;
use crate::record::{
    BalanceRecord, DiskRecord, DrainRecord, HostRecord, IntentRecord, LeaderRecord, Owner, PoolRecord,
    Record, TenantRecord, decode,
};

/// The decoded value of a key. A value that goes into several views needs to be decoded only once, see
/// [`View::put_value`](crate::View::put_value).
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A host that is alive.
    Host(HostRecord),
    /// A pool.
    Pool(PoolRecord),
    /// A disk.
    Disk(Box<DiskRecord>),
    /// A move of a disk.
    Intent(IntentRecord),
    /// A host that is draining.
    Drain(DrainRecord),
    /// A tenant.
    Tenant(TenantRecord),
    /// The host that balances.
    Leader(LeaderRecord),
    /// What that host has observed.
    Balance(BalanceRecord),
    /// It cannot be read.
    Unreadable(Unread),
}

/// A value that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// Why.
    pub(crate) why: String,
    /// The disk's owner, if the value is a disk's entry from which at least the owner can be read.
    pub(crate) owner: Option<Owner>,
}

impl Value {
    /// Reads what is under a key.
    pub fn read(key: &Key, bytes: &[u8]) -> Value {
        match key {
            Key::Host(_) => record(key, bytes, Value::Host),
            Key::Pool { .. } => record(key, bytes, Value::Pool),
            Key::Disk(_) => record(key, bytes, |disk| Value::Disk(Box::new(disk))),
            Key::Intent(_) => record(key, bytes, Value::Intent),
            Key::Drain(_) => record(key, bytes, Value::Drain),
            Key::Tenant(_) => record(key, bytes, Value::Tenant),
            Key::Leader => record(key, bytes, Value::Leader),
            Key::Balance => record(key, bytes, Value::Balance),
        }
    }
}

fn record<T: Record>(key: &Key, bytes: &[u8], value: fn(T) -> Value) -> Value {
    decode(bytes).map_or_else(
        |error| {
            let owner = matches!(key, Key::Disk(_)).then(|| serde_json::from_slice(bytes).ok()).flatten();
            Value::Unreadable(Unread { why: error.to_string(), owner })
        },
        value,
    )
}
