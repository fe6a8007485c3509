//! What a borrower does about a lender that refuses, takes back, is late, or sends nonsense.

use haversack_lend::{
    BLOCK_BYTES, Borrower, BorrowerSettings, LEAST_LOAN_BLOCKS, Loan, MOST_LOAN_BLOCKS, Message, Outcome,
    checksum,
};
use haversack_model::{DiskId, HostId};

const LENDER: HostId = HostId(9);
const DISK: DiskId = DiskId([3; 16]);
const ORIGIN_US: u64 = 5_000;

/// A disk that borrows, and its time.
struct Scene {
    borrower: Borrower,
    now: u64,
    next_token: u64,
}

impl Scene {
    /// Makes a disk of 4 GiB.
    fn new() -> Scene {
        let settings = BorrowerSettings { disk: DISK, disk_blocks: 1 << 20, epoch: 5, lenders: vec![LENDER] };
        Scene { borrower: Borrower::new(settings), now: 0, next_token: 0 }
    }

    fn outcomes(&mut self) -> Vec<Outcome> {
        std::iter::from_fn(|| self.borrower.poll()).collect()
    }

    /// Returns the messages that it sends.
    fn sent(&mut self) -> Vec<Message> {
        let message = |outcome| match outcome {
            Outcome::Send(_, message) => Some(message),
            Outcome::Serve { .. } | Outcome::FallBack { .. } => None,
        };
        self.outcomes().into_iter().filter_map(message).collect()
    }

    /// Reads a block from the origin twice, and returns what it sends then.
    fn read_origin(&mut self, block: u64) -> Vec<Message> {
        for _ in 0..2 {
            let ticket = self.borrower.read_begins(self.now);
            self.now += ORIGIN_US;
            let reaches = |_| true;
            self.borrower.read_ended(self.now, ticket, (block, block), &|_| 100, &reaches, |_| data());
        }
        self.sent()
    }

    fn hears(&mut self, message: Message) {
        self.borrower.heard(self.now, LENDER, message);
    }

    /// Reads a block from the origin. Returns the loan that it asks for, and its blocks.
    fn asks(&mut self, block: u64) -> Option<(Loan, u32)> {
        match self.read_origin(block).pop() {
            Some(Message::Open { loan, blocks, .. }) => Some((loan, blocks)),
            _ => None,
        }
    }

    /// Gets a loan that has the blocks from 100 on.
    fn borrow(&mut self, blocks: u64) {
        let (loan, _) = self.asks(1).expect("a lender is connected");
        self.hears(Message::Opened { loan });
        for block in 100..100 + blocks {
            assert!(matches!(self.read_origin(block)[..], [Message::Put { .. }]));
        }
    }

    /// Returns the question for a block, if the lender is asked for it.
    fn get(&mut self, block: u64) -> Option<(Loan, u64)> {
        self.next_token += 1;
        if !self.borrower.read(self.now, self.next_token, block, block, &|_| true) {
            return None;
        }
        match self.sent()[..] {
            [Message::Get { loan, question, .. }] => Some((loan, question)),
            ref other => panic!("{other:?}"),
        }
    }

    /// Ends what has waited too long.
    fn wait(&mut self) {
        self.now = self.borrower.next_wakeup().expect("a read waits");
        self.borrower.tick(self.now);
        assert!(matches!(self.outcomes()[..], [Outcome::FallBack { .. }]));
    }
}

fn data() -> Vec<u8> {
    vec![6; BLOCK_BYTES]
}

fn got(loan: Loan, block: u64, question: u64) -> Message {
    let found = Some((checksum(DISK, loan, block, &data()), data()));
    Message::Got { loan, block, question, found }
}

#[test]
fn a_lender_that_refuses_is_asked_for_less_and_then_left_alone() {
    let mut scene = Scene::new();
    let mut expected = MOST_LOAN_BLOCKS;
    loop {
        let (loan, blocks) = scene.asks(1).expect("it may be asked for less at once");
        assert_eq!(blocks, expected);
        scene.hears(Message::Ended { loan });
        if blocks == LEAST_LOAN_BLOCKS {
            break;
        }
        expected = blocks / 2;
    }
    assert_eq!(scene.asks(1), None);
    scene.now += 5_000_000;
    let (_, blocks) = scene.asks(1).expect("the pause is over");
    assert_eq!(blocks, MOST_LOAN_BLOCKS);
}

#[test]
fn a_lender_that_takes_back_what_it_has_granted_is_left_alone() {
    let mut scene = Scene::new();
    let (loan, _) = scene.asks(1).expect("a lender is connected");
    scene.hears(Message::Opened { loan });
    scene.hears(Message::Ended { loan });
    assert_eq!(scene.asks(1), None);
    scene.now += 5_000_000;
    assert!(scene.asks(1).is_some());
}

