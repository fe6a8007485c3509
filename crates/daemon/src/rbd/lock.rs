//! The lock of an RBD image: one pool of one host caches it.
//!
//! librbd's own exclusive lock moves to any client that writes. So this is a lock of another name on the image's header
//! object (the OSD's class `lock`, as `rados lock` has it), which the cluster gives to one holder, for all hosts. The
//! holder is the pool that has the disk's blocks: the lock stays while the daemon or its host is down, because dirty
//! blocks may be on its cache devices, and goes when the disk is detached or forgotten. Clients that are not Haversack
//! do not ask for it.
//!
//! Invariant
//! - A lock with this pool's cookie is this pool's, whoever took it: the cluster names a holder by its connection, and
//!   the daemon's connection of today is another one than that of yesterday.

use haversack_model::{DiskId, Uuid};
use serde_json::Value;

use super::Image;
use crate::origin::BlockDevice;

/// The name of the lock.
const LOCK: &str = "haversack";

/// Why an image cannot be locked.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// Another pool has it.
    #[error(
        "RBD image {image} is locked by {holder}: a pool caches it, and may have data that the image does not have; detach \
         the disk there; if that host does not come back, save its data with 'haversack flush-offline', then release the \
         lock with '{release}'"
    )]
    Held {
        /// The image.
        image: String,
        /// Who has the lock, and since which address.
        holder: String,
        /// The command that releases it.
        release: String,
    },
    /// The cluster does not answer as expected.
    #[error("cannot lock RBD image {image}: {why}")]
    Failed {
        /// The image.
        image: String,
        /// What failed.
        why: String,
    },
}

/// The holder of the locks of a disk's images.
#[derive(Clone, Debug)]
pub struct Holder {
    cookie: String,
    description: String,
}

impl Holder {
    /// Returns the holder for a disk of a pool.
    pub fn new(pool_id: Uuid, pool: &str, id: DiskId, disk: &str) -> Holder {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
        let host = host.unwrap_or_else(|_| "an unknown host".into());
        Holder {
            cookie: format!("{pool_id}/{id}"),
            description: format!("disk {disk} of pool {pool} on {host}"),
        }
    }
}

#[derive(PartialEq, Eq, Debug)]
struct Locker {
    name: String,
    cookie: String,
    description: String,
    address: String,
}

/// Locks the RBD images of a device for a pool. Returns whether there is one that the pool did not have before.
///
/// # Errors
/// Another pool has one, or the cluster does not answer. Then none is locked that was not before.
pub fn acquire(device: &BlockDevice, holder: &Holder) -> Result<bool, LockError> {
    let images = Image::all_of(device);
    let mut taken = Vec::new();
    for image in &images {
        match take(image, holder) {
            Ok(false) => {}
            Ok(true) => taken.push(image),
            Err(error) => {
                for image in taken {
                    give(image, holder)?;
                }
                return Err(error);
            }
        }
    }
    Ok(!taken.is_empty())
}

/// Releases the locks of a device that a pool has.
///
/// # Errors
/// The cluster does not answer.
pub fn release(device: &BlockDevice, holder: &Holder) -> Result<(), LockError> {
    Image::all_of(device).iter().try_for_each(|image| give(image, holder))
}

fn failed(image: &Image) -> impl Fn(String) -> LockError + use<> {
    let image = image.path();
    move |why| LockError::Failed { image: image.clone(), why }
}

/// Returns true if the lock was taken, false if the pool had it.
fn take(image: &Image, holder: &Holder) -> Result<bool, LockError> {
    let failed = failed(image);
    let object = header_object(image).map_err(&failed)?;
    let options = [
        ["--lock-type", "exclusive"],
        ["--lock-cookie", &holder.cookie],
        ["--lock-description", &holder.description],
    ];
    let refused = match rados(image, &["lock", "get", &object, LOCK], options.as_flattened()) {
        Ok(_) => return Ok(true),
        Err(refused) => refused,
    };
    let lockers = lockers(image, &object).map_err(&failed)?;
    match lockers.iter().find(|locker| locker.cookie != holder.cookie) {
        Some(other) => Err(LockError::Held {
            image: image.path(),
            holder: format!("{} (Ceph client {} at {})", other.description, other.name, other.address),
            release: break_command(image, &object, other),
        }),
        None if lockers.is_empty() => Err(failed(refused)),
        None => Ok(false),
    }
}

