//! The calls to Landlock.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};

use crate::error::SandboxError;
use crate::rules::{Access, Rule, Rules};

/// Without these, nothing is confined.
const REQUIRED: ABI = ABI::V1;
/// What is restricted where the kernel can. Newer versions restrict connecting to sockets, which origins need.
const WANTED: ABI = ABI::V5;
/// What newer versions of Landlock restrict, and since when.
const LATER: [(ABI, &str); 3] = [
    (ABI::V3, "truncating files (Linux 6.2)"),
    (ABI::V5, "control calls to devices (Linux 6.10)"),
    (ABI::V6, "connecting to abstract Unix sockets (Linux 6.12)"),
];

/// How far a process is confined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confined {
    /// The version of Landlock.
    pub version: u32,
    /// What this kernel's version cannot restrict, though newer ones can.
    pub unrestricted: Vec<&'static str>,
}

/// Confines the process and all that it starts to what the lists allow. Nothing of that can be undone. It must not have
/// more than one thread yet: others would stay as they are.
///
/// The process gets no new privileges from then on: programs with set-user-id are run without. Connecting to abstract
/// Unix sockets is refused unless `abstract_sockets` is set. Signals are not restricted.
///
/// # Errors
/// The kernel has no Landlock, the process has threads, or a listed path is gone. Nothing is restricted then.
pub fn confine(rules: &[&Rules], abstract_sockets: bool) -> Result<Confined, SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(SandboxError::Threads { threads });
    }
    confine_thread(rules, abstract_sockets)
}

/// Like [`confine`], but only for the calling thread and the threads that it starts from then on.
///
/// # Errors
/// The kernel has no Landlock, or a listed path is gone. Nothing is restricted then.
pub fn confine_thread(rules: &[&Rules], abstract_sockets: bool) -> Result<Confined, SandboxError> {
    let status = ruleset(rules, abstract_sockets, Gone::Refused)?.restrict_self()?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => Err(SandboxError::Unsupported),
        (_, LandlockStatus::Available { effective_abi, kernel_abi }) => {
            // What it is newer by makes no difference here.
            let version = kernel_abi.unwrap_or(effective_abi as i32);
            let unrestricted =
                LATER.iter().filter(|(since, _)| effective_abi < *since).map(|(_, what)| *what);
            Ok(Confined { version: version.unsigned_abs(), unrestricted: unrestricted.collect() })
        }
        _ => Err(SandboxError::Unsupported),
    }
}

/// Confines a program to what the lists allow, just before it is executed, in addition to the confinement of this
/// process. Listed paths that do not exist any more are left out.
///
/// # Errors
/// The kernel has no Landlock.
pub fn confine_child(command: &mut Command, rules: &[&Rules]) -> Result<(), SandboxError> {
    // The child inherits this process's restriction of abstract sockets.
    let descriptor: Option<OwnedFd> = ruleset(rules, true, Gone::LeftOut)?.into();
    let descriptor = descriptor.ok_or(SandboxError::Unsupported)?;
    // SAFETY: the closure runs in the child between fork and exec and makes two system calls, prctl and
    // landlock_restrict_self, which are async-signal-safe; it allocates nothing and takes no lock. The descriptor is
    // open for as long as the closure exists.
    unsafe {
        command.pre_exec(move || {
            let failed = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::syscall(libc::SYS_landlock_restrict_self, descriptor.as_raw_fd(), 0) != 0;
            if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Ok(())
}

/// What becomes of listed paths that do not exist any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    Refused,
    LeftOut,
}

/// Makes what the kernel enforces.
fn ruleset(rules: &[&Rules], abstract_sockets: bool, gone: Gone) -> Result<RulesetCreated, SandboxError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED))
        .map_err(|_| SandboxError::Unsupported)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(WANTED))?;
    let ruleset = if abstract_sockets { ruleset } else { ruleset.scope(Scope::AbstractUnixSocket)? };
    let mut ruleset = ruleset.create()?;
    for rule in rules.iter().flat_map(|rules| rules.all()) {
        let opened = match OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&rule.path) {
            Ok(opened) => opened,
            Err(_) if gone == Gone::LeftOut => continue,
            Err(source) => return Err(SandboxError::NotThere { path: rule.path.clone(), source }),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(opened, rights(rule)))?;
    }
    Ok(ruleset)
}

