//! Hosts on loopback that speak to each other.

mod common;

use common::{Authority, NOWHERE, Running, config, copy, wait_for, withdraw};
use haversack_link::{Event, SendError, host_id};

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
