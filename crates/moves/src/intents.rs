//! Intents: a move is in the directory before anything is sent, so that no other move of the same disk begins.
//!
//! An intent decides nothing: the source's record says who owns the disk. The intent of a move that has ended, or that
//! was abandoned, is removed.
//!
//! The intent of a disk that is being sent stays while the VM may still be moved: while the daemon that began the
//! move is in the directory, and after that for as long as the program that the daemon called may run, because a
//! host that cannot reach etcd does not stop the program.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haversack_directory::bugs::{Bug, planted};
use haversack_directory::{IntentRecord, Progress, Seen, View};

/// A host removes the intent of a move that no daemon drives only after this many of its leases: a daemon that
/// was cut off briefly may come back.
pub const ABANDONED_LEASES: u32 = 4;

/// The intents that this host drives, or has seen abandoned.
#[derive(Debug)]
pub struct Intents {
    me: String,
    instance: u64,
    abandoned_after: Duration,
    /// Disks whose moves this daemon drives, and the number of drivers of each: an operator may request a move
    /// that the balancer already makes.
    driven: HashMap<String, u32>,
    /// Disks whose moves are not driven by any daemon.
    abandoned: HashMap<String, Abandoned>,
}

/// A move that its daemon does not drive any more.
#[derive(Clone, Copy, Debug)]
struct Abandoned {
    /// The revision of the intent: another move of the disk may have replaced it since.
    revision: i64,
    since: Instant,
}

impl Intents {
    /// Creates the state of a daemon that does not drive any move yet.
    pub fn new(me: &str, instance: u64, abandoned_after: Duration) -> Intents {
        Intents {
            me: me.into(),
            instance,
            abandoned_after,
            driven: HashMap::new(),
            abandoned: HashMap::new(),
        }
    }

    /// Records that this daemon drives the move of a disk. Must be called before the intent is in the directory,
    /// because intents that nothing drives are removed from there.
    pub fn drive(&mut self, disk: &str) {
        *self.driven.entry(disk.into()).or_default() += 1;
    }

    /// Records that this daemon does not drive the move any more.
    pub fn let_go(&mut self, disk: &str) {
        if let Some(drivers) = self.driven.get_mut(disk) {
            *drivers -= 1;
            if *drivers == 0 {
                self.driven.remove(disk);
            }
        }
    }

    /// Returns the obsolete intents among those that name this host or are of its disks.
    pub fn over(&mut self, view: &View, now: Instant) -> Vec<(String, IntentRecord)> {
        self.abandoned.retain(|disk, _| view.intents.contains_key(disk));
        let mut over = Vec::new();
        for (disk, seen) in &view.intents {
            let intent = &seen.record;
            let owner = view.disks.get(disk).map(|seen| &seen.record.host);
            let mut named = [&intent.by, &intent.from, &intent.to].into_iter().chain(owner);
            if !named.any(|host| *host == self.me) {
                continue;
            }
            if self.is_over(view, disk, seen, now) && !self.driven.contains_key(disk) {
                over.push((disk.clone(), intent.clone()));
            }
        }
        over
    }

    fn is_over(&mut self, view: &View, disk: &str, seen: &Seen<IntentRecord>, now: Instant) -> bool {
        let intent = &seen.record;
        let is_mine = intent.instance == self.instance;
        match view.progress(disk, intent) {
            // While the daemon that began the move is there, it removes the intent itself, at its next check.
            Progress::Arrived | Progress::Elsewhere => is_mine || !is_driven(view, intent),
            Progress::Abandoned => self.is_abandoned(disk, seen.revision, now) || planted(Bug::AbandonAtOnce),
            Progress::Sending if !is_driven(view, intent) => {
                let most = intent.most_ms.map(Duration::from_millis);
                let age = now.saturating_duration_since(seen.at);
                let has_ended = most.is_some_and(|most| age >= most.saturating_add(self.abandoned_after));
                self.is_abandoned(disk, seen.revision, now) && has_ended
            }
            Progress::Planned | Progress::Sending => {
                self.abandoned.remove(disk);
                is_mine
            }
        }
    }

