//! The lock of an RBD image, which shows which pool caches its blocks.
//!
//! librbd's own exclusive lock moves to any client that writes. So Haversack uses a lock of another name on the image's
//! header object ([`super::rados`]), which the cluster grants across all hosts. A holder is a pool that has blocks of
//! the disk or may get some. The lock stays while the daemon or its host is down, because dirty blocks may be on its
//! cache devices, and is released when the disk is detached or forgotten. Clients other than Haversack do not ask for
//! it.
//!
//! - A disk that does not move is locked exclusively: one pool of one host caches it.
//! - A disk that moves between hosts is locked shared, with the disk's identity as the tag, by each host that has it
//!   attached. The hosts agree which of them may write (docs/ownership.md). The shared lock keeps out exclusive locks
//!   and shared locks with another tag.
//!
//! Invariants
//! - A lock with this pool's cookie belongs to this pool, whichever client took it: the cluster identifies a holder by
//!   its connection, and the daemon's connection changes over time.
//! - A lock that was taken away is not taken again unless the caller allows it: fencing a host takes its lock away
//!   first ([`super::register`]).
//! - A lock of the other kind is released before the one of this kind is taken, as the cluster requires. If another
//!   pool takes the lock in between, or the daemon ends, this pool is left without a lock and refuses to use the image.

use std::time::Duration;

use haversack_model::{DiskId, Uuid};

use super::Image;
use super::rados::{Header, LockInfo, Locker, Wish};
use super::register;
use crate::origin::BlockDevice;

/// The name of the lock.
const LOCK: &str = "haversack";
/// How many times the daemon tries to take it.
const TRIES: u32 = 3;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// What comes before a host's name in a description.
const ON_HOST: &str = " on host ";

/// Why an image cannot be locked.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum LockError {
    /// Another pool has the lock.
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
    /// Hosts between which the disk moves have it, and this one is not one of them.
    #[error(
        "RBD image {image} is locked by {holder}, between which its disk moves, and the disk does not move here: configure \
         [migration] on this host as on those, or detach the disk there; if they do not come back, save their data with \
         'haversack flush-offline', then release their locks with '{release}'"
    )]
    Shared {
        /// The image.
        image: String,
        /// Who has the lock.
        holder: String,
        /// The commands that release it.
        release: String,
    },
    /// This pool had the lock, and has lost it.
    #[error(
        "the lock of RBD image {image} was taken away from this pool: another host may have fenced this one and taken the disk \
         over. If one has, 'haversack disk forget' drops what is left of it here. If none has, detach the disk, with --force \
         if it is dirty, and attach it again"
    )]
    Lost {
        /// The image.
        image: String,
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
    /// The host's name and the lock's tag, if the disk moves.
    shared: Option<(String, String)>,
}

impl Holder {
    /// Returns the holder for a disk of a pool. If the disk moves between hosts, `host` is this host's name among them.
    pub fn new(pool_id: Uuid, pool: &str, id: DiskId, disk: &str, host: Option<String>) -> Holder {
        let place = match &host {
            Some(host) => format!("{ON_HOST}{host}"),
            None => {
                let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
                format!(" on {}", name.as_deref().map_or("an unknown host", str::trim))
            }
        };
        Holder {
            cookie: format!("{pool_id}/{id}"),
            description: format!("disk {disk} of pool {pool}{place}"),
            shared: host.map(|host| (host, format!("{LOCK}/{id}"))),
        }
    }

    /// Returns whether other hosts may have the lock as well.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(super) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Returns this host's name among those between which the disk moves.
    pub(super) fn host(&self) -> Option<&str> {
        self.shared.as_ref().map(|(host, _)| host.as_str())
    }

    fn wish(&self) -> Wish<'_> {
        Wish {
            lock: LOCK,
            shared: self.shared.as_ref().map(|(_, tag)| tag.as_str()),
            cookie: &self.cookie,
            description: &self.description,
        }
    }

    fn is_of_this_kind(&self, info: &LockInfo) -> bool {
        match &self.shared {
            Some((_, tag)) => info.kind == "shared" && info.tag == *tag,
            None => info.kind == "exclusive",
        }
    }
}

/// What to do about a lock.
#[derive(PartialEq, Eq, Debug)]
enum Step {
    /// The pool has the lock.
    Keep,
    /// The pool has the lock under another name of the host.
    Rename,
    /// The pool is to take the lock.
    Take,
    /// The pool has a lock of the other kind.
    Convert,
    /// The pool had the lock and has lost it.
    Lost,
    /// Others have the lock.
    Refuse,
}