#[test]
fn a_lender_that_is_late_for_three_of_four_reads_is_left_alone() {
    let mut scene = Scene::new();
    scene.borrow(40);
    for at in 0..200 {
        let block = 100 + at % 40;
        let Some((loan, question)) = scene.get(block) else {
            assert!(at >= 60, "after {at} reads");
            return;
        };
        if at % 4 == 0 {
            scene.now += 100;
            scene.hears(got(loan, block, question));
            assert!(matches!(scene.outcomes()[..], [Outcome::Serve { .. }]));
        } else {
            scene.wait();
        }
    }
    panic!("it is still asked");
}

#[test]
fn a_hiccup_of_a_lender_makes_one_pause() {
    let mut scene = Scene::new();
    scene.borrow(40);
    for at in 0..40 {
        let block = 100 + at % 40;
        let (loan, question) = scene.get(block).expect("a lender has it");
        scene.hears(got(loan, block, question));
        scene.outcomes();
    }
    (100..132).for_each(|block| assert!(scene.get(block).is_some()));
    scene.now = scene.borrower.next_wakeup().expect("reads wait");
    scene.borrower.tick(scene.now);
    assert_eq!(scene.outcomes().len(), 32);
    assert!(scene.get(100).is_none());
    scene.now += 1_000_000;
    assert!(scene.get(100).is_some(), "the first pause takes a second");
}

#[test]
fn an_answer_to_no_question_is_ignored() {
    let mut scene = Scene::new();
    scene.borrow(1);
    let (loan, question) = scene.get(100).expect("a lender has it");
    for (block, question) in [(99, u64::MAX), (100, u64::MAX), (u64::MAX, question), (101, question + 1)] {
        scene.hears(got(loan, block, question));
        assert_eq!(scene.outcomes(), []);
    }
    scene.hears(got(loan, 100, question));
    assert!(matches!(scene.outcomes()[..], [Outcome::Serve { .. }]));
}

#[test]
fn what_is_given_back_to_a_lender_is_not_asked_for_any_more() {
    let mut scene = Scene::new();
    scene.borrow(40);
    scene.get(100).expect("a lender has it");
    scene.now += 1_000_000;
    let [at] = scene.borrower.lenders(scene.now)[..] else { panic!("one lender") };
    assert_eq!((at.host, at.loans, at.blocks, at.asked_blocks, at.hit_blocks), (LENDER, 1, 40, 1, 0));
    assert!(at.most_blocks >= 40 && at.oldest_us >= 1_000_000 && at.pause.is_none() && at.answers);
    scene.borrower.choose(scene.now, &[HostId(77), LENDER]);
    assert_eq!(scene.outcomes(), []);
    scene.borrower.choose(scene.now, &[HostId(77)]);
    let outcomes = scene.outcomes();
    assert!(
        matches!(outcomes[..], [Outcome::Send(LENDER, Message::Close { .. }), Outcome::FallBack { .. }]),
        "{outcomes:?}"
    );
    assert!(scene.get(100).is_none());
    scene.borrower.choose(scene.now, &[LENDER]);
    assert_eq!(scene.borrower.lenders(scene.now)[0].loans, 0);
    assert!(scene.asks(1).is_some(), "the next one begins at once if it is wanted again");
}

#[test]
fn a_loan_that_a_lender_ends_is_counted() {
    let mut scene = Scene::new();
    let (loan, _) = scene.asks(1).expect("a lender is connected");
    scene.hears(Message::Ended { loan });
    assert_eq!(scene.borrower.lenders(scene.now)[0].ended_loans, 0, "it was refused");
    let (loan, _) = scene.asks(1).expect("it may be asked for less");
    scene.hears(Message::Opened { loan });
    scene.hears(Message::Ended { loan });
    assert_eq!(scene.borrower.lenders(scene.now)[0].ended_loans, 1);
}

#[test]
fn what_a_lender_has_that_is_chosen_no_more_is_given_back_and_forgotten() {
    let mut scene = Scene::new();
    scene.borrow(3);
    let (loan, question) = scene.get(101).expect("the lender has it");
    let other = HostId(10);
    scene.borrower.choose(scene.now, &[other]);
    let outcomes = scene.outcomes();
    assert!(outcomes.contains(&Outcome::Send(LENDER, Message::Close { loan })), "{outcomes:?}");
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Outcome::FallBack { .. })), "{outcomes:?}");
    // What it still says changes nothing.
    scene.hears(got(loan, 101, question));
    scene.hears(Message::Ended { loan });
    assert_eq!(scene.outcomes(), []);
    let at: Vec<HostId> = scene.borrower.lenders(scene.now).iter().map(|at| at.host).collect();
    assert_eq!((at, scene.get(101)), (vec![other], None));
    // The next loan is asked of the other one.
    let ticket = scene.borrower.read_begins(scene.now);
    scene.borrower.read_ended(scene.now, ticket, (101, 101), &|_| 100, &|_| true, |_| data());
    assert!(matches!(scene.outcomes()[..], [Outcome::Send(to, Message::Open { .. })] if to == other));
    // Chosen again while a question to it is open.
    scene.borrower.choose(scene.now, &[]);
    assert_eq!(scene.borrower.lenders(scene.now), []);
    assert_eq!(scene.asks(1), None);
    scene.borrower.choose(scene.now, &[LENDER]);
    assert!(scene.asks(1).is_some());
}
