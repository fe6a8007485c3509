//! What guests do to a disk, whoever serves it.

use std::time::{Duration, Instant};

use crate::error::check;
use crate::tools::PATIENCE;
use crate::{Answer, Error, Guest, Place, Result, image};

/// Every kind of request on `disk`, which starts with zeroes, or with the pattern of the disk named `name`, as `start`
/// says. Returns the digest of the disk's bytes.
///
/// # Errors
/// If anything is wrong.
pub fn exercise(place: &Place, guest: &mut Guest, disk: &str, name: &str, start: &str) -> Result<String> {
    let opened = guest.ask(&format!("open {disk} {name} {start}"))?;
    check(opened.text("discard")? == "true", "the disk does not offer discard")?;
    check(opened.text("zeroes")? == "true", "the disk does not offer write-zeroes")?;
    for command in ["read 1 200", "write 2 600", "zeroes 3 40", "discard 4 40", "read 5 200", "write 6 100"] {
        let (kind, numbers) = command.split_once(' ').unwrap_or((command, ""));
        guest.ask(&format!("{kind} {disk} {numbers}"))?.clean()?;
    }
    guest.ask(&format!("flush {disk}"))?.clean()?;
    verify(place, guest, disk)
}

/// Reads all of a disk and compares it with what the guest knows. Returns the digest of its bytes.
///
/// # Errors
/// If anything is wrong.
pub fn verify(place: &Place, guest: &mut Guest, disk: &str) -> Result<String> {
    let verified = guest.ask(&format!("verify {disk}"))?.clean()?;
    place.say(&format!("{disk}: {} sectors read back, all right", verified.number("sectors")?));
    Ok(verified.text("digest")?.to_owned())
}

/// A load on several disks at once.
#[derive(Debug)]
pub struct Load<'a> {
    place: &'a Place,
    guest: &'a mut Guest,
    disks: Vec<String>,
}

impl<'a> Load<'a> {
    /// Starts requests of every kind on disks that are open.
    ///
    /// # Errors
    /// If the guest refuses.
    pub fn start(place: &'a Place, guest: &'a mut Guest, disks: &[&str], seed: u64) -> Result<Self> {
        Self::start_mix(place, guest, disks, seed, "mixed")
    }

    /// Starts writes alone.
    ///
    /// # Errors
    /// If the guest refuses.
    pub fn start_writes(place: &'a Place, guest: &'a mut Guest, disks: &[&str], seed: u64) -> Result<Self> {
        Self::start_mix(place, guest, disks, seed, "writes")
    }

    fn start_mix(
        place: &'a Place,
        guest: &'a mut Guest,
        disks: &[&str],
        seed: u64,
        mix: &str,
    ) -> Result<Self> {
        for (disk, seed) in disks.iter().zip(seed..) {
            guest.ask(&format!("start {disk} {seed} {mix}"))?;
        }
        Ok(Self { place, guest, disks: disks.iter().map(|disk| (*disk).to_owned()).collect() })
    }

    /// The guest, for what does not concern the load.
    pub fn guest(&mut self) -> &mut Guest {
        self.guest
    }

    /// How many requests each disk has finished.
    ///
    /// # Errors
    /// If the guest does not answer.
    pub fn requests(&mut self) -> Result<Vec<u64>> {
        let guest = &mut *self.guest;
        self.disks.iter().map(|disk| guest.ask(&format!("progress {disk}"))?.number("requests")).collect()
    }

    /// Waits until every disk has finished `more` requests.
    ///
    /// # Errors
    /// If one is stuck.
    pub fn advance(&mut self, more: u64) -> Result<()> {
        let before = self.requests()?;
        let start = Instant::now();
        loop {
            let now = self.requests()?;
            if now.iter().zip(&before).all(|(now, before)| *now >= before + more) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Check(format!("the load is stuck: {before:?} requests, {now:?} now")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no disk finishes a request for `quiet`.
    ///
    /// # Errors
    /// If they go on for more than `limit`.
    pub fn wait_for_stall(&mut self, quiet: Duration, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let (mut last, mut since) = (self.requests()?, Instant::now());
        while since.elapsed() < quiet {
            if start.elapsed() > limit {
                return Err(Error::Check(format!("writes go on after {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(100));
            let now = self.requests()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Ends the load; then reads everything back. Returns what each disk's guest counted.
    ///
    /// # Errors
    /// If a request failed or read wrong bytes, during the load or now.
    pub fn stop(self) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for disk in &self.disks {
            let answer = self.guest.ask(&format!("stop {disk}"))?.clean()?;
            self.place.say(&format!("{disk}: {answer}"));
            verify(self.place, self.guest, disk)?;
            answers.push(answer);
        }
        self.guest.no_complaints()?;
        Ok(answers)
    }
}

/// Makes a file system on a disk, fills it with `mebibytes` of files, and reads and checks it, across a remount.
///
/// # Errors
/// If a file is wrong or the file system's own check finds fault.
pub fn file_system(place: &Place, guest: &mut Guest, disk: &str, kind: &str, mebibytes: u64) -> Result<()> {
    let seed = 77;
    guest.ask(&format!("mkfs {disk} {kind}"))?;
    guest.ask(&format!("mount {disk} {kind}"))?;
    let files = guest.ask(&format!("fill {seed} {mebibytes}"))?.number("files")?;
    place.say(&format!("{disk}: {kind}, {files} files of {mebibytes} MiB written, a fifth removed"));
    guest.ask(&format!("files {seed} {mebibytes}"))?;
    guest.ask("umount")?;
    guest.ask(&format!("fsck {disk} {kind}"))?;
    guest.ask(&format!("mount {disk} {kind}"))?;
    let files = guest.ask(&format!("files {seed} {mebibytes}"))?.number("files")?;
    guest.ask("umount")?;
    place.say(&format!("{disk}: {kind} checked, {files} files read back, all right"));
    guest.no_complaints()
}

/// Fails unless the image has the digest that a guest told.
///
/// # Errors
/// [`Error::Check`] with both.
pub fn same_digest(path: &std::path::Path, expected: &str) -> Result<()> {
    let found = image::digest(path)?;
    check(found == expected, format!("{} has digest {found}, the guest's disk {expected}", path.display()))
}
