//! What the balancer proposes, and which moves it must not make, in a form that can be logged and shown.

use std::fmt;

use haversack_model::Micros;
use serde::{Deserialize, Serialize};

use crate::snapshot::{HostName, VmName};

/// The result of a round.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Moves, the most urgent first: those off draining hosts, then by gain. Each counts on those before it.
    pub moves: Vec<Move>,
    /// VMs that should leave their host and cannot, and overloaded hosts that no move would relieve.
    pub held: Vec<Held>,
    /// Variance of load (predicted demand over cache) of the serving hosts now.
    pub variance_before: f64,
    /// The same after all moves.
    pub variance_after: f64,
}

/// A proposed move of a VM with its cache. `Display` says it in a sentence.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Move {
    /// The VM.
    pub vm: VmName,
    /// The host that it leaves.
    pub from: HostName,
    /// The host that it goes to.
    pub to: HostName,
    /// What made it move.
    pub why: Why,
    /// Load of the host that it leaves, before and after: predicted demand over cache.
    pub from_load: (f64, f64),
    /// Load of the host that it goes to, before and after.
    pub to_load: (f64, f64),
    /// Latency in microseconds that the two caches are expected to save more in each second from then on. Below 0 if
    /// the two save less, as when a host is drained.
    pub gain_us_per_s: f64,
    /// What the move itself is expected to cost, in microseconds of latency: neighbours during the copy, stall,
    /// warm-up.
    pub cost_us: f64,
    /// Bytes that it copies: dirty and reused blocks.
    pub copied_bytes: u64,
    /// The time that the copy is expected to take.
    pub copy_us: Micros,
    /// The expected stall of the VM at the switch.
    pub stall_us: Micros,
    /// The time after the switch until all copied blocks are there.
    pub warm_up_us: Micros,
}

/// What made a VM move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Its host is draining.
    Draining,
    /// The predicted demand of its host was above the threshold for this many windows.
    Overload {
        /// Consecutive windows so far.
        windows: u32,
    },
}

/// What should move and does not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// The host that is draining or overloaded.
    pub host: HostName,
    /// The VM; `None` if it concerns the host as a whole.
    pub vm: Option<VmName>,
    /// The reason.
    pub hindrance: Hindrance,
}

/// Why something does not move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hindrance {
    /// The manager says that the VM cannot be moved, and why.
    Pinned(String),
    /// It is being moved already, to this host.
    Moving(HostName),
    /// No serving host has the memory, the processors and the cache for its reservations, and none of the VMs that must
    /// not be with it.
    NoRoom,
    /// The limit of moves per round is reached for this host, or for the hosts that could take the VM. The next round
    /// continues.
    EnoughForNow,
    /// As many moves as allowed were made in the last hour.
    EnoughThisHour,
    /// An overloaded host: no move is allowed that lowers the variance, or earns more than it costs.
    NothingGained,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |load: f64| (load * 100.0).round();
        match self.why {
            Why::Draining => {
                write!(f, "move {} from {} to {}: {} is draining", self.vm, self.from, self.to, self.from)?;
            }
            Why::Overload { windows } => write!(
                f,
                "move {} from {} to {}: demand on {} was too high for {windows} windows and falls from {} to {} % of its cache",
                self.vm,
                self.from,
                self.to,
                self.from,
                percent(self.from_load.0),
                percent(self.from_load.1),
            )?,
        }
        write!(
            f,
            "; on {} it rises from {} to {} %. ",
            self.to,
            percent(self.to_load.0),
            percent(self.to_load.1)
        )?;
        let per_s = self.gain_us_per_s / 1000.0;
        let (saved, verb) = (per_s.abs(), if per_s < 0.0 { "loses" } else { "saves" });
        write!(
            f,
            "It {verb} {saved:.1} ms of latency each second and costs {:.1} ms once: {:.1} MiB to copy in {:.1} s, a stall of \
             {:.0} ms, {:.1} s until the cache is warm",
            self.cost_us / 1000.0,
            self.copied_bytes as f64 / f64::from(1 << 20),
            self.copy_us as f64 / 1e6,
            self.stall_us as f64 / 1000.0,
            self.warm_up_us as f64 / 1e6,
        )
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.vm {
            Some(vm) => write!(f, "{vm} stays on {}: {}", self.host, self.hindrance),
            None => write!(f, "{} stays overloaded: {}", self.host, self.hindrance),
        }
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hindrance::Pinned(reason) => write!(f, "the manager says that it cannot be moved: {reason}"),
            Hindrance::Moving(to) => write!(f, "it is being moved to {to}"),
            Hindrance::NoRoom => f.write_str(
                "no other host has enough memory, processors and cache for it and none of the VMs that must be kept apart from it",
            ),
            Hindrance::EnoughForNow => f.write_str("enough moves for now; the next round continues"),
            Hindrance::EnoughThisHour => f.write_str("as many moves as allowed were made in the last hour"),
            Hindrance::NothingGained => f.write_str("no move that is allowed would help"),
        }
    }
}
