//! The host that balances: one at a time.

use crate::key::Key;
use crate::write::{At, Condition};

/// A host's right to balance, which ends with its lease.
///
/// A change that is made under it ([`crate::Directory::begin_move`]) is refused by etcd itself if another host has become
/// the leader meanwhile, however late the host learns of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// The revision at which the leader's key was created.
    pub(crate) created: i64,
}

impl Leadership {
    pub(crate) fn condition(self) -> Condition {
        Condition { key: Key::Leader, at: At::Created(self.created) }
    }
}
