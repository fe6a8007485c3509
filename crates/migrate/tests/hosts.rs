//! One host's side of a move, with a core on fake devices. Whole moves are tested by the crash simulator.

#[allow(dead_code, unused_imports, reason = "the core's tests use all of it")]
#[path = "../../core/tests/behaviour/common/mod.rs"]
mod common;

use common::*;
use haversack_core::{
    Action, CoreConfig, DiskConfig, IoId, IoPurpose, JobError, ManageError, Moved, RequestError,
};
use haversack_migrate::{Message, Method, Migration, Output, Timing};
use haversack_model::{BLOCK_BYTES, BlockNo, DeviceNo, DiskNo, HostId};
use haversack_ownership::{self as ownership, Record};

const SECTORS: u64 = 4096;
const ME: HostId = HostId(1);
const OTHER: HostId = HostId(2);
const REPEAT_US: u64 = 200_000;

fn config() -> DiskConfig {
    DiskConfig { cleaner: LAZY, ..DiskConfig::new(disk_id(0), SECTORS) }
}

fn rig() -> Rig {
    Rig::new(&[4], false, CoreConfig { commit_blocks: 1, ..CoreConfig::default() })
}

fn migration(rig: &mut Rig) -> Migration {
    let now = rig.now;
    Migration::new(&mut rig.core(), now, ME, 1, config(), Timing::default())
}

/// An attached disk with dirty blocks 0 and 1.
fn owner() -> (Rig, DiskNo, Migration) {
    let mut rig = rig();
    let disk = rig.attach(&config(), 1);
    rig.write(disk, 0, 8, 1);
    rig.write(disk, 8, 8, 2);
    rig.flush(disk);
    rig.jobs.clear();
    let migration = migration(&mut rig);
    (rig, disk, migration)
}

/// Damages a dirty block on flash, and has the core notice that.
fn damage_last_written(rig: &mut Rig, disk: DiskNo, block: u64) {
    let written = rig.log.iter().rev().find_map(|asked| match asked.action {
        Action::WriteDevice { device, offset_bytes, .. }
            if asked.purpose == Some(IoPurpose::Commit) && offset_bytes % (1 << 20) != 0 =>
        {
            Some((device, offset_bytes))
        }
        _ => None,
    });
    let (device, offset_bytes): (DeviceNo, u64) = written.expect("the block was committed");
    rig.device(device).rot(offset_bytes + 5);
    let read = rig.start_read(disk, block * 8, 8);
    assert_eq!(rig.answer(read), Err(RequestError::DataLost));
}

fn outputs(migration: &mut Migration) -> Vec<Output> {
    std::iter::from_fn(|| migration.poll()).collect()
}

/// Carries out all I/O, and tells of the jobs that have ended.
fn run(rig: &mut Rig, migration: &mut Migration) {
    loop {
        rig.run();
        let Some(job) = rig.jobs.keys().next().copied() else { return };
        let result = rig.jobs.remove(&job).expect("it was just seen");
        let now = rig.now;
        migration.job_done(&mut rig.core(), now, job, result);
    }
}

fn ask(rig: &mut Rig, migration: &mut Migration) -> Vec<Output> {
    let now = rig.now;
    let ask = Message::Ownership(ownership::Message::Ask { granted: None });
    migration.message(&mut rig.core(), now, OTHER, ask);
    outputs(migration)
}

fn not_yet() -> Output {
    Output::Send(OTHER, Message::Ownership(ownership::Message::NotYet))
}

#[test]
fn a_disk_with_losses_does_not_leave_and_says_why() {
    let (mut rig, disk, mut migration) = owner();
    damage_last_written(&mut rig, disk, 1);
    let now = rig.now;
    let stays = ManageError::StaysWithLosses(disk_id(0));
    let refused = migration.begin(&mut rig.core(), now, OTHER, Method::default());
    assert_eq!((refused, migration.destination()), (Err(stays.clone()), None));
    assert_eq!(migration.problem(), None, "nobody waits for the disk");
    assert_eq!(ask(&mut rig, &mut migration), [not_yet()]);
    assert_eq!(migration.problem(), Some(&stays));
    let now = rig.now;
    migration.guest_runs(&mut rig.core(), now, ME);
    assert_eq!(migration.problem(), None, "the guest is back");
    migration.guest_stopped();
    rig.write(disk, 8, 8, 3);
    rig.flush(disk);
    run(&mut rig, &mut migration);
    ask(&mut rig, &mut migration);
    run(&mut rig, &mut migration);
    assert!(matches!(migration.record(), Record::Released { to: OTHER, .. }), "{:?}", migration.record());
}

