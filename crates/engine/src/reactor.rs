//! The reactor: one thread that drives an arena's cache core, its extents of the devices, its disks' origins and all
//! their clients, with one io_uring.
//!
//! It takes completions and client requests, hands them to the core, and carries out the core's actions. With
//! nothing left to do it polls for new work for a moment, as long as that is worthwhile, and then sleeps in the
//! kernel until an I/O completes, a client rings or the core's next tick is due. An idle reactor uses no
//! processor time.
//!
//! Invariants
//! - Every action with an I/O gets one completion, after the kernel or the origin has finished with the I/O's
//!   memory.
//! - Only this thread calls the core.
//! - The core names disks by their numbers. Everything else names a disk by its handle, which is looked up each
//!   time: nothing that began before a detach reaches the next disk with that number.

mod io;
mod outcomes;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use haversack_core::{
    Action, Call, CheckpointSource, Core, JobError, JobId, Op, OpenReport, Rejected, Request, RequestError,
    RequestTag,
};
use haversack_model::{DiskHandle, DiskNo, Micros, SectorNo};

use crate::arena::ArenaOpening;
use crate::checkpoint::{self, OnSaving, Source};
use crate::device::CacheDevice;
use crate::disks::Disks;
use crate::error::{EngineError, Result};
use crate::event::EngineEvent;
use crate::faults::DeviceOp;
use crate::front::budget::Budget;
use crate::front::{Asked, Client, ClientContext, ClientKind, Front, Tag, Wish};
use crate::held::{Ended, Held};
use crate::in_turn::InTurn;
use crate::lending::Lending;
use crate::live::LiveDevice;
use crate::mailbox::Commands;
use crate::media::Devices;
use crate::memory::SharedMemory;
use crate::moving::Moving;
use crate::moving::copies::COPIES;
use crate::origin::{OriginAnswer, OriginOp};
use crate::polling::Polling;
use crate::pool_clock::PoolClock;
use crate::retry::Retries;
use crate::ring::{Completion, Owner, Ring};
use crate::siblings::Siblings;
use crate::turn_times::TurnTimes;
use crate::turns::Turns;

pub(crate) use outcomes::Afterwards;

/// The core and its memory during a call.
pub(crate) type CoreCall<'a> = Call<'a, SharedMemory<Front>>;

/// The longest sleep, so that work that depends on the time of day is never very late.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Interval at which timers are checked while the reactor is busy, in microseconds. No timer is finer than
/// that.
const TIMERS_US: Micros = 1000;
/// The most completions taken before the core's actions are carried out.
const COMPLETIONS_AT_A_TIME: usize = 256;
/// The most commands run in one turn: other hosts may send messages as fast as they are handled.
const COMMANDS_AT_A_TIME: usize = 64;
/// The most copies of blocks that are taken from other hosts in one turn: requests of guests wait meanwhile.
const COPIES_A_TURN: usize = 16;
/// The most runs in one answer to a query for what is cached.
const MOST_RUNS: usize = 1024;

