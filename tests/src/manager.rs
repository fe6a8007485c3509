//! A VM manager, like libvirt: it knows which QEMU each VM runs in. The balancer of a cluster calls a program to move a
//! VM, and the program asks the manager to start a QEMU that waits for the VM.
//!
//! The program ([`Manager::program`]) is a shell script. It attaches the disk at the destination, sends its question to
//! the manager through files, and then becomes `haversack migrate --qmp`: so killing the program kills the process that
//! moves the VM. The manager answers only while [`Manager::attend`] runs, in the thread of the test.
//!
//! A VM whose QEMU is killed is gone. One that was moved runs where its QEMU runs, whatever became of the program.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::guest::Qemu;
use crate::haversack::{RUNTIME, pool_of};
use crate::tools::{self, PATIENCE, wait_until};
use crate::{Answer, Attachment, Error, Guest, Place, Result};

/// How long a disk's socket may take to appear at a host that has just attached it.
const SOCKET_TIME: Duration = Duration::from_secs(10);

/// A host as the manager sees it.
#[derive(Debug)]
pub struct Site {
    name: String,
    run: PathBuf,
    pool: String,
}

impl Site {
    /// The host of this name whose daemon is in this place.
    pub fn new(name: &str, place: &Place) -> Self {
        Self { name: name.into(), run: place.path(RUNTIME), pool: pool_of(place) }
    }

    fn attachment(&self, vm: &str, way: Way) -> Attachment {
        match way {
            Way::VhostUser => Attachment::VhostUser(self.run.join(format!("{vm}.sock"))),
            Way::Nbd => Attachment::Nbd {
                socket: self.run.join("nbd.sock"),
                export: vm.into(),
                reconnect_s: PATIENCE.as_secs() as u32,
            },
        }
    }
}

/// How a VM has its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// vhost-user-blk.
    VhostUser,
    /// NBD.
    Nbd,
}

/// A VM with one disk, which has its name.
#[derive(Debug)]
pub struct Vm {
    name: String,
    way: Way,
    site: usize,
    guest: Option<Guest>,
    moving: Option<Moving>,
    /// QEMUs started for it so far.
    count: usize,
    /// One of its QEMUs was killed.
    was_hit: bool,
}

/// A VM is being moved.
#[derive(Debug)]
struct Moving {
    /// The process that moves it.
    program: Pid,
    to: usize,
    /// None if it was killed.
    destination: Option<Qemu>,
    /// Since when the program has ended.
    ended: Option<Instant>,
}

impl Vm {
    /// Its name, and that of its disk.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the host that it runs on, or was killed on.
    pub fn site(&self) -> usize {
        self.site
    }

    /// Returns whether it runs.
    pub fn is_alive(&self) -> bool {
        self.guest.is_some()
    }

    /// The number of the host that it is being moved to.
    pub fn moves_to(&self) -> Option<usize> {
        self.moving.as_ref().map(|moving| moving.to)
    }

    /// Its guest, which is not being moved.
    ///
    /// # Errors
    /// If it is, or it was killed.
    pub fn guest(&mut self) -> Result<&mut Guest> {
        let name = &self.name;
        if self.moving.is_some() {
            return Err(Error::Check(format!("{name} is being moved, and cannot be asked")));
        }
        self.guest.as_mut().ok_or_else(|| Error::Check(format!("{name} was killed")))
    }

    /// Sends its guest a command.
    ///
    /// # Errors
    /// As [`Guest::ask`], or it is being moved.
    pub fn ask(&mut self, command: &str) -> Result<Answer> {
        self.guest()?.ask(command)
    }

    /// `kill -9` of the QEMU that it runs in.
    pub fn kill(&mut self) {
        (self.guest, self.was_hit) = (None, true);
    }

    /// `kill -9` of the QEMU that waits for it. Returns whether there is one.
    ///
    /// # Errors
    /// If it has ended already.
    pub fn kill_destination(&mut self) -> Result<bool> {
        let destination = self.moving.as_mut().and_then(|moving| moving.destination.take());
        self.was_hit |= destination.is_some();
        destination.map_or(Ok(false), |qemu| qemu.kill().map(|()| true))
    }

    /// `kill -9` of the program that moves it. Returns whether there is one.
    pub fn kill_program(&self) -> bool {
        // It may have done its work in this moment.
        self.moving.as_ref().is_some_and(|moving| kill_process(moving.program, Signal::KILL).is_ok())
    }
}

/// See the module.
#[derive(Debug)]
pub struct Manager<'a> {
    place: &'a Place,
    directory: PathBuf,
    sites: Vec<Site>,
    vms: Vec<Vm>,
}

