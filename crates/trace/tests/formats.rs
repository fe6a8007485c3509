//! Every format as its source describes it: a few lines or records, and what they mean.

use std::io::Write;
use std::path::Path;

use haversack_trace::{
    Access, Format, MemorySource, MergeOptions, Merged, Op, OpenOptions, Selection, Source, Target,
    TraceError, VolumeNo, create, open,
};

/// Reads all of what a file with these bytes holds.
fn read_as(
    name: &str,
    bytes: &[u8],
    options: &OpenOptions,
) -> Result<(Vec<Access>, Box<dyn Source>), TraceError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let mut source = open(&path, options)?;
    let mut accesses = Vec::new();
    while source.read(&mut accesses)? > 0 {}
    Ok((accesses, source))
}

fn strict() -> OpenOptions {
    OpenOptions { strict: true, ..OpenOptions::default() }
}

/// The trace is recognised, without damage, and is these accesses to volumes of these names.
fn means(bytes: &[u8], expected: &[(u64, &str, Op, u64, u32)]) {
    means_with(bytes, &strict(), expected);
}

fn means_with(bytes: &[u8], options: &OpenOptions, expected: &[(u64, &str, Op, u64, u32)]) {
    let (accesses, source) = read_as("some.trace", bytes, options).unwrap();
    let found: Vec<_> = accesses
        .iter()
        .map(|a| {
            let name = source.volumes()[a.volume.0 as usize].as_str();
            (a.time_ns, name, a.op, a.offset_bytes, a.length_bytes)
        })
        .collect();
    assert_eq!(found, expected);
}

use Op::{Discard as D, Flush as F, Read as R, Write as W};

#[test]
fn csv() {
    let common =
        b"timestamp_ns,volume,op,offset_bytes,length_bytes\n5,a,R,4096,512\n6,b,F,0,0\n7,a,D,8192,4096\n";
    let rows = [(5, "a", R, 4096, 512), (6, "b", F, 0, 0), (7, "a", D, 8192, 4096)];
    means(common, &rows);
    let without_heading = common.splitn(2, |b| *b == b'\n').nth(1).unwrap();
    means(without_heading, &rows);
    means(
        b"Time_us;sectors;LBA;comment;Op\r\n1.5;8;1;none;write\r\n2;1;2;;READ\r\n",
        &[(1500, "some", W, 512, 4096), (2000, "some", R, 1024, 512)],
    );
    means(
        b"version,time_us,op,size,lbn\n1,5,2a,512,9\n1,6,28,1024,2\n",
        &[(5000, "some", W, 4608, 512), (6000, "some", R, 1024, 1024)],
    );
    means(b"offset,length\n4096,1\n0,2\n", &[(0, "some", R, 4096, 1), (1, "some", R, 0, 2)]);
}

