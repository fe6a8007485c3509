//! Sealed pages of 4 KiB, in which a torn write can be distinguished from rot.
//!
//! Segment metadata and write-intent bitmaps are kept in pairs of pages, written alternately with increasing
//! generations. After a power loss the newer page may be torn, and then the older one is valid. After rot of
//! the newer page the older one is *not* valid. To distinguish the two cases, each 512-byte sector of a page
//! ends in a tag that binds its content to the page's place and generation. A torn page consists of whole
//! sectors of two known generations; a rotten one has a sector that matches none.
//!
//! Invariants
//! - A page is overwritten only when its sibling, one generation younger, is durable. So the sectors of a
//!   page are of its own generation or of the one two before.
//! - Writes of different openings of the pool are distinguished even if they have the same generation: a page that was
//!   torn in one opening and rewritten in the next never counts as whole.
//! - Even generations live in page A, odd ones in page B.
//! - A page with numbers from which no pool could continue counts as rotten, even if its tags match.

use haversack_model::BLOCK_BYTES;

use crate::checksum::{crc32c, mix};
use crate::store::slot::IMPOSSIBLE_SEQ;

const SECTORS: usize = 8;
const SECTOR: usize = 512;
const BODY: usize = SECTOR - 4;

/// Bytes of a page that are not tags.
pub const PAYLOAD_BYTES: usize = SECTORS * BODY;
/// Bytes of the header at the start of the payload.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the payload after the header.
pub const CONTENT_BYTES: usize = PAYLOAD_BYTES - HEADER_BYTES;
/// Generations and sequence numbers are kept in 48 bits.
pub const NUMBER_LIMIT: u64 = 1 << 48;
/// No page gets as far as this generation. The highest ones are left free, so that a pair can be written on.
const IMPOSSIBLE_GENERATION: u64 = NUMBER_LIMIT - NUMBER_LIMIT / 16;

/// The kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Metadata of a segment.
    Segment = 1,
    /// Write-intent bitmap of a disk.
    Intent = 2,
}

/// The first bytes of a page's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Increases by one with each write of the pair.
    pub generation: u64,
    /// Every commit up to this sequence number was durable when the page was written.
    pub flushed_seq: u64,
    /// The disk that owns the segment or the map; `NO_OWNER` for none.
    pub owner: u16,
    /// Its kind.
    pub kind: Kind,
    /// The opening of the pool that wrote it, modulo 256.
    pub opening: u8,
}

/// Owner of a segment that belongs to no disk.
pub const NO_OWNER: u16 = u16::MAX;

/// The location of a page, as its tags contain it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Hash of the identities of the device and its pool.
    pub device_seed: u64,
    /// Byte offset on the device.
    pub offset_bytes: u64,
}

/// The write of a page that a sector belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Writing {
    generation: u64,
    opening: u8,
}

fn tag(body_crc: u32, place: Place, sector: usize, writing: Writing) -> u32 {
    let position = mix(place.device_seed ^ mix(place.offset_bytes + sector as u64));
    body_crc ^ mix(position ^ writing.generation ^ u64::from(writing.opening) << 56) as u32
}

/// Writes header and content into `page` and seals it. `content` may be shorter than the page.
pub fn seal(page: &mut [u8; BLOCK_BYTES], header: Header, content: &[u8], place: Place) {
    assert!(header.generation < NUMBER_LIMIT && header.flushed_seq < NUMBER_LIMIT);
    let mut head = [0u8; HEADER_BYTES];
    head[..6].copy_from_slice(&header.generation.to_le_bytes()[..6]);
    head[6..12].copy_from_slice(&header.flushed_seq.to_le_bytes()[..6]);
    head[12..14].copy_from_slice(&header.owner.to_le_bytes());
    (head[14], head[15]) = (header.kind as u8, header.opening);
    let writing = Writing { generation: header.generation, opening: header.opening };
    assert!(HEADER_BYTES + content.len() <= PAYLOAD_BYTES, "a page's content fits the page");
    page[..HEADER_BYTES].copy_from_slice(&head);
    let mut rest = content;
    for (index, sector) in page.chunks_exact_mut(SECTOR).enumerate() {
        let start = if index == 0 { HEADER_BYTES } else { 0 };
        let taken = rest.len().min(BODY - start);
        let (now, later) = rest.split_at(taken);
        rest = later;
        sector[start..start + taken].copy_from_slice(now);
        sector[start + taken..BODY].fill(0);
        let tag = tag(crc32c(&sector[..BODY]), place, index, writing);
        sector[BODY..].copy_from_slice(&tag.to_le_bytes());
    }
}

