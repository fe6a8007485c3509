//! Mixes: what they can contain, what is refused, and which line the error names.

use haversack_api::{Admission, Mode};
use haversack_policy::AllocatorRule;
use haversack_policy::allocate::Spare;
use haversack_sim::mix::Mix;
use haversack_sim::{PolicyName, Row, SimError};

/// A disk that reads its 2,000 blocks over and over, at 200 requests a second for 100 s.
const LOAD: &str = "generator = { pattern = { kind = \"scan\" }, blocks = 2000, volumes = 1, requests = 20000, rate = 200.0, seed = 1 }";

fn mix(text: &str) -> Result<Mix, String> {
    let text = text.replace("LOAD", LOAD);
    let mix: Mix = toml::from_str(&text).map_err(|error| error.to_string())?;
    mix.check().map_err(|error| error.to_string())?;
    Ok(mix)
}

fn run(mix: &Mix, allocator: &str) -> Result<Row, SimError> {
    let (_, config) = mix.configs(allocator)?.remove(0);
    let settings = mix.settings(Some(config))?;
    let report = haversack_sim::run(&|| mix.open(std::path::Path::new(".")), &settings, &|_, _| {})?;
    Ok(report.of(PolicyName::Core).next().expect("the production cache").clone())
}

#[test]
fn a_mix_takes_the_daemon_s_keys() {
    let mix = mix("title = \"t\"\nwindow-s = 10.0\n\
         [policy]\nallocator = \"rwss\"\nspare = \"idle\"\nforecast = \"last-value\"\n\
         [[disk]]\nname = \"a\"\nvm = \"vm1\"\ntenant = \"t1\"\npriority = 2.5\nreservation = \"1MiB\"\n\
         limit = \"64MiB\"\nmode = \"wi\"\nadmission = \"address(2)\"\nLOAD\n\
         [[event]]\nat = \"20s\"\ndisk = \"a\"\nevent = \"suspended\"\n\
         [[event]]\nat = \"10s\"\ndisk = \"a\"\nset = { priority = 3.0 }\n")
    .unwrap();
    let disk = &mix.disks[0].config;
    assert_eq!((disk.vm.as_deref(), disk.tenant.as_deref(), disk.priority), (Some("vm1"), Some("t1"), 2.5));
    assert_eq!((disk.reservation.0, disk.limit.unwrap().0), (1 << 20, 64 << 20));
    assert_eq!(disk.mode, Mode::Fixed(haversack_model::WriteMode::WriteInvalidate));
    assert!(matches!(disk.admission, Admission::Staging { n: 2, .. }));
    let (label, config) = mix.configs("rwss").unwrap().remove(0);
    assert_eq!(label, "rwss (forecast=last-value, spare=idle)");
    assert_eq!(config.allocator, AllocatorRule::Proportional { spare: Spare::Idle });
    assert_eq!((config.window_us, config.measurement_us), (10_000_000, 2_500_000));
    let at: Vec<u64> = mix.happenings().unwrap().iter().map(|timed| timed.at_ns).collect();
    assert_eq!(at, [10_000_000_000, 20_000_000_000]);
}

/// The mix's window is that of the pool. A disk is measured over as many of them as in the system itself, unless the
/// policy says otherwise; a history is a number of windows too.
#[test]
fn the_window_of_a_mix_keeps_the_windows_of_a_system_in_proportion() {
    let of = |policy: &str| {
        let text =
            format!("title = \"t\"\nwindow-s = 6.0\n[policy]\n{policy}\n[[disk]]\nname = \"a\"\nLOAD\n");
        let mix = mix(&text).unwrap();
        let config = mix.config(&mix.policies[0]).unwrap();
        (config.window_us / 1000, config.disk_window_us / 1000, config.history_windows)
    };
    assert_eq!(of("allocator = \"vcacheshare\""), (6000, 60_000, 1));
    assert_eq!(of("allocator = \"vcacheshare\"\ndisk_window = \"30s\""), (6000, 30_000, 1));
    assert_eq!(of("allocator = \"vcacheshare\"\nwindow = \"2s\"\ndisk_window = \"20s\""), (2000, 20_000, 1));
    assert_eq!(of("allocator = \"utility\""), (6000, 0, 1));
    assert_eq!(of("allocator = \"liu\""), (6000, 0, 30));
}

