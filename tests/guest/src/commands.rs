//! The commands of the guest: one line each, answered by one line that starts with `ok` or `error`.
//!
//! | command | what |
//! |---|---|
//! | `disks` | names, sizes and smallest requests of the disks |
//! | `open DISK NAME zeroes\|pattern\|unknown` | opens the disk, and tracks its content from now on; NAME is the key of
//! its pattern |
//! | `grow DISK` | adds the sectors by which the disk has grown, which are zeroes; returns the new number of sectors |
//! | `write DISK SEED COUNT`, `read`, `zeroes`, `discard` | COUNT random requests of that kind |
//! | `flush DISK` | one flush |
//! | `verify DISK` | reads everything; tells the digest of all bytes |
//! | `start DISK SEED mixed\|writes\|reads [RATE]`, `progress DISK`, `stop DISK` | a load from several threads, of RATE requests a second at most |
//! | `mkfs DISK ext4\|xfs`, `mount`, `fsck` | a file system |
//! | `fill SEED MEBIBYTES`, `files SEED MEBIBYTES`, `umount` | files in it: written, read back |
//! | `scribble`, `scribbled`, `scribbles` | writes numbered blocks to a file in it until stopped; reads them |
//! | `agent` | starts QEMU's guest agent |
//! | `modules NAME` | loads the modules in `/modules/NAME` |
//! | `tool PROGRAM WORD...` | runs a program; returns what it printed, in one line |
//! | `get FILE`, `put FILE WORD...` | reads or writes a small file, of `/sys` for example |
//! | `measure DISK KEY=NUMBER...` | a measured load, see [`crate::measure`] |
//! | `off` | powers off |

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::disk::{Buffer, Disk};
use crate::files;
use crate::load::{Load, Mix, Plan};
use crate::measure;
use crate::oracle::Start;
use crate::pattern;
use crate::scribble::{self, Scribbler};
use crate::tally::{Kind, Tally};
use haversack_model::random::Random;

/// A disk is idle or under load.
#[derive(Debug)]
enum State {
    Idle(Disk),
    Loaded(Load),
}

/// The guest between two commands.
#[derive(Debug, Default)]
pub struct Guest {
    disks: BTreeMap<String, State>,
    buffer: Buffer,
    scribbler: Option<Scribbler>,
}

impl Guest {
    /// Carries out a line and gives the answer's line.
    pub fn answer(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match self.run(&words) {
            Ok(answer) => format!("ok {answer}").trim_end().to_owned(),
            Err(error) => format!("error {}", error.replace('\n', " | ")),
        }
    }

    fn run(&mut self, words: &[&str]) -> Result<String, String> {
        match words {
            ["disks"] => disks().map_err(|error| error.to_string()),
            ["open", disk, name, start] => self.open(disk, name, start),
            ["grow", disk] => self.grow(disk),
            ["write", disk, seed, count] => self.several(Kind::Write, disk, seed, count),
            ["read", disk, seed, count] => self.several(Kind::Read, disk, seed, count),
            ["zeroes", disk, seed, count] => self.several(Kind::Zeroes, disk, seed, count),
            ["discard", disk, seed, count] => self.several(Kind::Discard, disk, seed, count),
            ["flush", disk] => self.several(Kind::Flush, disk, "0", "1"),
            ["verify", disk] => self.verify(disk),
            ["start", disk, seed, mix] => self.start(disk, seed, mix, None),
            ["start", disk, seed, mix, rate] => {
                let per_second = u32::try_from(number(rate)?).map_err(|_| format!("{rate} is too much"))?;
                self.start(disk, seed, mix, Some(per_second))
            }
            ["progress", disk] => self.progress(disk),
            ["stop", disk] => self.stop(disk),
            ["mkfs", disk, kind] => files::make(disk, kind.parse()?).map(|()| String::new()),
            ["mount", disk, kind] => files::mount(disk, kind.parse()?).map(|()| String::new()),
            ["umount"] => files::unmount().map(|()| String::new()),
            ["fsck", disk, kind] => files::check(disk, kind.parse()?).map(|()| String::new()),
            ["fill", seed, mebibytes] => {
                files::fill(number(seed)?, number(mebibytes)?).map(|files| format!("files={files}"))
            }
            ["files", seed, mebibytes] => {
                files::verify(number(seed)?, number(mebibytes)?).map(|files| format!("files={files}"))
            }
            ["scribble"] => {
                self.scribbler = Some(Scribbler::start()?);
                Ok(String::new())
            }
            ["scribbled"] => {
                let scribbler = self.scribbler.take().ok_or("nothing is being scribbled")?;
                scribbler.stop().map(|(blocks, gap)| format!("blocks={blocks} gap_ms={}", gap.as_millis()))
            }
            ["scribbles"] => scribble::read().map(|blocks| format!("blocks={blocks}")),
            ["agent"] => agent().map(|()| String::new()),
            ["modules", name] => {
                let modules = Path::new(files::MODULES).join(name);
                files::load_modules(&modules).map_err(|error| format!("{}: {error}", modules.display()))?;
                Ok(String::new())
            }
            ["tool", program, arguments @ ..] => files::tool(program, arguments),
            ["get", file] => match fs::read_to_string(file) {
                Ok(text) => Ok(text.trim().replace('\n', " | ")),
                Err(error) => Err(format!("{file}: {error}")),
            },
            ["put", file, words @ ..] => {
                fs::write(file, words.join(" ") + "\n").map_err(|error| format!("{file}: {error}"))?;
                Ok(String::new())
            }
            ["measure", disk, words @ ..] => {
                let plan = measure::Plan::parse(words)?;
                let measured = measure::run(disk, &plan).map_err(|error| format!("{disk}: {error}"))?;
                Ok(measured.to_string())
            }
            _ => Err(format!("no such command: {}", words.join(" "))),
        }
    }

