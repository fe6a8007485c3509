//! The orders of last accesses that a block is in: that of all blocks and, if volumes are distinguished, also that of
//! its volume's blocks.
//!
//! A block has `N` places, one in each of its orders, all of them taken and freed together. So the order of a volume
//! never has more places than that of all, and when that is full, the gaps in all orders are closed at once, in one
//! pass over the blocks.

use crate::order::Order;
use crate::reference::volume_of;

/// The least number of unused places when gaps are closed.
const LEAST_ROOM: u32 = 1 << 12;

/// The number of a block's first order, that of all, or of its second, that of its volume. Other state of an order
/// has the same number.
#[inline]
pub(crate) fn order_of(key: u64, nth: usize) -> usize {
    if nth == 0 { 0 } else { 1 + volume_of(key) }
}

#[derive(Clone)]
pub(crate) struct Orders<const N: usize> {
    all: Order,
    /// If volumes are distinguished.
    volumes: Vec<Order>,
    /// Places that the order of all may use.
    most: u32,
}

impl<const N: usize> Orders<N> {
    pub fn new() -> Orders<N> {
        Orders { all: Order::new(), volumes: Vec::new(), most: LEAST_ROOM }
    }

    /// Makes an order for each of n, if there is not one yet.
    pub fn know(&mut self, orders: usize) {
        if self.known() < orders {
            self.volumes.resize(orders - 1, Order::new());
        }
    }

    /// Returns the number of orders.
    pub fn known(&self) -> usize {
        1 + self.volumes.len()
    }

    /// Returns the places left before [`renumbered`](Self::renumbered) is due.
    pub fn room(&self) -> u32 {
        self.most - self.all.used()
    }

    #[inline]
    fn order(&self, key: u64, nth: usize) -> &Order {
        if nth == 0 { &self.all } else { &self.volumes[volume_of(key)] }
    }

    #[inline]
    fn order_mut(&mut self, key: u64, nth: usize) -> &mut Order {
        if nth == 0 { &mut self.all } else { &mut self.volumes[volume_of(key)] }
    }

    /// Returns the number of taken places in a block's orders.
    #[inline]
    pub fn live(&self, key: u64) -> [u32; N] {
        let mut live = [0; N];
        for (nth, live) in live.iter_mut().enumerate() {
            *live = self.order(key, nth).live();
        }
        live
    }

    /// Takes the next places for a block. There must be room.
    #[inline]
    pub fn push(&mut self, key: u64) -> [u32; N] {
        let mut places = [0; N];
        for (nth, place) in places.iter_mut().enumerate() {
            *place = self.order_mut(key, nth).push();
        }
        places
    }

    /// Frees a block's places.
    #[inline]
    pub fn remove(&mut self, key: u64, places: [u32; N]) {
        for (nth, place) in places.iter().enumerate() {
            self.order_mut(key, nth).remove(*place);
        }
    }

    /// Returns the number of taken places after a block's.
    #[inline]
    pub fn after(&self, key: u64, places: [u32; N]) -> [u32; N] {
        let mut after = places;
        for (nth, place) in after.iter_mut().enumerate() {
            *place = self.order(key, nth).after(*place);
        }
        after
    }

    /// Returns some bits near a block's places, if it has any: only to load them into the cache.
    #[inline]
    pub fn peek(&self, key: u64, places: [u32; N]) -> u64 {
        let mut bits = 0;
        for (nth, place) in places.iter().enumerate() {
            bits ^= self.order(key, nth).peek(*place);
        }
        bits
    }

    /// Returns the same orders without gaps, with three times as much room and `more`, and the new places of a block
    /// with old ones.
    pub fn renumbered(&self, more: u32) -> (Orders<N>, impl Fn(u64, [u32; N]) -> [u32; N] + '_) {
        let (all, number_in_all) = self.all.renumbered();
        let (volumes, numbers): (Vec<_>, Vec<_>) = self.volumes.iter().map(Order::renumbered).unzip();
        let most = all.live().saturating_mul(4).saturating_add(more).max(LEAST_ROOM);
        let number = move |key, mut places: [u32; N]| {
            for (nth, place) in places.iter_mut().enumerate() {
                let number = if nth == 0 { &number_in_all } else { &numbers[volume_of(key)] };
                *place = number(*place);
            }
            places
        };
        (Orders { all, volumes, most }, number)
    }
}

impl Orders<1> {
    /// From now on volumes have orders of their own; the first one has all blocks so far.
    pub fn told_apart(&self) -> Orders<2> {
        Orders { all: self.all.clone(), volumes: vec![self.all.clone()], most: self.most }
    }
}
