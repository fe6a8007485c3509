//! Reads for other hosts, whose guests have not come yet, take a bounded amount of memory.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::departing::Departing;
use common::*;
use haversack_engine::{
    DiskSpec, HostMessage, HostSettings, MOST_OBSERVED_SECTORS, Moves, OriginSpec, PoolHandle, ReadRefusal,
    TlsFiles,
};
use haversack_migrate::Method;
use haversack_model::{DiskId, HostId};

const MIBS: u64 = 16;
const DISK: DiskId = DiskId([1; 16]);
const QUESTIONS: u64 = 40;
/// As many of the longest reads as fit 1 MiB.
const AT_A_TIME: usize = 4;

type Answer = (HostId, u64, Result<Vec<u8>, ReadRefusal>);
type Answers = Arc<Mutex<Vec<Answer>>>;

/// Makes this pool one of a host whose answers are collected.
fn join(handle: &PoolHandle, answers: &Answers) {
    let answers = answers.clone();
    let send = move |to, _, message| {
        if let HostMessage::ReadDone { question, data } = message {
            answers.lock().unwrap().push((to, question, data));
        }
    };
    let host = HostSettings {
        me: HostId(1),
        incarnation: 1 << 32,
        method: Method::PreCopy,
        fetched_a_period: None,
        send: Arc::new(send),
        room: Arc::new(|_| usize::MAX),
    };
    handle.join_hosts(&host).unwrap();
}

fn ask(handle: &PoolHandle, from: HostId, question: u64) {
    let sector = question * u64::from(MOST_OBSERVED_SECTORS) % (MIBS * MIB / 512);
    let read = HostMessage::Read { question, sector, sectors: MOST_OBSERVED_SECTORS };
    handle.host_said(from, DISK, read, Arc::new(()));
}

#[test]
fn no_host_has_more_read_at_a_time_than_its_room() {
    let place = Place::new("observed");
    let data = patterns(0, MIBS * MIB / 512, 0);
    let server = Departing::serve(data.clone(), &place.path("nbd"));
    let (open, _) = start(&place.pool(&[64], false));
    let (handle, answers) = (open.handle(), Answers::default());
    join(&handle, &answers);
    let uri = format!("nbd+unix:///disk?socket={}", place.path("nbd").display());
    let origin = OriginSpec::Nbd { uri, connections: 1, tls: TlsFiles::default() };
    let spec = DiskSpec { moves: Some(Moves { from: None }), ..spec(1, MIBS, origin) };
    let (_, job) = handle.attach(spec).unwrap();
    job.wait().unwrap();

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
