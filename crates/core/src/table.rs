//! Tables that are indexed by numbers of their own kind, so that the number of a disk does not find a segment.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// The number of a place in a table.
pub trait Number: Copy {
    /// As an index.
    fn at(self) -> usize;
    /// From an index.
    fn of(at: usize) -> Self;
}

/// Values by their number. Otherwise it is a slice.
pub struct Table<N, T> {
    items: Vec<T>,
    number: PhantomData<N>,
}

impl<N: Number, T> Table<N, T> {
    /// An empty table.
    pub fn new() -> Table<N, T> {
        Table { items: Vec::new(), number: PhantomData }
    }

    /// Adds a value and returns its number.
    pub fn push(&mut self, value: T) -> N {
        self.items.push(value);
        N::of(self.items.len() - 1)
    }

    /// Makes the table so long; values are added or removed at its end.
    pub fn resize(&mut self, len: usize, value: T)
    where
        T: Clone,
    {
        self.items.reserve_exact(len.saturating_sub(self.items.len()));
        self.items.resize(len, value);
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = N> + use<N, T> {
        (0..self.items.len()).map(N::of)
    }

    /// Values it has memory for.
    pub fn capacity(&self) -> usize {
        self.items.capacity()
    }
}

impl<N: Number, T> Index<N> for Table<N, T> {
    type Output = T;

    #[inline]
    fn index(&self, number: N) -> &T {
        &self.items[number.at()]
    }
}

impl<N: Number, T> IndexMut<N> for Table<N, T> {
    #[inline]
    fn index_mut(&mut self, number: N) -> &mut T {
        &mut self.items[number.at()]
    }
}

impl<N, T> Deref for Table<N, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<N, T> DerefMut for Table<N, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}
