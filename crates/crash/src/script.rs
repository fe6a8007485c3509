//! Short scripts, crashed at every I/O in turn.

use haversack_core::{AdmissionConfig, Op, Persistence};
use haversack_model::WriteMode;

use crate::plan::Plan;
use crate::verify::Extent;
use crate::world::{Counts, CrashKind, Flow, Life, Stop, World};
use haversack_model::random::Random;

/// One script in this many loses devices of a whole pool, one after the other.
const SCRIPTS_WITH_LOSSES: u64 = 5;

/// One script in this many prepares segments while it runs, on devices that are not blank.
const SCRIPTS_THAT_PREPARE: u64 = 3;

/// One step of a script. Ranges are first sector and number of sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Writes without waiting.
    Write(u64, u32),
    /// Writes with FUA, without waiting.
    Fua(u64, u32),
    /// Reads without waiting.
    Read(u64, u32),
    /// Discards without waiting.
    Discard(u64, u32),
    /// Zeroes without waiting.
    Zero(u64, u32),
    /// Flushes without waiting.
    Flush,
    /// Waits for all requests.
    Wait,
    /// Changes the mode.
    Mode(WriteMode),
    /// Waits for all jobs.
    Jobs,
    /// Writes back all dirty blocks.
    Clean,
    /// Detaches and attaches again.
    Reattach,
    /// Releases; another host writes; attaches again.
    HandOver,
    /// Stops cleanly and starts again.
    Restart,
    /// Switches to the other disk.
    Other,
    /// Advances virtual time.
    Idle(u64),
    /// Waits until the pool is whole, and loses a device.
    Lose,
    /// Starts to remove a device.
    Remove,
}

use Step::{
    Clean, Discard, Flush, Fua, HandOver, Idle, Jobs, Lose, Mode, Other, Read, Reattach, Remove, Restart,
    Wait, Write, Zero,
};

/// The scripts; each runs with disks of any configuration. `w0+8` writes 8 sectors from sector 0; `f` writes with FUA,
/// `r` reads, `d` discards, `z` zeroes; a dot waits for requests, a semicolon for jobs; a mode's name sets it; `other`
/// switches to the other disk; `idle` and a number advance time by microseconds; `lose` loses a device of a whole
/// pool, `remove` starts to remove one.
pub const SCRIPTS: &[&str] = &[
    "w0+8 . flush . w0+8 . flush . r0+8 .",
    "w3+1 w4+9 . flush w4+3 . r0+16 w2+20 flush .",
    "f16+8 . w16+8 w17+3 f18+1 . r16+8 .",
    "r0+64 . flush . wa ; w0+32 . flush . r0+64 .",
    "r0+32 . flush . pt ; w8+8 . flush . wb ; r0+32 .",
    "w0+128 . flush . clean ; wi ; w0+64 . flush . r0+128 .",
    "w0+40 . flush . d8+16 . flush . r0+40 .",
    "w0+40 flush . z4+30 . w8+8 . flush . r0+40 .",
    "wb ; w0+512 . flush . w256+512 . flush . w0+1024 . flush . r0+1024 .",
    "r0+1024 . other r0+1024 . w0+256 . flush . other w0+64 . flush . r0+256 .",
    "wb ; w0+64 . flush . wt ; w0+32 . flush . wb ; w16+8 . flush .",
    "wt-cache ; w0+64 . w8+8 flush . w8+8 . clean ; r0+64 .",
    "wb ; w0+64 . flush . clean ; w0+8 . clean ; flush . r0+64 .",
    "wb ; w0+24 . flush . reattach w8+8 . flush . reattach r0+24 .",
    "w0+24 r64+64 . flush . hand-over r0+128 . w0+8 flush . r0+24 .",
    "wb ; w0+200 . restart w0+100 . flush . restart r0+200 .",
    "w0+16 w0+16 w8+16 r0+24 w4+8 flush r0+24 w0+24 . r0+24 .",
    "wb ; w0+256 . flush . idle6000000 wa ; w64+64 . idle2000000 flush . r0+256 .",
    "wt ; w0+64 . wa ; w0+32 . wt ; flush . r0+64 .",
    "wb ; r0+512 . flush . w0+64 . clean ; flush . r0+64 .",
    "wb ; w0+2048 . flush . w0+1024 . flush . d0+1024 . flush . r0+64 .",
    "wb ; w5+3 . flush . r0+16 . w9+2 . flush . clean ; r0+16 . flush .",
];

