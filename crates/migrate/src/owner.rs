//! What the steps of the ownership protocol need from the core: freezing and releasing a disk, claiming it, taking it
//! back, passing it on.

use haversack_core::bugs::{Bug, planted};
use haversack_core::{Call, Damage, JobError, ManageError, Memory, Moved};
use haversack_model::{BlockNo, HostId, Micros};
use haversack_ownership::Record;

use crate::limit::Limit;
use crate::message::{Message, Part, Session};
use crate::method::{Late, Method};
use crate::migration::{Listing, Migration, Task};

impl Migration {
    /// Starts to make a record durable. With `drops_dirty`, the dirty blocks that this host has held for another one
    /// are obsolete.
    pub(crate) fn write<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        record: Record,
        drops_dirty: bool,
    ) -> Result<(), ManageError> {
        if drops_dirty {
            self.discard_held(call, now)?;
        }
        if self.recorded.is_some() {
            return Err(ManageError::Busy);
        }
        match (self.ownership.record().clone(), record) {
            (Record::Owner { .. }, Record::Released { to, grant }) => {
                let Some(disk) = self.disk else { return Err(ManageError::NotKnown(self.config.id)) };
                if call.disk_info(disk).is_some_and(|info| info.left_clean) {
                    return self.release_detached(call, now, to, grant.epoch);
                }
                let job = match call.freeze(now, disk) {
                    Ok(job) => job,
                    Err(error) => {
                        // After a restart, the disk may not be attached here yet. The new owner asks again.
                        if !self.is_attached_here(call) {
                            self.attach_again(call, now);
                        }
                        return Err(error);
                    }
                };
                self.task = Task::Freezing { job, to, epoch: grant.epoch };
            }
            (_, Record::Released { to, grant }) => {
                let holder = grant.holders.iter().next().copied();
                self.receiving = None;
                let job = call.pass_on(now, &self.config, grant.epoch, to, holder)?;
                self.find_disk(call);
                self.task = Task::Recording(job);
            }
            (Record::Owner { epoch: before, .. }, Record::Owner { epoch, .. }) if before == epoch => {
                let Some(disk) = self.disk else { return Err(ManageError::NotKnown(self.config.id)) };
                self.task = Task::Recording(call.end_dependence(now, disk)?);
            }
            (_, Record::Owner { epoch, peers }) => match peers.into_iter().next() {
                Some(holder) => self.start_listing(call, now, holder, epoch, true)?,
                None if self.holds_blocks(call) => {
                    let regained = call.regain(now, &self.config, epoch);
                    let (disk, job) = regained.inspect_err(|error| self.problem = Some(error.clone()))?;
                    self.method = None;
                    (self.disk, self.task) = (Some(disk), Task::Recording(job));
                }
                None => {
                    self.expect(call, now)?;
                    self.claim(call, now, epoch)?;
                }
            },
            (_, Record::Unknown | Record::Overtaken { .. }) => {}
        }
        Ok(())
    }

    /// Whether this host keeps dirty blocks for another host: those of a disk that it has released, or a replica.
    pub(crate) fn holds_blocks<M: Memory>(&self, call: &Call<'_, M>) -> bool {
        let info = self.disk.and_then(|disk| call.disk_info(disk));
        info.is_some_and(|info| matches!(info.moved, Moved::Peer { .. } | Moved::Replica { .. }))
    }

    /// Drops the dirty blocks that this host has held for another one, and that are obsolete.
    pub(crate) fn discard_held<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
    ) -> Result<(), ManageError> {
        match self.disk.filter(|_| self.holds_blocks(call)) {
            Some(disk) => call.discard_held(now, disk),
            None => Ok(()),
        }
    }

    fn find_disk<M: Memory>(&mut self, call: &Call<'_, M>) {
        let is_it =
            |no: &haversack_model::DiskNo| call.disk_info(*no).is_some_and(|d| d.id == self.config.id);
        self.disk = call.disk_numbers().find(is_it);
    }

    /// Prepares the cache for a disk that arrives without any copies.
    pub(crate) fn expect<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
    ) -> Result<(), ManageError> {
        (self.receiving, self.borrowing) = (None, None);
        self.disk = Some(call.expect_disk(now, &self.config)?);
        Ok(())
    }

    pub(crate) fn claim<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        epoch: u64,
    ) -> Result<(), ManageError> {
        let Some(disk) = self.disk else { return Err(ManageError::NotKnown(self.config.id)) };
        let job = call.claim(now, disk, epoch)?;
        (self.receiving, self.method, self.fetches_rest) = (None, None, false);
        self.task = Task::Recording(job);
        Ok(())
    }

    /// Releases a disk that was detached and left clean. Nothing follows it.
    fn release_detached<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        to: HostId,
        epoch: u64,
    ) -> Result<(), ManageError> {
        let Some(disk) = self.disk else { return Err(ManageError::NotKnown(self.config.id)) };
        self.end(call, now);
        let job = call.release_detached(now, disk, epoch, to)?;
        self.method = Some(Method::None);
        (self.outdated, self.borrowing) = (None, None);
        self.task = Task::Recording(job);
        Ok(())
    }

    /// Handles the end of the freeze: the disk is frozen, or could not be frozen.
    pub(crate) fn frozen<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        to: HostId,
        epoch: u64,
        result: Result<(), JobError>,
    ) {
        self.task = Task::Idle;
        self.problem = match result {
            Err(JobError::DataLost) => Some(ManageError::StaysWithLosses(self.config.id)),
            Err(JobError::NoDevice) => Some(ManageError::NoDevice(self.config.id)),
            Ok(()) | Err(_) => None,
        };
        let disk = self.disk.filter(|_| result.is_ok());
        let released = disk.map(|disk| {
            // If the origin is not settled, the session is treated as unknown, so its copies do not count.
            let counts = call.is_origin_settled(disk);
            let sending = self.sending.as_ref().filter(|sending| counts && sending.to == to);
            let arrived = sending.map(|sending| (sending.session, sending.arrived()));
            self.outdated = arrived.map(|(session, arrived)| (session, call.outdated_copies(disk, arrived)));
            call.release_to(now, disk, epoch, to)
        });
        match released {
            Some(Ok(job)) => {
                self.borrowing = None;
                self.lend(call, now, to, epoch);
                (self.sending, self.passes, self.destination) = (None, None, None);
                self.task = Task::Recording(job);
            }
            Some(Err(error)) => {
                self.problem = Some(error);
                self.ownership.abandoned();
            }
            None => self.ownership.abandoned(),
        }
    }

    /// Lists what another host has: before a claim, or after a restart of a host that still depends on it.
    pub(crate) fn start_listing<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        holder: HostId,
        epoch: u64,
        claims: bool,
    ) -> Result<(), ManageError> {
        let has_copies = self.receiving.as_ref().is_some_and(|receiving| receiving.from == holder);
        if claims && !has_copies {
            self.expect(call, now)?;
        }
        if let Some(disk) = self.disk {
            call.forget_peer_list(disk);
        }
        let question = self.question();
        let part = Part::Held(BlockNo(0));
        self.task = Task::Listing(Listing { holder, epoch, question, part, claims, asked_us: now });
        self.ask_list();
        Ok(())
    }

    pub(crate) fn ask_list(&mut self) {
        let Task::Listing(listing) = &self.task else { return };
        let Listing { holder, question, epoch, part, .. } = *listing;
        let session = self.receiving.as_ref().map(|receiving| receiving.session);
        self.send(holder, Message::List { question, epoch, session, part });
    }

    /// See [`haversack_ownership::Ownership::has_released_to`].
    pub(crate) fn is_released_to(&self, host: HostId, epoch: u64) -> bool {
        self.ownership.has_released_to(host, epoch)
    }

    pub(crate) fn answer_list<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        from: HostId,
        question: crate::message::Question,
        epoch: u64,
        session: Option<Session>,
        part: Part,
    ) {
        let Some(disk) = self.disk.filter(|_| self.is_released_to(from, epoch)) else { return };
        let is_replica = |moved| matches!(moved, Moved::Replica { .. });
        if call.disk_info(disk).is_none_or(|info| info.damage != Damage::None || is_replica(info.moved)) {
            // A replica may be older than the data that its owner has lost. Blocks that were lost with a device would
            // not be listed, and the asking host would read them from the origin.
            return;
        }
        let most = self.timing.blocks_a_message;
        let known = self.outdated.as_ref().filter(|(known, _)| Some(*known) == session);
        let after = |blocks: &[(BlockNo, u8)]| blocks.last().map(|(block, _)| BlockNo(block.0 + 1));
        let (blocks, next) = match part {
            Part::Held(at) => {
                let blocks = call.held_blocks(disk, at, most);
                let next = after(&blocks).filter(|_| blocks.len() == most).map(Part::Held);
                (blocks, next.or(Some(Part::Outdated(BlockNo(0)))))
            }
            Part::Outdated(at) => {
                let all = known.map_or(&[][..], |(_, blocks)| &blocks[..]);
                let from = all.partition_point(|block| *block < at);
                let blocks: Vec<(BlockNo, u8)> = all[from..].iter().take(most).map(|b| (*b, 0)).collect();
                let next = after(&blocks).filter(|_| blocks.len() == most).map(Part::Outdated);
                (blocks, next)
            }
            Part::Clean(_) => return,
        };
        let knows_session = known.is_some();
        self.send(
            from,
            Message::Listed { question, knows_session, method: self.method(), part, blocks, next },
        );
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn listed<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        question: crate::message::Question,
        knows_session: bool,
        method: Method,
        part: Part,
        blocks: &[(BlockNo, u8)],
        next: Option<Part>,
    ) {
        let Task::Listing(listing) = self.task.clone() else { return };
        let is_mine = question == listing.question || planted(Bug::BelieveOldAnswer);
        let Some(disk) = self.disk.filter(|_| is_mine && part == listing.part) else { return };
        if self.receiving.is_some() && !knows_session && !planted(Bug::KeepUnknownSession) {
            // It is not known which copies are valid.
            if self.expect(call, now).is_ok() {
                let _ = self.start_listing(call, now, listing.holder, listing.epoch, listing.claims);
            }
            return;
        }
        let done = match part {
            Part::Held(_) => call.list_peer_blocks(now, disk, listing.holder, blocks, next.is_none()),
            Part::Outdated(_) => {
                let blocks: Vec<BlockNo> = blocks.iter().map(|(block, _)| *block).collect();
                if listing.claims { call.drop_copies(now, disk, &blocks) } else { Ok(()) }
            }
            Part::Clean(_) => return,
        };
        if let Err(error) = done {
            (self.problem, self.task) = (Some(error), Task::Idle);
            if listing.claims {
                self.ownership.abandoned();
            }
            return;
        }
        if let (Some(part), Task::Listing(listing)) = (next, &mut self.task) {
            (listing.part, listing.asked_us) = (part, now);
            self.ask_list();
            return;
        }
        if call.list_peer_blocks(now, disk, listing.holder, &[], true).is_err() {
            return;
        }
        (self.task, self.inherited) = (Task::Idle, method);
        self.limit = Limit::new(self.timing.fetched_a_period.filter(|_| method.plan().is_limited));
        if !listing.claims {
            return self.attach(call, now, listing.epoch, self.accepts_loss);
        }
        self.borrow(call, now, listing.holder, listing.epoch);
        if self.claim(call, now, listing.epoch).is_err() {
            self.borrowing = None;
            self.ownership.abandoned();
        }
    }

    /// Attaches the disk that this host owns, after a restart.
    pub(crate) fn attach_again<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Record::Owner { epoch, peers } = self.ownership.record().clone() else { return };
        if self.awaits_end_of_replica() {
            return;
        }
        match peers.into_iter().next() {
            Some(holder) => {
                let _ = self.start_listing(call, now, holder, epoch, false);
            }
            None => self.attach(call, now, epoch, self.accepts_loss),
        }
    }

    pub(crate) fn attach<M: Memory>(
        &mut self,
        call: &mut Call<'_, M>,
        now: Micros,
        epoch: u64,
        accept_loss: bool,
    ) {
        match call.attach(now, &self.config, epoch, accept_loss) {
            Ok((disk, job)) => {
                (self.disk, self.task, self.problem) = (Some(disk), Task::Attaching(job), None);
            }
            Err(error) => self.problem = Some(error),
        }
    }

    /// Makes the core fetch as many blocks at a time as the method requires. Blocks that were to be fetched only when
    /// needed are fetched anyway when the guest has gone, or the disk is to move on.
    pub(crate) fn set_window<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        let Some(disk) = self.disk.filter(|_| self.is_attached_here(call)) else { return };
        let plan = self.inherited.plan();
        let moves_on = self.guest.is_none() || self.destination.is_some() || self.fetches_rest;
        let window = if plan.fetches_dirty || moves_on { self.timing.fetch_window } else { 0 };
        if self.window == Some(window) {
            return;
        }
        self.window = Some(window);
        call.set_fetch_window(now, disk, window);
        let late =
            if plan.late == Late::FromOrigin { self.timing.preload_window } else { self.timing.fetch_window };
        call.set_late_window(now, disk, late);
    }

    /// Starts to fetch what the earlier owner has, if the disk is attached and there is anything.
    pub(crate) fn is_attached<M: Memory>(&mut self, call: &mut Call<'_, M>, now: Micros) {
        self.window = None;
        if self.replica.is_some() {
            self.set_write_through(call, now);
        }
        self.tick_limit(call, now);
        self.set_window(call, now);
        self.tell_what_to_forget(call, now);
    }
}
