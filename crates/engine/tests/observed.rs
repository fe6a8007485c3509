//! Reads for other hosts, whose guests have not come yet, take a bounded amount of memory.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::departing::Departing;
use common::*;
use haversack_engine::{
    DiskSpec, HostMessage, HostSettings, MOST_OBSERVED_SECTORS, Moves, OpenPool, OriginSpec, PoolHandle,
    ReadRefusal, TlsFiles,
};
use haversack_migrate::Method;
use haversack_model::{DiskId, HostId};
use haversack_nbd::Command;

const MIBS: u64 = 16;
const DISK: DiskId = DiskId([1; 16]);
const QUESTIONS: u64 = 40;
/// As many of the longest reads as fit 1 MiB.
const AT_A_TIME: usize = 4;

type Answer = (HostId, u64, Result<Vec<u8>, ReadRefusal>);
type Answers = Arc<Mutex<Vec<Answer>>>;

/// Another disk of the same host.
const OTHER: DiskId = DiskId([2; 16]);

/// Makes this host known to the pool, and collects its answers.
fn join(handle: &PoolHandle, answers: &Answers) {
    let answers = answers.clone();
    join_as(handle, 1, move |to, message| {
        if let HostMessage::ReadDone { question, data } = message {
            answers.lock().unwrap().push((to, question, data));
        }
    });
}

/// Makes this host, which was started this many times, known to the pool.
fn join_as(handle: &PoolHandle, starts: u64, send: impl Fn(HostId, HostMessage) + Send + Sync + 'static) {
    let send = move |to, _, message| send(to, message);
    let host = HostSettings {
        me: HostId(1),
        incarnation: starts << 32,
        method: Method::PreCopy,
        fetched_a_period: None,
        send: Arc::new(send),
        room: Arc::new(|_| usize::MAX),
    };
    handle.join_hosts(&host).unwrap();
}

fn ask(handle: &PoolHandle, from: HostId, question: u64) {
    ask_of(handle, DISK, from, question);
}

fn ask_of(handle: &PoolHandle, disk: DiskId, from: HostId, question: u64) {
    let sector = question * u64::from(MOST_OBSERVED_SECTORS) % (MIBS * MIB / 512);
    let read = HostMessage::Read { question, sector, sectors: MOST_OBSERVED_SECTORS };
    handle.host_said(from, disk, read, Arc::new(()));
}

/// A host with a pool, and a server of an origin that may be away, with its data.
fn owner(place: &Place) -> (OpenPool, Arc<Departing>, Vec<u8>) {
    let data = patterns(0, MIBS * MIB / 512, 0);
    let server = Departing::serve(data.clone(), &place.path("nbd"));
    let (open, _) = start(&place.pool(&[64], false));
    (open, server, data)
}

fn server_of(place: &Place) -> OriginSpec {
    let uri = format!("nbd+unix:///disk?socket={}", place.path("nbd").display());
    OriginSpec::Nbd { uri, connections: 1, tls: TlsFiles::default() }
}

/// Attaches a disk that may move, and that no host has had.
fn attach_moving(open: &OpenPool, spec: DiskSpec) {
    attach(open, DiskSpec { moves: Some(Moves::default()), ..spec });
}

#[test]
fn no_host_has_more_read_at_a_time_than_its_room() {
    let place = Place::new("observed");
    let (open, server, data) = owner(&place);
    let (handle, answers) = (open.handle(), Answers::default());
    join(&handle, &answers);
    attach_moving(&open, spec(1, MIBS, server_of(&place)));

    // Nothing is read while the origin is away.
    server.leaves.store(true, Ordering::Relaxed);
    for from in [HostId(2), HostId(3)] {
        (0..QUESTIONS).for_each(|question| ask(&handle, from, question));
    }
    let refused = QUESTIONS as usize - AT_A_TIME;
    wait_until("what exceeds the room is refused", || answers.lock().unwrap().len() >= 2 * refused);
    for from in [HostId(2), HostId(3)] {
        let answers = answers.lock().unwrap();
        let its: Vec<&Answer> = answers.iter().filter(|answer| answer.0 == from).collect();
        assert_eq!(its.len(), refused);
        assert!(its.iter().all(|answer| answer.2 == Err(ReadRefusal::Busy)));
    }

    server.leaves.store(false, Ordering::Relaxed);
    wait_until("the others are answered", || answers.lock().unwrap().len() == 2 * QUESTIONS as usize);
    answers.lock().unwrap().clear();
    ask(&handle, HostId(2), 7);
    wait_until("there is room again", || !answers.lock().unwrap().is_empty());
    let bytes = MOST_OBSERVED_SECTORS as usize * 512;
    assert!(answers.lock().unwrap()[0] == (HostId(2), 7, Ok(data[7 * bytes..8 * bytes].to_vec())));
}

