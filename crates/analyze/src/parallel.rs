//! Exact distances on several cores: a batch of references is cut into pieces by time, all pieces are processed at
//! once, and each is then merged with the state before it.
//!
//! Inside a piece everything is known except for the first access to each block. When the piece is merged, that
//! access's distance is the depth of its block among those of the earlier state that the piece has not accessed yet,
//! plus the number of blocks in the piece's own stack at that time.
//!
//! Source: Niu, Dinan, Lu and Sadayappan, "PARDA: a fast parallel reuse distance analysis algorithm", IPDPS'12. The
//! first piece works on the earlier state itself.

use crate::block::{Block, NOWHERE};
use crate::orders::order_of;
use crate::profile::Profile;
use crate::profiles::Profiles;
use crate::reference::{Kind, Reference};
use crate::stack::{Outcome, Stacks, deepen, met, step};
use crate::table::{AHEAD, ANYWHERE};

/// The first piece needs no merge: it may be this much longer than the others.
const FIRST_SHARE: f64 = 1.25;
/// Below n references a piece costs more than it saves.
const SHORTEST: usize = 1 << 16;

/// Exact distances of all references, computed by several threads: among all blocks and, with two orders, also among
/// those of the volume. Depths of versions are kept for as many orders, or for none if nothing is written.
#[derive(Clone)]
pub(crate) struct ParallelStacks<const ORDERS: usize, const DEPTHS: usize> {
    past: Stacks<ORDERS, DEPTHS>,
    profiles: Profiles<ORDERS>,
    sizes: Vec<u64>,
    threads: usize,
}

/// Exact distances among all blocks, computed by several threads.
#[derive(Clone)]
pub struct Parallel(ParallelStacks<1, 1>);

impl Parallel {
    /// Makes an analysis by n threads that is also exact at the given sizes in blocks.
    pub fn new(sizes: &[u64], threads: usize) -> Parallel {
        Parallel(ParallelStacks::new(sizes, threads))
    }

    /// Processes the next references. The more at once, the smaller the cost of merging: millions are good.
    pub fn take(&mut self, references: &[Reference]) {
        self.0.take(references);
    }

    /// Returns the result so far; versions still dirty count with their current depth.
    pub fn profile(&self) -> Profile {
        self.0.profiles().swap_remove(0)
    }
}

/// What a piece cannot determine alone.
enum Open<const ORDERS: usize> {
    /// The first access to a block, with n blocks in the piece's stacks.
    First { reference: Reference, above: [u32; ORDERS] },
    /// The end of the version that the block had before the piece, at this depth within the piece.
    Ended { key: u64, deepest: [u32; ORDERS] },
}

impl<const ORDERS: usize> Open<ORDERS> {
    fn key(&self) -> u64 {
        match self {
            Open::First { reference, .. } => reference.key(),
            Open::Ended { key, .. } => *key,
        }
    }
}

struct Piece<const ORDERS: usize, const DEPTHS: usize> {
    stacks: Stacks<ORDERS, DEPTHS>,
    profiles: Profiles<ORDERS>,
    open: Vec<Open<ORDERS>>,
}

impl<const DEPTHS: usize> ParallelStacks<1, DEPTHS> {
    /// As above, and from now on with distances among the blocks of a volume too: all blocks so far are the first
    /// one's.
    pub fn told_apart<const D: usize>(&self) -> ParallelStacks<2, D> {
        ParallelStacks {
            past: Stacks {
                table: self.past.table.map(Block::everywhere),
                orders: self.past.orders.told_apart(),
            },
            profiles: self.profiles.told_apart(),
            sizes: self.sizes.clone(),
            threads: self.threads,
        }
    }
}