fn give(image: &Image, holder: &Holder) -> Result<(), LockError> {
    let failed = failed(image);
    let object = header_object(image).map_err(&failed)?;
    for locker in lockers(image, &object).map_err(&failed)? {
        if locker.cookie == holder.cookie {
            let cookie = ["--lock-cookie", &locker.cookie];
            rados(image, &["lock", "break", &object, LOCK, &locker.name], &cookie).map_err(&failed)?;
        }
    }
    Ok(())
}

fn rados(image: &Image, command: &[&str], options: &[&str]) -> Result<String, String> {
    let mut place = vec!["--pool", &image.pool];
    place.extend(image.namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
    image.run("rados", &[command, &place, options].concat())
}

/// Returns the command with which an operator releases a lock.
fn break_command(image: &Image, object: &str, locker: &Locker) -> String {
    let namespace = image.namespace.as_ref().map_or(String::new(), |name| format!(" --namespace {name}"));
    format!(
        "rados --pool {}{namespace} lock break {object} {LOCK} {} --lock-cookie {}",
        image.pool, locker.name, locker.cookie
    )
}

/// Returns the object that all clients of an image use, by the image's format.
fn header_object(image: &Image) -> Result<String, String> {
    let info = image.run("rbd", &["info", "--format", "json", "--", &image.path()])?;
    header_of(&info, &image.name)
}

fn header_of(info: &str, name: &str) -> Result<String, String> {
    let unreadable = || format!("rbd info printed '{}'", info.trim());
    let info: Value = serde_json::from_str(info).map_err(|_| unreadable())?;
    match (info["format"].as_u64(), info["id"].as_str()) {
        (Some(1), _) => Ok(format!("{name}.rbd")),
        (Some(2), Some(id)) if !id.is_empty() => Ok(format!("rbd_header.{id}")),
        _ => Err(unreadable()),
    }
}

fn lockers(image: &Image, object: &str) -> Result<Vec<Locker>, String> {
    lockers_of(&rados(image, &["lock", "info", object, LOCK], &["--format", "json"])?)
}

fn lockers_of(info: &str) -> Result<Vec<Locker>, String> {
    let unreadable = || format!("rados lock info printed '{}'", info.trim());
    let info: Value = serde_json::from_str(info).map_err(|_| unreadable())?;
    let locker = |entry: &Value| {
        let text = |key: &str| entry[key].as_str().map(str::to_string).ok_or_else(unreadable);
        Ok(Locker {
            name: text("name")?,
            cookie: text("cookie")?,
            description: text("description")?,
            address: text("addr")?,
        })
    };
    info["lockers"].as_array().ok_or_else(unreadable)?.iter().map(locker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_found_by_the_format() {
        let header = |info: &str| header_of(info, "vm1");
        assert_eq!(
            header(r#"{"format": 2, "id": "100dfa674f3f"}"#).as_deref(),
            Ok("rbd_header.100dfa674f3f")
        );
        assert_eq!(header(r#"{"format": 1}"#).as_deref(), Ok("vm1.rbd"));
        for info in ["", "{}", r#"{"format": 2}"#, r#"{"format": 2, "id": ""}"#] {
            assert!(header(info).is_err_and(|why| why.contains("rbd info printed")), "{info}");
        }
    }

    #[test]
    fn lockers_are_read() {
        let none = r#"{"name":"haversack","type":"exclusive","tag":"","lockers":[]}"#;
        assert_eq!(lockers_of(none), Ok(vec![]));
        let one = r#"{"lockers":[{"name":"client.4114","cookie":"p/d","description":"here","expiration":"0.000000",
                     "addr":"127.0.0.1:0/705596093"}]}"#;
        let lockers = lockers_of(one).expect("a list");
        assert_eq!((lockers[0].name.as_str(), lockers[0].cookie.as_str()), ("client.4114", "p/d"));
        for info in ["", "{}", r#"{"lockers":[{}]}"#] {
            assert!(lockers_of(info).is_err_and(|why| why.contains("lock info printed")), "{info}");
        }
    }

    #[test]
    fn an_operator_is_told_how_to_release_a_lock() {
        let image = Image {
            pool: "vms".into(),
            namespace: Some("a".into()),
            name: "vm1".into(),
            user: None,
            conf: None,
        };
        let text = |text: &str| text.to_string();
        let locker =
            Locker { name: text("client.7"), cookie: text("p/d"), description: text(""), address: text("") };
        assert_eq!(
            break_command(&image, "rbd_header.1", &locker),
            "rados --pool vms --namespace a lock break rbd_header.1 haversack client.7 --lock-cookie p/d"
        );
    }
}