/// Times without a unit are nanoseconds only if they are whole.
#[test]
fn times_with_fractions_need_a_unit() {
    let rows = b"timestamp,offset,length\n7,0,512\n8.5,512,512\n";
    let Err(TraceError::Line(bad)) = read_as("t.csv", rows, &OpenOptions::default()) else {
        panic!("it is refused")
    };
    assert_eq!((bad.line, bad.found.as_str()), (3, "8.5,512,512"));
    assert!(bad.expected.contains("--time-unit"), "{bad}");
    let seconds = OpenOptions { time_unit_ns: Some(1_000_000_000), ..strict() };
    let read = [(7_000_000_000, "some", R, 0, 512), (8_500_000_000, "some", R, 512, 512)];
    means_with(rows, &seconds, &read);
    means(b"timestamp,offset,length\n7,0,512\n", &[(7, "some", R, 0, 512)]);
    // Far from the beginning it is damage.
    let late = ["timestamp,offset,length\n", &"7,0,512\n".repeat(20_000), "8.5,512,512\n"].concat();
    let (accesses, source) = read_as("t.csv", late.as_bytes(), &OpenOptions::default()).unwrap();
    assert_eq!((accesses.len(), source.damage().lines), (20_000, 1));
    assert!(source.damage().examples[0].expected.contains("--time-unit"));
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_name() {
    means(
        b"\xef\xbb\xbftime_us,offset,length\n5,0,512\n6,512,512\n",
        &[(5000, "some", R, 0, 512), (6000, "some", R, 512, 512)],
    );
    means(b"\xef\xbb\xbf5,a,R,4096,512\n", &[(5, "a", R, 4096, 512)]);
}

/// Accesses without times are numbered again when a part of a trace is read, and when traces are merged.
#[test]
fn accesses_without_times_stay_numbered() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let table = file("t.csv", "volume,offset,length\na,0,512\nb,0,512\nb,512,512\na,1024,512\n");
    let (keys, timed) = (file("k", "7\n8\n9\n"), file("m.csv", "time_us,offset,length\n1,0,512\n"));
    let opened = |path: &Path, selection: Selection| {
        open(path, &OpenOptions { selection, ..OpenOptions::default() }).unwrap()
    };
    let all = Selection::default;
    let times = |mut source: Box<dyn Source>| {
        let mut accesses = Vec::new();
        while source.read(&mut accesses).unwrap() > 0 {}
        (source.is_timed(), accesses.iter().map(|access| access.time_ns).collect::<Vec<_>>())
    };
    let of_a = Selection { volumes: Some(vec!["a".into()]), ..all() };
    assert_eq!(times(opened(&table, of_a)), (false, vec![0, 1]));
    let merged = |paths: &[&Path]| {
        let sources = paths.iter().map(|path| opened(path, all())).collect();
        Box::new(Merged::new(sources, MergeOptions::default()))
    };
    assert_eq!(times(merged(&[&table, &keys])), (false, (0..7).collect()));
    assert_eq!(times(merged(&[&timed, &timed])), (true, vec![1000, 1000]));
    let refused = merged(&[&timed, &keys]).read(&mut Vec::new());
    assert!(matches!(refused, Err(TraceError::SomeUntimed)), "{refused:?}");
}

/// What is converted, cut or merged still says that it has no times. Files of earlier versions do not say so.
#[test]
fn files_say_that_they_have_no_times() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("k");
    std::fs::write(&keys, "7\n8\n9\n").unwrap();
    for (name, target) in [("t.hvt", Target::Haversack), ("t.csv", Target::Csv), ("t.csv.zst", Target::Csv)] {
        let path = folder.path().join(name);
        let part = Selection { limit: Some(2), ..Selection::default() };
        let cut = OpenOptions { selection: part, ..OpenOptions::default() };
        let sources = vec![open(&keys, &cut).unwrap(), open(&keys, &OpenOptions::default()).unwrap()];
        let mut merged = Merged::new(sources, MergeOptions::default());
        create(&path, target, false, &mut merged, &mut |_| {}).unwrap();
        let mut source = open(&path, &OpenOptions::default()).unwrap();
        let mut accesses = Vec::new();
        while source.read(&mut accesses).unwrap() > 0 {}
        assert!(!source.is_timed(), "{name}");
        assert_eq!(
            accesses.iter().map(|access| access.time_ns).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4],
            "{name}"
        );
        assert_eq!(accesses[0].offset_bytes, 7 * 4096, "{name}");
    }
    let text = std::fs::read_to_string(folder.path().join("t.csv")).unwrap();
    assert!(text.starts_with("volume,op,offset_bytes,length_bytes\n"), "{text}");
    let mut timed = MemorySource::of_one("v", vec![Access::default()]);
    let path = folder.path().join("timed.hvt");
    create(&path, Target::Haversack, false, &mut timed, &mut |_| {}).unwrap();
    assert!(open(&path, &OpenOptions::default()).unwrap().is_timed());
    assert_eq!(std::fs::read(&path).unwrap()[10], 0, "as in files of earlier versions");
}

/// Standard input is like a pipe. Devices are neither, but the same holds for them.
#[test]
fn what_can_be_read_only_once_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    std::fs::write(&path, "time_us,offset,length\n1,0,512\n").unwrap();
    assert_eq!(open(&path, &strict()).unwrap().read_once(), None);
    let device = Path::new("/dev/null");
    let options = OpenOptions { format: Some(Format::Keys), ..strict() };
    assert_eq!(open(device, &options).unwrap().read_once(), Some(device));
}