/// Returns Landlock's rights for a rule.
fn rights(rule: &Rule) -> BitFlags<AccessFs> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir | IoctlDev});
    let rights = match rule.access {
        Access::Read => read,
        Access::Run => read | AccessFs::Execute,
        Access::Write => {
            let others = make_bitflags!(AccessFs::{Execute | MakeChar | MakeBlock});
            AccessFs::from_all(WANTED) & !others
        }
        Access::Sockets => make_bitflags!(AccessFs::{ReadDir | MakeSock | RemoveFile}),
    };
    if rule.is_directory { rights } else { rights & AccessFs::from_file(WANTED) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;

    /// Runs something in a thread that is confined.
    fn confined<T: Send>(rules: &Rules, run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                confine_thread(&[rules], false).expect("the tests need a kernel with Landlock");
                run()
            });
            thread.join().unwrap()
        })
    }

    fn place() -> (tempfile::TempDir, Rules) {
        let place = tempfile::tempdir().unwrap();
        for directory in ["in", "out"] {
            fs::create_dir(place.path().join(directory)).unwrap();
            fs::write(place.path().join(directory).join("a"), "abc").unwrap();
        }
        let mut rules = Rules::default();
        rules.allow(&place.path().join("in"), Access::Write).unwrap();
        (place, rules)
    }

    fn is_denied<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    #[test]
    fn nothing_outside_is_opened_created_renamed_or_removed() {
        let (place, rules) = place();
        let (within, out) = (place.path().join("in"), place.path().join("out"));
        confined(&rules, || {
            assert!(is_denied(fs::read(out.join("a"))));
            assert!(is_denied(fs::write(out.join("new"), "")));
            assert!(is_denied(fs::rename(out.join("a"), out.join("b"))));
            assert!(is_denied(fs::remove_file(out.join("a"))));
            assert!(is_denied(fs::read_dir(&out)));
            assert!(fs::rename(within.join("a"), out.join("b")).is_err());
            fs::write(within.join("new"), "new").unwrap();
            fs::rename(within.join("new"), within.join("b")).unwrap();
            assert_eq!(fs::read(within.join("b")).unwrap(), b"new");
            fs::create_dir(within.join("c")).unwrap();
            fs::rename(within.join("b"), within.join("c/b")).unwrap();
            fs::remove_file(within.join("c/b")).unwrap();
            UnixListener::bind(within.join("socket")).unwrap();
        });
        assert_eq!(fs::read(out.join("a")).unwrap(), b"abc");
    }

    #[test]
    fn an_access_is_not_more_than_it_says() {
        let (place, mut rules) = place();
        let (read, sockets) = (place.path().join("read"), place.path().join("sockets"));
        for directory in [&read, &sockets] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("a"), "").unwrap();
        }
        rules.allow(&read, Access::Read).unwrap();
        rules.allow(&sockets, Access::Sockets).unwrap();
        rules.allow(&place.path().join("out/a"), Access::Write).unwrap();
        confined(&rules, || {
            fs::read(read.join("a")).unwrap();
            assert!(is_denied(fs::write(read.join("a"), "")));
            assert!(is_denied(UnixListener::bind(read.join("socket"))));
            UnixListener::bind(sockets.join("socket")).unwrap();
            fs::remove_file(sockets.join("socket")).unwrap();
            assert!(is_denied(fs::read(sockets.join("a"))) && is_denied(fs::write(sockets.join("b"), "")));
            fs::write(place.path().join("out/a"), "new").unwrap();
            assert!(is_denied(fs::write(place.path().join("out/b"), "")));
            assert!(is_denied(Command::new("/bin/true").status()), "a program outside is run");
        });
    }

    #[test]
    fn a_child_has_less_than_its_parent() {
        let (place, rules) = place();
        let system = |rules: &mut Rules| {
            for path in ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"] {
                rules.allow_if_there(Path::new(path), Access::Run);
            }
            // A command's standard input, if it has none.
            rules.allow(Path::new("/dev/null"), Access::Write).unwrap();
        };
        fs::create_dir(place.path().join("gone")).unwrap();
        let mut own = rules.clone();
        own.allow(&place.path().join("out"), Access::Read).unwrap();
        system(&mut own);
        let mut for_child = Rules::default();
        system(&mut for_child);
        for_child.allow(&place.path().join("out"), Access::Write).unwrap();
        for_child.allow(&place.path().join("gone"), Access::Write).unwrap();
        fs::remove_dir(place.path().join("gone")).unwrap();
        let cat = |path: &str| {
            let mut command = Command::new("cat");
            command.arg(place.path().join(path));
            command
        };
        confined(&own, || {
            assert_eq!(cat("in/a").output().unwrap().stdout, b"abc");
            for (path, is_readable) in [("in/a", false), ("out/a", true)] {
                let mut command = cat(path);
                confine_child(&mut command, &[&for_child]).unwrap();
                let output = command.output().unwrap();
                assert_eq!(output.status.success(), is_readable, "{path}: {output:?}");
            }
            let mut command = Command::new("sh");
            command.arg("-c").arg(format!("echo x >{}", place.path().join("out/new").display()));
            confine_child(&mut command, &[&for_child]).unwrap();
            assert!(!command.output().unwrap().status.success(), "a child has more than its parent");
        });
    }

    #[test]
    fn a_process_with_threads_is_not_confined_in_part() {
        let error = std::thread::spawn(|| confine(&[&Rules::default()], false).unwrap_err()).join().unwrap();
        assert!(matches!(error, SandboxError::Threads { threads } if threads > 1), "{error}");
        assert!(fs::read_dir("/").is_ok());
    }

    #[test]
    fn a_path_that_is_gone_again_is_an_error() {
        let (place, rules) = place();
        drop(place);
        let error = confine_thread(&[&rules], false).unwrap_err();
        assert!(matches!(error, SandboxError::NotThere { .. }), "{error}");
    }
}
