//! Opening a full pool: what reading, checking and taking over its metadata costs. The pages are in memory, so no
//! device limits it; then also with a file as the device.

use std::path::PathBuf;
use std::time::Instant;

use haversack_core::format::geometry::{self, SLOTS_PER_SEGMENT};
use haversack_core::format::page::{self, Header, Kind, Place};
use haversack_core::format::record::{DeviceRecord, DeviceState, DiskRecord, PoolRecord};
use haversack_core::{
    Action, CheckpointUse, Core, CoreConfig, Damage, Event, Media, MemoryCheckpoint, Moved, NullMemory,
    OpenOptions, OpenReport, Persistence, PoolConfig, checksum, pool,
};
use haversack_model::{ArenaId, ArenaNo, BLOCK_BYTES, DiskId, SECTORS_PER_BLOCK, Uuid};

use crate::alloc;
use crate::media::SparseMedia;
use crate::opening_device;
use crate::table::{self, grouped, row};

/// Segments of the pool: 10.4 million blocks.
const SEGMENTS: u32 = 41_000;
/// An odd factor that scatters the blocks.
const SCATTER: u64 = 0x9E37_79B1;
const FRAMES: u32 = 2048;
const DEVICE: Uuid = Uuid([0xDE; 16]);
const ARENA: ArenaId = ArenaId { pool: Uuid([0x70; 16]), number: ArenaNo(0) };
const STOP: Uuid = Uuid([0x57; 16]);
const ROUNDS: usize = 5;