/// Scripts of pools that lose devices one after the other.
const LOSING_SCRIPTS: &[&str] = &[
    "wb ; r0+64 . w0+64 . flush . clean ; lose lose restart r0+64 .",
    "wb ; w0+64 . w0+64 . flush . clean ; lose lose restart r0+64 .",
    "wb ; r0+64 . lose w0+32 . flush . clean ; lose w16+8 . flush . restart r0+64 .",
    "wb ; r0+64 . flush . other wb ; w0+1024 . flush . other remove w0+64 . flush . clean idle3000 restart lose r0+64 .",
    "wb ; w0+64 . flush . other wb ; w0+1024 . flush . other remove w0+64 . flush . clean idle3000 restart lose r0+64 .",
];

fn parse(word: &str) -> Option<Step> {
    let range = |text: &str| {
        let (at, n) = text.split_once('+')?;
        Some((at.parse().ok()?, n.parse().ok()?))
    };
    Some(match word {
        "." => Wait,
        ";" => Jobs,
        "flush" => Flush,
        "clean" => Clean,
        "reattach" => Reattach,
        "hand-over" => HandOver,
        "restart" => Restart,
        "lose" => Lose,
        "remove" => Remove,
        "other" => Other,
        _ if word.starts_with("idle") => Idle(word[4..].parse().ok()?),
        _ => match (word.parse().ok(), word.split_at(1)) {
            (Some(mode), _) => Mode(mode),
            (None, ("w", rest)) => range(rest).map(|(at, n)| Write(at, n))?,
            (None, ("f", rest)) => range(rest).map(|(at, n)| Fua(at, n))?,
            (None, ("r", rest)) => range(rest).map(|(at, n)| Read(at, n))?,
            (None, ("d", rest)) => range(rest).map(|(at, n)| Discard(at, n))?,
            (None, ("z", rest)) => range(rest).map(|(at, n)| Zero(at, n))?,
            _ => return None,
        },
    })
}

impl Step {
    /// Returns the number of sectors that a disk needs for the step.
    fn end(&self) -> u64 {
        match *self {
            Write(at, n) | Fua(at, n) | Read(at, n) | Discard(at, n) | Zero(at, n) => at + u64::from(n),
            _ => 0,
        }
    }
}

impl World {
    fn run_steps(&mut self, steps: &[Step]) -> Flow {
        self.first_open()?;
        let mut disk = 0;
        for step in steps {
            match *step {
                Write(at, n) => self.push(disk, Op::Write { fua: false }, at, n)?,
                Fua(at, n) => self.push(disk, Op::Write { fua: true }, at, n)?,
                Read(at, n) => self.push(disk, Op::Read, at, n)?,
                Discard(at, n) => self.push(disk, Op::Discard, at, n)?,
                Zero(at, n) => self.push(disk, Op::WriteZeroes, at, n)?,
                Flush => self.push(disk, Op::Flush, 0, 0)?,
                Wait => self.drain()?,
                Mode(mode) => {
                    let none = self.disks[disk].config.persistence == Persistence::None;
                    if !(none && mode.defers_origin()) {
                        self.set_mode(disk, mode)?;
                    }
                }
                Jobs => self.wait("jobs of a script", |world| world.jobs.is_empty())?,
                Clean => {
                    self.clean(disk)?;
                }
                Reattach => {
                    self.detach(disk)?;
                    self.attach(disk)?;
                }
                HandOver => {
                    self.clean_release(disk)?;
                    self.wait("a release", |world| world.jobs.is_empty())?;
                    self.regain(disk)?;
                }
                Restart => {
                    self.drain()?;
                    self.restart()?;
                }
                Other => disk = 1 - disk,
                Lose => {
                    self.become_whole()?;
                    if let Some(device) = self.unplug() {
                        self.tell_of_loss(device)?;
                    }
                }
                Remove => self.remove_device()?,
                Idle(us) => {
                    let until = self.now + us;
                    for _ in 0..400 {
                        if self.now >= until || !self.advance()? {
                            break;
                        }
                    }
                }
            }
        }
        self.drain()
    }

