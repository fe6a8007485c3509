//! Runs contenders under the same loads in turn. Each round has every contender once, so that other work on the machine
//! affects all of them alike. Ratios compare results of the same round.

use std::io;
use std::time::Duration;

use super::load::{self, Client, Load};
use super::process::{Process, own_processor_time};
use super::processors;
use super::system_calls::{self, Count};
use super::zram::Zram;
use crate::output::say;
use crate::spread::Spread;
use crate::table;
use haversack_model::random::Random;

/// The processor core that clients leave to servers. A server that never sleeps is bound to it; others run on any core.
pub const SERVER_CORE: usize = 0;
/// Rounds of each contender and load.
pub const ROUNDS: usize = 5;
/// The time in which system calls are counted. They are counted at the end, since that slows the server down.
const COUNTED: Duration = Duration::from_millis(300);

/// A contender.
pub struct Contender {
    /// Its name.
    pub name: String,
    /// The client that sends it requests.
    pub client: Box<dyn Client>,
    /// The process that serves, if it is another.
    pub server: Option<Process>,
    /// Whether the page cache of its server's files is dropped before each round.
    pub forgets: bool,
    /// Removed after the server has ended.
    _device: Option<Zram>,
}

impl Contender {
    /// A client, and its server if it has one.
    pub fn new(name: impl Into<String>, client: Box<dyn Client>, server: Option<Process>) -> Contender {
        Contender { name: name.into(), client, server, forgets: false, _device: None }
    }

    /// Of a server that uses this device.
    pub fn on(self, device: Option<Zram>) -> Contender {
        Contender { _device: device, ..self }
    }

    /// Lets its server run again, and moves the client away from the server's core. A client without a server may use all.
    fn begin(&self) -> io::Result<()> {
        processors::avoid(self.server.as_ref().map(|_| SERVER_CORE))?;
        self.server.as_ref().map_or(Ok(()), Process::go_on)
    }

    /// Stops its server, so that it takes no processor time from the others.
    fn end(&self) -> io::Result<()> {
        self.server.as_ref().map_or(Ok(()), Process::pause)
    }
}

/// A load with its name.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// The load.
    pub load: Load,
}

/// What a round gave.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Requests a second.
    pub iops: f64,
    /// Their median latency, in microseconds.
    pub median_us: f64,
    /// The 99th percentile of their latencies, in microseconds.
    pub p99_us: f64,
    /// Processor time of the server for a request, in microseconds.
    pub server_us: f64,
    /// Processor time of the client for a request, in microseconds.
    pub client_us: f64,
}

/// The results of a contest.
pub struct Outcome {
    title: String,
    contenders: Vec<String>,
    events: Vec<&'static str>,
    /// Rounds by contender and event.
    figures: Vec<Vec<Vec<Figures>>>,
    /// A server's system calls for each request, by contender and event, if they were counted.
    system_calls: Vec<Vec<Option<f64>>>,
}

/// Runs all of them.
pub fn hold(
    title: &str,
    contenders: &mut [Contender],
    events: &[Event],
    time: Duration,
) -> io::Result<Outcome> {
    let mut figures = vec![vec![Vec::new(); events.len()]; contenders.len()];
    let mut rng = Random::new(0x5EED);
    contenders.iter().try_for_each(Contender::end)?;
    for _ in 0..ROUNDS {
        for (event, at) in events.iter().zip(0..) {
            for (contender, figures) in contenders.iter_mut().zip(&mut figures) {
                contender.begin()?;
                let round = once(contender, event.load, time, &mut rng);
                contender.end()?;
                let failed = |e| io::Error::other(format!("{}, {}: {e}", contender.name, event.name));
                let rounds: &mut Vec<Figures> = &mut figures[at];
                rounds.push(round.map_err(failed)?);
            }
        }
    }
    let system_calls = contenders
        .iter_mut()
        .map(|contender| events.iter().map(|event| count(contender, event, &mut rng)).collect())
        .collect::<io::Result<_>>()?;
    processors::avoid(None)?;
    contenders.iter().filter_map(|contender| contender.server.as_ref()).try_for_each(Process::go_on)?;
    Ok(Outcome {
        title: title.to_string(),
        contenders: contenders.iter().map(|c| c.name.clone()).collect(),
        events: events.iter().map(|e| e.name).collect(),
        figures,
        system_calls,
    })
}

/// The system calls that a contender's server makes for a request.
fn count(contender: &mut Contender, event: &Event, rng: &mut Random) -> io::Result<Option<f64>> {
    let Some(server) = contender.server.as_ref().filter(|_| system_calls::is_available()) else {
        return Ok(None);
    };
    let summary = std::env::temp_dir().join(format!("haversack-bench-{}-calls", std::process::id()));
    contender.begin()?;
    let count = Count::begin(server, &summary)?;
    let round = load::run(contender.client.as_mut(), event.load, COUNTED, rng);
    let calls = count.end();
    contender.end()?;
    let _ = std::fs::remove_file(&summary);
    Ok(Some(calls? as f64 / round?.requests as f64))
}

