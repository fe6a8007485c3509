//! A disk of a mix: the keys of its load, and the keys of a `[[disk]]` of the daemon's configuration, in one table.
//!
//! Both are read in one pass, so that an error points at its line. The daemon's keys are not listed again: a
//! key that does not belong to the load is passed to [`DiskConfig`], which refuses unknown keys.

use std::fmt;

use haversack_api::DiskConfig;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};

use super::Load;

/// The pool of disks that do not name one.
pub const MAIN_POOL: &str = "main";

/// Keys of the daemon that configure how a disk is accessed and served, which do not apply to a simulated
/// disk.
const NOT_SIMULATED: [&str; 15] = [
    "origin",
    "from",
    "origin_tls",
    "origin_holds_pool",
    "size",
    "id",
    "vhost_user",
    "queues",
    "epoch",
    "origin_wait",
    "connections",
    "read_only",
    "nbd",
    "accept_loss",
    "accept_origin_change",
];

impl<'de> Deserialize<'de> for Load {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Load, D::Error> {
        deserializer.deserialize_map(Table)
    }
}

struct Table;

impl<'de> Visitor<'de> for Table {
    type Value = Load;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a disk with its load")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Load, A::Error> {
        let mut load = Load::named("");
        // What a simulated disk need not say.
        let implied = vec![("origin", ""), ("pool", MAIN_POOL)];
        let rest = Rest { map, load: &mut load, implied, value: None };
        load.config = DiskConfig::deserialize(serde::de::value::MapAccessDeserializer::new(rest))?;
        Ok(load)
    }
}

/// A table without the keys of the load, which are removed while reading.
struct Rest<'a, A> {
    map: A,
    load: &'a mut Load,
    /// Implied keys with their values, used if the table does not have them.
    implied: Vec<(&'static str, &'static str)>,
    /// The value of the implied key that was given last.
    value: Option<&'static str>,
}

impl<'de, A: MapAccess<'de>> Rest<'_, A> {
    /// Reads the value of a key of the load.
    fn take(&mut self, key: LoadKey) -> Result<(), A::Error> {
        let load = &mut *self.load;
        match key {
            LoadKey::Trace => load.trace = Some(self.map.next_value()?),
            LoadKey::Like => load.like = Some(self.map.next_value()?),
            LoadKey::Span => load.span = Some(self.map.next_value()?),
            LoadKey::TimeUnit => load.time_unit = Some(self.map.next_value()?),
            LoadKey::Generator => load.generator = Some(self.map.next_value()?),
            LoadKey::Then => load.then = self.map.next_value()?,
            LoadKey::Base => load.base = Some(self.map.next_value()?),
            LoadKey::Requests => load.requests = Some(self.map.next_value()?),
            LoadKey::Seconds => load.seconds = Some(self.map.next_value()?),
            LoadKey::Seed => load.seed = self.map.next_value()?,
            LoadKey::Start => load.start = self.map.next_value()?,
            LoadKey::Host => load.host = self.map.next_value()?,
            LoadKey::Depth => load.depth = Some(self.map.next_value()?),
        }
        Ok(())
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Rest<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let mut seed = Some(seed);
        while let Some(found) = self.map.next_key_seed(KeyOf { disk: &mut seed })? {
            match found {
                Found::Load(key) => self.take(key)?,
                Found::Disk(key, value) => {
                    self.implied.retain(|implied| implied.0 != key);
                    return Ok(Some(value));
                }
            }
        }
        let (Some((key, value)), Some(seed)) = (self.implied.pop(), seed) else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.value.take() {
            Some(value) => seed.deserialize(value.into_deserializer()),
            None => self.map.next_value_seed(seed),
        }
    }
}

/// A key of the load.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LoadKey {
    Trace,
    Like,
    Span,
    TimeUnit,
    Generator,
    Then,
    Base,
    Requests,
    Seconds,
    Seed,
    Start,
    Host,
    Depth,
}

/// The owner of a key.
enum Found<D> {
    Load(LoadKey),
    /// The disk's key: its name, and the disk's internal form of it.
    Disk(String, D),
}

/// Reads a key and passes it to its owner. A key that is unknown or has no meaning in a simulation is refused
/// here, where its position in the file is known. The disk gets one key at a time; the load's keys are not
/// passed to it.
struct KeyOf<'a, K> {
    disk: &'a mut Option<K>,
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for KeyOf<'_, K> {
    type Value = Found<K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let key = String::deserialize(deserializer)?;
        let of_load: Result<_, serde::de::value::Error> =
            LoadKey::deserialize(key.as_str().into_deserializer());
        if let Ok(load) = of_load {
            return Ok(Found::Load(load));
        }
        if NOT_SIMULATED.contains(&key.as_str()) {
            let why =
                format!("'{key}' says how a disk is served, and has no effect in a simulation: leave it out");
            return Err(D::Error::custom(why));
        }
        let disk = self.disk.take().expect("the disk takes one key at a time");
        let value = disk.deserialize(key.as_str().into_deserializer())?;
        Ok(Found::Disk(key, value))
    }
}
