//! What decides whether the helper of a disk on RBD images may be used: its pool must have the locks.
//!
//! A helper that ends is started again, and is a new Ceph client, which nobody has blocklisted. So whoever takes an image away
//! from a pool takes its lock away first, and then keeps out the clients that it finds.
//!
//! Invariants
//! - No request is sent through a helper that has opened an image after the pool's lock of it was taken away.
//! - If the disk moves between hosts, the helper's client is in the image's register before that is looked at
//!   ([`super::register`]). If it does not, whoever takes the lock away finds the client among those that have the image open.
//! - If the disk does not move, no client on another host has an image open when a helper is admitted: whoever blocklists a helper
//!   by hand, and opens the image elsewhere, is not disturbed by its successor.

use std::sync::{Arc, Mutex, Weak};

use haversack_api::DiskConfig;
use haversack_model::DiskId;

use super::Image;
use super::lock::{self, Holder, LockError};
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
    /// Set if the disk moves, with the clients before the helper was started.
    register: Option<(Register, Mutex<Vec<String>>)>,
    disk: String,
    daemon: DaemonRef,
}

struct DaemonRef(Weak<Daemon>);

impl std::fmt::Debug for DaemonRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Daemon")
    }
}

impl Gate for RbdGate {
    fn prepare(&self) -> std::result::Result<(), Refusal> {
        let Some((register, earlier)) = &self.register else { return Ok(()) };
        *earlier.locked() = register.clients().map_err(|error| refusal(&error))?;
        Ok(())
    }

    fn admit(&self) -> std::result::Result<(), Refusal> {
        let checked = match &self.register {
            Some((register, earlier)) => register.admit(&earlier.locked().clone()),
            None => {
                self.refuse_other_hosts()?;
                lock::check_held(&self.device, &self.holder)
            }
        };
        checked.map_err(|error| self.told(&error))
    }

    fn confirm(&self) -> std::result::Result<(), Refusal> {
        let checked = match &self.register {
            Some((register, _)) => register.confirm(),
            None => lock::check_held(&self.device, &self.holder),
        };
        checked.map_err(|error| self.told(&error))
    }
}

impl RbdGate {
    /// Clients on this host may be what is left of earlier helpers.
    fn refuse_other_hosts(&self) -> std::result::Result<(), Refusal> {
        let refused = |error: WatchError| Refusal { why: error.to_string(), is_final: false };
        watchers::refuse_other_clients(&self.device, &self.holder, true).map_err(refused)
    }

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
        let register = Register::of(device, &holder).map(|register| (register, Mutex::default()));
        let (disk, daemon) = (config.name.clone(), DaemonRef(Arc::downgrade(self)));
        Ok(Some(Arc::new(RbdGate { device: device.clone(), holder, register, disk, daemon })))
    }
}
