//! What frames are for, and how much memory they take.

use haversack_lend as lend;
use haversack_migrate::Message;
use haversack_model::BLOCK_BYTES;
use haversack_ownership as ownership;

use crate::wire::Frame;

/// The memory of a frame besides its data.
pub(crate) const FRAME_BYTES: usize = 128;
/// The memory of a copy.
pub(crate) const COPY_BYTES: usize = FRAME_BYTES + BLOCK_BYTES;

/// What a frame is for; the first goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Ownership, lists, questions.
    Control,
    /// Answers with data, questions for lent blocks, and copies for replicas.
    Answer,
    /// Copies sent ahead, and blocks for a lender: the rate limit is for them alone.
    Copy,
}

/// Returns what a frame is for.
pub(crate) fn class(frame: &Frame) -> Class {
    match frame {
        Frame::Migrate { message: Message::Copy { .. }, .. }
        | Frame::Lend { message: lend::Message::Put { .. }, .. } => Class::Copy,
        // Flushes of a guest wait for the copies of a replica.
        Frame::Migrate { message: Message::Fetched { .. } | Message::ReplicaCopy { .. }, .. }
        | Frame::Observed { .. }
        // There can be many questions at a time; they leave the room of Control alone.
        | Frame::Lend { message: lend::Message::Get { .. } | lend::Message::Got { .. }, .. } => Class::Answer,
        _ => Class::Control,
    }
}

/// Returns the approximate memory of a frame, never less than its bytes on the wire.
pub(crate) fn weight(frame: &Frame) -> usize {
    let more = match frame {
        Frame::Migrate { message, .. } => match message {
            Message::Copy { data, .. }
            | Message::Fetched { data, .. }
            | Message::ReplicaCopy { data, .. } => data.len(),
            Message::ReplicaRemove { blocks, .. } => blocks.len() * 8,
            Message::Listed { blocks, .. } => blocks.len() * 16,
            Message::Forget { blocks, .. } | Message::Forgotten { blocks, .. } => blocks.len() * 8,
            Message::Ownership(message) => holders(message) * 16,
            _ => 0,
        },
        Frame::Observed { result: Ok(data), .. } => data.len(),
        Frame::Lend { message: lend::Message::Put { data, .. }, .. } => data.len(),
        Frame::Lend { message: lend::Message::Got { found: Some((_, data)), .. }, .. } => data.len(),
        Frame::Note { text, .. } => text.len(),
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

#[cfg(test)]
mod tests {
    use haversack_migrate::{Position, Question, Session};
    use haversack_model::{BlockNo, DiskId};

    use super::*;
    use crate::wire::Packet;

    const DISK: DiskId = DiskId([1; 16]);
    const SESSION: Session = Session { incarnation: 1, count: 1 };

    fn migrate(message: Message) -> Frame {
        Frame::Migrate { disk: DISK, message }
    }

    #[test]
    fn questions_for_lent_blocks_leave_the_room_of_control_alone() {
        let loan = lend::Loan { epoch: 1, number: 2 };
        let lent = |message| class(&Frame::Lend { disk: DISK, message });
        assert_eq!(lent(lend::Message::Get { loan, block: 1, question: 2 }), Class::Answer);
        assert_eq!(lent(lend::Message::Close { loan }), Class::Control);
    }

    #[test]
    fn a_frame_takes_no_less_than_its_bytes() {
        let grant = haversack_ownership::Grant {
            epoch: 1,
            holders: (0..4_096).map(haversack_model::HostId).collect(),
        };
        let question = Question { incarnation: 1, count: 1 };
        let loan = lend::Loan { epoch: 1, number: 2 };
        let lent = |message| Frame::Lend { disk: DISK, message };
        let part = haversack_migrate::Part::Held(BlockNo(0));
        let blocks = vec![(BlockNo(1), 1); 4_096];
        let next = Some(part);
        let frames = [
            migrate(Message::Copy {
                session: SESSION,
                taker: 1,
                at: Position { round: 0, next: 1 },
                block: BlockNo(1),
                mask: 0xff,
                reused: true,
                data: vec![0; BLOCK_BYTES],
            }),
            migrate(Message::Fetched { question, mask: 1, data: vec![0; BLOCK_BYTES] }),
            migrate(Message::Withdraw { session: SESSION }),
            migrate(Message::Ownership(ownership::Message::Granted(grant))),
            migrate(Message::Listed {
                question,
                knows_session: true,
                method: haversack_migrate::Method::PreCopy,
                part,
                blocks,
                next,
            }),
            migrate(Message::Forget { epoch: 1, blocks: vec![BlockNo(1); 4_096] }),
            Frame::Observed { question: 1, disk: DISK, result: Ok(vec![0; 256 << 10]) },
            Frame::Note { disk: DISK, text: vec![0; 16 << 10] },
            lent(lend::Message::Put { loan, block: 1, crc: 2, data: vec![0; BLOCK_BYTES] }),
            lent(lend::Message::Got { loan, block: 1, question: 2, found: Some((3, vec![0; BLOCK_BYTES])) }),
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            Packet::Frame(frame.clone()).encode(&mut bytes).unwrap();
            assert!(bytes.len() <= weight(&frame), "{} bytes", bytes.len());
        }
    }
}
