//! Reading big-endian fields from bytes that arrive in pieces of any size.

/// Collects a message of known length. Holds at most the longest message asked for.
#[derive(Debug)]
pub(crate) struct Collector {
    bytes: Vec<u8>,
}

impl Collector {
    /// Makes an empty collector with room for `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    /// Takes from `input` until there are `need` bytes; returns whether there are.
    pub(crate) fn fill(&mut self, input: &mut &[u8], need: usize) -> bool {
        let missing = self.missing(need).min(input.len());
        let (taken, rest) = input.split_at(missing);
        self.bytes.extend_from_slice(taken);
        *input = rest;
        self.bytes.len() >= need
    }

    /// Returns how many bytes are missing for `need`.
    pub(crate) fn missing(&self, need: usize) -> usize {
        need.saturating_sub(self.bytes.len())
    }

    /// Returns the collected bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Fields at the front of a message, taken one after the other. `None`: the message is too short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next `length` bytes.
    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the longest front of `text` that has at most `limit` bytes and ends between two characters.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_collected_from_pieces() {
        let mut collector = Collector::new(4);
        let mut input: &[u8] = &[1, 2];
        assert!(!collector.fill(&mut input, 3));
        assert_eq!(collector.missing(3), 1);
        let mut input: &[u8] = &[3, 4];
        assert!(collector.fill(&mut input, 3));
        assert_eq!((collector.bytes(), input), (&[1, 2, 3][..], &[4][..]));
    }

    #[test]
    fn fields_end_with_the_message() {
        let mut fields = Fields(&[0, 1, 0, 0, 0, 2, 9]);
        assert_eq!((fields.u16(), fields.u32(), fields.u16()), (Some(1), Some(2), None));
        assert_eq!((fields.bytes(2), fields.bytes(1), fields.is_empty()), (None, Some(&[9][..]), true));
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!((cut("aé", 2), cut("aé", 3), cut("", 5)), ("a", "aé", ""));
    }
}
