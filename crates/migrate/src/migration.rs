//! One disk on one host: its state, what drives it, and the calls on it.

use std::collections::{BTreeMap, VecDeque};

use haversack_core::{Call, Copied, DiskConfig, IoId, JobError, JobId, ManageError, Memory, Moved};
use haversack_model::{BlockNo, DiskNo, HostId, Micros};
use haversack_ownership::{Grant, Ownership, Record, Step};

use crate::copies::{Receiving, Sending};
use crate::late::{Borrowing, Lending};
use crate::leave::Asker;
use crate::limit::Limit;
use crate::message::{Message, Part, Question, Session};
use crate::method::Method;
use crate::output::Output;
use crate::pace::PaceLimits;
use crate::passes::Passes;
use crate::replica::{Keeping, Recorded};
use crate::replicate::{Hindrance, ReplicaPolicy, Replicating};
use crate::takeover::Pending;

/// The interval at which a part of the cached blocks is listed.
const LISTING_EVERY_US: Micros = 1_000;
/// The interval at which to check whether more copies may be sent.
const SENDING_EVERY_US: Micros = 2_000;

/// Timeouts and limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A question is repeated after this time.
    pub repeat_us: Micros,
    /// The most copies on their way.
    pub copies_in_flight: usize,
    /// The pace of copies that spares guests. If not set, as many copies are sent as may be on their way.
    pub pace: Option<PaceLimits>,
    /// Blocks in one part of a list, and in one message that says which to forget.
    pub blocks_a_message: usize,
    /// The most blocks that are fetched from the earlier owner at a time in the background.
    pub fetch_window: u32,
    /// The most clean blocks that are read from the origin at a time, if they follow the disk from there.
    pub preload_window: u32,
    /// The most blocks that are fetched from the earlier owner in a period of 100 ms, if the method has a limit.
    /// Blocks that requests wait for count, too; blocks beyond the limit come first in the next period.
    pub fetched_a_period: Option<u32>,
    /// How long a replica counts as certain after its owner was heard, unless the owner's policy says otherwise. It
    /// must be the same on all hosts.
    pub lease_us: Micros,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            repeat_us: 200_000,
            copies_in_flight: 64,
            pace: None,
            blocks_a_message: 2_048,
            fetch_window: 64,
            preload_window: 128,
            fetched_a_period: None,
            lease_us: 5_000_000,
        }
    }
}

/// The progress of a disk's migration on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Copies that the destination has, or that this host has taken.
    pub copies: u64,
    /// Blocks that are still to be sent ahead.
    pub copies_left: u64,
    /// Blocks that this host still needs from the earlier owner.
    pub needed_blocks: u64,
    /// Clean blocks that are still to follow the disk here, of those known so far.
    pub following_blocks: u64,
    /// More clean blocks may still follow the disk here: listed ones, or ones that are yet to be listed.
    pub more_may_follow: bool,
    /// Dirty blocks that the method requires at the origin before the disk leaves.
    pub dirty_blocks: u64,
    /// The new owner still needs blocks from this host.
    pub is_peer: bool,
    /// This host serves the disk.
    pub is_serving: bool,
}

/// A piece of work that the ownership protocol, or the guest, waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// None.
    Idle,
    /// The disk is being attached under the recorded epoch.
    Attaching(JobId),
    /// The disk is being frozen to be released.
    Freezing { job: JobId, to: HostId, epoch: u64 },
    /// The record is being written. When it is durable, the ownership protocol continues.
    Recording(JobId),
    /// Another host's blocks are being listed, to claim the disk or to attach it again.
    Listing(Listing),
}

/// See [`Task::Listing`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listing {
    pub holder: HostId,
    pub epoch: u64,
    pub question: Question,
    pub part: Part,
    pub claims: bool,
    pub asked_us: Micros,
}

/// A block that is being fetched from the earlier owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub block: BlockNo,
    pub mask: u8,
    pub question: Question,
    /// A late copy is fetched from this host, under this epoch.
    pub late_from: Option<(HostId, u64)>,
    /// When it was last asked for; `None` while it waits for its turn.
    pub asked_us: Option<Micros>,
    pub repeated: u32,
    /// Answers without all of the sectors.
    pub lacking: u32,
}

