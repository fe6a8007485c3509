//! The messages of a disk's hosts. Messages may be lost, delayed, repeated and reordered.

use std::collections::BTreeSet;

pub use haversack_model::HostId;

/// A release of a disk: the epoch of the next owner, and the hosts that have dirty blocks. Of a block that
/// several have, the one written under the highest epoch counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant {
    /// The epoch of the next owner.
    pub epoch: u64,
    /// The hosts with dirty blocks.
    pub holders: BTreeSet<HostId>,
}

/// A message.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message {
    /// The sender's guest needs the disk.
    Ask {
        /// The release to the receiver that the sender knows of. The receiver may not know of it.
        granted: Option<Grant>,
    },
    /// The receiver owns the disk now.
    Granted(Grant),
    /// The sender has released the disk to another host.
    GoTo {
        /// That host.
        to: HostId,
        /// Its grant.
        grant: Grant,
    },
    /// The sender's guest runs, or it depends on a peer, or something is being recorded: ask again.
    NotYet,
}
