//! Hosts on loopback that communicate with each other.

mod common;

use common::{Authority, NOWHERE, Running, config, copy, wait_for, withdraw};
use haversack_link::{Event, Security, SendError, host_id};

/// Starts `a.test` and `b.test`, and waits until they are connected.
fn pair(authority: &Authority) -> (Running, Running) {
    let b = Running::start(&config("b.test", authority.security("b.test"), &[("a.test", NOWHERE)]));
    let address = b.address().to_string();
    let a = Running::start(&config("a.test", authority.security("a.test"), &[("b.test", &address)]));
    a.expect(&Event::Connected);
    b.expect(&Event::Connected);
    (a, b)
}

#[test]
fn frames_travel_both_ways() {
    let (a, b) = pair(&Authority::new());
    for n in 0..100 {
        a.links.send(b.links.id(), withdraw(n)).unwrap();
        b.links.send(a.links.id(), copy(n)).unwrap();
    }
    for n in 0..100 {
        assert_eq!(b.next(), (a.links.id(), Event::Received(withdraw(n))));
        assert_eq!(a.next(), (b.links.id(), Event::Received(copy(n))));
    }
    let state = wait_for(|| {
        Some(a.state()).filter(|state| state.round_trip_us.is_some() && state.sent_frames == 100)
    });
    assert_eq!((state.name.as_str(), state.id, state.connects), ("b.test", host_id("b.test"), true));
    assert_eq!((state.received_frames, state.dropped_frames, state.last_error), (100, 0, None));
    assert!(state.connected_since.is_some());
    assert!(!b.state().connects);
}

#[test]
fn a_host_that_was_started_again_is_connected_again() {
    let authority = Authority::new();
    let (a, b) = pair(&authority);
    let address = b.address();
    drop(b);
    a.expect(&Event::Lost);
    assert_eq!(a.links.send(host_id("b.test"), withdraw(1)), Err(SendError::NotConnected));
    a.expect_error("onnect");
    let mut again = config("b.test", authority.security("b.test"), &[("a.test", NOWHERE)]);
    again.listen = vec![address];
    let b = Running::start(&again);
    a.expect(&Event::Connected);
    b.expect(&Event::Connected);
    a.links.send(b.links.id(), withdraw(2)).unwrap();
    b.expect(&Event::Received(withdraw(2)));
    assert_eq!((a.state().connections, a.state().dropped_frames), (2, 1));
}

#[test]
fn a_limit_of_copies_can_be_changed_while_they_wait() {
    let (a, b) = pair(&Authority::new());
    let (sender, to) = (a.links.sender(), b.links.id());
    assert!(sender.copy_room(to) > 1_000);
    // The first copy uses the allowance of an hour.
    assert!(sender.limit_copies(to, 1));
    for n in 0..3 {
        sender.send(to, copy(n)).unwrap();
    }
    b.expect(&Event::Received(copy(0)));
    assert_eq!(sender.copy_room(to), 0);
    sender.send(to, withdraw(7)).unwrap();
    b.expect(&Event::Received(withdraw(7)));
    sender.limit_copies(to, 0);
    b.expect(&Event::Received(copy(1)));
    b.expect(&Event::Received(copy(2)));
    assert!(!sender.limit_copies(a.links.id(), 1), "a host is none of its own peers");
}

#[test]
fn what_is_sent_to_nobody_is_an_error() {
    let a = Running::start(&config("a.test", Security::Insecure, &[("b.test", NOWHERE)]));
    let sender = a.links.sender();
    assert_eq!(sender.send(host_id("c.test"), withdraw(1)), Err(SendError::UnknownHost(host_id("c.test"))));
    assert_eq!(sender.send(host_id("b.test"), withdraw(1)), Err(SendError::NotConnected));
    a.expect_error("cannot connect: Connection refused");
    drop(a);
    assert_eq!(sender.send(host_id("b.test"), withdraw(1)), Err(SendError::NotConnected));
}

#[test]
fn nothing_is_sent_once_links_have_ended() {
    let (a, b) = pair(&Authority::new());
    let (sender, to) = (a.links.sender(), b.links.id());
    assert!(sender.is_connected(to));
    drop(a);
    assert!(!sender.is_connected(to));
    assert_eq!(sender.send(to, withdraw(1)), Err(SendError::NotConnected));
    b.expect(&Event::Lost);
    b.expect_error("the peer closed the connection");
}

#[test]
fn a_host_speaks_to_several() {
    let authority = Authority::new();
    let hosts = [("a.test", NOWHERE), ("b.test", NOWHERE)];
    let c = Running::start(&config("c.test", authority.security("c.test"), &hosts));
    let address = c.address().to_string();
    let others = ["a.test", "b.test"]
        .map(|name| Running::start(&config(name, authority.security(name), &[("c.test", &address)])));
    for other in &others {
        other.expect(&Event::Connected);
        c.expect(&Event::Connected);
    }
    for (n, other) in (0..).zip(&others) {
        c.links.send(other.links.id(), withdraw(n)).unwrap();
        other.expect(&Event::Received(withdraw(n)));
        other.links.send(c.links.id(), copy(n)).unwrap();
        assert_eq!(c.next(), (other.links.id(), Event::Received(copy(n))));
    }
}