/// See the module documentation.
pub struct Migration {
    pub(crate) me: HostId,
    pub(crate) incarnation: u64,
    pub(crate) questions: u64,
    pub(crate) sessions: u64,
    pub(crate) config: DiskConfig,
    pub(crate) timing: Timing,
    pub(crate) disk: Option<DiskNo>,
    pub(crate) ownership: Ownership,
    pub(crate) task: Task,
    /// Set while the guest is here: the host where the guest was before.
    pub(crate) guest: Option<HostId>,
    pub(crate) asked_us: Micros,
    /// The method of migrations that do not name one.
    pub(crate) usual_method: Method,
    /// The method of the current migration, and of the last one.
    pub(crate) method: Option<Method>,
    /// A host that waits until the disk may be released, and the cleaning that this waits for.
    pub(crate) asker: Option<Asker>,
    /// The move was aborted while that host waited for copies: the disk is released without them.
    pub(crate) skips_copies: bool,
    pub(crate) cleaning: Option<JobId>,
    /// Blocks that were to be fetched only when needed are fetched now.
    pub(crate) fetches_rest: bool,
    /// The host that is about to own the disk, as requested.
    pub(crate) destination: Option<HostId>,
    /// How blocks to send ahead are found.
    pub(crate) passes: Option<Passes>,
    pub(crate) sending: Option<Sending>,
    pub(crate) receiving: Option<Receiving>,
    /// After a release: the copies that were sent, and which of them are out of date.
    pub(crate) outdated: Option<(Session, Vec<BlockNo>)>,
    pub(crate) fetches: BTreeMap<IoId, Fetch>,
    pub(crate) limit: Limit,
    /// The method with which the disk came here.
    pub(crate) inherited: Method,
    /// How many blocks are fetched at a time in the background, as the core was told.
    pub(crate) window: Option<u32>,
    /// Late copies, on either side.
    pub(crate) lending: Option<Lending>,
    pub(crate) borrowing: Option<Borrowing>,
    /// When the earlier owner was last told what to forget.
    pub(crate) forget_us: Micros,
    /// What to confirm when it is durably forgotten: to which host, under which epoch.
    pub(crate) forgetting: Vec<(HostId, u64, Vec<BlockNo>)>,
    pub(crate) outputs: VecDeque<Output>,
    /// Copies have arrived since the last answer to their source. One answer is enough for all copies that arrive
    /// together.
    pub(crate) owes_answer: bool,
    /// Guests occupy this host.
    pub(crate) is_busy: bool,
    pub(crate) copies: u64,
    /// A takeover by force that has begun.
    pub(crate) pending: Option<Pending>,
    /// Why the disk cannot be attached or claimed.
    pub(crate) problem: Option<ManageError>,
    /// When an attach without a guest was last tried.
    pub(crate) tried_us: Micros,
    /// The replica that is wanted, and the state of the replica that may exist.
    pub(crate) replica: Option<ReplicaPolicy>,
    pub(crate) replicating: Option<Replicating>,
    pub(crate) hindrance: Hindrance,
    /// The operator has accepted that dirty blocks are lost here, until the disk is attached.
    pub(crate) accepts_loss: bool,
    /// The replica of another host's blocks that this host has, and what is being recorded about it.
    pub(crate) keeping: Option<Keeping>,
    /// When its owner was last asked whether the replica that is here is still needed, while there is one.
    pub(crate) asked_owner_us: Option<Micros>,
    pub(crate) recorded: Option<(JobId, Recorded)>,
    pub(crate) trusts_replica: bool,
}

impl Migration {
    /// Returns the state after a start of this host's pool, as recorded by the core. `incarnation` must be higher at
    /// each start.
    pub fn new<M: Memory>(
        call: &mut Call<'_, M>,
        now: Micros,
        me: HostId,
        incarnation: u64,
        config: DiskConfig,
        timing: Timing,
    ) -> Migration {
        let disk = call.disk_numbers().find(|no| call.disk_info(*no).is_some_and(|d| d.id == config.id));
        let info = disk.and_then(|no| call.disk_info(no));
        let record = info.map_or(Record::Unknown, |info| match info.moved {
            Moved::Depends { on } => Record::Owner { epoch: info.epoch, peers: [on].into() },
            _ if info.owned => Record::Owner { epoch: info.epoch, peers: [].into() },
            Moved::Peer { to } | Moved::Replica { of: to, .. } => {
                Record::Released { to, grant: Grant { epoch: info.epoch, holders: [me].into() } }
            }
            Moved::Away { to, holder } => {
                let holders = holder.into_iter().collect();
                Record::Released { to, grant: Grant { epoch: info.epoch, holders } }
            }
            Moved::Overtaken { to } => Record::Overtaken { by: to, epoch: info.epoch },
            Moved::No | Moved::Replicates { .. } => Record::Unknown,
        });
        if let Some(disk) = disk {
            // A disk whose blocks were all forgotten belongs to no peer now.
            let _ = call.forget_held(now, disk, &[]);
        }
        let mut migration = Migration {
            me,
            incarnation,
            questions: 0,
            sessions: 0,
            config,
            timing,
            disk,
            ownership: Ownership::new(me, record),
            task: Task::Idle,
            guest: None,
            asked_us: 0,
            usual_method: Method::default(),
            method: None,
            asker: None,
            skips_copies: false,
            cleaning: None,
            fetches_rest: false,
            destination: None,
            passes: None,
            sending: None,
            receiving: None,
            outdated: None,
            fetches: BTreeMap::new(),
            limit: Limit::default(),
            inherited: Method::default(),
            window: None,
            lending: None,
            borrowing: None,
            forget_us: 0,
            forgetting: Vec::new(),
            outputs: VecDeque::new(),
            owes_answer: false,
            is_busy: false,
            copies: 0,
            pending: None,
            problem: None,
            tried_us: 0,
            replica: None,
            replicating: None,
            hindrance: Hindrance::default(),
            accepts_loss: false,
            keeping: None,
            asked_owner_us: info.filter(|info| matches!(info.moved, Moved::Replica { .. })).map(|_| now),
            recorded: None,
            trusts_replica: false,
        };
        migration.ends_replica_of_before(info.map_or(Moved::No, |info| info.moved), now);
        migration
    }

