//! Flash writes as ECI-Cache counts them: from the classes of a window's accesses, ignoring that a full cache may have
//! evicted a block and must write it again.
//!
//! A disk in write-back mode writes what it reads for the first time and all that it writes, CR + CW + WAR + WAW; that
//! is all but the reads of blocks that were accessed before. A read-only one writes CR. Blocks are known from the same
//! window and the one before.
//!
//! Source: ECI-Cache (Ahmadian et al., POMACS 2018), section 5.2, equation 3.

use std::collections::BTreeMap;

use haversack_model::WriteMode;
use haversack_policy::DiskWindow;

use crate::error::ControlError;
use crate::log::Entry;
use crate::predictions::{has_ended, is_observed};

/// Blocks of a disk, summed over its windows.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counted {
    /// Blocks written to flash by equation 3.
    pub flash_writes: f64,
    /// Blocks read and written.
    pub accesses: f64,
}

impl Counted {
    /// Returns the sum.
    pub fn and(self, other: Counted) -> Counted {
        Counted {
            flash_writes: self.flash_writes + other.flash_writes,
            accesses: self.accesses + other.accesses,
        }
    }

    /// Counts a window in which the disk had this mode.
    fn of(window: &DiskWindow, mode: WriteMode) -> Counted {
        let accesses = window.accesses() as f64;
        let known_reads = window.urd.highest() * accesses;
        let flash_writes = match mode {
            WriteMode::WriteBack | WriteMode::WriteThrough(_) => accesses - known_reads,
            WriteMode::WriteAround | WriteMode::WriteInvalidate => window.reads as f64 - known_reads,
            WriteMode::PassThrough => 0.0,
        };
        // Distances may be estimated from a sample.
        Counted { flash_writes: flash_writes.max(0.0), accesses }
    }
}

/// Counts the flash writes of each disk of a decision log. A window counts in the mode that the disk had when it began,
/// the first in write-back.
///
/// # Errors
/// A line is not an entry.
pub fn counted_writes<'a>(
    lines: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeMap<String, Counted>, ControlError> {
    let mut found: BTreeMap<String, Counted> = BTreeMap::new();
    let mut modes: BTreeMap<String, WriteMode> = BTreeMap::new();
    for (number, text) in lines.into_iter().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let Entry::Decision(decision) = Entry::parse(text, number + 1)? else { continue };
        for disk in decision.inputs.disks.iter().filter(|disk| has_ended(&decision, disk)) {
            let mode = modes.get(&disk.name).copied().unwrap_or(WriteMode::WriteBack);
            if let Some(window) = disk.window.as_ref().filter(|_| is_observed(disk)) {
                let sum = found.entry(disk.name.clone()).or_default();
                *sum = sum.and(Counted::of(window, mode));
            }
            if let Some(plan) = decision.plan.disks.get(&disk.name) {
                modes.insert(disk.name.clone(), plan.write_mode);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use haversack_policy::Curve;

    use super::*;

    /// CR 2, CW 1, RAR 3, RAW 2, WAR 1, WAW 1.
    fn window() -> DiskWindow {
        DiskWindow {
            reads: 7,
            writes: 3,
            overwrites: 2,
            urd: Curve::new(vec![(4, 0.2), (9, 0.5)]).expect("it rises"),
            ..DiskWindow::default()
        }
    }

    #[test]
    fn by_hand() {
        let count = |mode| Counted::of(&window(), mode).flash_writes;
        assert_eq!(count(WriteMode::WriteBack), 2.0 + 1.0 + 1.0 + 1.0);
        assert_eq!(count(WriteMode::WriteInvalidate), 2.0);
        assert_eq!(count(WriteMode::PassThrough), 0.0);
        assert_eq!(Counted::of(&window(), WriteMode::WriteBack).accesses, 10.0);
    }
}
