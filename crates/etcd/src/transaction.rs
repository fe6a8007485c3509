//! The transactions of etcd that carry writes out.

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use haversack_directory::{At, Condition, Key, Write};

/// Returns a transaction in which each write is carried out if its own key is as expected, whatever becomes of the
/// others.
pub(crate) fn each(writes: &[Write]) -> Txn {
    Txn::new().and_then(writes.iter().map(nested).collect::<Vec<_>>())
}

fn operation(write: &Write) -> TxnOp {
    let key = write.key.to_string();
    match &write.value {
        Some(value) => TxnOp::put(key, value.clone(), Some(PutOptions::new().with_lease(write.lease))),
        None => TxnOp::delete(key, None),
    }
}

/// Returns the write as an operation of a transaction: one of its own if it depends on what is there.
fn nested(write: &Write) -> TxnOp {
    match write.condition() {
        Some(condition) => TxnOp::txn(Txn::new().when([compare(&condition)]).and_then([operation(write)])),
        None => operation(write),
    }
}

fn compare(condition: &Condition) -> Compare {
    let key = condition.key.to_string();
    match condition.at {
        At::Changed(revision) => Compare::mod_revision(key, CompareOp::Equal, revision),
        At::Created(revision) => Compare::create_revision(key, CompareOp::Equal, revision),
    }
}

/// A transaction in which all writes are carried out, or none.
pub(crate) struct All {
    conditions: Vec<Condition>,
}

impl All {
    /// Returns the transaction. It depends on what the writes expect, and on more conditions.
    pub fn new(writes: &[Write], more: &[Condition]) -> (All, Txn) {
        let conditions: Vec<_> =
            writes.iter().filter_map(Write::condition).chain(more.iter().cloned()).collect();
        // If the transaction is refused, the present values show why.
        let look = |condition: &Condition| {
            TxnOp::get(condition.key.to_string(), Some(GetOptions::new().with_keys_only()))
        };
        let txn = Txn::new()
            .when(conditions.iter().map(compare).collect::<Vec<_>>())
            .and_then(writes.iter().map(operation).collect::<Vec<_>>())
            .or_else(conditions.iter().map(look).collect::<Vec<_>>());
        (All { conditions }, txn)
    }

    /// Returns the first key that was not as it must be.
    pub fn refused(&self, answer: &TxnResponse) -> Option<&Key> {
        let found = answer.op_responses();
        let fails = |(condition, found): &(&Condition, &TxnOpResponse)| match found {
            TxnOpResponse::Get(found) => {
                let kv = found.kvs().first();
                !condition
                    .holds(kv.map_or(0, KeyValue::create_revision), kv.map_or(0, KeyValue::mod_revision))
            }
            _ => false,
        };
        self.conditions.iter().zip(&found).find(fails).map(|(condition, _)| &condition.key)
    }
}
