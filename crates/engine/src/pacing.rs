//! The order of I/Os on a cache device while a light disk is active.
//!
//! A device works on all its I/Os at the same time, so a short read beside many others takes as long as all of them
//! together. One that reads 4 KiB in 73 us at the 99th percentile takes 222 us beside one reader of 64 KiB, 228 us
//! beside eight of 4 KiB, and 31,000 us beside eight of 1 MiB. So while pacing is on, the I/Os of disks that are not
//! light, and the pool's own, queue for each device: long ones are moved in pieces, few at a time.
//!
//! Invariants
//! - While pacing is on, the paced I/Os in flight on a device cost no more than [`MOST_UNITS`], not counting those that
//!   started before pacing was switched on.
//! - Those that wait take turns, a piece each, so that none waits forever.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use crate::turns::units_of_bytes;

/// The size of a piece.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// The most that is in flight at a time: one piece, or five I/Os of 4 KiB.
const MOST_UNITS: u32 = 20;

const _: () = assert!(units_of_bytes(PIECE_BYTES) <= MOST_UNITS);

/// The I/Os in line of a device.
#[derive(Debug, Default)]
struct Line {
    fd: RawFd,
    /// Those in flight, with their costs.
    moving: Vec<(u32, u32)>,
    moving_units: u32,
    /// Those that wait, with the cost of their next piece.
    waiting: VecDeque<(u32, u32)>,
}

/// See the module documentation. The caller identifies I/Os by numbers.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    is_on: bool,
    lines: Vec<Line>,
}

impl Pacing {
    /// Switches pacing on or off. Returns the I/Os that need not wait any more.
    pub fn switch(&mut self, is_on: bool) -> impl Iterator<Item = u32> + use<> {
        let ends = std::mem::replace(&mut self.is_on, is_on) && !is_on;
        let lines = if ends { std::mem::take(&mut self.lines) } else { Vec::new() };
        lines.into_iter().flat_map(|line| line.waiting).map(|(io, _)| io)
    }

    /// Returns whether I/Os have to stand in line.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Puts an I/O at the end of the line. `left_bytes` of it are still to be moved.
    pub fn wait(&mut self, fd: RawFd, io: u32, left_bytes: usize) {
        let units = units_of_bytes(left_bytes.min(PIECE_BYTES));
        self.line(fd).waiting.push_back((io, units));
    }

    /// Returns an I/O that may move its next piece now; it counts as in flight then.
    pub fn next(&mut self, fd: RawFd) -> Option<u32> {
        let is_on = self.is_on;
        let line = self.line(fd);
        let (_, units) = *line.waiting.front()?;
        if is_on && line.moving_units + units > MOST_UNITS {
            return None;
        }
        let (io, units) = line.waiting.pop_front()?;
        line.moving.push((io, units));
        line.moving_units += units;
        Some(io)
    }

    /// Records that a piece of an I/O has been moved.
    pub fn moved(&mut self, fd: RawFd, io: u32) {
        let line = self.line(fd);
        // An I/O that was released when pacing ended is unknown here.
        if let Some(at) = line.moving.iter().position(|(moving, _)| *moving == io) {
            line.moving_units -= line.moving.swap_remove(at).1;
        }
    }

    fn line(&mut self, fd: RawFd) -> &mut Line {
        let at = self.lines.iter().position(|line| line.fd == fd).unwrap_or_else(|| {
            self.lines.push(Line { fd, ..Line::default() });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: RawFd = 5;
    const SMALL: usize = 4096;

    fn all(pacing: &mut Pacing) -> Vec<u32> {
        std::iter::from_fn(|| pacing.next(DEVICE)).collect()
    }

    #[test]
    fn one_piece_or_five_small_ones_are_in_flight() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.switch(true).count(), 0);
        (0..3).for_each(|io| pacing.wait(DEVICE, io, 1 << 20));
        assert_eq!(all(&mut pacing), [0]);
        pacing.wait(6, 9, 1 << 20);
        assert_eq!(pacing.next(6), Some(9), "another device");
        pacing.moved(DEVICE, 0);
        pacing.wait(DEVICE, 0, (1 << 20) - PIECE_BYTES);
        assert_eq!(all(&mut pacing), [1]);
        (10..20).for_each(|io| pacing.wait(DEVICE, io, SMALL));
        for (io, next) in [(1, vec![2]), (2, vec![0]), (0, vec![10, 11, 12, 13, 14]), (12, vec![15])] {
            pacing.moved(DEVICE, io);
            assert_eq!(all(&mut pacing), next);
        }
    }

    #[test]
    fn nothing_waits_when_pacing_ends() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.switch(true).count(), 0);
        (0..3).for_each(|io| pacing.wait(DEVICE, io, 1 << 20));
        assert_eq!(all(&mut pacing), [0]);
        assert_eq!(pacing.switch(false).collect::<Vec<_>>(), [1, 2]);
        // They queue again with their remaining bytes.
        for io in [0, 1, 2] {
            pacing.moved(DEVICE, io);
            pacing.wait(DEVICE, io, 1 << 19);
        }
        assert_eq!(all(&mut pacing), [0, 1, 2]);
    }
}
