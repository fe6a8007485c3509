//! Events of a mix's disks during the simulation: events of their VMs, and changes of their settings.

use haversack_api::{DiskChange, DiskEvent, DiskEventKind, Span};
use haversack_policy::Event;
use serde::{Deserialize, Serialize};

/// An event or a change of a disk. A disk whose first event is `new` or `migrating-in` does not exist before
/// it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedEvent {
    /// When: the time since the beginning of the mix.
    pub at: Span,
    /// The disk.
    pub disk: String,
    /// The event, as in `haversack disk event`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<DiskEventKind>,
    /// With `migrating-in`: the `figures` of the disk's curve on the other host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<serde_json::Value>,
    /// Settings that change, as in `haversack disk set`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<DiskChange>,
}

/// What happens.
#[derive(Clone, PartialEq, Debug)]
pub enum Happening {
    /// An event, for the control loop.
    Event(Event),
    /// The operator changes settings.
    Change(Box<DiskChange>),
}

/// An event with its time in nanoseconds of simulated time.
#[derive(Clone, PartialEq, Debug)]
pub struct Timed {
    /// When.
    pub at_ns: u64,
    /// The disk.
    pub disk: String,
    /// What happens.
    pub what: Happening,
}

impl TimedEvent {
    /// Parses an event. Time runs faster by this factor.
    ///
    /// # Errors
    /// It is neither an event nor a change, or both; or the figures are not those of a curve.
    pub fn happening(&self, speed_up: f64) -> Result<Timed, String> {
        let what = match (self.event, &self.set) {
            (Some(event), None) => {
                let event = DiskEvent { event, figures: self.figures.clone() };
                Happening::Event(haversack_control::settings::event(event)?)
            }
            (None, Some(_)) if self.figures.is_some() => {
                return Err("figures are only for migrating-in: leave them out".into());
            }
            (None, Some(change)) if !is_simulated(change) => {
                return Err(
                    "a simulation keeps sequential_cutoff, cleaner, replicate, without_replica and nbd as they are: leave \
                     them out"
                        .into(),
                );
            }
            (None, Some(change)) => Happening::Change(Box::new(change.clone())),
            _ => return Err("give one of 'event' and 'set'".into()),
        };
        let at_ns = (self.at.as_micros() as f64 * 1000.0 / speed_up) as u64;
        Ok(Timed { at_ns, disk: self.disk.clone(), what })
    }
}

/// Whether a simulation follows all of a change.
fn is_simulated(change: &DiskChange) -> bool {
    let is_kept = change.sequential_cutoff.is_none() && change.cleaner.is_none() && change.nbd.is_none();
    is_kept && change.replicate.is_none() && change.without_replica.is_none()
}

impl Timed {
    /// Whether the disk does not exist before this event.
    pub fn is_arrival(&self) -> bool {
        matches!(self.what, Happening::Event(Event::New | Event::MigratingIn(_)))
    }
}
