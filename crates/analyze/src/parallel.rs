//! Exact distances on several cores: a batch of references is cut into pieces of time, all pieces run at once, and each
//! is then laid onto what came before it.
//!
//! Inside a piece everything is known but the first access to each block. Laid onto the stack of the past, that access's
//! distance is the depth of its block among those of the past that the piece has not touched yet, and the number of
//! blocks that the piece has in its own stack by then.
//!
//! Source: Niu, Dinan, Lu and Sadayappan, "PARDA: a fast parallel reuse distance analysis algorithm", IPDPS'12. The first
//! piece runs on the past itself.

use crate::block::{Block, NOWHERE};
use crate::profile::Profile;
use crate::reference::{Kind, Reference};
use crate::stack::{Outcome, Stack, met, step};
use crate::table::{AHEAD, ANYWHERE};

/// The first piece has no merge before it: it may be so much longer than the others.
const FIRST_SHARE: f64 = 1.25;
/// Below so many references a piece costs more than it gains.
const SHORTEST: usize = 1 << 16;

/// Exact distances of all references, found by several threads.
#[derive(Clone)]
pub struct Parallel {
    past: Stack,
    profile: Profile,
    sizes: Vec<u64>,
    threads: usize,
}

/// What a piece cannot know alone.
enum Open {
    /// The first access to a block, with so many blocks in the piece's stack.
    First { reference: Reference, above: u32 },
    /// The end of the version that the block had before the piece, so deep within the piece.
    Ended { key: u64, deepest: u32 },
}

impl Open {
    fn key(&self) -> u64 {
        match self {
            Open::First { reference, .. } => reference.key(),
            Open::Ended { key, .. } => *key,
        }
    }
}

struct Piece {
    stack: Stack,
    profile: Profile,
    open: Vec<Open>,
}

impl Parallel {
    /// Distances by so many threads, exact at the given sizes in blocks too.
    pub fn new(sizes: &[u64], threads: usize) -> Parallel {
        Parallel {
            past: Stack::default(),
            profile: Profile::new(sizes),
            sizes: sizes.to_vec(),
            threads: threads.max(1),
        }
    }

    /// Takes the next references. The more at once, the less is lost in putting pieces together: millions are good.
    pub fn take(&mut self, references: &[Reference]) {
        self.take_in(references, self.threads.min(references.len() / SHORTEST).max(1));
    }

    fn take_in(&mut self, references: &[Reference], pieces: usize) {
        let share = references.len() as f64 / (FIRST_SHARE + (pieces - 1) as f64);
        let first = if pieces == 1 { references.len() } else { (share * FIRST_SHARE) as usize };
        let (head, tail) = references.split_at(first);
        let run_head = |past: &mut Stack, profile: &mut Profile| {
            past.touch_all(head, |reference, outcome| profile.record(reference.kind(), outcome, 1.0));
        };
        if tail.is_empty() {
            return run_head(&mut self.past, &mut self.profile);
        }
        let (past, profile, sizes) = (&mut self.past, &mut self.profile, &self.sizes);
        let done = std::thread::scope(|scope| {
            let later = tail.chunks(tail.len().div_ceil(pieces - 1));
            let running: Vec<_> = later.map(|piece| scope.spawn(|| Piece::run(piece, sizes))).collect();
            run_head(past, profile);
            // A thread fails only if one of our own assertions does.
            running
                .into_iter()
                .map(|thread| thread.join().expect("a piece runs to its end"))
                .collect::<Vec<_>>()
        });
        done.into_iter().for_each(|piece| self.lay(piece));
    }

    /// What has been seen, with versions still dirty counted as deep as they are now.
    pub fn profile(&self) -> Profile {
        let mut profile = self.profile.clone();
        self.past.dirty().for_each(|deepest| profile.record_version(deepest, 1.0));
        profile
    }

    /// The stack after all references so far.
    pub fn stack(&self) -> &Stack {
        &self.past
    }

    /// Lays a piece onto the past.
    fn lay(&mut self, mut piece: Piece) {
        self.profile.merge(&piece.profile);
        for batch in piece.open.chunks(AHEAD) {
            let spots = self.past.spots_of(batch.iter().map(Open::key));
            batch.iter().zip(spots).for_each(|(open, spot)| self.close(open, spot));
        }
        piece.stack.renumber(0);
        let (live, mut gone): (Vec<Block>, Vec<Block>) = piece
            .stack
            .table
            .iter()
            .filter(|block| block.count > 0)
            .partition(|block| block.place != NOWHERE);
        let mut in_order = vec![0; live.len()];
        for (index, block) in live.iter().enumerate() {
            in_order[block.place as usize] = index;
        }
        if (self.past.order.room() as usize) < live.len() {
            self.past.renumber(live.len() as u32);
        }
        for batch in in_order.chunks(AHEAD) {
            let blocks = batch.iter().map(|index| &live[*index]);
            let spots = self.past.spots_of(blocks.clone().map(Block::key));
            blocks.zip(spots).for_each(|(block, spot)| self.adopt(block, spot));
        }
        // Another table that grows must not take them in the order of this one: it would crowd.
        gone.sort_unstable_by_key(Block::key);
        gone.iter().for_each(|block| self.adopt(block, ANYWHERE));
    }

