//! Intents: a move is in the directory before anything is sent, so that nobody else begins one of the same disk.
//!
//! An intent decides nothing. The source's record says who owns the disk, and what is in the directory of a move that is over,
//! or that was abandoned, is removed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_directory::bugs::{Bug, planted};
use haversack_directory::{IntentRecord, Progress, View};

/// For how long nobody must have driven a move before its intent is removed: a host that was cut off for a moment comes back.
pub const ABANDONED: Duration = Duration::from_secs(60);

/// The intents that this host drives, or has seen abandoned.
#[derive(Debug)]
pub struct Intents {
    me: String,
    instance: u64,
    abandoned_after: Duration,
    /// Disks whose moves this daemon drives, and how often: an operator may ask for what the balancer does.
    driven: HashMap<String, u32>,
    /// Abandoned moves of other hosts, and since when.
    abandoned: HashMap<String, Instant>,
}

impl Intents {
    /// Makes the intents of a daemon, which drives none yet.
    pub fn new(me: &str, instance: u64, abandoned_after: Duration) -> Intents {
        Intents {
            me: me.into(),
            instance,
            abandoned_after,
            driven: HashMap::new(),
            abandoned: HashMap::new(),
        }
    }

    /// This daemon drives the move of a disk. Call it before the intent is in the directory, from which those are removed that
    /// nothing drives.
    pub fn drive(&mut self, disk: &str) {
        *self.driven.entry(disk.into()).or_default() += 1;
    }

    /// This daemon does not drive it any more.
    pub fn let_go(&mut self, disk: &str) {
        if let Some(drivers) = self.driven.get_mut(disk) {
            *drivers -= 1;
            if *drivers == 0 {
                self.driven.remove(disk);
            }
        }
    }

    /// Returns the intents that are over, as far as this host is concerned: those that name it, and those of its disks.
    pub fn over(&mut self, view: &View, now: Instant) -> Vec<(String, IntentRecord)> {
        self.abandoned.retain(|disk, _| view.intents.contains_key(disk));
        let intents = view.intents.iter().map(|(disk, seen)| (disk, &seen.record));
        let mut over = Vec::new();
        for (disk, intent) in intents {
            let owner = view.disks.get(disk).map(|seen| &seen.record.host);
            let mut named = [&intent.by, &intent.from, &intent.to].into_iter().chain(owner);
            if !named.any(|host| *host == self.me) {
                continue;
            }
            if self.is_over(view, disk, intent, now) && !self.driven.contains_key(disk) {
                over.push((disk.clone(), intent.clone()));
            }
        }
        over
    }

    fn is_over(&mut self, view: &View, disk: &str, intent: &IntentRecord, now: Instant) -> bool {
        let is_mine = intent.instance == self.instance;
        match view.progress(disk, intent) {
            // Whoever drives it removes it when it has looked.
            Progress::Arrived | Progress::Elsewhere => is_mine || !is_driven(view, intent),
            Progress::Abandoned => {
                let since = *self.abandoned.entry(disk.into()).or_insert(now);
                now.saturating_duration_since(since) >= self.abandoned_after || planted(Bug::AbandonAtOnce)
            }
            Progress::Planned | Progress::Sending => {
                self.abandoned.remove(disk);
                is_mine
            }
        }
    }
}

fn is_driven(view: &View, intent: &IntentRecord) -> bool {
    view.hosts.get(&intent.by).is_some_and(|host| host.record.instance == intent.instance)
}

/// What a view says about a move that an operator has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed<'a> {
    /// No move of the disk is under way.
    Free,
    /// It is that move.
    Same(&'a IntentRecord),
    /// The disk is on its way to another host.
    Elsewhere(&'a IntentRecord),
}

/// Returns whether a move of the disk to a host may begin.
pub fn claim<'a>(view: &'a View, disk: &str, to: &str) -> Claimed<'a> {
    let intent = view.intents.get(disk).map(|seen| &seen.record);
    match intent.filter(|intent| !view.progress(disk, intent).is_over()) {
        None => Claimed::Free,
        Some(intent) if intent.to == to => Claimed::Same(intent),
        Some(intent) => Claimed::Elsewhere(intent),
    }
}