fn once(contender: &mut Contender, load: Load, time: Duration, rng: &mut Random) -> io::Result<Figures> {
    if let Some(server) = contender.server.as_ref().filter(|_| contender.forgets) {
        server.forget_page_cache()?;
    }
    let used = |server: &Option<Process>| server.as_ref().map_or(Ok(Duration::ZERO), Process::processor_time);
    let before = (used(&contender.server)?, own_processor_time()?);
    let round = load::run(contender.client.as_mut(), load, time, rng)?;
    let each = |used: Duration, before: Duration| {
        used.saturating_sub(before).as_secs_f64() * 1e6 / round.requests as f64
    };
    Ok(Figures {
        iops: round.iops(),
        median_us: round.latency_us(0.5),
        p99_us: round.latency_us(0.99),
        server_us: each(used(&contender.server)?, before.0),
        client_us: each(own_processor_time()?, before.1),
    })
}

impl Outcome {
    /// The contenders' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.contenders.iter().map(String::as_str)
    }

    /// The loads.
    pub fn events(&self) -> std::ops::Range<usize> {
        0..self.events.len()
    }

    /// A load's title.
    pub fn title_of(&self, event: usize) -> String {
        format!("{}, {}", self.title, self.events[event])
    }

    /// A figure over the rounds.
    pub fn spread(&self, contender: usize, event: usize, of: fn(&Figures) -> f64) -> Spread {
        Spread::of(self.figures[contender][event].iter().map(of))
    }

    /// The ratio to another contender, round by round.
    fn ratio(&self, contender: usize, other: usize, event: usize, of: fn(&Figures) -> f64) -> Spread {
        let [ours, theirs] = [contender, other].map(|at| &self.figures[at][event]);
        Spread::of(ours.iter().zip(theirs).map(|(a, b)| of(a) / of(b)))
    }

    /// A table of all contenders under a load, with ratios of the first contender to all others.
    pub fn rows(&self, event: usize) -> Vec<Vec<String>> {
        let mut rows = vec![table::row([
            "",
            "requests/s",
            "median us",
            "99 % us",
            "CPU us: server",
            "client",
            "system calls",
            "first/this: requests/s",
            "first/this: median us",
        ])];
        for (number, name) in self.contenders.iter().enumerate() {
            rows.push(vec![
                name.clone(),
                self.spread(number, event, |f| f.iops).grouped(),
                self.spread(number, event, |f| f.median_us).shown(1),
                self.spread(number, event, |f| f.p99_us).shown(0),
                self.spread(number, event, |f| f.server_us).shown(1),
                self.spread(number, event, |f| f.client_us).shown(1),
                self.system_calls[number][event].map_or("-".into(), |calls| format!("{calls:.2}")),
                self.ratio(0, number, event, |f| f.iops).shown(2),
                self.ratio(0, number, event, |f| f.median_us).shown(2),
            ]);
        }
        rows
    }

    /// Prints tables.
    pub fn print(&self) {
        for event in self.events() {
            let title = self.title_of(event);
            let title = format!("{title}: median of {ROUNDS} interleaved rounds (least to greatest)");
            table::print(&title, &self.rows(event));
        }
    }

    /// Prints an object a line.
    pub fn print_json(&self) {
        for (at, event) in self.events.iter().enumerate() {
            for (number, name) in self.contenders.iter().enumerate() {
                let figure = |of| self.spread(number, at, of).json();
                let ratio = |of| self.ratio(0, number, at, of).json();
                say!(
                    "{{\"benchmark\":\"{}\",\"load\":\"{event}\",\"contender\":\"{name}\",\"requests_s\":{},\
                     \"median_us\":{},\"p99_us\":{},\"server_cpu_us\":{},\"client_cpu_us\":{},\"system_calls\":{},\
                     \"first_to_this_requests_s\":{},\"first_to_this_median_us\":{},\"first_to_this_p99_us\":{}}}",
                    self.title,
                    figure(|f| f.iops),
                    figure(|f| f.median_us),
                    figure(|f| f.p99_us),
                    figure(|f| f.server_us),
                    figure(|f| f.client_us),
                    self.system_calls[number][at].map_or("null".into(), |calls| format!("{calls:.3}")),
                    ratio(|f| f.iops),
                    ratio(|f| f.median_us),
                    ratio(|f| f.p99_us),
                );
            }
        }
    }
}

impl Event {
    /// A load with a name.
    pub fn new(name: &'static str, load: Load) -> Event {
        Event { name, load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let figures = |iops| Figures { iops, median_us: 1.0, p99_us: 2.0, server_us: 3.0, client_us: 4.0 };
        let rounds = |numbers: [f64; 3]| vec![numbers.map(figures).to_vec()];
        let outcome = Outcome {
            title: "test".into(),
            contenders: ["a", "b"].map(String::from).to_vec(),
            events: vec!["load"],
            figures: vec![rounds([10.0, 20.0, 40.0]), rounds([5.0, 10.0, 10.0])],
            system_calls: vec![vec![None], vec![None]],
        };
        let ratio = outcome.ratio(0, 1, 0, |f| f.iops);
        assert_eq!((ratio.median, ratio.least, ratio.most), (2.0, 2.0, 4.0));
        assert_eq!(ratio.shown(1), "2.0 (2.0 to 4.0)");
    }
}
