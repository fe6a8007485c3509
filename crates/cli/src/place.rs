//! Paths as the user types them, made absolute: the daemon has another working directory.

use std::path::{Path, PathBuf};

use crate::error::{CliError, Result};

/// Makes a path absolute.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| CliError::Failed(format!("{}: {e}", path.display())))
}

/// Makes the paths in an origin absolute: of a file or image, of an NBD server's socket, of Ceph's configuration file.
/// A word without a slash or a scheme counts as a path if such a file exists. Anything else, such as
/// `iscsi://host/target/0`, is unchanged.
pub fn origin(text: &str) -> Result<String> {
    match text.split_once(':').filter(|(scheme, _)| !scheme.contains('/')) {
        Some((scheme @ ("file" | "qcow2"), path)) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            if is_relative(path) { Ok(format!("{scheme}:{}", in_here(path)?)) } else { Ok(text.into()) }
        }
        Some(("nbd+unix" | "nbds+unix", _)) => with_value(text, '?', '&', "socket", |path| {
            // A value is percent-encoded, also its slashes.
            let is_absolute = path.to_ascii_lowercase().starts_with("%2f");
            if is_absolute { Ok(path.into()) } else { Ok(format!("{}{path}", encoded(&in_here("")?))) }
        }),
        Some(("rbd", _)) => with_value(text, ':', ':', "conf", in_here),
        Some(_) => Ok(text.into()),
        None if text.contains('/') || (!text.is_empty() && Path::new(text).exists()) => in_here(text),
        None => Ok(text.into()),
    }
}

fn is_relative(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/')
}

/// Returns a path in the current directory; the directory itself, with a slash, for an empty path.
fn in_here(path: &str) -> Result<String> {
    match path {
        "" => Ok(format!("{}/", in_here(".")?.trim_end_matches('/'))),
        path => Ok(absolute(Path::new(path))?.display().to_string()),
    }
}

/// Replaces the relative path that is the value of a key: in `head?key=value&key=value` after the first `?`.
fn with_value(
    text: &str,
    begin: char,
    between: char,
    key: &str,
    replaced: impl Fn(&str) -> Result<String>,
) -> Result<String> {
    let Some((head, pairs)) = text.split_once(begin) else { return Ok(text.into()) };
    let pair = |pair: &str| match pair.split_once('=') {
        Some((found, path)) if found == key && is_relative(path) => Ok(format!("{key}={}", replaced(path)?)),
        _ => Ok(pair.to_owned()),
    };
    let pairs: Vec<String> = pairs.split(between).map(pair).collect::<Result<_>>()?;
    Ok(format!("{head}{begin}{}", pairs.join(&between.to_string())))
}

/// Encodes a path for a URI.
fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let byte = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_paths_change() {
        let here = std::env::current_dir().unwrap();
        let in_here = |name: &str| here.join(name).display().to_string();
        // The crate's directory, in which its tests run, has this file.
        for (typed, sent) in [
            ("./vm1.raw", in_here("vm1.raw")),
            ("images/vm1.raw", in_here("images/vm1.raw")),
            ("./odd:name.raw", in_here("odd:name.raw")),
            ("Cargo.toml", in_here("Cargo.toml")),
            ("file:images/vm1.raw", format!("file:{}", in_here("images/vm1.raw"))),
            ("file:./vm1.raw", format!("file:{}", in_here("vm1.raw"))),
            ("file:no-such-file", format!("file:{}", in_here("no-such-file"))),
            ("file://images/vm1.raw", format!("file:{}", in_here("images/vm1.raw"))),
            ("qcow2:images/odd:name.qcow2", format!("qcow2:{}", in_here("images/odd:name.qcow2"))),
            ("qcow2://vm1.qcow2", format!("qcow2:{}", in_here("vm1.qcow2"))),
            ("nbd+unix:///vm1?socket=nbd.sock", format!("nbd+unix:///vm1?socket={}", in_here("nbd.sock"))),
            (
                "nbds+unix:///?tls-hostname=h&socket=run/a%20b",
                format!("nbds+unix:///?tls-hostname=h&socket={}", in_here("run/a%20b")),
            ),
            (
                "rbd:vms/vm1:id=user:conf=ceph.conf",
                format!("rbd:vms/vm1:id=user:conf={}", in_here("ceph.conf")),
            ),
        ] {
            assert_eq!(origin(typed).unwrap(), sent, "{typed}");
        }
        for typed in [
            "/dev/vg0/vm1",
            "/dev/disk/by-path/ip-10.0.0.5:3260-iscsi-lun-1",
            "rbd:vms/vm1",
            "rbd:vms/vm1@monday:conf=/etc/ceph/ceph.conf",
            "nbd+unix:///?socket=/run/slow.sock",
            "nbd+unix:///?socket=%2Frun%2Fslow.sock",
            "nbd+unix:///?socket=",
            "nbd+unix:///vm1",
            "nbd://host/socket=x",
            "iscsi://host/target/0",
            "nfs://host/images/vm1.raw",
            "file:/srv/vm1.raw",
            "file:///srv/vm1.raw",
            "file:",
            "qcow2:/srv/vm1.qcow2",
            "qcow2:",
            "qemu:{\"driver\": \"null-co\"}",
            "no-such-file",
            "",
        ] {
            assert_eq!(origin(typed).unwrap(), typed);
        }
    }

    #[test]
    fn a_directory_is_encoded_for_a_uri() {
        assert_eq!(encoded("/srv/a b/ä&c"), "/srv/a%20b/%C3%A4%26c");
        assert_eq!(encoded("/srv/vm-1.raw~"), "/srv/vm-1.raw~");
    }
}
