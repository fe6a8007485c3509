//! Seeds of runs that once failed.
//!
//! What a seed does changes with the simulator. So each bug on record also has behaviour tests, named here, that
//! replay the few events that show it. The other seeds are smoke tests: they failed once, but today they are only
//! runs like any other.

use haversack_crash::{Options, cluster, run_seed, twin};

/// A bug that the simulator has found.
struct Bug {
    name: &'static str,
    seeds: &'static [u64],
    /// The tests that replay it: file in `crates/core`, and function.
    replays: &'static [(&'static str, &'static str)],
}

const CLEANING: &str = "tests/behaviour/cleaning.rs";
const CUT_COMMIT: &str = "tests/behaviour/cut_commit.rs";
const DAMAGE: &str = "tests/behaviour/damage.rs";
const DEVICES: &str = "tests/behaviour/devices.rs";
const JOBS: &str = "tests/behaviour/jobs.rs";
const LEAVING: &str = "tests/behaviour/leaving.rs";
const MODES: &str = "tests/behaviour/modes.rs";
const ON_RECORD: &str = "tests/behaviour/on_record.rs";
const SHARES: &str = "tests/behaviour/shares.rs";
const WHOLE: &str = "tests/behaviour/whole.rs";

const BUGS: &[Bug] = &[
    Bug {
        name: "a crash loses what another host left in the origin's volatile cache",
        seeds: &[1150, 2642, 3402, 3560, 801028, 801995, 902941, 1004280],
        replays: &[(ON_RECORD, "a_guests_flush_covers_another_hosts_volatile_writes_even_after_a_kill")],
    },
    Bug {
        name: "staged blocks are cleaned without a mark of their region",
        seeds: &[1004485, 1005506],
        replays: &[(DEVICES, "a_returning_device_does_not_supersede_blocks_cleaned_for_lack_of_space")],
    },
    Bug {
        name: "a repair overwrites the damaged page first",
        seeds: &[1008130],
        replays: &[("src/recover/scan.rs", "the_older_page_is_overwritten_before_the_damaged_one")],
    },
    Bug {
        name: "a block that cannot be read stops the cleaner",
        seeds: &[3002124, 3002396, 3009676],
        replays: &[(CLEANING, "an_unreadable_block_fails_the_job_and_delays_no_other_block")],
    },
    Bug {
        name: "dirty blocks wait for a second place that a released disk keeps",
        seeds: &[30003638],
        replays: &[(SHARES, "a_disk_whose_mirror_is_unavailable_is_cleaned_and_bypasses_the_cache")],
    },
    Bug {
        name: "a device counts as gone before the record says so",
        seeds: &[1805403, 1702297],
        replays: &[
            (LEAVING, "a_removed_device_brings_no_stale_block_back"),
            (LEAVING, "a_failed_devices_dirty_blocks_are_not_superseded_before_the_record_drops_it"),
            (DEVICES, "a_disk_with_staged_clean_blocks_is_detached_without_devices"),
        ],
    },
    Bug {
        name: "an older dirty version outlives the device with the newer one",
        seeds: &[305092, 404995],
        replays: &[
            (LEAVING, "older_versions_on_other_devices_do_not_come_back_after_a_failure"),
            (JOBS, "a_disk_does_not_grow_under_a_discard_of_its_last_block"),
        ],
    },
    Bug {
        name: "a flush waits for a block that a discard took",
        seeds: &[4735],
        replays: &[(MODES, "a_flush_completes_when_a_discard_drops_the_block_it_waits_for")],
    },
    Bug {
        name: "a lost device costs a disk more than was on it, or takes newer versions with it",
        seeds: &[822, 1409, 1554],
        replays: &[
            (LEAVING, "dirty_blocks_that_a_lost_device_did_not_have_are_kept"),
            (LEAVING, "a_device_is_gone_only_when_staged_versions_of_its_blocks_are_durable"),
            (LEAVING, "blocks_staged_when_a_device_failed_are_committed"),
        ],
    },
    Bug {
        name: "a pool calls a failed device missing before the record says that it is gone",
        seeds: &[704880],
        replays: &[(LEAVING, "a_redundant_pool_opens_without_a_failed_device_that_the_record_still_lists")],
    },
    Bug {
        name: "a version superseded only on a lost or lone device comes back",
        seeds: &[5006687, 2440, 1000380, 3778, 1004186, 458],
        replays: &[
            (LEAVING, "a_device_is_gone_only_when_commits_in_flight_of_its_blocks_are_durable"),
            (WHOLE, "a_stale_clean_block_does_not_come_back_when_both_devices_with_newer_ones_failed"),
            (WHOLE, "versions_superseded_on_a_lone_device_do_not_come_back_once_the_pool_is_whole"),
            (WHOLE, "a_lone_device_that_the_record_does_not_name_yet_is_missed"),
        ],
    },
    Bug {
        name: "a flush succeeds although no device is left and the disk was given up",
        seeds: &[3300253],
        replays: &[(DEVICES, "a_flush_fails_without_devices_and_the_release_completes")],
    },
    Bug {
        name: "what tells of a loss, or of volatile writes in an origin, leaves before the record says so",
        seeds: &[565, 20554, 20646, 20951, 934, 1448, 1794, 303516, 402461, 403551, 500877],
        replays: &[
            (ON_RECORD, "a_guests_flush_covers_another_hosts_volatile_writes_even_after_a_kill"),
            (ON_RECORD, "clean_sectors_do_not_hide_lost_ones_when_their_device_returns"),
            (ON_RECORD, "a_damaged_block_is_reported_lost_while_its_device_is_emptied"),
        ],
    },
    Bug {
        name: "flush marks, shrunk disks, cleans and waiting writes when a device fails",
        seeds: &[2003988, 2102131, 5804161, 6101617, 7105534, 7503163, 8203731, 8204621, 8601567, 8802774],
        replays: &[
            ("src/durability/mod.rs", "a_mark_does_not_cover_what_a_leaving_device_may_have_lost"),
            (JOBS, "a_clean_fails_if_a_device_takes_dirty_blocks_with_it"),
            (JOBS, "writes_wait_for_room_when_the_last_device_is_lost_and_the_origin_is_away"),
            (JOBS, "evicted_content_does_not_come_back_when_a_disk_shrinks_and_grows"),
        ],
    },
    Bug {
        name: "a staged block outlives the end of a disk that became smaller",
        seeds: &[9102432],
        replays: &[(JOBS, "staged_blocks_beyond_the_end_of_a_shrunk_disk_are_not_dirty_after_a_kill")],
    },
    Bug {
        name: "a staged damaged block is not listed as lost after a kill",
        seeds: &[21203554, 21403247, 21404250],
        replays: &[(DAMAGE, "a_damaged_block_that_is_being_moved_is_listed_as_lost_after_a_kill")],
    },
    Bug {
        name: "damaged blocks hold the segments that a disk needs whose device is being removed",
        seeds: &[21401199],
        replays: &[(DAMAGE, "damaged_blocks_do_not_block_the_removal_of_a_device")],
    },
    Bug {
        name: "a disk that shares the pool has only segments of a failed device, and gets no other",
        seeds: &[36102744],
        replays: &[(SHARES, "a_sharer_whose_device_failed_gets_a_segment_from_a_disk_with_a_target")],
    },
    Bug {
        name: "what a failed device took from behind the end of a smaller disk is lost when it grows again",
        seeds: &[27005487],
        replays: &[(DAMAGE, "losses_beyond_the_end_of_a_shrunk_disk_stay_lost_when_it_grows")],
    },
    Bug {
        name: "what is committed over a block that a device took hides its loss when the device is back",
        seeds: &[90402246, 90903816],
        replays: &[(LEAVING, "a_commit_over_a_lost_block_keeps_the_loss_if_the_device_returns")],
    },
    Bug {
        name: "damage passes for a torn write because the flush mark is damaged as well",
        seeds: &[90903409],
        replays: &[
            (DAMAGE, "damage_to_the_newest_commit_is_not_taken_for_a_torn_write_after_a_kill"),
            (DAMAGE, "damage_is_not_taken_for_a_torn_write_when_the_flush_mark_is_damaged"),
        ],
    },
    Bug {
        name: "a segment that a failed device holds is all that a disk without a place is promised",
        seeds: &[90203441],
        replays: &[(
            "src/store/reclaim.rs",
            "a_failed_device_holds_the_segments_with_newer_versions_of_what_it_lists",
        )],
    },
    Bug {
        name: "a bad first copy of a block costs a newer version one of its copies",
        seeds: &[95000041],
        replays: &[(DAMAGE, "a_bad_first_copy_costs_a_newer_version_none_of_its_copies")],
    },
    Bug {
        name: "a flush of a released disk waits for space that does not come",
        seeds: &[200252154],
        replays: &[(DEVICES, "a_flush_fails_without_space_and_the_release_completes")],
    },
    Bug {
        name: "the blank write-intent bitmap of a device that just joined stands for the damaged one of another",
        seeds: &[300500764],
        replays: &[(DAMAGE, "the_blank_marks_of_a_device_that_joined_do_not_replace_damaged_ones")],
    },
    Bug {
        name: "a failed device waits for staged blocks that wait for the segments that it holds",
        seeds: &[401003358],
        replays: &[(LEAVING, "a_failed_device_does_not_wait_forever_for_blocks_that_wait_for_it")],
    },
    Bug {
        name: "nothing wakes a released disk that waits for a segment",
        seeds: &[600754581],
        replays: &[(LEAVING, "a_released_disks_staged_block_gets_a_place_once_another_disk_is_clean")],
    },
    Bug {
        name: "sectors that the origin has are lost with others of their block",
        seeds: &[402254554],
        replays: &[
            (DAMAGE, "the_valid_sectors_of_a_damaged_block_that_is_dropped_are_read_from_the_origin"),
            (LEAVING, "only_the_dirty_sectors_of_a_block_are_lost_with_its_device"),
        ],
    },
    Bug {
        name: "a clean block that a commit cut short has overwritten is reported as corrupt",
        seeds: &[65, 142, 181, 361],
        replays: &[
            (CUT_COMMIT, "a_block_that_a_commit_cut_short_has_overwritten_is_not_corrupt"),
            (CUT_COMMIT, "it_is_not_corrupt_after_a_clean_stop_either"),
        ],
    },
    Bug {
        name: "a damaged block that only one of its two pages calls damaged keeps the cleaner from newer ones",
        seeds: &[4000404],
        replays: &[(DAMAGE, "a_block_that_only_one_of_two_pages_calls_damaged_holds_up_no_other")],
    },
];

