//! Front ends: how guests reach their disks. Each connection or queue is a [`Client`]; [`Front`] holds them all and is
//! the core's way to the payloads of their requests.

pub(crate) mod budget;
pub mod nbd;
mod payload;
pub mod vhost_user;

use haversack_core::{MAX_REQUEST_SECTORS, Op, Payloads, Request, RequestError, RequestTag};
use haversack_model::{DiskHandle, Micros, SECTOR_BYTES, SectorNo};

use crate::reactor::Finished;
use crate::ring::{Landing, Ring};
use crate::turns::{self, PART_SECTORS};

/// A request that a client hands over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The client's own name for it, given back on completion.
    pub slot: u32,
    pub disk: DiskHandle,
    pub op: Op,
    pub sector: SectorNo,
    pub sectors: u32,
}

/// What a client wants of the core.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    Request(Asked),
    /// What of a range is cached and dirty; answered by [`Client::status`].
    Status {
        slot: u32,
        sector: SectorNo,
        sectors: u64,
    },
}

// The number of a part fits its place in the tag.
const _: () = assert!(MAX_REQUEST_SECTORS.div_ceil(PART_SECTORS) <= 1 << 12);

impl Asked {
    /// The request as the core takes it, once its disk was found to be attached: in parts of at most `part_sectors`, a
    /// multiple of [`PART_SECTORS`], if it has data. One that is longer than the core takes is left whole, for the core to
    /// refuse.
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

/// What the core is told to call a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    pub client: u32,
    pub slot: u32,
    /// Where in the request it begins, in units of [`PART_SECTORS`].
    pub part: u16,
    /// What it counts for while it is in the core; 0 if it never was.
    pub units: u8,
}

impl Tag {
    /// A request that never gets to the core.
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

    /// Where in the request's data its part begins.
    fn data_at(self) -> usize {
        usize::from(self.part) * PART_SECTORS as usize * SECTOR_BYTES
    }
}

/// What a client works with.
pub(crate) struct ClientContext<'a> {
    pub ring: &'a mut Ring,
    /// Its number, for the owner of its flights.
    pub client: u32,
    pub now: Micros,
    /// How long a client without requests is looked at before it has to ring.
    pub poll_us: Micros,
    /// What its disk may still move through sockets in this turn, for the client to count down.
    pub socket_bytes: &'a mut i64,
    /// The requests that it hands over.
    pub asked: &'a mut Vec<Wish>,
}

/// Which kind of front end a client belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientKind {
    Nbd,
    VhostUser,
}