    /// Answers what a piece left open.
    fn close(&mut self, open: &Open, spot: usize) {
        let Some(block) = self.past.table.find(open.key(), spot) else {
            if let Open::First { reference, .. } = open {
                self.profile.record(reference.kind(), Outcome::default(), 1.0);
            }
            return;
        };
        match *open {
            Open::First { reference, above } => {
                let mut outcome = Outcome::default();
                if block.place != NOWHERE {
                    outcome = met(block, reference.kind(), self.past.order.after(block.place) + above);
                    self.past.order.remove(block.place);
                    block.place = NOWHERE;
                }
                self.profile.record(reference.kind(), outcome, 1.0);
            }
            Open::Ended { deepest, .. } => {
                if block.is_dirty() {
                    block.set_dirty(false);
                    self.profile.record_version(block.deepest.max(deepest), 1.0);
                }
            }
        }
    }

    /// Takes a block over as the piece left it.
    fn adopt(&mut self, from: &Block, spot: usize) {
        let (block, _) = self.past.table.find_or_insert(from.key(), spot);
        block.count = block.count.saturating_add(from.count);
        block.set_last(from.last());
        if from.is_inherited() {
            block.deepest = block.deepest.max(from.deepest);
        } else {
            block.set_dirty(from.is_dirty());
            block.deepest = from.deepest;
        }
        if from.place != NOWHERE {
            block.place = self.past.order.push();
        }
    }
}

impl Piece {
    fn run(references: &[Reference], sizes: &[u64]) -> Piece {
        let mut piece = Piece { stack: Stack::default(), profile: Profile::new(sizes), open: Vec::new() };
        for batch in references.chunks(AHEAD) {
            let spots = piece.stack.spots_of(batch.iter().map(|reference| reference.key()));
            batch.iter().zip(spots).for_each(|(reference, spot)| piece.touch(*reference, spot));
        }
        piece
    }

    fn touch(&mut self, reference: Reference, spot: usize) {
        if self.stack.order.room() == 0 {
            self.stack.renumber(0);
        }
        let (key, kind) = (reference.key(), reference.kind());
        let above = self.stack.order.live();
        let (block, new) = self.stack.table.find_or_insert(key, spot);
        let inherited = block.is_inherited();
        let mut outcome = step(&mut self.stack.order, block, kind);
        if new {
            self.open.push(Open::First { reference, above });
            if kind == Kind::Read {
                block.set_dirty(true);
                block.set_inherited(true);
            }
            return;
        }
        if inherited && let Some(deepest) = outcome.ended.take() {
            block.set_inherited(false);
            self.open.push(Open::Ended { key, deepest });
        }
        self.profile.record(kind, outcome, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Class;
    use proptest::prelude::*;

    fn reference() -> impl Strategy<Value = Reference> {
        let kind = prop_oneof![5 => Just(Kind::Read), 4 => Just(Kind::Write), 1 => Just(Kind::Discard)];
        (0u64..60, kind).prop_map(|(key, kind)| Reference::new(key, kind))
    }

    fn figures(profile: &Profile, stack: &Stack) -> impl PartialEq + std::fmt::Debug + use<> {
        let at = |size: u64| {
            let classes = Class::ALL.map(|class| profile.class(class).below(size));
            (classes, profile.dirty_evictions(size))
        };
        let mut counts: Vec<u32> = stack.counts().collect();
        counts.sort_unstable();
        let cold = (profile.cold_reads(), profile.cold_writes());
        (
            (0..70).map(at).collect::<Vec<_>>(),
            cold,
            profile.all_distances(),
            profile.useful_distances(),
            counts,
        )
    }

    proptest! {
        #[test]
        fn pieces_put_together_are_the_whole(
            references in prop::collection::vec(reference(), 0..2000),
            pieces in 2usize..6,
            batch in 50usize..900,
        ) {
            let (mut whole, mut parts) = (Parallel::new(&[], 1), Parallel::new(&[], 1));
            whole.take_in(&references, 1);
            references.chunks(batch).for_each(|batch| parts.take_in(batch, pieces));
            prop_assert_eq!(figures(&whole.profile(), whole.stack()), figures(&parts.profile(), parts.stack()));
        }
    }
}
