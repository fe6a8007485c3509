//! A negotiation while disks are attached, detached, resized and renamed: the negotiated values are the last ones
//! announced, and the disk that is handed over still exists.

use crate::constants::MAX_OPTION_BYTES;
use crate::{BlockSize, ExportInfo, Exports, ServerNegotiation, ServerStep};

use super::{ALL_FEATURES, plan};

const NAMES: [&str; 3] = ["a", "b", "ab"];

/// A disk, different from every other.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Disk {
    identity: u32,
    size_bytes: u64,
    read_only: bool,
}

/// The disks under [`NAMES`], and the pending events, one byte each.
struct Managed<'a> {
    disks: [Option<Disk>; NAMES.len()],
    script: std::slice::Iter<'a, u8>,
    attached: u32,
    /// The export looked up last, and its disk.
    found: Option<(Disk, ExportInfo)>,
}

impl<'a> Managed<'a> {
    fn new(script: &'a [u8]) -> Self {
        let mut managed =
            Managed { disks: Default::default(), script: script.iter(), attached: 0, found: None };
        (0..NAMES.len()).for_each(|place| managed.attach(place, 1));
        managed
    }

    fn attach(&mut self, place: usize, mebibytes: u64) {
        self.attached += 1;
        let (identity, size_bytes) = (self.attached, mebibytes << 20);
        self.disks[place] = Some(Disk { identity, size_bytes, read_only: false });
    }

    /// Applies the next event, if there is one.
    fn happen(&mut self) {
        let Some(byte) = self.script.next() else { return };
        let place = usize::from(byte >> 4) % NAMES.len();
        match (byte & 7, &mut self.disks[place]) {
            (0 | 1, _) => {}
            (2, disk) => *disk = None,
            // Another disk of that name and size.
            (3, _) => self.attach(place, 1),
            (4, _) => self.attach(place, 2),
            (5, Some(disk)) => disk.size_bytes ^= 3 << 20,
            (6, Some(disk)) => disk.read_only ^= true,
            (5 | 6, None) => self.attach(place, 1),
            (_, _) => self.disks.rotate_left(1),
        }
    }

    fn look_up(&self, name: &str) -> Option<(Disk, ExportInfo)> {
        let mut there = (0..NAMES.len()).filter(|place| self.disks[*place].is_some());
        let place = match (name, there.clone().count()) {
            ("", 1) => there.next()?,
            _ => NAMES.iter().position(|known| *known == name)?,
        };
        let disk = self.disks[place].clone()?;
        let export = ExportInfo {
            name: NAMES[place].to_owned(),
            description: String::new(),
            size_bytes: disk.size_bytes,
            read_only: disk.read_only,
            block_size: BlockSize::SERVER_DEFAULT,
            features: ALL_FEATURES,
        };
        Some((disk, export))
    }
}

impl Exports for Managed<'_> {
    fn names(&mut self) -> Vec<String> {
        self.happen();
        let there = NAMES.iter().zip(&self.disks).filter(|(_, disk)| disk.is_some());
        there.map(|(name, _)| (*name).to_owned()).collect()
    }

    fn lookup(&mut self, name: &str) -> Option<ExportInfo> {
        self.happen();
        self.found = self.look_up(name);
        self.found.as_ref().map(|(_, export)| export.clone())
    }
}

/// How a negotiation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handed {
    /// Before anything was negotiated.
    Never,
    /// With an export that was gone, or replaced, when it was to be handed over.
    TooLate,
    /// With the disk that was announced to the client.
    Over,
}

/// Feeds the bytes of a client to a server while its disks change. The first byte selects how the bytes are split, the
/// second how many of them are events between look-ups and pieces.
///
/// # Panics
/// An invariant is broken.
pub fn nbd_management_bytes(data: &[u8]) -> Handed {
    let [choice, length, data @ ..] = data else { return Handed::Never };
    let (script, data) = data.split_at(data.len().min((*length).into()));
    let (piece, policy) = plan(*choice);
    let mut managed = Managed::new(script);
    let mut output = Vec::new();
    let mut negotiation = ServerNegotiation::new(policy, &mut output);
    for mut input in data.chunks(piece) {
        while !input.is_empty() {
            let before = input.len();
            output.clear();
            match negotiation.receive(&mut input, &mut managed, &mut output) {
                Ok(ServerStep::Continue | ServerStep::StartTls) => {}
                Ok(ServerStep::Transmission(agreed)) => return hand_over(&mut managed, &agreed.export),
                Ok(ServerStep::Aborted) | Err(_) => return Handed::Never,
            }
            assert!(input.len() < before, "negotiation takes input");
            assert!(output.len() < 2 * MAX_OPTION_BYTES as usize, "output is bounded");
        }
        managed.happen();
    }
    Handed::Never
}

/// As a server must: the export is looked up again, since sending replies takes time.
fn hand_over(managed: &mut Managed<'_>, agreed: &ExportInfo) -> Handed {
    let (disk, export) = managed.found.clone().expect("what is agreed on was found");
    assert_eq!(*agreed, export, "what is agreed on is what was found last");
    managed.happen();
    managed.happen();
    if managed.look_up(&export.name) != Some((disk, export)) { Handed::TooLate } else { Handed::Over }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn option(bytes: &mut Vec<u8>, option: u32, data: &[u8]) {
        bytes.extend_from_slice(b"IHAVEOPT");
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
    }

    /// A client that queries all exports repeatedly and enters one.
    fn client(script: &[u8], looks: usize, name: &str) -> Vec<u8> {
        let mut bytes = vec![0xfc, script.len() as u8];
        bytes.extend_from_slice(script);
        bytes.extend_from_slice(&[0, 0, 0, 3]);
        option(&mut bytes, 8, b"");
        let about = |name: &str| [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0, 0]].concat();
        for at in 0..looks {
            option(&mut bytes, 3, b"");
            option(&mut bytes, 6, &about(NAMES[at % NAMES.len()]));
        }
        let name_length = (name.len() as u32).to_be_bytes();
        option(&mut bytes, 10, &[&name_length, name.as_bytes(), &[0; 4]].concat());
        option(&mut bytes, 7, &about(name));
        bytes
    }

    #[test]
    fn a_disk_in_the_place_of_the_one_agreed_on_is_not_handed_over() {
        assert_eq!(nbd_management_bytes(&client(&[], 3, "a")), Handed::Over);
        // The first look-up is for the contexts, the second for GO; then the disk is replaced, resized, or gone.
        for (then, handed) in [
            (3, Handed::TooLate),
            (5, Handed::TooLate),
            (6, Handed::TooLate),
            (2, Handed::TooLate),
            (0x13, Handed::Over),
        ] {
            assert_eq!(nbd_management_bytes(&client(&[0, 0, then], 0, "a")), handed, "{then}");
        }
        // If the disk is replaced between the selection of contexts and GO, the new one is announced and handed over.
        assert_eq!(nbd_management_bytes(&client(&[0, 4], 0, "a")), Handed::Over);
        assert_eq!(nbd_management_bytes(&client(&[0, 2], 0, "a")), Handed::Never);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn whatever_happens_between_look_ups_breaks_nothing(
            first: u8,
            script in prop::collection::vec(any::<u8>(), 0..40),
            looks in 0..20_usize,
            name in prop::sample::select(vec!["", "a", "b", "ab", "none"]),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = client(&script, looks, name);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes[0] = first;
            nbd_management_bytes(&bytes);
        }
    }
}
