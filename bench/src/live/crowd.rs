//! Many guests that one thread drives by polling: each has a disk of its own and as many requests in flight as the others.

use std::io;
use std::time::Instant;

use super::guest::Guest;
use super::load::{Client, PATIENCE, Request};

/// Guests that share a load. Request `n` goes to guest `n` modulo their number.
pub struct Crowd {
    guests: Vec<Guest>,
    done: Vec<usize>,
}

impl Crowd {
    /// Of at least one guest.
    pub fn new(guests: Vec<Guest>) -> Crowd {
        assert!(!guests.is_empty(), "a crowd has guests");
        Crowd { guests, done: Vec::new() }
    }
}

impl Client for Crowd {
    fn start(&mut self, number: usize, request: Request) -> io::Result<()> {
        let guests = self.guests.len();
        self.guests[number % guests].start(number / guests, request)
    }

    fn wait(&mut self, done: &mut Vec<usize>) -> io::Result<()> {
        let begin = Instant::now();
        let guests = self.guests.len();
        while done.is_empty() {
            for (at, guest) in self.guests.iter_mut().enumerate() {
                guest.poll(&mut self.done)?;
                done.extend(self.done.drain(..).map(|number| number * guests + at));
            }
            if begin.elapsed() > PATIENCE {
                return Err(io::Error::other("no back end answers"));
            }
        }
        Ok(())
    }
}
