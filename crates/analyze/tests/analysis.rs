//! The whole analysis against what is known of small traces, and volumes against their sum.

use haversack_analyze::{Analysis, AnalyzeError, Depth, Options, VolumeAnalysis, analyze};
use haversack_trace::{Access, MemorySource, Op, VolumeNo};

fn access(time_s: u64, volume: u32, op: Op, block: u64) -> Access {
    Access {
        time_ns: time_s * 1_000_000_000,
        offset_bytes: block * 4096,
        length_bytes: 4096,
        volume: VolumeNo(volume),
        op,
    }
}

fn run(accesses: Vec<Access>, volumes: usize, options: &Options) -> Analysis {
    let names = (0..volumes).map(|n| format!("vm{n}")).collect();
    analyze(&mut MemorySource::new(accesses, names), options, |_, _| {}).expect("the trace is sound")
}

/// The example of ECI-Cache (Ahmadian et al., ACM TOS 2018), figure 5.
#[test]
fn sizes_of_the_eci_cache_example() {
    use Op::{Read, Write};
    let requests = [(1, Write), (2, Read), (1, Read), (3, Write), (4, Read), (5, Write), (2, Write)];
    let accesses = requests.iter().map(|(block, op)| access(0, 0, *op, *block)).collect();
    let analysis = run(accesses, 1, &Options::default());
    let found = &analysis.overall;
    assert_eq!((found.all_distances.largest, found.all_distances.blocks), (4, 5), "TRD");
    assert_eq!((found.useful_distances.largest, found.useful_distances.blocks), (1, 2), "URD");
    let classes = found.classes;
    assert_eq!((classes.cold_reads, classes.cold_writes, classes.raw, classes.war), (2, 3, 1, 1));
    assert_eq!(found.overwrite_ratio, 1.0 / 7.0);
    // Equation 3: write-back writes all of the seven accesses to flash except for the read after a write; read-only
    // caching writes only the cold reads.
    let tables: Vec<String> = analysis.tables().iter().map(|table| table.to_text()).collect();
    let columns = |line: &&str| line.ends_with("to flash, WB  to flash, RO");
    let row = tables.iter().find_map(|text| text.lines().skip_while(|line| !columns(line)).nth(1)).unwrap();
    let flash: Vec<&str> = row.split_whitespace().rev().filter(|cell| *cell != "%").take(2).collect();
    assert_eq!(flash, ["28.6", "85.7"], "{row}");
}

/// Two volumes: one scans a loop, one has a hot block; the second begins late.
fn two_volumes() -> Vec<Access> {
    let mut accesses = Vec::new();
    for n in 0..200_000u64 {
        let second = n / 1000;
        let op = if n % 5 == 0 { Op::Write } else { Op::Read };
        accesses.push(access(second, 0, op, n % 3000));
        if n > 100_000 {
            accesses.push(access(second, 1, op, if n % 2 == 0 { 7 } else { n % 1000 }));
        }
    }
    accesses.push(access(200, 1, Op::Flush, 0));
    accesses
}

#[test]
fn volumes_and_their_sum() {
    let options =
        Options { sizes: vec![1, 2999, 3000, 5000], window_ns: 50_000_000_000, ..Options::default() };
    let found = run(two_volumes(), 2, &options);
    let [a, b] = &found.volumes[..] else { panic!("two volumes") };
    let all = &found.overall;
    assert_eq!(all.footprint_blocks, a.footprint_blocks + b.footprint_blocks);
    assert_eq!(all.traffic.requests(), a.traffic.requests() + b.traffic.requests());
    assert_eq!((b.traffic.flushes, b.traffic.first_ns), (1, 100_000_000_000));
    assert_eq!(all.classes.cold_reads, a.classes.cold_reads + b.classes.cold_reads);
    let misses: Vec<_> = a.asked.iter().map(|point| point.miss_ratio.expect("accesses")).collect();
    assert_eq!(misses, [1.0, 1.0, 3000.0 / 200_000.0, 3000.0 / 200_000.0], "a loop hits all or nothing");
    let shared: Vec<_> = all.asked.iter().map(|point| point.miss_ratio.expect("accesses")).collect();
    assert!(shared[2] > misses[2] && shared[3] < 0.02, "the volumes share one cache: {shared:?}");
    assert_eq!(all.windows.len(), 4);
    assert_eq!(all.windows[3].blocks, a.windows[3].blocks + b.windows[1].blocks);
    assert_eq!(a.windows[0].reused_blocks, [3000; 4]);
    let (reads, writes) = (a.sequentiality.reads, a.sequentiality.writes);
    assert_eq!(
        (reads.sequential_requests, writes.sequential_requests),
        (160_000, 40_000 - 67),
        "each round begins with a write"
    );
}

