//! What a simulation counts, for each volume. Blocks are counted unless the name says otherwise.

use serde::Serialize;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// See the module.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// Adds others.
            pub fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }

            /// What has been counted since.
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
    /// Of these, blocks that admission had not let in yet and whose data was staged.
    data_stage_hits,
    /// Blocks read that were not.
    read_misses,
    /// Blocks written that were cached.
    write_hits,
    /// Blocks written that were not.
    write_misses,
    /// Reads of the origin.
    origin_reads,
    /// Bytes that they read.
    origin_read_bytes,
    /// Writes of the origin.
    origin_writes,
    /// Bytes that they wrote.
    origin_written_bytes,
    /// Flash writes: blocks that the guest wrote.
    flash_guest_blocks,
    /// Flash writes: blocks filled from the origin.
    flash_fill_blocks,
    /// Flash writes: second copies of dirty blocks.
    flash_mirror_blocks,
    /// Flash writes: pages of metadata.
    flash_metadata_pages,
    /// Blocks that admission or the sequential cut-off kept out.
    not_admitted,
}

impl Counts {
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

/// A part of a whole; 0 of nothing.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
