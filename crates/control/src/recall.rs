//! What an earlier life of the loop knew of its disks: its log tells.

use haversack_policy::{Config, Controller, Event, PolicyError};

use crate::log::Entry;

/// Lines of a log that tell what an earlier life knew: forecasts look no further back.
pub const RECALLED_LINES: usize = 256;

/// Goes through the newest lines of a log, oldest first. What cannot be read is left out: a line may be torn, or come from
/// another version. Lines before the first configuration count as made by `config`.
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
                    // It was detached without a word, or had been forgotten by this.
                    let _ = known.event(&disk, Event::Ended);
                }
                // What happened to a disk of which earlier lines told says nothing.
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