/// See the module documentation.
pub(crate) struct Reactor {
    pub(crate) core: Core,
    /// The memory that the core works in, and the clients, whose requests it answers.
    pub(crate) memory: SharedMemory<Front>,
    pub(crate) ring: Ring,
    pub(crate) clock: Arc<PoolClock>,
    pub(crate) devices: Vec<Option<LiveDevice>>,
    pub(crate) disks: Disks,
    /// The disks whose cache can move to another host.
    pub(crate) moving: Moving,
    /// What is lent and borrowed.
    pub(crate) lending: Option<Box<Lending>>,
    /// The other arenas of the pool.
    pub(crate) siblings: Siblings,
    commands: Commands,
    /// Commands run in this turn.
    pub(crate) commands_run: usize,
    /// Copies of blocks that came from other hosts in this turn.
    pub(crate) copies: usize,
    doorbell_listens: bool,
    pub(crate) jobs: Vec<(JobId, Sender<std::result::Result<(), JobError>>)>,
    /// Work that is left to do here when a job has ended.
    pub(crate) afterwards: Vec<(JobId, Afterwards)>,
    pub(crate) subscribers: Vec<Sender<EngineEvent>>,
    pub(crate) asked: Vec<Wish>,
    batch: Vec<Request>,
    /// The disks of the requests in a batch.
    of_disks: Vec<DiskHandle>,
    /// Questions about what is cached. One is answered in a turn, because it takes as long as many requests.
    questions: VecDeque<Question>,
    runs: Vec<(u64, u32)>,
    /// Decides which requests may go to the core.
    pub(crate) turns: Turns,
    /// Requests that were split, by client and slot: the number of parts left, and the first failure.
    parts: HashMap<(u32, u32), (u32, std::result::Result<(), RequestError>)>,
    /// Memory for the payloads of NBD clients.
    pub(crate) budget: Rc<Budget>,
    /// Requests for which the core has no room yet.
    backlog: VecDeque<(DiskHandle, Request)>,
    /// I/Os that have ended without the kernel: failed on demand, or flushes that are not needed.
    ended: Vec<Completion>,
    answers: Vec<OriginAnswer>,
    events: Vec<EngineEvent>,
    retries: Retries,
    spare_iovecs: Vec<Vec<libc::iovec>>,
    poll_us: Micros,
    polling: Polling,
    /// Device and origin I/Os in flight.
    ios: usize,
    /// I/Os that wait for each other, if they are done one at a time.
    in_turn: Option<InTurn>,
    /// When timers are checked next.
    timers_us: Micros,
    pub(crate) now: Micros,
    pub(crate) turn_times: TurnTimes,
    /// What was completed in this turn. It is counted at the end of the turn, after the guests have their
    /// answers.
    finished: Vec<(DiskHandle, ClientKind, Finished)>,
    /// When to end, whatever is in flight.
    pub(crate) ends_by_us: Option<Micros>,
    /// Everything staged is on flash, and the pool's record says so.
    pub(crate) stopped_cleanly: bool,
    /// Where a clean stop leaves a checkpoint, if it does.
    pub(crate) checkpoint: Option<PathBuf>,
    on_saving: OnSaving,
}

impl Reactor {
    /// Opens the devices, the staging area and the pool.
    pub fn open(
        opening: ArenaOpening,
        clock: Arc<PoolClock>,
        commands: Commands,
    ) -> Result<(Reactor, OpenReport)> {
        let ArenaOpening { settings: config, extents, siblings } = opening;
        let mut devices = Devices::of(extents)?;
        let mut memory = SharedMemory::open(
            &config.staging_path,
            config.staging_blocks,
            config.transfer_blocks,
            Front::default(),
        )?;
        let mut ring = Ring::new().map_err(EngineError::Ring)?;
        if let Err(error) = ring.register(memory.transfer()) {
            tracing::info!(%error, "cannot register memory with the kernel: raise the limit of locked memory");
        }
        let now = clock.now_us();
        // With a clock that stands still, polling for work would never end.
        let poll_us = if clock.runs() { config.poll_us.into() } else { 0 };
        devices.on_progress = config.on_progress;
        devices.workers = devices.workers.div_ceil(siblings.arenas());
        let options = config.open_options();
        let checkpoint = config.checkpoint_path;
        let mut source = checkpoint.as_deref().map(Source::open);
        let pieces = source.as_mut().map(|source| source as &mut dyn CheckpointSource);
        let (core, report) = Core::open_with(&mut devices, &mut memory, pieces, config.core, &options, now)?;
        drop(source);
        if let Some(path) = &checkpoint {
            checkpoint::remove(path);
        }
        let mut opened: Vec<Option<CacheDevice>> = devices.devices.into_iter().map(Some).collect();
        let mut live: Vec<Option<LiveDevice>> = Vec::new();
        for (device, place) in &report.devices {
            put(&mut live, device.0.into(), LiveDevice::new(opened[*place].take().expect("named once")));
        }
        let reactor = Reactor {
            core,
            memory,
            ring,
            clock,
            devices: live,
            disks: Disks::new(siblings.arena()),
            moving: Moving::default(),
            lending: None,
            siblings,
            commands,
            commands_run: 0,
            copies: 0,
            doorbell_listens: false,
            jobs: Vec::new(),
            afterwards: Vec::new(),
            subscribers: Vec::new(),
            asked: Vec::new(),
            batch: Vec::new(),
            of_disks: Vec::new(),
            questions: VecDeque::new(),
            runs: Vec::new(),
            turns: Turns::default(),
            parts: HashMap::new(),
            budget: Budget::new(config.client_bytes),
            backlog: VecDeque::new(),
            ended: Vec::new(),
            answers: Vec::new(),
            events: Vec::new(),
            retries: Retries::default(),
            spare_iovecs: Vec::new(),
            poll_us,
            polling: Polling::new(poll_us),
            ios: 0,
            in_turn: config.clock_file.is_some().then(|| InTurn::new(config.io_times.as_ref())),
            timers_us: 0,
            now,
            turn_times: TurnTimes::default(),
            finished: Vec::new(),
            ends_by_us: None,
            stopped_cleanly: false,
            checkpoint,
            on_saving: config.on_saving,
        };
        Ok((reactor, report))
    }

