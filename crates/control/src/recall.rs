//! Reads from a log what an earlier loop knew of its disks.

use haversack_policy::{Config, Controller, Event, OwnWindow, PolicyError};

use crate::log::Entry;

/// The number of a disk's windows to recall: forecasts look no further back.
const RECALLED_WINDOWS: u64 = 256;
/// The most lines to recall, whatever the windows: a restart must not wait for months of decisions.
pub const MOST_RECALLED_LINES: u64 = 1 << 16;

/// Returns how many lines of a log to recall so that they reach back over enough windows of the disk whose own window
/// is the longest: 256, or as many as the history has. Each line is about one window of the pool. At most
/// [`MOST_RECALLED_LINES`].
pub fn recalled_lines(config: &Config, own: impl IntoIterator<Item = Option<OwnWindow>>) -> usize {
    let longest = own.into_iter().chain([None]).map(|own| config.most_windows_of_disk(own)).max();
    let windows = RECALLED_WINDOWS.max(config.history_windows);
    longest.unwrap_or(1).saturating_mul(windows).min(MOST_RECALLED_LINES) as usize
}

/// Reads the newest lines of a log, oldest first. Lines that cannot be parsed are skipped: they may be torn or
/// from another version. Lines before the first configuration count as made with `config`.
///
/// # Errors
/// The configuration contradicts itself.
pub(crate) fn recall(
    config: &Config,
    lines: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Controller, PolicyError> {
    let mut known = Controller::new(config.clone())?;
    for text in lines {
        match Entry::parse(text.as_ref(), 0) {
            Ok(Entry::Started { config, .. }) if *config != *known.config() && config.check().is_ok() => {
                known = known.reconfigured(*config)?;
            }
            Ok(Entry::Event { disk, event, .. }) => {
                if event == Event::New {
                    // It was detached without a log entry, or forgotten by this loop.
                    let _ = known.event(&disk, Event::Ended);
                }
                // An event of a disk that only earlier lines mention has no effect.
                let _ = known.event(&disk, event);
            }
            Ok(Entry::Decision(decision)) => {
                known.recall(&decision.inputs, &decision.plan, decision.cause == WINDOW);
            }
            _ => {}
        }
    }
    if known.config() == config { Ok(known) } else { known.reconfigured(config.clone()) }
}

/// The cause of a decision that ended a window.
pub(crate) const WINDOW: &str = "window";
