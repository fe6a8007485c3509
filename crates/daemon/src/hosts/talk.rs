//! What daemons ask each other about a disk: JSON in a frame of the connection between their hosts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haversack_api::{DiskConfig, ExpectDisk};
use haversack_migrate::{HostRecord, ReplicaAge};
use haversack_model::{DiskId, HostId};
use serde::{Deserialize, Serialize};

use super::Hosts;
use crate::daemon::Daemon;
use crate::locked::Locked;

/// How long a connection to a host may take to be made.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The most questions of one kind from other hosts that are answered at a time; more are refused.
const MOST_ANSWERS: usize = 64;
/// The refusal of a host that answers too many questions at the moment.
pub(super) const IS_BUSY: &str = "is busy; try again";
/// Questions that nobody has answered for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// How often such questions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A question about a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// What do you know of it?
    Find,
    /// Attach it: it will come from the host that asks.
    Prepare {
        /// The disk's settings on the host that asks.
        config: Box<DiskConfig>,
        /// The disk's size on the host that asks.
        sectors: u64,
    },
    /// Send its cache to the host that asks.
    Send,
    /// Stop sending it, if only the asking host has requested that.
    Stop,
    /// What has admission learned of it?
    Learned {
        /// From this byte of its file on.
        from: u64,
    },
    /// What has the policy measured of it?
    Measured {
        /// From this byte on.
        from: u64,
    },
    /// Make the asking host attach such a disk, and send it. The question's disk identity has no meaning.
    Bring(ExpectDisk),
    /// Do you lend flash to the host that asks? The question's disk identity has no meaning.
    Lend,
    /// What do you have on record of it?
    Record,
    /// The host that asks takes it over by force: note that grants of lower epochs count for nothing.
    Yield {
        /// The epoch under which it does.
        epoch: u64,
        /// The complete replica that it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replica: Option<ReplicaAge>,
    },
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Nothing is known of the disk.
    Unknown,
    /// The disk is being attached there as well, as a new one.
    Seeking,
    /// The answering host owns it, or owned it and knows which host has it.
    Known,
    /// It is done.
    Done,
    /// A part of what admission has learned, or of what the policy has measured.
    Learned {
        /// Its bytes in base 64.
        part: String,
        /// The file ends here.
        is_last: bool,
    },
    /// The request was refused, for this reason.
    Refused(String),
    /// What is on record.
    Record(HostRecord),
}

/// A message between daemons.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Note {
    Question { number: u64, question: Question },
    Answer { number: u64, answer: Answer },
}

/// The questions that wait for answers.
#[derive(Default)]
pub(super) struct Waiting {
    last: u64,
    open: HashMap<u64, Open>,
    swept: Option<Instant>,
}

struct Open {
    host: HostId,
    asker: Sender<(HostId, Answer)>,
    asked: Instant,
}

impl Waiting {
    /// Adds a question, and returns its number.
    fn add(&mut self, host: HostId, asker: Sender<(HostId, Answer)>) -> u64 {
        let now = Instant::now();
        if self.swept.is_none_or(|at| now - at >= SWEEP_EVERY) {
            self.swept = Some(now);
            self.open.retain(|_, open| now - open.asked < FORGOTTEN_AFTER);
        }
        self.last += 1;
        self.open.insert(self.last, Open { host, asker, asked: now });
        self.last
    }
}

impl Hosts {
    /// Asks hosts about a disk. The answers arrive at the receiver, which disconnects when all have arrived.
    pub fn ask(&self, hosts: &[HostId], disk: DiskId, question: &Question) -> Receiver<(HostId, Answer)> {
        self.wait_for_connections(hosts);
        self.ask_now(hosts, disk, question)
    }

    /// As [`Hosts::ask`], but without waiting for connections: a host that is not connected is not asked.
    pub fn ask_now(&self, hosts: &[HostId], disk: DiskId, question: &Question) -> Receiver<(HostId, Answer)> {
        let (sender, answers) = channel();
        for host in hosts.iter().copied().filter(|host| self.is_connected(*host)) {
            let number = self.waiting.locked().add(host, sender.clone());
            if !self.note(host, disk, &Note::Question { number, question: question.clone() }) {
                self.waiting.locked().open.remove(&number);
            }
        }
        answers
    }

    /// Waits a moment for connections that are being made, at the start of a host.
    pub(super) fn wait_for_connections(&self, hosts: &[HostId]) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && !self.are_connected(hosts) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Sends a note. Returns false if it was dropped.
    fn note(&self, host: HostId, disk: DiskId, note: &Note) -> bool {
        let text = serde_json::to_vec(note).expect("it has no maps with other keys than strings");
        self.send_note(host, disk, text)
    }

