//! The link between two hosts: in each direction one frame is sent at a time, control messages first, then
//! answers, then copies sent ahead, as in `haversack-link`. A frame arrives half a round trip after its last
//! byte was sent. Frames are those of the daemon, without the overhead of TCP and TLS.

use std::collections::VecDeque;
use std::str::FromStr;

use haversack_link::wire::{Frame, Packet, WireError};
use haversack_migrate::Message;
use haversack_model::{BLOCK_BYTES, DiskId};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes of waiting frames with data for a host.
const MOST_WAITING_BYTES: u64 = 7 << 20;
/// The maximum size of a copy.
const COPY_BYTES: u64 = 128 + BLOCK_BYTES as u64;

/// Speed of a link in bits per second.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Speed(pub f64);

const UNITS: [(&str, f64); 3] = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)];

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Speed, String> {
        let wrong = || {
            format!(
                "'{text}' is no speed of a link: expected a number and Gbit, Mbit or kbit, such as 10Gbit"
            )
        };
        let trimmed = text.trim().trim_end_matches("/s");
        let of_unit = |(unit, bits): &(&str, f64)| Some((trimmed.strip_suffix(unit)?, *bits));
        let (number, bits) = UNITS.iter().find_map(of_unit).ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        if number.is_finite() && number * bits >= 1.0 { Ok(Speed(number * bits)) } else { Err(wrong()) }
    }
}

impl TryFrom<String> for Speed {
    type Error = String;

    fn try_from(text: String) -> Result<Speed, String> {
        text.parse()
    }
}

impl From<Speed> for String {
    fn from(speed: Speed) -> String {
        speed.to_string()
    }
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let largest = UNITS.iter().find(|(_, bits)| self.0 >= *bits).unwrap_or(&UNITS[2]);
        write!(f, "{}{}", self.0 / largest.1, largest.0)
    }
}

/// The properties of a link.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LinkModel {
    /// Speed of each direction.
    pub speed: Speed,
    /// Round-trip time, without the transfer.
    pub round_trip_us: f64,
}

impl Default for LinkModel {
    fn default() -> Self {
        LinkModel { speed: Speed(1e10), round_trip_us: 100.0 }
    }
}

/// Bytes on the wire, of frames as docs/host-protocol.md describes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Traffic {
    /// Questions, lists, ownership.
    pub control_bytes: u64,
    /// Requested blocks.
    pub answer_bytes: u64,
    /// Copies sent ahead.
    pub copy_bytes: u64,
}

impl Traffic {
    /// The total.
    pub fn bytes(&self) -> u64 {
        self.control_bytes + self.answer_bytes + self.copy_bytes
    }

    /// Adds other bytes.
    #[must_use]
    pub fn plus(self, other: Traffic) -> Traffic {
        Traffic {
            control_bytes: self.control_bytes + other.control_bytes,
            answer_bytes: self.answer_bytes + other.answer_bytes,
            copy_bytes: self.copy_bytes + other.copy_bytes,
        }
    }
}

/// The priorities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Control,
    Answer,
    Copy,
}

fn class(message: &Message) -> Class {
    match message {
        Message::Copy { .. } => Class::Copy,
        Message::Fetched { .. } => Class::Answer,
        _ => Class::Control,
    }
}

/// Bytes of a message's frame.
fn frame_bytes(parcel: &Parcel) -> Result<u64, WireError> {
    let mut bytes = Vec::new();
    let frame = Frame::Migrate { disk: parcel.disk, message: parcel.message.clone() };
    Packet::Frame(frame).encode(&mut bytes)?;
    Ok(bytes.len() as u64)
}

/// A message about a disk.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// The disk.
    pub disk: DiskId,
    /// The message.
    pub message: Message,
}

/// A frame that is being sent.
#[derive(Clone, Debug)]
pub struct Departure {
    /// When the next one can be sent.
    pub free_ns: u64,
    /// When it arrives.
    pub arrives_ns: u64,
    /// What it carries.
    pub parcel: Parcel,
}

/// One direction of the link. See the module.
pub struct Direction {
    model: LinkModel,
    queues: [VecDeque<(u64, Parcel)>; 3],
    waiting_bytes: u64,
    is_busy: bool,
    /// What was sent so far.
    pub sent: Traffic,
}

impl Direction {
    /// An idle direction.
    pub fn new(model: LinkModel) -> Direction {
        Direction {
            model,
            queues: Default::default(),
            waiting_bytes: 0,
            is_busy: false,
            sent: Traffic::default(),
        }
    }

    /// Queues a frame to be sent.
    ///
    /// # Panics
    /// If the daemon would refuse to send it.
    pub fn push(&mut self, parcel: Parcel) {
        let bytes = frame_bytes(&parcel).expect("what the protocol says can be sent");
        self.waiting_bytes += bytes;
        self.queues[class(&parcel.message) as usize].push_back((bytes, parcel));
    }

    /// How many copies may be read and sent now; more would have to wait.
    pub fn copy_room(&self) -> usize {
        (MOST_WAITING_BYTES.saturating_sub(self.waiting_bytes) / COPY_BYTES) as usize
    }

