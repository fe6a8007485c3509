//! Guests that are about to arrive: a hypervisor opens a disk here while another host has it. This indicates a
//! migration that was not announced, so the other host is asked to send the cache ahead until the hypervisor closes the
//! disk again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use haversack_model::{DiskId, HostId};

use super::talk::{Answer, IS_BUSY, Question};
use super::{Hosts, LOOK_EVERY};
use crate::daemon::{Daemon, Disk};
use crate::pool::Pool;

/// How often a host is asked again: it may have been away.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Looks for such disks until the daemon ends.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let mut watch = Watch::default();
    super::watch(
        daemon,
        ("guests", "looking for guests that are about to come"),
        LOOK_EVERY,
        move |daemon, hosts| {
            watch.look(daemon, hosts);
            daemon.measure_paces(hosts);
        },
    )
}

/// A question to a host.
struct Asked {
    host: HostId,
    at: Instant,
    answers: Receiver<(HostId, Answer)>,
}

impl Asked {
    /// Whether the host has answered. A host that is busy has not looked at the question.
    fn is_answered(&self) -> bool {
        let is_busy = |answer: &Answer| matches!(answer, Answer::Refused(why) if why == IS_BUSY);
        self.answers.try_recv().is_ok_and(|(_, answer)| !is_busy(&answer))
    }

    /// Whether it is time to ask again: the question or its answer may have been lost with the connection.
    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.at) >= ASK_EVERY
    }
}

/// A disk that another host must stop sending.
struct Stopping {
    /// The last request to send it. The request to stop must not overtake it.
    sending: Asked,
    asked: Option<Asked>,
}

/// Requests to send disks, and requests to stop sending them. A request to send is repeated while the disk is expected.
/// A request to stop is repeated until the host answers: a host that does not get the request would send the disk
/// forever.
#[derive(Default)]
struct Requests {
    sending: HashMap<DiskId, Asked>,
    stopping: HashMap<DiskId, Stopping>,
}

impl Requests {
    /// Makes the requests that are due for the expected disks and their owners. `ask` puts a question to a host.
    fn make(
        &mut self,
        expected: &HashMap<DiskId, HostId>,
        now: Instant,
        ask: impl Fn(HostId, DiskId, &Question) -> Receiver<(HostId, Answer)>,
    ) {
        let ask =
            |host, disk, question: &Question| Asked { host, at: now, answers: ask(host, disk, question) };
        for (disk, owner) in expected {
            self.stopping.remove(disk);
            let is_due = |asked: &Asked| asked.host != *owner || asked.is_due(now);
            if self.sending.get(disk).is_none_or(is_due) {
                // The answer does not matter: what is not sent ahead is fetched later.
                self.sending.insert(*disk, ask(*owner, *disk, &Question::Send));
            }
        }
        for (disk, sending) in self.sending.extract_if(|disk, _| !expected.contains_key(disk)) {
            self.stopping.insert(disk, Stopping { sending, asked: None });
        }
        self.stopping.retain(|disk, stopping| {
            if stopping.asked.as_ref().is_some_and(Asked::is_answered) {
                return false;
            }
            let is_due = match &stopping.asked {
                Some(asked) => asked.is_due(now),
                None => stopping.sending.is_answered() || stopping.sending.is_due(now),
            };
            if is_due {
                // The host itself knows whether it still owns the disk.
                stopping.asked = Some(ask(stopping.sending.host, *disk, &Question::Stop));
            }
            true
        });
    }
}

#[derive(Default)]
struct Watch {
    requests: Requests,
    /// Disks that were served here when they were last looked at.
    served: HashSet<DiskId>,
    /// Disks whose guests have moved away, and whose hypervisors have not closed them yet.
    left: HashSet<DiskId>,
}

impl Watch {
    /// Requests the disks that a hypervisor has opened since the last call, and cancels the requests for those that it
    /// has closed.
    fn look(&mut self, daemon: &Daemon, hosts: &Hosts) {
        let mut expected = HashMap::new();
        let mut served = HashSet::new();
        let mut opened = HashSet::new();
        for pool in daemon.pools() {
            let Ok(snapshot) = pool.backend.snapshot() else { continue };
            let front_ends = front_ends(daemon);
            served.extend(snapshot.disks.iter().filter(|disk| disk.is_served).map(|disk| disk.id));
            let elsewhere = snapshot.disks.iter().filter(|disk| !disk.is_served);
            let in_use = elsewhere.filter(|disk| disk.clients > 0 || front_ends.contains(&disk.id));
            for disk in in_use.map(|disk| disk.id) {
                opened.insert(disk);
                if self.served.contains(&disk) {
                    self.left.insert(disk);
                }
                let owner = if self.left.contains(&disk) { None } else { owner(pool, disk) };
                if let Some(owner) = owner {
                    expected.insert(disk, owner);
                }
            }
        }
        self.left.retain(|disk| opened.contains(disk));
        self.served = served;
        self.requests
            .make(&expected, Instant::now(), |host, disk, question| hosts.ask_now(&[host], disk, question));
    }
}