#[test]
fn msr() {
    let lines = b"128166372003061629,src1,2,Read,7014609920,24576,41286\r\n\
        128166372016382155,src1,0,Write,1317441536,8192,1963\n";
    means(
        lines,
        &[
            (1_172_163_600_306_162_900, "src1_2", R, 7_014_609_920, 24576),
            (1_172_163_601_638_215_500, "src1_0", W, 1_317_441_536, 8192),
        ],
    );
}

#[test]
fn spc() {
    means(
        b"0,20941264,8192,W,0.551706\n1,0,512,r,0.554041,more\n",
        &[(551_706_000, "some_ASU0", W, 20_941_264 * 512, 8192), (554_041_000, "some_ASU1", R, 0, 512)],
    );
}

#[test]
fn systor() {
    means(
        b"Timestamp,Response,IOType,LUN,Offset,Size\n1456095145.2,0.1,R,3,1024,512\n1456095145.1,,W,3,0,512\n",
        &[
            (1_456_095_145_100_000_000, "LUN3", W, 0, 512),
            (1_456_095_145_200_000_000, "LUN3", R, 1024, 512),
        ],
    );
    // The README: "The blank indicates that there was no response message." The other row is quoted in
    // xiaohengying/CDCache.
    means(
        b"Timestamp,Response,IOType,LUN,Offset,Size\n1456095145.126285000,,,0,4256049987072,122880\n\
          1456095145.133076000,0.000806000,R,0,899056122368,131072\n",
        &[(1_456_095_145_133_076_000, "LUN0", R, 899_056_122_368, 131_072)],
    );
}

#[test]
fn fiu() {
    means(
        b"89966001219046 4892 syslogd 904265560 8 W 6 0 531e779f26ba7bf2\n\
          89966001219047 1 W R 7 904265568 16 R 6 0 531e 0af3\n\
          89966001219048 1 pdflush 8 8 W 8 1\n",
        &[
            (89_966_001_219_046, "6:0", W, 904_265_560 * 512, 4096),
            (89_966_001_219_047, "6:0", R, 904_265_568 * 512, 8192),
            (89_966_001_219_048, "8:1", W, 4096, 4096),
        ],
    );
}

#[test]
fn alibaba() {
    means(
        b"419,W,8792731648,16384,1577808144360767\n725,R,59110326272,360448,1577808144360813\n",
        &[
            (1_577_808_144_360_767_000, "419", W, 8_792_731_648, 16384),
            (1_577_808_144_360_813_000, "725", R, 59_110_326_272, 360_448),
        ],
    );
}

#[test]
fn tencent() {
    means(
        b"1538323199,9368,8,0,1063\n1538323200,47032,16,1,1283\n",
        &[
            (1_538_323_199_000_000_000, "1063", R, 9368 * 512, 4096),
            (1_538_323_200_000_000_000, "1283", W, 47032 * 512, 8192),
        ],
    );
}

/// Rows as they were published, quoted in Diaconu, "Exploring public storage traces", Towards Data Science, 2024.
#[test]
fn k5cloud() {
    let rows = b"1157,3.828359000,W,7155568640,4096\n1157,3.841602000,W,15264690176,28672\n";
    let expected =
        [(3_828_359_000, "1157", W, 7_155_568_640, 4096), (3_841_602_000, "1157", W, 15_264_690_176, 28672)];
    means(rows, &expected);
    means(&[b"ID,Timestamp,Type,Offset,Length\n", &rows[..]].concat(), &expected);
    // Below the heading of the common form, a field that looks like a time is the volume.
    means(b"timestamp_ns,volume,op,offset_bytes,length_bytes\n5,3.5,R,0,512\n", &[(5, "3.5", R, 0, 512)]);
}

#[test]
fn cydonia() {
    means(
        b"0,6218919,w,4096\n1560,6160455,r,512\n",
        &[(0, "some", W, 6_218_919 * 512, 4096), (1_560_000, "some", R, 6_160_455 * 512, 512)],
    );
}