    /// Sends the next frame, if the link is free and one waits.
    pub fn depart(&mut self, now_ns: u64) -> Option<Departure> {
        if self.is_busy {
            return None;
        }
        let (bytes, parcel) = self.queues.iter_mut().find_map(VecDeque::pop_front)?;
        self.is_busy = true;
        self.waiting_bytes -= bytes;
        let sent = match class(&parcel.message) {
            Class::Control => &mut self.sent.control_bytes,
            Class::Answer => &mut self.sent.answer_bytes,
            Class::Copy => &mut self.sent.copy_bytes,
        };
        *sent += bytes;
        let free_ns = now_ns + (bytes as f64 * 8.0 / self.model.speed.0 * 1e9).ceil() as u64;
        let arrives_ns = free_ns + (self.model.round_trip_us * 500.0) as u64;
        Some(Departure { free_ns, arrives_ns, parcel })
    }

    /// Called when the last frame has been sent.
    pub fn departed(&mut self) {
        self.is_busy = false;
    }
}

#[cfg(test)]
mod tests {
    use haversack_migrate::{Position, Question, Session};
    use haversack_model::BlockNo;

    use super::*;

    const SESSION: Session = Session { incarnation: 1, count: 1 };
    const QUESTION: Question = Question { incarnation: 1, count: 1 };
    const POSITION: Position = Position { round: 1, next: 1 };

    fn copy() -> Message {
        let data = vec![0; BLOCK_BYTES];
        Message::Copy {
            session: SESSION,
            taker: 1,
            at: POSITION,
            block: BlockNo(1),
            mask: 0xff,
            reused: true,
            data,
        }
    }

    fn fetched() -> Message {
        Message::Fetched { question: QUESTION, mask: 0xff, data: vec![0; BLOCK_BYTES] }
    }

    fn withdraw() -> Message {
        Message::Withdraw { session: SESSION }
    }

    fn direction(speed: &str, round_trip_us: f64) -> Direction {
        Direction::new(LinkModel { speed: speed.parse().unwrap(), round_trip_us })
    }

    fn parcel(message: Message) -> Parcel {
        Parcel { disk: DiskId([1; 16]), message }
    }

    fn push(direction: &mut Direction, message: Message) {
        direction.push(parcel(message));
    }

    fn bytes_of(message: Message) -> u64 {
        frame_bytes(&parcel(message)).unwrap()
    }

    #[test]
    fn speeds_are_read_and_written() {
        for text in ["10Gbit", "1.5Gbit", "100Mbit", "64kbit"] {
            assert_eq!(text.parse::<Speed>().unwrap().to_string(), text);
        }
        assert_eq!("1 Gbit/s".parse::<Speed>().unwrap(), Speed(1e9));
        for text in ["", "10", "Gbit", "-1Gbit", "0Gbit", "nanGbit", "10GB"] {
            let error = text.parse::<Speed>().unwrap_err();
            assert!(error.contains("10Gbit"), "{error}");
        }
    }

    #[test]
    fn frames_go_one_after_the_other_and_arrive_later() {
        // A byte a nanosecond.
        let mut direction = direction("8Gbit", 100.0);
        push(&mut direction, withdraw());
        push(&mut direction, withdraw());
        let bytes = bytes_of(withdraw());
        let first = direction.depart(1_000).unwrap();
        assert_eq!((first.free_ns, first.arrives_ns), (1_000 + bytes, 51_000 + bytes));
        assert!(direction.depart(1_010).is_none(), "the first one is on its way");
        direction.departed();
        assert_eq!(direction.depart(first.free_ns).unwrap().free_ns, first.free_ns + bytes);
        direction.departed();
        assert!(direction.depart(9_000).is_none());
        assert_eq!(direction.sent, Traffic { control_bytes: 2 * bytes, ..Traffic::default() });
    }

    #[test]
    fn control_goes_first_and_copies_last() {
        let mut direction = direction("10Gbit", 0.0);
        for message in [copy(), fetched(), withdraw()] {
            push(&mut direction, message);
        }
        for expected in [withdraw(), fetched(), copy()] {
            assert_eq!(direction.depart(0).unwrap().parcel.message, expected);
            direction.departed();
        }
        let sent = direction.sent;
        assert!(sent.copy_bytes > 4096 && sent.answer_bytes > 4096 && sent.control_bytes < 100);
        assert_eq!(sent.bytes(), [copy(), fetched(), withdraw()].map(bytes_of).iter().sum::<u64>());
    }

    #[test]
    fn copies_that_would_wait_find_no_room() {
        let mut direction = direction("1Mbit", 0.0);
        let mut waiting = 0;
        while direction.copy_room() > 0 {
            push(&mut direction, copy());
            waiting += 1;
        }
        assert!((1_700..1_800).contains(&waiting), "{waiting} copies of 7 MiB");
        for _ in 0..2 {
            assert!(direction.depart(0).is_some());
            direction.departed();
        }
        assert!(direction.copy_room() > 0);
    }
}
