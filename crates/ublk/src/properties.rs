//! The properties of the block device, from those of the disk.

use haversack_nbd::{Connected, TransmissionFlags as F};

use crate::abi::{self, Params};
use crate::error::UblkError;
use crate::request::SECTOR_BYTES;

/// The most data in a request.
const MAX_IO_BYTES: u32 = 512 << 10;
/// The most bytes in a discard or a write of zeroes.
const MAX_RANGE_BYTES: u32 = 256 << 20;
/// The kernel copies data by whole pages, and has no larger logical blocks.
const PAGE_BYTES: u32 = 4096;

/// Returns the most data in a request of a disk.
pub fn max_io_bytes(export: &str, connected: &Connected) -> Result<u32, UblkError> {
    let allowed = connected.block_size.maximum_payload_bytes().min(MAX_IO_BYTES);
    let bytes = allowed - allowed % PAGE_BYTES;
    let unfit = |found: String, expected| UblkError::Unfit { export: export.to_owned(), found, expected };
    if bytes == 0 {
        return Err(unfit(format!("a maximum payload of {allowed} bytes"), "4096 or more"));
    }
    let minimum = connected.block_size.minimum_bytes();
    if minimum > PAGE_BYTES {
        return Err(unfit(format!("a minimum block size of {minimum} bytes"), "4096 or less"));
    }
    Ok(bytes)
}

/// Returns the properties of a new block device.
pub fn properties(export: &str, connected: &Connected, is_read_only: bool) -> Result<Params, UblkError> {
    let max_io_bytes = max_io_bytes(export, connected)?;
    let logical = connected.block_size.minimum_bytes().max(SECTOR_BYTES as u32);
    let physical = connected.block_size.preferred_bytes().max(logical);
    let size_bytes = connected.size_bytes - connected.size_bytes % u64::from(logical);
    if size_bytes == 0 {
        let (found, expected) = (format!("{} bytes", connected.size_bytes), "at least one block");
        return Err(UblkError::Unfit { export: export.to_owned(), found, expected });
    }
    let mut params = Params {
        len: abi::PARAMS_BYTES,
        types: abi::PARAM_BASIC,
        attributes: attributes(connected.flags, is_read_only),
        logical_shift: logical.trailing_zeros() as u8,
        physical_shift: physical.trailing_zeros() as u8,
        optimal_shift: physical.trailing_zeros() as u8,
        minimum_shift: physical.trailing_zeros() as u8,
        max_sectors: max_io_bytes / SECTOR_BYTES as u32,
        device_sectors: size_bytes / SECTOR_BYTES,
        ..Params::default()
    };
    let is_writable = params.attributes & abi::ATTR_READ_ONLY == 0;
    let range_sectors = |flag| {
        if is_writable && connected.flags.contains(flag) { MAX_RANGE_BYTES / SECTOR_BYTES as u32 } else { 0 }
    };
    params.max_discard_sectors = range_sectors(F::SEND_TRIM);
    params.max_zeroes_sectors = range_sectors(F::SEND_WRITE_ZEROES);
    if params.max_discard_sectors + params.max_zeroes_sectors > 0 {
        params.types |= abi::PARAM_DISCARD;
        params.discard_granularity = physical;
        params.max_discard_segments = 1;
    }
    Ok(params)
}

fn attributes(flags: F, is_read_only: bool) -> u32 {
    let mut attributes = 0;
    if is_read_only || flags.contains(F::READ_ONLY) {
        attributes |= abi::ATTR_READ_ONLY;
    }
    if flags.contains(F::ROTATIONAL) {
        attributes |= abi::ATTR_ROTATIONAL;
    }
    if flags.contains(F::SEND_FLUSH) {
        attributes |= abi::ATTR_VOLATILE_CACHE;
        // The kernel uses it only with a volatile cache; without FUA it sends a write and a flush.
        if flags.contains(F::SEND_FUA) {
            attributes |= abi::ATTR_FUA;
        }
    }
    attributes
}

#[cfg(test)]
mod tests {
    use haversack_nbd::BlockSize;

    use super::*;

    fn connected(size_bytes: u64, flags: F, block_size: BlockSize) -> Connected {
        Connected { size_bytes, flags, block_size, structured_replies: true, context_id: None, tls: false }
    }

    fn of(size_bytes: u64, flags: F, is_read_only: bool) -> Params {
        let block_size = BlockSize::new(512, 4096, 32 << 20).unwrap();
        properties("vm1", &connected(size_bytes, flags, block_size), is_read_only).unwrap()
    }

    #[test]
    fn a_device_has_what_its_disk_has() {
        let all = F::SEND_FLUSH | F::SEND_FUA | F::SEND_TRIM | F::SEND_WRITE_ZEROES;
        let params = of((1 << 30) + 100, all, false);
        assert_eq!((params.device_sectors, params.max_sectors), (1 << 21, 1024));
        assert_eq!((params.logical_shift, params.physical_shift, params.discard_granularity), (9, 12, 4096));
        assert_eq!(params.attributes, abi::ATTR_VOLATILE_CACHE | abi::ATTR_FUA);
        assert_eq!(params.types, abi::PARAM_BASIC | abi::PARAM_DISCARD);
        assert_eq!((params.max_discard_sectors, params.max_zeroes_sectors), (1 << 19, 1 << 19));
    }

    #[test]
    fn a_device_has_nothing_that_its_disk_lacks() {
        let params = of(4096, F::SEND_FUA, false);
        assert_eq!((params.attributes, params.types), (0, abi::PARAM_BASIC));
        let params = of(4096, F::SEND_WRITE_ZEROES, false);
        assert_eq!((params.max_discard_sectors, params.max_zeroes_sectors), (0, 1 << 19));
        for params in [of(4096, F::READ_ONLY | F::SEND_TRIM, false), of(4096, F::SEND_TRIM, true)] {
            assert_eq!((params.attributes, params.types), (abi::ATTR_READ_ONLY, abi::PARAM_BASIC));
        }
    }

    #[test]
    fn a_disk_that_the_kernel_could_not_use_is_refused() {
        for (size_bytes, minimum, maximum, words) in [
            (1 << 20, 8192, 1 << 20, "minimum block size of 8192"),
            (1 << 20, 512, 2048, "maximum payload of 2048"),
            (100, 512, 1 << 20, "100 bytes"),
        ] {
            let block_size = BlockSize::new(minimum, minimum, maximum).unwrap();
            let error = properties("vm1", &connected(size_bytes, F::NONE, block_size), false)
                .unwrap_err()
                .to_string();
            assert!(error.contains(words), "{words:?} is not in {error:?}");
        }
    }
}