    /// Records that nobody drives a move. Returns whether the move counts as abandoned: nobody has driven it for long
    /// enough.
    fn is_abandoned(&mut self, disk: &str, revision: i64, now: Instant) -> bool {
        let known = self.abandoned.get(disk).filter(|known| known.revision == revision).copied();
        let abandoned = known.unwrap_or(Abandoned { revision, since: now });
        self.abandoned.insert(disk.into(), abandoned);
        now.saturating_duration_since(abandoned.since) >= self.abandoned_after
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
    /// The requested move is already under way.
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

#[cfg(test)]
mod tests {
    use haversack_directory::HostRecord;

    use super::*;
    use crate::samples::{add_disk, add_host, seen};

    const ABANDONED: Duration = Duration::from_secs(60);
    const MOST: Duration = Duration::from_secs(600);

    /// A view with a disk that is being moved from alpha to beta by gamma's daemon.
    fn sending(most: Option<Duration>) -> View {
        let mut view = View::default();
        ["alpha", "beta", "gamma"].iter().for_each(|name| add_host(&mut view, name, true));
        add_disk(&mut view, "id", "vm1", None, "alpha");
        view.disks.get_mut("id").unwrap().record.moving_to = Some("beta".into());
        let intent = IntentRecord {
            name: "vm1".into(),
            from: "alpha".into(),
            epoch: 1,
            to: "beta".into(),
            by: "gamma".into(),
            instance: 1,
            reason: "a test".into(),
            is_ordered: false,
            most_ms: most.map(|most| most.as_millis() as u64),
        };
        view.intents.insert("id".into(), seen(intent));
        view
    }

    /// Returns after how many seconds alpha considers the intent obsolete, if within a day. Alpha checks the view every
    /// ten seconds, after `change` has modified it.
    fn over_after(most: Option<Duration>, change: impl Fn(u64, &mut View)) -> Option<u64> {
        let mut view = sending(most);
        let (mut intents, begin) = (Intents::new("alpha", 9, ABANDONED), Instant::now());
        (0..8640).map(|look| look * 10).find(|seconds| {
            change(*seconds, &mut view);
            !intents.over(&view, begin + Duration::from_secs(*seconds)).is_empty()
        })
    }

    fn gone(view: &mut View) {
        view.hosts.remove("gamma");
    }

    #[test]
    fn a_move_that_nobody_can_be_driving_is_over_although_its_disk_is_being_sent() {
        assert_eq!(over_after(Some(MOST), |_, _| {}), None, "gamma is there");
        assert_eq!(over_after(None, |_, view| gone(view)), None, "nobody knows how long its program runs");
        // The program may run for `MOST`. After that, alpha waits for `ABANDONED`.
        assert_eq!(over_after(Some(MOST), |_, view| gone(view)), Some(660));
        // Gamma disappears after 5000 s: alpha waits for `ABANDONED` from then on.
        let goes_late = |seconds, view: &mut View| {
            if seconds >= 5000 {
                gone(view);
            }
        };
        assert_eq!(over_after(Some(MOST), goes_late), Some(5060));
        // A later daemon with gamma's name does not drive the move.
        let is_other = |_, view: &mut View| {
            let host: &mut HostRecord = &mut view.hosts.get_mut("gamma").unwrap().record;
            host.instance = 2;
        };
        assert_eq!(over_after(Some(MOST), is_other), Some(660));
        // Gamma is cut off repeatedly, each time for less than `ABANDONED`.
        let comes_back = |seconds, view: &mut View| {
            if seconds % 50 == 0 {
                add_host(view, "gamma", true);
            } else {
                gone(view);
            }
        };
        assert_eq!(over_after(Some(MOST), comes_back), None);
    }
    #[test]
    fn an_intent_that_replaces_an_abandoned_one_is_new() {
        let mut view = sending(Some(MOST));
        view.disks.get_mut("id").unwrap().record.moving_to = None;
        gone(&mut view);
        let (mut intents, begin) = (Intents::new("alpha", 9, ABANDONED), Instant::now());
        let mut is_over =
            |seconds, view: &View| !intents.over(view, begin + Duration::from_secs(seconds)).is_empty();
        assert!(!is_over(0, &view));
        // The entry of gamma's next daemon arrives later than its intent.
        let intent = view.intents.get_mut("id").unwrap();
        (intent.record.instance, intent.revision) = (2, 7);
        assert!(!is_over(60, &view), "nobody has driven the earlier move for that long");
        assert!(!is_over(110, &view));
        assert!(is_over(120, &view));
    }
}