/// Measures and prints.
pub fn run(places: &[PathBuf]) {
    let mut media = full_pool();
    let entries = u64::from(SEGMENTS * SLOTS_PER_SEGMENT);
    let metadata_bytes = u64::from(SEGMENTS) * 2 * BLOCK_BYTES as u64;
    let (mut seconds, mut processor, mut peak_bytes, mut kept_bytes) = (Vec::new(), Vec::new(), 0, 0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threaded = on_threads(&mut media, threads, entries);
    for _ in 0..ROUNDS {
        let mut memory = NullMemory::new(FRAMES, FRAMES);
        let before = alloc::live_bytes();
        alloc::reset_peak();
        let (start, start_processor) = (Instant::now(), processor_seconds());
        let (core, _) = open(&mut media, &mut memory);
        seconds.push(start.elapsed().as_secs_f64());
        processor.push(processor_seconds() - start_processor);
        assert_eq!(core.pool_stats().usage_blocks, entries, "every entry is cached");
        (peak_bytes, kept_bytes) = (alloc::peak_bytes() - before, alloc::live_bytes() - before);
    }
    seconds.sort_by(f64::total_cmp);
    threaded.sort_by(f64::total_cmp);
    processor.sort_by(f64::total_cmp);
    let (median, median_processor) = (seconds[ROUNDS / 2], processor[ROUNDS / 2]);
    let each = |bytes: usize| format!("{:.2}", bytes as f64 / entries as f64);
    let threads_row = format!("metadata, MB a second on {threads} threads");
    let rows = [
        row(["", "measured"]),
        row(["seconds, median", &format!("{median:.2}")]),
        row(["seconds, best and worst", &format!("{:.2}, {:.2}", seconds[0], seconds[ROUNDS - 1])]),
        row(["ns for an entry", &format!("{:.0}", median * 1e9 / entries as f64)]),
        row(["metadata, MB a second", &format!("{:.0}", metadata_bytes as f64 / 1e6 / median)]),
        row([
            "the same of processor time",
            &format!("{:.0}", metadata_bytes as f64 / 1e6 / median_processor),
        ]),
        row([
            "ns of processor time for an entry",
            &format!("{:.1}", median_processor * 1e9 / entries as f64),
        ]),
        row(["the best", &format!("{:.1}", processor[0] * 1e9 / entries as f64)]),
        row([threads_row.as_str(), &format!("{:.0}", metadata_bytes as f64 / 1e6 / threaded[ROUNDS / 2])]),
        row(["bytes allocated for an entry, open", &each(kept_bytes)]),
        row(["the most while it opens", &each(peak_bytes)]),
    ];
    let title = format!("opening: {} entries in {} segments, one arena", grouped(entries), SEGMENTS);
    table::print(&title, &rows);
    opening_device::run(&media, places, metadata_bytes, entries);
    from_checkpoint(&mut media, entries);
}

/// Returns how many seconds it takes if the tasks of the opening run on threads.
fn on_threads(media: &mut SparseMedia, threads: usize, entries: u64) -> Vec<f64> {
    media.threads = threads;
    let measure = |_| {
        let start = Instant::now();
        let (core, _) = open(media, &mut NullMemory::new(FRAMES, FRAMES));
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(core.pool_stats().usage_blocks, entries, "every entry is cached");
        seconds
    };
    let seconds = (0..ROUNDS).map(measure).collect();
    media.threads = 1;
    seconds
}

/// Returns the processor time that this thread has used.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measures the same opening from the checkpoint of a clean stop, and how long it takes to make one.
fn from_checkpoint(media: &mut SparseMedia, entries: u64) {
    let mut memory = NullMemory::new(FRAMES, FRAMES);
    let (mut core, _) = open(media, &mut memory);
    stop(&mut core, &mut memory);
    let mut pieces = MemoryCheckpoint::default();
    let start = Instant::now();
    let saved = core.checkpoint(&mut |piece| {
        pieces.push(piece);
        Ok::<(), ()>(())
    });
    saved.unwrap_or_else(|why| panic!("no checkpoint: {why:?}"));
    let writing = start.elapsed().as_secs_f64();
    let bytes: usize = pieces.pieces.iter().map(Vec::len).sum();
    let (mut seconds, mut peak_bytes) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let mut memory = NullMemory::new(FRAMES, FRAMES);
        write_record(media);
        pieces.rewind();
        let before = alloc::live_bytes();
        alloc::reset_peak();
        let start = Instant::now();
        let options = OpenOptions::default();
        let opened =
            Core::open_with(media, &mut memory, Some(&mut pieces), CoreConfig::default(), &options, 0);
        let (core, report) = opened.unwrap_or_else(|error| panic!("opening: {error}"));
        seconds.push(start.elapsed().as_secs_f64());
        assert_eq!(report.checkpoint, CheckpointUse::Loaded);
        assert_eq!(core.pool_stats().usage_blocks, entries, "every entry is cached");
        peak_bytes = alloc::peak_bytes() - before;
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[ROUNDS / 2];
    let rows = [
        row(["", "measured"]),
        row(["seconds, median", &format!("{median:.3}")]),
        row(["seconds, best and worst", &format!("{:.3}, {:.3}", seconds[0], seconds[ROUNDS - 1])]),
        row(["ns for an entry", &format!("{:.1}", median * 1e9 / entries as f64)]),
        row(["checkpoint, bytes for an entry", &format!("{:.1}", bytes as f64 / entries as f64)]),
        row(["checkpoint, MB a second", &format!("{:.0}", bytes as f64 / 1e6 / median)]),
        row([
            "the most bytes for an entry while it opens",
            &format!("{:.2}", peak_bytes as f64 / entries as f64),
        ]),
        row(["making it, MB a second", &format!("{:.0}", bytes as f64 / 1e6 / writing)]),
    ];
    table::print("opening the same from a checkpoint in memory", &rows);
}

/// Stops a core cleanly. Its device keeps nothing of that.
fn stop(core: &mut Core, memory: &mut NullMemory) {
    core.with(memory).name_stop(STOP);
    core.with(memory).shutdown(0);
    while let Some(action) = core.poll() {
        match action {
            Action::WriteDevice { io, .. } | Action::FlushDevice { io, .. } => {
                core.with(memory).complete(0, io, Ok(()));
            }
            Action::Event(Event::JobDone { result, .. }) => assert_eq!(result, Ok(())),
            other => panic!("a stop of a pool that nobody uses: {other:?}"),
        }
    }
}

fn open(media: &mut SparseMedia, memory: &mut NullMemory) -> (Core, OpenReport) {
    let opened = Core::open(media, memory, CoreConfig::default(), &OpenOptions::default(), 0);
    opened.unwrap_or_else(|error| panic!("opening: {error}"))
}

/// Returns a device of a pool with one disk, whose every slot holds a clean block of it.
fn full_pool() -> SparseMedia {
    let mut media = SparseMedia::new(pool::device_bytes(SEGMENTS));
    let config = PoolConfig {
        arena: ARENA,
        arenas: 1,
        device_ids: vec![DEVICE],
        redundancy: false,
        prepared_segments: u32::MAX,
    };
    pool::create(&mut media, &config).expect("a blank device becomes a pool");
    let blocks = disk_blocks();
    write_record(&mut media);
    let device_seed = checksum::device_seed(ARENA, DEVICE);
    for segment in 0..SEGMENTS {
        let content: Vec<u8> = (0..SLOTS_PER_SEGMENT)
            .flat_map(|slot| {
                let at = u64::from(segment * SLOTS_PER_SEGMENT + slot);
                entry(at.wrapping_mul(SCATTER) % blocks, u64::from(segment) + 1)
            })
            .collect();
        let header = Header {
            generation: 2,
            flushed_seq: u64::from(SEGMENTS),
            owner: 0,
            kind: Kind::Segment,
            opening: 1,
        };
        let offset_bytes = geometry::metadata_bytes(segment, header.generation);
        let mut sealed = [0; BLOCK_BYTES];
        page::seal(&mut sealed, header, &content, Place { device_seed, offset_bytes });
        media.write(0, offset_bytes, &sealed).expect("memory does not fail");
    }
    media
}

/// Returns the blocks of the disk.
fn disk_blocks() -> u64 {
    u64::from(SEGMENTS * SLOTS_PER_SEGMENT).next_power_of_two()
}

/// Writes the record of the pool as it was after a clean stop.
fn write_record(media: &mut SparseMedia) {
    let mut record = record(disk_blocks() * SECTORS_PER_BLOCK).encode(ARENA);
    record.resize(record.len().next_multiple_of(BLOCK_BYTES), 0);
    for copy in 0..2 {
        media.write(0, geometry::record_bytes(copy), &record).expect("memory does not fail");
    }
}

/// Returns the record of a pool with one disk that was stopped cleanly.
fn record(sectors: u64) -> PoolRecord {
    let device =
        DeviceRecord { id: DEVICE, segments: SEGMENTS, prepared: SEGMENTS, state: DeviceState::Active };
    let disk = DiskRecord {
        id: DiskId([0xD1; 16]),
        sectors,
        phase: 0,
        owned: true,
        epoch: 1,
        may_be_dirty: false,
        origin_volatile: false,
        damage: Damage::None,
        persistence: Persistence::All,
        since_seq: 0,
        clean_seq: 0,
        moved: Moved::No,
    };
    PoolRecord {
        generation: 2,
        openings: 1,
        clean_stop: true,
        stop: STOP,
        flushed_seq: u64::from(SEGMENTS),
        devices: vec![Some(device)],
        disks: vec![Some(disk)],
        ..PoolRecord::default()
    }
}

/// Returns the listed entry of a clean block with all sectors valid (docs/format.md).
fn entry(block: u64, seq: u64) -> [u8; 16] {
    const LISTED: u64 = 1 << 55;
    let every_sector = (1 << SECTORS_PER_BLOCK) - 1;
    let words = [block | every_sector << 38 | (seq >> 32) << 46 | LISTED, seq << 32];
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..].copy_from_slice(&words[1].to_le_bytes());
    bytes
}
