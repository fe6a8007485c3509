//! Requests on their way to the daemon: headers, each followed by the data of a write, as one message at a time.
//!
//! Invariants
//! - What the message points to is not changed between `message` and the completion of its send.
//! - Bytes are sent in the order in which they were added; after a short send, the rest follows.

use haversack_nbd::REQUEST_BYTES;

/// The most requests in a message.
const MOST_REQUESTS: usize = 64;

/// See the module documentation.
pub struct Outbox {
    heads: Box<[[u8; REQUEST_BYTES]]>,
    requests: usize,
    iovecs: Vec<libc::iovec>,
    /// The first iovec with bytes left.
    next: usize,
    message: Box<libc::msghdr>,
}

impl Outbox {
    pub fn new() -> Self {
        Self {
            heads: vec![[0; REQUEST_BYTES]; MOST_REQUESTS].into(),
            requests: 0,
            iovecs: Vec::with_capacity(2 * MOST_REQUESTS),
            next: 0,
            // SAFETY: all zeroes is a valid empty header.
            message: Box::new(unsafe { std::mem::zeroed() }),
        }
    }

    /// Returns whether no more requests fit.
    pub fn is_full(&self) -> bool {
        self.requests == MOST_REQUESTS
    }

    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Adds a request, whose data, if there is any, must stay in place until it is sent.
    pub fn push(&mut self, head: [u8; REQUEST_BYTES], data: Option<libc::iovec>) {
        let place = &mut self.heads[self.requests];
        *place = head;
        self.iovecs.push(libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: REQUEST_BYTES });
        self.iovecs.extend(data);
        self.requests += 1;
    }

    /// Returns the message to send. It stays in place.
    pub fn message(&mut self) -> *const libc::msghdr {
        let left = &mut self.iovecs[self.next..];
        self.message.msg_iov = left.as_mut_ptr();
        self.message.msg_iovlen = left.len();
        &raw const *self.message
    }

    /// Some of it was sent. Returns whether that was all; it is empty then.
    pub fn sent(&mut self, bytes: usize) -> bool {
        let mut bytes = bytes;
        while let Some(iovec) = self.iovecs.get_mut(self.next) {
            let part = bytes.min(iovec.iov_len);
            // An address inside the iovec, or one past its end; only the kernel uses it.
            iovec.iov_base = iovec.iov_base.wrapping_byte_add(part);
            iovec.iov_len -= part;
            bytes -= part;
            if iovec.iov_len > 0 {
                return false;
            }
            self.next += 1;
        }
        self.clear();
        true
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.iovecs.clear();
        (self.requests, self.next) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(outbox: &mut Outbox) -> Vec<usize> {
        outbox.message();
        outbox.iovecs[outbox.next..].iter().map(|iovec| iovec.iov_len).collect()
    }

    #[test]
    fn a_message_that_is_cut_short_goes_on_where_it_ended() {
        let (mut outbox, mut data) = (Outbox::new(), [0_u8; 100]);
        let iovec = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 100 };
        outbox.push([1; REQUEST_BYTES], Some(iovec));
        outbox.push([2; REQUEST_BYTES], None);
        assert_eq!(left(&mut outbox), [28, 100, 28]);
        assert!(!outbox.sent(10));
        assert_eq!(left(&mut outbox), [18, 100, 28]);
        assert!(!outbox.sent(18 + 60));
        assert_eq!(left(&mut outbox), [40, 28]);
        assert_eq!(outbox.iovecs[1].iov_base, data.as_mut_ptr().wrapping_add(60).cast());
        assert!(!outbox.is_empty());
        assert!(outbox.sent(68));
        assert!(outbox.is_empty());
    }

    #[test]
    fn no_more_than_a_message_is_taken() {
        let mut outbox = Outbox::new();
        while !outbox.is_full() {
            outbox.push([0; REQUEST_BYTES], None);
        }
        assert_eq!(left(&mut outbox).len(), MOST_REQUESTS);
        outbox.clear();
        assert!(outbox.is_empty() && !outbox.is_full());
    }
}
