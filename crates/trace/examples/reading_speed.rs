//! How fast each format is read: `cargo run --release -p haversack-trace --example reading_speed [TRACE]`.
//!
//! The accesses of a trace, or of a made-up one, are written in every format that a line or a record can be made for,
//! and read again from the page cache. Seconds are the processor's, so that other programs hardly disturb them.

use std::fmt::Write;
use std::path::Path;

use haversack_trace::{
    Access, Format, MemorySource, Op, OpenOptions, Source, Target, TraceError, VolumeNo, create, open,
};

/// Accesses measured.
const COUNT: usize = 2_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (accesses, names) = match std::env::args().nth(1) {
        Some(path) => read(&mut *open(Path::new(&path), &OpenOptions::default())?)?,
        None => (made_up(), vec!["volume".to_string()]),
    };
    let accesses: Vec<_> = accesses.iter().copied().cycle().take(COUNT.min(accesses.len() * 64)).collect();
    println!("{:<16} {:>9} {:>12} {:>9}", "FORMAT", "MB", "M ACCESS/S", "MB/S");
    for format in Format::ALL {
        let path = folder.path().join(format.name());
        if format == Format::Haversack {
            // Cycled, a trace is not in time order.
            let mut sorted = accesses.clone();
            sorted.sort_by_key(|a| a.time_ns);
            let mut source = MemorySource::new(sorted, names.clone());
            create(&path, Target::Haversack, true, &mut source, &mut |_| {})?;
        } else if let Some(bytes) = encoded(format, &accesses) {
            std::fs::write(&path, bytes)?;
        } else {
            continue;
        }
        let options = OpenOptions { format: Some(format), ..OpenOptions::default() };
        let mut best_s = f64::INFINITY;
        for _ in 0..3 {
            let start_s = processor_s();
            let found = drain(&mut *open(&path, &options)?)?;
            best_s = best_s.min(processor_s() - start_s);
            assert_eq!(found, accesses.len(), "{format}");
        }
        let mb = std::fs::metadata(&path)?.len() as f64 / 1e6;
        let rate = accesses.len() as f64 / best_s / 1e6;
        println!("{:<16} {mb:>9.1} {rate:>12.1} {:>9.0}", format.name(), mb / best_s);
    }
    Ok(())
}

fn read(source: &mut dyn Source) -> Result<(Vec<Access>, Vec<String>), TraceError> {
    let mut accesses = Vec::new();
    while source.read(&mut accesses)? > 0 {}
    Ok((accesses, source.volumes().to_vec()))
}

/// Seconds of the processor that this thread has taken.
fn processor_s() -> f64 {
    let taken = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    taken.tv_sec as f64 + taken.tv_nsec as f64 / 1e9
}

/// Counts accesses without keeping them.
fn drain(source: &mut dyn Source) -> Result<usize, TraceError> {
    let (mut batch, mut count) = (Vec::new(), 0);
    while source.read(&mut batch)? > 0 {
        count += batch.len();
        batch.clear();
    }
    Ok(count)
}

/// Random reads and writes with a hot tenth.
fn made_up() -> Vec<Access> {
    let mut random = 1u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let access = |at: u64| {
        let hot = !next().is_multiple_of(10);
        let block = next() % if hot { 1 << 20 } else { 1 << 24 };
        Access {
            time_ns: 1_600_000_000_000_000_000 + at * 100_000 + next() % 90_000 / 1000 * 1000,
            offset_bytes: block * 4096,
            length_bytes: 4096 * (1 + next() as u32 % 4),
            volume: VolumeNo(0),
            op: if next().is_multiple_of(3) { Op::Write } else { Op::Read },
        }
    };
    (0..COUNT as u64).map(access).collect()
}