impl<const ORDERS: usize, const DEPTHS: usize> ParallelStacks<ORDERS, DEPTHS> {
    /// Makes an analysis by n threads that is also exact at the given sizes in blocks.
    pub fn new(sizes: &[u64], threads: usize) -> Self {
        ParallelStacks {
            past: Stacks::default(),
            profiles: Profiles::new(sizes, 1),
            sizes: sizes.to_vec(),
            threads: threads.max(1),
        }
    }

    /// Processes the next references.
    pub fn take(&mut self, references: &[Reference]) {
        self.take_in(references, self.threads.min(references.len() / SHORTEST).max(1));
    }

    fn take_in(&mut self, references: &[Reference], pieces: usize) {
        let last_orders = references.iter().map(|reference| order_of(reference.key(), ORDERS - 1));
        let orders = last_orders.max().map_or(0, |last| last + 1);
        self.past.orders.know(orders);
        self.profiles.know(orders);
        let share = references.len() as f64 / (FIRST_SHARE + (pieces - 1) as f64);
        let first = if pieces == 1 { references.len() } else { (share * FIRST_SHARE) as usize };
        let (head, tail) = references.split_at(first);
        let run_head = |past: &mut Stacks<ORDERS, DEPTHS>, profiles: &mut Profiles<ORDERS>| {
            past.touch_all(head, |reference, outcomes| {
                profiles.record(reference.key(), reference.kind(), outcomes);
            });
        };
        if tail.is_empty() {
            return run_head(&mut self.past, &mut self.profiles);
        }
        let (past, profiles, sizes) = (&mut self.past, &mut self.profiles, &self.sizes);
        let done = std::thread::scope(|scope| {
            let later = tail.chunks(tail.len().div_ceil(pieces - 1));
            let running: Vec<_> =
                later.map(|piece| scope.spawn(move || Piece::run(piece, sizes, orders))).collect();
            run_head(past, profiles);
            // A thread fails only if one of our own assertions does.
            running
                .into_iter()
                .map(|thread| thread.join().expect("a piece runs to its end"))
                .collect::<Vec<_>>()
        });
        done.into_iter().for_each(|piece| self.lay(piece));
    }

    /// Returns the result so far in each order; versions still dirty count with their current depth.
    pub fn profiles(&self) -> Vec<Profile> {
        let mut profiles = self.profiles.clone();
        self.past.dirty_versions(1.0).for_each(|(key, deepest)| profiles.record_version(key, deepest));
        profiles.into_vec()
    }

    /// Returns the stacks after all references so far.
    pub fn stack(&self) -> &Stacks<ORDERS, DEPTHS> {
        &self.past
    }

    /// Merges a piece with the state before it.
    fn lay(&mut self, mut piece: Piece<ORDERS, DEPTHS>) {
        self.profiles.merge(&piece.profiles);
        for batch in piece.open.chunks(AHEAD) {
            let spots = self.past.spots_of(batch.iter().map(Open::key));
            batch.iter().zip(spots).for_each(|(open, spot)| self.close(open, spot));
        }
        piece.stacks.renumber(0);
        let (live, mut gone): (Vec<Block<ORDERS, DEPTHS>>, Vec<Block<ORDERS, DEPTHS>>) =
            piece.stacks.table.iter().filter(|block| block.count > 0).partition(|block| block.has_places());
        // The order of all: a volume's blocks are in it as in their own.
        let mut in_order = vec![0; live.len()];
        for (index, block) in live.iter().enumerate() {
            in_order[block.places[0] as usize] = index;
        }
        if (self.past.orders.room() as usize) < live.len() {
            self.past.renumber(live.len() as u32);
        }
        for batch in in_order.chunks(AHEAD) {
            let blocks = batch.iter().map(|index| &live[*index]);
            let spots = self.past.spots_of(blocks.clone().map(Block::key));
            blocks.zip(spots).for_each(|(block, spot)| self.adopt(block, spot));
        }
        // Another table that grows must not be filled in the order of this one: its keys would cluster.
        gone.sort_unstable_by_key(Block::key);
        gone.iter().for_each(|block| self.adopt(block, ANYWHERE));
    }