    /// Makes this host the first owner of a disk that no host has owned.
    ///
    /// # Errors
    /// See [`Call::attach`].
    pub fn create<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> Result<(), ManageError> {
        let (disk, job) = call.attach(now, &self.config, 1, false)?;
        self.disk = Some(disk);
        self.ownership = Ownership::new(self.me, Record::Owner { epoch: 1, peers: [].into() });
        self.task = Task::Attaching(job);
        Ok(())
    }

    /// Sets the highest epoch that this host knew before an operator told it to forget the disk, or under which another
    /// host is known to have had the disk. A lower one than before has no effect.
    pub fn has_forgotten(&mut self, epoch: u64) {
        self.ownership.has_forgotten(epoch);
    }

    /// Handles another host's statement that it owns the disk under `epoch`. If the guest waits here for an earlier
    /// owner, this host asks the new owner instead.
    pub fn heard_of_owner<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        host: HostId,
        epoch: u64,
    ) {
        let step = self.ownership.heard_of_owner(host, epoch);
        self.step(call, now, step);
    }

    /// Returns the disk's number in the pool, if the pool knows it.
    pub fn disk(&self) -> Option<DiskNo> {
        self.disk
    }

    /// Returns this host's record.
    pub fn record(&self) -> &Record {
        self.ownership.record()
    }

    /// Whether requests of the guest may be submitted.
    pub fn may_serve<M: Memory>(&self, call: &Call<'_, M>) -> bool {
        self.ownership.may_serve() && self.is_attached_here(call)
    }

    pub(crate) fn is_attached_here<M: Memory>(&self, call: &Call<'_, M>) -> bool {
        self.disk.and_then(|disk| call.disk_info(disk)).is_some_and(|info| info.attached)
    }

    /// Sets whether guests occupy this host. If so, copies from and to this host should be sent slowly.
    pub fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    /// Returns the progress.
    pub fn status<M: Memory>(&self, call: &Call<'_, M>) -> Status {
        let needed = self.disk.and_then(|disk| call.dependence(disk)).map_or(0, |(_, blocks)| blocks);
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        let following = self.disk.and_then(|disk| call.late_copies(disk));
        Status {
            copies: self.copies,
            copies_left: self.copies_left() as u64,
            needed_blocks: needed as u64,
            following_blocks: following.unwrap_or(0) as u64,
            more_may_follow: following.is_some(),
            dirty_blocks: self.blocks_to_clean(call),
            is_peer: info.is_some_and(|info| matches!(info.moved, Moved::Peer { .. })),
            is_serving: self.may_serve(call),
        }
    }

    pub(crate) fn copies_left(&self) -> usize {
        self.copies_under_way() + self.passes.as_ref().map_or(0, Passes::left)
    }

    /// Returns how many blocks wait to be sent or are on their way, without those that a pass has yet to hand out.
    pub(crate) fn copies_under_way(&self) -> usize {
        self.sending.as_ref().map_or(0, |sending| sending.queue.len() + sending.in_flight.len())
    }

    /// Returns why the disk cannot be attached or claimed here, if an attempt has failed.
    pub fn problem(&self) -> Option<&ManageError> {
        self.problem.as_ref()
    }

    /// Returns what this host is doing, as human-readable text.
    pub fn describe(&self) -> String {
        format!("{:?}, guest from {:?}", self.task, self.guest)
    }

    /// Returns the next output.
    pub fn poll(&mut self) -> Option<Output> {
        if self.outputs.is_empty() && std::mem::take(&mut self.owes_answer) {
            self.acknowledge();
        }
        self.outputs.pop_front()
    }

    /// Whether the disk is being frozen or its release recorded.
    pub fn is_leaving(&self) -> bool {
        self.ownership.is_releasing()
    }

    /// Whether [`Migration::tick`] has anything to do: otherwise only messages, the guest and the ends of jobs matter.
    pub fn needs_time(&self) -> bool {
        let waits_for_disk = self.guest.is_some() && !self.ownership.may_serve();
        let depends = matches!(self.ownership.record(), Record::Owner { peers, .. } if !peers.is_empty());
        let is_moving = self.replica.is_some()
            || self.replicating.is_some()
            || self.keeping.is_some()
            || self.asked_owner_us.is_some()
            || self.sending.is_some()
            || self.asker.is_some()
            || self.lending.is_some()
            || self.borrowing.is_some()
            || !self.fetches.is_empty()
            || !self.forgetting.is_empty();
        self.task != Task::Idle || self.pending.is_some() || waits_for_disk || depends || is_moving
    }

    /// Returns when [`Migration::tick`] should be called.
    pub fn next_wakeup(&self, now: Micros) -> Micros {
        let sends = self.sending.as_ref().is_some_and(|sending| !sending.queue.is_empty());
        now + if self.lists_blocks() || self.lists_late_copies() {
            LISTING_EVERY_US
        } else if sends && self.timing.pace.is_some() {
            SENDING_EVERY_US
        } else {
            self.timing.repeat_us / 20
        }
    }

    /// The guest uses the disk here: a KICK, or the first write. `source` is where it was before, as far as is known.
    pub fn guest_runs<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros, source: HostId) {
        self.guest = Some(source);
        self.stay(call, now);
        if let Task::Freezing { .. } = self.task
            && let Some(disk) = self.disk
            && call.thaw(now, disk).is_ok()
        {
            self.ownership.abandoned();
            self.task = Task::Idle;
        }
        self.want_disk(call, now);
    }

    /// The guest has stopped its queues here, and none of its requests is in flight.
    pub fn guest_stopped(&mut self) {
        self.guest = None;
        self.ownership.guest_stopped();
    }

    /// Asks for the disk, or attaches it, if the guest is here and it is not served.
    pub(crate) fn want_disk<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(source) = self.guest else { return };
        self.asked_us = now;
        if self.disk.is_some_and(|disk| call.overtaken_blocks(disk) > 0) {
            // This host cannot take the disk before it has forgotten its obsolete blocks.
            return;
        }
        let step = self.ownership.guest_runs(source);
        self.step(call, now, step);
        if self.task == Task::Idle && self.ownership.may_serve() && !self.may_serve(call) {
            self.attach_again(call, now);
        }
    }

    /// Repeats questions that were not answered, and continues what can continue.
    pub fn tick<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let repeat_us = self.timing.repeat_us;
        self.go_on_taking_over(call, now);
        if now >= self.asked_us + repeat_us {
            self.want_disk(call, now);
        }
        let depends = matches!(self.ownership.record(), Record::Owner { peers, .. } if !peers.is_empty());
        let is_due = self.tried_us == 0 || now >= self.tried_us + repeat_us;
        if depends && self.task == Task::Idle && !self.is_attached_here(call) && is_due {
            // The peer's blocks are needed here, whether the guest is here or not.
            self.tried_us = now;
            self.attach_again(call, now);
        }
        if let Task::Listing(listing) = &mut self.task
            && now >= listing.asked_us + repeat_us
        {
            listing.asked_us = now;
            self.ask_list();
        }
        self.tick_limit(call, now);
        self.repeat_fetches(now);
        self.set_window(call, now);
        self.tick_borrowing(call, now);
        self.tick_lending(call, now);
        self.tell_what_to_forget(call, now);
        self.answer_forgotten(call);
        self.tick_stream(call, now);
        self.tick_passes(call, now);
        self.tick_settling(call, now);
        self.tick_leaving(call, now);
        self.tick_replicating(call, now);
        self.go_on_keeping(call, now);
        self.ask_silent_owner(call, now);
    }

    /// Sends what a replica lacks, and confirms what this host keeps for another one. Must be called whenever the core
    /// has done something, because flushes wait for it. Returns whether it caused more work.
    pub fn replicate<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) -> bool {
        let before = self.outputs.len();
        self.go_on_keeping(call, now);
        self.send_to_replica(call, now) || self.outputs.len() > before
    }

    /// Handles a message.
    pub fn message<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        from: HostId,
        message: Message,
    ) {
        match message {
            Message::Ownership(message) => self.heard_of_ownership(call, now, from, message),
            Message::Offer { session, from: at } => self.offered(call, now, from, session, at),
            Message::Arrived { session, taker, until, is_busy } => {
                self.arrived(call, now, from, session, taker, until, is_busy);
            }
            Message::Copy { session, taker, at, block, mask, reused, data } => {
                self.copy_came(from, session, taker, at, block, Copied { mask, reused }, data);
            }
            Message::Withdraw { session } => self.withdrawn(call, now, from, session),
            Message::List { question, epoch, part: Part::Clean(part), .. } => {
                self.late_list_asked(from, epoch, question, part, now);
            }
            Message::List { question, epoch, session, part } => {
                self.answer_list(call, from, question, epoch, session, part);
            }
            Message::Listed { question, part: Part::Clean(part), blocks, next, .. } => {
                self.late_copies_listed(call, now, question, part, &blocks, next);
            }
            Message::Listed { question, knows_session, method, part, blocks, next } => {
                self.listed(call, now, question, knows_session, method, part, &blocks, next);
            }
            Message::Fetch { question, epoch, block } => self.answer_fetch(now, from, question, epoch, block),
            Message::Fetched { question, mask, data } => self.fetched(question, mask, data),
            Message::Forget { epoch, blocks } => self.asked_to_forget(call, now, from, epoch, blocks),
            Message::Enough { epoch } => self.nothing_more_needed(call, from, epoch),
            Message::Forgotten { epoch, blocks } => self.forgotten(call, now, epoch, &blocks),
            Message::ReplicaOpen { session, taker, epoch, sectors, from: at } => {
                self.replica_opened(call, now, from, session, taker, epoch, sectors, at);
            }
            Message::ReplicaCopy { session, taker, echo, at, block, mask, data } => {
                self.replica_copy_came(now, from, session, taker, echo, at, block, mask, data);
            }
            Message::ReplicaRemove { session, taker, echo, number, blocks } => {
                self.replica_blocks_removed(call, now, from, session, taker, echo, number, &blocks);
            }
            Message::ReplicaBeat { session, taker, echo, completes } => {
                self.replica_beat(now, from, session, taker, echo, completes);
            }
            Message::ReplicaEnd { session, taker } => self.replica_ended(call, now, from, session, taker),
            Message::ReplicaHas(state) => self.heard_of_replica(call, now, from, state),
            Message::ReplicaDropped { session } => self.replica_dropped(call, now, from, session),
        }
        self.answer_forgotten(call);
    }

    /// A job of the disk has ended.
    pub fn job_done<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        job: JobId,
        result: Result<(), JobError>,
    ) {
        self.follow_size(call);
        if self.replica_recorded(call, now, job, result) || self.replica_is_recorded(now, job, result) {
            return;
        }
        match self.task.clone() {
            Task::Attaching(mine) if mine == job => {
                self.task = Task::Idle;
                self.problem = None;
                self.accepts_loss &= result.is_err();
                self.is_attached(call, now);
            }
            Task::Freezing { job: mine, to, epoch } if mine == job => {
                self.frozen(call, now, to, epoch, result);
            }
            Task::Recording(mine) if mine == job => {
                self.task = Task::Idle;
                if result.is_err() {
                    self.ownership.abandoned();
                    return;
                }
                self.problem = None;
                let step = self.ownership.recorded();
                self.is_attached(call, now);
                self.step(call, now, step);
            }
            _ => self.cleaned(call, now, job, result),
        }
    }

    /// Takes over the size of the attached disk, which may have been resized: it is needed after the disk has left,
    /// too.
    fn follow_size<M: Memory>(&mut self, call: &Call<'_, M>) {
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        if let Some(info) = info.filter(|info| info.attached) {
            self.config.sectors = info.sectors;
        }
    }

    pub(crate) fn send(&mut self, to: HostId, message: Message) {
        self.outputs.push_back(Output::Send(to, message));
    }

    pub(crate) fn question(&mut self) -> Question {
        self.questions += 1;
        Question { incarnation: self.incarnation, count: self.questions }
    }

    /// Carries out a step of the ownership protocol.
    pub(crate) fn step<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros, step: Option<Step>) {
        match step {
            None => {}
            Some(Step::Send(to, message)) => self.send(to, Message::Ownership(message)),
            Some(Step::Write { record, drops_dirty }) => {
                let begun = self.task == Task::Idle && self.write(call, now, record, drops_dirty).is_ok();
                if !begun {
                    self.ownership.abandoned();
                }
            }
        }
    }
}
