//! A volume that amounts to a profile: reuse distances, reads and writes, footprints, sizes.
//!
//! An LRU stack of extents is visited at depths that the plan draws. New data is a new extent, of the size of a
//! request. A visit takes the extent at the depth whole if the distance stays in its range, and otherwise the end of it
//! that lies at the depth: each of its blocks has then exactly that distance, because the last blocks of an extent are
//! the highest. Where the plan of reads and writes has fallen behind, the nearest extent that suits is taken instead,
//! and the plan of distances makes up for it later.

use std::collections::VecDeque;

use super::pattern::{Pattern, Step};
use super::plan::{Plan, Range};
use super::profile::{BLOCK_BYTES, Profile};
use super::random::Random;
use super::sizes::Sizes;
use super::space::Space;
use super::stack::{Extent, Place, Stack, State, States};
use crate::access::Op;

/// How far reads, writes and footprints may be off their course before distances give way, of 1.
const TOLERANCE: f64 = 0.01;
/// The most often a depth is drawn anew.
const MOST_TRIES: u32 = 64;
/// How far a distance may be beyond its range for an extent to stay in one piece: one in so many.
const NEAR: u64 = 32;

/// A figure that grows in step with the references.
#[derive(Default)]
struct Course {
    total: f64,
    done: u64,
    tolerance: f64,
}

impl Course {
    fn new(total: u64) -> Self {
        Course { total: total as f64, done: 0, tolerance: TOLERANCE * total as f64 }
    }

    /// Two that make up a whole: when one runs ahead, the other falls behind, so the smaller decides what is too far.
    fn pair(one: u64, other: u64) -> [Self; 2] {
        let tolerance = TOLERANCE * one.min(other) as f64;
        [one, other].map(|total| Course { tolerance, ..Course::new(total) })
    }

    /// How much is missing at a share of the way.
    fn behind(&self, share: f64) -> f64 {
        self.total * share.min(1.0) - self.done as f64
    }

    fn far_behind(&self, share: f64) -> bool {
        self.behind(share) > 1.0 + self.tolerance * share.min(1.0)
    }
}

/// The pattern of a profile.
pub(super) struct Reuse {
    stack: Stack,
    plan: Plan,
    space: Space,
    /// Of reads and of writes.
    sizes: [Sizes; 2],
    /// The smallest size in blocks, if the mix of sizes is to be kept.
    mix_of: Option<f64>,
    /// References of reads and of writes.
    refs: [Course; 2],
    /// Blocks that are read first, and those that are written first.
    new: [Course; 2],
    /// Blocks that are written after they were only read, and the other way round.
    turned: [Course; 2],
    unique: u64,
    all_refs: f64,
    /// Blocks of a request.
    mean_blocks: u64,
    /// Requests beyond those due at which short distances, which need many small ones, have to wait.
    most_excess: f64,
    requests: VecDeque<Step>,
}

impl Reuse {
    /// The pattern of a checked profile.
    pub fn new(profile: &Profile) -> Self {
        // What is read and written is as large as the larger requests for it: it takes several of the smaller ones.
        let shared = profile.shared();
        let larger_reads = profile.reads.mean_blocks() >= profile.writes.mean_blocks();
        let (read_then_written, written_then_read) = if larger_reads { (shared, 0) } else { (0, shared) };
        let read_first = profile.unique_read - written_then_read;
        let plan = Plan::new(&profile.distances, profile.refs(), profile.unique);
        let mean_blocks = profile.refs() as f64 / profile.requests() as f64;
        let growth = if profile.keep_mix { 1.0 } else { plan.growth(mean_blocks) };
        let sizes = [&profile.reads, &profile.writes].map(|kind| Sizes::new(kind, growth));
        Reuse {
            stack: Stack::new(),
            plan,
            space: Space::new(profile.span_blocks, profile.sequential),
            mix_of: profile.keep_mix.then(|| sizes[0].smallest().min(sizes[1].smallest())),
            sizes,
            refs: Course::pair(profile.reads.refs, profile.writes.refs),
            new: Course::pair(read_first, profile.unique - read_first),
            turned: [Course::new(read_then_written), Course::new(written_then_read)],
            unique: profile.unique,
            all_refs: profile.refs() as f64,
            mean_blocks: mean_blocks as u64,
            most_excess: 4.0 + TOLERANCE / 2.0 * profile.requests() as f64,
            requests: VecDeque::new(),
        }
    }

    /// How far it has come, of 1.
    fn share(&self) -> f64 {
        (self.refs[0].done + self.refs[1].done) as f64 / self.all_refs
    }

    fn visit(&mut self, random: &mut Random) {
        let known = self.stack.blocks(States::ALL);
        let excess: f64 = self.sizes.iter().map(Sizes::excess).sum();
        let shortest = if excess > self.most_excess { self.mean_blocks } else { 0 };
        let range = if known == 0 { None } else { self.plan.draw(known, shortest, random) };
        let new = if range.is_none() { self.new_extent(random) } else { None };
        let (extent, op, distance) = match (new, range) {
            (Some((extent, op)), _) => (extent, op, None),
            (None, Some(range)) => self.known_extent(range, random),
            // No room for new data: the deepest will do.
            (None, None) => self.known_extent(Range::deepest(known), random),
        };
        self.stack.push(extent);
        self.plan.count(distance, extent.blocks);
        self.refs[op as usize].done += u64::from(extent.blocks);
        self.ask(extent, op);
    }