/// Each wrong text, what the refusal says, and the line that it shows if it is the parser's.
#[test]
fn what_makes_no_sense_is_refused_at_its_place() {
    let cases = [
        ("[[disk]]\nname = \"a\"\nLOAD\ncolour = 1\n", "unknown field `colour`", "| colour = 1"),
        ("[[disk]]\nname = \"a\"\nLOAD\nqueues = 4\n", "'queues' says how a disk is served", "| queues = 4"),
        ("[[disk]]\nname = \"a\"\nLOAD\nfrom = \"/a.qcow2\"\n", "'from' says how a disk is served", "| from"),
        ("[[disk]]\nname = \"a\"\nLOAD\nmode = \"fast\"\n", "or auto", "| mode = \"fast\""),
        ("[[disk]]\nname = \"a\"\nLOAD\nrequests = \"many\"\n", "invalid type", "| requests = \"many\""),
        (
            "[policy]\nallocator = \"urd\"\nspace = \"idle\"\n[[disk]]\nname = \"a\"\nLOAD\n",
            "unknown field",
            "| space",
        ),
        ("[policy]\nallocator = \"urd\"\nalpha = 1.0\n[[disk]]\nname = \"a\"\nLOAD\n", "has no 'alpha'", ""),
        ("[[disk]]\nname = \"a\"\nLOAD\nrequests = 5\n", "a generator has its own", ""),
        ("[[disk]]\nname = \"a\"\nLOAD\nseconds = 5.0\n", "a generator a 'rate'", ""),
        ("[[disk]]\nname = \"a\"\ntrace = \"t\"\nseconds = 5.0\n", "a trace has its own times", ""),
        ("[[disk]]\nname = \"a\"\nLOAD\nseed = 5\n", "a generator has its own", ""),
        ("[[disk]]\nname = \"a\"\nLOAD\ntime-unit = \"1s\"\n", "a 'time-unit' is of a 'trace'", ""),
        ("[[disk]]\nname = \"a\"\n", "give one of 'trace', 'like' and 'generator'", ""),
        ("[[disk]]\nname = \"a\"\nLOAD\n[[disk]]\nname = \"a\"\nLOAD\n", "two of this name", ""),
        ("[[disk]]\nname = \"a\"\nlimit = 4096\nreservation = 8192\nLOAD\n", "below its reservation", ""),
        (
            "[[disk]]\nname = \"a\"\nLOAD\n[[event]]\nat = \"1s\"\ndisk = \"b\"\nevent = \"ended\"\n",
            "there are a",
            "",
        ),
        (
            "[[disk]]\nname = \"a\"\nLOAD\n[[event]]\nat = \"1s\"\ndisk = \"a\"\n",
            "give one of 'event' and 'set'",
            "",
        ),
        (
            "[[disk]]\nname = \"a\"\nLOAD\n[[event]]\nat = \"1s\"\ndisk = \"a\"\nset = { nbd = false }\n",
            "leave them out",
            "",
        ),
        (
            "[[disk]]\nname = \"a\"\nLOAD\n[[event]]\nat = \"1s\"\ndisk = \"a\"\nevent = \"eaten\"\n",
            "unknown variant",
            "| event = \"eaten\"",
        ),
    ];
    for (text, why, shown) in cases {
        let refused = mix(&format!("title = \"t\"\n{text}")).unwrap_err();
        assert!(refused.contains(why) && refused.contains(shown), "{text}: {refused}");
    }
}

/// One disk is there from the beginning; the other starts after 40 s, is suspended at 70 s and resumed at 90 s. The
/// first gets more priority at 95 s.
#[test]
fn disks_come_go_and_change_on_the_way() {
    let text = "title = \"t\"\nfractions = [0.5]\nwindow-s = 10.0\n[policy]\nallocator = \"equal\"\n\
         [[disk]]\nname = \"a\"\nLOAD\n[[disk]]\nname = \"b\"\nstart = \"40s\"\nLOAD\n\
         [[event]]\nat = \"35s\"\ndisk = \"b\"\nevent = \"new\"\n\
         [[event]]\nat = \"71s\"\ndisk = \"b\"\nevent = \"suspended\"\n\
         [[event]]\nat = \"91s\"\ndisk = \"b\"\nevent = \"resumed\"\n\
         [[event]]\nat = \"95s\"\ndisk = \"a\"\nset = { priority = 3.0 }\n";
    let row = run(&mix(text).unwrap(), "equal").unwrap();
    let governed = row.production.unwrap().control.unwrap();
    let pool: u64 = governed.targets[0].target_blocks[0];
    let targets_at = |seconds: f64| {
        let sample = governed.targets.iter().rfind(|sample| sample.time_seconds <= seconds).unwrap();
        sample.target_blocks.clone()
    };
    let near = |seconds: f64, wanted: [u64; 2]| {
        let found = targets_at(seconds);
        let off = found.iter().zip(wanted).map(|(found, wanted)| found.abs_diff(wanted)).max();
        assert!(off <= Some(1), "at {seconds} s: {found:?}, not {wanted:?}");
    };
    assert_eq!(targets_at(0.0)[0], pool);
    near(36.0, [pool / 2, pool / 2]);
    near(72.0, [pool, 0]);
    near(92.0, [pool / 2, pool / 2]);
    near(96.0, [pool * 3 / 4, pool / 4]);
    let replayed = haversack_control::log::replay(governed.log.iter().map(String::as_str)).unwrap();
    assert!(replayed.decisions > 15 && replayed.differences.is_empty(), "{replayed:?}");
    let wrong = text.replace("\"resumed\"", "\"storage-migrated\"");
    let refused = run(&mix(&wrong).unwrap(), "equal").unwrap_err().to_string();
    assert!(refused.contains("event at 91 s") && refused.contains("suspended"), "{refused}");
}