/// Seeds whose bug is not on record, or was one of the simulator. They prove nothing about a certain bug.
const SMOKE: &[u64] = &[
    60005538, 50603114, 50703731, 21301622, 21700131, 2, 8, 11, 29, 42, 71, 74, 76, 95, 130, 156, 165, 402,
    514, 580, 620, 668, 698, 779, 801, 811, 894, 932, 1030, 1323, 1624, 1729, 1779, 1861, 1907, 1972, 2111,
    2727, 5190, 5486, 5487, 5682, 6017, 200212, 201365, 202112, 202222, 203212, 300239, 300899, 300933,
    301463, 302264, 400241, 400468, 401123, 401187, 401729, 402406, 500220, 500276, 500725, 501352, 502065,
    502164, 503282, 600654, 600722, 600876, 601085, 601160, 601488, 601619, 601886, 601909, 601980, 602502,
    602728, 603792, 604164, 604674, 604820, 605223, 700080, 50000100, 50000442, 1789, 62000454, 100155,
    105018, 105288, 200072, 601001, 91103565, 92103674, 92302846, 94300540, 94300668, 94301110, 454, 706,
    826, 9100001666,
];

#[test]
fn no_seed_that_once_failed_fails_again() {
    let named = BUGS.iter().flat_map(|bug| bug.seeds.iter().map(|seed| (*seed, bug.name)));
    let seeds: Vec<(u64, &str)> =
        named.chain(SMOKE.iter().map(|seed| (*seed, "a bug that is not on record"))).collect();
    let hold = |seeds: &[(u64, &str)]| -> Vec<String> {
        let broken = |(seed, name): &(u64, &str)| {
            let violations = run_seed(*seed, &Options::default()).violations;
            violations
                .into_iter()
                .map(|what| format!("this seed once showed: {name}\n{what}"))
                .collect::<Vec<_>>()
        };
        seeds.iter().flat_map(broken).collect()
    };
    let violations: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            seeds.chunks(seeds.len().div_ceil(4)).map(|part| scope.spawn(|| hold(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a run does not panic")).collect()
    });
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Seeds of the simulator of two hosts, and what they showed.
const TWIN: &[(u64, &str)] = &[
    (1341, "answers that are repeated make questions multiply"),
    (2743, "answers that are repeated make questions multiply"),
    (
        2000001918,
        "a crash brings a block back that was being forgotten, and that the new owner was not told of",
    ),
    (2000262475, "what is obsolete is on record as needed, and keeps the disk from coming"),
    (2100502843, "the new owner borrows a clean block that the origin has not durably, and loses"),
    (3003014621, "over a link slower than expected, every answer is to a round of copies that is over"),
    (2000000310, "a late question of a dead host is answered with a release of the disk taken from it"),
    (9104026942, "a bug of the simulator: a loss recorded before a crash counted as accepted after it"),
    (9104011667, "a clean block that a commit cut short has overwritten is reported as corrupt"),
];

#[test]
fn no_seed_of_two_hosts_that_once_failed_fails_again() {
    for (seed, name) in TWIN {
        let violations = twin::run_seed(*seed).violations;
        assert!(violations.is_empty(), "this seed once showed: {name}\n{}", violations.join("\n"));
    }
}

/// Seeds of the simulator of two hosts with replicas, and what they showed.
const REPLICAS: &[(u64, &str)] = &[
    (753, "what was only staged of a replica is served after a takeover, and lost in a power cut"),
    (19430, "what was only staged of a replica is served after a takeover, and lost in a power cut"),
    (1576, "a host that takes a disk over with its replica waits for the dead one"),
    (2393, "a check wants a record of the takeover, but the host has learned of it as the host of a replica"),
];

#[test]
fn no_seed_with_replicas_that_once_failed_fails_again() {
    for (seed, name) in REPLICAS {
        let violations = twin::run_seed_with_replicas(*seed).violations;
        assert!(violations.is_empty(), "this seed once showed: {name}\n{}", violations.join("\n"));
    }
}

/// Seeds of the simulator of a cluster, and what they showed.
const CLUSTER: &[(u64, &str)] = &[
    (101792, "two hosts that have handed over a disk to each other wait for space for each other"),
    (100710, "a bug of the simulator: a leader's own move counted as one that it had heard of before"),
    (1422, "blocks that are kept for the next owner are taken for obsolete when the disk was passed on"),
    (500000245, "a host that gives up a dead one waits for space that blocks of disks taken from it hold"),
    (
        734000031,
        "a bug of the simulator: the note of a failed takeover prevented the next takeover of the disk",
    ),
    (750000567, "two hosts that take a disk over in the same second have the same epoch"),
    (734000268, "a host that knows nothing of a takeover passes on an old grant, and nobody tells it"),
    (
        519,
        "a bug of the simulator: no host took a disk over, as all had noted a takeover that came to nothing",
    ),
    (2239, "a bug of the simulator: a fenced host repeated a refused write for ever, in no time"),
    (
        750000311,
        "an owner gives up a dead host and dies, and that host's old blocks replace what it had written",
    ),
    (
        930001406,
        "an owner dies while it gives up a dead host, which comes back, and the disk is never attached again",
    ),
];

/// Seeds of the same with replicas.
const CLUSTER_REPLICAS: &[(u64, &str)] = &[
    (54, "a host that was cut off from an owner keeps its replica for ever when the disk has moved on"),
    (
        9300117,
        "a failed takeover makes a certain replica void, but the replica is used although the disk is taken over without it",
    ),
    (
        3100000612,
        "a bug of the simulator: sectors counted as lost although a guest that was turned off had begun to rewrite them",
    ),
    (
        3100001982,
        "a dead host comes back while the owner gives it up, notes that, and no longer answers when that has failed",
    ),
    (6110000494, "two hosts have complete replicas, and each refuses a takeover in favour of the other"),
    (
        8000005729,
        "a check of the simulator wants order although the only host that knows of a takeover is lost for ever",
    ),
    (8000008553, "a replica without blocks is kept for ever when its owner has forgotten the disk"),
    (
        8100000749,
        "a takeover with a replica waits for ever for space that is there, for blocks that were staged after its seal",
    ),
    (
        8100007556,
        "a check of the simulator excludes what an heir has written over a newer version that was never answered",
    ),
];

#[test]
fn no_seed_of_a_cluster_with_replicas_that_once_failed_fails_again() {
    let options = cluster::Options { brief: true, replicas: true };
    for (seed, name) in CLUSTER_REPLICAS {
        let violations = cluster::run(*seed, options).violations;
        assert!(violations.is_empty(), "this seed once showed: {name}\n{}", violations.join("\n"));
    }
}

#[test]
fn a_cluster_with_replicas_holds_what_it_promises() {
    let options = cluster::Options { brief: true, replicas: true };
    let reports: Vec<_> = (1..=16).map(|seed| cluster::run(seed, options)).collect();
    let violations: Vec<_> = reports.iter().flat_map(|report| report.violations.clone()).collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    let sum = |of: fn(&haversack_crash::RunReport) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|report| report.counts.replicas) > 5, "hardly any replica was used");
}