    /// Handles a question or an answer from another host.
    pub(super) fn heard(self: &Arc<Self>, daemon: &Arc<Daemon>, from: HostId, disk: DiskId, text: &[u8]) {
        let note = match serde_json::from_slice(text) {
            Ok(note) => note,
            Err(error) => {
                tracing::warn!(
                    host = self.name_of(from),
                    "cannot decode a message: {error}; does this host run the same version?"
                );
                return;
            }
        };
        match note {
            Note::Answer { number, answer } => {
                let mut waiting = self.waiting.locked();
                if waiting.open.get(&number).is_some_and(|open| open.host == from)
                    && let Some(open) = waiting.open.remove(&number)
                {
                    // The thread that asked may have given up, or may not wait for answers at all.
                    if let Err(SendError((_, answer))) = open.asker.send((from, answer)) {
                        tracing::debug!(%disk, host = self.name_of(from), ?answer, "no request waits for this answer");
                    }
                }
            }
            Note::Question { number, question } => {
                let (hosts, daemon) = (self.clone(), daemon.clone());
                let busy = || {
                    let answer = Answer::Refused(IS_BUSY.into());
                    self.note(from, disk, &Note::Answer { number, answer });
                };
                if question == Question::Record {
                    let answer = move || {
                        let answer = daemon.answer_host(from, disk, question);
                        hosts.note(from, disk, &Note::Answer { number, answer });
                    };
                    if !self.records.give(answer) {
                        busy();
                    }
                    return;
                }
                let Some(place) = Answering::begin(self.answering.of(&question)) else { return busy() };
                // Attaching takes as long as the origin does.
                let answer = move || {
                    let _place = place;
                    let answer = daemon.answer_host(from, disk, question);
                    hosts.note(from, disk, &Note::Answer { number, answer });
                };
                if std::thread::Builder::new().name("answer".into()).spawn(answer).is_err() {
                    busy();
                }
            }
        }
    }
}

impl Daemon {
    fn answer_host(self: &Arc<Self>, from: HostId, disk: DiskId, question: Question) -> Answer {
        let refuse = |error: crate::error::DaemonError| Answer::Refused(error.to_string());
        match question {
            Question::Find => self.knows(from, disk),
            Question::Lend => self.hosts_or_error().map_or_else(refuse, |hosts| hosts.lends_answer(from)),
            Question::Learned { from } => self.learned_part(disk, from),
            Question::Measured { from } => self.measured_part(disk, from),
            Question::Record => self.record_of(disk).map_or_else(refuse, Answer::Record),
            Question::Yield { epoch, replica } => {
                self.yield_to(from, disk, epoch, replica).map_or_else(refuse, |()| Answer::Done)
            }
            Question::Prepare { config, sectors } => {
                self.prepare_for(from, disk, *config, sectors).map_or_else(refuse, |()| Answer::Done)
            }
            Question::Stop => self.stop_sending_to(from, disk).map_or_else(refuse, |()| Answer::Done),
            Question::Bring(wanted) => {
                let hosts = self.hosts_or_error();
                hosts.and_then(|hosts| self.bring(&hosts, from, &wanted)).unwrap_or_else(refuse)
            }
            Question::Send => self.send_to(from, disk).map_or_else(refuse, |()| Answer::Done),
        }
    }
}

/// How many questions are being answered, by what their answers wait for. An origin that hangs must not keep this host
/// from noting that a disk is taken over, or from saying which disks it has.
#[derive(Default)]
pub(super) struct Places {
    for_origins: Arc<AtomicUsize>,
    for_records: Arc<AtomicUsize>,
    others: Arc<AtomicUsize>,
}

impl Places {
    fn of(&self, question: &Question) -> &Arc<AtomicUsize> {
        match question {
            Question::Prepare { .. } | Question::Bring(_) => &self.for_origins,
            Question::Yield { .. } => &self.for_records,
            _ => &self.others,
        }
    }
}

/// One of the [`MOST_ANSWERS`] questions of a kind that are being answered. Its place is free again when this is dropped,
/// also if answering it panics.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    /// Takes a place, if one is free.
    fn begin(count: &Arc<AtomicUsize>) -> Option<Answering> {
        let taken = Answering(count.clone());
        (count.fetch_add(1, Ordering::Relaxed) < MOST_ANSWERS).then_some(taken)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the waiting table's type for [`Hosts`].
pub(super) type WaitingTable = Mutex<Waiting>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_wait_for_an_origin_leave_places_to_takeovers_and_searches() {
        let places = Places::default();
        let wanted = ExpectDisk { name: Some("vm1".into()), vhost_user: None };
        let attaching = places.of(&Question::Bring(wanted));
        let taken: Vec<Answering> = (0..MOST_ANSWERS).map_while(|_| Answering::begin(attaching)).collect();
        assert_eq!(taken.len(), MOST_ANSWERS);
        assert!(Answering::begin(attaching).is_none());
        for question in [Question::Yield { epoch: 2, replica: None }, Question::Find] {
            assert!(Answering::begin(places.of(&question)).is_some(), "{question:?}");
        }
    }

    #[test]
    fn an_answer_that_panics_gives_its_place_back() {
        let count = Arc::default();
        for _ in 0..2 * MOST_ANSWERS {
            let place = Answering::begin(&count).expect("no answer is being given");
            let answer = move || {
                let _place = place;
                panic!("as an answer may");
            };
            std::thread::spawn(answer).join().unwrap_err();
        }
        let places: Vec<Answering> = (0..MOST_ANSWERS).map_while(|_| Answering::begin(&count)).collect();
        assert_eq!(places.len(), MOST_ANSWERS);
        assert!(Answering::begin(&count).is_none());
        drop(places);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
