//! Peers with valid names that send invalid data.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::raw::{connect, encode, framed, hello, join, join_in, read_to_the_end};
use common::{NOWHERE, Running, config, copy, wait_for, withdraw};
use haversack_link::wire::{
    HEADER_BYTES, Header, MOST_PACKED_BYTES, OLDEST_VERSION, Packer, Packet, VERSION,
};
use haversack_link::{Event, HostId, Links, Receipt, Security, SendError, host_id};

/// Starts `b.test`, and a peer that is `a.test`.
fn joined() -> (Running, TcpStream) {
    let b = Running::start(&config("b.test", Security::Insecure, &[("a.test", NOWHERE)]));
    let stream = join(b.address(), "a.test", "b.test");
    b.expect(&Event::Connected);
    (b, stream)
}

/// Sends bytes, and checks that they end the connection with an error that contains these words.
fn ends_with(bytes: &[u8], words: &str) {
    let (b, mut stream) = joined();
    stream.write_all(&encode(withdraw(1))).unwrap();
    b.expect(&Event::Received(withdraw(1)));
    stream.write_all(bytes).unwrap();
    b.expect(&Event::Lost);
    b.expect_error(words);
    read_to_the_end(&mut stream);
    // The next one is accepted.
    let _stream = join(b.address(), "a.test", "b.test");
    b.expect(&Event::Connected);
}

#[test]
fn a_frame_that_is_too_long_ends_the_connection() {
    ends_with(
        &[&u32::MAX.to_le_bytes()[..], &[34, 0, 0, 0, 0, 0, 0, 0]].concat(),
        "a frame of 4294967295 bytes",
    );
}

#[test]
fn a_damaged_frame_ends_the_connection() {
    let mut bytes = encode(copy(1));
    *bytes.last_mut().unwrap() ^= 1;
    ends_with(&bytes, "checksum");
}

#[test]
fn a_frame_of_unknown_kind_ends_the_connection() {
    let (head, disk) = ([16, 0, 0, 0, 99, 0, 0, 0], [7; 16]);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &[&head[..], &disk].concat()) as u32;
    ends_with(&[&head[..], &crc.to_le_bytes(), &disk].concat(), "a frame of unknown kind 99");
}

fn pack(frames: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(Packer::default().pack(frames, &mut bytes));
    bytes
}

#[test]
fn packed_frames_are_unpacked() {
    let (b, mut stream) = joined();
    let frames: Vec<u8> = (0..100).flat_map(|order| encode(copy(order))).collect();
    stream.write_all(&pack(&frames)).unwrap();
    for order in 0..100 {
        b.expect(&Event::Received(copy(order)));
    }
}

#[test]
fn packed_frames_that_are_none_end_the_connection() {
    let mut nested = pack(&encode(copy(1)));
    nested.resize(nested.len() + 1_000, 0);
    let half = encode(copy(1));
    let body = pack(&half)[HEADER_BYTES..].to_vec();
    let with_length = |length: usize| [&(length as u32).to_le_bytes()[..], &body[4..]].concat();
    let cases = [
        (pack(&nested), "a frame of unknown kind 3"),
        (pack(&half[..half.len() - 1]), "ends in the middle"),
        (framed(3, &[1, 2]), "ends in the middle"),
        (framed(3, &[16, 0, 0, 0, 1, 2, 3]), "cannot be unpacked"),
        (framed(3, &with_length(MOST_PACKED_BYTES + 1)), "expected at most"),
        (framed(3, &[&body[..], &body[4..]].concat()), "expected one zstd frame"),
        (
            framed(3, &[&[16, 0, 0, 0], &0x184d_2a50_u32.to_le_bytes()[..], &[0; 4]].concat()),
            "expected one zstd frame",
        ),
        (framed(3, &with_length(half.len() - 1)), "cannot be unpacked"),
        (framed(3, &with_length(half.len() + 1)), &format!("expected {}", half.len() + 1)[..]),
    ];
    for (bytes, words) in cases {
        ends_with(&bytes, words);
    }
}

/// Reads frames up to a packed one, at most `most`. Returns whether there is one.
fn finds_packed(stream: &mut impl Read, most: usize) -> bool {
    (0..most).any(|_| {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let mut body = vec![0; Header::read(header).unwrap().body_bytes()];
        stream.read_exact(&mut body).unwrap();
        header[4] == 3
    })
}