/// Seeds of brief runs of the same.
const CLUSTER_BRIEF: &[(u64, &str)] = &[
    (
        200289,
        "a bug of the simulator: a fenced host was let in while the former owner did not know, and was granted the disk",
    ),
    (7000003072, "an intent counts as abandoned since the time at which the intent that it replaces was"),
    (
        7000009407,
        "a check of the simulator wants order although the only host that knows of a takeover is lost for ever",
    ),
    (
        7100002145,
        "a host to which a guest has returned counts for ever as sending its disk to the host that had asked",
    ),
];

#[test]
fn no_seed_of_a_cluster_that_once_failed_fails_again() {
    for (seed, name) in CLUSTER_BRIEF {
        let violations = cluster::run(*seed, cluster::Options { brief: true, replicas: false }).violations;
        assert!(violations.is_empty(), "this seed once showed: {name}\n{}", violations.join("\n"));
    }
    for (seed, name) in CLUSTER {
        let violations = cluster::run_seed(*seed).violations;
        assert!(violations.is_empty(), "this seed once showed: {name}\n{}", violations.join("\n"));
    }
}

#[test]
fn a_cluster_of_five_hosts_holds_what_it_promises() {
    let reports: Vec<_> = (1..=16).map(cluster::run_seed).collect();
    let violations: Vec<_> = reports.iter().flat_map(|report| report.violations.clone()).collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    // The runs must have crashes, faults, moves and takeovers.
    let sum = |of: fn(&haversack_crash::RunReport) -> u64| reports.iter().map(of).sum::<u64>();
    assert!(sum(|report| report.points) > 100 && sum(|report| report.counts.faults) > 100);
    assert!(sum(|report| report.counts.jobs) > 10, "hardly any VM was moved");
    assert!(sum(|report| report.counts.takeovers) > 10, "hardly any disk was taken over");
}

#[test]
fn a_seed_of_a_cluster_repeats_its_run() {
    let [first, again] = [(); 2].map(|()| cluster::run_seed(7));
    assert_eq!(format!("{:?}", first.counts), format!("{:?}", again.counts));
}

#[test]
fn every_bug_on_record_has_a_behaviour_test() {
    let core = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/");
    for bug in BUGS {
        assert!(!bug.replays.is_empty(), "nothing replays '{}'", bug.name);
        for (file, test) in bug.replays {
            let text = std::fs::read_to_string(format!("{core}{file}")).expect("a file of the core's tests");
            let test = format!("#[test]\nfn {test}(");
            let found = text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n").contains(&test);
            assert!(found, "'{}': no {test} in {file}", bug.name);
        }
    }
}