/// Returns the host that has a disk, if it is another one.
fn owner(pool: &Pool, disk: DiskId) -> Option<HostId> {
    pool.backend.migration_status(disk).ok().flatten()?.owner_elsewhere()
}

/// Returns the disks with a vhost-user front end.
fn front_ends(daemon: &Daemon) -> HashSet<DiskId> {
    let disks = daemon.disks();
    let has_one = |disk: &Disk| {
        disk.with(|inner| inner.vhost_user.as_ref().is_some_and(|server| !server.connected().is_empty()))
    };
    disks.values().filter(|disk| has_one(disk)).map(|disk| disk.id).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Open {
        question: Question,
        asker: Sender<(HostId, Answer)>,
    }

    /// Hosts that answer only when the test does.
    #[derive(Default)]
    struct Others(RefCell<Vec<Open>>);

    impl Others {
        fn ask(&self, question: &Question) -> Receiver<(HostId, Answer)> {
            let (asker, answers) = channel();
            self.0.borrow_mut().push(Open { question: question.clone(), asker });
            answers
        }

        /// Returns what was asked since the last call, and answers it if that is wanted.
        fn asked(&self, answers: bool) -> String {
            self.asked_and(answers.then_some(&Answer::Done))
        }

        fn asked_and(&self, answer: Option<&Answer>) -> String {
            let mut text = String::new();
            for Open { question, asker } in self.0.borrow_mut().drain(..) {
                text += match question {
                    Question::Send => "send ",
                    Question::Stop => "stop ",
                    _ => "? ",
                };
                if let Some(answer) = answer {
                    asker.send((HostId(1), answer.clone())).unwrap();
                }
            }
            text
        }
    }

    #[test]
    fn a_busy_host_is_asked_to_stop_again() {
        let (others, mut requests, start) = (Others::default(), Requests::default(), Instant::now());
        let expected = HashMap::from([(DiskId([7; 16]), HostId(1))]);
        let mut at = |seconds: u64, expected: &HashMap<DiskId, HostId>, answer: Answer| {
            let now = start + Duration::from_secs(seconds);
            requests.make(expected, now, |_, _, question| others.ask(question));
            others.asked_and(Some(&answer))
        };
        assert_eq!(at(0, &expected, Answer::Done), "send ");
        assert_eq!(at(1, &HashMap::new(), Answer::Refused(IS_BUSY.into())), "stop ");
        assert_eq!(at(2, &HashMap::new(), Answer::Done), "");
        assert_eq!(at(6, &HashMap::new(), Answer::Refused("has no such disk".into())), "stop ");
        assert_eq!(at(60, &HashMap::new(), Answer::Done), "", "that was an answer");
    }

    #[test]
    fn a_host_is_asked_to_stop_until_it_answers() {
        let (others, mut requests, start) = (Others::default(), Requests::default(), Instant::now());
        let (disk, host) = (DiskId([7; 16]), HostId(1));
        let expected = HashMap::from([(disk, host)]);
        let mut at = |seconds: u64, expected: &HashMap<DiskId, HostId>, answers: bool| {
            let now = start + Duration::from_secs(seconds);
            requests.make(expected, now, |_, _, question| others.ask(question));
            others.asked(answers)
        };
        let none = HashMap::new();
        assert_eq!(at(0, &expected, true), "send ");
        assert_eq!(at(4, &expected, true), "", "it was asked four seconds ago");
        assert_eq!(at(5, &expected, false), "send ");
        assert_eq!(at(6, &none, false), "", "the request to stop must not overtake the last one to send");
        assert_eq!(at(10, &none, false), "stop ");
        assert_eq!(at(14, &none, false), "");
        assert_eq!(at(15, &none, true), "stop ", "the first one was lost");
        assert_eq!(at(60, &none, false), "", "it was answered");
        assert_eq!(at(61, &expected, true), "send ");
        assert_eq!(at(62, &none, false), "stop ");
        assert_eq!(at(63, &expected, true), "send ", "the hypervisor is back");
        assert_eq!(at(64, &none, true), "stop ");
    }
}
