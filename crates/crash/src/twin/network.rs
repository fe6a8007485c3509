//! The network between the hosts: messages on their way.

use haversack_migrate::Message;
use haversack_model::Micros;
use haversack_model::random::Random;

/// A message on its way.
pub struct Parcel {
    /// When it arrives.
    pub at: Micros,
    /// The host that it is for.
    pub to: usize,
    /// What it says.
    pub message: Message,
}

/// See the module documentation.
#[derive(Default)]
pub struct Network {
    on_their_way: Vec<Parcel>,
    /// Nothing gets through until then.
    pub cut_until: Micros,
}

impl Network {
    /// Sends a message: it may be lost, be late, arrive a second time much later, and overtake others.
    pub fn send(
        &mut self,
        now: Micros,
        to: usize,
        message: &Message,
        delay_us: u64,
        lossy: [u64; 2],
        rng: &mut Random,
    ) {
        if now < self.cut_until || rng.percent(lossy[0]) {
            return;
        }
        if rng.percent(lossy[1]) {
            let late = rng.pick(&[1, 1, 10, 100]);
            self.add(now + rng.range(1, delay_us * late), to, message);
            if rng.one_in(3) {
                return;
            }
        }
        self.add(now + rng.range(1, delay_us), to, message);
    }

    fn add(&mut self, at: Micros, to: usize, message: &Message) {
        self.on_their_way.push(Parcel { at, to, message: message.clone() });
    }

    /// Returns when the next message arrives.
    pub fn next_us(&self) -> Option<Micros> {
        self.on_their_way.iter().map(|parcel| parcel.at).min()
    }

    /// Takes the message that arrives next.
    pub fn take(&mut self) -> Option<Parcel> {
        let next = self.next_us()?;
        let place = self.on_their_way.iter().position(|parcel| parcel.at == next)?;
        Some(self.on_their_way.swap_remove(place))
    }
}
