//! The real daemon with the real engine: a file-backed pool, a disk over NBD, a clean stop.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn qemu_io(dir: &Path, commands: &[&str]) {
    let uri = format!("nbd+unix:///vm1?socket={}", dir.join("nbd.sock").display());
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]).args(commands.iter().flat_map(|c| ["-c", c])).arg(uri);
    let output = command.output().expect("qemu-io is needed: install Debian's qemu-utils");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("verification failed"), "{text}{output:?}");
}

fn start(dir: &Path) -> Running {
    let child = Command::new(env!("CARGO_BIN_EXE_haversackd"))
        .arg("--config")
        .arg(dir.join("c.toml"))
        .spawn()
        .unwrap();
    let running = Running(child);
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::os::unix::net::UnixStream::connect(dir.join("nbd.sock")).is_err() {
        assert!(Instant::now() < deadline, "the daemon does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    running
}

#[test]
fn writes_survive_a_kill_and_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::File::create(dir.join("origin.img")).unwrap().set_len(64 << 20).unwrap();
    haversack_engine::pool::create(
        &[dir.join("cache.img")],
        haversack_engine::pool::Formatting { size_bytes: Some(128 << 20), ..Default::default() },
        haversack_engine::pool::Shape::default(),
    )
    .unwrap();
    let pool = format!("smoke-{}", std::process::id());
    let config = format!(
        "[daemon]\nruntime_dir = \"{0}/run\"\nstate_dir = \"{0}/state\"\n[[pool]]\nname = \"{pool}\"\n\
         devices = [\"{0}/cache.img\"]\nstaging = \"16MiB\"\ntransfer = \"16MiB\"\n[nbd]\nlisten = [\"unix:{0}/nbd.sock\"]\n\
         [[disk]]\nname = \"vm1\"\npool = \"{pool}\"\norigin = \"{0}/origin.img\"\n",
        dir.display()
    );
    std::fs::write(dir.join("c.toml"), config).unwrap();

    let killed = start(dir);
    qemu_io(dir, &["write -P 5 0 4M"]);
    drop(killed);
    let mut stopped = start(dir);
    qemu_io(dir, &["read -P 5 0 4M", "write -P 6 4M 4M"]);
    let pid = nix::unistd::Pid::from_raw(stopped.0.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(stopped.0.wait().unwrap().success());
    let _last = start(dir);
    qemu_io(dir, &["read -P 5 0 4M", "read -P 6 4M 4M"]);
    let _ = std::fs::remove_file(format!("/dev/shm/haversack-{pool}"));
}
