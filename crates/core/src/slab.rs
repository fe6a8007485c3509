//! Numbered slots that are reused: no allocation once the slab has grown.

/// A slab of values that are reset instead of dropped, so that their buffers stay.
pub struct Slab<T> {
    /// Each value, and whether it is in use.
    items: Vec<(bool, T)>,
    /// Numbers of the values that are not in use.
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    /// Returns an empty slab.
    pub fn new() -> Slab<T> {
        Slab { items: Vec::new(), free: Vec::new() }
    }

    /// Returns the number of values in use.
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Takes a slot; returns its number. The value is as its last user left it.
    pub fn take(&mut self) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.items.push((false, T::default()));
            self.items.len() as u32 - 1
        });
        self.items[number as usize].0 = true;
        number
    }

    /// Returns a slot to the free list.
    pub fn put(&mut self, number: u32) {
        assert!(self.items[number as usize].0, "place {number} is in use");
        self.items[number as usize].0 = false;
        self.free.push(number);
    }

    /// Whether the slot is in use.
    pub fn contains(&self, number: u32) -> bool {
        self.items.get(number as usize).is_some_and(|i| i.0)
    }

    /// Returns the values in use, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter(|(_, i)| i.0).map(|(number, i)| (number as u32, &i.1))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        &self.items[number as usize].1
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.items[number as usize].1
    }
}