#[test]
fn a_volume_is_what_it_is_alone() {
    // Windows begin with the trace: one begins where the second volume does.
    let length_ns = 50_000_000_000;
    let options = Options {
        sizes: vec![10, 3000],
        window_ns: length_ns,
        intensity_window_ns: length_ns,
        ..Options::default()
    };
    let found = run(two_volumes(), 2, &options);
    for (number, volume) in found.volumes.into_iter().enumerate() {
        let own = two_volumes().into_iter().filter(|access| access.volume.0 as usize == number);
        let own = own.map(|access| Access { volume: VolumeNo(0), ..access }).collect();
        let alone = run(own, 1, &options).overall;
        assert_eq!(volume, VolumeAnalysis { name: volume.name.clone(), ..alone });
    }
}

#[test]
fn all_volumes_are_what_one_with_their_blocks_is() {
    let options = Options { sizes: vec![10, 3000], ..Options::default() };
    let together = run(two_volumes(), 2, &options).overall;
    let moved = |access: Access| {
        let offset_bytes = access.offset_bytes + (u64::from(access.volume.0) << 30);
        Access { offset_bytes, volume: VolumeNo(0), ..access }
    };
    let one = run(two_volumes().into_iter().map(moved).collect(), 1, &options).overall;
    // Streams of several volumes are told apart; those of one are not.
    assert_eq!(together, VolumeAnalysis { sequentiality: together.sequentiality, ..one });
}

#[test]
fn any_number_of_threads_finds_the_same() {
    let find = |threads| run(two_volumes(), 2, &Options { threads, ..Options::default() });
    let one = find(1);
    assert_eq!(one, find(2));
    assert_eq!(one, find(7));
}

#[test]
fn a_sample_finds_nearly_the_same() {
    let exact = run(two_volumes(), 2, &Options { sizes: vec![3000], ..Options::default() });
    let sampled = run(
        two_volumes(),
        2,
        &Options { depth: Depth::Sampled(512), sizes: vec![3000], ..Options::default() },
    );
    assert_eq!((exact.sampled_blocks, sampled.sampled_blocks), (None, Some(512)));
    let near = |a: u64, b: u64| a.abs_diff(b) as f64 <= 0.1 * a as f64;
    for (a, b) in exact.volumes.iter().zip(&sampled.volumes) {
        assert!(
            near(a.footprint_blocks, b.footprint_blocks),
            "{} {}",
            a.footprint_blocks,
            b.footprint_blocks
        );
        assert!(near(a.windows[0].blocks, b.windows[0].blocks));
        assert_eq!(a.traffic, b.traffic);
        assert_eq!(a.sequentiality, b.sequentiality);
        let curve = |analysis: &VolumeAnalysis| analysis.classes.rar + analysis.classes.raw;
        assert!(near(curve(a), curve(b)));
    }
}

#[test]
fn nothing_is_analysed_too() {
    let found = run(Vec::new(), 0, &Options { sizes: vec![10], ..Options::default() });
    assert_eq!(found.overall.traffic.requests(), 0);
    assert!(found.volumes.is_empty() && found.overall.asked.is_empty());
    let json = serde_json::to_string(&found).expect("it is written");
    assert_eq!(serde_json::from_str::<Analysis>(&json).expect("it is read"), found);
}

