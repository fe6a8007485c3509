//! A host's connection to etcd: it connects, keeps a lease, watches, writes reports and makes calls, one after the
//! other.
//!
//! The simulator decides which messages are exchanged and when. The code of `haversack_directory` decides which keys
//! are written and how the view follows them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use haversack_directory::{Change, DirectoryError, Key, Report, Value, View, Write, changes};
use haversack_model::Micros;
use haversack_model::random::Random;

use super::etcd::{Etcd, Kept};
use super::plan::Times;

/// Who has made a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// The host that balances.
    Mover,
    /// The operator, by hand.
    Operator,
    /// Nobody who waits for the answer.
    Nobody,
}

enum Ask {
    Open,
    Keep,
    Call(Caller, Change),
    Report(Vec<Write>),
}

enum Answer {
    /// What the directory has, if the view is not a part of its history; and a lease.
    Opened {
        cluster: u64,
        revision: i64,
        all: Option<Vec<(Key, Kept)>>,
        lease: i64,
    },
    Kept(Option<i64>),
    /// What was written, with the decoded values.
    Called(Caller, Vec<(Write, Option<Rc<Value>>)>, Result<i64, Key>),
    Reported {
        refused: usize,
    },
}

/// An exchange that is under way.
struct Exchange {
    sent: Micros,
    arrives: Micros,
    answered: Micros,
    ask: Option<Ask>,
    answer: Option<Answer>,
    /// Who waits for it.
    caller: Option<Caller>,
}

/// See the module documentation.
pub struct Access {
    host: usize,
    name: String,
    instance: u64,
    base: Instant,
    times: Times,
    pub view: View,
    /// The etcd that the view is of.
    pub cluster: Option<u64>,
    pub is_connected: bool,
    retry_at: Micros,
    /// Its lease, and until when etcd keeps that at least.
    pub lease: Option<(i64, Micros)>,
    keep_at: Micros,
    heard: Micros,
    exchange: Option<Exchange>,
    calls: VecDeque<(Caller, Change)>,
    report: Option<Report>,
    is_report_due: bool,
    refused_at: Option<Micros>,
    pub answers: Vec<(Caller, Result<i64, DirectoryError>)>,
    /// How late the watch is.
    pub lag_us: Micros,
}

impl Access {
    pub fn new(host: usize, name: &str, instance: u64, base: Instant, times: Times) -> Access {
        Access {
            host,
            name: name.into(),
            instance,
            base,
            times,
            view: View::default(),
            cluster: None,
            is_connected: false,
            retry_at: 0,
            lease: None,
            keep_at: 0,
            heard: 0,
            exchange: None,
            calls: VecDeque::new(),
            report: None,
            is_report_due: false,
            refused_at: None,
            answers: Vec::new(),
            lag_us: 0,
        }
    }

    fn at(&self, now: Micros) -> Instant {
        self.base + Duration::from_micros(now)
    }

    /// Replaces the report that waits to be written.
    pub fn report(&mut self, report: Report) {
        (self.report, self.is_report_due) = (Some(report), true);
    }

    /// Makes a change; [`Access::answers`] has the outcome. It is refused at once while etcd cannot be reached.
    pub fn call(&mut self, caller: Caller, change: Change) {
        if self.is_connected {
            self.calls.push_back((caller, change));
        } else {
            self.answers.push((caller, Err(away())));
        }
    }

