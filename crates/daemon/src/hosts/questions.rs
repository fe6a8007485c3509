//! Questions for what other hosts have on record of disks, each asked again until it has its answer.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use haversack_migrate::HostRecord;
use haversack_model::{DiskId, HostId};

use super::epochs::PATIENCE;
use super::talk::Answer;

/// How often a host is asked again that has not said what it has.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Questions to one host that are on their way at a time.
const MOST_ASKED: usize = 64;

/// Questions to hosts about their records. Each is kept until it is answered on the present connection.
#[derive(Default)]
pub(super) struct Questions(HashMap<(HostId, DiskId), Asked>);

/// A question, and the answers to it while it is on its way.
#[derive(Default)]
struct Asked {
    at: Option<Instant>,
    answers: Option<Receiver<(HostId, Answer)>>,
}

impl Questions {
    pub fn add(&mut self, host: HostId, disk: DiskId) {
        self.0.entry((host, disk)).or_default();
    }

    /// Forgets the questions to other hosts than these.
    pub fn retain(&mut self, is_kept: impl Fn(&HostId) -> bool) {
        self.0.retain(|(host, _), _| is_kept(host));
    }

    /// Returns the records that have arrived. Hosts that have not reported their records, or are taking the disk over,
    /// are asked again.
    pub fn take_answers(&mut self, now: Instant) -> Vec<(HostId, DiskId, HostRecord)> {
        let mut records = Vec::new();
        self.0.retain(|(host, disk), asked| {
            let Some(answers) = &asked.answers else { return true };
            let mut is_open = true;
            match answers.try_recv() {
                Ok((_, Answer::Record(record))) => {
                    is_open = record.is_taking;
                    records.push((*host, *disk, record));
                }
                Err(TryRecvError::Empty) if asked.at.is_some_and(|at| now - at < PATIENCE) => return true,
                Ok(_) | Err(_) => {}
            }
            asked.answers = None;
            is_open
        });
        records
    }

    /// Asks the questions that are due, those that have waited the longest first.
    pub fn ask(&mut self, now: Instant, ask: impl Fn(HostId, DiskId) -> Receiver<(HostId, Answer)>) {
        let mut on_their_way: HashMap<HostId, usize> = HashMap::new();
        let mut due = Vec::new();
        for ((host, disk), asked) in &mut self.0 {
            if asked.answers.is_some() {
                *on_their_way.entry(*host).or_default() += 1;
            } else if asked.at.is_none_or(|at| now - at >= ASK_EVERY) {
                due.push((*host, *disk, asked));
            }
        }
        due.sort_by_key(|(_, _, asked)| asked.at);
        for (host, disk, asked) in due {
            let count = on_their_way.entry(host).or_default();
            if *count < MOST_ASKED {
                *count += 1;
                *asked = Asked { at: Some(now), answers: Some(ask(host, disk)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use haversack_migrate::KnownOwner;

    use super::*;

    fn record(owner: KnownOwner, is_taking: bool) -> HostRecord {
        HostRecord { owner, is_taking, ..HostRecord::default() }
    }

    #[test]
    fn a_host_is_asked_until_it_says_what_it_has() {
        let (host, disk, start) = (HostId(2), DiskId([1; 16]), Instant::now());
        let answered = |answer: Option<Answer>| {
            move |host, _| {
                let (sender, answers) = std::sync::mpsc::channel();
                answer.clone().into_iter().for_each(|answer| sender.send((host, answer)).unwrap());
                answers
            }
        };
        let mut questions = Questions::default();
        questions.add(host, disk);
        let taking = record(KnownOwner::Unknown, true);
        let refused = Some(Answer::Refused(super::super::talk::IS_BUSY.into()));
        let rounds = [(refused, 0), (Some(Answer::Record(taking)), 1), (None, 0)];
        let mut now = start;
        for (answer, expected) in rounds {
            questions.ask(now, answered(answer));
            assert_eq!(questions.take_answers(now).len(), expected);
            questions.ask(now, |_, _| panic!("asked again at once"));
            now += ASK_EVERY;
        }
        let owned = record(KnownOwner::Me { epoch: 9 }, false);
        questions.ask(now, answered(Some(Answer::Record(owned.clone()))));
        assert_eq!(questions.take_answers(now), [(host, disk, owned)]);
        questions.ask(now + ASK_EVERY, |_, _| panic!("it has answered"));
    }

    #[test]
    fn a_host_is_asked_for_so_many_disks_at_a_time_and_for_each() {
        let now = Instant::now();
        let mut questions = Questions::default();
        (0..200).for_each(|disk| questions.add(HostId(2), DiskId([disk; 16])));
        let asked = std::cell::RefCell::new(Vec::new());
        // No host answers, so all questions are asked again.
        for round in 1..=4u32 {
            questions.ask(now + ASK_EVERY * round, |_, disk| {
                asked.borrow_mut().push(disk);
                std::sync::mpsc::channel().1
            });
            assert_eq!(asked.borrow().len(), MOST_ASKED * round as usize);
            questions.take_answers(now + ASK_EVERY * round);
        }
        let different: std::collections::HashSet<DiskId> = asked.borrow().iter().copied().collect();
        assert_eq!(different.len(), 200, "those that wait go first");
    }
}