#[test]
fn disksim() {
    // Milliseconds and sectors; nanoseconds; bytes.
    means(
        b"13.191135 30 0 5 1\n17.8 2 7 6 0\n",
        &[(13_191_135, "some_30", R, 0, 2560), (17_800_000, "some_2", W, 3584, 3072)],
    );
    means(b"938513000 4 264719034 16 0\n", &[(938_513_000, "some_4", W, 264_719_034 * 512, 8192)]);
    means(b"0.5 0 200626176 4096 1\n", &[(500_000, "some_0", R, 200_626_176, 4096)]);
}

#[test]
fn blkparse() {
    let text = b"  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000019452     0  C   W 223490 + 8 [0]
  8,0    1        1     0.000020000   697  P   N [kjournald]
  8,16   1        2     0.000030000     9  Q  RA 16 + 16 [cat]
  8,16   1        3     0.000040000     9  Q FWFS 32 + 8 [sync a b]
  8,16   1        4     0.000050000     9  Q  FN [sync]
  8,16   1        5     0.000060000     9  Q  DS 64 + 1024 [fstrim]
  8,0    3       11     0.009507758   697  m   N cfq697 insert_request
CPU0 (sda):
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB
Total (sda):

Throughput (R/W): 0KiB/s / 0KiB/s
Events (sda): 9 entries
Skips: 0 forward (0 -   0.0%)
";
    means(
        text,
        &[
            (0, "8:0", W, 223_490 * 512, 4096),
            (30_000, "8:16", R, 8192, 8192),
            (40_000, "8:16", F, 0, 0),
            (40_000, "8:16", W, 16384, 4096),
            (50_000, "8:16", F, 0, 0),
            (60_000, "8:16", D, 32768, 524_288),
        ],
    );
}

/// A trace that was filtered before it was published has other events than queueing: only issues (a row of
/// NetSys/disaggregation), only completions (rows of shl812/Leveldb_Trace_Using_Blktrace). If a trace has all events,
/// as SNIA's YCSB RocksDB traces do, each request counts once.
#[test]
fn blkparse_as_published() {
    means(
        b"202,16   7    50007   675.722691803   661  D   W 95839968 + 80 [kswapd0]\n",
        &[(675_722_691_803, "202:16", W, 95_839_968 * 512, 40960)],
    );
    means(
        b"  1,0   15        1     0.000000000 19146  C  WS 299456 + 1 [0]\n  \
          1,0   15        2     0.000003084 19146  C  WS 20513 + 1 [0]\n",
        &[(0, "1:0", W, 299_456 * 512, 512), (3084, "1:0", W, 20_513 * 512, 512)],
    );
    // An event on another CPU, before the event at time 0.
    means(
        b"  1,0   15        3     0.000004122 19146  C  WS 160 + 1 [0]\n  \
          1,0   13        1 1266874889.670077392 19144  C  WS 284144 + 1 [0]\n",
        &[(0, "1:0", W, 284_144 * 512, 512), (4122, "1:0", W, 160 * 512, 512)],
    );
    means(
        b"259,2    0        1     0.000000000  4020  Q   R 282624 + 8 [java]
259,2    0        2     0.000001581  4020  G   R 282624 + 8 [java]
259,2    0        3     0.000003650  4020  U   N [java] 1
259,2    0        4     0.000003858  4020  I  RS 282624 + 8 [java]
259,2    0        5     0.000005462  4020  D  RS 282624 + 8 [java]
259,2    0        6     0.013163464     0  C  RS 282624 + 8 [0]
259,2    0        7     0.013359202  4020  Q   R 286720 + 128 [java]
",
        &[(0, "259:2", R, 282_624 * 512, 4096), (13_359_202, "259:2", R, 286_720 * 512, 65536)],
    );
}

#[test]
fn iolog() {
    means(
        b"fio version 2 iolog\n/a add\n/a open\n/a write 0 4096\n/a wait 250 0\n/a read 4096 512\n/a sync 0 0\n/a close\n",
        &[(0, "/a", W, 0, 4096), (250_000, "/a", R, 4096, 512), (250_000, "/a", F, 0, 0)],
    );
    means(
        b"fio version 3 iolog\n30 /dev/null add\n10731 /dev/null open\n10736 /dev/null trim 0 2147483648\n\
          10752 /dev/null write 0 4096\n10760 /dev/null datasync\n10780 /dev/null close\n",
        &[
            (10_736_000, "/dev/null", D, 0, 2_147_483_648),
            (10_752_000, "/dev/null", W, 0, 4096),
            (10_760_000, "/dev/null", F, 0, 0),
        ],
    );
}