/// A connection or queue.
pub(crate) trait Client {
    /// The disk that it uses.
    fn disk(&self) -> DiskHandle;
    /// Its kind.
    fn kind(&self) -> ClientKind;
    /// Who is at the other end, for messages; the vhost-user server tells that of its queues.
    fn peer(&self) -> Option<&str> {
        None
    }
    /// Whether it is to act in every turn now. Otherwise it acts when a flight of its own lands.
    fn is_polled(&self) -> bool {
        false
    }
    /// The client as a vhost-user queue, if it is one.
    fn as_queue(&mut self) -> Option<&mut vhost_user::QueueClient> {
        None
    }
    /// Starts its first flights.
    fn begin(&mut self, context: &mut ClientContext<'_>);
    /// A flight of its own has landed.
    fn landed(&mut self, context: &mut ClientContext<'_>, part: u8, landing: Landing);
    /// Acts, such as looking for requests. True if there was anything to do.
    fn poll(&mut self, _: &mut ClientContext<'_>) -> bool {
        false
    }
    /// A turn ends, in which the client acted or not: what it has for the other end leaves now. Called if it is polled.
    fn flush(&mut self, _: &mut ClientContext<'_>) {}
    /// The reactor is about to sleep: the client must ring from now on. True if it has asked something after all.
    fn fall_asleep(&mut self, _: &mut ClientContext<'_>) -> bool {
        false
    }
    /// A request is done. Tells what it was, unless only a part of it is done.
    fn complete(
        &mut self,
        context: &mut ClientContext<'_>,
        slot: u32,
        result: Result<(), RequestError>,
    ) -> Option<Finished>;
    /// Which parts of a range are cached (flag 1) and dirty (flag 2), as runs of sectors.
    fn status(&mut self, _: &mut ClientContext<'_>, _: u32, _: &[(u64, u32)]) {}
    /// The disk has another size.
    fn resized(&mut self, _: u64) {}
    /// Copies from a write request's payload; false if it is lost.
    fn take(&mut self, slot: u32, at: usize, into: &mut [u8]) -> bool;
    /// Copies into a read request's buffer.
    fn give(&mut self, slot: u32, at: usize, from: &[u8]);
    /// No more requests: the disk is gone or the shard ends.
    fn close(&mut self, context: &mut ClientContext<'_>);
    /// Whether it can be forgotten: closed, no request and no flight left.
    fn is_closed(&self) -> bool;
}

struct Seat {
    client: Box<dyn Client>,
    /// It is on the list of those that are polled.
    is_listed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Front {
    clients: Vec<Option<Seat>>,
    polled: Vec<u32>,
}

impl Front {
    pub fn insert(&mut self, client: Box<dyn Client>) -> u32 {
        let at = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        if at == self.clients.len() {
            self.clients.push(None);
        }
        self.clients[at] = Some(Seat { client, is_listed: false });
        at as u32
    }

    /// Forgets a client that has acted and is closed, or notes whether it is to be polled from now on.
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
        }
    }

    pub fn get_mut(&mut self, client: u32) -> Option<&mut (dyn Client + 'static)> {
        Some(self.clients.get_mut(client as usize)?.as_mut()?.client.as_mut())
    }

    /// The numbers of all clients of a disk.
    pub fn of_disk(&self, disk: DiskHandle) -> Vec<u32> {
        let of_disk =
            |(_, seat): &(usize, &Option<Seat>)| seat.as_ref().is_some_and(|seat| seat.client.disk() == disk);
        self.clients.iter().enumerate().filter(of_disk).map(|(at, _)| at as u32).collect()
    }

    /// Who is at the other ends of a disk's clients, as far as those know it.
    pub fn peers(&self, disk: DiskHandle) -> Vec<String> {
        let of_disk = self.clients.iter().flatten().filter(|seat| seat.client.disk() == disk);
        of_disk.filter_map(|seat| seat.client.peer().map(String::from)).collect()
    }

    /// How many clients of a kind a disk has.
    pub fn count(&self, disk: DiskHandle, kind: ClientKind) -> usize {
        let counts = |seat: &&Seat| seat.client.disk() == disk && seat.client.kind() == kind;
        self.clients.iter().flatten().filter(counts).count()
    }

    /// A client to be looked at for requests, counted from 0.
    pub fn polled(&self, at: usize) -> Option<u32> {
        self.polled.get(at).copied()
    }
}

impl Payloads for Front {
    fn take(&mut self, tag: RequestTag, at: usize, into: &mut [u8]) -> bool {
        let tag = Tag::decode(tag);
        let client = self.get_mut(tag.client).expect("a client stays while it has requests");
        client.take(tag.slot, tag.data_at() + at, into)
    }

    fn give(&mut self, tag: RequestTag, at: usize, from: &[u8]) {
        let tag = Tag::decode(tag);
        let client = self.get_mut(tag.client).expect("a client stays while it has requests");
        client.give(tag.slot, tag.data_at() + at, from);
    }
}

#[cfg(test)]
mod tests {
    use haversack_model::DiskNo;

    use super::*;

    #[test]
    fn long_requests_go_in_parts_and_tags_tell_which() {
        let disk = DiskHandle::new(DiskNo(3), 1);
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
        // Its parts could not be told apart: the core refuses it.
        let too_long = Asked { sectors: MAX_REQUEST_SECTORS + 1, ..asked };
        let whole: Vec<u32> = too_long.requests(9, PART_SECTORS).map(|request| request.sectors).collect();
        assert_eq!(whole, [too_long.sectors]);
    }
}
