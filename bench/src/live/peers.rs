//! The peers' servers: nbdkit with its cache filter, and qemu-storage-daemon.

use std::io;
use std::path::Path;
use std::process::Command;

use super::process::Process;

/// nbdkit in front of an image, caching what is read, with the smallest blocks that it has: larger ones are slower.
pub fn nbdkit(image: &Path, socket: &Path, cache_directory: &Path) -> io::Result<Process> {
    let mut command = Command::new("nbdkit");
    command.env("TMPDIR", cache_directory);
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
    command
        .args(["--filter=cache", "file"])
        .arg(image)
        .args(["cache-on-read=true", "cache-min-block-size=4K"]);
    Process::start(command, "nbdkit")
}

fn storage_daemon(image: &Path) -> Command {
    let mut command = Command::new("qemu-storage-daemon");
    let name = image.display();
    command.args(["--object", "iothread,id=thread", "--blockdev"]);
    command.arg(format!(
        "driver=file,node-name=file,filename={name},cache.direct=on,aio=io_uring,locking=off,discard=unmap"
    ));
    command.args(["--blockdev", "driver=raw,node-name=disk,file=file"]);
    command
}

/// qemu-storage-daemon with an image as an NBD export, read directly.
pub fn storage_daemon_nbd(image: &Path, socket: &Path) -> io::Result<Process> {
    let mut command = storage_daemon(image);
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
    command.args(["--export", "type=nbd,id=export,node-name=disk,name=disk,writable=on,iothread=thread"]);
    Process::start(command, "qemu-system-common or qemu-storage-daemon")
}

/// qemu-storage-daemon with an image as a vhost-user-blk export, read and written directly.
pub fn storage_daemon_vhost_user(image: &Path, socket: &Path) -> io::Result<Process> {
    let mut command = storage_daemon(image);
    command.arg("--export").arg(format!(
        "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},writable=on,iothread=thread",
        socket.display()
    ));
    Process::start(command, "qemu-system-common or qemu-storage-daemon")
}