    /// Computes what a piece left open.
    fn close(&mut self, open: &Open<ORDERS>, spot: usize) {
        let key = open.key();
        let Some(block) = self.past.table.find(key, spot) else {
            if let Open::First { reference, .. } = open {
                self.profiles.record(key, reference.kind(), [Outcome::default(); ORDERS]);
            }
            return;
        };
        match *open {
            Open::First { reference, above } => {
                let mut outcomes = [Outcome::default(); ORDERS];
                if block.has_places() {
                    let mut distances = self.past.orders.after(key, block.places);
                    distances.iter_mut().zip(above).for_each(|(distance, above)| *distance += above);
                    outcomes = met(block, reference.kind(), distances, 1.0);
                    self.past.orders.remove(key, block.places);
                    block.places = [NOWHERE; ORDERS];
                }
                self.profiles.record(key, reference.kind(), outcomes);
            }
            Open::Ended { mut deepest, .. } => {
                if block.is_dirty() {
                    block.set_dirty(false);
                    deepen(block, deepest);
                    deepest.iter_mut().zip(block.deepest).for_each(|(all, whole)| *all = whole);
                    self.profiles.record_version(key, deepest);
                }
            }
        }
    }

    /// Takes over a block in the state in which the piece left it.
    fn adopt(&mut self, from: &Block<ORDERS, DEPTHS>, spot: usize) {
        let (block, _) = self.past.table.find_or_insert(from.key(), spot);
        block.count = block.count.saturating_add(from.count);
        block.set_last(from.last());
        if from.is_inherited() {
            block.deepest.iter_mut().zip(from.deepest).for_each(|(past, piece)| *past = piece.max(*past));
        } else {
            block.set_dirty(from.is_dirty());
            block.deepest = from.deepest;
        }
        if from.has_places() {
            block.places = self.past.orders.push(from.key());
        }
    }
}

impl<const ORDERS: usize, const DEPTHS: usize> Piece<ORDERS, DEPTHS> {
    /// Processes a piece with blocks in n orders.
    fn run(references: &[Reference], sizes: &[u64], orders: usize) -> Self {
        let mut piece =
            Piece { stacks: Stacks::default(), profiles: Profiles::new(sizes, orders), open: Vec::new() };
        piece.stacks.orders.know(orders);
        for batch in references.chunks(AHEAD) {
            let spots = piece.stacks.spots_of(batch.iter().map(|reference| reference.key()));
            batch.iter().zip(spots).for_each(|(reference, spot)| piece.touch(*reference, spot));
        }
        piece
    }