/// Reads and writes in a format; nothing for formats that are not made here.
fn encoded(format: Format, accesses: &[Access]) -> Option<Vec<u8>> {
    let mut text = String::new();
    let mut bytes = Vec::new();
    match format {
        Format::IoLog => text.push_str("fio version 3 iolog\n"),
        Format::Csv => text.push_str("timestamp_ns,volume,op,offset_bytes,length_bytes\n"),
        _ => {}
    }
    for access in accesses {
        let Access { time_ns, offset_bytes, length_bytes, .. } = *access;
        let (op, sector, sectors) = (access.op.letter(), offset_bytes / 512, length_bytes / 512);
        let is_read = u8::from(access.op == Op::Read);
        let (s, ns, us) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000, time_ns / 1000);
        let written = match format {
            Format::Csv => writeln!(text, "{time_ns},volume,{op},{offset_bytes},{length_bytes}"),
            Format::Msr => {
                let (ticks, kind) =
                    (time_ns / 100 + 116_444_736_000_000_000, if is_read == 1 { "Read" } else { "Write" });
                writeln!(text, "{ticks},host,0,{kind},{offset_bytes},{length_bytes},1234")
            }
            Format::Spc => writeln!(text, "0,{sector},{length_bytes},{op},{s}.{ns:09}"),
            Format::Systor => writeln!(text, "{s}.{ns:09},0.000806000,{op},0,{offset_bytes},{length_bytes}"),
            Format::Fiu => writeln!(
                text,
                "{time_ns} 4892 syslogd {sector} {sectors} {op} 6 0 531e779f26ba7bf2531e779f26ba7bf2"
            ),
            Format::Alibaba => writeln!(text, "7,{op},{offset_bytes},{length_bytes},{us}"),
            Format::Tencent => writeln!(text, "{s},{sector},{sectors},{},7", 1 - is_read),
            Format::K5cloud => writeln!(text, "7,{s}.{ns:09},{op},{offset_bytes},{length_bytes}"),
            Format::Cydonia => writeln!(text, "{us},{sector},{op},{length_bytes}"),
            Format::DiskSim => writeln!(text, "{time_ns} 0 {sector} {sectors} {is_read}"),
            Format::BlkParse => {
                writeln!(text, "  8,0    1  1234567  {s}.{ns:09}  4242  Q  {op}S {sector} + {sectors} [fio]")
            }
            Format::IoLog => {
                writeln!(
                    text,
                    "{us} /dev/vdb {} {offset_bytes} {length_bytes}",
                    if is_read == 1 { "read" } else { "write" }
                )
            }
            Format::Keys => writeln!(text, "{}", offset_bytes / 4096),
            Format::Vscsi1 => {
                let command = if is_read == 1 { 0x28u16 } else { 0x2a };
                for part in [7, length_bytes, 1] {
                    bytes.extend(part.to_le_bytes());
                }
                bytes.extend([command.to_le_bytes(), 0x100u16.to_le_bytes()].as_flattened());
                bytes.extend([sector.to_le_bytes(), us.to_le_bytes()].as_flattened());
                Ok(())
            }
            Format::BlkTrace => {
                let action = 1 << 20 | if is_read == 1 { 1 << 16 } else { 1 << 17 } | 1u32;
                bytes.extend([0x6561_7407u32.to_le_bytes(), 7u32.to_le_bytes()].as_flattened());
                bytes.extend([time_ns.to_le_bytes(), sector.to_le_bytes()].as_flattened());
                for part in [length_bytes, action, 42, 8 << 20, 0, 0] {
                    bytes.extend(part.to_le_bytes());
                }
                Ok(())
            }
            Format::Oracle => {
                bytes.extend((s as u32).to_le_bytes());
                bytes.extend(sector.to_le_bytes());
                bytes.extend(length_bytes.to_le_bytes());
                bytes.extend((-1i64).to_le_bytes());
                Ok(())
            }
            _ => return None,
        };
        written.ok()?;
    }
    Some(if bytes.is_empty() { text.into_bytes() } else { bytes })
}
