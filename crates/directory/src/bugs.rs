//! Planted bugs that the crash simulator of a cluster must catch. Without the feature `bug-zoo`, `planted` is always
//! false at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A disk's entry is replaced regardless of its epoch.
    ReplaceAnyEntry,
    /// A host that knows a disk claims it when the lease of its owner has ended.
    ClaimFromDead,
    /// Another host's intent is removed.
    EndAnyMove,
    /// Intents count as abandoned as soon as their driver's lease has ended.
    AbandonAtOnce,
    /// A host that has led begins moves although another one leads now.
    LeadForEver,
    /// A new leader starts with an empty history of moves.
    ForgetMoves,
    /// A VM is moved before the next leader can know of it.
    HandOnLate,
}

/// All of them.
pub const ALL: &[Bug] = &[
    Bug::ReplaceAnyEntry,
    Bug::ClaimFromDead,
    Bug::EndAnyMove,
    Bug::AbandonAtOnce,
    Bug::LeadForEver,
    Bug::ForgetMoves,
    Bug::HandOnLate,
];

haversack_model::bug_switch!(Bug);
