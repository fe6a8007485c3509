//! Front ends: how guests reach their disks. Each connection or queue is a [`Client`]; [`Front`] holds them all
//! and gives the core access to the payloads of their requests.
//!
//! Invariant
//! - A client stays in [`Front`] until it is closed and none of its requests or I/Os is in flight.

pub(crate) mod budget;
pub mod nbd;
mod payload;
pub mod vhost_user;

use haversack_core::{MAX_REQUEST_SECTORS, Op, Payloads, Request, RequestError, RequestTag};
use haversack_model::{DiskHandle, Micros, SECTOR_BYTES, SectorNo};

use crate::moving::copies::{COPIES, Copies};
use crate::reactor::Finished;
use crate::ring::{Completion, Ring};
use crate::turns::{self, PART_SECTORS};

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The client's own name for it, returned on completion.
    pub slot: u32,
    pub disk: DiskHandle,
    pub op: Op,
    pub sector: SectorNo,
    pub sectors: u32,
}

/// A call of a client on the core.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    Request(Asked),
    /// A query for the cached and dirty parts of a range; answered by [`Client::status`].
    Status {
        slot: u32,
        sector: SectorNo,
        sectors: u64,
    },
}

// The number of a part fits its field in the tag.
const _: () = assert!(MAX_REQUEST_SECTORS.div_ceil(PART_SECTORS) <= 1 << 12);

impl Asked {
    /// Splits the request for the core, once its disk is known to be attached: if it has data, into parts of at
    /// most `part_sectors`, a multiple of [`PART_SECTORS`]. A request that is longer than the core accepts is
    /// not split, so that the core refuses it.
    pub fn requests(self, client: u32, part_sectors: u32) -> impl Iterator<Item = Request> {
        let has_data = matches!(self.op, Op::Read | Op::Write { .. });
        let in_parts = has_data && self.sectors <= MAX_REQUEST_SECTORS;
        let part_sectors = if in_parts { part_sectors } else { u32::MAX };
        let parts = self.sectors.div_ceil(part_sectors).max(1);
        (0..parts).map(move |part| {
            let at = part * part_sectors;
            let sectors = (self.sectors - at).min(part_sectors);
            let units = turns::units(self.op, sectors) as u8;
            let tag = Tag { client, slot: self.slot, part: (at / PART_SECTORS) as u16, units };
            let sector = SectorNo(self.sector.0 + u64::from(at));
            Request { tag: tag.encode(), disk: self.disk.number(), op: self.op, sector, sectors }
        })
    }
}

/// The tag under which the core knows a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    pub client: u32,
    pub slot: u32,
    /// The offset of the part in the request, in units of [`PART_SECTORS`].
    pub part: u16,
    /// Its cost while it is in the core; 0 if it never was there.
    pub units: u8,
}

impl Tag {
    /// Makes the tag of a request that never gets to the core.
    pub fn refused(client: u32, slot: u32) -> Tag {
        Tag { client, slot, part: 0, units: 0 }
    }

    pub fn encode(self) -> RequestTag {
        debug_assert!(self.client < 1 << 22 && self.slot < 1 << 22 && self.part < 1 << 12);
        let (client, slot) = (u64::from(self.client), u64::from(self.slot));
        RequestTag(client << 42 | slot << 20 | u64::from(self.part) << 8 | u64::from(self.units))
    }

    pub fn decode(tag: RequestTag) -> Tag {
        let (client, slot) = ((tag.0 >> 42) as u32, (tag.0 >> 20) as u32 & 0x3f_ffff);
        Tag { client, slot, part: (tag.0 >> 8) as u16 & 0xfff, units: tag.0 as u8 }
    }

    /// Returns the offset of the part in the request's data.
    fn data_at(self) -> usize {
        usize::from(self.part) * PART_SECTORS as usize * SECTOR_BYTES
    }
}

/// What a client may use while it acts.
pub(crate) struct ClientContext<'a> {
    pub ring: &'a mut Ring,
    /// Its number, for the owner of its I/O.
    pub client: u32,
    pub now: Micros,
    /// How long an idle client is polled before it has to ring.
    pub poll_us: Micros,
    /// Bytes that its disk may still move through sockets in this turn, for the client to count down.
    pub socket_bytes: &'a mut i64,
    /// The client's new requests.
    pub asked: &'a mut Vec<Wish>,
}

