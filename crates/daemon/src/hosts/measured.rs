//! What the policy has measured of a disk moves with the disk. The destination asks for the last windows when it
//! prepares the disk, and again when it owns the disk. So its policy can divide the pool immediately, as if it had
//! measured the windows itself.
//!
//! Invariants
//! - The windows are used only as a whole, if the checksum is right, they are of the disk, and each is consistent.
//! - Without them nothing is lost but time: the disk is measured as a new one.

use std::sync::Arc;

use haversack_model::DiskId;
use haversack_policy::{DiskWindow, KEPT_WINDOWS};

use super::learned::{Whose, part_of_bytes};
use super::talk::{Answer, Question};
use crate::daemon::Daemon;
use crate::sealed::{Kind, seal, unseal};

const KIND: Kind = Kind { magic: b"HVMEASRD", version: 1 };
/// Attempts to get all parts: if a window ends in between, they do not match.
const TRIES: u32 = 3;

fn encode<'a>(disk: DiskId, windows: impl Iterator<Item = &'a DiskWindow>) -> Vec<u8> {
    let windows: Vec<&DiskWindow> = windows.collect();
    let body = serde_json::to_vec(&windows).expect("windows have text keys and finite numbers");
    seal(KIND, disk, &body)
}

/// Returns the windows, oldest first.
fn decode(disk: DiskId, bytes: Vec<u8>) -> Result<Vec<DiskWindow>, String> {
    let body = unseal(KIND, disk, bytes)?;
    let windows: Vec<DiskWindow> = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    if windows.is_empty() || windows.len() > KEPT_WINDOWS {
        return Err(format!("{} windows: expected 1 to {KEPT_WINDOWS}", windows.len()));
    }
    windows
        .iter()
        .try_for_each(|window| window.check("of another host"))
        .map_err(|error| error.to_string())?;
    Ok(windows)
}

impl Daemon {
    /// Answers a host that asks what was measured of a disk.
    pub(super) fn measured_part(&self, id: DiskId, from: u64) -> Answer {
        let refuse = |error: crate::error::DaemonError| Answer::Refused(error.to_string());
        let (name, disk) = match self.by_id(id) {
            Ok(found) => found,
            Err(error) => return refuse(error),
        };
        match self.policy.kept_windows(&disk.config().pool, &name) {
            Ok(windows) if windows.is_empty() => Answer::Refused("nothing was measured of it".into()),
            Ok(windows) => part_of_bytes(&encode(id, windows.iter()), from),
            Err(error) => refuse(error),
        }
    }

    /// Makes this host's policy continue from what was measured of a disk on the host that the disk comes from.
    pub(crate) fn take_over_measured(self: &Arc<Self>, disk: DiskId, whose: Whose) {
        let Some(hosts) = self.hosts() else { return };
        let (daemon, asking) = (self.clone(), hosts.clone());
        let ask = move || {
            let mut asked = Err(String::new());
            for _ in 0..TRIES {
                asked = daemon.parts(&asking, disk, whose, |from| Question::Measured { from });
                let is_torn = |file: &Vec<u8>| unseal(KIND, disk, file.clone()).is_err();
                if !asked.as_ref().is_ok_and(|(_, file)| is_torn(file)) {
                    break;
                }
            }
            let taken = asked.and_then(|(host, file)| {
                let windows = decode(disk, file)?;
                let (name, found) = daemon.by_id(disk).map_err(|error| error.to_string())?;
                let count = windows.len();
                let arrived = daemon.policy.arriving(&found.config().pool, &name, windows);
                arrived.map_err(|error| error.to_string())?;
                tracing::info!(
                    disk = name,
                    host,
                    windows = count,
                    "the measurements of the policy were read"
                );
                Ok(())
            });
            if let Err(why) = taken {
                tracing::info!(%disk, "the policy does not continue from what another host measured: {why}");
            }
        };
        if !hosts.learners.give(ask) {
            tracing::warn!(%disk, "the disk is measured as a new one: too many disks have moved here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DiskId = DiskId([1; 16]);

    fn window(reads: u64) -> DiskWindow {
        DiskWindow { length_us: 10, reads, read_hits: 1, ..DiskWindow::default() }
    }

    #[test]
    fn windows_come_over_as_they_were() {
        let windows = [window(3), window(4)];
        assert_eq!(decode(DISK, encode(DISK, windows.iter())), Ok(windows.to_vec()));
    }

    #[test]
    fn what_is_not_whole_or_makes_no_sense_is_refused_and_the_reason_is_said() {
        let good = encode(DISK, [window(3)].iter());
        let why = |bytes: Vec<u8>| decode(DISK, bytes).expect_err("it is refused");
        assert_eq!(why(good[..20].to_vec()), "it is too short");
        assert_eq!(why(good[..good.len() - 1].to_vec()), "its checksum is wrong");
        assert_eq!(why(encode(DiskId([2; 16]), [window(3)].iter())), "it is of another disk");
        assert_eq!(why(seal(Kind { version: 2, ..KIND }, DISK, b"[]")), "it has another version");
        assert_eq!(why(encode(DISK, [].iter())), "0 windows: expected 1 to 16");
        let many = vec![window(3); KEPT_WINDOWS + 1];
        assert_eq!(why(encode(DISK, many.iter())), "17 windows: expected 1 to 16");
        assert!(why(seal(KIND, DISK, b"[{\"reads\": -1}]")).contains("invalid value"));
        let more_hits_than_reads = DiskWindow { read_hits: 5, ..window(3) };
        assert!(why(encode(DISK, [more_hits_than_reads].iter())).contains("5 of 3"));
        let sinking = serde_json::to_string(&[window(3)]).expect("text");
        let sinking = sinking.replacen("\"trd\":[]", "\"trd\":[[1,0.5],[2,0.25]]", 1);
        assert!(why(seal(KIND, DISK, sinking.as_bytes())).contains("a curve"), "{sinking}");
    }
}
