//! `haversack-ublk`: a disk of the daemon as a block device of the host. See `haversack-ublk --help` and docs/ublk.md.
//!
//! A client of the daemon's NBD server on one side, a server of the kernel's ublk driver on the other: see [`queue`].

mod abi;
mod control;
mod device;
mod error;
mod flusher;
mod link;
mod memory;
mod outbox;
mod properties;
mod queue;
mod report;
mod request;
mod ring;
mod serve;
mod slots;
mod stop;
mod upstream;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use control::Control;
use error::UblkError;
use serve::Wishes;

/// The default number of queues.
const MOST_QUEUES: u16 = 4;

/// Serves a disk of the Haversack daemon as a block device of this host, /dev/ublkbN, until it is stopped with SIGTERM
/// or SIGINT. It is removed when nothing has it mounted and the daemon has everything that was written to it; a second
/// signal does not wait for that.
///
/// Prints the device's path when it can be used. Requires root and the kernel's ublk driver.
#[derive(Parser)]
#[command(name = "haversack-ublk", version)]
struct Arguments {
    /// The disk: nbd+unix:///DISK?socket=/run/haversack/nbd.sock
    #[arg(value_name = "NBD-URI", required_unless_present = "remove")]
    uri: Option<String>,
    /// The N of /dev/ublkbN. By default the kernel chooses one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1 << 20))]
    id: Option<u32>,
    /// Queues, with a thread and a connection each. By default one for each processor, up to four.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    /// Requests in flight in each queue.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// How long to wait for the daemon at the start.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
    /// Remove a device that no program serves. Writes that wait for one are lost.
    #[arg(long, requires = "id", conflicts_with_all = ["uri", "queues", "read_only"])]
    remove: bool,
}

fn run(arguments: &Arguments) -> Result<(), UblkError> {
    if let (true, Some(number)) = (arguments.remove, arguments.id) {
        return device::remove(&mut Control::open()?, number);
    }
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u16);
    serve::serve(&Wishes {
        upstream: arguments.uri.as_deref().unwrap_or_default().parse()?,
        number: arguments.id,
        queues: arguments.queues.unwrap_or(processors.min(MOST_QUEUES)),
        depth: arguments.depth,
        is_read_only: arguments.read_only,
        wait: Duration::from_secs(arguments.wait),
    })
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::say(&error);
            let is_usage = matches!(error, UblkError::Uri(_) | UblkError::NotLocal { .. });
            ExitCode::from(if is_usage { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("haversack-ublk --id 3 --read-only nbd+unix:///vm1?socket=/s").is_ok());
        assert!(parse("haversack-ublk --id 3 --remove").is_ok());
        for wrong in
            ["", " --remove", " --id 3 --remove nbd+unix:///vm1?socket=/s", " --depth 0 u", " --depth 1025 u"]
        {
            assert!(parse(&format!("haversack-ublk{wrong}")).is_err(), "{wrong}");
        }
    }
}
