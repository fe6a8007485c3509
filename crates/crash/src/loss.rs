//! Cache devices disappear: the one at risk, or, in some runs, any device of a pool that reports itself whole,
//! repeatedly.

use crate::world::{CrashKind, Flow, Stop, World};

impl World {
    /// Removes the device at risk, or any that the pool can do without.
    pub fn lose_device(&mut self) -> Flow {
        let Some(device) = self.unplug() else { return Ok(()) };
        let is_back_soon = self.losses.as_mut().is_some_and(|rng| rng.one_in(4));
        if is_back_soon {
            // It was away only briefly: the next start finds it unchanged.
            self.devices[device].store.gone = false;
        }
        if is_back_soon || self.rng.one_in(2) {
            self.tell_of_loss(device)?;
        }
        Ok(())
    }

    /// Reports the loss of a device to the core.
    pub(crate) fn tell_of_loss(&mut self, device: usize) -> Flow {
        if let Some(no) = self.devices[device].no {
            let now = self.now;
            self.core().fail_device(now, no);
            self.pump()?;
        }
        Ok(())
    }

    /// Removes a device that may be lost now; the core has not noticed yet.
    pub(crate) fn unplug(&mut self) -> Option<usize> {
        self.note_whole();
        let device = match &mut self.losses {
            Some(rng) => {
                let members: Vec<usize> =
                    (0..self.devices.len()).filter(|i| self.devices[*i].no.is_some()).collect();
                if !self.whole || members.len() < 2 {
                    return None;
                }
                self.counts.faults += 1;
                rng.pick(&members)
            }
            None if self.devices[0].store.gone => return None,
            None => {
                self.note_device_fault();
                0
            }
        };
        self.devices[device].store.gone = true;
        self.whole = false;
        Some(device)
    }

    /// Records whether every dirty block has two copies: the pool reports it, and no device is gone that the pool may
    /// not have missed yet.
    pub(crate) fn note_whole(&mut self) {
        if let Some(core) = &self.core {
            let gone = self.devices.iter().any(|d| d.no.is_some() && d.store.gone);
            self.whole = self.plan.redundancy && !core.pool_stats().degraded && !gone;
        }
    }

    /// Decides whether an imminent fault of the device at risk may cost data.
    pub(crate) fn note_device_fault(&mut self) {
        self.counts.faults += 1;
        let others = self.devices.iter().skip(1).any(|d| d.no.is_some() && !d.store.gone);
        self.unprotected_fault |= !(self.plan.mirrored() && others);
    }

    /// Waits until every dirty block has its mirrored copy, if there are devices for it.
    pub(crate) fn become_whole(&mut self) -> Flow {
        let members = self.devices.iter().filter(|d| d.no.is_some() && !d.store.gone).count();
        if self.losses.is_some() && members >= 2 {
            self.wait("second copies", |world| {
                !world.core.as_ref().is_some_and(|c| c.pool_stats().degraded)
            })?;
        }
        Ok(())
    }

    /// In a run that loses one device after another, removes the next one as soon as the pool can do without it,
    /// together with a power cut. Little has been written in between.
    pub(crate) fn lose_again(&mut self) -> Flow {
        if self.losses.is_none() || self.rng.one_in(2) {
            return Ok(());
        }
        if self.rng.one_in(2) {
            self.clean_all()?;
        }
        self.become_whole()?;
        match self.unplug() {
            Some(_) => Err(Stop::Crash(CrashKind::Power)),
            None => self.change_devices(),
        }
    }

    /// In such a run, adds a new device to the pool or removes one. A crash may interrupt the removal.
    pub(crate) fn change_devices(&mut self) -> Flow {
        let members = self.devices.iter().filter(|d| d.no.is_some() && !d.store.gone).count();
        if members >= 2 && self.rng.one_in(3) {
            let (ios, kind) = (self.rng.below(200), self.rng.pick(&[CrashKind::Kill, CrashKind::Power]));
            self.remove_device()?;
            self.crash_after(ios, kind);
            for _ in 0..self.rng.below(8) {
                self.random_request()?;
            }
            self.clean_all()?;
        } else if members < 4 && self.devices.len() < 8 {
            self.add_device()?;
        }
        Ok(())
    }
}
