//! The frames that wait to be sent to one host.
//!
//! Invariants
//! - Control precedes data that a guest may wait for, which precedes copies sent ahead.
//! - At most [`MOST_BYTES`] wait; data leaves [`CONTROL_BYTES`] of them to control.
//! - Nothing waits while there is no connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::class::{COPY_BYTES, Class, class, weight};
use crate::error::SendError;
use crate::wire::{Frame, Packet};

/// The most bytes that wait for one host.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// The part of them that only control may use.
pub(crate) const CONTROL_BYTES: usize = 1 << 20;

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

    /// Opens it: there is a connection.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// Closes it: there is no connection now. Returns how many frames were waiting.
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

    /// Returns how many more copies can be queued that do not have to wait for the limit.
    pub fn copy_room(&mut self, now: Instant) -> usize {
        if !self.is_open {
            return 0;
        }
        let fit = (MOST_BYTES - CONTROL_BYTES).saturating_sub(self.bytes) / COPY_BYTES;
        let pass = self.bucket.frames(COPY_BYTES, now);
        pass.map_or(fit, |frames| fit.min(frames.saturating_sub(self.copies.len())))
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

    /// Asks the peer whether it is alive.
    pub fn ping(&mut self, number: u64) {
        self.ping = Some(number);
    }

    /// Answers the peer. Only its last question is answered if it asks faster than answers are sent.
    pub fn pong(&mut self, number: u64) {
        self.pong = Some(number);
    }

    /// Takes the next frame to send.
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

    /// Records how many bytes compression has saved for copies that were taken, so that the limit does not count them.
    pub fn saved(&mut self, copy_bytes: usize) {
        self.bucket.give_back(copy_bytes);
    }

    fn send(&mut self, frame: Frame) -> Next {
        self.bytes -= weight(&frame);
        Next::Send(Packet::Frame(frame))
    }
}

#[cfg(test)]
mod tests {
    use haversack_migrate::{Message, Position, Question, Session};
    use haversack_model::{BLOCK_BYTES, BlockNo, DiskId};

    use super::*;
    use crate::class::FRAME_BYTES;

    const DISK: DiskId = DiskId([1; 16]);
    const SESSION: Session = Session { incarnation: 1, count: 1 };

    fn migrate(message: Message) -> Frame {
        Frame::Migrate { disk: DISK, message }
    }

    fn copy(order: u64) -> Frame {
        migrate(Message::Copy {
            session: SESSION,
            taker: 1,
            at: Position { round: 0, next: order },
            block: BlockNo(order),
            mask: 0xff,
            reused: true,
            data: vec![0; BLOCK_BYTES],
        })
    }

    fn control() -> Frame {
        migrate(Message::Withdraw { session: SESSION })
    }

    fn answer() -> Frame {
        let question = Question { incarnation: 1, count: 1 };
        migrate(Message::Fetched { question, mask: 1, data: vec![0; BLOCK_BYTES] })
    }

    fn opened(copy_bytes_per_second: u64, now: Instant) -> Queue {
        let mut queue = Queue::new(copy_bytes_per_second, now);
        queue.open();
        queue
    }

    fn send(frame: Frame) -> Next {
        Next::Send(Packet::Frame(frame))
    }

    #[test]
    fn control_goes_first_and_copies_last() {
        let now = Instant::now();
        let mut queue = opened(0, now);
        for frame in [copy(1), copy(2), answer(), control()] {
            queue.push(frame).unwrap();
        }
        queue.ping(7);
        queue.pong(8);
        let packets = [Packet::Pong(8), Packet::Ping(7)].map(Next::Send);
        let frames = [control(), answer(), copy(1), copy(2)].map(send);
        for next in packets.into_iter().chain(frames) {
            assert_eq!(queue.next(now), next);
        }
        assert_eq!((queue.next(now), queue.bytes()), (Next::Nothing, 0));
    }

    #[test]
    fn a_limit_of_copies_holds_up_nothing_else() {
        let now = Instant::now();
        let mut queue = opened(COPY_BYTES as u64, now);
        queue.push(copy(1)).unwrap();
        queue.push(copy(2)).unwrap();
        assert_eq!(queue.next(now), send(copy(1)));
        let Next::Wait(wait) = queue.next(now) else { panic!("the limit does not hold") };
        assert!(wait > Duration::from_millis(900), "{wait:?}");
        queue.push(answer()).unwrap();
        assert_eq!(queue.next(now), send(answer()));
        assert_eq!(queue.next(now + wait), send(copy(2)));
    }

    #[test]
    fn a_queue_full_of_data_has_room_for_control() {
        let now = Instant::now();
        let mut queue = opened(0, now);
        let room = queue.copy_room(now);
        for order in 0..room as u64 {
            queue.push(copy(order)).unwrap();
        }
        assert_eq!(queue.copy_room(now), 0);
        assert_eq!(queue.push(copy(0)), Err(SendError::Full));
        assert_eq!(queue.push(answer()), Err(SendError::Full));
        let control_frames = (0..).take_while(|_| queue.push(control()).is_ok()).count();
        assert!(control_frames >= CONTROL_BYTES / FRAME_BYTES, "{control_frames}");
        assert!(queue.bytes() <= MOST_BYTES);
        assert_eq!(queue.close(), room + control_frames);
        assert_eq!((queue.bytes(), queue.copy_room(now)), (0, 0));
    }

    #[test]
    fn room_for_copies_follows_the_limit() {
        let now = Instant::now();
        let mut queue = opened(200 * COPY_BYTES as u64, now);
        assert_eq!(queue.copy_room(now), 10, "a twentieth of a second's");
        queue.push(copy(0)).unwrap();
        assert_eq!(queue.copy_room(now), 9);
        assert_eq!(queue.next(now), send(copy(0)));
        assert_eq!(queue.copy_room(now), 9);
    }
}