#[test]
fn keys() {
    means(b"7\n3\n", &[(0, "some", R, 7 * 4096, 4096), (1, "some", R, 3 * 4096, 4096)]);
    let sectors = OpenOptions { key_bytes: Some(512), ..strict() };
    for text in ["start_block,block_count\n16,8\n", "16 8\n", "16 8 0 1\n"] {
        means_with(text.as_bytes(), &sectors, &[(0, "some", R, 8192, 4096)]);
    }
}

/// Rows of published traces, quoted in public.
#[test]
fn published_rows() {
    // FIU, IODedup's mail and homes, with one digest for each page and for each sector (ricarkol/tracing,
    // `mail.replay.0` and `homes.replay.0`, where addresses were made small).
    means(
        b"89967404311353 4253 nfsd 680 16 W 6 0 b5e9f4e5ab62a4fff5313a606b0ad4e3e6434714a2358bc5f55005d6c5502d80\n\
          89967404265337 4253 nfsd 672 8 W 6 0 88b93b628d84082186026d9da044f173\n\
          89968195447404 20782 gzip 112 8 R 6 0 ef58ea75660587908a49b83a338bff34\n\
          777600000028782 2552 kjournald 384 8 W 6 0 17c919b1b38fc7be487043bb61634f2fbf619eac0cdf3f68d496ea9344137e8b\
          bf619eac0cdf3f68d496ea9344137e8bbf619eac0cdf3f68d496ea9344137e8bbf619eac0cdf3f68d496ea9344137e8b\
          bf619eac0cdf3f68d496ea9344137e8bbf619eac0cdf3f68d496ea9344137e8bbf619eac0cdf3f68d496ea9344137e8b\n",
        &[
            (89_967_404_265_337, "6:0", W, 672 * 512, 4096),
            (89_967_404_311_353, "6:0", W, 680 * 512, 8192),
            (89_968_195_447_404, "6:0", R, 112 * 512, 4096),
            (777_600_000_028_782, "6:0", W, 384 * 512, 4096),
        ],
    );
    // Alibaba, the row that its README takes for an example, below a heading of the README's names.
    means(
        b"device_id,opcode,offset,length,timestamp\n0,R,126703644672,4096,1577808000000626\n",
        &[(1_577_808_000_000_626_000, "0", R, 126_703_644_672, 4096)],
    );
    // Tencent CBS (Diaconu, "Exploring public storage traces", 2024).
    means(
        b"1538323200,12910952,128,0,1063\n1538323200,15361816,520,1,1371\n1538323200,5331600,4,1,3171\n",
        &[
            (1_538_323_200_000_000_000, "1063", R, 12_910_952 * 512, 65536),
            (1_538_323_200_000_000_000, "1371", W, 15_361_816 * 512, 266_240),
            (1_538_323_200_000_000_000, "3171", W, 5_331_600 * 512, 2048),
        ],
    );
    // SPC's own example, where some rows have more fields than others.
    means(
        b"0,20941264,8192,W,0.551706,Alpha/NT\n1,3436288,15872,W,1.250720,0x123,5.99,test\n0,7695360,4096,R,2.346628\n",
        &[
            (551_706_000, "some_ASU0", W, 20_941_264 * 512, 8192),
            (1_250_720_000, "some_ASU1", W, 3_436_288 * 512, 15872),
            (2_346_628_000, "some_ASU0", R, 7_695_360 * 512, 4096),
        ],
    );
}

/// One vSCSI record; version 1 has 32 bytes, version 2 has 40.
fn vscsi(version: u8, command: u8, length: u32, sector: u64, time_us: u64) -> Vec<u8> {
    let two = version == 2;
    let (command, version) =
        (u16::from(command).to_le_bytes(), u16::from_le_bytes([0, version]).to_le_bytes());
    let numbers = [77u32.to_le_bytes(), length.to_le_bytes(), 1u32.to_le_bytes()].concat();
    let first = [&command[..], &version].concat();
    let head = if two { [first, numbers].concat() } else { [numbers, first].concat() };
    let tail = [sector.to_le_bytes(), time_us.to_le_bytes(), 3u64.to_le_bytes()].concat();
    [head, tail[..if two { 24 } else { 16 }].to_vec()].concat()
}