/// Both disks need 2,000 blocks of a pool of 6,000: capped, they use no more, and the rest of the pool stays empty.
#[test]
fn spare_space_stays_idle() {
    let text = "title = \"t\"\nfractions = [1.5]\nwindow-s = 20.0\n\
         [[disk]]\nname = \"a\"\nLOAD\n[[disk]]\nname = \"b\"\nLOAD\n\
         [[disk]]\nname = \"scan\"\ngenerator = { pattern = { kind = \"scan\" }, blocks = 100000, volumes = 1, \
         requests = 20000, rate = 200.0, seed = 2 }\n";
    let used = |policy: &str, allocator: &str| {
        let mut mix = mix(&format!("{text}{policy}")).unwrap();
        mix.fractions = vec![0.4];
        let governed = run(&mix, allocator).unwrap().production.unwrap().control.unwrap();
        let last = governed.targets.last().unwrap().clone();
        (last.usage_blocks, last.target_blocks)
    };
    let (shared, _) = used("[policy]\nallocator = \"urd\"\nspare = \"shared\"\n", "urd");
    let (idle, targets) = used("", "urd");
    // What a scan reads is never needed again: the scan's target is close to zero, and the scan uses no more.
    assert!(targets[2] < 100 && idle[2] < 400, "{idle:?} {targets:?}");
    assert!(shared[2] > 3 * idle[2] && shared[2] > 1000, "{shared:?} {idle:?}");
    for disk in [0, 1] {
        assert!(idle[disk] <= targets[disk] + 128 && idle[disk] > 1500, "{idle:?} {targets:?}");
    }
}

#[test]
fn generators_follow_each_other_on_the_same_blocks() {
    let second = LOAD.replace("generator = ", "").replace("requests = 20000", "requests = 10000");
    let text = format!("title = \"t\"\n[[disk]]\nname = \"a\"\nLOAD\nthen = [{second}]\n");
    let mix = mix(&text).unwrap();
    let mut source = mix.open(std::path::Path::new(".")).unwrap();
    let mut accesses = Vec::new();
    while source.read(&mut accesses).unwrap() > 0 {}
    assert_eq!((accesses.len(), source.volumes()), (30_000, &["a".to_string()][..]));
    assert!(accesses.is_sorted_by_key(|access| access.time_ns));
    // The second generator starts at the first block again, when the first generator has ended after about 100 s.
    assert_eq!((accesses[0].offset_bytes, accesses[20_000].offset_bytes), (0, 0));
    assert!((90..110).contains(&(accesses[20_000].time_ns / 1_000_000_000)));
    let wrong = text.replace("volumes = 1, requests = 10000", "volumes = 2, requests = 10000");
    assert!(self::mix(&wrong).unwrap_err().contains("with as many volumes"));
}