/// A host repeats a question while the origin of one disk is away. The repetitions together take the room of one read,
/// and none of the room of another disk.
#[test]
fn reads_of_a_disk_whose_origin_is_away_do_not_hold_up_others() {
    let place = Place::new("observed-two");
    let (open, server, data) = owner(&place);
    let (handle, answers) = (open.handle(), Answers::default());
    join(&handle, &answers);
    attach_moving(&open, spec(1, MIBS, server_of(&place)));
    attach_moving(&open, spec(2, MIBS, OriginSpec::File { path: place.origin("origin", MIBS) }));
    server.leaves.store(true, Ordering::Relaxed);
    let from = HostId(2);
    for _ in 0..20 {
        ask_of(&handle, DISK, from, 7);
    }
    ask_of(&handle, OTHER, from, 8);
    wait_until("the other disk is read", || !answers.lock().unwrap().is_empty());
    let bytes = MOST_OBSERVED_SECTORS as usize * 512;
    assert!(answers.lock().unwrap()[..] == [(from, 8, Ok(data[8 * bytes..9 * bytes].to_vec()))]);
    server.leaves.store(false, Ordering::Relaxed);
    wait_until("the question is answered", || answers.lock().unwrap().len() > 1);
    ask_of(&handle, DISK, from, 9);
    wait_until("the next is answered", || answers.lock().unwrap().iter().any(|answer| answer.1 == 9));
    let of_7 = answers.lock().unwrap().iter().filter(|answer| answer.1 == 7).count();
    assert_eq!(of_7, 1, "a question is answered once, however often it was repeated");
}

/// The owner is asked for a long read in parts.
#[test]
fn a_read_of_any_length_is_answered() {
    const SECTORS: u64 = 5 * MOST_OBSERVED_SECTORS as u64 / 2;
    let place = Place::new("observed-long");
    let (open, _) = start(&place.pool(&[64], false));
    let handle = open.handle();
    let (ask, asked) = std::sync::mpsc::channel();
    let ask = Mutex::new(ask);
    join_as(&handle, 1, move |_, message| {
        if let HostMessage::Read { question, sector, sectors } = message {
            let _ = ask.lock().unwrap().send((question, sector, sectors));
        }
    });
    let moves = Some(Moves { from: Some(HostId(2)), ..Moves::default() });
    let file = OriginSpec::File { path: place.origin("origin", MIBS) };
    let disk = attach(&open, DiskSpec { moves, ..spec(1, MIBS, file) });
    let owner = handle.clone();
    std::thread::spawn(move || {
        for (question, sector, sectors) in asked {
            assert!(sectors <= MOST_OBSERVED_SECTORS);
            let answer =
                || HostMessage::ReadDone { question, data: Ok(patterns(sector, u64::from(sectors), 5)) };
            // An answer may come twice.
            owner.host_said(HostId(2), DISK, answer(), Arc::new(()));
            owner.host_said(HostId(2), DISK, answer(), Arc::new(()));
        }
    });
    let mut client = Client::new(&handle, disk, MIBS * MIB);
    assert!(client.read(100, SECTORS) == patterns(100, SECTORS, 5));
}

/// A late answer to a question of an earlier start must not be taken for the answer to a question of this start.
#[test]
fn questions_have_other_numbers_after_a_restart() {
    let place = Place::new("observed-again");
    let file = OriginSpec::File { path: place.origin("origin", MIBS) };
    let first_question = |starts: u64| {
        let pool = place.pool(&[64], false);
        let (open, _) = start(&pool);
        let handle = open.handle();
        let (asked, questions) = std::sync::mpsc::channel();
        let asked = Mutex::new(asked);
        join_as(&handle, starts, move |_, message| {
            if let HostMessage::Read { question, .. } = message {
                let _ = asked.lock().unwrap().send(question);
            }
        });
        let moves = Some(Moves { from: Some(HostId(2)), ..Moves::default() });
        let disk = attach(&open, DiskSpec { moves, ..spec(1, MIBS, file.clone()) });
        let _client = Client::new(&handle, disk, MIBS * MIB).ask_only(Command::Read, 0, 8, &[]);
        questions.recv_timeout(Duration::from_secs(60)).expect("the owner is asked")
    };
    assert_ne!(first_question(1), first_question(2));
}