#[test]
fn vscsi_of_both_versions() {
    for version in [1, 2] {
        let records = [
            vscsi(version, 0x2a, 4096, 8, 10),
            vscsi(version, 0x28, 512, 16, 11),
            vscsi(version, 0x00, 0, 0, 12),
            vscsi(version, 0x35, 0, 0, 13),
        ];
        let expected =
            [(10_000, "some", W, 4096, 4096), (11_000, "some", R, 8192, 512), (13_000, "some", F, 0, 0)];
        means(&records.concat(), &expected);
    }
}

/// One blktrace record with its following bytes.
fn blktrace(
    big_endian: bool,
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    following: &[u8],
) -> Vec<u8> {
    let mut record = Vec::new();
    let mut word = |value: u64, bytes: usize| {
        let (le, be) = (value.to_le_bytes(), value.to_be_bytes());
        record.extend_from_slice(if big_endian { &be[8 - bytes..] } else { &le[..bytes] });
    };
    word(0x6561_7407, 4);
    word(1, 4);
    word(time_ns, 8);
    word(sector, 8);
    word(bytes.into(), 4);
    word(action.into(), 4);
    word(99, 4);
    word(8 << 20 | 3, 4);
    word(0, 4);
    word(0, 2);
    word(following.len() as u64, 2);
    record.extend_from_slice(following);
    record
}

const READ: u32 = 1 << 16;
const WRITE: u32 = 1 << 17;
const FLUSH: u32 = 1 << 18;
const QUEUED: u32 = 1 << 20 | 1;
const ISSUED: u32 = 1 << 22 | 7;
const NOTIFY: u32 = 1 << 26;
const DISCARD: u32 = 1 << 29;

#[test]
fn blktrace_in_both_byte_orders() {
    for big_endian in [false, true] {
        let records = [
            blktrace(big_endian, 0, 0, 0, NOTIFY, b"kworker\0"),
            blktrace(big_endian, 10, 8, 4096, QUEUED | READ, b""),
            blktrace(big_endian, 11, 8, 4096, ISSUED | READ, b"scsi command"),
            blktrace(big_endian, 12, 16, 512, QUEUED | WRITE | FLUSH, b""),
            blktrace(big_endian, 13, 0, 0, QUEUED | WRITE | FLUSH, b""),
            blktrace(big_endian, 14, 32, 65536, QUEUED | WRITE | DISCARD, b""),
        ];
        let expected = [
            (10, "8:3", R, 4096, 4096),
            (12, "8:3", F, 0, 0),
            (12, "8:3", W, 8192, 512),
            (13, "8:3", F, 0, 0),
            (14, "8:3", D, 16384, 65536),
        ];
        means(&records.concat(), &expected);
    }
}

