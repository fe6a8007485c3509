//! When a driver in simulated time checks the core's timers: once a millisecond while there is traffic, and otherwise
//! when they are due.

/// Time between two checks while there is traffic, in nanoseconds.
const EVERY_NS: u64 = 1_000_000;

/// See the module. All times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    next_ns: u64,
}

impl Looks {
    /// Checks begin a millisecond from now.
    pub fn new(now_ns: u64) -> Self {
        Looks { next_ns: now_ns + EVERY_NS }
    }

    /// Returns when timers are to be checked next.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Something has happened: they are checked within a millisecond.
    pub fn soon(&mut self, now_ns: u64) {
        self.next_ns = self.next_ns.min(now_ns + EVERY_NS);
    }

    /// They were checked now; the next one is due then, if there is any.
    pub fn looked(&mut self, now_ns: u64, due_ns: Option<u64>) {
        self.next_ns = due_ns.unwrap_or(u64::MAX).max(now_ns + EVERY_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_checked_when_due_and_soon_after_anything_happens() {
        let mut looks = Looks::new(0);
        looks.looked(1_000_000, Some(1_200_000));
        assert_eq!(looks.next_ns(), 2_000_000, "not twice within a millisecond");
        looks.looked(2_000_000, Some(9_500_000));
        assert_eq!(looks.next_ns(), 9_500_000);
        looks.soon(3_000_001);
        looks.soon(3_700_000);
        assert_eq!(looks.next_ns(), 4_000_001);
        looks.looked(4_000_001, None);
        assert_eq!(looks.next_ns(), u64::MAX);
    }
}