#[test]
fn a_trace_is_cut_to_a_span_and_a_number_of_requests() {
    let folder = tempfile::tempdir().unwrap();
    let line = |n: u64| format!("{},R,{},4096\n", n * 1_000_000_000, n * 4096);
    let lines: String = (0..100).map(line).collect();
    std::fs::write(
        folder.path().join("t.csv"),
        format!("timestamp_ns,op,offset_bytes,length_bytes\n{lines}"),
    )
    .unwrap();
    let count = |keys: &str| {
        let text = format!("title = \"t\"\n[[disk]]\nname = \"a\"\ntrace = \"t.csv\"\n{keys}\n");
        let mut source = mix(&text).unwrap().open(folder.path()).unwrap();
        let mut accesses = Vec::new();
        while source.read(&mut accesses).unwrap() > 0 {}
        accesses.len()
    };
    assert_eq!((count(""), count("span = \"10s\""), count("requests = 7")), (100, 10, 7));
    let refused = mix("title = \"t\"\n[[disk]]\nname = \"a\"\nLOAD\nspan = \"10s\"\n").unwrap_err();
    assert!(refused.contains("a 'span' is of a 'trace'"), "{refused}");
}

/// Clones of a base that have written nothing are one load: the cache has one copy, and all clones after the first hit.
#[test]
fn clones_share_the_blocks_of_their_base() {
    let reads =
        LOAD.replace("requests = 20000", "mix = { read = 1.0, sizes = [[4096, 1.0]] }, requests = 2000");
    let clone = |(name, start): (&str, u32), base: &str| {
        format!("[[disk]]\nname = \"{name}\"\nstart = \"{start}s\"\n{base}{reads}\n")
    };
    let row = |base: &str| {
        let clones = [("a", 0), ("b", 200), ("c", 400)].map(|named| clone(named, base)).concat();
        run(&mix(&format!("title = \"t\"\nfractions = [1.2]\n{clones}")).unwrap(), "none").unwrap()
    };
    let (apart, shared) = (row(""), row("base = \"golden\"\n"));
    assert_eq!((apart.counts.read_hits, apart.counts.blocks_read()), (0, 6000));
    assert_eq!((shared.counts.read_hits, shared.counts.blocks_read()), (4000, 6000));
    assert_eq!(shared.volumes.iter().filter(|volume| volume.counts.read_hits > 0).count(), 1);
}

/// Every kind of invalid base, and a part of the error.
#[test]
fn a_base_is_one_disk_that_nothing_writes_to() {
    let reads = LOAD.replace("seed = 1 }", "seed = 1, mix = { read = 1.0 } }");
    let bases = [
        (LOAD.to_string(), "nothing may write"),
        (format!("base = \"first\"\n{reads}"), "may not have one itself"),
        (reads.replace("volumes = 1", "volumes = 2"), "must be one volume"),
    ];
    for (base, why) in bases {
        let text = format!(
            "title = \"t\"\n[[disk]]\nname = \"golden\"\n{base}\n[[disk]]\nname = \"a\"\nbase = \"golden\"\nLOAD\n"
        );
        let refused = mix(&text).err();
        assert!(refused.as_ref().is_some_and(|error| error.contains(why)), "{refused:?}, not '{why}'");
    }
    let text = format!(
        "title = \"t\"\n[[disk]]\nname = \"golden\"\n{reads}\n[[disk]]\nname = \"a\"\nbase = \"golden\"\nLOAD\n"
    );
    mix(&text).expect("one volume that is only read is a base");
}

/// Returns the TOML in a page of the documentation.
fn documented(page: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rest = text.split("```toml\n").skip(1);
    rest.map(|rest| rest.split("```").next().unwrap_or(rest).to_owned()).collect()
}

#[test]
fn mixes_in_the_documentation_are_taken() {
    // What the pages leave out.
    let disks = |names: &[&str]| -> String {
        names.iter().map(|name| format!("\n[[disk]]\nname = \"{name}\"\n{LOAD}\n")).collect()
    };
    let mut checked = 0;
    let mut take = |page: &str, text: String| {
        mix(&text).unwrap_or_else(|error| panic!("{page}: {error}\n{text}"));
        checked += 1;
    };
    for text in documented("compare-migration.md") {
        let named = "[[disk]]\nname = \"vm\"\n";
        take(
            "compare-migration.md",
            format!("title = \"t\"\n{}", text.replace(named, &format!("{named}{LOAD}\n"))),
        );
    }
    for text in documented("policies.md") {
        let title = if text.starts_with("title") { "" } else { "title = \"t\"\n" };
        take("policies.md", format!("{title}{text}"));
    }
    for text in documented("compare-cluster.md") {
        if text.starts_with("[cluster]") {
            take("compare-cluster.md", format!("title = \"t\"\n{text}{}", disks(&["vm1", "vm2", "vm3"])));
        } else {
            let model: haversack_sim::cluster::model::Scenario = toml::from_str(&text).unwrap();
            model.check().unwrap();
        }
    }
    assert!(checked >= 4, "found only {checked} mixes");
}
