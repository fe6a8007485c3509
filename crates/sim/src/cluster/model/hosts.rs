//! A host of a model.

use haversack_cluster::HostState;

/// A host with the VMs on it.
#[derive(Clone, Debug)]
pub struct ModelHost {
    /// Its state.
    pub state: HostState,
    /// Its VMs.
    pub here: Vec<u32>,
    /// The window in which it is back.
    back_in: u64,
}

impl ModelHost {
    /// A serving host.
    pub fn new(here: Vec<u32>) -> ModelHost {
        ModelHost { state: HostState::Serving, here, back_in: 0 }
    }

    /// Makes the host away until a window.
    pub fn leaves(&mut self, until: u64) {
        (self.state, self.back_in) = (HostState::Away, until);
    }

    /// Makes an absent host serve again if its window has come.
    pub fn returns(&mut self, window: u64) {
        if self.state == HostState::Away && self.back_in <= window {
            self.state = HostState::Serving;
        }
    }
}