    /// Runs until stopped.
    pub fn run(mut self) {
        if let Err(error) = crate::slice::shorten() {
            tracing::debug!(%error, "the reactor keeps the usual time slice");
        }
        while !self.is_over() {
            self.now = self.clock.now_us();
            self.turn_times.next(self.now);
            let worked = self.turn();
            self.flush_clients();
            self.count_finished();
            self.ring.submit();
            if worked {
                self.turn_times.worked();
                self.polling.found();
                continue;
            }
            if self.polling.goes_on(self.now, self.ios > 0) {
                std::hint::spin_loop();
                continue;
            }
            if !self.fall_asleep() {
                continue;
            }
            let time = self.time_to_sleep();
            self.turn_times.sleep(self.clock.now_us());
            self.ring.wait(time);
        }
        if !self.ring.quiesce() {
            tracing::error!("a device does not complete its I/O; leaking its memory");
            self.release_waiters();
            std::mem::forget(self);
            return;
        }
        if !self.stopped_cleanly {
            return;
        }
        if let Err(error) = self.memory.empty_file() {
            tracing::warn!(%error, "cannot empty the staging area");
        }
        if let Some(path) = self.checkpoint {
            checkpoint::save(self.core, &path, self.on_saving);
        }
    }

    /// Lets go of all that other threads wait for, as if the reactor were dropped.
    fn release_waiters(&mut self) {
        self.commands.close();
        self.jobs.clear();
        self.subscribers.clear();
        self.memory.payloads.abandon_stops();
    }

    /// Whether the thread is to end.
    fn is_over(&self) -> bool {
        self.ends_by_us.is_some_and(|by_us| self.ios == 0 || by_us <= self.now)
    }

    /// Does all work that can be done now. Returns false if there was none.
    fn turn(&mut self) -> bool {
        self.turns.next_turn();
        self.copies = 0;
        self.ring.pace(self.turns.paces_devices(self.now));
        let mut worked = self.run_commands();
        for _ in 0..COMPLETIONS_AT_A_TIME {
            let Some(completion) = self.ring.completed() else { break };
            self.io_completed(completion);
            worked = true;
        }
        for completion in std::mem::take(&mut self.ended) {
            self.io_completed(completion);
            worked = true;
        }
        if self.end_held() {
            // Carry out the core's next actions before another I/O ends.
            self.carry_out();
            return true;
        }
        worked |= self.polled(|client, context| client.poll(context));
        worked |= self.take_turns();
        worked |= self.answer_question();
        worked |= self.pass_time();
        worked = worked || self.go_on();
        self.carry_out() | worked
    }

