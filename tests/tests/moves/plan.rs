//! What happens at a move, drawn from random numbers.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use haversack_model::random::Random;

/// What can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// `kill -9` of the daemon that has the disks.
    SourceKilled,
    /// `kill -9` of the other daemon.
    DestinationKilled,
    /// `kill -9` of both daemons.
    BothKilled,
    /// Nothing gets through between the hosts.
    LinkCut,
    /// Little gets through.
    LinkSlow,
    /// The destination's cache is full of dirty blocks that cannot be written back.
    PoolFull,
    /// The origins do not answer.
    OriginsPaused,
    /// The origins refuse connections.
    OriginsKilled,
}

/// All of them.
pub const FAULTS: [Fault; 8] = [
    Fault::SourceKilled,
    Fault::DestinationKilled,
    Fault::BothKilled,
    Fault::LinkCut,
    Fault::LinkSlow,
    Fault::PoolFull,
    Fault::OriginsPaused,
    Fault::OriginsKilled,
];

impl Fault {
    /// Returns whether servers are started to undo it.
    pub fn starts_servers(self) -> bool {
        use Fault::{BothKilled, DestinationKilled, OriginsKilled, SourceKilled};
        matches!(self, SourceKilled | DestinationKilled | BothKilled | OriginsKilled)
    }
}

/// Where in a move something fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The cache is sent ahead.
    SentAhead,
    /// Little is left to be sent.
    Ready,
    /// The VM has stopped at the source.
    Stopped,
    /// It runs at the destination, whose first requests ask for the disk.
    Asked,
    /// It is served there, and dirty blocks arrive.
    Arriving,
}

/// All of them, in order.
pub const STEPS: [Step; 5] = [Step::SentAhead, Step::Ready, Step::Stopped, Step::Asked, Step::Arriving];

/// What happens at a move.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The host that the disks leave.
    pub from: usize,
    /// The host that they move to.
    pub to: usize,
    /// What fails, if anything does.
    pub fault: Option<Fault>,
    /// The step at which it does.
    pub step: Step,
    /// How long after the step's beginning.
    pub after: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// Whether the move is announced with `haversack migrate`.
    pub announced: bool,
    /// Whether the VM runs at the source once more after it was stopped for the move.
    pub turns_back: bool,
    /// Whether the next move begins while the source still has blocks.
    pub hastens: bool,
}

impl Plan {
    /// Draws what happens at a move from one host to the other. The first one is number 1.
    pub fn draw(number: usize, random: &mut Random) -> Self {
        Self {
            from: (number + 1) % 2,
            to: number % 2,
            fault: (!random.one_in(5)).then(|| random.pick(&FAULTS)),
            step: random.pick(&STEPS),
            after: Duration::from_millis(random.skewed(512)),
            lasts: Duration::from_millis(random.range(10, 1000)),
            announced: !random.one_in(4),
            turns_back: random.one_in(6),
            hastens: random.one_in(6),
        }
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { step, after, lasts, .. } = self;
        match self.fault {
            Some(fault) => write!(f, "{fault:?} for {lasts:?}, {after:?} after {step:?}")?,
            None => write!(f, "nothing fails")?,
        }
        f.write_str(if self.announced { "" } else { ", unannounced" })?;
        f.write_str(if self.turns_back { ", turns back once" } else { "" })?;
        f.write_str(if self.hastens { ", moves on at once" } else { "" })
    }
}
