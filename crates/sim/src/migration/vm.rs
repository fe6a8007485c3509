//! A VM with its load: requests arrive at the times of a trace, or a number of them is kept in flight, as in
//! a benchmark.

use std::collections::BTreeMap;

use haversack_trace::{Access, Source, VolumeNo};

use crate::error::SimError;

/// Opens a load from its beginning.
pub type OpenLoad<'a> = Box<dyn Fn() -> Result<Box<dyn Source>, SimError> + 'a>;

/// Where a VM is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It moves from the source host to the destination.
    Moves,
    /// It stays on the source host.
    AtSource,
    /// It stays on the destination host.
    AtDestination,
}

impl Role {
    /// The host on which it starts.
    pub fn host(self) -> usize {
        usize::from(self == Role::AtDestination)
    }
}

/// See the module.
pub struct Vm<'a> {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Where it runs.
    pub host: usize,
    /// Its disks.
    pub volumes: Vec<VolumeNo>,
    /// Requests that it keeps in flight; `None` if they arrive at fixed times.
    pub depth: Option<u32>,
    open: OpenLoad<'a>,
    source: Box<dyn Source>,
    batch: Vec<Access>,
    next: usize,
    numbers: BTreeMap<String, VolumeNo>,
    /// When the load begins in its trace's time, and how much faster that time passes.
    zero_ns: u64,
    speed_up: f64,
    /// The total time for which it has been stopped.
    delay_ns: u64,
    /// Requests in flight.
    pub in_flight: u32,
    /// When it was stopped.
    pub stopped_ns: Option<u64>,
    /// A request came due while it was stopped.
    pub is_due: bool,
}

impl<'a> Vm<'a> {
    /// Creates a VM at the beginning of its load. `numbers` has its volumes' numbers by name.
    ///
    /// # Errors
    /// The load cannot be opened.
    pub fn new(
        name: &str,
        role: Role,
        depth: Option<u32>,
        open: OpenLoad<'a>,
        numbers: BTreeMap<String, VolumeNo>,
        clock: (u64, f64),
    ) -> Result<Vm<'a>, SimError> {
        let (zero_ns, speed_up) = clock;
        let source = open()?;
        Ok(Vm {
            name: name.into(),
            role,
            host: role.host(),
            volumes: numbers.values().copied().collect(),
            depth,
            open,
            source,
            batch: Vec::new(),
            next: 0,
            numbers,
            zero_ns,
            speed_up,
            delay_ns: 0,
            in_flight: 0,
            stopped_ns: None,
            is_due: false,
        })
    }

    /// Whether it issues the next request when one is done.
    pub fn is_closed(&self) -> bool {
        self.depth.is_some()
    }

    /// Whether it issues a request now.
    pub fn is_hungry(&self) -> bool {
        self.stopped_ns.is_none() && self.depth.is_some_and(|depth| self.in_flight < depth)
    }

    /// Stops it: its requests wait.
    pub fn stop(&mut self, now_ns: u64) {
        self.stopped_ns = Some(now_ns);
    }

    /// Resumes it. Requests with fixed times are delayed by the time for which it was stopped.
    pub fn resume(&mut self, now_ns: u64) {
        if let Some(stopped_ns) = self.stopped_ns.take() {
            self.delay_ns += now_ns - stopped_ns;
        }
    }

    /// Reads the next batch if nothing is left of this one. A load that keeps requests in flight starts over at its
    /// end.
    fn fill(&mut self) -> Result<bool, SimError> {
        if self.next < self.batch.len() {
            return Ok(true);
        }
        self.next = 0;
        self.batch.clear();
        if self.source.read(&mut self.batch)? == 0 && self.is_closed() {
            self.source = (self.open)()?;
            self.source.read(&mut self.batch)?;
        }
        let names = self.source.volumes();
        for access in &mut self.batch {
            access.volume = names
                .get(access.volume.0 as usize)
                .and_then(|name| self.numbers.get(name))
                .copied()
                .ok_or_else(|| {
                    SimError::Settings(format!("VM '{}' has a disk that was not there before", self.name))
                })?;
        }
        Ok(!self.batch.is_empty())
    }

    /// When the next request arrives; `None` at the end of the load.
    ///
    /// # Errors
    /// The load cannot be read.
    pub fn next_ns(&mut self) -> Result<Option<u64>, SimError> {
        if !self.fill()? {
            return Ok(None);
        }
        let ns = self.batch[self.next].time_ns.saturating_sub(self.zero_ns);
        Ok(Some((ns as f64 / self.speed_up) as u64 + self.delay_ns))
    }

    /// The next request.
    ///
    /// # Errors
    /// The load cannot be read.
    pub fn take(&mut self) -> Result<Option<Access>, SimError> {
        if !self.fill()? {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(self.batch[self.next - 1]))
    }
}

#[cfg(test)]
mod tests {
    use haversack_trace::MemorySource;

    use super::*;

    fn vm(depth: Option<u32>) -> Vm<'static> {
        let accesses: Vec<Access> = [1_000, 1_500]
            .into_iter()
            .map(|time_ns| Access { time_ns, offset_bytes: time_ns, length_bytes: 4096, ..Access::default() })
            .collect();
        let open = move || -> Result<Box<dyn Source>, SimError> {
            Ok(Box::new(MemorySource::of_one("v", accesses.clone())))
        };
        let numbers = [("v".to_string(), VolumeNo(4))].into();
        Vm::new("vm", Role::Moves, depth, Box::new(open), numbers, (1_000, 2.0)).unwrap()
    }

    #[test]
    fn requests_come_at_their_times_and_later_after_a_stop() {
        let mut vm = vm(None);
        assert_eq!(vm.next_ns().unwrap(), Some(0));
        assert_eq!(vm.take().unwrap().unwrap().volume, VolumeNo(4));
        assert_eq!(vm.next_ns().unwrap(), Some(250));
        vm.stop(10);
        vm.resume(110);
        assert_eq!(vm.next_ns().unwrap(), Some(350));
        assert!(vm.take().unwrap().is_some());
        assert_eq!((vm.next_ns().unwrap(), vm.take().unwrap()), (None, None));
        assert!(!vm.is_hungry());
    }

    #[test]
    fn a_benchmark_keeps_requests_in_flight_and_begins_again() {
        let mut vm = vm(Some(2));
        for offset in [1_000, 1_500, 1_000] {
            assert!(vm.is_hungry());
            assert_eq!(vm.take().unwrap().unwrap().offset_bytes, offset);
        }
        vm.in_flight = 2;
        assert!(!vm.is_hungry());
        vm.in_flight = 1;
        vm.stop(0);
        assert!(!vm.is_hungry());
    }
}