#[test]
fn frames_to_a_slow_peer_are_packed_if_it_can_read_that() {
    for (version, packs) in [(VERSION, true), (OLDEST_VERSION, false)] {
        let b = Running::start(&config("b.test", Security::Insecure, &[("a.test", NOWHERE)]));
        let mut stream = join_in(version, b.address(), "a.test", "b.test");
        b.expect(&Event::Connected);
        let to = host_id("a.test");
        // More than sockets can buffer.
        let queued = (0..).take_while(|order| b.links.send(to, copy(*order)).is_ok()).count();
        assert_eq!(finds_packed(&mut stream, queued), packs);
        assert_eq!(b.state().saved_bytes > 0, packs);
    }
}

#[test]
fn a_peer_that_closes_in_the_middle_of_a_frame_is_noticed() {
    let (b, mut stream) = joined();
    let bytes = encode(copy(1));
    stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
    drop(stream);
    b.expect(&Event::Lost);
    b.expect_error("in the middle of a frame");
}

#[test]
fn a_peer_that_stops_in_the_middle_of_a_frame_is_dropped() {
    let (b, mut stream) = joined();
    let bytes = encode(copy(1));
    stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
    b.expect(&Event::Lost);
    b.expect_error("nothing was received from the peer for 5 s");
    read_to_the_end(&mut stream);
}

#[test]
fn a_silent_peer_is_dropped() {
    let (b, mut stream) = joined();
    b.expect(&Event::Lost);
    b.expect_error("nothing was received from the peer for 5 s");
    // It was asked during all that time.
    let mut ping = [0; 20];
    stream.read_exact(&mut ping).unwrap();
    assert!(matches!(Packet::decode_whole(&ping), Ok(Packet::Ping(_))));
}

#[test]
fn a_peer_that_takes_nothing_is_dropped_and_holds_up_a_queue_only() {
    let (b, stream) = joined();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pings = Vec::new();
            Packet::Ping(1).encode(&mut pings).unwrap();
            while !done.load(Ordering::Relaxed) && (&stream).write_all(&pings).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let to = host_id("a.test");
        while b.links.send(to, copy(1)) != Err(SendError::Full) {}
        assert!(b.state().queued_bytes <= 8 << 20);
        b.links.send(to, withdraw(1)).unwrap();
        assert!(b.state().dropped_frames > 0);
        b.expect(&Event::Lost);
        done.store(true, Ordering::Relaxed);
    });
    b.expect_error("the peer read nothing for 5 s");
    assert_eq!(b.state().queued_bytes, 0);
}

#[test]
fn a_flood_of_frames_holds_up_no_other_host() {
    let hosts = [("a.test", NOWHERE), ("aa.test", NOWHERE)];
    let b = Running::start(&config("b.test", Security::Insecure, &hosts));
    let stream = join(b.address(), "a.test", "b.test");
    b.expect(&Event::Connected);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = Vec::new();
            for n in 0..1_000 {
                Packet::Ping(n).encode(&mut batch).unwrap();
                batch.extend_from_slice(&encode(withdraw(n)));
            }
            while !done.load(Ordering::Relaxed) {
                (&stream).write_all(&batch).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
        // Its answers are read, or it would be dropped.
        scope.spawn(|| read_to_the_end(&mut &stream));
        let address = b.address().to_string();
        let other = Running::start(&config("aa.test", Security::Insecure, &[("b.test", &address)]));
        other.expect(&Event::Connected);
        for n in 0..10 {
            other.links.send(b.links.id(), copy(n)).unwrap();
            let sent = (host_id("aa.test"), Event::Received(copy(n)));
            while b.next() != sent {}
        }
        done.store(true, Ordering::Relaxed);
    });
    let states = b.links.state();
    let flood = states.iter().find(|state| state.name == "a.test").unwrap();
    assert!(flood.received_frames > 1_000, "{}", flood.received_frames);
}

/// Starts `b.test` without handling any event: the receiver gets each event with the receipt that keeps it unhandled.
fn idle(hosts: &[(&str, &str)]) -> (Links, Receiver<(HostId, Event, Receipt)>) {
    let (report, events) = channel();
    let links = Links::start(&config("b.test", Security::Insecure, hosts), move |host, event, receipt| {
        let _ = report.send((host, event, receipt));
    });
    (links.unwrap(), events)
}

/// How many copies are received and not handled at most, each with its memory besides the data.
const MOST_COPIES: u64 = (1 << 20) / 4_224;

