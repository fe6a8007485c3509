use super::*;

const WINDOW_US: u64 = 1_000_000;

/// Accesses these blocks in a window, and ends it.
fn window(knee: &mut RunningKnee, blocks: impl IntoIterator<Item = u64>) {
    blocks.into_iter().for_each(|block| knee.access(block));
    knee.turn(WINDOW_US);
}

/// Returns the blocks that a window accesses in a loop over `parts` parts of 50 blocks.
fn round(at: u64, parts: u64) -> impl Iterator<Item = u64> {
    (0..50).map(move |block| at % parts * 50 + block)
}

fn windows(knee: &RunningKnee) -> Option<u64> {
    knee.present().map(|knee| knee.length_us / WINDOW_US)
}

/// A loop over 600 blocks takes twelve windows. Windows of length 16 access a third of the loop twice, and those of
/// length 32 all of it.
#[test]
fn a_loop_has_its_knee_where_a_window_holds_two_rounds() {
    let mut knee = RunningKnee::new(1, 0, None).unwrap();
    for at in 0..256 {
        window(&mut knee, round(at, 12));
        match at + 1 {
            ..4 => assert_eq!(windows(&knee), None),
            // None of the lengths that can be compared yet sees a block twice, or only the longest one does.
            4..192 => assert_eq!(windows(&knee), Some(1), "after {} windows", at + 1),
            192.. => assert_eq!(windows(&knee), Some(32), "after {} windows", at + 1),
        }
    }
    let tried = &knee.present().unwrap().tried;
    let hits: Vec<f64> = tried.iter().map(|length| length.hit_ratio).collect();
    assert_eq!(tried.len(), 7);
    assert!(hits[..4].iter().all(|ratio| *ratio == 0.0) && hits[4] < 0.5, "{tried:?}");
    assert_eq!(hits[5..], [1.0, 1.0]);
    assert_eq!(tried[5].mean_blocks, 600.0);
}

/// One disk accesses the same blocks in each window, so all lengths are equally good. The other one scans, so no length
/// sees a block twice.
#[test]
fn without_a_knee_it_is_the_policy_s_window() {
    let mut knees = [RunningKnee::new(1, 0, None).unwrap(), RunningKnee::new(1, 0, None).unwrap()];
    for at in 0..320 {
        window(&mut knees[0], round(at, 1).chain(round(at, 1)));
        window(&mut knees[1], (0..50).map(|block| at * 50 + block));
    }
    for knee in knees {
        assert_eq!((windows(&knee), knee.present().unwrap().tried.len()), (Some(1), 7));
    }
}

#[test]
fn a_knee_that_moves_is_followed() {
    let mut knee = RunningKnee::new(1, 0, None).unwrap();
    (0..256).for_each(|at| window(&mut knee, round(at, 3)));
    assert_eq!(windows(&knee), Some(8), "{:?}", knee.present());
    (0..192).for_each(|at| window(&mut knee, round(at, 12)));
    assert_eq!(windows(&knee), Some(32), "{:?}", knee.present());
    (0..128).for_each(|at| window(&mut knee, round(at, 3)));
    assert_eq!(windows(&knee), Some(8), "{:?}", knee.present());
}

/// Replaying the trace gives the same counts.
#[test]
fn it_counts_what_a_replay_counts() {
    let parts = |at: u64| if at.is_multiple_of(2) { round(at, 12) } else { round(at % 5, 4) };
    let mut knee = RunningKnee::new(2, 0, None).unwrap();
    let accesses: Vec<(u64, u64)> =
        (0..384).flat_map(|at| parts(at).map(move |block| (at * WINDOW_US, block))).collect();
    (0..320).for_each(|at| window(&mut knee, parts(at)));
    let before = |windows: u64| accesses.iter().filter(|access| access.0 < windows * WINDOW_US).count();
    for at in 320..384 {
        window(&mut knee, parts(at));
    }
    for tried in &knee.present().unwrap().tried {
        let hits = |windows| {
            let accesses = &accesses[..before(windows)];
            let replayed = super::super::knee::try_length(accesses, tried.length_us, 2, 1 << 16).unwrap();
            replayed.hit_ratio * accesses.len() as f64
        };
        let expected = (hits(384) - hits(320)) / (64.0 * 50.0);
        assert!((tried.hit_ratio - expected).abs() < 1e-6, "{tried:?}, expected {expected}");
    }
}

/// The sample has less than a thousand of 40,000 blocks. After that, only 800 of these blocks are used, and the sample
/// holds too few of them.
#[test]
fn large_sets_are_sampled_and_smaller_ones_again_as_most_of_them() {
    let mut knee = RunningKnee::new(1, 0, None).unwrap();
    let part = |at: u64, blocks: u64| (0..blocks / 4).map(move |block| at % 4 * (blocks / 4) + block);
    (0..256).for_each(|at| window(&mut knee, part(at, 40_000)));
    assert_eq!(windows(&knee), Some(8), "{:?}", knee.present());
    assert!((5..=6).contains(&knee.shift), "one block in 2^{}", knee.shift);
    (0..256).for_each(|at| window(&mut knee, part(at, 800)));
    assert_eq!(windows(&knee), Some(8));
    assert!(knee.shift <= 1, "one block in 2^{}", knee.shift);
}

/// A choice from before a restart is kept until windows of that length can be compared. Windows without accesses do not
/// change it.
#[test]
fn a_choice_is_kept_until_there_is_a_better_founded_one() {
    let before = Knee { length_us: 16 * WINDOW_US, tried: Vec::new() };
    let mut knee = RunningKnee::new(1, 0, Some(before)).unwrap();
    // After 128 windows, lengths 16 and 32 have both been counted since the 64th window and can be compared.
    for at in 0..128 {
        assert_eq!(windows(&knee), Some(16), "after {at} windows");
        window(&mut knee, round(at, 1).chain(round(at, 1)));
    }
    assert_eq!(windows(&knee), Some(1));
    let mut idle = RunningKnee::new(1, 0, knee.present().cloned()).unwrap();
    idle.present = Some(Knee { length_us: 4 * WINDOW_US, tried: Vec::new() });
    (0..256).for_each(|_| window(&mut idle, []));
    assert_eq!(windows(&idle), Some(4));
    // A choice among longer windows, by another policy, gives way as soon as all have been tried.
    let longer = Knee { length_us: 1000 * WINDOW_US, tried: Vec::new() };
    let mut knee = RunningKnee::new(1, 0, Some(longer)).unwrap();
    (0..256).for_each(|at| window(&mut knee, round(at, 1).chain(round(at, 1))));
    assert_eq!(windows(&knee), Some(1));
}

#[test]
fn reuses_are_checked_and_another_recording_begins_again() {
    assert!(RunningKnee::new(0, 0, None).is_err() && RunningKnee::new(5, 0, None).is_err());
    let mut knee = RunningKnee::new(1, 0, None).unwrap();
    (0..100).for_each(|at| window(&mut knee, round(at, 3)));
    knee.thin_out(3);
    assert_eq!((knee.observed, knee.shift), (0, 3));
    knee.thin_out(3);
    window(&mut knee, []);
    assert_eq!(knee.observed, 1);
}
