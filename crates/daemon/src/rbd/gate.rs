//! Decides whether the helper of a disk on RBD images may be used: its pool must have the locks.
//!
//! A helper that ends is started again, and is then a new Ceph client, which nobody has blocklisted. So to take an
//! image away from a pool, first take the pool's lock away, and then keep out the clients that are found.
//!
//! Invariants
//! - No request is sent through a helper that has opened an image after the pool's lock of it was taken away.
//! - If the disk moves between hosts, the helper's client is entered in the image's register before anyone who has
//!   taken the lock away reads the register ([`super::register`]). If the disk does not move, the client is found among
//!   those that have the image open.
//! - If the disk does not move, a helper that replaces another one is admitted only while no other client has an image
//!   open. So if an operator blocklists a helper by hand and opens the image, the helper's successor does not interfere
//!   ([`super::own`]).

use std::sync::{Arc, Mutex, Weak};

use haversack_api::DiskConfig;
use haversack_model::DiskId;

use super::Image;
use super::lock::{self, Holder, LockError};
use super::own::Helpers;
use super::register::Register;
use super::watchers::{self, WatchError};
use crate::daemon::Daemon;
use crate::error::Result;
use crate::helper::{Gate, Refusal};
use crate::locked::Locked;
use crate::origin::BlockDevice;

/// See the module.
#[derive(Debug)]
struct RbdGate {
    device: BlockDevice,
    holder: Holder,
    clients: Clients,
    admission: Mutex<Admission>,
    disk: String,
    daemon: DaemonRef,
}

/// Who may have the images open.
#[derive(Debug)]
enum Clients {
    /// The disk moves: clients of all its hosts, which are in the register; and the clients that had the image open
    /// before the helper was started.
    Registered(Box<Register>, Mutex<Vec<String>>),
    /// The disk does not move: the disk's helpers, by image.
    Own(Mutex<Vec<(Image, Helpers)>>),
}

/// The result of the last helper's start, if the disk does not move.
#[derive(PartialEq, Eq, Debug)]
enum Admission {
    /// No helper has been admitted yet. The attach returns the reason.
    NotYet,
    /// It was admitted.
    Done,
    /// Other clients keep it out, for this reason.
    KeptOut(String),
}

impl Admission {
    /// Records the result of the check made after a helper has opened the images. Returns why the helper is kept out if
    /// that is to be reported: not each time, because another helper is started every few seconds and finds the same
    /// clients.
    fn found(&mut self, found: &std::result::Result<(), WatchError>) -> Option<String> {
        let now = match found {
            Ok(()) => Admission::Done,
            Err(error @ WatchError::InUse { .. }) if *self != Admission::NotYet => {
                Admission::KeptOut(error.to_string())
            }
            Err(_) => return None,
        };
        let is_new = *self != now;
        *self = now;
        match self {
            Admission::KeptOut(why) if is_new => Some(why.clone()),
            _ => None,
        }
    }
}

struct DaemonRef(Weak<Daemon>);

impl std::fmt::Debug for DaemonRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Daemon")
    }
}

impl Gate for RbdGate {
    fn prepare(&self) -> std::result::Result<(), Refusal> {
        match &self.clients {
            Clients::Registered(register, earlier) => {
                *earlier.locked() = register.clients().map_err(|error| refusal(&error))?;
            }
            Clients::Own(images) => {
                let local = watchers::local_addresses();
                for (image, helpers) in images.locked().iter_mut() {
                    helpers.starting(&clients_of(image).map_err(|error| for_now(&error))?, &local);
                }
            }
        }
        Ok(())
    }

    fn admit(&self) -> std::result::Result<(), Refusal> {
        let checked = match &self.clients {
            Clients::Registered(register, earlier) => register.admit(&earlier.locked().clone()),
            Clients::Own(images) => {
                let found = refuse_others(&mut images.locked());
                self.tell_if_kept_out(&found);
                found.map_err(|error| for_now(&error))?;
                lock::check_held(&self.device, &self.holder)
            }
        };
        checked.map_err(|error| self.told(&error))
    }

