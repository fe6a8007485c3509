//! NBD clients: libnbd's, QEMU's and fio's.

use std::path::Path;

use serde_json::Value;

use crate::{Error, Result, tools};

/// What `nbdinfo --json` tells of an export.
///
/// # Errors
/// If the server refuses or the answer is no JSON.
pub fn nbdinfo(uri: &str) -> Result<Value> {
    let mut nbdinfo = tools::tool("nbdinfo")?;
    nbdinfo.args(["--json", uri]);
    let text = tools::run(nbdinfo)?;
    serde_json::from_str(&text)
        .map_err(|error| Error::Check(format!("nbdinfo printed no JSON ({error}): {text}")))
}

/// Copies from an NBD URI or a file to another.
///
/// # Errors
/// What nbdcopy printed.
pub fn nbdcopy(from: &str, to: &str) -> Result<()> {
    let mut nbdcopy = tools::tool("nbdcopy")?;
    nbdcopy.args([from, to]);
    tools::run(nbdcopy).map(|_| ())
}

/// Copies an export into a new file.
///
/// # Errors
/// What nbdcopy printed.
pub fn download(uri: &str, file: &Path) -> Result<()> {
    nbdcopy(uri, &file.display().to_string())
}

/// Compares two disks, NBD URIs or raw image files, byte by byte.
///
/// # Errors
/// Where they differ.
pub fn compare(left: &str, right: &str) -> Result<()> {
    let mut qemu_img = tools::tool("qemu-img")?;
    qemu_img.args(["compare", "-f", "raw", "-F", "raw", left, right]);
    tools::run(qemu_img).map(|_| ())
}

/// Runs qemu-io commands on an NBD URI or a raw image file.
///
/// # Errors
/// What qemu-io printed. It also fails where data does not have the pattern that `read -P` asks for.
pub fn qemu_io(disk: &str, commands: &[&str]) -> Result<String> {
    let mut qemu_io = tools::tool("qemu-io")?;
    qemu_io.args(["-f", "raw", "-d", "unmap"]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    qemu_io.arg(disk);
    tools::run(qemu_io)
}

/// Random writes by fio's NBD engine over the whole export, read back and verified by fio.
///
/// # Errors
/// What fio printed.
pub fn fio_verify(uri: &str, mebibytes: u64) -> Result<()> {
    let mut fio = tools::tool("fio")?;
    fio.args(["--name=verify", "--ioengine=nbd", &format!("--uri={uri}"), "--rw=randwrite", "--bs=4k"]);
    fio.args([
        "--iodepth=16",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--fsync=256",
    ]);
    fio.args([&format!("--size={mebibytes}m"), "--randseed=1"]);
    tools::run(fio).map(|_| ())
}

/// Lets fio's NBD engine do what its arguments say.
///
/// # Errors
/// What fio printed.
pub fn fio(uri: &str, arguments: &str) -> Result<()> {
    let mut fio = tools::tool("fio")?;
    fio.args(["--name=load", "--ioengine=nbd", &format!("--uri={uri}")]);
    fio.args(arguments.split_whitespace());
    tools::run(fio).map(|_| ())
}

/// Lets fio's NBD engine do what its arguments say, for n seconds at most.
///
/// # Errors
/// What fio printed.
pub fn fio_for(uri: &str, arguments: &str, seconds: u64) -> Result<()> {
    let mut fio = tools::tool("fio")?;
    fio.args(["--name=load", "--ioengine=nbd", &format!("--uri={uri}"), "--randseed=1"]);
    fio.args(arguments.split_whitespace());
    fio.args(["--time_based".to_owned(), format!("--runtime={seconds}")]);
    tools::run(fio).map(|_| ())
}
