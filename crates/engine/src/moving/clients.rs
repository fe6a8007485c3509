//! The clients of a disk that can move: whether its guest is here, and requests that wait until the disk is served.

use haversack_core::{Op, RequestError};
use haversack_model::DiskHandle;
use haversack_ownership::Record;

use crate::front::{Asked, ClientKind, Tag, Wish};
use crate::reactor::Reactor;

impl Reactor {
    /// Prepares for a client that is about to be added. Returns whether it may be served now.
    pub(crate) fn client_comes(&mut self, disk: DiskHandle, kind: ClientKind) -> bool {
        let Some(at) = self.moving.place_of(disk) else { return true };
        self.moving.movers[at].has_had_queues |= kind == ClientKind::VhostUser;
        let mover = &self.moving.movers[at];
        // While another host owns the disk, an NBD client may only want to read it.
        let is_guest =
            kind == ClientKind::VhostUser || matches!(mover.migration.record(), Record::Owner { .. });
        if is_guest {
            self.with_mover(at, |mover, call, now| mover.guest_runs(call, now));
        }
        self.moving.movers[at].is_serving
    }

    /// If clients have come or gone, finds the disks whose guests are gone.
    pub(super) fn look_at_clients(&mut self) -> bool {
        let changes = self.memory.payloads.changes();
        if changes == self.moving.seen_changes {
            return false;
        }
        self.moving.seen_changes = changes;
        for at in 0..self.moving.movers.len() {
            let mover = &self.moving.movers[at];
            let Some(disk) = mover.handle.filter(|_| mover.guest) else { continue };
            let front = &self.memory.payloads;
            if front.count(disk, ClientKind::VhostUser) + front.count(disk, ClientKind::Nbd) == 0 {
                self.moving.movers[at].guest_stopped();
            }
        }
        true
    }

    /// Releases the waiting requests if the disk is served now. Returns true if that has changed.
    pub(super) fn look_at_serving(&mut self, at: usize) -> bool {
        // First: no request is released before it is clear whether its guest's write cache is known.
        self.look_at_write_cache(at);
        let serves = self.with_mover(at, |mover, call, _| mover.migration.may_serve(call));
        let mover = &mut self.moving.movers[at];
        if mover.is_serving == serves {
            return false;
        }
        mover.is_serving = serves;
        let Some(disk) = mover.handle.filter(|_| serves) else { return true };
        let held = std::mem::take(&mut mover.held);
        for client in self.clients_of(disk) {
            self.client(client, |client, context| {
                if let Some(queue) = client.as_queue() {
                    queue.release(context);
                }
            });
        }
        for (client, asked) in held {
            self.ask_again(client, asked);
        }
        self.end_observations(at);
        true
    }

    /// Submits a request that has waited.
    pub(super) fn ask_again(&mut self, client: u32, asked: Asked) {
        self.asked.push(Wish::Request(asked));
        self.submit_asked(client);
    }

    /// Keeps a request of an NBD client if its disk is not served here yet. Returns false if it is, or does not move.
    pub(crate) fn holds(&mut self, client: u32, asked: Asked) -> bool {
        let Some(at) = self.moving.place_of(asked.disk) else { return false };
        let mover = &self.moving.movers[at];
        if mover.is_serving {
            return false;
        }
        let is_owner = matches!(mover.migration.record(), Record::Owner { .. });
        let (is_guest_here, is_leaving) = (mover.guest, mover.migration.is_leaving());
        match asked.op {
            // Only the owner can answer reads. A flush has nothing to do, because the owner has everything that was
            // written.
            Op::Read if !is_owner && !is_guest_here => self.observe(at, client, asked),
            Op::Flush if !is_owner && !is_guest_here => self.answer(client, asked, Ok(())),
            op => {
                self.moving.movers[at].held.push((client, asked));
                let changes = op != Op::Read && op != Op::Flush;
                if changes || is_owner && !is_leaving {
                    self.with_mover(at, |mover, call, now| mover.guest_runs(call, now));
                }
            }
        }
        true
    }

    /// Checks waiting requests again, since another host has the disk now.
    pub(super) fn ask_held_again(&mut self, at: usize) {
        for (client, asked) in std::mem::take(&mut self.moving.movers[at].held) {
            self.ask_again(client, asked);
        }
    }

    pub(super) fn answer(&mut self, client: u32, asked: Asked, result: Result<(), RequestError>) {
        self.completed(Tag::refused(client, asked.slot).encode(), result);
    }

    /// Fails the waiting requests of the clients for which `of` returns true.
    pub(super) fn drop_held(&mut self, at: usize, of: impl Fn(u32) -> bool) {
        let held = std::mem::take(&mut self.moving.movers[at].held);
        let (dropped, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(|(client, _)| of(*client));
        self.moving.movers[at].held = kept;
        for (client, asked) in dropped {
            self.answer(client, asked, Err(RequestError::NotOwner));
        }
    }

    /// Fails the requests of clients that have disconnected. If no other one wants to write, the guest is not here.
    pub(super) fn drop_held_of_leaving(&mut self, at: usize) {
        let clients: Vec<u32> = self.moving.movers[at].held.iter().map(|(client, _)| *client).collect();
        let front = &mut self.memory.payloads;
        let leaving: Vec<u32> = clients
            .into_iter()
            .filter(|client| front.get_mut(*client).is_none_or(|client| client.is_leaving()))
            .collect();
        if leaving.is_empty() {
            return;
        }
        self.drop_held(at, |client| leaving.contains(&client));
        let mover = &mut self.moving.movers[at];
        let queues = mover.handle.map_or(0, |disk| self.memory.payloads.count(disk, ClientKind::VhostUser));
        let is_owner = matches!(mover.migration.record(), Record::Owner { .. });
        if mover.held.is_empty() && !mover.is_serving && !is_owner && queues == 0 {
            mover.guest_stopped();
        }
    }
}
