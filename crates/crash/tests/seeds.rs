//! Seeds of runs that once showed a violation, by the bug that they showed.
//!
//! What a seed does changes with the simulator. The bug itself is kept by the behaviour tests named here: they replay
//! the few events that it needs. Not for every seed is it on record which bug it showed.

use haversack_crash::{Options, run_seed};

/// A bug that runs of the simulator have shown.
struct Bug {
    name: &'static str,
    seeds: &'static [u64],
    /// Tests that replay it: file in `crates/core` and function.
    replays: &'static [(&'static str, &'static str)],
}

const CLEANING: &str = "tests/behaviour/cleaning.rs";
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
        replays: &[(
            ON_RECORD,
            "a_guests_flush_covers_what_another_host_left_in_the_origin_even_after_a_kill",
        )],
    },
    Bug {
        name: "staged blocks are cleaned without a mark of their region",
        seeds: &[1004485, 1005506],
        replays: &[(
            DEVICES,
            "what_is_cleaned_for_want_of_space_is_not_overtaken_by_a_device_that_is_not_out_yet",
        )],
    },
    Bug {
        name: "a repair overwrites the damaged page first",
        seeds: &[1008130],
        replays: &[("src/recover/scan.rs", "the_page_that_a_damaged_one_overtook_is_written_over_first")],
    },
    Bug {
        name: "a block that cannot be read stops the cleaner",
        seeds: &[3002124, 3002396, 3009676],
        replays: &[(CLEANING, "a_block_that_cannot_be_read_ends_the_job_and_holds_up_no_other")],
    },
    Bug {
        name: "dirty blocks wait for a second place that a released disk keeps",
        seeds: &[30003638],
        replays: &[(SHARES, "a_disk_without_a_second_place_is_cleaned_and_goes_without_the_cache")],
    },
    Bug {
        name: "a device counts as gone before the record says so",
        seeds: &[1805403, 1702297],
        replays: &[
            (LEAVING, "nothing_that_the_origin_overtook_comes_back_with_a_device_that_was_removed"),
            (LEAVING, "nothing_is_overtaken_before_the_record_says_that_a_device_failed"),
            (DEVICES, "without_devices_a_disk_with_clean_blocks_staged_is_detached"),
        ],
    },
    Bug {
        name: "an older dirty version outlives the device with the newer one",
        seeds: &[305092, 404995],
        replays: &[
            (LEAVING, "older_versions_elsewhere_do_not_come_back_after_a_device_failed"),
            (JOBS, "a_disk_does_not_grow_under_a_discard_of_its_last_block"),
        ],
    },
    Bug {
        name: "a flush waits for a block that a discard took",
        seeds: &[4735],
        replays: &[(MODES, "a_flush_that_waits_for_a_block_which_a_discard_takes_is_answered")],
    },
    Bug {
        name: "a lost device costs a disk more than was on it, or takes newer versions with it",
        seeds: &[822, 1409, 1554],
        replays: &[
            (LEAVING, "dirty_blocks_that_a_lost_device_did_not_have_are_kept"),
            (LEAVING, "a_device_is_gone_only_when_what_was_staged_of_its_blocks_is_durable"),
            (LEAVING, "what_was_staged_as_a_device_failed_is_committed"),
        ],
    },
    Bug {
        name: "a pool calls a failed device missing before the record says that it is gone",
        seeds: &[704880],
        replays: &[(
            LEAVING,
            "a_pool_with_two_copies_opens_without_a_device_that_failed_and_is_not_gone_yet",
        )],
    },
    Bug {
        name: "a version superseded only on a lost or lone device comes back",
        seeds: &[5006687, 2440, 1000380, 3778, 1004186, 458],
        replays: &[
            (LEAVING, "a_device_is_gone_only_when_what_was_being_committed_of_its_blocks_is_durable"),
            (WHOLE, "a_clean_block_overtaken_on_two_devices_does_not_come_back_when_both_have_failed"),
            (WHOLE, "what_a_lone_device_overtook_does_not_come_back_once_the_pool_is_whole"),
            (WHOLE, "a_device_that_was_left_alone_before_the_record_said_so_is_missed"),
        ],
    },
    Bug {
        name: "a flush succeeds although no device is left and the disk was given up",
        seeds: &[3300253],
        replays: &[(DEVICES, "a_flush_of_what_may_go_nowhere_fails_and_the_release_ends")],
    },
    Bug {
        name: "what tells of a loss, or of volatile writes in an origin, leaves before the record says so",
        seeds: &[565, 20554, 20646, 20951, 934, 1448, 1794, 303516, 402461, 403551, 500877],
        replays: &[
            (ON_RECORD, "a_guests_flush_covers_what_another_host_left_in_the_origin_even_after_a_kill"),
            (ON_RECORD, "what_surrounds_lost_sectors_does_not_hide_them_when_their_device_is_back"),
            (ON_RECORD, "a_damaged_block_is_known_as_lost_while_its_device_is_emptied"),
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
        replays: &[(JOBS, "a_staged_block_that_a_smaller_disk_no_longer_has_is_not_dirty_after_a_kill")],
    },
    Bug {
        name: "a staged damaged block is not listed as lost after a kill",
        seeds: &[21203554, 21403247, 21404250],
        replays: &[(DAMAGE, "a_damaged_block_that_is_being_moved_is_listed_as_lost_after_a_kill")],
    },
    Bug {
        name: "damaged blocks hold the segments that a disk needs whose device is being removed",
        seeds: &[21401199],
        replays: &[(DAMAGE, "damaged_blocks_do_not_keep_all_places_from_a_disk_whose_device_leaves")],
    },
    Bug {
        name: "a disk that shares the pool has only segments of a failed device, and gets no other",
        seeds: &[36102744],
        replays: &[(SHARES, "a_sharer_whose_device_failed_gets_a_place_from_a_disk_with_a_part_of_its_own")],
    },
    Bug {
        name: "what a failed device took from behind the end of a smaller disk is lost when it grows again",
        seeds: &[27005487],
        replays: &[(
            DAMAGE,
            "what_a_failed_device_took_from_behind_the_end_is_not_lost_when_the_disk_grows_again",
        )],
    },
    Bug {
        name: "what is committed over a block that a device took hides its loss when the device is back",
        seeds: &[90402246, 90903816],
        replays: &[(
            LEAVING,
            "what_is_committed_over_a_lost_block_says_so_if_the_device_is_back_after_a_kill",
        )],
    },
    Bug {
        name: "damage passes for a torn write because the flush mark is damaged as well",
        seeds: &[90903409],
        replays: &[
            (DAMAGE, "damage_to_the_newest_commit_does_not_pass_for_a_torn_write_after_a_kill"),
            (DAMAGE, "damage_passes_for_a_torn_write_no_more_because_the_page_with_the_mark_is_damaged_too"),
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
];

/// Seeds of bugs that are not on record or have no test of their own, and of defects of the simulator.
const UNNAMED: &[u64] = &[
    60005538, 50603114, 50703731, 21301622, 21700131, 2, 8, 11, 29, 42, 71, 74, 76, 95, 130, 156, 165, 402,
    514, 580, 620, 668, 698, 779, 801, 811, 894, 932, 1030, 1323, 1624, 1729, 1779, 1861, 1907, 1972, 2111,
    2727, 5190, 5486, 5487, 5682, 6017, 200212, 201365, 202112, 202222, 203212, 300239, 300899, 300933,
    301463, 302264, 400241, 400468, 401123, 401187, 401729, 402406, 500220, 500276, 500725, 501352, 502065,
    502164, 503282, 600654, 600722, 600876, 601085, 601160, 601488, 601619, 601886, 601909, 601980, 602502,
    602728, 603792, 604164, 604674, 604820, 605223, 700080, 50000100, 50000442, 1789, 62000454, 100155,
    105018, 105288, 200072, 601001, 91103565, 92103674, 92302846, 94300540, 94300668, 94301110,
];

#[test]
fn seeds_that_once_failed_hold() {
    let named = BUGS.iter().flat_map(|bug| bug.seeds.iter().map(|seed| (*seed, bug.name)));
    let seeds: Vec<(u64, &str)> =
        named.chain(UNNAMED.iter().map(|seed| (*seed, "a bug without a name"))).collect();
    let hold = |seeds: &[(u64, &str)]| -> Vec<String> {
        let broken = |(seed, name): &(u64, &str)| {
            let violations = run_seed(*seed, &Options::default()).violations;
            violations.into_iter().map(|what| format!("once showed: {name}\n{what}")).collect::<Vec<_>>()
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

#[test]
fn every_named_bug_has_a_test_that_replays_it() {
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