#[test]
fn a_flood_that_is_not_handled_stays_in_the_socket() {
    let (b, events) = idle(&[("a.test", NOWHERE), ("aa.test", NOWHERE)]);
    let (address, stream) = (b.addresses()[0], join(b.addresses()[0], "a.test", "b.test"));
    let received = || b.state().iter().find(|host| host.name == "a.test").unwrap().received_frames;
    // The one that waits for room has been received, too.
    let most = MOST_COPIES + 1;
    let done = AtomicBool::new(false);
    let most_received = std::thread::scope(|scope| {
        scope.spawn(|| {
            let batch: Vec<u8> = (0..100).flat_map(|order| encode(copy(order))).collect();
            while !done.load(Ordering::Relaxed) {
                (&stream).write_all(&batch).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| read_to_the_end(&mut &stream));
        wait_for(|| (received() >= most).then_some(()));
        // Frames of another host arrive on the same thread. If the limit did not hold, more of the flood would arrive
        // with each of them.
        let aa = Running::start(&config("aa.test", Security::Insecure, &[("b.test", &address.to_string())]));
        aa.expect(&Event::Connected);
        let mut waiting = Vec::new();
        for n in 0..100 {
            aa.links.send(b.id(), withdraw(n)).unwrap();
            loop {
                let (host, event, receipt) = events.recv().unwrap();
                if host == aa.links.id() && event == Event::Received(withdraw(n)) {
                    break;
                }
                waiting.push(receipt);
            }
        }
        let most_received = received();
        // When the waiting frames have been handled, the rest of the flood arrives.
        drop(waiting);
        for _ in 0..10 * most {
            events.recv().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        while events.recv().unwrap().1 != Event::Lost {}
        most_received
    });
    assert_eq!(most_received, most);
}

#[test]
fn control_has_room_of_its_own_behind_the_copies_before_it() {
    let (b, events) = idle(&[("a.test", NOWHERE)]);
    let mut stream = join(b.addresses()[0], "a.test", "b.test");
    // More than what copies leave of their own room.
    const CONTROL: u64 = 16;
    let copies = (0..=MOST_COPIES).map(copy);
    let frames: Vec<u8> = copies.chain((0..CONTROL).map(withdraw)).flat_map(encode).collect();
    stream.write_all(&frames).unwrap();
    let first = events.iter().take(MOST_COPIES as usize + 1);
    let mut first: Vec<(HostId, Event, Receipt)> = first.collect();
    wait_for(|| (b.state()[0].received_frames > MOST_COPIES).then_some(()));
    assert!(events.try_recv().is_err(), "one more copy than there is room for");
    drop(first.pop());
    let next: Vec<(HostId, Event, Receipt)> = events.iter().take(1 + CONTROL as usize).collect();
    assert_eq!(next[0].1, Event::Received(copy(MOST_COPIES)));
    assert_eq!(next.last().unwrap().1, Event::Received(withdraw(CONTROL - 1)));
}

#[test]
fn a_new_connection_of_a_peer_replaces_the_old_one() {
    let (b, mut first) = joined();
    let mut second = join(b.address(), "a.test", "b.test");
    b.expect(&Event::Lost);
    b.expect(&Event::Connected);
    b.expect_error("connected again");
    read_to_the_end(&mut first);
    second.write_all(&encode(withdraw(3))).unwrap();
    b.expect(&Event::Received(withdraw(3)));
    assert_eq!(b.state().connections, 2);
}

#[test]
fn connections_that_say_nothing_take_64_places_for_a_while() {
    let hosts = [("a.test", NOWHERE), ("aa.test", NOWHERE)];
    let b = Running::start(&config("b.test", Security::Insecure, &hosts));
    let mut connected = join(b.address(), "aa.test", "b.test");
    b.expect(&Event::Connected);
    let silent: Vec<TcpStream> = (0..64).map(|_| connect(b.address())).collect();
    let mut one_more = connect(b.address());
    let _ = one_more.write_all(&hello(VERSION, "a.test", "b.test"));
    b.expect_refusal("64 connections are in their handshake already");
    read_to_the_end(&mut one_more);
    connected.write_all(&encode(copy(1))).unwrap();
    b.expect(&Event::Received(copy(1)));
    b.expect_refusal("no TLS handshake and greeting within 5 s");
    wait_for(|| (b.links.refused().count >= 65).then_some(()));
    let _welcome = join(b.address(), "a.test", "b.test");
    wait_for(|| {
        Some(b.next()).filter(|(host, event)| *host == host_id("a.test") && *event == Event::Connected)
    });
    drop(silent);
}