    fn touch(&mut self, reference: Reference, spot: usize) {
        if self.stacks.orders.room() == 0 {
            self.stacks.renumber(0);
        }
        let (key, kind) = (reference.key(), reference.kind());
        let above = self.stacks.orders.live(key);
        let (block, new) = self.stacks.table.find_or_insert(key, spot);
        let inherited = block.is_inherited();
        let mut outcomes = step(&mut self.stacks.orders, block, kind, 1.0);
        if new {
            self.open.push(Open::First { reference, above });
            if kind == Kind::Read {
                block.set_dirty(true);
                block.set_inherited(true);
            }
            return;
        }
        if inherited && outcomes[0].ended.is_some() {
            block.set_inherited(false);
            let deepest = outcomes.each_mut().map(|outcome| outcome.ended.take().unwrap_or(0));
            self.open.push(Open::Ended { key, deepest });
        }
        self.profiles.record(key, kind, outcomes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Class, Distances};
    use crate::reference::{BLOCK_BITS, volume_of};
    use proptest::prelude::*;

    fn reference() -> impl Strategy<Value = Reference> {
        let kind = prop_oneof![5 => Just(Kind::Read), 4 => Just(Kind::Write), 1 => Just(Kind::Discard)];
        (0u64..60, kind).prop_map(|(key, kind)| Reference::new(key, kind))
    }

    #[derive(PartialEq, Debug)]
    struct Figures {
        below_sizes: Vec<([f64; 4], f64)>,
        cold: (f64, f64),
        distances: [Distances; 2],
        counts: Vec<u32>,
    }

    /// Returns the result in each order.
    fn figures<const ORDERS: usize, const DEPTHS: usize>(
        parallel: &ParallelStacks<ORDERS, DEPTHS>,
    ) -> Vec<Figures> {
        let found = parallel.profiles().into_iter().zip(parallel.stack().counts_in_orders());
        let figures = |(profile, mut counts): (Profile, Vec<u32>)| {
            let at = |size: u64| {
                let classes = Class::ALL.map(|class| profile.class(class).below(size));
                (classes, profile.dirty_evictions(size))
            };
            counts.sort_unstable();
            Figures {
                below_sizes: (0..70).map(at).collect(),
                cold: (profile.cold_reads(), profile.cold_writes()),
                distances: [profile.all_distances(), profile.useful_distances()],
                counts,
            }
        };
        found.map(figures).collect()
    }

    /// The same blocks, spread over three volumes.
    fn in_volumes(references: &[Reference]) -> Vec<Reference> {
        let spread = |r: &Reference| Reference::new((r.key() % 3) << BLOCK_BITS | r.key(), r.kind());
        references.iter().map(spread).collect()
    }

    proptest! {
        #[test]
        fn pieces_put_together_are_the_whole(
            references in prop::collection::vec(reference(), 0..2000),
            pieces in 2usize..6,
            batch in 50usize..900,
        ) {
            let (mut whole, mut parts) = (ParallelStacks::<1, 1>::new(&[], 1), ParallelStacks::<1, 1>::new(&[], 1));
            whole.take_in(&references, 1);
            references.chunks(batch).for_each(|batch| parts.take_in(batch, pieces));
            prop_assert_eq!(figures(&whole), figures(&parts));
        }

        #[test]
        fn volumes_together_are_what_they_are_alone(
            references in prop::collection::vec(reference(), 1..2000),
            first in 0usize..500,
            pieces in 1usize..4,
            batch in 50usize..900,
        ) {
            let mut references = in_volumes(&references);
            let first = first.min(references.len());
            // Up to here there is only one volume.
            references[..first].iter_mut().for_each(|r| *r = Reference::new(r.key() & 0xff, r.kind()));
            let mut one = ParallelStacks::<1, 1>::new(&[], 1);
            one.take_in(&references[..first], pieces);
            let mut together: ParallelStacks<2, 2> = one.told_apart();
            references[first..].chunks(batch).for_each(|batch| together.take_in(batch, pieces));
            let alone = |chosen: &dyn Fn(usize) -> bool| {
                let mut parallel = ParallelStacks::<1, 1>::new(&[], 1);
                let chosen = references.iter().filter(|reference| chosen(volume_of(reference.key())));
                parallel.take_in(&chosen.copied().collect::<Vec<_>>(), 1);
                figures(&parallel).swap_remove(0)
            };
            for (order, found) in figures(&together).into_iter().enumerate() {
                prop_assert_eq!(found, alone(&|volume| order == 0 || order == 1 + volume));
            }
        }

        #[test]
        fn reads_alone_need_no_depths(
            references in prop::collection::vec(reference(), 1..2000),
            pieces in 1usize..4,
        ) {
            let reads = in_volumes(&references).into_iter().filter(|r| r.kind() != Kind::Write);
            let reads: Vec<_> = reads.collect();
            let mut without = ParallelStacks::<1, 0>::new(&[], 1).told_apart::<0>();
            let mut with = ParallelStacks::<1, 1>::new(&[], 1).told_apart::<2>();
            without.take_in(&reads, pieces);
            with.take_in(&reads, 1);
            prop_assert_eq!(figures(&without), figures(&with));
        }
    }
}
