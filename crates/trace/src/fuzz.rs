//! Entry point of the fuzz target: a file of arbitrary bytes, read as any format.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::access::Access;
use crate::cut::Selection;
use crate::error::TraceError;
use crate::formats::Format;
use crate::open::{OpenOptions, open};
use crate::source::Source;

/// The most accesses read from one file: a small file can decompress to very many.
const MOST_ACCESSES: usize = 50_000;

/// Reads a file. The first byte selects the format, `a` for the recognised one, `b` for the first of [`Format::ALL`],
/// and so on; the other bytes are the file. It is read completely, strictly, and for a part of its time. Returns the
/// number of accesses of the first of these.
///
/// # Panics
/// A reader panics, or returns what its callers do not expect: times that decrease, or a volume without a name.
pub fn trace_bytes(data: &[u8]) -> usize {
    let Some((choice, bytes)) = data.split_first() else { return 0 };
    let choice = usize::from(choice.wrapping_sub(b'a')) % (Format::ALL.len() + 1);
    let format = choice.checked_sub(1).map(|at| Format::ALL[at]);
    // In memory, and gone with the descriptor.
    let Ok(file) = rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC) else { return 0 };
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).expect("memory for a small file");
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
    let options = OpenOptions { format, sort_window: 64, ..OpenOptions::default() };
    let whole = read(&path, &options).unwrap_or(0);
    let strictly = read(&path, &OpenOptions { strict: true, ..options.clone() });
    assert!(
        strictly.is_err() || strictly.is_ok_and(|accesses| accesses == whole),
        "strictly or not, it is the same"
    );
    let selection = Selection { span_ns: Some(1_000..1_000_000_000), ..Selection::default() };
    // Whatever the input is, it was refused or read in order.
    let _ = read(&path, &OpenOptions { selection, ..options });
    whole
}

fn read(path: &Path, options: &OpenOptions) -> Result<usize, TraceError> {
    let mut source = open(path, options)?;
    let (mut count, mut last_ns, mut batch) = (0, 0, Vec::new());
    loop {
        batch.clear();
        let given = source.read(&mut batch)?;
        assert_eq!(given, batch.len(), "the count is that of the accesses");
        check(&batch, source.as_ref(), &mut last_ns);
        count += given;
        if given == 0 || count >= MOST_ACCESSES {
            return Ok(count.min(MOST_ACCESSES));
        }
    }
}

fn check(batch: &[Access], source: &dyn Source, last_ns: &mut u64) {
    for access in batch {
        assert!(access.time_ns >= *last_ns, "{access:?} comes after {last_ns} ns");
        *last_ns = access.time_ns;
        assert!((access.volume.0 as usize) < source.volumes().len(), "{access:?} is of no volume");
        assert!(
            access.offset_bytes.checked_add(access.length_bytes.into()).is_some(),
            "{access:?} has no end"
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Initial inputs for a fuzzer: a small file of each format.
    fn seeds() -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/trace_bytes");
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        files
            .map(|path| {
                (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
            })
            .collect()
    }

    #[test]
    fn seeds_are_of_every_format_and_read() {
        let seeds = seeds();
        for format in Format::ALL {
            let found = seeds.iter().find(|(name, _)| name == format.name());
            let (name, bytes) = found.unwrap_or_else(|| panic!("no seed for {}", format.name()));
            let built = format != Format::Parquet || cfg!(feature = "parquet");
            assert!(!built || trace_bytes(bytes) > 0, "{name} has accesses");
        }
    }

    /// Its pages are read by a crate that does not expect damage.
    #[test]
    fn any_bit_of_a_parquet_file_may_be_wrong() {
        let (_, mut bytes) = seeds().into_iter().find(|(name, _)| name == "parquet").expect("a seed");
        for at in 1..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                trace_bytes(&bytes);
                bytes[at] ^= 1 << bit;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn damaged_files_are_read_or_refused(
            seed in any::<prop::sample::Index>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            end in prop::option::of(any::<prop::sample::Index>()),
            format in prop::option::of(b'a'..=b't'),
        ) {
            let seeds = seeds();
            let mut bytes = seeds[seed.index(seeds.len())].1.clone();
            let len = bytes.len();
            damage.into_iter().for_each(|(at, value)| bytes[at.index(len)] = value);
            if let Some(end) = end {
                bytes.truncate(end.index(bytes.len()));
            }
            if let (Some(format), Some(first)) = (format, bytes.first_mut()) {
                *first = format;
            }
            trace_bytes(&bytes);
        }

        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            trace_bytes(&bytes);
        }
    }
}
