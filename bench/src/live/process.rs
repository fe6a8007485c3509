//! Servers in processes of their own, ended when they are dropped, and what they use.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to open its socket.
const START: Duration = Duration::from_secs(60);

/// How long one may take to end.
const END: Duration = Duration::from_secs(2);

/// A running server.
pub struct Process {
    child: Child,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All that is resident.
    pub resident: u64,
    /// Of it, what is in shared-memory files.
    pub shared: u64,
}

/// Processor time of this process.
pub fn own_processor_time() -> io::Result<Duration> {
    processor_time("/proc/self/task")
}

fn processor_time(tasks: &str) -> io::Result<Duration> {
    let mut sum_ns = 0;
    for task in fs::read_dir(tasks)? {
        // A thread may end meanwhile.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum_ns += text.split(' ').next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum_ns))
}

impl Process {
    /// Starts a program of a Debian package.
    pub fn start(mut command: Command, package: &str) -> io::Result<Process> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| {
            let program = command.get_program().display();
            io::Error::other(format!("cannot start {program}: {error} (Debian package '{package}')"))
        })?;
        Ok(Process { child })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it where it is.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// The process, for its input and output.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Tries to connect until the server is there.
    pub fn patiently<T>(&mut self, mut connect: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let begin = Instant::now();
        loop {
            match connect() {
                Err(_) if begin.elapsed() < START && self.child.try_wait()?.is_none() => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
    }

    fn directory(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.id())
    }

    /// Processor time that all threads have used, ended ones not counted.
    pub fn processor_time(&self) -> io::Result<Duration> {
        processor_time(&self.directory("task"))
    }

    /// Threads that it has.
    pub fn threads(&self) -> io::Result<usize> {
        Ok(fs::read_dir(self.directory("task"))?.count())
    }

    /// Memory that it uses.
    pub fn memory(&self) -> io::Result<Memory> {
        let text = fs::read_to_string(self.directory("status"))?;
        let kib = |name: &str| -> io::Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.ok_or_else(|| io::Error::other(format!("no {name} in /proc/PID/status")))
        };
        Ok(Memory { resident: kib("VmRSS")? << 10, shared: kib("RssShmem")? << 10 })
    }

    /// Drops what the page cache has of the process's files that are written back.
    pub fn forget_page_cache(&self) -> io::Result<()> {
        for link in fs::read_dir(self.directory("fd"))? {
            let path = link?.path();
            if !fs::metadata(&path).is_ok_and(|about| about.is_file()) {
                continue;
            }
            let file = File::open(Path::new(&path))?;
            file.sync_all()?;
            // SAFETY: the descriptor is open. It is advice: nothing else can happen.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        Ok(())
    }
}

impl Drop for Process {
    /// Closes the input, which makes the engine clean up and end; other servers are killed after a while.
    fn drop(&mut self) {
        let _ = self.go_on();
        drop(self.child.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < END && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
