//! A stream that drops peers which do not read what is written.
//!
//! Invariant
//! - While data is left to write, at least `LEAST_BYTES`, or all of it if it is less, is sent in each period.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

const LEAST_BYTES: usize = 64 << 10;

/// See the module documentation.
pub struct Patient<T> {
    stream: T,
    time: Duration,
    /// Runs while the peer does not take everything.
    stretch: Option<Pin<Box<Sleep>>>,
    taken: usize,
}

impl<T> Patient<T> {
    /// Wraps a stream; `time` is the length of a period.
    pub fn new(stream: T, time: Duration) -> Patient<T> {
        Patient { stream, time, stretch: None, taken: 0 }
    }

    /// Handles a write that has to wait.
    fn wait<R>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        let time = self.time;
        let stretch = self.stretch.get_or_insert_with(|| Box::pin(sleep(time)));
        loop {
            ready!(stretch.as_mut().poll(context));
            if std::mem::take(&mut self.taken) < LEAST_BYTES {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the answer is not read")));
            }
            stretch.as_mut().reset(Instant::now() + time);
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(Ok(count)) => {
                self.taken += count;
                Poll::Ready(Ok(count))
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => self.wait(context),
        }
    }

    /// Called only when everything has been written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(result) => {
                (self.stretch, self.taken) = (None, 0);
                Poll::Ready(result)
            }
            Poll::Pending => self.wait(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.wait(context),
            ended => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Runs in virtual time.
    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(work)
    }

    #[test]
    fn a_peer_that_reads_nothing_or_a_trickle_is_given_up() {
        for trickle in [0, 100] {
            let error = run(async {
                let (ours, mut theirs) = tokio::io::duplex(4096);
                tokio::spawn(async move {
                    let mut buffer = vec![0; trickle.max(1)];
                    while trickle > 0 && theirs.read(&mut buffer).await.is_ok() {
                        sleep(Duration::from_millis(10)).await;
                    }
                    sleep(Duration::from_secs(60)).await;
                });
                Patient::new(ours, Duration::from_millis(100)).write_all(&vec![1; 1 << 20]).await.unwrap_err()
            });
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn a_slow_reader_is_waited_for() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut buffer = vec![0; 128 << 10];
                while theirs.read_exact(&mut buffer).await.is_ok() {
                    sleep(Duration::from_millis(60)).await;
                }
            });
            Patient::new(ours, Duration::from_millis(100)).write_all(&vec![1; 1 << 20]).await.unwrap();
        });
    }
}
