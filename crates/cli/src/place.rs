//! Paths as the user types them, made absolute: the daemon has another working directory.

use std::path::{Path, PathBuf};

use crate::error::{CliError, Result};

/// Makes a path absolute.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| CliError::Failed(format!("{}: {e}", path.display())))
}

/// Makes an origin absolute if it is a relative path. A word without a slash is a path if such a file exists; anything with a
/// scheme, such as `rbd:vms/vm1`, is left as it is.
pub fn origin(text: &str) -> Result<String> {
    let has_scheme = text.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'));
    let is_path = text.contains('/') || (!text.is_empty() && Path::new(text).exists());
    if has_scheme || !is_path {
        return Ok(text.into());
    }
    Ok(absolute(Path::new(text))?.display().to_string())
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
        ] {
            assert_eq!(origin(typed).unwrap(), sent, "{typed}");
        }
        for typed in [
            "/dev/vg0/vm1",
            "/dev/disk/by-path/ip-10.0.0.5:3260-iscsi-lun-1",
            "rbd:vms/vm1",
            "nbd+unix:///?socket=/run/slow.sock",
            "file:/srv/vm1.raw",
            "qemu:{\"driver\": \"null-co\"}",
            "no-such-file",
            "",
        ] {
            assert_eq!(origin(typed).unwrap(), typed);
        }
    }
}