    fn open(&mut self, disk: &str, name: &str, start: &str) -> Result<String, String> {
        let start = match start {
            "zeroes" => Start::Zeroes,
            "pattern" => Start::Pattern,
            "unknown" => Start::Unknown,
            _ => return Err(format!("a disk starts with zeroes, pattern or unknown, not {start}")),
        };
        let opened = Disk::open(disk, pattern::key_of(name), start).map_err(|e| format!("{disk}: {e}"))?;
        let answer = format!(
            "sectors={} unit_bytes={} discard={} zeroes={}",
            opened.range().end,
            opened.unit_bytes(),
            opened.offers(Kind::Discard),
            opened.offers(Kind::Zeroes)
        );
        self.disks.insert(disk.to_owned(), State::Idle(opened));
        Ok(answer)
    }

    fn grow(&mut self, name: &str) -> Result<String, String> {
        let (disk, _) = self.idle(name)?;
        disk.grow(name).map_err(|error| format!("{name}: {error}"))?;
        Ok(format!("sectors={}", disk.range().end))
    }

    fn idle(&mut self, disk: &str) -> Result<(&mut Disk, &mut Buffer), String> {
        match self.disks.get_mut(disk) {
            Some(State::Idle(disk)) => Ok((disk, &mut self.buffer)),
            Some(State::Loaded(_)) => Err(format!("{disk} is under load; stop it first")),
            None => Err(format!("{disk} is not open")),
        }
    }

    fn several(&mut self, kind: Kind, disk: &str, seed: &str, count: &str) -> Result<String, String> {
        let (seed, count) = (number(seed)?, number(count)?);
        let (opened, buffer) = self.idle(disk)?;
        if !opened.offers(kind) {
            return Err(format!("{disk} does not offer {kind:?}"));
        }
        let mut random = Random::new(seed);
        let mut tally = Tally::default();
        for _ in 0..count {
            let (sector, sectors) = opened.place(&mut random);
            let start = Instant::now();
            let result = opened.run(kind, sector, sectors, buffer);
            tally.count(kind, sectors, start.elapsed(), &result);
        }
        Ok(tally.to_string())
    }

    fn verify(&mut self, disk: &str) -> Result<String, String> {
        let (disk, buffer) = self.idle(disk)?;
        let mut tally = Tally::default();
        let digest = disk.verify(buffer, |sectors, result| {
            tally.count(Kind::Read, sectors, Duration::ZERO, &result);
        });
        Ok(format!("digest={digest:016x} {tally}"))
    }

    fn start(&mut self, name: &str, seed: &str, mix: &str, rate: Option<u32>) -> Result<String, String> {
        let seed = number(seed)?;
        let mix = match mix {
            "mixed" => Mix::Mixed,
            "writes" => Mix::Writes,
            "reads" => Mix::Reads,
            _ => return Err(format!("a load is mixed, writes or reads, not {mix}")),
        };
        self.idle(name)?;
        if let Some(State::Idle(disk)) = self.disks.remove(name) {
            self.disks.insert(name.to_owned(), State::Loaded(Load::start(disk, seed, Plan { mix, rate })));
        }
        Ok(String::new())
    }

    fn progress(&self, disk: &str) -> Result<String, String> {
        match self.disks.get(disk) {
            Some(State::Loaded(load)) => Ok(load.tally().to_string()),
            _ => Err(format!("{disk} is not under load")),
        }
    }

    fn stop(&mut self, name: &str) -> Result<String, String> {
        match self.disks.remove(name) {
            Some(State::Loaded(load)) => {
                let (disk, tally) = load.stop();
                self.disks.insert(name.to_owned(), State::Idle(disk));
                Ok(tally.to_string())
            }
            other => {
                self.disks.extend(other.map(|state| (name.to_owned(), state)));
                Err(format!("{name} is not under load"))
            }
        }
    }
}

/// Starts the guest agent on the port that QEMU gives it.
fn agent() -> Result<(), String> {
    let is_port = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("vport");
    let devices = fs::read_dir("/dev").map_err(|error| error.to_string())?;
    let port = devices.filter_map(Result::ok).find(is_port).ok_or("QEMU gives the agent no port")?;
    let mut agent = Command::new("/bin/qemu-ga");
    agent.args(["--method", "virtio-serial", "--statedir", "/tmp", "--path"]).arg(port.path());
    agent.spawn().map(drop).map_err(|error| format!("qemu-ga: {error}"))
}

fn disks() -> std::io::Result<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let size = fs::read_to_string(format!("/sys/block/{name}/size"))?;
        found.push(format!("{name}={}", size.trim()));
    }
    found.sort();
    Ok(found.join(" "))
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|error| format!("{word} is no number: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_make_no_sense_say_so() {
        let mut guest = Guest::default();
        for (line, complaint) in [
            ("", "error no such command: "),
            ("write vda 1", "error no such command: write vda 1"),
            ("write vda x 1", "error x is no number: invalid digit found in string"),
            ("write vda 1 1", "error vda is not open"),
            ("stop vda", "error vda is not under load"),
            ("open vda vm1 full", "error a disk starts with zeroes, pattern or unknown, not full"),
            ("measure vda seed=1", "error depth=NUMBER is missing"),
            ("get /no/file", "error /no/file: No such file or directory (os error 2)"),
            ("mkfs vda fat", "error the file system fat is not known; ext4 and xfs are"),
        ] {
            assert_eq!(guest.answer(line), complaint);
        }
    }
}
