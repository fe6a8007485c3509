//! Which data an RBD image reads from the snapshot that it was cloned from.
//!
//! An image is striped over objects of one size. An object that the image does not have is read from its parent. Which
//! objects it has is in its *object map*, which RBD updates before it writes the first data of an object: two bits for
//! each object, 0 if it does not exist.
//!
//! The map is a separate object in the pool (`ceph::BitVector<2>` in Ceph's sources): a head of fixed size, preceded by
//! its length, then the bits, four objects per byte, the first in the highest bits; then checksums, which the cluster
//! verifies itself.

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;

use super::Image;
use crate::origin::BlockDevice;

/// The image's flag that its object map is not to be trusted.
const MAP_INVALID: &str = "object map invalid";
/// Features of an image that has data elsewhere: in the image that it is migrated from, or in a client's cache.
const ELSEWHERE: [&str; 2] = ["migrating", "dirty-cache"];
/// A little-endian length of the head, then version, compatible version and length of its content, and the number of
/// objects.
const HEAD_BYTES: usize = 4 + 2 + 4 + 8;
const OBJECTS_PER_BYTE: usize = 4;

/// What `rbd info` prints, as far as it matters here.
#[derive(Deserialize)]
struct Info {
    id: String,
    #[serde(rename = "size")]
    size_bytes: u64,
    #[serde(rename = "object_size")]
    object_bytes: u64,
    #[serde(default)]
    features: Vec<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    stripe_count: Option<u64>,
    parent: Option<Parent>,
}

#[derive(Deserialize)]
struct Parent {
    pool: String,
    #[serde(default)]
    pool_namespace: String,
    image: String,
    snapshot: String,
    #[serde(rename = "overlap")]
    overlap_bytes: u64,
    /// If the parent is in the trash, another image may have its name by now.
    #[serde(default)]
    trash: Value,
}

