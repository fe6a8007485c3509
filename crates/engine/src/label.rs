//! Labels: the names of devices and disks and where they were, kept on every cache device, so that an operator
//! can find them without the daemon that used them. The layout is in `docs/format.md`, "Labels".
//!
//! Invariants
//! - A label is one sector: it is written as a whole or not at all. One that does not verify counts as absent.
//! - Labels are never needed to read data: a pool without any works as well.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use haversack_core::pool::{DEVICE_LABELS, DISK_LABELS};
use haversack_core::{Media, checksum};
use haversack_model::{BLOCK_BYTES, SECTOR_BYTES, Uuid};

use crate::error::Result;
use crate::media::Devices;

const MAGIC: &[u8; 8] = b"HVLABEL1";
/// Offset of the name and the place.
const TEXT: usize = 72;
const CRC: usize = SECTOR_BYTES - 4;
/// The longest name in bytes.
const MOST_NAME_BYTES: usize = 64;

/// What is known of a device or disk, apart from the core's metadata.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Label {
    /// The pool.
    pub pool: Uuid,
    /// The device or disk.
    pub id: Uuid,
    /// When it was last seen at its place, in seconds since 1970.
    pub seen_s: u64,
    /// The size of the device, or of the disk's origin.
    pub size_bytes: u64,
    /// The inode of an origin that is a file; 0 for others.
    pub inode: u64,
    /// The pool's name on a device's label, the disk's name on a disk's.
    pub name: String,
    /// The path of a device, or a disk's origin as configured; truncated if it is too long.
    pub place: String,
    /// The checksum of the whole place.
    pub place_crc: u32,
}

/// The kind of a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Device,
    Disk,
}

impl Kind {
    fn area(self) -> (u64, usize) {
        match self {
            Kind::Device => DEVICE_LABELS,
            Kind::Disk => DISK_LABELS,
        }
    }
}

/// Returns the current time in seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the checksum of a place.
pub fn place_crc(place: &str) -> u32 {
    checksum::crc32c(place.as_bytes())
}

/// Returns an origin as a label describes it: a file by its real path and inode, anything else as written.
pub fn place_of(origin: &str) -> (String, u64) {
    let path = origin.strip_prefix("file://").or(origin.strip_prefix("file:")).unwrap_or(origin);
    let Ok(path) = Path::new(path).canonicalize() else { return (origin.to_string(), 0) };
    let inode = std::fs::metadata(&path).map_or(0, |file| if file.is_file() { file.ino() } else { 0 });
    (path.display().to_string(), inode)
}

/// Returns the first `most` bytes of a text, or fewer so as not to split a character.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Label {
    /// Encodes the label as a sector.
    pub(crate) fn encode(&self) -> [u8; SECTOR_BYTES] {
        let name = cut(&self.name, MOST_NAME_BYTES);
        let place = cut(&self.place, CRC - TEXT - name.len());
        let mut sector = [0; SECTOR_BYTES];
        let mut put = |at: usize, bytes: &[u8]| sector[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &self.pool.0);
        put(24, &self.id.0);
        put(40, &self.seen_s.to_le_bytes());
        put(48, &self.size_bytes.to_le_bytes());
        put(56, &self.inode.to_le_bytes());
        put(64, &self.place_crc.to_le_bytes());
        put(68, &(name.len() as u16).to_le_bytes());
        put(70, &(place.len() as u16).to_le_bytes());
        put(TEXT, name.as_bytes());
        put(TEXT + name.len(), place.as_bytes());
        let crc = checksum::crc32c(&sector[..CRC]);
        sector[CRC..].copy_from_slice(&crc.to_le_bytes());
        sector
    }

    /// Decodes a sector; `None` if it is not a valid label.
    pub(crate) fn decode(sector: &[u8; SECTOR_BYTES]) -> Option<Label> {
        let crc = u32::from_le_bytes(sector[CRC..].try_into().ok()?);
        if !sector.starts_with(MAGIC) || crc != checksum::crc32c(&sector[..CRC]) {
            return None;
        }
        let u64_at = |at: usize| Some(u64::from_le_bytes(sector[at..at + 8].try_into().ok()?));
        let length = |at: usize| usize::from(u16::from_le_bytes([sector[at], sector[at + 1]]));
        let (name_end, place_end) = (TEXT + length(68), TEXT + length(68) + length(70));
        let text = |from: usize, to: usize| {
            let bytes = sector[..CRC].get(from..to)?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        Some(Label {
            pool: Uuid(sector[8..24].try_into().ok()?),
            id: Uuid(sector[24..40].try_into().ok()?),
            seen_s: u64_at(40)?,
            size_bytes: u64_at(48)?,
            inode: u64_at(56)?,
            place_crc: u32::from_le_bytes(sector[64..68].try_into().ok()?),
            name: text(TEXT, name_end)?,
            place: text(name_end, place_end)?,
        })
    }

    /// Returns whether the label names this origin: the same place, and the same file there.
    pub fn is_of(&self, origin: &str) -> bool {
        let (place, inode) = place_of(origin);
        let same_file = self.inode == 0 || inode == 0 || self.inode == inode;
        self.place_crc == place_crc(&place) && same_file
    }
}

