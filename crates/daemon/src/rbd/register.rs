//! The register of the Ceph clients that may write an image whose disk moves between hosts, for fencing programs.
//!
//! A host that does not answer may be alive, and its supervisor restarts a helper that has ended. The new helper is a
//! new Ceph client, which nobody has blocklisted. So a helper is used only after two steps, and a host is fenced in two
//! steps (`packaging/fence/fence-rbd`):
//!
//! | after a helper has opened the image | to fence a host |
//! |---|---|
//! | 1. its client is entered in the register | 1. mark the host ([`super::fenced`]) and take its lock ([`super::lock`]) away |
//! | 2. check that the pool's lock is still there and no mark is; otherwise stop the helper permanently | 2. blocklist the host's clients that are in the register |
//!
//! If the lock was still there at step 2, it had not been taken away yet. So the entry of step 1 existed before, and
//! the fencing program reads it. Otherwise no request has been sent through the helper. The list of clients that have
//! the image open cannot replace the register: a client that cannot reach the cluster for half a minute is no longer on
//! that list, but may come back later.
//!
//! Invariants
//! - No request is sent through a helper whose client is not in the register, or was entered after the host was marked
//!   or its lock taken away.
//! - A client stays in the register until it has ended and the cluster no longer lists it, or until the pool releases
//!   its lock while none of its helpers runs.
//! - Entries do not say who may write: without its lock, a host may not.

use super::lock::{self, Holder, LockError};
use super::rados::{Header, LockInfo, Wish};
use super::{Image, fenced, watchers};
use crate::origin::BlockDevice;

/// The name of the lock whose holders are the entries: shared, so that everybody gets it.
const REGISTER: &str = "haversack.clients";
/// What comes before a client's address in an entry's description. ` on host NAME` follows.
const CLIENT: &str = "client ";

/// The register of an image, and the holder that enters clients there.
#[derive(Debug)]
pub struct Register {
    image: Image,
    holder: Holder,
}

impl Register {
    /// Returns the register of a device's image, for a disk that moves.
    pub fn of(device: &BlockDevice, holder: &Holder) -> Option<Register> {
        let image = Image::all_of(device).pop().filter(|_| holder.is_shared())?;
        Some(Register { image, holder: holder.clone() })
    }

    /// Returns the clients that have the image open now. The next one on this host is the helper's.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn clients(&self) -> Result<Vec<String>, LockError> {
        watchers::clients_of(&self.image).map_err(lock::failed(&self.image))
    }

    /// Enters the client of a helper that has opened the image since its `earlier` clients were listed, and checks that
    /// the pool's lock is still there and its host not marked.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is gone or the host is marked; or the cluster does not answer.
    pub fn admit(&self, earlier: &[String]) -> Result<(), LockError> {
        let failed = lock::failed(&self.image);
        let now = self.clients()?;
        let client = only_new(&watchers::on_this_host(&now), earlier).map_err(&failed)?;
        let header = Header::of(&self.image).map_err(&failed)?;
        self.enter(&header, &client).map_err(&failed)?;
        self.check_lock(&header)?;
        if let Err(error) = self.forget_ended(&header, &now) {
            tracing::warn!(
                image = self.image.path(),
                "clients that have ended stay in the register: {error}"
            );
        }
        Ok(())
    }

    /// Checks again that the pool's lock is there and its host not marked: a client that was blocklisted may write
    /// again after a time.
    ///
    /// # Errors
    /// As for [`Register::admit`].
    pub fn confirm(&self) -> Result<(), LockError> {
        self.check_lock(&Header::of(&self.image).map_err(lock::failed(&self.image))?)
    }

    fn check_lock(&self, header: &Header<'_>) -> Result<(), LockError> {
        let failed = lock::failed(&self.image);
        let is_held = lock::is_held_of(header, &self.holder).map_err(&failed)?;
        if !is_held || fenced::is_marked(header, &self.holder).map_err(&failed)? {
            return Err(LockError::Lost { image: self.image.path() });
        }
        Ok(())
    }

    fn enter(&self, header: &Header<'_>, client: &str) -> Result<(), String> {
        let host = self.holder.host().unwrap_or_default();
        let description = format!("{CLIENT}{client} on host {host}");
        let wish = Wish {
            lock: REGISTER,
            shared: Some(""),
            cookie: self.holder.cookie(),
            description: &description,
        };
        header.lock(wish)
    }

    /// Removes this pool's clients that the cluster does not list any more.
    fn forget_ended(&self, header: &Header<'_>, listed: &[String]) -> Result<(), String> {
        let info = header.lock_info(REGISTER)?;
        let (own, _) = info.split(self.holder.cookie());
        let has_ended = |description: &str| {
            client_of(description).is_none_or(|client| listed.iter().all(|l| l != client))
        };
        let ended = own.into_iter().filter(|entry| has_ended(&entry.description));
        ended.into_iter().try_for_each(|entry| header.unlock(REGISTER, entry))
    }
}

/// Returns the client that a helper has become: the only one on this host that was not there earlier.
fn only_new(here: &[String], earlier: &[String]) -> Result<String, String> {
    let new: Vec<&String> = here.iter().filter(|client| !earlier.contains(client)).collect();
    match new[..] {
        [client] => Ok(client.clone()),
        [] => Err("its helper is not among its clients on this host".into()),
        _ => Err(format!("several programs on this host have opened it at the same time: {new:?}")),
    }
}

/// Removes the entries of a pool. None of its helpers may be running.
pub(super) fn clear(header: &Header<'_>, holder: &Holder) -> Result<(), String> {
    let info = header.lock_info(REGISTER)?;
    let (own, _) = info.split(holder.cookie());
    own.into_iter().try_for_each(|entry| header.unlock(REGISTER, entry))
}

/// Returns the clients in the register of an image, whichever hosts they are on.
pub(super) fn registered(image: &Image) -> Result<Vec<String>, String> {
    Ok(clients_in(&Header::of(image)?.lock_info(REGISTER)?))
}

fn clients_in(info: &LockInfo) -> Vec<String> {
    let clients = info.lockers.iter().filter_map(|entry| client_of(&entry.description));
    clients.map(str::to_string).collect()
}

fn client_of(description: &str) -> Option<&str> {
    description.strip_prefix(CLIENT)?.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::super::rados::Locker;
    use super::*;

    #[test]
    fn a_helper_is_the_client_that_is_new() {
        let [earlier, own, other] = ["10.0.0.1:0/1", "10.0.0.1:0/2", "10.0.0.1:0/3"].map(str::to_string);
        let left = std::slice::from_ref(&earlier);
        assert_eq!(only_new(&[earlier.clone(), own.clone()], left).as_ref(), Ok(&own));
        assert!(only_new(left, left).is_err_and(|why| why.contains("not among its clients")));
        let why = only_new(&[own, earlier.clone(), other], left).expect_err("one is a stranger");
        assert!(why.contains("10.0.0.1:0/2") && why.contains("10.0.0.1:0/3"), "{why}");
    }

    #[test]
    fn entries_name_client_and_host() {
        let entry = |description: &str| Locker {
            name: "client.9".into(),
            cookie: "p/d".into(),
            description: description.into(),
            address: "10.0.0.1:0/1".into(),
        };
        let lockers = vec![entry("client 10.0.0.1:0/705596093 on host alpha"), entry("by hand")];
        let info = LockInfo { lockers, ..LockInfo::default() };
        assert_eq!(clients_in(&info), ["10.0.0.1:0/705596093"]);
        assert_eq!(lock::host_of(&info.lockers[0].description), Some("alpha"));
    }
}