    /// Lets the core go on with what it has left to do. Returns false if that is nothing.
    fn go_on(&mut self) -> bool {
        // The order of calls is that of events then.
        if self.in_turn.is_some() || !self.core.has_steps_left() {
            return false;
        }
        self.core.with(&mut self.memory).go_on(self.now);
        true
    }

    fn run_commands(&mut self) -> bool {
        if !self.doorbell_listens {
            self.ring.listen(Owner::Mailbox, self.commands.doorbell(), self.now);
            self.doorbell_listens = true;
        }
        self.commands.begin();
        self.commands_run = 0;
        while self.commands_run < COMMANDS_AT_A_TIME && self.copies < COPIES_A_TURN {
            let Some(command) = self.commands.next() else { break };
            command(self);
            self.commands_run += 1;
        }
        self.commands_run > 0
    }

    fn io_completed(&mut self, completion: Completion) {
        if completion.result == Err(libc::EFAULT) {
            self.memory.check_whole();
        }
        match completion.owner {
            Owner::Mailbox => self.doorbell_listens = false,
            Owner::Device { io, device } => self.device_completed(io, device, completion),
            Owner::Origin { disk, token } => {
                self.origin(disk, |o, context| o.completed(context, token, completion));
                self.disks.drop_ended();
            }
            Owner::Client { client, part } => {
                self.client(client, |c, context| c.completed(context, part, completion));
            }
        }
    }