/// Reads all labels of a kind from all devices; of several labels of one device or disk, the one written last.
pub(crate) fn read(devices: &mut Devices, kind: Kind) -> Vec<Label> {
    let mut found: Vec<Label> = Vec::new();
    let (start, length) = kind.area();
    for device in 0..devices.devices.len() {
        for page in (start..start + length as u64).step_by(BLOCK_BYTES) {
            let mut bytes = [0; BLOCK_BYTES];
            if devices.read(device, page, &mut bytes).is_err() {
                continue;
            }
            for label in bytes.as_chunks().0.iter().filter_map(Label::decode) {
                match found.iter_mut().find(|other| other.id == label.id) {
                    Some(other) if other.seen_s >= label.seen_s => {}
                    Some(other) => *other = label,
                    None => found.push(label),
                }
            }
        }
    }
    found
}

/// Writes labels at their numbers to all devices and makes them durable. Other labels are kept.
///
/// # Errors
/// A device cannot be read or written; the other devices have the labels.
pub(crate) fn write(devices: &mut Devices, kind: Kind, labels: &[(usize, Label)]) -> Result<()> {
    let mut result = Ok(());
    for device in 0..devices.devices.len() {
        let written = labels.iter().try_for_each(|(number, label)| {
            let page = kind.area().0 + (number / 8 * BLOCK_BYTES) as u64;
            let mut bytes = [0; BLOCK_BYTES];
            devices.read(device, page, &mut bytes)?;
            bytes[number % 8 * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&label.encode());
            devices.write(device, page, &bytes)
        });
        if let Err(failure) = written.and_then(|()| devices.flush(device)) {
            let path = devices.devices[device].path.clone();
            result = Err(crate::error::at("label", &path)(std::io::Error::other(failure.to_string())));
        }
    }
    result
}

/// Copies all labels from the first device to the others.
///
/// # Errors
/// A device cannot be read or written.
pub(crate) fn copy(devices: &mut Devices) -> Result<()> {
    let failed = |path: &std::path::Path, failure: haversack_core::IoFailure| {
        crate::error::at("label", path)(std::io::Error::other(failure.to_string()))
    };
    for (start, length) in [DEVICE_LABELS, DISK_LABELS] {
        for page in (start..start + length as u64).step_by(BLOCK_BYTES) {
            let mut bytes = [0; BLOCK_BYTES];
            let path = devices.devices[0].path.clone();
            devices.read(0, page, &mut bytes).map_err(|failure| failed(&path, failure))?;
            for device in 1..devices.devices.len() {
                let path = devices.devices[device].path.clone();
                devices.write(device, page, &bytes).map_err(|failure| failed(&path, failure))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        let place = "nbd://host/export".to_string();
        Label {
            pool: Uuid([1; 16]),
            id: Uuid([2; 16]),
            seen_s: 3,
            size_bytes: 4,
            inode: 5,
            name: "vm1".into(),
            place_crc: place_crc(&place),
            place,
        }
    }

    #[test]
    fn a_label_round_trips_and_damage_is_no_label() {
        let mut sector = label().encode();
        assert_eq!(Label::decode(&sector), Some(label()));
        for at in 0..SECTOR_BYTES {
            sector[at] ^= 4;
            assert_eq!(Label::decode(&sector), None, "byte {at}");
            sector[at] ^= 4;
        }
    }

    #[test]
    fn a_long_path_is_cut_and_still_distinct() {
        let place = format!("/{}", "ü".repeat(400));
        let long = Label { place_crc: place_crc(&place), place: place.clone(), ..label() };
        let read = Label::decode(&long.encode()).unwrap();
        assert!(place.starts_with(&read.place) && read.place.len() > 400);
        assert!(read.is_of(&place) && !read.is_of(&format!("{place}x")));
    }

    #[test]
    fn another_file_of_the_same_name_is_another_origin() {
        let path = std::env::temp_dir().join(format!("haversack-label-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let origin = path.display().to_string();
        let (place, inode) = place_of(&origin);
        let label = Label { place_crc: place_crc(&place), place, inode, ..label() };
        assert!(label.is_of(&origin) && label.is_of(&format!("file:{origin}")));
        let other = path.with_extension("new");
        std::fs::write(&other, "").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(!label.is_of(&origin));
        std::fs::remove_file(&path).unwrap();
    }
}
