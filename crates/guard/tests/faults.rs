//! Files that are truncated while they are mapped.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use haversack_guard::{Guard, Whole, any_lost};

const PAGE: usize = 4096;
const PAGES: usize = 4;
/// Set in a child process, in which the test does what ends its process.
const CHILD: &str = "HAVERSACK_GUARD_CHILD";

/// A mapping of a whole file, fully allocated and filled with sevens.
struct Mapped {
    file: File,
    start: *mut u8,
}

impl Mapped {
    fn new(file: File) -> Self {
        let bytes = PAGES * PAGE;
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as i64) }, 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let mapped = Self { file, start: start.cast() };
        (0..bytes).for_each(|at| mapped.set(at, 7));
        mapped
    }

    fn in_memory() -> Self {
        // SAFETY: the name is a string that ends with a zero byte.
        let descriptor = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(descriptor >= 0);
        // SAFETY: the descriptor is new.
        Self::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) })
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: within the mapping.
        unsafe { self.start.add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u8) {
        // SAFETY: within the mapping.
        unsafe { self.start.add(at).write_volatile(value) };
    }

    fn guard(&self) -> Guard {
        Guard::surviving(self.start, PAGES * PAGE).unwrap()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped with this length.
        unsafe { libc::munmap(self.start.cast(), PAGES * PAGE) };
    }
}

#[test]
fn a_mapping_that_is_cut_short_is_lost_and_no_other() {
    let (short, whole) = (Mapped::in_memory(), Mapped::in_memory());
    let (lost, kept) = (short.guard(), whole.guard());
    short.file.set_len(PAGE as u64).unwrap();
    assert_eq!((short.get(0), lost.is_lost()), (7, false));
    assert_eq!((short.get(2 * PAGE), lost.is_lost()), (0, true));
    assert!(any_lost() && !kept.is_lost());
    // The whole mapping now has zeroes, and can also be written.
    assert_eq!(short.get(0), 0);
    short.set(3 * PAGE, 1);
    assert_eq!((short.get(3 * PAGE), whole.get(3 * PAGE)), (1, 7));
    drop(lost);
    assert!(!short.guard().is_lost(), "a reused entry is not marked as lost");
}

#[test]
fn many_threads_lose_and_guard_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let mapped = Mapped::in_memory();
                    let guard = mapped.guard();
                    assert_eq!((mapped.get(PAGE), guard.is_lost()), (7, false));
                    mapped.file.set_len(0).unwrap();
                    mapped.set(PAGE, 9);
                    assert_eq!((mapped.get(PAGE), guard.is_lost()), (9, true));
                }
            });
        }
    });
}

/// Runs a test of this file in a process of its own, which the test must end.
fn process(test: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1").output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn check_killed(output: &Output, says: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{text}");
    assert!(text.contains(says), "{text}");
}

#[test]
fn a_mapping_that_nothing_can_replace_ends_the_process_with_its_name() {
    if !is_child() {
        let test = "a_mapping_that_nothing_can_replace_ends_the_process_with_its_name";
        return check_killed(&process(test), "the staging area was cut short");
    }
    let mapped = Mapped::in_memory();
    let _guard = Guard::ending(mapped.start, PAGES * PAGE, "the staging area was cut short").unwrap();
    mapped.file.set_len(0).unwrap();
    mapped.get(PAGE);
}

#[test]
fn a_fault_elsewhere_ends_the_process() {
    if !is_child() {
        return check_killed(&process("a_fault_elsewhere_ends_the_process"), "");
    }
    let (guarded, mapped) = (Mapped::in_memory(), Mapped::in_memory());
    let _guard = guarded.guard();
    mapped.file.set_len(0).unwrap();
    mapped.get(PAGE);
}

#[test]
fn a_signal_of_another_process_ends_this_one() {
    if !is_child() {
        return check_killed(&process("a_signal_of_another_process_ends_this_one"), "");
    }
    let _guard = Mapped::in_memory().guard();
    // SAFETY: changes no memory.
    unsafe { libc::raise(libc::SIGBUS) };
    std::thread::sleep(std::time::Duration::from_secs(5));
}

/// Without the watch the pages would read as zeroes.
#[test]
fn a_file_that_is_cut_short_and_made_long_again_ends_the_process() {
    if !is_child() {
        let output = process("a_file_that_is_cut_short_and_made_long_again_ends_the_process");
        if String::from_utf8_lossy(&output.stdout).contains("not allowed here") {
            return println!("userfaultfd is not allowed here");
        }
        return check_killed(&output, "the staging area was cut short");
    }
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let mapped = Mapped::new(file);
    let _guard = Guard::ending(mapped.start, PAGES * PAGE, "the staging area was cut short").unwrap();
    let Ok(_whole) = Whole::watch(mapped.start, PAGES * PAGE) else {
        return println!("userfaultfd is not allowed here");
    };
    assert_eq!(mapped.get(PAGE), 7);
    mapped.file.set_len(0).unwrap();
    mapped.file.set_len((PAGES * PAGE) as u64).unwrap();
    mapped.get(PAGE);
}
