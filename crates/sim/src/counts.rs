//! The counters of a simulation, for each volume. They count blocks unless the name says otherwise.

use serde::Serialize;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// See the module.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// Adds other counts.
            pub fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }

            /// The counts since then.
            #[must_use]
            pub fn since(&self, earlier: &Counts) -> Counts {
                Counts { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counts! {
    /// Read requests.
    read_requests,
    /// Write requests.
    write_requests,
    /// Flush requests.
    flush_requests,
    /// Discard requests.
    discard_requests,
    /// Blocks read that were cached.
    read_hits,
    /// Of these, blocks that were not admitted yet and whose data was staged.
    data_stage_hits,
    /// Blocks read that were not cached.
    read_misses,
    /// Blocks written that were cached.
    write_hits,
    /// Blocks written that were not cached.
    write_misses,
    /// Reads from the origin.
    origin_reads,
    /// Bytes that they read.
    origin_read_bytes,
    /// Writes to the origin.
    origin_writes,
    /// Bytes that they wrote.
    origin_written_bytes,
    /// Flash writes: blocks that the guest wrote.
    flash_guest_blocks,
    /// Flash writes: blocks filled from the origin.
    flash_fill_blocks,
    /// Flash writes: second copies, of dirty blocks or of everything on mirrored devices.
    flash_mirror_blocks,
    /// Flash writes: pages of metadata.
    flash_metadata_pages,
    /// Blocks rejected by admission or the sequential cut-off.
    not_admitted,
}

impl Counts {
    /// Counts a second copy of everything else that was written to flash.
    pub fn mirror_everything(&mut self) {
        self.flash_mirror_blocks =
            self.flash_guest_blocks + self.flash_fill_blocks + self.flash_metadata_pages;
    }

    /// All flash writes, in blocks.
    pub fn flash_writes(&self) -> u64 {
        self.flash_guest_blocks
            + self.flash_fill_blocks
            + self.flash_mirror_blocks
            + self.flash_metadata_pages
    }

    /// Blocks read.
    pub fn blocks_read(&self) -> u64 {
        self.read_hits + self.read_misses
    }

    /// Blocks written.
    pub fn blocks_written(&self) -> u64 {
        self.write_hits + self.write_misses
    }
}

/// A part of the whole; `None` if there is nothing of which it could be a part.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A part divided by the whole; 0 if the whole is 0.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
