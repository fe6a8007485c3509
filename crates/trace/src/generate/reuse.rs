//! A volume with the figures of a profile: reuse distances, reads and writes, footprints, sizes.
//!
//! An LRU stack of extents is visited at depths that the plan draws. New data is a new extent, of the size of a
//! request. A visit takes the whole extent at the depth if the distance stays in its range, and otherwise the end of
//! it that lies at the depth: each of its blocks then has exactly that distance, because the last blocks of an extent
//! are the highest. The two parts are merged again as soon as they are permanently adjacent in the stack.
//!
//! Whether a read or a write comes next is drawn according to what is due of each. If no extent suits a range of
//! distances, the range is drawn again, and so it is after a visit that would need a request too many. Only if that
//! does not help, and the plan of reads and writes is far behind, the nearest suitable extent is taken, or new data
//! if there are too few blocks of the kind; the plan of distances compensates for that later.

use std::collections::VecDeque;

use super::course::Course;
use super::pattern::{Pattern, Step};
use super::plan::{Plan, Range};
use super::profile::{BLOCK_BYTES, Profile};
use super::random::Random;
use super::sizes::Sizes;
use super::space::Space;
use super::stack::{Extent, Place, Stack, State, States};
use crate::access::Op;

/// The most attempts to draw a range of distances.
const MOST_DRAWS: u32 = 8;
/// The probability that a visit is made although its request is one too many.
const UNWELCOME: f64 = 0.1;
/// States of blocks that reads, and writes, can visit; those whose state they would change come last.
const KNOWN: [[State; 3]; 2] =
    [[State::Read, State::Shared, State::Written], [State::Written, State::Shared, State::Read]];
/// The most attempts to draw a depth.
const MOST_TRIES: u32 = 64;
/// How far a distance may be outside its range for an extent to stay whole: one in n.
const NEAR: u64 = 32;

/// An extent to be visited, and the depth in it that a range of distances requires.
#[derive(Clone, Copy)]
struct Target {
    place: Place,
    depth: u64,
    range: Range,
}

impl Target {
    fn state(&self) -> State {
        self.place.extent.state
    }

    /// Returns whether the extent has a distance of the range.
    fn fits(&self) -> bool {
        self.range.holds(self.depth)
    }

    /// Returns the depth of the extent's first block, the last to be reached.
    fn bottom(&self) -> u64 {
        self.place.above + u64::from(self.place.extent.blocks) - 1
    }

    /// Returns whether a visit of the whole extent would be too far outside the range.
    fn splits(&self) -> bool {
        self.bottom() > self.range.upto + self.range.upto / NEAR
    }

    /// Returns the blocks of a visit at the depth.
    fn blocks(&self) -> u32 {
        if self.splits() { (self.depth - self.place.above + 1) as u32 } else { self.place.extent.blocks }
    }

    /// Returns what can be done without making read-only blocks written, or written-only blocks read; `op` if both can.
    fn natural_op(&self, op: Op) -> Op {
        match self.state() {
            State::Read => Op::Read,
            State::Written => Op::Write,
            State::Shared => op,
        }
    }
}

/// The operation for the next known block.
struct Due {
    op: Op,
    /// The states of extents for which it is suitable.
    states: &'static [State],
    /// Whether it has waited long enough for a suitable distance.
    must: bool,
}

/// The pattern of a profile.
pub(super) struct Reuse {
    stack: Stack,
    plan: Plan,
    space: Space,
    /// For reads and for writes.
    sizes: [Sizes; 2],
    /// The smallest size in blocks, if the mix of sizes is to be kept.
    mix_of: Option<f64>,
    /// References of reads and of writes to known blocks.
    again: [Course; 2],
    /// Blocks that are read first, and those that are written first.
    new: [Course; 2],
    /// Blocks that are written after they were only read, and the reverse.
    turned: [Course; 2],
    unique: u64,
    all_again: u64,
    /// The first blocks of the parts that were split off an extent last.
    split: Option<u64>,
    requests: VecDeque<Step>,
}

