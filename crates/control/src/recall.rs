//! Reads from a log what an earlier loop knew of its disks.

use haversack_policy::{Config, Controller, Event, PolicyError};

use crate::log::Entry;

/// The number of log lines to read: forecasts look no further back.
pub const RECALLED_LINES: usize = 256;

/// Reads the newest lines of a log, oldest first. Lines that cannot be parsed are skipped: they may be torn or
/// from another version. Lines before the first configuration count as made with `config`.
///
/// # Errors
/// The configuration contradicts itself.
pub(crate) fn recall<'a>(
    config: &Config,
    lines: impl IntoIterator<Item = &'a str>,
) -> Result<Controller, PolicyError> {
    let mut known = Controller::new(config.clone())?;
    for text in lines {
        match Entry::parse(text, 0) {
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