#[test]
fn bad_input_is_an_error() {
    let far = Access { offset_bytes: u64::MAX - 4096, length_bytes: 512, ..Access::default() };
    let options = Options::default();
    let failed = |accesses, options: &Options| {
        analyze(&mut MemorySource::of_one("x", accesses), options, |_, _| {}).expect_err("it is refused")
    };
    assert!(matches!(failed(vec![far; 2_000_000], &options), AnalyzeError::TooFarOut { .. }));
    let odd = Options { block_bytes: 1000, ..Options::default() };
    assert!(matches!(failed(vec![], &odd), AnalyzeError::BlockSize(1000)));
    let none = Options { depth: Depth::Sampled(0), ..Options::default() };
    assert!(matches!(failed(vec![], &none), AnalyzeError::SampleSize(0)));
}

#[test]
fn tables_csv_and_page_show_every_volume() {
    let found = run(two_volumes(), 2, &Options { sizes: vec![3000], ..Options::default() });
    for table in found.tables() {
        let text = table.to_text();
        assert!(text.lines().count() > 1 && !text.contains("NaN"), "{text}");
    }
    let csv = found.curves_csv();
    assert!(csv.lines().any(|line| line.starts_with("vm0,3000,12288000,0.015,")), "{csv}");
    assert!(csv.lines().any(|line| line.starts_with("all,")));
    let html = found.page("two & more").to_html();
    assert!(html.contains("two &amp; more") && html.contains("vm1") && !html.contains("NaN"));
    let empty = run(Vec::new(), 0, &Options::default());
    assert!(empty.page("nothing").to_html().ends_with("</html>\n"));
    assert_eq!(empty.curves_csv().lines().count(), 1);
}

/// Returns, for each interval, the hits among reads in an LRU cache of this size, and the number of reads. The cache
/// keeps its blocks from interval to interval.
fn lru_read_hits(accesses: &[Access], cache_blocks: usize, interval_s: u64) -> Vec<(u64, u64)> {
    let mut cache: Vec<u64> = Vec::new();
    let mut found = Vec::new();
    for access in accesses {
        let (block, number) =
            (access.offset_bytes / 4096, (access.time_ns / 1_000_000_000 / interval_s) as usize);
        found.resize(found.len().max(number + 1), (0, 0));
        let place = cache.iter().position(|cached| *cached == block);
        if access.op == Op::Read {
            found[number].0 += u64::from(place.is_some());
            found[number].1 += 1;
        }
        place.map(|place| cache.remove(place));
        cache.insert(0, block);
        cache.truncate(cache_blocks);
    }
    found
}