/// Returns the ranges of bytes that an image reads from its parent, in order.
///
/// # Errors
/// It is no clone of the base's snapshot, the cluster does not know which objects it has, or does not answer.
pub fn shared_ranges(disk: &BlockDevice, base: &BlockDevice) -> Result<Vec<Range<u64>>, String> {
    let images = Image::all_of(disk);
    let [image] = &images[..] else { return Err("the disk's origin is not one RBD image".into()) };
    let info = image.run("rbd", &["info", "--format", "json", "--", &image.path()])?;
    let info = parse(&info, &image.path())?;
    let conf = image.conf.as_ref().map_or(String::new(), |conf| conf.display().to_string());
    info.check(&image.path(), &snapshot_of(base, &conf))?;
    let mut options = vec!["--pool", &image.pool];
    options.extend(image.namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
    let object = format!("rbd_object_map.{}", info.id);
    options.extend(["get", &object, "-"]);
    let map = image.run_raw("rados", &options)?;
    info.shared_ranges(&map).ok_or_else(|| format!("the object map of {} is malformed", image.path()))
}

/// Returns `POOL[/NAMESPACE]/IMAGE@SNAPSHOT` of an origin that is one RBD snapshot, of the cluster with this
/// configuration; empty if it is none.
fn snapshot_of(device: &BlockDevice, conf: &str) -> String {
    let [node] = &device.nodes[..] else { return String::new() };
    let text = |key: &str| node[key].as_str().unwrap_or_default();
    let place = |pool: &str, namespace: &str| match namespace {
        "" => pool.to_string(),
        namespace => format!("{pool}/{namespace}"),
    };
    if node["driver"] != "rbd" || text("snapshot").is_empty() || text("conf") != conf {
        return String::new();
    }
    format!("{}/{}@{}", place(text("pool"), text("namespace")), text("image"), text("snapshot"))
}

fn parse(info: &str, image: &str) -> Result<Info, String> {
    serde_json::from_str(info).map_err(|error| format!("rbd info {image}: {error}"))
}

impl Info {
    fn check(&self, image: &str, base: &str) -> Result<(), String> {
        let Some(parent) = &self.parent else {
            return Err(format!("{image} is not a clone; leave out base"));
        };
        if !matches!(parent.trash, Value::Null | Value::Bool(false)) {
            return Err(format!("the image that {image} was cloned from is in the trash"));
        }
        if let Some(feature) = self.features.iter().find(|feature| ELSEWHERE.contains(&feature.as_str())) {
            return Err(format!(
                "{image} has the feature {feature}: its object map does not tell which data is its own"
            ));
        }
        let namespace = match &parent.pool_namespace[..] {
            "" => String::new(),
            name => format!("/{name}"),
        };
        let parent = format!("{}{namespace}/{}@{}", parent.pool, parent.image, parent.snapshot);
        if parent != base {
            return Err(format!("{image} was cloned from {parent}, not from the base's origin, {base}"));
        }
        if !self.features.iter().any(|feature| feature == "object-map") {
            return Err(format!(
                "{image} has no object map, so it is not known which data is its own; see 'rbd feature enable {image} object-map'"
            ));
        }
        if self.flags.iter().any(|flag| flag == MAP_INVALID) {
            return Err(format!(
                "the object map of {image} is invalid; run 'rbd object-map rebuild {image}'"
            ));
        }
        if self.stripe_count.is_some_and(|count| count > 1) || self.object_bytes == 0 {
            return Err(format!("{image} is striped over several objects at a time"));
        }
        Ok(())
    }

    /// Returns the ranges of the objects that do not exist; `None` if the map is malformed.
    fn shared_ranges(&self, map: &[u8]) -> Option<Vec<Range<u64>>> {
        let word = |at: usize| Some(u32::from_le_bytes(map.get(at..at + 4)?.try_into().ok()?));
        if word(0)? as usize != HEAD_BYTES - 4 {
            return None;
        }
        let objects = u64::from_le_bytes(map.get(HEAD_BYTES - 8..HEAD_BYTES)?.try_into().ok()?);
        if objects != self.size_bytes.div_ceil(self.object_bytes) {
            return None;
        }
        let bits = map.get(HEAD_BYTES..HEAD_BYTES + (objects as usize).div_ceil(OBJECTS_PER_BYTE))?;
        let exists =
            |object: usize| bits[object / OBJECTS_PER_BYTE] >> (6 - object % OBJECTS_PER_BYTE * 2) & 3 != 0;
        let end = self.parent.as_ref()?.overlap_bytes.min(self.size_bytes);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for object in (0..objects).filter(|object| !exists(*object as usize)) {
            let start = object * self.object_bytes;
            let range = start..(start + self.object_bytes).min(end);
            match ranges.last_mut() {
                _ if range.is_empty() => break,
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        Some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    const INFO: &str = r#"{"name":"vm1","id":"ab12","size":41943040,"objects":10,"order":22,"object_size":4194304,
        "features":["layering","exclusive-lock","object-map","fast-diff"],"flags":[],
        "parent":{"pool":"vms","pool_namespace":"","image":"golden","snapshot":"v1","trash":false,"overlap":33554432}}"#;

    fn map(objects: u64, bits: &[u8]) -> Vec<u8> {
        let mut map = vec![14, 0, 0, 0, 1, 1, 8, 0, 0, 0];
        map.extend(objects.to_le_bytes());
        map.extend(bits);
        map.extend([0; 12]);
        map
    }

    #[test]
    fn objects_that_a_clone_does_not_have_are_its_parents() {
        let info = parse(INFO, "vms/vm1").expect("it is well-formed");
        info.check("vms/vm1", "vms/golden@v1").expect("it can share");
        const MIB4: u64 = 4 << 20;
        // Object 1 exists, object 6 exists and is clean; 8 and 9 are beyond the parent.
        let ranges = info.shared_ranges(&map(10, &[0b0001_0000, 0b0000_1100, 0])).expect("it is well-formed");
        assert_eq!(ranges, [0..MIB4, 2 * MIB4..6 * MIB4, 7 * MIB4..8 * MIB4]);
        assert_eq!(info.shared_ranges(&map(11, &[0; 3])), None, "it is of another size");
        assert_eq!(info.shared_ranges(&map(10, &[0; 3])[..20]), None, "it is cut off");
        assert_eq!(info.shared_ranges(&[]), None);
    }

    #[test]
    fn clones_that_cannot_share_are_named() {
        let why = |from: &str, to: &str| {
            let info = parse(&INFO.replace(from, to), "vms/vm1").expect("it is well-formed");
            info.check("vms/vm1", "vms/golden@v1").expect_err("it cannot share")
        };
        assert!(why("\"v1\"", "\"v2\"").contains("was cloned from vms/golden@v2, not from"));
        assert!(why("\"object-map\",", "").contains("has no object map"));
        assert!(why("\"object-map\",", "\"object-map\",\"migrating\",").contains("the feature migrating"));
        assert!(why("\"trash\":false", "\"trash\":true").contains("in the trash"));
        assert!(why("\"flags\":[]", "\"flags\":[\"object map invalid\"]").contains("rebuild"));
        assert!(parse("{}", "vms/vm1").is_err());
    }

    #[test]
    fn a_base_is_a_snapshot() {
        let of = |origin: &str| match Origin::parse(origin) {
            Ok(Origin::Helper(device)) => snapshot_of(&device, ""),
            _ => panic!("{origin} needs a helper"),
        };
        assert_eq!(of("rbd:vms/golden@v1:id=me"), "vms/golden@v1");
        assert_eq!(of("rbd:vms/a/golden@v1"), "vms/a/golden@v1");
        assert_eq!(of("rbd:vms/golden"), "");
        assert_eq!(of("rbd:vms/golden@v1:conf=/other.conf"), "", "it is another cluster's");
        assert_eq!(of("qcow2:/golden"), "");
    }
}
