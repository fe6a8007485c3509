//! System files that libraries and programs need, in addition to the paths that the configuration names.

use std::path::{Path, PathBuf};

use haversack_sandbox::{Access, Rules};
use serde_json::Value;

use crate::origin::BlockDevice;

/// Programs, with their libraries and data.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Information about the system, its processes and devices.
const SYSTEM: [&str; 2] = ["/proc", "/sys"];
/// Devices that contain nothing.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Settings of the host: among others, names of users and hosts, authorities, and what Ceph's clients need.
const SETTINGS: [&str; 7] = [
    "/etc",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/run/nscd",
    "/var/lib/sss",
    "/var/lib/ca-certificates",
    "/var/lib/ceph",
];
/// The settings that contain no secrets.
const HARMLESS_SETTINGS: [&str; 15] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/hosts",
    "/etc/services",
    "/etc/protocols",
    "/etc/passwd",
    "/etc/group",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs",
    "/etc/gnutls",
    "/etc/crypto-policies",
];
/// The file with the addresses of name servers. Often a link to a file that is replaced when the addresses change.
const NAME_SERVERS: &str = "/etc/resolv.conf";
/// QEMU's drivers of files, devices and image formats.
const LOCAL_DRIVERS: [&str; 17] = [
    "bochs",
    "cloop",
    "dmg",
    "file",
    "host_device",
    "luks",
    "null-aio",
    "null-co",
    "parallels",
    "qcow",
    "qcow2",
    "qed",
    "raw",
    "vdi",
    "vhdx",
    "vmdk",
    "vpc",
];

fn allow_all(rules: &mut Rules, paths: &[&str], access: Access) {
    for path in paths {
        rules.allow_if_there(Path::new(path), access);
    }
}

/// Allows running the system's programs.
pub fn allow_programs(rules: &mut Rules) {
    allow_all(rules, &PROGRAMS, Access::Run);
    allow_all(rules, &SYSTEM, Access::Read);
    allow_all(rules, &DEVICES, Access::Write);
}

/// Allows reading the system's settings.
pub fn allow_settings(rules: &mut Rules) {
    allow_all(rules, &SETTINGS, Access::Read);
    allow_name_servers(rules);
}

/// Allows reading those of the system's settings in which there are no secrets.
pub fn allow_harmless_settings(rules: &mut Rules) {
    allow_all(rules, &HARMLESS_SETTINGS, Access::Read);
    allow_name_servers(rules);
}

fn allow_name_servers(rules: &mut Rules) {
    let Ok(real) = std::fs::canonicalize(NAME_SERVERS) else { return };
    let directory = real.parent().filter(|directory| !Path::new(NAME_SERVERS).starts_with(directory));
    rules.allow_if_there(directory.unwrap_or(&real), Access::Read);
}

/// Returns the path of a program, given as in a command: a plain name is searched for in `PATH`.
pub fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_path_buf());
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Returns whether the state of the service is reported to an abstract socket.
pub fn needs_abstract_sockets() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|name| name.as_encoded_bytes().starts_with(b"@"))
}

/// Returns whether an origin's store may be on another host, so that its helper needs host names and keys.
pub fn is_remote(device: &BlockDevice) -> bool {
    fn has_remote(node: &Value) -> bool {
        let is_remote = node["driver"].as_str().is_some_and(|driver| !LOCAL_DRIVERS.contains(&driver));
        is_remote
            || node.as_object().is_some_and(|fields| fields.values().any(has_remote))
            || node.as_array().is_some_and(|list| list.iter().any(has_remote))
    }
    device.nodes.iter().any(has_remote)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    #[test]
    fn stores_elsewhere_are_told_from_local_ones() {
        let is_remote = |origin: &str| {
            let Ok(Origin::Helper(device)) = Origin::parse(origin) else { panic!("{origin} needs a helper") };
            super::is_remote(&device)
        };
        let local = r#"qemu:{"driver": "raw", "file": {"driver": "host_device", "filename": "/dev/a"}}"#;
        for origin in ["qcow2:/a", local] {
            assert!(!is_remote(origin), "{origin}");
        }
        let cached = r#"qemu:{"driver": "qcow2", "file": {"driver": "rbd", "pool": "vms", "image": "vm2"}}"#;
        for origin in ["rbd:vms/vm1", "iscsi://h/iqn.2020-01.org.example:x/1", "nfs://h/a", cached] {
            assert!(is_remote(origin), "{origin}");
        }
    }

    #[test]
    fn a_program_is_found_as_a_shell_does() {
        assert_eq!(find_program(Path::new("/opt/qemu")), Some("/opt/qemu".into()));
        assert!(find_program(Path::new("sh")).is_some_and(|path| path.ends_with("sh") && path.is_absolute()));
        assert_eq!(find_program(Path::new("no-such-program")), None);
    }
}
