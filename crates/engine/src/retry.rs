//! Retries of failed origin I/Os, with growing pauses.
//!
//! A failed flush is not retried: the store may have dropped the data that it could not write, and would then
//! answer the second flush with success. The flush's failure is passed to the core, which writes the data
//! again.
//!
//! Invariants
//! - A flush is never retried.
//! - A request older than [`OLDEST_US`] is not retried.

use haversack_model::{DiskHandle, Micros};

use crate::origin::{OriginOp, OriginRequest};

/// Failed requests are retried until they reach this age.
const OLDEST_US: Micros = 2_000_000;
const SHORTEST_PAUSE_US: Micros = 50_000;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Retries {
    waiting: Vec<(Micros, DiskHandle, OriginRequest)>,
}

impl Retries {
    /// Keeps a failed request until its pause has ended, or returns it if it must not be retried.
    pub fn take(&mut self, disk: DiskHandle, request: OriginRequest, now: Micros) -> Option<OriginRequest> {
        let age = now.saturating_sub(request.started_us);
        if request.op == OriginOp::Flush || age >= OLDEST_US {
            return Some(request);
        }
        self.waiting.push((now + age.max(SHORTEST_PAUSE_US), disk, request));
        None
    }

    /// Returns a request whose pause is over.
    pub fn due(&mut self, now: Micros) -> Option<(DiskHandle, OriginRequest)> {
        let at = self.waiting.iter().position(|(due, ..)| *due <= now)?;
        let (_, disk, request) = self.waiting.swap_remove(at);
        Some((disk, request))
    }

    /// Returns when the next pause is over.
    pub fn next_us(&self) -> Option<Micros> {
        self.waiting.iter().map(|(due, ..)| *due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_core::{IoId, Writer};
    use haversack_model::{ArenaNo, DiskNo};

    fn request(op: OriginOp) -> OriginRequest {
        OriginRequest {
            io: IoId(1),
            op,
            writer: Writer::Guest,
            durable: false,
            offset_bytes: 0,
            len_bytes: 512,
            iovecs: Vec::new(),
            started_us: 0,
        }
    }

    #[test]
    fn pauses_grow_until_the_request_is_given_up() {
        let (mut retries, mut now, mut tries) = (Retries::default(), 1_000, 0);
        let mut next = request(OriginOp::Read);
        let given_up = loop {
            if let Some(back) = retries.take(DiskHandle::new(ArenaNo(0), DiskNo(0), 1), next, now) {
                break back;
            }
            assert!(retries.due(now).is_none());
            now = retries.next_us().expect("it waits");
            next = retries.due(now).expect("its pause is over").1;
            tries += 1;
        };
        assert!(given_up.op == OriginOp::Read && (4..10).contains(&tries), "{tries}");
        assert!(
            retries.take(DiskHandle::new(ArenaNo(0), DiskNo(0), 1), request(OriginOp::Flush), 1).is_some()
        );
    }
}