impl Reuse {
    /// Makes the pattern of a checked profile.
    pub fn new(profile: &Profile) -> Self {
        // Blocks that are both read and written have the size of the larger requests: several of the smaller requests
        // are needed for one.
        let shared = profile.shared();
        let larger_reads = profile.reads.mean_blocks() >= profile.writes.mean_blocks();
        let (read_then_written, written_then_read) = if larger_reads { (shared, 0) } else { (0, shared) };
        let read_first = profile.unique_read - written_then_read;
        let write_first = profile.unique - read_first;
        let plan = Plan::new(&profile.distances, profile.refs(), profile.unique);
        let sizes = [(&profile.reads, read_first), (&profile.writes, write_first)];
        let sizes = sizes.map(|(kind, new)| {
            let known = 1.0 - new as f64 / kind.refs.max(1) as f64;
            let growth = (!profile.keep_mix).then(|| plan.growth(kind.mean_blocks(), known));
            Sizes::new(kind, growth)
        });
        Reuse {
            stack: Stack::new(),
            plan,
            space: Space::new(profile.span_blocks, profile.sequential),
            mix_of: profile.keep_mix.then(|| sizes[0].smallest().min(sizes[1].smallest())),
            sizes,
            again: Course::pair(profile.reads.refs - read_first, profile.writes.refs - write_first),
            new: Course::pair(read_first, write_first),
            turned: [Course::new(read_then_written), Course::new(written_then_read)],
            unique: profile.unique,
            all_again: (profile.refs() - profile.unique).max(1),
            split: None,
            requests: VecDeque::new(),
        }
    }

    /// Returns the share of references to known blocks made so far; above 1 if they are too many.
    fn share(&self) -> f64 {
        (self.again[0].done() + self.again[1].done()) as f64 / self.all_again as f64
    }

    fn visit(&mut self, random: &mut Random) {
        let known = self.stack.blocks(States::ALL);
        let (op, target) = self.choose(known, random);
        let split = self.split;
        let new = if target.is_none() { self.new_extent(op, random) } else { None };
        let (extent, op, distance) = match (new, target) {
            (Some(extent), _) => (extent, op, None),
            (None, Some(target)) => self.known_extent(target, op),
            (None, None) => {
                // There is no room for new data: the deepest extent is used.
                let target = self.find(Range::deepest(known), random);
                self.known_extent(target, target.natural_op(op))
            }
        };
        // A part that was split off is merged with the rest when something else comes on top.
        if let Some(seam) = split.filter(|seam| *seam != extent.start) {
            self.stack.rejoin(seam);
        }
        self.stack.push(extent);
        self.plan.count(distance, extent.blocks);
        let course = if distance.is_none() { &mut self.new } else { &mut self.again };
        course[op as usize].add(extent.blocks);
        self.ask(extent, op);
    }

    /// Draws whether new data is to be read or written.
    fn new_op(&self) -> Op {
        let share = (self.new[0].done() + self.new[1].done() + 1) as f64 / self.unique as f64;
        if self.new[0].behind(share) >= self.new[1].behind(share) { Op::Read } else { Op::Write }
    }

    fn new_extent(&mut self, op: Op, random: &mut Random) -> Option<Extent> {
        let blocks = at_most(self.sizes[op as usize].draw(random), self.new[op as usize].left());
        if blocks == 0 {
            return None;
        }
        // The first extent is at the end of the volume, the second at its beginning: they span it.
        let (start, blocks) = match self.new[0].done() + self.new[1].done() {
            0 => self.space.last(blocks),
            _ => self.space.take(blocks, random)?,
        };
        let state = if op == Op::Read { State::Read } else { State::Written };
        Some(Extent { start, blocks, state })
    }

    /// Takes an extent, or the end of one, out of the stack. Returns it, its operation and its distance.
    fn known_extent(&mut self, target: Target, op: Op) -> (Extent, Op, Option<u64>) {
        let Target { place, range, .. } = target;
        let Extent { start, blocks: all, state } = place.extent;
        let partly = target.fits() && !self.sizes[op as usize].too_many();
        let mut blocks = if partly { target.blocks() } else { all };
        // No more than what remains to be done, if anything does.
        let turned = turned(state, op);
        for course in turned.map(|turned| &self.turned[turned]).into_iter().chain([&self.again[op as usize]])
        {
            blocks = at_most(blocks, course.left()).max(u32::from(course.left() == 0) * blocks);
        }
        self.stack.take(place, blocks);
        let start = start + u64::from(all - blocks);
        if blocks < all {
            self.split = Some(start);
        }
        let distance = place.above + u64::from(blocks) - 1;
        // A near miss counts as a hit.
        let counted = if target.fits() && !target.splits() { distance.min(range.upto) } else { distance };
        let state = turned.map_or(state, |turned| {
            self.turned[turned].add(blocks);
            State::Shared
        });
        (Extent { start, blocks, state }, op, Some(counted))
    }