    /// Checks after a crash that everything is right and stays right over a power cut, and that the disks still work.
    fn aftermath(&mut self, kind: CrashKind) -> Flow {
        self.crash_and_recover(kind)?;
        self.bring_back()?;
        self.verify(Extent::Touched)?;
        if self.rng.one_in(4) {
            self.clean_all()?;
        }
        if self.plan.faults.loss && (self.losses.is_some() || !self.devices[0].store.gone) {
            self.become_whole()?;
            if !self.plan.mirrored() && self.rng.one_in(2) {
                self.lose_device()?;
                self.drain()?;
            } else {
                self.unplug();
            }
            self.crash_and_recover(CrashKind::Power)?;
            self.bring_back()?;
            self.verify(Extent::Touched)?;
        }
        for disk in 0..self.disks.len() {
            let at = self.rng.below(200);
            self.push(disk, Op::Write { fua: false }, at, 9)?;
        }
        if self.rng.one_in(2) {
            self.flush_all()?;
        }
        let next = self.rng.pick(&[CrashKind::Kill, CrashKind::Power, CrashKind::Power]);
        self.crash_and_recover(next)?;
        self.bring_back()?;
        let extent = if self.rng.one_in(8) { Extent::Everything } else { Extent::Touched };
        self.verify(extent)
    }

    fn bring_back(&mut self) -> Flow {
        for disk in 0..self.disks.len() {
            match self.disks[disk].life {
                Life::Released => self.regain(disk)?,
                Life::Detached => self.attach(disk)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Runs one script with one configuration, crashing at every I/O with both kinds of crash.
///
/// # Errors
/// The first violation, and at which I/O of which script.
pub fn sweep(rng: &mut Random, total: &mut Counts, most_points: u64) -> Result<(), String> {
    let number = rng.below(SCRIPTS.len() as u64) as usize;
    let mut script = SCRIPTS[number];
    // Drawn separately, so that the other runs do not change.
    let mut apart = rng.clone().fork();
    let losing = apart.one_in(SCRIPTS_WITH_LOSSES);
    if losing {
        script = apart.pick(LOSING_SCRIPTS);
    }
    let steps: Option<Vec<Step>> = script.split_whitespace().map(parse).collect();
    let steps = steps.expect("the scripts are well formed");
    let mut plan = Plan::script(rng);
    let needed = steps.iter().map(Step::end).max().unwrap_or(0);
    plan.disks[0].sectors = needed.max(plan.disks[0].sectors);
    plan.disks[0].mode = if plan.disks[0].persistence == Persistence::None {
        rng.pick(&WriteMode::ALL.map(|m| if m.defers_origin() { WriteMode::WriteAround } else { m }))
    } else {
        rng.pick(&WriteMode::ALL)
    };
    let seed = rng.bits();
    if losing {
        plan.losing_any(&mut apart);
        plan.devices.resize(if steps.contains(&Remove) { 2 } else { 3 }, plan.devices[0]);
        for disk in &mut plan.disks {
            (disk.admission, disk.persistence) = (AdmissionConfig::Always, Persistence::All);
        }
    } else if apart.one_in(2) {
        plan.without_second_copies(&mut apart);
    }
    let mut apart = apart.fork();
    if apart.one_in(SCRIPTS_THAT_PREPARE) {
        plan.preparing(&mut apart);
    }
    let limit = total.points + most_points;
    for kind in [CrashKind::Kill, CrashKind::Power] {
        for n in 0.. {
            if total.points >= limit {
                return Ok(());
            }
            let mut world = match World::new(plan.clone(), Random::scrambled(seed)) {
                Ok(world) => world,
                Err(stop) => return Err(format!("{stop:?}")),
            };
            world.losses = losing.then(|| Random::scrambled(seed ^ n));
            world.crash_after(n, kind);
            let ended = match world.run_steps(&steps) {
                Err(Stop::Crash(kind)) => {
                    let fork = world.rng.bits() ^ n;
                    world.rng = Random::scrambled(fork);
                    world.counts.points += 1;
                    world.aftermath(kind).map(|()| false)
                }
                other => other.map(|()| true),
            };
            total.add(&world);
            match ended {
                Ok(true) => break,
                Ok(false) | Err(Stop::End) => {}
                Err(Stop::Violation(what)) => {
                    return Err(format!("script '{script}', {kind:?} at I/O {n}: {what}"));
                }
                Err(Stop::Crash(_)) => {
                    return Err(format!("script '{script}': a crash that nobody planned"));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_well_formed() {
        for script in SCRIPTS.iter().chain(LOSING_SCRIPTS) {
            for word in script.split_whitespace() {
                assert!(parse(word).is_some(), "'{word}' in '{script}'");
            }
        }
    }
}