/// Decides what to do. `may_take`: a lock that this pool does not have may be taken.
fn decide(info: &LockInfo, holder: &Holder, may_take: bool) -> Step {
    let (own, others) = info.split(&holder.cookie);
    let is_right = holder.is_of_this_kind(info);
    let is_renamed = holder.is_shared() && own.iter().any(|own| own.description != holder.description);
    match (own.is_empty(), others.is_empty()) {
        (false, _) if is_right => {
            if is_renamed {
                Step::Rename
            } else {
                Step::Keep
            }
        }
        (false, true) => Step::Convert,
        (true, is_free) if is_free || is_right && holder.is_shared() => {
            if may_take {
                Step::Take
            } else {
                Step::Lost
            }
        }
        _ => Step::Refuse,
    }
}

/// Locks the RBD images of a device for a pool. `may_take`: locks that the pool does not have may be taken. Returns
/// whether the pool has got a lock that it did not have before.
///
/// # Errors
/// Another pool has a lock, this pool has lost one, or the cluster does not answer. Then all locks taken by this call
/// are released again.
pub fn acquire(device: &BlockDevice, holder: &Holder, may_take: bool) -> Result<bool, LockError> {
    let images = Image::all_of(device);
    let mut taken = Vec::new();
    for image in &images {
        match take(image, holder, may_take) {
            Ok(is_new) => taken.extend(is_new.then_some(image)),
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

/// Returns whether a pool has the locks of a device, of whichever kind.
///
/// # Errors
/// The cluster does not answer.
pub fn is_held(device: &BlockDevice, holder: &Holder) -> Result<bool, LockError> {
    for image in Image::all_of(device) {
        let failed = failed(&image);
        let info = Header::of(&image).and_then(|header| header.lock_info(LOCK)).map_err(&failed)?;
        if info.split(&holder.cookie).0.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that a pool has the locks of a device.
///
/// # Errors
/// [`LockError::Lost`] if it has not; or the cluster does not answer.
pub fn check_held(device: &BlockDevice, holder: &Holder) -> Result<(), LockError> {
    for image in Image::all_of(device) {
        let failed = failed(&image);
        let header = Header::of(&image).map_err(&failed)?;
        if !is_held_of(&header, holder).map_err(&failed)? {
            return Err(LockError::Lost { image: image.path() });
        }
    }
    Ok(())
}

/// Returns the names of the other hosts that have a lock of a device together with this one, or had.
///
/// # Errors
/// The cluster does not answer.
pub fn other_hosts(device: &BlockDevice, holder: &Holder) -> Result<Vec<String>, LockError> {
    let mut hosts = Vec::new();
    for image in Image::all_of(device) {
        let failed = failed(&image);
        let info = Header::of(&image).and_then(|header| header.lock_info(LOCK)).map_err(&failed)?;
        let (_, others) = info.split(&holder.cookie);
        let named = others.iter().filter_map(|other| host_of(&other.description));
        hosts.extend(named.map(str::to_string));
    }
    Ok(hosts)
}

/// Returns whether a pool has the lock of an image under the present name of its host, which is what fencing looks for.
pub(super) fn is_held_of(header: &Header<'_>, holder: &Holder) -> Result<bool, String> {
    let info = header.lock_info(LOCK)?;
    let (own, _) = info.split(&holder.cookie);
    let is_found = |own: &&Locker| holder.host().is_none_or(|host| host_of(&own.description) == Some(host));
    Ok(holder.is_of_this_kind(&info) && own.iter().any(is_found))
}

/// Returns the error of an image that cannot be locked.
pub(super) fn failed(image: &Image) -> impl Fn(String) -> LockError + use<> {
    let image = image.path();
    move |why| LockError::Failed { image: image.clone(), why }
}

/// Returns true if the lock was taken, false if the pool had it.
fn take(image: &Image, holder: &Holder, may_take: bool) -> Result<bool, LockError> {
    let failed = failed(image);
    let header = Header::of(image).map_err(&failed)?;
    let info = header.lock_info(LOCK).map_err(&failed)?;
    let (own, _) = info.split(&holder.cookie);
    let release_own = || own.iter().try_for_each(|own| header.unlock(LOCK, own)).map_err(&failed);
    match decide(&info, holder, may_take) {
        Step::Keep => Ok(false),
        Step::Rename => {
            header.lock(holder.wish()).map_err(&failed)?;
            release_own().map(|()| false)
        }
        Step::Convert => {
            release_own()?;
            get(image, &header, holder).map(|()| false)
        }
        Step::Take => get(image, &header, holder).map(|()| true),
        Step::Lost => Err(LockError::Lost { image: image.path() }),
        Step::Refuse => Err(refusal(image, &header, &info, holder)),
    }
}

/// Takes a lock that no other pool seems to hold. Retries if the cluster does not answer: when a lock is
/// converted, the old one has been released already.
fn get(image: &Image, header: &Header<'_>, holder: &Holder) -> Result<(), LockError> {
    let mut tries_left = TRIES;
    loop {
        let Err(refused) = header.lock(holder.wish()) else { return Ok(()) };
        tries_left -= 1;
        match header.lock_info(LOCK).map(|info| (decide(&info, holder, true), info)) {
            Ok((Step::Keep, _)) => return Ok(()),
            Ok((Step::Refuse, info)) => return Err(refusal(image, header, &info, holder)),
            _ if tries_left > 0 => std::thread::sleep(PAUSE),
            _ => return Err(failed(image)(refused)),
        }
    }
}

/// Returns why others keep a pool out.
fn refusal(image: &Image, header: &Header<'_>, info: &LockInfo, holder: &Holder) -> LockError {
    let (_, others) = info.split(&holder.cookie);
    let named =
        |other: &Locker| format!("{} (Ceph client {} at {})", other.description, other.name, other.address);
    let image = image.path();
    let list = |of: &dyn Fn(&Locker) -> String, between: &str| {
        others.iter().map(|other| of(other)).collect::<Vec<_>>().join(between)
    };
    let others_named = list(&named, ", ");
    let release = list(&|other| header.unlock_command(LOCK, other), "; ");
    match info.kind.as_str() {
        "shared" if !holder.is_shared() => LockError::Shared { image, holder: others_named, release },
        _ => LockError::Held { image, holder: others_named, release },
    }
}

fn give(image: &Image, holder: &Holder) -> Result<(), LockError> {
    let failed = failed(image);
    let header = Header::of(image).map_err(&failed)?;
    register::clear(&header, holder).map_err(&failed)?;
    let info = header.lock_info(LOCK).map_err(&failed)?;
    let (own, _) = info.split(&holder.cookie);
    own.into_iter().try_for_each(|own| header.unlock(LOCK, own)).map_err(&failed)
}

/// Returns the host that a description names.
pub(super) fn host_of(description: &str) -> Option<&str> {
    description.rsplit_once(ON_HOST).map(|(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(host: Option<&str>) -> Holder {
        Holder::new(Uuid([1; 16]), "main", DiskId([2; 16]), "vm1", host.map(str::to_string))
    }

    fn info(kind: &str, tag: &str, lockers: &[(&str, &str)]) -> LockInfo {
        let locker = |(cookie, description): &(&str, &str)| Locker {
            name: "client.1".into(),
            cookie: (*cookie).into(),
            description: (*description).into(),
            address: String::new(),
        };
        LockInfo { kind: kind.into(), tag: tag.into(), lockers: lockers.iter().map(locker).collect() }
    }

    #[test]
    fn one_pool_has_an_image_that_does_not_move() {
        let me = holder(None);
        let mine = (me.cookie.as_str(), "");
        let tag = format!("haversack/{}", DiskId([2; 16]));
        for (lock, expected) in [
            (info("none", "", &[]), Step::Take),
            (info("exclusive", "", &[mine]), Step::Keep),
            (info("exclusive", "", &[("other", "")]), Step::Refuse),
            (info("shared", &tag, &[("other", "")]), Step::Refuse),
            (info("shared", &tag, &[mine]), Step::Convert),
            (info("shared", &tag, &[mine, ("other", "")]), Step::Refuse),
        ] {
            assert_eq!(decide(&lock, &me, true), expected, "{lock:?}");
            let unasked = if expected == Step::Take { Step::Lost } else { expected };
            assert_eq!(decide(&lock, &me, false), unasked, "{lock:?}, not to be taken");
        }
    }

    #[test]
    fn hosts_share_an_image_whose_disk_moves_and_keep_the_rest_out() {
        let me = holder(Some("alpha"));
        let mine = (me.cookie.as_str(), me.description.as_str());
        let tag = format!("haversack/{}", DiskId([2; 16]));
        for (lock, expected) in [
            (info("none", "", &[]), Step::Take),
            (info("shared", &tag, &[("other", "")]), Step::Take),
            (info("shared", &tag, &[mine, ("other", "")]), Step::Keep),
            (
                info("shared", &tag, &[(me.cookie.as_str(), "disk vm1 of pool main on host old")]),
                Step::Rename,
            ),
            (info("shared", "haversack/another-disk", &[("other", "")]), Step::Refuse),
            (info("exclusive", "", &[("other", "")]), Step::Refuse),
            (info("exclusive", "", &[mine]), Step::Convert),
        ] {
            assert_eq!(decide(&lock, &me, true), expected, "{lock:?}");
            let unasked = if expected == Step::Take { Step::Lost } else { expected };
            assert_eq!(decide(&lock, &me, false), unasked, "{lock:?}, not to be taken");
        }
    }

    #[test]
    fn a_holder_says_which_host_it_is_on() {
        let description = |host| holder(host).description;
        assert_eq!(host_of(&description(Some("alpha"))), Some("alpha"));
        assert_eq!(host_of("disk vm1 of pool main on server1"), None);
    }
}
