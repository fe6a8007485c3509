//! Marks on an image that say which hosts were fenced.
//!
//! A host that has detached a disk cleanly has neither a lock of its image nor a client: nothing can be taken away from
//! it, and it could lock the image again. So a fencing program marks the host first (`packaging/fence/fence-rbd`): it
//! takes the shared lock `haversack.fenced`, with the host's name in its description, and leaves it in place.
//!
//! Invariants
//! - A marked host neither locks the image nor uses a helper for it.
//! - A mark is removed only on request, and only while every other host is connected and so can say whether it has
//!   taken the disk over. Only marks that existed before that check are removed: fencing the host again leaves another
//!   one.

use super::Image;
use super::lock::{self, Holder, LockError};
use super::rados::{Header, LockInfo, Locker};
use crate::origin::BlockDevice;

/// The name of the lock whose holders are the marks.
const FENCED: &str = "haversack.fenced";

/// The marks of this host at an image.
#[derive(Debug)]
pub struct Marks {
    image: Image,
    marks: Vec<Locker>,
}

impl Marks {
    /// Returns the marks of the holder's host at a device's image, if there are any. Only disks that move have some.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn of(device: &BlockDevice, holder: &Holder) -> Result<Option<Marks>, LockError> {
        let Some(image) = Image::all_of(device).pop().filter(|_| holder.is_shared()) else { return Ok(None) };
        let marks = Header::of(&image).and_then(|header| marks_at(&header, holder));
        let marks = marks.map_err(lock::failed(&image))?;
        Ok((!marks.is_empty()).then_some(Marks { image, marks }))
    }

    /// Returns the error of a pool whose host is marked.
    pub fn error(&self) -> LockError {
        LockError::Lost { image: self.image.path() }
    }

    /// Removes these marks.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn remove(&self) -> Result<(), LockError> {
        let failed = lock::failed(&self.image);
        let header = Header::of(&self.image).map_err(&failed)?;
        self.marks.iter().try_for_each(|mark| header.unlock(FENCED, mark)).map_err(&failed)
    }
}

/// Returns whether a holder's host is marked.
pub(super) fn is_marked(header: &Header<'_>, holder: &Holder) -> Result<bool, String> {
    Ok(!marks_at(header, holder)?.is_empty())
}

fn marks_at(header: &Header<'_>, holder: &Holder) -> Result<Vec<Locker>, String> {
    Ok(marks_of(header.lock_info(FENCED)?, holder))
}

fn marks_of(info: LockInfo, holder: &Holder) -> Vec<Locker> {
    let is_its =
        |mark: &Locker| holder.host().is_some_and(|host| lock::host_of(&mark.description) == Some(host));
    info.lockers.into_iter().filter(is_its).collect()
}

#[cfg(test)]
mod tests {
    use haversack_model::{DiskId, Uuid};

    use super::*;

    #[test]
    fn a_host_is_marked_by_name() {
        let mark = |client: &str, description: &str| Locker {
            name: client.into(),
            cookie: "fenced".into(),
            description: description.into(),
            address: String::new(),
        };
        let marks = [
            ("client.1", "fenced by beta on host alpha"),
            ("client.2", "fenced by alpha on host beta"),
            ("client.3", "fenced by gamma on host alpha"),
        ];
        let lockers = marks.map(|(client, description)| mark(client, description)).to_vec();
        let info = LockInfo { lockers, ..LockInfo::default() };
        let marked = |host: Option<&str>| -> Vec<String> {
            let holder = Holder::new(Uuid([1; 16]), "main", DiskId([2; 16]), "vm1", host.map(str::to_string));
            marks_of(info.clone(), &holder).into_iter().map(|mark| mark.name).collect()
        };
        assert_eq!(marked(Some("alpha")), ["client.1", "client.3"]);
        assert!(marked(Some("gamma")).is_empty() && marked(None).is_empty());
    }
}
