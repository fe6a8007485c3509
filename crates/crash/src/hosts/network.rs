//! The network between the hosts: messages on their way.

use haversack_migrate::Message;
use haversack_model::Micros;
use haversack_model::random::Random;

/// A message.
#[derive(Clone)]
pub struct Letter {
    /// The host that sends it.
    pub from: usize,
    /// The host that it is for.
    pub to: usize,
    /// The disk that it is about.
    pub of: usize,
    /// What it says.
    pub message: Message,
}

/// A message on its way, and when it arrives.
struct Parcel {
    at: Micros,
    letter: Letter,
}

/// See the module documentation.
pub struct Network {
    on_their_way: Vec<Parcel>,
    /// Until when nothing gets through, by sender and receiver.
    cut_until: Vec<Vec<Micros>>,
}

impl Network {
    /// Makes the network of some hosts.
    pub fn new(hosts: usize) -> Network {
        Network { on_their_way: Vec::new(), cut_until: vec![vec![0; hosts]; hosts] }
    }

    /// Cuts two hosts off from each other.
    pub fn cut(&mut self, a: usize, b: usize, until: Micros) {
        self.cut_until[a][b] = until;
        self.cut_until[b][a] = until;
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        self.cut_until.iter_mut().for_each(|from| from.fill(0));
    }

    /// Whether two hosts are cut off from each other.
    pub fn is_cut(&self, a: usize, b: usize, now: Micros) -> bool {
        now < self.cut_until[a][b]
    }

    /// Sends a message: it may be lost, be late, arrive a second time much later, and overtake others.
    pub fn send(&mut self, now: Micros, letter: &Letter, delay_us: u64, lossy: [u64; 2], rng: &mut Random) {
        if self.is_cut(letter.from, letter.to, now) || rng.percent(lossy[0]) {
            return;
        }
        if rng.percent(lossy[1]) {
            let late = rng.pick(&[1, 1, 10, 100]);
            self.add(now + rng.range(1, delay_us * late), letter);
            if rng.one_in(3) {
                return;
            }
        }
        self.add(now + rng.range(1, delay_us), letter);
    }

    fn add(&mut self, at: Micros, letter: &Letter) {
        self.on_their_way.push(Parcel { at, letter: letter.clone() });
    }

    /// Returns when the next message arrives.
    pub fn next_us(&self) -> Option<Micros> {
        self.on_their_way.iter().map(|parcel| parcel.at).min()
    }

    /// Takes the message that arrives next.
    pub fn take(&mut self) -> Option<Letter> {
        let next = self.next_us()?;
        let place = self.on_their_way.iter().position(|parcel| parcel.at == next)?;
        Some(self.on_their_way.swap_remove(place).letter)
    }
}
