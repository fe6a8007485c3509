//! Which host balances: one at a time.

use crate::key::Key;
use crate::view::View;
use crate::write::{At, Condition};

/// A host's right to balance, which ends with its lease.
///
/// A change that is made under it ([`crate::Change::begin_move`]) is refused by etcd itself if another host has become
/// the leader meanwhile, however late the host learns of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// The revision at which the leader's key was created.
    pub(crate) created: i64,
}

impl Leadership {
    /// Makes the right of the host whose key was created at a revision.
    pub fn since(created: i64) -> Leadership {
        Leadership { created }
    }

    /// Whether a view has everything that others have written before this host became the leader.
    pub fn is_seen(self, view: &View) -> bool {
        view.revision >= self.created
    }

    pub(crate) fn condition(self) -> Condition {
        Condition { key: Key::Leader, at: At::Created(self.created) }
    }
}