    /// Lets a client act, then submits its requests.
    pub(crate) fn client<R>(
        &mut self,
        client: u32,
        act: impl FnOnce(&mut dyn Client, &mut ClientContext<'_>) -> R,
    ) -> Option<R> {
        let front = &mut self.memory.payloads;
        let state = front.get_mut(client)?;
        let (ring, asked) = (&mut self.ring, &mut self.asked);
        let (now, poll_us) = (self.now, self.poll_us);
        let socket_bytes = self.turns.socket_bytes(state.disk(), now);
        let result = act(state, &mut ClientContext { ring, client, now, poll_us, socket_bytes, asked });
        front.has_acted(client);
        self.submit_asked(client);
        Some(result)
    }

    pub(crate) fn submit_asked(&mut self, client: u32) {
        if self.asked.is_empty() {
            return;
        }
        let Some(disk) = self.memory.payloads.get_mut(client).map(|client| client.disk()) else {
            return;
        };
        let is_attached = self.disks.get(disk).is_some();
        let (mut asked, mut batch) = (std::mem::take(&mut self.asked), std::mem::take(&mut self.batch));
        for wish in asked.drain(..) {
            match wish {
                Wish::Request(asked) if is_attached && self.holds(client, asked) => {}
                Wish::Request(asked) if is_attached => self.ask(client, asked, &mut batch),
                Wish::Status { slot, sector, sectors } if is_attached => {
                    self.questions.push_back(Question { client, slot, sector, sectors });
                }
                Wish::Request(Asked { slot, .. }) | Wish::Status { slot, .. } => {
                    self.completed(Tag::refused(client, slot).encode(), Err(RequestError::Detached));
                }
            }
        }
        asked.append(&mut self.asked);
        self.asked = asked;
        if batch.len() > 1 {
            self.core.prefetch(&batch);
        }
        for request in batch.drain(..) {
            self.submit(disk, request);
        }
        self.batch = batch;
    }

    /// Adds the parts of a request that may start now to the batch; the rest waits for the disk's turn.
    fn ask(&mut self, client: u32, asked: Asked, batch: &mut Vec<Request>) {
        // If I/Os are done one at a time, requests are not split.
        let part_sectors = match &mut self.in_turn {
            None => self.turns.part_sectors(asked.disk, self.now),
            Some(in_turn) => {
                if let Some(held) = &mut in_turn.held {
                    held.requests += 1;
                    held.stirred(self.now);
                }
                u32::MAX
            }
        };
        let mut count = 0;
        for request in asked.requests(client, part_sectors) {
            count += 1;
            if self.in_turn.is_some() || self.turns.starts(asked.disk, &request, self.now) {
                batch.push(request);
            }
        }
        if count > 1 {
            self.parts.insert((client, asked.slot), (count, Ok(())));
        }
    }

    /// Starts requests that wait for their disks' turns. Returns true if some started, or may start in the next
    /// turn.
    fn take_turns(&mut self) -> bool {
        let (mut batch, mut of_disks) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.of_disks));
        while let Some((disk, request)) = self.turns.next(self.now) {
            batch.push(request);
            of_disks.push(disk);
        }
        let any = !batch.is_empty();
        if batch.len() > 1 {
            self.core.prefetch(&batch);
        }
        for (request, disk) in batch.drain(..).zip(of_disks.drain(..)) {
            self.submit(disk, request);
        }
        (self.batch, self.of_disks) = (batch, of_disks);
        any || self.turns.is_due(self.now)
    }

    /// Answers the next question about what is cached. Returns false if there is none.
    fn answer_question(&mut self) -> bool {
        let Some(question) = self.questions.pop_front() else { return false };
        let Question { client, slot, .. } = question;
        let disk = self.memory.payloads.get_mut(client).map(|client| client.disk());
        match disk.filter(|disk| self.disks.get(*disk).is_some()) {
            Some(disk) => self.tell_status(disk.number(), question),
            // It was detached in the meantime.
            None => self.completed(Tag::refused(client, slot).encode(), Err(RequestError::Detached)),
        }
        true
    }

    fn tell_status(&mut self, disk: DiskNo, question: Question) {
        let Question { client, slot, sector, sectors } = question;
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        self.core.cache_runs(disk, sector, sectors, MOST_RUNS, |sectors, state| {
            runs.push((sectors, u32::from(state.cached) | u32::from(state.dirty) << 1));
        });
        self.client(client, |client, context| client.status(context, slot, &runs));
        self.runs = runs;
    }

    fn submit(&mut self, disk: DiskHandle, request: Request) {
        match self.core.with(&mut self.memory).submit(self.now, request) {
            Ok(()) => {}
            Err(Rejected::Busy) => self.backlog.push_back((disk, request)),
            Err(rejected) => {
                tracing::debug!(%rejected, "a request was refused");
                let error = match rejected {
                    Rejected::NotOwner => RequestError::NotOwner,
                    Rejected::NoSuchDisk(_) => RequestError::Detached,
                    Rejected::OutOfRange { .. } | Rejected::Busy => RequestError::Origin,
                };
                self.completed(request.tag, Err(error));
            }
        }
    }

    /// Lets all polled clients act. Returns true if one of them did something.
    fn polled(&mut self, mut act: impl FnMut(&mut dyn Client, &mut ClientContext<'_>) -> bool) -> bool {
        let (mut any, mut at) = (false, 0);
        while let Some(client) = self.memory.payloads.polled(at) {
            any |= self.client(client, &mut act) == Some(true);
            // A client that is no longer polled has left its place in the list to the next one.
            at += usize::from(self.memory.payloads.polled(at) == Some(client));
        }
        any
    }

    /// Lets clients send what they have for their peers, once a turn.
    fn flush_clients(&mut self) {
        self.polled(|client, context| {
            client.flush(context);
            false
        });
    }

    /// Ticks the core and the origins whose timers have expired. It checks every disk, so it does not run in
    /// every turn.
    fn pass_time(&mut self) -> bool {
        let is_time = match self.held() {
            None => self.timers_us <= self.now,
            Some(held) => held.is_time_to_look(self.now),
        };
        if !is_time {
            return false;
        }
        let mut worked = false;
        if self.core.next_wakeup().is_some_and(|due| due <= self.now) {
            self.core.with(&mut self.memory).tick(self.now);
            worked = true;
        }
        let (now, due) = (self.now, self.core.next_wakeup());
        if let Some(held) = self.held_mut() {
            held.looked(now, due);
        }
        for place in 0..self.disks.places() {
            let Some(live) = self.disks.at(DiskNo(place)) else { continue };
            if live.origin.next_wakeup().is_some_and(|due| due <= self.now) {
                self.origin(live.handle, |o, context| o.tick(context));
                worked = true;
            }
        }
        worked |= self.tick_movers();
        worked |= self.tick_lending();
        while let Some((disk, request)) = self.retries.due(self.now) {
            self.origin(disk, |o, context| o.start(context, request));
            worked = true;
        }
        self.timers_us = self.now + TIMERS_US;
        worked
    }

    /// Returns when timers were last checked.
    pub(crate) fn timers_looked_at_us(&self) -> Micros {
        self.timers_us.saturating_sub(TIMERS_US)
    }

    /// Carries out the core's actions. Returns false if there were none.
    fn carry_out(&mut self) -> bool {
        let mut any = false;
        loop {
            while let Some(action) = self.next_action() {
                self.act(action);
                any = true;
            }
            for event in std::mem::take(&mut self.events) {
                self.tell(&event);
            }
            if self.drive_movers() {
                any = true;
                continue;
            }
            match self.backlog.pop_front() {
                Some((disk, request)) if self.disks.get(disk).is_none() => {
                    self.completed(request.tag, Err(RequestError::Detached));
                }
                Some((disk, request)) => {
                    let left = self.backlog.len();
                    self.submit(disk, request);
                    if self.backlog.len() > left {
                        break;
                    }
                }
                None => break,
            }
        }
        any
    }

    fn next_action(&mut self) -> Option<Action> {
        match &mut self.in_turn {
            None => self.core.poll(),
            Some(in_turn) => in_turn.next(self.now, self.ios, || self.core.poll()),
        }
    }

    /// Returns the number of device and origin I/Os that have not been carried out yet.
    pub(crate) fn ios_in_flight(&self) -> usize {
        self.in_turn.as_ref().map_or(self.ios, |in_turn| in_turn.left(self.ios))
    }

    pub(crate) fn held(&self) -> Option<&Held> {
        self.in_turn.as_ref()?.held.as_ref()
    }

    pub(crate) fn held_mut(&mut self) -> Option<&mut Held> {
        self.in_turn.as_mut()?.held.as_mut()
    }

    /// Ends the next held I/O whose modelled end time has come. Returns false if there is none.
    fn end_held(&mut self) -> bool {
        let now = self.now;
        match self.held_mut().and_then(|held| held.next(now)) {
            None => return false,
            Some(Ended::Device { io, device, completion }) => self.device_ended(io, device, completion),
            Some(Ended::Origin { disk, answer }) => self.origin_ended(disk, answer),
        }
        true
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ReadDevice { io, device, offset_bytes } => {
                self.device_io(io, device, offset_bytes, DeviceOp::Read);
            }
            Action::WriteDevice { io, device, offset_bytes } => {
                self.device_io(io, device, offset_bytes, DeviceOp::Write);
            }
            Action::FlushDevice { io, device } => self.device_io(io, device, 0, DeviceOp::Flush),
            Action::ReadOrigin { io, disk, sector, sectors } => {
                self.origin_io(io, disk, OriginOp::Read, sector, sectors, false);
            }
            Action::WriteOrigin { io, disk, sector, sectors, durable, .. } => {
                self.origin_io(io, disk, OriginOp::Write, sector, sectors, durable);
            }
            Action::ZeroOrigin { io, disk, sector, sectors, discard, durable, .. } => {
                self.origin_io(io, disk, OriginOp::Zero { discard }, sector, sectors, durable);
            }
            Action::FlushOrigin { io, disk } => {
                self.origin_io(io, disk, OriginOp::Flush, SectorNo(0), 0, false);
            }
            Action::ReadPeer { io, disk, block, mask, is_late } => {
                self.read_peer(io, disk, block, mask, is_late);
            }
            Action::Complete { tag, result } => self.completed(tag, result),
            Action::Event(event) => self.core_event(event),
        }
    }

    pub(crate) fn completed(&mut self, tag: RequestTag, result: std::result::Result<(), RequestError>) {
        let tag = Tag::decode(tag);
        let Tag { client, slot, .. } = tag;
        if client == COPIES {
            return self.memory.payloads.copies.completed(slot, result);
        }
        let Some(result) = self.whole(tag, result) else { return };
        let front = &mut self.memory.payloads;
        let Some(state) = front.get_mut(client) else { return };
        let (disk, kind) = (state.disk(), state.kind());
        let (ring, asked) = (&mut self.ring, &mut self.asked);
        let (now, poll_us) = (self.now, self.poll_us);
        let socket_bytes = self.turns.socket_bytes(disk, now);
        let mut context = ClientContext { ring, client, now, poll_us, socket_bytes, asked };
        let done = state.complete(&mut context, slot, result);
        front.has_acted(client);
        self.finished.extend(done.map(|done| (disk, kind, done)));
        self.submit_asked(client);
    }

    /// Returns the result of a request once all its parts are done.
    fn whole(
        &mut self,
        tag: Tag,
        result: std::result::Result<(), RequestError>,
    ) -> Option<std::result::Result<(), RequestError>> {
        if let Some(disk) = self.memory.payloads.get_mut(tag.client).map(|client| client.disk()) {
            self.turns.ended(disk, tag.units.into(), self.now);
        }
        if self.parts.is_empty() {
            return Some(result);
        }
        let key = (tag.client, tag.slot);
        let Some((left, so_far)) = self.parts.get_mut(&key) else { return Some(result) };
        *left -= 1;
        *so_far = so_far.and(result);
        if *left > 0 { None } else { self.parts.remove(&key).map(|(_, result)| result) }
    }

    fn count_finished(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        self.turn_times.requests += self.finished.len() as u64;
        // With a clock that stands still, a turn takes no time.
        let now = if self.clock.runs() { self.clock.now_us() } else { self.now };
        for (disk, kind, done) in self.finished.drain(..) {
            if let Some(live) = self.disks.get_mut(disk) {
                live.client_latency(kind, done, now);
            }
        }
    }

    /// Makes clients ring from now on. Returns false if one has sent a request in the meantime.
    fn fall_asleep(&mut self) -> bool {
        let asked = self.polled(|client, context| client.fall_asleep(context));
        !self.carry_out() && !asked && self.questions.is_empty()
    }

    fn time_to_sleep(&self) -> Option<Duration> {
        if self.held().is_some() {
            // The clock stands still until a test moves it, and the test then asks for the pool's time.
            return Some(LONGEST_SLEEP);
        }
        let origins = self.disks.iter().filter_map(|d| d.origin.next_wakeup());
        let due = origins
            .chain(self.core.next_wakeup())
            .chain(self.retries.next_us())
            .chain(self.turns.next_us())
            .chain(self.moving.next_us(self.now))
            .chain(self.next_look_at_loans())
            .chain(self.ends_by_us)
            .min()?;
        // A timer that stays due, for example of a slow flush, must not keep the reactor awake.
        let due = due.max(self.timers_us);
        Some(Duration::from_micros(due.saturating_sub(self.clock.now_us()).max(1)).min(LONGEST_SLEEP))
    }
}

/// A client's question which sectors of its disk are cached.
#[derive(Clone, Copy)]
struct Question {
    client: u32,
    slot: u32,
    sector: SectorNo,
    sectors: u64,
}

/// Stores a value at an index of a table that grows as needed.
pub(crate) fn put<T>(table: &mut Vec<Option<T>>, at: usize, value: T) {
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    table[at] = Some(value);
}

/// What a client's finished request was, for the latency figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub op: Op,
    pub started_us: Micros,
}