impl<'a> Manager<'a> {
    /// Makes a manager of hosts without VMs.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn new(place: &'a Place, sites: Vec<Site>) -> Result<Self> {
        let directory = place.path("manager");
        std::fs::create_dir(&directory).map_err(Error::io(directory.display().to_string()))?;
        let manager = Self { place, directory, sites, vms: Vec::new() };
        for Site { name, run, pool } in &manager.sites {
            let text = format!("run='{}' pool='{pool}'\n", run.display());
            manager.write(&format!("{name}.site"), &text)?;
        }
        manager.write_program()?;
        Ok(manager)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        // Write to a temporary file and rename it: readers see the whole file or none.
        let new = self.directory.join(format!("{name}.new"));
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
        written.map_err(Error::io(path.display().to_string()))
    }

    /// The program for `hook` of `[cluster]`.
    pub fn program(&self) -> PathBuf {
        self.directory.join("move-vm")
    }

    fn write_program(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let haversack = tools::own("haversack")?;
        let text = format!(
            "#!/bin/sh\n\
             # move-vm VM FROM TO: moves a VM for the balancer.\n\
             set -e\n\
             cd '{directory}'\n\
             haversack='{haversack}'\n\
             # One move of a VM at a time. What haversack leaves behind to call a move off keeps the lock.\n\
             exec 9>\"$1.lock\"\n\
             {flock} --nonblock 9 || {{ echo \"$1 is on its way\"; exit 1; }}\n\
             . \"./$2.site\"; from=$run\n\
             . \"./$3.site\"; . \"./$1.vm\"\n\
             # It may have been there before.\n\
             $haversack --socket \"$run/control.sock\" disk attach \"$1\" \"$origin\" --pool \"$pool\" --mode wb \\\n    \
                 --vhost-user \"$run/$1.sock\" --from \"$2\" ||\n    \
                 $haversack --socket \"$run/control.sock\" disk show \"$1\"\n\
             # The manager starts a QEMU that waits for the VM.\n\
             echo \"$2 $3 $$\" >\"$1.request.new\"\n\
             mv \"$1.request.new\" \"$1.request\"\n\
             until [ -e \"$1.$$.answer\" ]; do sleep 0.05; done\n\
             . \"./$1.$$.answer\"\n\
             exec $haversack --socket \"$from/control.sock\" migrate \"$1\" --to \"$3\" \\\n    \
                 --qmp \"$source\" --qmp-destination \"$destination\" --uri \"unix:$destination.memory\"\n",
            directory = self.directory.display(),
            haversack = haversack.get_program().display(),
            flock = tools::tool("flock")?.get_program().display(),
        );
        let program = self.program();
        self.write("move-vm", &text)?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .map_err(Error::io(program.display().to_string()))
    }

    /// The hosts' names, by number.
    pub fn site(&self, number: usize) -> &str {
        &self.sites[number].name
    }

    /// Boots a VM on a host that has its disk. Its guest knows the disk as `open` says: `zeroes` or `pattern`.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot(&mut self, name: &str, origin: &str, site: usize, way: Way, open: &str) -> Result<()> {
        self.write(&format!("{name}.vm"), &format!("origin='{origin}'\n"))?;
        let attachment = self.sites[site].attachment(name, way);
        let mut guest = Guest::boot(self.place, &format!("{name}-0"), &[attachment])?;
        guest.ask(&format!("open vda {name} {open}"))?;
        self.vms.push(Vm {
            name: name.into(),
            way,
            site,
            guest: Some(guest),
            moving: None,
            count: 1,
            was_hit: false,
        });
        Ok(())
    }

    /// The VMs, in the order in which they were booted.
    pub fn vms(&self) -> &[Vm] {
        &self.vms
    }

    /// As [`Manager::vms`].
    pub fn vms_mut(&mut self) -> &mut [Vm] {
        &mut self.vms
    }

    /// Answers the programs that request a QEMU, and determines where the VMs are whose programs have ended.
    ///
    /// # Errors
    /// A VM runs nowhere, although nobody has killed its QEMU.
    pub fn attend(&mut self) -> Result<()> {
        for number in 0..self.vms.len() {
            if self.vms[number].moving.is_some() {
                self.follow(number)?;
            } else {
                self.begin(number)?;
            }
        }
        Ok(())
    }

    /// Attends until no VM is being moved.
    ///
    /// # Errors
    /// As [`Manager::attend`], or one is moved for ever.
    pub fn settle(&mut self) -> Result<()> {
        wait_until("the end of all moves", PATIENCE, || {
            self.attend()?;
            Ok(self.vms.iter().all(|vm| vm.moving.is_none()))
        })
    }

    fn begin(&mut self, number: usize) -> Result<()> {
        let name = self.vms[number].name.clone();
        let request = self.directory.join(format!("{name}.request"));
        let Ok(text) = std::fs::read_to_string(&request) else { return Ok(()) };
        std::fs::remove_file(&request).map_err(Error::io(request.display().to_string()))?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let [from, to, process] = words[..] else { return Err(Error::Check(format!("{name}: {text}"))) };
        let answer = format!("{name}.{process}.answer");
        let place_of = |name: &str| self.sites.iter().position(|site| site.name == name);
        let (Some(program), Some(to)) = (process.parse().ok().and_then(Pid::from_raw), place_of(to)) else {
            return Err(Error::Check(format!("{name}: {text}")));
        };
        let refusal = match &self.vms[number] {
            vm if vm.guest.is_none() => Some("it was killed".to_owned()),
            vm if self.sites[vm.site].name != from => Some(format!("it is at {}", self.sites[vm.site].name)),
            _ => None,
        };
        let started = match refusal {
            Some(why) => Err(Error::Check(why)),
            None => self.expect(number, to),
        };
        match started {
            Ok(destination) => {
                let vm = &mut self.vms[number];
                let monitor = |qemu: &Qemu| qemu.monitor().display().to_string();
                let source = vm.guest.as_ref().map(|guest| monitor(guest.qemu())).unwrap_or_default();
                let text = format!("source='{source}' destination='{}'\n", monitor(&destination));
                vm.moving = Some(Moving { program, to, destination: Some(destination), ended: None });
                self.write(&answer, &text)
            }
            Err(error) => {
                self.place.say(&format!("{name} is not moved: {error}"));
                self.write(&answer, &format!("echo '{name} is not moved'; exit 1\n"))
            }
        }
    }

    /// Starts a QEMU at a host that waits for a VM.
    fn expect(&mut self, number: usize, to: usize) -> Result<Qemu> {
        let (vm, site) = (&mut self.vms[number], &self.sites[to]);
        let attachment = site.attachment(&vm.name, vm.way);
        wait_until("the socket of the disk", SOCKET_TIME, || Ok(attachment.path().exists()))?;
        let name = format!("{}-{}", vm.name, vm.count);
        vm.count += 1;
        Qemu::expect(self.place, &name, &[attachment], &[])
    }

    fn follow(&mut self, number: usize) -> Result<()> {
        let vm = &mut self.vms[number];
        let Some(moving) = &mut vm.moving else { return Ok(()) };
        if is_there(moving.program) {
            return Ok(());
        }
        let ended = *moving.ended.get_or_insert_with(Instant::now);
        let (here, there) = (vm.guest.as_ref().map(Guest::qemu), moving.destination.as_ref());
        let (state, state_there) = (here.and_then(run_state), there.and_then(run_state));
        let has_gone = here.is_none_or(|qemu| !is_alive(qemu)) || state.as_deref() == Some("postmigrate");
        let said = if here.is_some() && state_there.as_deref() == Some("running") {
            vm.site = moving.to;
            if let (Some(guest), Some(destination)) = (&mut vm.guest, moving.destination.take()) {
                drop(guest.runs_in(destination));
            }
            "runs"
        } else if state.as_deref() == Some("running") {
            // The program that moved the VM has ended without moving it, so the VM stays.
            "stays"
        } else if vm.was_hit && (here.is_none() || has_gone && !there.is_some_and(is_alive)) {
            vm.guest = None;
            "was killed"
        } else if ended.elapsed() < PATIENCE {
            // The VM is still on its way, or being brought back.
            return Ok(());
        } else {
            return Err(Error::Check(format!("{} runs nowhere: {state:?}, {state_there:?}", vm.name)));
        };
        (vm.moving, vm.was_hit) = (None, false);
        self.place.say(&format!("{} {said} at {}", vm.name, self.sites[vm.site].name));
        Ok(())
    }
}

/// The state of a QEMU's guest, if it answers.
fn run_state(qemu: &Qemu) -> Option<String> {
    qemu.watch().ok()?.run_state().ok()
}

fn is_alive(qemu: &Qemu) -> bool {
    i32::try_from(qemu.process().id()).ok().and_then(Pid::from_raw).is_some_and(is_there)
}

/// Returns whether a process is there and has not ended.
fn is_there(process: Pid) -> bool {
    let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}