    /// Returns whether nobody's calls wait.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.exchange.as_ref().is_none_or(|exchange| exchange.caller.is_none())
    }

    /// The connection is lost: what was sent may have arrived or not.
    pub fn disconnect(&mut self, now: Micros) {
        self.is_connected = false;
        self.retry_at = now + self.times.retry_us;
        let sent = self.exchange.take().and_then(|exchange| exchange.caller);
        self.answers.extend(sent.map(|caller| (caller, Err(no_answer()))));
        let refused = self.calls.drain(..).map(|(caller, _)| (caller, Err(away())));
        self.answers.extend(refused);
    }

    /// Goes on. `is_cut` says that nothing gets through to etcd.
    pub fn tick(&mut self, etcd: &mut Etcd, is_cut: bool, now: Micros, rng: &mut Random) {
        let is_there = !is_cut && etcd.answers(now);
        if is_there && self.is_connected {
            self.heard = now;
            if self.cluster != Some(etcd.cluster) {
                return self.disconnect(now);
            }
            self.watch(etcd, now);
        }
        if self.is_connected && now >= self.heard + self.times.silence_us {
            return self.disconnect(now);
        }
        if let Some(exchange) = &mut self.exchange {
            if now >= exchange.sent + self.times.call_us {
                return self.disconnect(now);
            }
            let arrives = now >= exchange.arrives && is_there;
            if let Some(ask) = exchange.ask.take_if(|_| arrives) {
                let answer = self.carry_out(ask, etcd, now);
                self.exchange.as_mut().expect("it is under way").answer = Some(answer);
            }
            let is_over = is_there && self.exchange.as_ref().is_some_and(|exchange| now >= exchange.answered);
            let answer = if is_over { self.exchange.as_mut().and_then(|e| e.answer.take()) } else { None };
            if let Some(answer) = answer {
                self.exchange = None;
                self.take(answer, now);
            }
            return;
        }
        self.send_next(now, rng);
    }

    fn send_next(&mut self, now: Micros, rng: &mut Random) {
        let ask = if !self.is_connected {
            if now < self.retry_at {
                return;
            }
            Ask::Open
        } else if now >= self.keep_at {
            Ask::Keep
        } else if let Some((caller, change)) = self.calls.pop_front() {
            Ask::Call(caller, change)
        } else if self.is_report_due || self.refused_at.is_some_and(|at| now >= at + self.times.look_us) {
            match self.due_writes(now) {
                Some(writes) => Ask::Report(writes),
                None => return,
            }
        } else {
            return;
        };
        let caller = if let Ask::Call(caller, _) = &ask { Some(*caller) } else { None };
        let arrives = now + rng.skewed(self.times.delay_us);
        let answered = arrives + rng.skewed(self.times.delay_us);
        // It never arrives, or its answer never does.
        let (arrives, answered) = match rng.below(1_000) {
            lost if lost < self.times.lost_permille => (Micros::MAX, Micros::MAX),
            lost if lost < 2 * self.times.lost_permille => (arrives, Micros::MAX),
            _ => (arrives, answered),
        };
        self.exchange = Some(Exchange { sent: now, arrives, answered, ask: Some(ask), answer: None, caller });
    }

    /// Returns what is to be written of the last report, if anything. Another daemon that has this host's name, such as
    /// the one before this, keeps it until its lease ends.
    fn due_writes(&mut self, now: Micros) -> Option<Vec<Write>> {
        if self.view.other_daemon(&self.name, self.instance).is_some() {
            return None;
        }
        let ((lease, _), report) = (self.lease?, self.report.as_ref()?);
        (self.is_report_due, self.refused_at) = (false, None);
        let writes = changes(report, &self.view, &self.name, lease, self.at(now)).writes;
        (!writes.is_empty()).then_some(writes)
    }

    fn carry_out(&mut self, ask: Ask, etcd: &mut Etcd, now: Micros) -> Answer {
        let until = now + self.times.lease_us;
        match ask {
            Ask::Open => {
                let (cluster, revision) = (etcd.cluster, etcd.revision);
                let is_known = self.view.is_of(self.cluster, cluster, revision)
                    && etcd.since(self.view.revision).is_some();
                let all = || etcd.all().map(|(key, kept)| (key.clone(), kept.clone())).collect();
                let all = if is_known { None } else { Some(all()) };
                let before = self.lease.map(|(id, _)| id).filter(|id| etcd.keep(*id, until));
                let lease = before.unwrap_or_else(|| etcd.grant(until));
                Answer::Opened { cluster, revision, all, lease }
            }
            Ask::Keep => {
                let id = self.lease.map(|(id, _)| id).filter(|id| etcd.keep(*id, until));
                Answer::Kept(id)
            }
            Ask::Call(caller, Change { writes, conditions, is_leased }) => {
                let lease = self.lease.filter(|_| is_leased).map_or(0, |(id, _)| id);
                let writes: Vec<Write> = writes.into_iter().map(|write| write.with_lease(lease)).collect();
                let result = etcd.all_or_none(&writes, &conditions, now, self.host);
                let decoded = writes.into_iter().map(|write| {
                    let value = etcd.get(&write.key).map(|kept| kept.value.clone());
                    (write, value)
                });
                Answer::Called(caller, decoded.collect(), result)
            }
            Ask::Report(writes) => Answer::Reported { refused: etcd.each(writes, now, self.host) },
        }
    }

    fn take(&mut self, answer: Answer, now: Micros) {
        let at = self.at(now);
        // Etcd counts from when a request has arrived: not before it was sent.
        let until = now.saturating_sub(2 * self.times.delay_us) + self.times.lease_us;
        match answer {
            Answer::Opened { cluster, revision, all, lease } => {
                if let Some(all) = all {
                    let all = all.iter().map(|(key, kept)| (key, &*kept.value, kept.stamp(at)));
                    self.view.replace_values(all, revision, at);
                }
                (self.is_connected, self.cluster, self.lease) = (true, Some(cluster), Some((lease, until)));
                (self.heard, self.keep_at, self.is_report_due) = (now, now + self.times.lease_us / 3, true);
            }
            Answer::Kept(Some(lease)) => {
                self.lease = Some((lease, until));
                self.keep_at = now + self.times.lease_us / 3;
            }
            Answer::Kept(None) => {
                // The lease has ended: the next exchange takes another one.
                self.lease = None;
                self.disconnect(now);
            }
            Answer::Called(caller, writes, Ok(revision)) => {
                for (write, value) in &writes {
                    match value.as_ref().filter(|_| write.value.is_some()) {
                        Some(value) => self.view.note_value(write, value, revision, at),
                        None => self.view.note(write, revision, at),
                    }
                }
                self.answers.push((caller, Ok(revision)));
            }
            Answer::Called(caller, _, Err(key)) => {
                self.answers.push((caller, Err(DirectoryError::Changed { key })));
            }
            Answer::Reported { refused } => self.refused_at = (refused > 0).then_some(now),
        }
    }

    /// Takes from the watch what is not too recent.
    fn watch(&mut self, etcd: &Etcd, now: Micros) {
        let at = self.at(now);
        let Some(events) = etcd.since(self.view.revision) else {
            // It was compacted: everything is read again.
            self.cluster = None;
            return self.disconnect(now);
        };
        let due = events.iter().take_while(|event| event.at + self.lag_us <= now);
        let mut last = None;
        for event in due {
            match &event.kept {
                Some(kept) => self.view.put_value(&event.key, &kept.value, kept.stamp(at)),
                None => self.view.delete_key(&event.key, event.revision, at),
            }
            last = Some(event.revision);
        }
        last.into_iter().for_each(|revision| self.view.reached(revision));
    }
}

fn away() -> DirectoryError {
    DirectoryError::Away { why: "etcd is away".into() }
}

fn no_answer() -> DirectoryError {
    DirectoryError::Time { endpoint: "etcd".into(), what: "a call".into(), seconds: 0.0 }
}
