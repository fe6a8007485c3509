//! Pools and devices as they are right after their creation, which takes longer than most runs and always gives the
//! same.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use haversack_core::{NewDevice, PoolError};
use haversack_model::DeviceNo;

use crate::device::Store;

/// Pools and devices kept at most.
const MOST_KEPT: usize = 2048;

/// What the contents depend on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// A new pool.
    Pool {
        /// Of each device.
        segments: Vec<u32>,
        /// Dirty blocks on two devices.
        redundancy: bool,
    },
    /// A device that is to join the pool.
    Device {
        /// Its place in the host, which decides its identity.
        place: usize,
        /// Its number in the pool.
        number: DeviceNo,
        /// Its size.
        segments: u32,
    },
}

/// A device that was just formatted.
#[derive(Clone)]
pub struct Created {
    /// What is on it.
    pub store: Store,
    /// What the core wants of a device that joins a pool.
    pub joins: Option<NewDevice>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

#[derive(Default)]
struct Kept {
    devices: HashMap<Shape, Vec<Created>>,
    /// Of each place, the first device that was created there. Others share its pages.
    firsts: BTreeMap<usize, Store>,
}

impl Kept {
    fn keep(&mut self, shape: Shape, devices: &mut [Created]) {
        let first = match shape {
            Shape::Pool { .. } => 0,
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

/// The new devices; `create` makes them when there were none of that shape lately.
///
/// # Errors
/// What `create` answers.
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