    /// Draws a depth of the range, and returns the extent there.
    fn find(&self, range: Range, random: &mut Random) -> Target {
        for tries in 1.. {
            let depth = range.distance(self.stack.blocks(States::ALL), random);
            let place = self.stack.find(depth, States::ALL).expect("distances are below the blocks known");
            // A depth hits large extents more often: to keep the mix, it is then drawn again more often.
            let taken =
                self.mix_of.is_none_or(|smallest| random.chance(smallest / f64::from(place.extent.blocks)));
            if taken || tries == MOST_TRIES {
                return Target { place, depth, range };
            }
        }
        unreachable!("the last try is taken")
    }

    /// Returns the next operation and its target; without a target it is for new data.
    fn choose(&self, known: u64, random: &mut Random) -> (Op, Option<Target>) {
        if known == 0 {
            return (self.new_op(), None);
        }
        let due = self.due(random);
        let sizes = &self.sizes[due.op as usize];
        let mut shortest = sizes.shortest();
        for draws in 1.. {
            let Some(range) = self.plan.draw(known, shortest, random) else {
                return (self.new_op(), None);
            };
            let found = self.find(range, random);
            let nearest = self.nearest(found, due.states);
            // The nearest one is too often a small one to keep the mix.
            let kept = |target: &Target| self.mix_of.is_none() || target.place == found.place;
            if let Some(target) = nearest.filter(Target::fits).filter(kept) {
                let waits = sizes.unwelcome(target.blocks(), target.splits()) && !random.chance(UNWELCOME);
                if !waits || draws >= MOST_DRAWS {
                    return (due.op, Some(target));
                }
                shortest = sizes.typical();
            } else if draws >= MOST_DRAWS {
                return self.unfit(&due, found, nearest);
            }
        }
        unreachable!("the last draw is taken")
    }

    /// Returns what to do if no drawn distance suits what is due.
    fn unfit(&self, due: &Due, found: Target, nearest: Option<Target>) -> (Op, Option<Target>) {
        // If no block of the kind has the distance yet, there are too few of them.
        let shallow = nearest.is_none_or(|target| target.depth < found.range.from);
        match nearest {
            _ if !due.must => (found.natural_op(due.op), Some(found)),
            _ if shallow && self.new[due.op as usize].left() > 0 => (due.op, None),
            Some(_) => (due.op, nearest),
            None => (found.natural_op(due.op), Some(found)),
        }
    }

    /// Returns the operation for the next known block.
    fn due(&self, random: &mut Random) -> Due {
        let share = self.share();
        let far_behind = [0, 1].map(|op: usize| self.again[op].far_behind(share));
        let turns: [(Op, &[State]); 2] = [(Op::Write, &[State::Read]), (Op::Read, &[State::Written])];
        for (other, (op, states)) in turns.into_iter().enumerate() {
            let known = self.stack.blocks(States::of(states)) > 0;
            if known && !far_behind[other] && self.turned[other].far_behind(share.min(1.0)) {
                return Due { op, states, must: true };
            }
        }
        let [reads, writes] = &self.again;
        let op = match (reads.left(), writes.left()) {
            (1.., 0) => Op::Read,
            (0, 1..) => Op::Write,
            _ if random.chance(reads.due(share, self.all_again)) => Op::Read,
            _ => Op::Write,
        };
        let (same, other) = (op as usize, 1 - op as usize);
        // Blocks whose state it changes come last, as long as some remain to be changed.
        let states = &KNOWN[same][..2 + usize::from(self.turned[other].behind(share.min(1.0)) > 0.0)];
        Due { op, states, must: far_behind[same] || self.again[other].left() == 0 }
    }

    /// Returns the extent with one of these states that is nearest to the one found.
    fn nearest(&self, found: Target, states: &[State]) -> Option<Target> {
        let states = States::of(states);
        if states.contain(found.place.extent.state) {
            return Some(found);
        }
        let place = self.stack.nearest(found.place, states)?;
        let nearest = Target { place, ..found };
        Some(Target { depth: found.depth.clamp(place.above, nearest.bottom()), ..nearest })
    }

    /// Makes as many requests for blocks as are due.
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

/// Returns `blocks`, but no more than remain.
fn at_most(blocks: u32, left: u64) -> u32 {
    u32::try_from(left).map_or(blocks, |left| blocks.min(left))
}

/// Returns which count of blocks that are both read and written grows when this is done to blocks with this state.
fn turned(state: State, op: Op) -> Option<usize> {
    match (state, op) {
        (State::Read, Op::Write) => Some(0),
        (State::Written, Op::Read) => Some(1),
        _ => None,
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
