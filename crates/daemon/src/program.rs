//! The operator's programs that fence a host or move a VM. They get their task as arguments and as a JSON
//! object on standard input. Only exit code 0 means success.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;

/// How often a running program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a program that was killed may take to end.
pub const KILL_TIME: Duration = Duration::from_secs(5);
/// The most of its output that is kept.
const MOST_OUTPUT_BYTES: u64 = 64 << 10;
/// How much more may be in memory while a program runs.
const SLACK_BYTES: u64 = 1 << 20;

/// Checks that a program can be run.
///
/// # Errors
/// Why it cannot.
pub fn check(program: &Path) -> Result<(), String> {
    let name = program.display();
    if !program.is_absolute() {
        return Err(format!("'{name}' is not an absolute path"));
    }
    let found = program.metadata().map_err(|error| format!("{name}: {error}"))?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(format!("{name} is not an executable file"));
    }
    Ok(())
}

/// Why a program has not done what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program cannot be run.
    #[error("{program}: cannot run: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It took too long, and was killed.
    #[error("{program}: not done within {} s", .time.as_secs())]
    Slow {
        /// The program.
        program: PathBuf,
        /// The time that it had.
        time: Duration,
    },
    /// It took too long, was killed, and still does not end: it waits for a device.
    #[error("{program}: not done within {} s, and cannot be ended: process {process} waits for a device", .time.as_secs())]
    Stuck {
        /// The program.
        program: PathBuf,
        /// The time that it had.
        time: Duration,
        /// The process.
        process: u32,
    },
    /// It reported a failure.
    #[error("{program}: {status}: {output}")]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The end of its output.
        output: String,
    },
}

/// Runs a program, and returns its output.
///
/// # Errors
/// It did not exit with code 0.
pub fn run(
    program: &Path,
    arguments: &[&str],
    input: &impl Serialize,
    time: Duration,
) -> Result<String, ProgramError> {
    let start = |source| ProgramError::Start { program: program.into(), source };
    let (input, mut output) = (input_of(input).map_err(start)?, tempfile().map_err(start)?);
    let child = Command::new(program)
        .args(arguments)
        .stdin(input)
        .stdout(output.try_clone().map_err(start)?)
        .stderr(output.try_clone().map_err(start)?)
        .process_group(0)
        .spawn();
    let mut child = child.map_err(start)?;
    let Some(status) = wait(&mut child, &output, time).map_err(start)? else {
        let (program, process) = (program.to_path_buf(), child.id());
        let group = Pid::from_raw(i32::try_from(process).unwrap_or(i32::MAX));
        // It may have ended in the meantime.
        let _ = killpg(group, Signal::SIGKILL);
        if wait(&mut child, &output, KILL_TIME).map_err(start)?.is_some() {
            return Err(ProgramError::Slow { program, time });
        }
        // This thread waits for its exit, so that nobody else has to.
        std::thread::spawn(move || child.wait());
        return Err(ProgramError::Stuck { program, time, process });
    };
    let text = text_of(&mut output).map_err(start)?;
    if status.success() {
        return Ok(text);
    }
    Err(ProgramError::Failed { program: program.into(), status, output: text })
}

/// Returns a file with the program's input: a pipe would block the writer if the program does not read it.
fn input_of(input: &impl Serialize) -> std::io::Result<File> {
    let mut file = tempfile()?;
    serde_json::to_writer(&mut file, input)?;
    file.write_all(b"\n")?;
    file.rewind()?;
    Ok(file)
}

/// Waits at most `time` for a program to end. Only the end of its output stays in memory.
fn wait(child: &mut Child, output: &File, time: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + time;
    let mut dropped_bytes = 0;
    loop {
        let status = child.try_wait()?;
        drop_start(output, &mut dropped_bytes)?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Frees the memory of the start of the output. `dropped_bytes` counts the bytes freed so far.
fn drop_start(output: &File, dropped_bytes: &mut u64) -> std::io::Result<()> {
    let wanted = output.metadata()?.len().saturating_sub(MOST_OUTPUT_BYTES);
    if wanted >= *dropped_bytes + SLACK_BYTES {
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (from, length) = (*dropped_bytes as i64, (wanted - *dropped_bytes) as i64);
        fallocate(output, mode, from, length)?;
        *dropped_bytes = wanted;
    }
    Ok(())
}

/// Returns an empty file in memory. If the output were a pipe, processes that the program leaves running would hold it
/// open.
fn tempfile() -> std::io::Result<File> {
    let name = c"haversack-program";
    let made = nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
    Ok(made.map(File::from)?)
}

fn text_of(output: &mut File) -> std::io::Result<String> {
    // Why it failed is at the end.
    let length = output.metadata()?.len();
    output.seek(SeekFrom::Start(length.saturating_sub(MOST_OUTPUT_BYTES)))?;
    let mut bytes = Vec::new();
    output.take(MOST_OUTPUT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_program_that_prints_without_end_only_the_end_is_kept() {
        let mut output = tempfile().unwrap();
        let mut dropped_bytes = 0;
        for round in 0..64u64 {
            output.write_all(&vec![b'a' + (round % 26) as u8; 1 << 20]).unwrap();
            drop_start(&output, &mut dropped_bytes).unwrap();
            let used = std::os::unix::fs::MetadataExt::blocks(&output.metadata().unwrap()) * 512;
            assert!(used <= 2 * SLACK_BYTES + MOST_OUTPUT_BYTES + 8192, "{used} bytes after {round} MiB");
        }
        output.write_all(b"the end").unwrap();
        let text = text_of(&mut output).unwrap();
        assert!(text.len() as u64 == MOST_OUTPUT_BYTES && text.ends_with("lthe end"), "{}", text.len());
        let shell = Path::new("/bin/sh");
        let printed = run(shell, &["-c", "yes | head -c 9000000; echo done"], &(), Duration::from_secs(60));
        assert!(printed.unwrap().ends_with("done"));
    }
}