    fn new_extent(&mut self, random: &mut Random) -> Option<(Extent, Op)> {
        let done = self.new[0].done + self.new[1].done;
        let share = (done + 1) as f64 / self.unique as f64;
        let op = if self.new[0].behind(share) >= self.new[1].behind(share) { Op::Read } else { Op::Write };
        let left = u32::try_from(self.unique - done).unwrap_or(u32::MAX);
        let blocks = self.sizes[op as usize].draw(random).min(left);
        if blocks == 0 {
            return None;
        }
        // The first extent ends the volume, the second one begins it: they span it.
        let (start, blocks) = match done {
            0 => self.space.last(blocks),
            _ => self.space.take(blocks, random)?,
        };
        self.new[op as usize].done += u64::from(blocks);
        let state = if op == Op::Read { State::Read } else { State::Written };
        Some((Extent { start, blocks, state }, op))
    }

    /// Takes an extent, or the end of one, out of the stack. Returns it, what is done to it and its distance.
    fn known_extent(&mut self, range: Range, random: &mut Random) -> (Extent, Op, Option<u64>) {
        let (depth, at_depth) = self.find(range, random);
        let (place, op) = self.choose(at_depth, random);
        let whole = place.above + u64::from(place.extent.blocks) - 1;
        let near = whole <= range.upto + range.upto / NEAR;
        let partly = place == at_depth && !near && !self.sizes[op as usize].too_many();
        let blocks = if partly { (depth - place.above + 1) as u32 } else { place.extent.blocks };
        let distance = place.above + u64::from(blocks) - 1;
        self.stack.take(place, blocks);
        let start = place.extent.start + u64::from(place.extent.blocks - blocks);
        let state = self.turn(place.extent.state, op, blocks);
        // A near miss counts as a hit.
        let counted = if place == at_depth && near { distance.min(range.upto) } else { distance };
        (Extent { start, blocks, state }, op, Some(counted))
    }

    /// A depth of the range, and the extent there.
    fn find(&self, range: Range, random: &mut Random) -> (u64, Place) {
        for tries in 1.. {
            let depth = range.distance(self.stack.blocks(States::ALL), random);
            let place = self.stack.find(depth, States::ALL).expect("distances are below the blocks known");
            // A depth hits large extents more often: to keep the mix, the more often it is drawn anew.
            let taken =
                self.mix_of.is_none_or(|smallest| random.chance(smallest / f64::from(place.extent.blocks)));
            if taken || tries == MOST_TRIES {
                return (depth, place);
            }
        }
        unreachable!("the last try is taken")
    }

    /// What to do to the extent that was found, or to the nearest that suits better.
    fn choose(&self, place: Place, random: &mut Random) -> (Place, Op) {
        let share = self.share();
        let behind = [0, 1].map(|op: usize| self.turned[op].behind(share) > 0.0);
        let op = match place.extent.state {
            State::Read if behind[0] => Op::Write,
            State::Written if behind[1] => Op::Read,
            State::Read => Op::Read,
            State::Written => Op::Write,
            // Small requests where they do least harm.
            State::Shared if self.sizes[0].too_many() => Op::Write,
            State::Shared if self.sizes[1].too_many() => Op::Read,
            State::Shared if random.chance(self.refs[0].total / self.all_refs) => Op::Read,
            State::Shared => Op::Write,
        };
        let instead = |op, states: &[State]| {
            let states = States::of(states);
            let nearest = if states.contain(place.extent.state) {
                Some(place)
            } else {
                self.stack.nearest(place, states)
            };
            nearest.map(|place| (place, op))
        };
        let [read, write] = [0, 1].map(|op: usize| self.refs[op].far_behind(share));
        let other = if self.turned[0].far_behind(share) && !read {
            instead(Op::Write, &[State::Read])
        } else if self.turned[1].far_behind(share) && !write {
            instead(Op::Read, &[State::Written])
        } else if read {
            instead(
                Op::Read,
                if behind[1] {
                    &[State::Read, State::Shared, State::Written]
                } else {
                    &[State::Read, State::Shared]
                },
            )
        } else if write {
            instead(
                Op::Write,
                if behind[0] {
                    &[State::Read, State::Shared, State::Written]
                } else {
                    &[State::Written, State::Shared]
                },
            )
        } else {
            None
        };
        other.unwrap_or((place, op))
    }

    /// The state of blocks after something was done to them.
    fn turn(&mut self, state: State, op: Op, blocks: u32) -> State {
        let turned = match (state, op) {
            (State::Read, Op::Write) => 0,
            (State::Written, Op::Read) => 1,
            (state, _) => return state,
        };
        self.turned[turned].done += u64::from(blocks);
        State::Shared
    }

    /// Asks for blocks with as many requests as are due.
    fn ask(&mut self, extent: Extent, op: Op) {
        let sizes = &mut self.sizes[op as usize];
        let requests = sizes.requests(extent.blocks);
        for at in 0..requests {
            let edge = |at: u32| (u64::from(extent.blocks) * u64::from(at) / u64::from(requests)) as u32;
            let (from, to) = (edge(at), edge(at + 1));
            let (head, tail) = sizes.slack(to - from);
            self.requests.push_back(Step {
                volume: 0,
                offset_bytes: (extent.start + u64::from(from)) * BLOCK_BYTES + head,
                length_bytes: (u64::from(to - from) * BLOCK_BYTES - head - tail) as u32,
                op,
            });
        }
    }
}

impl Pattern for Reuse {
    fn next(&mut self, _: f64, random: &mut Random) -> Step {
        loop {
            if let Some(step) = self.requests.pop_front() {
                return step;
            }
            self.visit(random);
        }
    }
}
