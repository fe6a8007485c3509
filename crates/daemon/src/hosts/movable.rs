//! Which disks can move between hosts, by their origins.
//!
//! All hosts between which a disk moves have its origin open at the same time; only the owner uses it
//! ([`haversack_ownership`]). So nothing between a host and the origin may keep state of it: neither data, nor where
//! the data is, nor writes that may still be carried out after another host has got the disk.
//!
//! | origin | moves | reason |
//! |---|---|---|
//! | file, block device, NBD server | yes | the engine accesses it itself |
//! | `rbd:` | yes, except a snapshot | the helper keeps nothing of it, and the hosts share its lock ([`crate::rbd`]) |
//! | `iscsi:`, `nfs:` | no | QEMU's clients keep a request that got no answer, and send it again when they reach the target again |
//! | `qcow2:` | no | QEMU keeps the image's tables from when it opens it |
//! | `qemu:` | no | it is not known what QEMU keeps of it |

use haversack_api::DiskConfig;

use crate::error::DaemonError;
use crate::origin::Origin;
use crate::rbd::can_move;

/// Returns why a disk does not move between hosts, if it does not.
pub fn why_it_stays(config: &DiskConfig, origin: &Origin) -> Option<&'static str> {
    if config.read_only {
        return Some("it is read-only");
    }
    let Origin::Helper(device) = origin else { return None };
    match config.origin.split_once(':')?.0 {
        "rbd" if can_move(&config.origin, device) => None,
        "rbd" => Some("its origin is a snapshot"),
        "iscsi" | "nfs" => Some(
            "QEMU sends writes that got no answer again later, and could overwrite what another host has written",
        ),
        "qcow2" => Some("QEMU keeps tables of a qcow2 image, which another host would change"),
        _ => Some("it is not known what QEMU keeps of its origin, which another host would change"),
    }
}

/// Returns the error of a request to move a disk that does not move.
pub fn stays(config: &DiskConfig) -> DaemonError {
    let origin = Origin::parse(&config.origin);
    let why = origin.ok().and_then(|origin| why_it_stays(config, &origin)).unwrap_or("it is not attached");
    DaemonError::conflict(
        format!("disk '{}' does not move between hosts: {why}", config.name),
        "detach it here, and attach it on the other host with a higher epoch",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(origin: &str, read_only: bool) -> Option<&'static str> {
        let config = DiskConfig {
            read_only,
            ..serde_json::from_value(serde_json::json!({"name": "vm1", "pool": "main", "origin": origin}))
                .unwrap()
        };
        why_it_stays(&config, &Origin::parse(origin).unwrap())
    }

    #[test]
    fn origins_of_which_nothing_is_kept_move() {
        for origin in ["/images/vm1.raw", "nbd://10.0.0.1/vm1", "rbd:vms/vm1"] {
            assert_eq!(why(origin, false), None, "{origin}");
            assert!(why(origin, true).is_some(), "{origin}");
        }
        for (origin, word) in [
            ("rbd:vms/vm1@snapshot", "snapshot"),
            ("iscsi://10.0.0.1/iqn.2020-01.org.example:x/1", "no answer"),
            ("nfs://10.0.0.1/images/vm1.raw", "no answer"),
            ("qcow2:/images/vm1.qcow2", "tables"),
            (r#"qemu:{"driver": "iscsi", "portal": "10.0.0.1"}"#, "not known"),
        ] {
            assert!(why(origin, false).unwrap().contains(word), "{origin}");
        }
    }
}
