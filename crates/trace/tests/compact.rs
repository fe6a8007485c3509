//! Our own form: reading returns what was written, from any point in time; all damage is detected; no input causes a
//! panic.

use haversack_trace::{
    Access, MemorySource, MergeOptions, Merged, Op, OpenOptions, Selection, Source, Target, TraceError,
    VolumeNo, create, open,
};
use proptest::prelude::*;

fn all(source: &mut dyn Source) -> Result<Vec<Access>, TraceError> {
    let mut accesses = Vec::new();
    while source.read(&mut accesses)? > 0 {}
    Ok(accesses)
}

/// The bytes of a trace in our own form.
fn bytes_of(accesses: &[Access], volumes: &[String]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.hvt");
    let mut source = MemorySource::new(accesses.to_vec(), volumes.to_vec());
    create(&path, Target::Haversack, false, &mut source, &mut |_| {}).unwrap();
    std::fs::read(&path).unwrap()
}

fn read(bytes: &[u8], options: &OpenOptions) -> Result<(Vec<Access>, Vec<String>), TraceError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.hvt");
    std::fs::write(&path, bytes).unwrap();
    let mut source = open(&path, options)?;
    let accesses = all(&mut *source)?;
    Ok((accesses, source.volumes().to_vec()))
}

/// A trace of three blocks in which volumes appear one after the other.
fn long() -> (Vec<Access>, Vec<String>) {
    let accesses = (0..150_000u64).map(|i| Access {
        time_ns: 1_000_000 + i * 1000 + i % 7,
        offset_bytes: (i.wrapping_mul(2_654_435_761) % 1_000_003) * 4096,
        length_bytes: if i % 5 == 3 { 0 } else { 4096 * (1 + i as u32 % 3) },
        volume: VolumeNo(i as u32 / 40_000),
        op: [Op::Read, Op::Write, Op::Read, Op::Flush, Op::Discard][i as usize % 5],
    });
    (accesses.collect(), (0..4).map(|i| format!("volume-{i}")).collect())
}

#[test]
fn spans_of_time_are_found_by_the_index() {
    let (accesses, volumes) = long();
    let bytes = bytes_of(&accesses, &volumes);
    let first_ns = accesses[0].time_ns;
    for span_ns in [0..1000, 70_000_000..70_100_000, 149_000_000..u64::MAX, 3_000_000_000..4_000_000_000] {
        let wanted = |a: &&Access| span_ns.contains(&(a.time_ns - first_ns));
        let expected: Vec<_> = accesses.iter().filter(wanted).copied().collect();
        let selection = Selection { span_ns: Some(span_ns.clone()), ..Selection::default() };
        let options = OpenOptions { selection, ..OpenOptions::default() };
        let (found, names) = read(&bytes, &options).unwrap();
        let named = |accesses: &[Access], names: &[String]| -> Vec<_> {
            accesses.iter().map(|a| (names[a.volume.0 as usize].clone(), a.time_ns, a.offset_bytes)).collect()
        };
        assert_eq!(named(&found, &names), named(&expected, &volumes));
        // A file that is compressed as a whole is read without its index, with the same result.
        assert_eq!(read(&zstd::encode_all(&bytes[..], 1).unwrap(), &options).unwrap(), (found, names));
    }
}

#[test]
fn volumes_and_limits_are_selected() {
    let (accesses, volumes) = long();
    let bytes = bytes_of(&accesses, &volumes);
    let volumes = Some(vec!["volume-2".to_string(), "volume-3".to_string()]);
    let selection = Selection { volumes, limit: Some(50_000), ..Selection::default() };
    let (found, names) = read(&bytes, &OpenOptions { selection, ..OpenOptions::default() }).unwrap();
    assert_eq!(names, ["volume-2", "volume-3"]);
    let expected: Vec<_> =
        accesses[80_000..130_000].iter().map(|a| Access { volume: VolumeNo(a.volume.0 - 2), ..*a }).collect();
    assert!(found == expected);
}