/// With a method that copies while the guest waits.
#[test]
fn a_disk_whose_guest_is_back_is_sent_to_nobody_unless_it_was_asked_to_move() {
    for is_asked in [false, true] {
        let (mut rig, _, mut migration) = owner();
        migration.set_method(Method::StopCopy);
        let now = rig.now;
        if is_asked {
            migration.begin(&mut rig.core(), now, OTHER, Method::StopCopy).unwrap();
        }
        assert!(ask(&mut rig, &mut migration).contains(&not_yet()));
        assert!(migration.is_sending() && migration.sends_to() == Some(OTHER));
        migration.guest_runs(&mut rig.core(), now, ME);
        assert!(!migration.is_sending());
        assert_eq!(migration.sends_to(), is_asked.then_some(OTHER));
    }
}

#[test]
fn a_disk_whose_damage_is_found_while_it_is_being_frozen_says_why_it_stays() {
    let (mut rig, _, mut migration) = owner();
    ask(&mut rig, &mut migration);
    rig.collect();
    let freeze = rig.jobs.keys().next().copied().expect("nothing is to be written before the freeze");
    rig.jobs.clear();
    let now = rig.now;
    migration.job_done(&mut rig.core(), now, freeze, Err(JobError::DataLost));
    assert_eq!(migration.problem(), Some(&ManageError::StaysWithLosses(disk_id(0))));
}

#[test]
fn blocks_that_the_earlier_owner_cannot_read_fail_and_the_disk_says_what_to_do() {
    let mut rig = rig();
    let disk = rig.core().expect_disk(0, &config()).expect("the disk is not known");
    rig.origins.insert(disk, Origin::new(vec![OF_ORIGIN; SECTORS as usize * 512]));
    rig.core().list_peer_blocks(0, disk, OTHER, &[(BlockNo(0), 255)], true).expect("it is expected");
    let job = rig.core().claim(0, disk, 2).expect("it is expected");
    rig.finish(job);
    let mut migration = migration(&mut rig);
    let io = IoId(1 << 20);
    migration.fetch(0, io, BlockNo(0), 255, false);
    for second in 1..=5u64 {
        let mut failed = 0;
        for repetition in 0..5 {
            for output in outputs(&mut migration) {
                match output {
                    Output::Send(OTHER, Message::Fetch { question, .. }) => {
                        let fetched = Message::Fetched { question, mask: 127, data: vec![0; BLOCK_BYTES] };
                        let now = rig.now;
                        migration.message(&mut rig.core(), now, OTHER, fetched);
                    }
                    other => panic!("{other:?}"),
                }
            }
            failed += outputs(&mut migration).iter().filter(|o| **o == Output::FetchFailed { io }).count();
            let now = second * 1_000_000 + repetition * REPEAT_US;
            migration.tick(&mut rig.core(), now);
        }
        assert_eq!(failed, usize::from(second == 5), "after {second} s");
    }
    assert_eq!(migration.problem(), Some(&ManageError::PeerHasLosses(disk_id(0))));
}

#[test]
fn a_host_that_forgets_slowly_answers_a_repeated_question_once() {
    let (mut rig, disk, mut migration) = owner();
    ask(&mut rig, &mut migration);
    run(&mut rig, &mut migration);
    outputs(&mut migration);
    assert_eq!(rig.running().disk_info(disk).map(|info| info.moved), Some(Moved::Peer { to: OTHER }));
    let now = rig.now;
    for _ in 0..100 {
        let forget = Message::Forget { epoch: 2, blocks: vec![BlockNo(0)] };
        migration.message(&mut rig.core(), now, OTHER, forget);
        rig.run_without(is_device_write);
    }
    assert_eq!(outputs(&mut migration), [], "flash is slow");
    rig.run();
    migration.tick(&mut rig.core(), now);
    let forgotten = Message::Forgotten { epoch: 2, blocks: vec![BlockNo(0)] };
    assert_eq!(outputs(&mut migration), [Output::Send(OTHER, forgotten)]);
}

#[test]
fn an_owner_that_has_lost_its_record_is_not_granted_the_disk_by_the_host_of_its_replica() {
    let mut rig = rig();
    let started = rig.core().start_replica(0, &config(), 3, OTHER, [1, 1]);
    let (_, job) = started.expect("the disk is not known");
    rig.finish(job);
    rig.jobs.clear();
    let mut migration = migration(&mut rig);
    assert_eq!(ask(&mut rig, &mut migration), [not_yet()]);
}
