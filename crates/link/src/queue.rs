//! What waits to be sent to one host.
//!
//! Invariants
//! - Control goes before data that a guest may wait for, and that before copies sent ahead.
//! - At most [`MOST_BYTES`] wait; data leaves [`CONTROL_BYTES`] of them to control.
//! - Nothing waits while there is no connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use haversack_migrate::Message;
use haversack_ownership as ownership;

use crate::bucket::Bucket;
use crate::error::SendError;
use crate::wire::{Frame, Packet};

/// Most bytes that wait for one host.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// The part of them that only control may use.
pub(crate) const CONTROL_BYTES: usize = 1 << 20;
/// What a frame takes besides its data.
const FRAME_BYTES: usize = 128;

/// What goes before what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// Ownership, lists, questions.
    Control,
    /// Answers with data.
    Answer,
    /// Copies sent ahead: the rate limit is for them alone.
    Copy,
}

fn class(frame: &Frame) -> Class {
    match frame {
        Frame::Migrate { message: Message::Copy { .. }, .. } => Class::Copy,
        Frame::Migrate { message: Message::Fetched { .. }, .. } | Frame::Observed { .. } => Class::Answer,
        _ => Class::Control,
    }
}

/// Returns about how much memory a frame takes, never less than its bytes on the wire.
fn weight(frame: &Frame) -> usize {
    let more = match frame {
        Frame::Migrate { message, .. } => match message {
            Message::Copy { data, .. } | Message::Fetched { data, .. } => data.len(),
            Message::Listed { blocks, .. } => blocks.len() * 16,
            Message::Forget { blocks, .. } | Message::Forgotten { blocks, .. } => blocks.len() * 8,
            Message::Ownership(message) => holders(message) * 16,
            _ => 0,
        },
        Frame::Observed { result: Ok(data), .. } => data.len(),
        Frame::Expect { description, .. } => description.len(),
        Frame::Expected { error: Some(text), .. } => text.len(),
        _ => 0,
    };
    FRAME_BYTES + more
}

fn holders(message: &ownership::Message) -> usize {
    match message {
        ownership::Message::Ask { granted: Some(grant) }
        | ownership::Message::Granted(grant)
        | ownership::Message::GoTo { grant, .. } => grant.holders.len(),
        ownership::Message::Ask { granted: None } | ownership::Message::NotYet => 0,
    }
}

/// What to do next.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Send this.
    Send(Packet),
    /// Ask again after this time, or when something was queued.
    Wait(Duration),
    /// Nothing waits.
    Nothing,
}

/// The queues of one host.
#[derive(Debug)]
pub(crate) struct Queue {
    is_open: bool,
    ping: Option<u64>,
    pong: Option<u64>,
    control: VecDeque<Frame>,
    answers: VecDeque<Frame>,
    copies: VecDeque<Frame>,
    bytes: usize,
    bucket: Bucket,
}

impl Queue {
    /// Makes a closed queue.
    pub fn new(copy_bytes_per_second: u64, now: Instant) -> Queue {
        Queue {
            is_open: false,
            ping: None,
            pong: None,
            control: VecDeque::new(),
            answers: VecDeque::new(),
            copies: VecDeque::new(),
            bytes: 0,
            bucket: Bucket::new(copy_bytes_per_second, now),
        }
    }

    /// There is a connection.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// There is none any more. Returns how many frames were waiting.
    pub fn close(&mut self) -> usize {
        let dropped = self.control.len() + self.answers.len() + self.copies.len();
        self.is_open = false;
        (self.ping, self.pong, self.bytes) = (None, None, 0);
        for queue in [&mut self.control, &mut self.answers, &mut self.copies] {
            *queue = VecDeque::new();
        }
        dropped
    }

    /// Returns whether there is a connection.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the limit of copies.
    pub fn limit_copies(&mut self, bytes_per_second: u64, now: Instant) {
        self.bucket.set(bytes_per_second, now);
    }

    /// Queues a frame, which was checked.
    pub fn push(&mut self, frame: Frame) -> Result<(), SendError> {
        if !self.is_open {
            return Err(SendError::NotConnected);
        }
        let (class, weight) = (class(&frame), weight(&frame));
        let kept = if class == Class::Control { 0 } else { CONTROL_BYTES };
        if self.bytes + weight > MOST_BYTES - kept {
            return Err(SendError::Full);
        }
        self.bytes += weight;
        match class {
            Class::Control => self.control.push_back(frame),
            Class::Answer => self.answers.push_back(frame),
            Class::Copy => self.copies.push_back(frame),
        }
        Ok(())
    }

    /// Asks the peer whether it is there.
    pub fn ping(&mut self, number: u64) {
        self.ping = Some(number);
    }

    /// Answers the peer. Only its last question is answered if it asks faster than answers are sent.
    pub fn pong(&mut self, number: u64) {
        self.pong = Some(number);
    }

    /// Takes what is to be sent next.
    pub fn next(&mut self, now: Instant) -> Next {
        if let Some(number) = self.pong.take() {
            return Next::Send(Packet::Pong(number));
        }
        if let Some(number) = self.ping.take() {
            return Next::Send(Packet::Ping(number));
        }
        if let Some(frame) = self.control.pop_front().or_else(|| self.answers.pop_front()) {
            return self.send(frame);
        }
        if self.copies.is_empty() {
            return Next::Nothing;
        }
        if let Some(wait) = self.bucket.wait(now) {
            return Next::Wait(wait);
        }
        let frame = self.copies.pop_front().expect("it is not empty");
        self.bucket.take(weight(&frame));
        self.send(frame)
    }

    fn send(&mut self, frame: Frame) -> Next {
        self.bytes -= weight(&frame);
        Next::Send(Packet::Frame(frame))
    }
}