#[test]
fn merged_traces_keep_to_one_clock() {
    let at = |times: &[u64]| -> Vec<Access> {
        times.iter().map(|time_ns| Access { time_ns: *time_ns, ..Access::default() }).collect()
    };
    let sources = || -> Vec<Box<dyn Source>> {
        let one = MemorySource::of_one("a", at(&[5, 7, 7, 9]));
        let two = MemorySource::of_one("b", at(&[6, 7, 20]));
        let more = MemorySource::of_one("a", at(&[7]));
        vec![Box::new(one), Box::new(two), Box::new(more)]
    };
    let merge = |options| {
        let mut merged = Merged::new(sources(), options);
        let accesses = all(&mut merged).unwrap();
        let found: Vec<_> = accesses.iter().map(|a| (a.time_ns, a.volume.0)).collect();
        (found, merged.volumes().to_vec())
    };
    let options = MergeOptions::default();
    let (found, names) = merge(options);
    assert_eq!(found, [(5, 0), (6, 1), (7, 0), (7, 0), (7, 1), (7, 0), (9, 0), (20, 1)]);
    assert_eq!(names, ["a", "b"]);
    let (found, names) = merge(MergeOptions { align: true, separate: true });
    assert_eq!(found, [(0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (2, 0), (4, 0), (14, 1)]);
    assert_eq!(names, ["a", "b", "a#2"]);
}

#[test]
fn a_file_that_was_cut_anywhere_is_damaged() {
    let accesses: Vec<_> = (0..1000u64).map(|i| Access { time_ns: i, ..Access::default() }).collect();
    let bytes = bytes_of(&accesses, &["v".to_string()]);
    for end in 8..bytes.len() {
        let error = read(&bytes[..end], &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, TraceError::Binary { .. }), "cut at {end}: {error}");
    }
}

#[test]
fn every_changed_byte_is_found() {
    let accesses: Vec<_> = (0..1000u64).map(|i| Access { time_ns: i, ..Access::default() }).collect();
    let bytes = bytes_of(&accesses, &["v".to_string()]);
    let span = Selection { span_ns: Some(500..600), ..Selection::default() };
    for at in 8..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let error = read(&damaged, &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, TraceError::Binary { .. }), "byte {at}: {error}");
        // With the index damage may lie outside of what is read, but it never panics.
        let _ = read(&damaged, &OpenOptions { selection: span.clone(), ..OpenOptions::default() });
    }
}

#[test]
fn an_empty_trace_is_one() {
    let bytes = bytes_of(&[], &[]);
    assert_eq!(read(&bytes, &OpenOptions::default()).unwrap(), (vec![], vec![]));
    let span = Selection { span_ns: Some(0..10), ..Selection::default() };
    let options = OpenOptions { selection: span, ..OpenOptions::default() };
    assert_eq!(read(&bytes, &options).unwrap(), (vec![], vec![]));
}

fn access() -> impl Strategy<Value = Access> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Flush), Just(Op::Discard)];
    let time = prop_oneof![0..1000u64, any::<u64>()];
    let offset = prop_oneof![any::<u32>().prop_map(u64::from), any::<u64>()];
    let length = prop_oneof![0..9000u32, any::<u32>()];
    (time, offset, length, 0..5u32, op).prop_map(|(time_ns, offset_bytes, length_bytes, volume, op)| Access {
        time_ns,
        offset_bytes,
        length_bytes,
        volume: VolumeNo(volume),
        op,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(mut accesses in prop::collection::vec(access(), 0..300)) {
        accesses.sort_by_key(|a| a.time_ns);
        let names: Vec<_> = (0..5).map(|i| "näme".repeat(i)).collect();
        let (back, _) = read(&bytes_of(&accesses, &names), &OpenOptions::default()).unwrap();
        prop_assert_eq!(back, accesses);
    }

    /// Whatever a file holds, it is read or refused, in every format.
    #[test]
    fn arbitrary_bytes_never_panic(
        format in prop::option::of(0..haversack_trace::Format::ALL.len()),
        start in prop::sample::select(vec![
            &b""[..], b"HVTRACE\0", b"fio version 2 iolog\n", b"fio version 3 iolog\n", b"offset,length\n",
            b"\x07\x74\x61\x65", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"1 2 3 4 R 5 6\n",
        ]),
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..400),
            "[0-9RWrwF, .\n-]{0,300}".prop_map(String::into_bytes),
        ],
    ) {
        let format = format.map(|at| haversack_trace::Format::ALL[at]);
        for strict in [false, true] {
            let options = OpenOptions { format, strict, ..OpenOptions::default() };
            let _ = read(&[start, &bytes[..]].concat(), &options);
        }
    }

    /// Forged frames have good checksums over nonsense.
    #[test]
    fn forged_blocks_never_panic(count in any::<u32>(), volumes in 0..6u32, names in 0..6u32, raw in prop::collection::vec(prop_oneof![0..9u8, any::<u8>()], 0..200)) {
        let crc = |bytes: &[u8]| (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes();
        let mut bytes = [&b"HVTRACE\0\x01\0"[..], &[0; 18]].concat();
        let sum = crc(&bytes);
        bytes.extend(sum);
        let payload = zstd::encode_all(&raw[..], 1).unwrap();
        let mut frame = b"BLCK".to_vec();
        for word in [payload.len() as u32, raw.len() as u32, count % 64] {
            frame.extend(word.to_le_bytes());
        }
        frame.extend([0; 16]);
        frame.extend([volumes.to_le_bytes(), names.to_le_bytes(), crc(&payload)].concat());
        let sum = crc(&frame);
        bytes.extend([&frame[..], &sum, &payload].concat());
        prop_assert!(read(&bytes, &OpenOptions::default()).is_err());
    }
}
