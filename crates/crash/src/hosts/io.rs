//! The I/Os of a host: what they do to its cache devices and to the origins, and what becomes of them when its process
//! ends.
//!
//! Invariants
//! - A fenced host changes no origin.

use std::cmp::Reverse;

use haversack_core::{IoFailure, IoId, Memory, Piece};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK};

use super::host::{Host, Shared};
use crate::device::{Payload, Store, Tear, page_of};
use crate::memory::SimMemory;

/// What an I/O does.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    DeviceRead {
        device: usize,
        sector: u64,
    },
    DeviceWrite {
        device: usize,
        sector: u64,
    },
    DeviceFlush {
        device: usize,
        mark: u64,
    },
    OriginRead {
        of: usize,
        sector: u64,
        sectors: u32,
    },
    OriginWrite {
        of: usize,
        sector: u64,
        durable: bool,
    },
    OriginZero {
        of: usize,
        sector: u64,
        sectors: u32,
        durable: bool,
    },
    OriginFlush {
        of: usize,
        mark: u64,
    },
    BaseRead {
        sector: u64,
        sectors: u32,
    },
    /// The origin refuses the I/O, since the host is fenced. The refusal takes as long as other I/Os. If it took no
    /// time, a host that tries again would never end.
    Refused,
}

/// An I/O in flight.
pub(super) struct Flight {
    pub io: IoId,
    pub what: What,
    pub pieces: Vec<Piece>,
}

impl Host {
    /// Starts an I/O, which ends after a random time.
    pub(super) fn launch(&mut self, shared: &mut Shared, io: IoId, what: What) {
        let running = self.running.as_mut().expect("the host runs");
        let pieces = running.core.pieces(io).collect();
        let longest = match what {
            What::DeviceRead { .. } | What::DeviceWrite { .. } | What::DeviceFlush { .. } => {
                shared.plan.latency_us[0]
            }
            _ => shared.plan.latency_us[1],
        };
        let slot = running.flights.iter().position(Option::is_none).unwrap_or(running.flights.len());
        if slot == running.flights.len() {
            running.flights.push(None);
        }
        running.flights[slot] = Some(Flight { io, what, pieces });
        shared.sequence += 1;
        running.due.push(Reverse((shared.now + shared.rng.range(1, longest), shared.sequence, slot)));
    }

    /// Carries out an I/O that ends.
    pub(super) fn perform(&mut self, shared: &mut Shared, flight: &Flight) -> Result<(), IoFailure> {
        let running = self.running.as_mut().expect("the host runs");
        match flight.what {
            What::DeviceRead { device, sector } => {
                read(&self.devices[device].store, sector, &mut running.memory, &flight.pieces);
            }
            What::DeviceWrite { device, sector } => {
                let payload = gather(&running.memory, sector, &flight.pieces);
                self.devices[device].store.write(sector, payload);
            }
            What::DeviceFlush { device, mark } => self.devices[device].store.flush(mark),
            What::OriginRead { of, sector, sectors } => {
                check_length(&flight.pieces, sectors);
                read(&shared.origins[of], sector, &mut running.memory, &flight.pieces);
            }
            What::Refused => return Err(IoFailure::Error),
            What::OriginWrite { .. } | What::OriginZero { .. } | What::OriginFlush { .. } => {
                if self.fenced {
                    return Err(IoFailure::Error);
                }
                change_origin(shared, &running.memory, flight);
            }
            What::BaseRead { sector, sectors } => {
                check_length(&flight.pieces, sectors);
                let base = shared.base.as_ref().expect("the host has attached it");
                read(&base.origin, sector, &mut running.memory, &flight.pieces);
            }
        }
        Ok(())
    }

    /// Decides what becomes of I/Os in flight when the process ends.
    pub(super) fn land(&mut self, shared: &mut Shared, memory: &SimMemory, flights: Vec<Option<Flight>>) {
        let tear = Tear { unit: self.unit };
        let mut flights: Vec<Flight> = flights.into_iter().flatten().collect();
        shared.rng.shuffle(&mut flights);
        for flight in flights {
            match flight.what {
                What::DeviceWrite { device, sector } => {
                    let payload = gather(memory, sector, &flight.pieces);
                    self.devices[device].store.write_torn(sector, payload, tear, &mut shared.rng);
                }
                _ if self.fenced => {}
                What::OriginWrite { of, sector, .. } => {
                    let payload = gather(memory, sector, &flight.pieces);
                    shared.origins[of].write_torn(sector, payload, tear, &mut shared.rng);
                }
                What::OriginZero { of, sector, sectors, .. } => {
                    shared.origins[of].write_torn(sector, Payload::Zeroes(sectors), tear, &mut shared.rng);
                }
                _ => {}
            }
        }
    }
}

/// Applies an I/O to its origin, if the I/O changes an origin.
pub(super) fn change_origin(shared: &mut Shared, memory: &SimMemory, flight: &Flight) {
    match flight.what {
        What::OriginWrite { of, sector, durable } => {
            let payload = gather(memory, sector, &flight.pieces);
            write_origin(&mut shared.origins[of], sector, payload, durable);
        }
        What::OriginZero { of, sector, sectors, durable } => {
            write_origin(&mut shared.origins[of], sector, Payload::Zeroes(sectors), durable);
        }
        What::OriginFlush { of, mark } => shared.origins[of].flush(mark),
        _ => {}
    }
}

fn write_origin(origin: &mut Store, sector: u64, payload: Payload, durable: bool) {
    if durable {
        origin.write_through(sector, payload);
    } else {
        origin.write(sector, payload);
    }
}

/// Returns what is in the pieces of memory of an I/O that begins at a sector.
fn gather(memory: &SimMemory, sector: u64, pieces: &[Piece]) -> Payload {
    let parts = pieces.iter().map(|piece| &memory.frame(piece.frame)[piece.at..piece.at + piece.len]);
    let is_aligned = sector.is_multiple_of(SECTORS_PER_BLOCK);
    if is_aligned && pieces.iter().all(|piece| piece.len == BLOCK_BYTES) {
        return Payload::Blocks(parts.map(page_of).collect());
    }
    Payload::Bytes(parts.collect::<Vec<_>>().concat())
}

/// Reads a store from a sector on into the pieces of memory of an I/O, which consist of whole sectors.
fn read(store: &Store, mut sector: u64, memory: &mut SimMemory, pieces: &[Piece]) {
    for piece in pieces {
        assert!(piece.len.is_multiple_of(SECTOR_BYTES), "a piece of {} bytes", piece.len);
        store.read(sector, &mut memory.dma(piece.frame)[piece.at..piece.at + piece.len]);
        sector += (piece.len / SECTOR_BYTES) as u64;
    }
}

/// The pieces of memory of an I/O have room for its sectors, and for no more.
fn check_length(pieces: &[Piece], sectors: u32) {
    let bytes: usize = pieces.iter().map(|piece| piece.len).sum();
    assert_eq!(bytes, sectors as usize * SECTOR_BYTES, "the memory of a read of {sectors} sectors");
}

/// Writes bytes to the pieces of memory of an I/O.
pub(super) fn scatter(memory: &mut SimMemory, pieces: &[Piece], bytes: &[u8]) {
    let mut rest = bytes;
    for piece in pieces {
        let (now, later) = rest.split_at(piece.len);
        memory.dma(piece.frame)[piece.at..piece.at + piece.len].copy_from_slice(now);
        rest = later;
    }
}
