//! Drives the core by hand: a pool on one device in memory, a write, a flush and a read.
//!
//! `cargo run -p haversack-core --example drive`

use std::collections::HashMap;

use haversack_core::{
    Action, Core, CoreConfig, DiskConfig, Event, HeapMemory, IoFailure, Media, Memory, Op, OpenOptions,
    PREPARED_AT_FORMAT, PageRead, Payloads, PoolConfig, Request, RequestTag, pool,
};
use haversack_model::{ArenaId, DiskId, SectorNo, Uuid};

/// A cache device in memory.
struct Device(Vec<u8>);

impl Media for Device {
    fn devices(&self) -> usize {
        1
    }

    fn name(&self, _: usize) -> String {
        "memory".into()
    }

    fn capacity_bytes(&self, _: usize) -> u64 {
        self.0.len() as u64
    }

    fn read_batch(&mut self, reads: &mut [PageRead<'_>]) {
        for read in reads {
            let at = read.offset_bytes as usize;
            read.page.copy_from_slice(&self.0[at..at + 4096]);
        }
    }

    fn write(&mut self, _: usize, offset_bytes: u64, pages: &[u8]) -> Result<(), IoFailure> {
        let at = offset_bytes as usize;
        self.0[at..at + pages.len()].copy_from_slice(pages);
        Ok(())
    }

    fn flush(&mut self, _: usize) -> Result<(), IoFailure> {
        Ok(())
    }
}

/// The guest's buffers, by request.
#[derive(Default)]
struct Buffers(HashMap<RequestTag, Vec<u8>>);

impl Payloads for Buffers {
    fn take(&mut self, tag: RequestTag, at: usize, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.0[&tag][at..at + into.len()]);
        true
    }

    fn give(&mut self, tag: RequestTag, at: usize, from: &[u8]) {
        let buffer = self.0.get_mut(&tag).expect("the guest reads into a buffer");
        buffer[at..at + from.len()].copy_from_slice(from);
    }
}

/// Carries out what the core asks for, until it asks for nothing.
fn drain(core: &mut Core, memory: &mut HeapMemory<Buffers>, device: &mut Device, origin: &mut [u8]) {
    while let Some(action) = core.poll() {
        println!("{action:?}");
        let (io, store, offset, writes) = match action {
            Action::ReadDevice { io, offset_bytes, .. } => (io, &mut device.0[..], offset_bytes, false),
            Action::WriteDevice { io, offset_bytes, .. } => (io, &mut device.0[..], offset_bytes, true),
            Action::ReadOrigin { io, sector, .. } => (io, &mut *origin, sector.0 * 512, false),
            Action::WriteOrigin { io, sector, .. } => (io, &mut *origin, sector.0 * 512, true),
            Action::FlushDevice { io, .. } | Action::FlushOrigin { io, .. } => {
                core.with(memory).complete(0, io, Ok(()));
                continue;
            }
            Action::ZeroOrigin { io, sector, sectors, .. } => {
                let at = sector.0 as usize * 512;
                origin[at..at + sectors as usize * 512].fill(0);
                core.with(memory).complete(0, io, Ok(()));
                continue;
            }
            Action::Complete { result, .. } => {
                result.expect("nothing fails here");
                continue;
            }
            Action::Event(Event::JobDone { result, .. }) => {
                result.expect("nothing fails here");
                continue;
            }
            Action::ReadPeer { disk, .. } => panic!("{disk:?} does not move between hosts"),
            Action::Event(event) => panic!("nothing fails here: {event:?}"),
        };
        let pieces: Vec<_> = core.pieces(io).collect();
        let mut at = offset as usize;
        for piece in pieces {
            let frame = &mut memory.frame_mut(piece.frame)[piece.at..piece.at + piece.len];
            let place = &mut store[at..at + piece.len];
            if writes {
                place.copy_from_slice(frame);
            } else {
                frame.copy_from_slice(place);
            }
            at += piece.len;
        }
        core.with(memory).complete(0, io, Ok(()));
    }
}

fn main() {
    let mut device = Device(vec![0; pool::device_bytes(4) as usize]);
    let mut origin = vec![7; 2048 * 512];
    let config = PoolConfig {
        arena: ArenaId::first(Uuid([1; 16])),
        arenas: 1,
        device_ids: vec![Uuid([2; 16])],
        redundancy: false,
        prepared_segments: PREPARED_AT_FORMAT,
    };
    pool::create(&mut device, &config).expect("a blank device becomes a pool");

    let mut memory = HeapMemory::new(64, 64, Buffers::default());
    let opened = Core::open(&mut device, &mut memory, CoreConfig::default(), &OpenOptions::default(), 0);
    let (mut core, _) = opened.unwrap_or_else(|error| panic!("{error}"));
    let (disk, _) = core
        .with(&mut memory)
        .attach(0, &DiskConfig::new(DiskId([3; 16]), 2048), 1, false)
        .expect("a new disk");
    drain(&mut core, &mut memory, &mut device, &mut origin);

    let ops = [(Op::Write { fua: false }, 3, 9), (Op::Flush, 0, 0), (Op::Read, 0, 16)];
    for (number, (op, sector, sectors)) in ops.into_iter().enumerate() {
        println!("\n{op:?} of {sectors} sectors at {sector}");
        let tag = RequestTag(number as u64);
        memory.payloads.0.insert(tag, vec![42; sectors as usize * 512]);
        core.with(&mut memory)
            .submit(0, Request { tag, disk, op, sector: SectorNo(sector), sectors })
            .expect("it fits the disk");
        drain(&mut core, &mut memory, &mut device, &mut origin);
    }

    let read = &memory.payloads.0[&RequestTag(2)];
    let first_bytes: Vec<u8> = read.chunks(512).map(|sector| sector[0]).collect();
    println!("\nread: {first_bytes:?}");
    assert_eq!(first_bytes, [7, 7, 7, 42, 42, 42, 42, 42, 42, 42, 42, 42, 7, 7, 7, 7]);
}