/// The kind of front end that a client belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientKind {
    Nbd,
    VhostUser,
}

/// A connection or queue.
pub(crate) trait Client {
    /// Returns the disk that it uses.
    fn disk(&self) -> DiskHandle;
    /// Returns its kind.
    fn kind(&self) -> ClientKind;
    /// Returns the peer, for messages; for queues the vhost-user server reports it.
    fn peer(&self) -> Option<&str> {
        None
    }
    /// Returns whether it acts in every turn now. Otherwise it acts only when one of its own I/Os completes.
    fn is_polled(&self) -> bool {
        false
    }
    /// Returns the client as a vhost-user queue, if it is one.
    fn as_queue(&mut self) -> Option<&mut vhost_user::QueueClient> {
        None
    }
    /// Starts its first I/O.
    fn begin(&mut self, context: &mut ClientContext<'_>);
    /// Handles the completion of one of its own I/Os.
    fn completed(&mut self, context: &mut ClientContext<'_>, part: u8, completion: Completion);
    /// Acts, for example by checking for requests. Returns true if there was anything to do.
    fn poll(&mut self, _: &mut ClientContext<'_>) -> bool {
        false
    }
    /// Sends what it has for its peer, at the end of a turn. Called if it is polled, whether it acted or not.
    fn flush(&mut self, _: &mut ClientContext<'_>) {}
    /// Prepares for the reactor's sleep: the client must ring from now on. Returns true if it had a request
    /// after all.
    fn fall_asleep(&mut self, _: &mut ClientContext<'_>) -> bool {
        false
    }
    /// Completes a request or a part of it. Returns what the request was, unless only a part of it is done.
    fn complete(
        &mut self,
        context: &mut ClientContext<'_>,
        slot: u32,
        result: Result<(), RequestError>,
    ) -> Option<Finished>;
    /// Answers which parts of a range are cached (flag 1) and dirty (flag 2), as runs of sectors.
    fn status(&mut self, _: &mut ClientContext<'_>, _: u32, _: &[(u64, u32)]) {}
    /// Handles a change of the disk's size.
    fn resized(&mut self, _: u64) {}
    /// Copies from a write request's payload; returns false if it is lost.
    fn take(&mut self, slot: u32, at: usize, into: &mut [u8]) -> bool;
    /// Copies into a read request's buffer.
    fn give(&mut self, slot: u32, at: usize, from: &[u8]);
    /// Accepts no more requests: the disk is gone or the arena ends.
    fn close(&mut self, context: &mut ClientContext<'_>);
    /// Returns whether its peer has disconnected, so that its requests are no longer waited for.
    fn is_leaving(&self) -> bool {
        false
    }
    /// Returns whether it can be dropped: closed, with no request and no I/O in flight.
    fn is_closed(&self) -> bool;
}

struct Seat {
    client: Box<dyn Client>,
    /// It is on the list of polled clients.
    is_listed: bool,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Front {
    clients: Vec<Option<Seat>>,
    polled: Vec<u32>,
    /// How many clients have connected and disconnected.
    changes: u64,
    /// What is copied for other hosts, and from them.
    pub copies: Copies,
}

impl Front {
    pub fn insert(&mut self, client: Box<dyn Client>) -> u32 {
        let at = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        if at == self.clients.len() {
            self.clients.push(None);
        }
        self.clients[at] = Some(Seat { client, is_listed: false });
        self.changes += 1;
        at as u32
    }

    /// Drops a client that has acted and is closed, or updates whether it is polled.
    pub fn has_acted(&mut self, client: u32) {
        let Some(seat) = self.clients.get_mut(client as usize).and_then(Option::as_mut) else { return };
        let is_closed = seat.client.is_closed();
        let wanted = seat.client.is_polled() && !is_closed;
        if wanted != seat.is_listed {
            seat.is_listed = wanted;
            if wanted {
                self.polled.push(client);
            } else {
                self.polled.retain(|polled| *polled != client);
            }
        }
        if is_closed {
            self.clients[client as usize] = None;
            self.changes += 1;
        }
    }

    /// Returns how many clients have connected and disconnected so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn get_mut(&mut self, client: u32) -> Option<&mut (dyn Client + 'static)> {
        Some(self.clients.get_mut(client as usize)?.as_mut()?.client.as_mut())
    }

    /// Returns the numbers of all clients of a disk.
    pub fn of_disk(&self, disk: DiskHandle) -> Vec<u32> {
        let of_disk =
            |(_, seat): &(usize, &Option<Seat>)| seat.as_ref().is_some_and(|seat| seat.client.disk() == disk);
        self.clients.iter().enumerate().filter(of_disk).map(|(at, _)| at as u32).collect()
    }

    /// Returns the peers of a disk's clients, as far as known.
    pub fn peers(&self, disk: DiskHandle) -> Vec<String> {
        let of_disk = self.clients.iter().flatten().filter(|seat| seat.client.disk() == disk);
        of_disk.filter_map(|seat| seat.client.peer().map(String::from)).collect()
    }

    /// Returns how many clients of a kind a disk has.
    pub fn count(&self, disk: DiskHandle, kind: ClientKind) -> usize {
        let counts = |seat: &&Seat| seat.client.disk() == disk && seat.client.kind() == kind;
        self.clients.iter().flatten().filter(counts).count()
    }

    /// Lets go of those who wait for a queue to stop: its requests will not end.
    pub fn abandon_stops(&mut self) {
        let queues = self.clients.iter_mut().flatten().filter_map(|seat| seat.client.as_queue());
        queues.for_each(vhost_user::QueueClient::abandon_stop);
    }

    /// Returns the polled client at an index.
    pub fn polled(&self, at: usize) -> Option<u32> {
        self.polled.get(at).copied()
    }
}

impl Payloads for Front {
    fn take(&mut self, tag: RequestTag, at: usize, into: &mut [u8]) -> bool {
        let tag = Tag::decode(tag);
        if tag.client == COPIES {
            self.copies.take(tag.slot, at, into);
            return true;
        }
        let client = self.get_mut(tag.client).expect("a client stays while it has requests");
        client.take(tag.slot, tag.data_at() + at, into)
    }

    fn give(&mut self, tag: RequestTag, at: usize, from: &[u8]) {
        let tag = Tag::decode(tag);
        if tag.client == COPIES {
            return self.copies.give(tag.slot, at, from);
        }
        let client = self.get_mut(tag.client).expect("a client stays while it has requests");
        client.give(tag.slot, tag.data_at() + at, from);
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::{ArenaNo, DiskNo};

    use super::*;

    #[test]
    fn long_requests_go_in_parts_and_tags_tell_which() {
        let disk = DiskHandle::new(ArenaNo(0), DiskNo(3), 1);
        let asked = Asked { slot: 70_000, disk, op: Op::Read, sector: SectorNo(5), sectors: 65_536 };
        for part_sectors in [PART_SECTORS, 4 * PART_SECTORS] {
            let parts: Vec<Request> = asked.requests(9, part_sectors).collect();
            assert_eq!(parts.len(), (65_536 / part_sectors) as usize);
            for (number, part) in parts.iter().enumerate() {
                let (tag, at) = (Tag::decode(part.tag), number as u32 * part_sectors);
                assert_eq!((tag.client, tag.slot, tag.data_at()), (9, 70_000, at as usize * SECTOR_BYTES));
                assert_eq!((part.sector, part.sectors), (SectorNo(5 + u64::from(at)), part_sectors));
            }
        }
        for op in [Op::Discard, Op::Flush] {
            assert_eq!(Asked { op, ..asked }.requests(9, PART_SECTORS).count(), 1);
        }
        assert_eq!(Asked { sectors: 0, op: Op::Flush, ..asked }.requests(9, PART_SECTORS).count(), 1);
        // Its parts could not be numbered, so the core refuses it.
        let too_long = Asked { sectors: MAX_REQUEST_SECTORS + 1, ..asked };
        let whole: Vec<u32> = too_long.requests(9, PART_SECTORS).map(|request| request.sectors).collect();
        assert_eq!(whole, [too_long.sectors]);
    }
}