    fn confirm(&self) -> std::result::Result<(), Refusal> {
        let checked = match &self.clients {
            Clients::Registered(register, _) => register.confirm(),
            Clients::Own(_) => lock::check_held(&self.device, &self.holder),
        };
        checked.map_err(|error| self.told(&error))
    }
}

fn for_now(error: &WatchError) -> Refusal {
    Refusal { why: error.to_string(), is_final: false }
}

/// Returns the clients that have an image open for writing.
fn clients_of(image: &Image) -> std::result::Result<Vec<String>, WatchError> {
    watchers::clients_of(image).map_err(|why| WatchError::Unknown { image: image.path(), why })
}

/// Refuses a helper that has opened the images if any of them is open for writing elsewhere.
fn refuse_others(images: &mut [(Image, Helpers)]) -> std::result::Result<(), WatchError> {
    let local = watchers::local_addresses();
    for (image, helpers) in images {
        let clients = helpers.started(&clients_of(image)?, &local);
        if !clients.is_empty() {
            return Err(WatchError::InUse { image: image.path(), clients });
        }
    }
    Ok(())
}

impl RbdGate {
    /// Returns the refusal for an error, and adds an event if it is final.
    fn told(&self, error: &LockError) -> Refusal {
        let refusal = refusal(error);
        if let Some(daemon) = self.daemon.0.upgrade().filter(|_| refusal.is_final) {
            daemon.events.add("lock-lost", &self.disk, refusal.why.clone());
        }
        refusal
    }

    /// Adds an event if other clients keep a helper out, once for each reason.
    fn tell_if_kept_out(&self, found: &std::result::Result<(), WatchError>) {
        let Some(why) = self.admission.locked().found(found) else { return };
        if let Some(daemon) = self.daemon.0.upgrade() {
            let message = format!("its helper has exited, and no new one is used for now: {why}");
            daemon.events.add("helper-kept-out", &self.disk, message);
        }
    }
}

fn refusal(error: &LockError) -> Refusal {
    Refusal { why: error.to_string(), is_final: matches!(error, LockError::Lost { .. }) }
}

impl Daemon {
    /// Returns the gate of a disk's helper; `None` if the helper may always be used.
    ///
    /// # Errors
    /// The disk's pool is not open.
    pub(crate) fn gate(
        self: &Arc<Self>,
        config: &DiskConfig,
        id: DiskId,
        device: &BlockDevice,
    ) -> Result<Option<Arc<dyn Gate>>> {
        if config.read_only || Image::all_of(device).is_empty() {
            return Ok(None);
        }
        let holder = self.holder(self.pool(&config.pool)?, config, id, device);
        let own = || {
            let images = Image::all_of(device).into_iter();
            Clients::Own(Mutex::new(images.map(|image| (image, Helpers::default())).collect()))
        };
        let registered = |register| Clients::Registered(Box::new(register), Mutex::default());
        let clients = Register::of(device, &holder).map_or_else(own, registered);
        let (disk, daemon) = (config.name.clone(), DaemonRef(Arc::downgrade(self)));
        let (device, admission) = (device.clone(), Mutex::new(Admission::NotYet));
        Ok(Some(Arc::new(RbdGate { device, holder, clients, admission, disk, daemon })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_helper_out_is_told_once_until_another_one_was_admitted() {
        let is_open = |client: &str| {
            Err(WatchError::InUse { image: "vms/vm1".into(), clients: vec![client.to_string()] })
        };
        let unknown = Err(WatchError::Unknown { image: "vms/vm1".into(), why: "no monitor".into() });
        let mut admission = Admission::NotYet;
        let mut is_told = |found: &std::result::Result<(), WatchError>| admission.found(found).is_some();
        assert!(!is_told(&is_open("10.0.0.1:0/1")), "who attaches it has the error");
        assert!(!is_told(&Ok(())));
        assert!(!is_told(&unknown));
        assert!(is_told(&is_open("10.0.0.1:0/1")));
        assert!(!is_told(&is_open("10.0.0.1:0/1")));
        assert!(!is_told(&unknown));
        assert!(!is_told(&is_open("10.0.0.1:0/1")), "it is still open there");
        assert!(is_told(&is_open("10.0.0.1:0/2")));
        assert!(!is_told(&Ok(())));
        assert!(is_told(&is_open("10.0.0.1:0/2")));
    }
}
