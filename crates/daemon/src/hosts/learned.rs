//! What admission has learned of a disk moves with the disk: the sending host saves it in the disk's file, and the host
//! that has got the disk requests that file, in parts.
//!
//! Invariants
//! - The file is used only as a whole, if its checksum is right and it is of the disk.
//! - Without it nothing is lost but time: admission learns again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use haversack_model::{DiskId, HostId};

use super::Hosts;
use super::talk::{Answer, Question};
use crate::daemon::Daemon;
use crate::learned::{decode, open};

/// How long the other host may take for one part.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes in one part; an encoded part fits into a note.
const PART_BYTES: usize = 9 << 10;
/// A file of this kind is never longer.
const MOST_BYTES: usize = 8 << 20;

/// Who owns a disk when this host asks for what was learned of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This host: it has moved here.
    Ours,
    /// Still the other host: it is about to move here.
    Theirs,
}

/// Returns the part of bytes from one on, as of a file.
pub(super) fn part_of_bytes(bytes: &[u8], from: u64) -> Answer {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
    let part = &bytes[from..bytes.len().min(from.saturating_add(PART_BYTES))];
    let is_last = from + part.len() == bytes.len();
    Answer::Learned { part: BASE64_STANDARD.encode(part), is_last }
}

/// Returns the part of a file that begins at byte `from`.
fn part_of(file: &File, from: u64) -> io::Result<Answer> {
    let bytes = file.metadata()?.len();
    let left = bytes.saturating_sub(from);
    let mut part = vec![0; usize::try_from(left).unwrap_or(PART_BYTES).min(PART_BYTES)];
    file.read_exact_at(&mut part, from.min(bytes))?;
    let is_last = part.len() as u64 == left;
    Ok(Answer::Learned { part: BASE64_STANDARD.encode(part), is_last })
}

/// Asks for the parts of a file until it is whole.
fn collect(mut ask: impl FnMut(u64) -> Result<Answer, String>) -> Result<Vec<u8>, String> {
    let mut file = Vec::new();
    loop {
        let (part, is_last) = match ask(file.len() as u64)? {
            Answer::Learned { part, is_last } => (part, is_last),
            Answer::Refused(why) => return Err(why),
            other => return Err(format!("unexpected answer: {other:?}")),
        };
        let part = BASE64_STANDARD.decode(part).map_err(|error| error.to_string())?;
        if part.is_empty() && !is_last || file.len() + part.len() > MOST_BYTES {
            return Err("the parts do not form a file".into());
        }
        file.extend(part);
        if is_last {
            return Ok(file);
        }
    }
}

impl Daemon {
    /// Answers a host that asks what was learned of a disk that it has taken over.
    pub(super) fn learned_part(&self, disk: DiskId, from: u64) -> Answer {
        let file = open(&self.config.state_dir, disk);
        match file.and_then(|file| file.map(|file| part_of(&file, from)).transpose()) {
            Ok(Some(part)) => part,
            Ok(None) => Answer::Refused("nothing was learned of it".into()),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    /// Makes the admission of a disk that has moved here continue from what its previous host learned.
    pub(crate) fn take_over_learned(self: &Arc<Self>, disk: DiskId) {
        let Some(hosts) = self.hosts() else { return };
        let (daemon, asking) = (self.clone(), hosts.clone());
        let ask = move || {
            if let Err(why) = daemon.ask_for_learned(&asking, disk) {
                tracing::info!(%disk, "admission does not continue from what another host learned: {why}");
            }
        };
        if !hosts.learners.give(ask) {
            tracing::warn!(%disk, "admission starts learning again: too many disks have moved here");
        }
    }

    fn ask_for_learned(&self, hosts: &Hosts, id: DiskId) -> Result<(), String> {
        let text = |error: crate::error::DaemonError| error.to_string();
        let (_, disk) = self.by_id(id).map_err(text)?;
        let handle = disk.attached().map_err(text)?;
        let backend = &self.pool(&disk.config().pool).map_err(text)?.backend;
        let (host, file) = self.parts(hosts, id, Whose::Ours, |from| Question::Learned { from })?;
        let body = decode(id, file)?;
        let resumed = backend.resume_admission(handle, body).map_err(|error| error.to_string())?;
        tracing::info!(disk = %id, host, resumed, "the saved state of admission was read");
        Ok(())
    }

    /// Requests something in parts from the host from which a disk has come or is about to come. Returns that host's
    /// name and the joined parts.
    pub(super) fn parts(
        &self,
        hosts: &Hosts,
        id: DiskId,
        whose: Whose,
        question: impl Fn(u64) -> Question,
    ) -> Result<(String, Vec<u8>), String> {
        let text = |error: crate::error::DaemonError| error.to_string();
        let (_, disk) = self.by_id(id).map_err(text)?;
        let backend = &self.pool(&disk.config().pool).map_err(text)?.backend;
        let status = backend.migration_status(id).map_err(|error| error.to_string())?;
        let status = status.ok_or("the disk does not move")?;
        let from: Option<HostId> = match whose {
            Whose::Ours => Some(status.from),
            Whose::Theirs => status.owner_elsewhere(),
        };
        let from = from.filter(|from| *from != hosts.me).ok_or("the disk's previous host is not known")?;
        let file = collect(|at| {
            let answers = hosts.ask_now(&[from], id, &question(at));
            let answer = answers.recv_timeout(PATIENCE).map_err(|error| error.to_string())?;
            Ok(answer.1)
        })?;
        Ok((hosts.name_of(from).to_string(), file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn a_file_comes_over_in_parts() {
        let bytes: Vec<u8> = (0..PART_BYTES * 3 + 7).map(|at| at as u8).collect();
        let file = file(&bytes);
        let mut asked = Vec::new();
        let collected = collect(|from| {
            asked.push(from);
            part_of(&file, from).map_err(|error| error.to_string())
        });
        assert_eq!(collected, Ok(bytes));
        assert_eq!(asked, [0, 1, 2, 3].map(|part| part * PART_BYTES as u64));
    }

    #[test]
    fn a_part_fits_a_note() {
        let Ok(Answer::Learned { part, .. }) = part_of(&file(&[0; PART_BYTES * 2]), 0) else {
            panic!("a part")
        };
        assert!(part.len() + 256 <= haversack_link::MOST_NOTE_BYTES);
    }

    #[test]
    fn a_host_that_says_nonsense_is_not_believed() {
        let part =
            |bytes: &[u8], is_last| Ok(Answer::Learned { part: BASE64_STANDARD.encode(bytes), is_last });
        assert!(collect(|_| part(&[], false)).is_err(), "it would never end");
        assert!(collect(|_| part(&[0; PART_BYTES], false)).is_err(), "it would fill the memory");
        assert!(collect(|_| Ok(Answer::Learned { part: "*".into(), is_last: true })).is_err());
        assert!(collect(|_| Ok(Answer::Done)).is_err());
        let beyond = part_of(&file(&[1, 2]), u64::MAX).unwrap();
        assert_eq!(beyond, Answer::Learned { part: String::new(), is_last: true });
    }
}