#[test]
fn oracle_general() {
    let record = |time: u32, object: u64, size: u32, next: i64| {
        [&time.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    let records = [record(1, 8, 4096, 2), record(1, 16, 512, -1), record(2, 8, 4096, -1)].concat();
    means(
        &records,
        &[
            (1_000_000_000, "some", R, 4096, 4096),
            (1_000_000_000, "some", R, 8192, 512),
            (2_000_000_000, "some", R, 4096, 4096),
        ],
    );
}

#[test]
fn compression_of_every_kind_and_of_several_members() {
    let text: Vec<u8> =
        (0..50_000).flat_map(|i| format!("{},a,R,{},512\n", i, i * 512).into_bytes()).collect();
    let (first, second) = text.split_at(text.len() / 2);
    let gz = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let xz = |bytes: &[u8]| {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zst = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    let plain = read_as("a", &text, &strict()).unwrap().0;
    assert_eq!(plain.len(), 50_000);
    for packed in [
        [gz(first), gz(second)].concat(),
        [xz(first), xz(second)].concat(),
        [zst(first), zst(second)].concat(),
    ] {
        assert_eq!(read_as("a", &packed, &strict()).unwrap().0, plain);
        let cut = read_as("a", &packed[..packed.len() - 40], &strict());
        assert!(matches!(cut, Err(TraceError::Io { .. })), "{:?}", cut.map(|c| c.0.len()));
    }
}

#[test]
fn damaged_lines_are_counted_and_told() {
    let text = b"timestamp_ns,volume,op,offset_bytes,length_bytes\n1,a,R,0,512\n2,a,X,0,512\n\n3,a,R,0\n4,a,W,0,512\n";
    let (accesses, source) = read_as("x.csv", text, &OpenOptions::default()).unwrap();
    assert_eq!(accesses.iter().map(|a| a.time_ns).collect::<Vec<_>>(), [1, 4]);
    let damage = source.damage();
    assert_eq!((damage.lines, damage.late), (2, 0));
    assert_eq!(damage.examples.iter().map(|bad| bad.line).collect::<Vec<_>>(), [3, 5]);
    assert!(damage.examples[0].to_string().contains("x.csv:3: expected"), "{}", damage.examples[0]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    std::fs::write(&path, text).unwrap();
    let mut source = open(&path, &strict()).unwrap();
    let mut accesses = Vec::new();
    assert_eq!(source.read(&mut accesses).unwrap(), 1);
    assert!(matches!(source.read(&mut accesses), Err(TraceError::Line(bad)) if bad.line == 3));
    assert_eq!(source.read(&mut accesses).unwrap(), 0);
}

#[test]
fn rows_are_sorted_within_the_window_and_stably() {
    let rows = |order: &[u64]| -> Vec<u8> {
        let row = |(at, time): (usize, &u64)| format!("{time},a,R,{at},1\n").into_bytes();
        order.iter().enumerate().flat_map(row).collect()
    };
    let options = |strict| OpenOptions { sort_window: 4, strict, ..OpenOptions::default() };
    let order: Vec<u64> = (0..40_000).map(|i| i / 5 * 5 + (4 - i % 5)).map(|i| i / 2 * 2).collect();
    let (accesses, source) = read_as("a", &rows(&order), &options(true)).unwrap();
    assert!(source.damage().is_none() && accesses.len() == order.len());
    assert!(accesses.is_sorted_by_key(|a| (a.time_ns, a.offset_bytes)));

    let mut order: Vec<u64> = (1000..60_000).collect();
    order.push(3);
    let (accesses, source) = read_as("a", &rows(&order), &options(false)).unwrap();
    assert_eq!((source.damage().late, accesses.last().unwrap().time_ns), (1, 59_999));
    assert!(matches!(read_as("a", &rows(&order), &options(true)), Err(TraceError::Late { time_ns: 3, .. })));
}

#[test]
fn formats_have_names() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!("MSR".parse::<Format>().is_err());
    assert!(matches!(read_as("a", b"hello\nworld\n", &strict()), Err(TraceError::UnknownFormat { .. })));
    assert!(matches!(read_as("a", b"", &strict()), Err(TraceError::UnknownFormat { .. })));
    assert!(matches!(open(Path::new("/no/such/file"), &strict()), Err(TraceError::Io { .. })));
}

#[test]
fn files_are_not_replaced_unasked_and_compressed_as_named() {
    let folder = tempfile::tempdir().unwrap();
    let accesses: Vec<_> =
        (0..3000u64).map(|i| Access { time_ns: i, offset_bytes: i * 512, ..Access::default() }).collect();
    let source = || haversack_trace::MemorySource::of_one("v", accesses.clone());
    for name in ["a.csv", "a.csv.gz", "a.csv.xz", "a.csv.zst", "a.hvt"] {
        let path = folder.path().join(name);
        let make = |replace| create(&path, Target::of(&path), replace, &mut source(), &mut |_| {});
        let written = make(false).unwrap();
        assert_eq!((written.accesses, written.bytes), (3000, std::fs::metadata(&path).unwrap().len()));
        assert!(matches!(make(false), Err(TraceError::Io { .. })));
        make(true).unwrap();
        let (back, source) = read_as(name, &std::fs::read(&path).unwrap(), &strict()).unwrap();
        assert_eq!((back.as_slice(), source.volumes()), (&accesses[..], &["v".to_string()][..]));
    }
    assert_eq!(VolumeNo(0), accesses[0].volume);
}
