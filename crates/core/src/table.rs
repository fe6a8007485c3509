//! Tables that are indexed by their own number type, so that, for example, a disk's number cannot index the
//! segments.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

use haversack_model::{DeviceNo, DiskNo};

/// The number of an entry in a table.
pub trait Number: Copy {
    /// Returns the number as an index.
    fn at(self) -> usize;
    /// Returns the number for an index.
    fn of(at: usize) -> Self;
}

impl Number for DiskNo {
    #[inline]
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> DiskNo {
        DiskNo(at as u16)
    }
}

impl Number for DeviceNo {
    #[inline]
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> DeviceNo {
        DeviceNo(at as u8)
    }
}

/// Values by their number. In other respects it is a slice.
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

    /// Returns the value with a number, if the table has it.
    #[inline]
    pub fn get(&self, number: N) -> Option<&T> {
        self.items.get(number.at())
    }

    /// Returns the value with a number, to change, if the table has it.
    #[inline]
    pub fn get_mut(&mut self, number: N) -> Option<&mut T> {
        self.items.get_mut(number.at())
    }

    /// Returns all values with their numbers, in order.
    pub fn numbered(&self) -> impl Iterator<Item = (N, &T)> {
        self.items.iter().enumerate().map(|(at, item)| (N::of(at), item))
    }

    /// Makes sure that the table has a number: what is missing up to it is added as returned by `value`.
    pub fn reach(&mut self, number: N, value: impl FnMut() -> T) {
        if self.items.len() <= number.at() {
            self.items.resize_with(number.at() + 1, value);
        }
    }

    /// Returns all numbers, in order.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = N> + use<N, T> {
        (0..self.items.len()).map(N::of)
    }

    /// Returns the number of values it has memory for.
    pub fn capacity(&self) -> usize {
        self.items.capacity()
    }
}

impl<N: Number, T> Default for Table<N, T> {
    fn default() -> Self {
        Table::new()
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

impl<N: Number, T> FromIterator<T> for Table<N, T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Table<N, T> {
        Table { items: items.into_iter().collect(), number: PhantomData }
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