/// The state in which a page was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Whole.
    Intact(Header),
    /// Whole sectors of two generations: a write that was cut short by a power loss. Its content never
    /// counted.
    Torn,
    /// Some sectors are damaged.
    Rotten {
        /// Newest generation of the intact sectors, if there are any.
        generation: Option<u64>,
    },
}

impl Header {
    /// Whether a pool can continue from its numbers.
    fn is_possible(&self) -> bool {
        self.generation < IMPOSSIBLE_GENERATION && self.flushed_seq < IMPOSSIBLE_SEQ
    }
}

fn header(page: &[u8; BLOCK_BYTES]) -> Option<Header> {
    let number = |bytes: &[u8]| {
        let mut wide = [0u8; 8];
        wide[..6].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    Some(Header {
        generation: number(&page[..6]),
        flushed_seq: number(&page[6..12]),
        owner: u16::from_le_bytes([page[12], page[13]]),
        kind: match page[14] {
            1 => Kind::Segment,
            2 => Kind::Intent,
            _ => return None,
        },
        opening: page[15],
    })
}

/// Seals a page again with the header and the content that it has now. Does nothing if the header is of no kind.
pub fn reseal(page: &mut [u8; BLOCK_BYTES], place: Place) {
    if let Some(header) = header(page) {
        let content = content(page);
        seal(page, header, &content, place);
    }
}

/// Returns a sector's content checksum and the tag stored with it.
fn read_tag(page: &[u8; BLOCK_BYTES], sector: usize) -> (u32, u32) {
    let bytes = &page[sector * SECTOR..(sector + 1) * SECTOR];
    (crc32c(&bytes[..BODY]), u32::from_le_bytes(bytes[BODY..].try_into().expect("four bytes")))
}

fn fits(page: &[u8; BLOCK_BYTES], place: Place, sector: usize, writing: Writing) -> bool {
    let (crc, stored) = read_tag(page, sector);
    stored == tag(crc, place, sector, writing)
}

/// Returns the write that a sector belongs to, if its generation is one of those that are possible there.
fn writing_of(
    page: &[u8; BLOCK_BYTES],
    place: Place,
    sector: usize,
    generations: &[Option<u64>],
) -> Option<Writing> {
    let (crc, stored) = read_tag(page, sector);
    let candidates = generations
        .iter()
        .flatten()
        .flat_map(|generation| (0..=u8::MAX).map(|opening| Writing { generation: *generation, opening }));
    candidates.into_iter().find(|writing| stored == tag(crc, place, sector, *writing))
}

/// Returns the state of a page. `sibling` is the generation of the other page of the pair, if known.
pub fn inspect(page: &[u8; BLOCK_BYTES], place: Place, kind: Kind, sibling: Option<u64>) -> Found {
    let writing = |h: &Header| Writing { generation: h.generation, opening: h.opening };
    let head = header(page).filter(|h| h.kind == kind && fits(page, place, 0, writing(h)));
    if head.is_some_and(|head| !head.is_possible()) {
        return Found::Rotten { generation: None };
    }
    let mut generations = [None; 5];
    if let Some(h) = head {
        if (1..SECTORS).all(|sector| fits(page, place, sector, writing(&h))) {
            return Found::Intact(h);
        }
        generations[0] = Some(h.generation);
        generations[1] = h.generation.checked_sub(2);
        generations[2] = Some(h.generation + 2);
    }
    if let Some(sibling) = sibling {
        generations[3] = sibling.checked_sub(1);
        generations[4] = Some(sibling + 1);
    }
    let mut newest = None;
    let mut rotten = false;
    for sector in 0..SECTORS {
        match writing_of(page, place, sector, &generations) {
            Some(writing) => newest = newest.max(Some(writing.generation)),
            None => rotten = true,
        }
    }
    if rotten { Found::Rotten { generation: newest } } else { Found::Torn }
}

/// Returns the payload after the header, without tags.
pub fn content(page: &[u8; BLOCK_BYTES]) -> [u8; CONTENT_BYTES] {
    let mut payload = [0; PAYLOAD_BYTES];
    for (to, sector) in payload.chunks_exact_mut(BODY).zip(page.chunks_exact(SECTOR)) {
        to.copy_from_slice(&sector[..BODY]);
    }
    payload[HEADER_BYTES..].try_into().expect("what is left after the header")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { device_seed: 7, offset_bytes: 8192 };

    fn page(generation: u64, fill: u8) -> [u8; BLOCK_BYTES] {
        let mut page = [0; BLOCK_BYTES];
        let header = Header { generation, flushed_seq: 3, owner: 1, kind: Kind::Segment, opening: fill };
        seal(&mut page, header, &[fill; PAYLOAD_BYTES - HEADER_BYTES], PLACE);
        page
    }

    #[test]
    fn intact_round_trip() {
        let page = page(6, 9);
        let Found::Intact(header) = inspect(&page, PLACE, Kind::Segment, None) else { panic!() };
        assert_eq!((header.generation, header.flushed_seq, header.owner), (6, 3, 1));
        assert!(content(&page).iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_page_torn_at_any_set_of_sectors_is_not_taken_for_rot() {
        let (old, new) = (page(6, 1), page(8, 2));
        for set in 1u8..255 {
            let mut torn = old;
            for sector in (0..8).filter(|s| set & (1 << s) != 0) {
                torn[sector * 512..(sector + 1) * 512]
                    .copy_from_slice(&new[sector * 512..(sector + 1) * 512]);
            }
            assert_eq!(inspect(&torn, PLACE, Kind::Segment, Some(7)), Found::Torn, "sectors {set:08b}");
            torn[700] ^= 4;
            assert!(matches!(inspect(&torn, PLACE, Kind::Segment, Some(7)), Found::Rotten { .. }));
        }
    }

    #[test]
    fn two_lives_under_one_generation_do_not_mix() {
        let (one, other) = (page(8, 1), page(8, 2));
        let mut mixed = one;
        mixed[1024..2048].copy_from_slice(&other[1024..2048]);
        assert_eq!(inspect(&mixed, PLACE, Kind::Segment, Some(7)), Found::Torn);
    }

    #[test]
    fn a_page_from_another_place_is_rotten() {
        let elsewhere = Place { offset_bytes: 4096, ..PLACE };
        assert!(matches!(
            inspect(&page(6, 1), elsewhere, Kind::Segment, None),
            Found::Rotten { generation: None }
        ));
    }

    /// The next page of such a pair could not be written, nor the next commit after such a mark.
    #[test]
    fn a_page_with_impossible_numbers_is_rotten() {
        for (generation, flushed_seq) in [(NUMBER_LIMIT - 2, 3), (6, NUMBER_LIMIT - 1), (6, IMPOSSIBLE_SEQ)] {
            let mut page = [0; BLOCK_BYTES];
            let header = Header { generation, flushed_seq, owner: 1, kind: Kind::Segment, opening: 1 };
            seal(&mut page, header, &[], PLACE);
            for sibling in [None, Some(generation - 1)] {
                let found = inspect(&page, PLACE, Kind::Segment, sibling);
                assert_eq!(found, Found::Rotten { generation: None }, "{header:?}");
            }
        }
    }

    #[test]
    fn rot_in_the_header_sector_still_tells_the_generation() {
        let mut page = page(8, 2);
        page[3] ^= 1;
        let found = inspect(&page, PLACE, Kind::Segment, Some(7));
        assert_eq!(found, Found::Rotten { generation: Some(8) });
    }
}
