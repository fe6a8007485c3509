//! What decides whether the helper of a disk on RBD images may be used: its pool must have the locks.
//!
//! A helper that ends is started again, and is a new Ceph client, which nobody has blocklisted. So whoever takes an image away
//! from a pool takes its lock away first, and then keeps out the clients that it finds.
//!
//! Invariants
//! - No request is sent through a helper that has opened an image after the pool's lock of it was taken away.
//! - If the disk moves between hosts, the helper's client is in the image's register before that is looked at
//!   ([`super::register`]). If it does not, whoever takes the lock away finds the client among those that have the image open.
//! - If the disk does not move, no other client has an image open when a helper is admitted that replaces another one: whoever
//!   blocklists a helper by hand, and opens the image, is not disturbed by its successor ([`super::own`]).

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
    disk: String,
    daemon: DaemonRef,
}

/// Who may have the images open.
#[derive(Debug)]
enum Clients {
    /// The disk moves: clients of all its hosts, in the register, which had these before the helper was started.
    Registered(Box<Register>, Mutex<Vec<String>>),
    /// The disk's helpers, by image.
    Own(Mutex<Vec<(Image, Helpers)>>),
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
                    helpers.starting(&clients_of(image)?, &local);
                }
            }
        }
        Ok(())
    }

    fn admit(&self) -> std::result::Result<(), Refusal> {
        let checked = match &self.clients {
            Clients::Registered(register, earlier) => register.admit(&earlier.locked().clone()),
            Clients::Own(images) => {
                let local = watchers::local_addresses();
                for (image, helpers) in images.locked().iter_mut() {
                    refuse_others(image, helpers.started(&clients_of(image)?, &local))?;
                }
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
fn clients_of(image: &Image) -> std::result::Result<Vec<String>, Refusal> {
    watchers::clients_of(image).map_err(|why| for_now(&WatchError::Unknown { image: image.path(), why }))
}

fn refuse_others(image: &Image, clients: Vec<String>) -> std::result::Result<(), Refusal> {
    match clients.is_empty() {
        true => Ok(()),
        false => Err(for_now(&WatchError::InUse { image: image.path(), clients })),
    }
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
}

fn refusal(error: &LockError) -> Refusal {
    Refusal { why: error.to_string(), is_final: matches!(error, LockError::Lost { .. }) }
}

impl Daemon {
    /// Returns what decides whether the helper of a disk may be used, if something does.
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
        Ok(Some(Arc::new(RbdGate { device: device.clone(), holder, clients, disk, daemon })))
    }
}
