//! Pools and devices in their state right after creation, which takes longer than most runs and always has the same
//! result.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use haversack_core::{NewDevice, PoolError};
use haversack_model::DeviceNo;

use crate::device::Store;
use crate::remains::Remains;

/// Maximum number of pools and devices kept.
const MOST_KEPT: usize = 2048;

/// Devices of two hosts are kept at indices from this on.
const FIRST_OF_HOSTS: usize = 1 << 16;
/// Maximum number of devices of one of two hosts.
const MOST_OF_A_HOST: usize = 8;

/// The parameters that determine the contents.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// A new pool.
    Pool {
        /// Segments of each device.
        segments: Vec<u32>,
        /// Dirty blocks on two devices.
        redundancy: bool,
        /// Segments of each device that are prepared when it is formatted.
        prepared: u32,
        /// What was on the devices before.
        remains: Remains,
    },
    /// A new pool of one of two hosts.
    Host {
        /// Which one.
        place: usize,
        /// Segments of each device.
        segments: Vec<u32>,
        /// Dirty blocks on two devices.
        redundancy: bool,
        /// Segments of each device that are prepared when it is formatted.
        prepared: u32,
    },
    /// A device that is to join the pool.
    Device {
        /// Its index in the host, which determines its identity.
        place: usize,
        /// Its number in the pool.
        number: DeviceNo,
        /// Its size.
        segments: u32,
        /// Segments that are prepared when the device is formatted.
        prepared: u32,
        /// What was on it before.
        remains: Remains,
    },
}

/// A newly formatted device.
#[derive(Clone)]
pub struct Created {
    /// What is on it.
    pub store: Store,
    /// What the core needs to know about a device that joins a pool.
    pub joins: Option<NewDevice>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

#[derive(Default)]
struct Kept {
    devices: HashMap<Shape, Vec<Created>>,
    /// For each index, the first device that was created there. Others share its pages.
    firsts: BTreeMap<usize, Store>,
}

impl Kept {
    fn keep(&mut self, shape: Shape, devices: &mut [Created]) {
        let first = match shape {
            Shape::Pool { .. } => 0,
            Shape::Host { place, .. } => FIRST_OF_HOSTS + MOST_OF_A_HOST * place,
            Shape::Device { place, .. } => place,
        };
        for (at, device) in devices.iter_mut().enumerate() {
            match self.firsts.get(&(first + at)) {
                Some(like) => device.store.share_equal_pages(like),
                None => drop(self.firsts.insert(first + at, device.store.clone())),
            }
        }
        if self.devices.len() >= MOST_KEPT {
            self.devices.clear();
        }
        self.devices.insert(shape, devices.to_vec());
    }
}

/// Returns new devices; `create` makes them if there were none of that shape recently.
///
/// # Errors
/// Those of `create`.
pub fn devices(
    shape: Shape,
    create: impl FnOnce() -> Result<Vec<Created>, PoolError>,
) -> Result<Vec<Created>, PoolError> {
    let known = KEPT.with_borrow(|kept| kept.devices.get(&shape).cloned());
    if let Some(devices) = known {
        return Ok(devices);
    }
    let mut devices = create()?;
    KEPT.with_borrow_mut(|kept| kept.keep(shape, &mut devices));
    Ok(devices)
}