#[test]
fn intervals_are_of_a_cache_that_goes_on() {
    use Op::{Read, Write};
    // The example of ECI-Cache; then, after an interval of 10 s without accesses, another interval that accesses blocks
    // of the example.
    let example = [(1, Write), (2, Read), (1, Read), (3, Write), (4, Read), (5, Write), (2, Write)];
    let mut accesses: Vec<Access> = example.iter().map(|(block, op)| access(100, 0, *op, *block)).collect();
    accesses.extend(
        [(125, 5, Read), (126, 2, Write), (127, 5, Read)].map(|(at, block, op)| access(at, 0, op, block)),
    );
    let options = Options { interval_ns: Some(10_000_000_000), sizes: vec![2, 3], ..Options::default() };
    let analysis = run(accesses, 1, &options);
    let [first, second] = &analysis.volumes[0].intervals[..] else { panic!("two intervals have accesses") };
    assert_eq!((first.start_ns, second.start_ns), (100_000_000_000, 120_000_000_000));
    assert_eq!((first.trd_blocks, first.urd_blocks, first.overwrite_ratio), (5, 2, 1.0 / 7.0));
    let classes = |c: haversack_analyze::Classes| [c.cold_reads, c.cold_writes, c.rar, c.raw, c.war, c.waw];
    assert_eq!((classes(first.classes), classes(second.classes)), ([2, 3, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1]));
    // The second interval and the end of the first access only blocks 5 and 2, in turn. So all distances are 1.
    assert_eq!((second.trd_blocks, second.urd_blocks), (2, 2));
    assert_eq!(second.asked.iter().map(|point| point.read_miss_ratio).collect::<Vec<_>>(), [Some(0.0); 2]);
    // Three reads of three blocks, two of one.
    assert_eq!((first.intensity_per_s, second.intensity_per_s), (3.0 / (10.0 * 3.0), 2.0 / 10.0));
    assert!(first.asked.iter().chain(&second.asked).all(|point| point.dirty_eviction_ratio.is_none()));
    let table = analysis.tables().pop().expect("the last is of intervals").to_text();
    assert!(table.contains("Intervals of 10 s") && table.lines().count() == 4, "{table}");
    assert!(analysis.page("two").to_html().contains("accesses by class"));
    assert!(
        serde_json::to_string(&run(Vec::new(), 0, &Options::default())).unwrap().find("interval_s").is_none()
    );
}

/// An interval whose blocks are all outside the sample is still an interval: the intensities are those of their own.
#[test]
fn intervals_without_sampled_blocks_stay() {
    let mut accesses: Vec<Access> = (0..10_000).map(|block| access(0, 0, Op::Read, block)).collect();
    // Each reads one block, and one time more than the interval before.
    for at in 1..=20 {
        accesses.extend((0..at).map(|_| access(10 * at, 0, Op::Read, 20_000 + at)));
    }
    let options =
        Options { interval_ns: Some(10_000_000_000), depth: Depth::Sampled(16), ..Options::default() };
    let intervals = run(accesses, 1, &options).volumes.remove(0).intervals;
    let starts: Vec<u64> = intervals.iter().map(|interval| interval.start_ns / 10_000_000_000).collect();
    assert_eq!(starts, (0..=20).collect::<Vec<u64>>());
    assert!(
        intervals.iter().filter(|interval| interval.trd_blocks == 0).count() > 10,
        "few are in the sample"
    );
}

#[test]
fn hits_by_interval_are_those_of_an_lru_cache() {
    let accesses: Vec<Access> =
        two_volumes().into_iter().filter(|access| access.volume.0 == 1 && access.op != Op::Flush).collect();
    let accesses: Vec<Access> =
        accesses.into_iter().map(|access| Access { volume: VolumeNo(0), ..access }).collect();
    let options = Options { interval_ns: Some(7_000_000_000), sizes: vec![300], ..Options::default() };
    let mut late = accesses.clone();
    let first_s = late[0].time_ns / 1_000_000_000;
    late.iter_mut().for_each(|access| access.time_ns -= first_s * 1_000_000_000);
    let expected = lru_read_hits(&late, 300, 7);
    let found = run(late, 1, &options).volumes.remove(0).intervals;
    assert_eq!(found.len(), expected.len());
    for (found, (hits, reads)) in found.iter().zip(expected) {
        let ratio = 1.0 - found.asked[0].read_miss_ratio.unwrap_or(1.0);
        assert!((ratio - hits as f64 / reads as f64).abs() < 1e-9, "{found:?}");
    }
    // The result of a sample must be close to the exact one.
    let sampled = Options { depth: Depth::Sampled(256), ..options };
    let near = run(accesses, 1, &sampled).volumes.remove(0).intervals;
    assert_eq!(near.len(), found.len());
    for (near, exact) in near.iter().zip(&found) {
        let [near, exact] = [near, exact].map(|one| one.asked[0].read_miss_ratio.unwrap_or(1.0));
        assert!((near - exact).abs() < 0.1, "{near} and {exact}");
    }
}
