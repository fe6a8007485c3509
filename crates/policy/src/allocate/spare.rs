//! What happens to space that is not demanded.
//!
//! Source: CloudCache (Arteaga), section 4.4: "the spare capacity is distributed to the VMs proportionally to their
//! demands, or left idle to minimize wear-out".

use serde::{Deserialize, Serialize};

use super::share::{Share, share};

/// What happens to spare space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spare {
    /// It is shared in proportion to demand.
    #[default]
    Shared,
    /// It is left idle, to spare the flash.
    Idle,
}

impl Spare {
    /// Returns the meaning, for explanations.
    pub fn words(self) -> &'static str {
        match self {
            Spare::Shared => "spare space is shared",
            Spare::Idle => "spare space is left idle",
        }
    }

    /// Adds spare space to shares, in proportion to weights, up to each maximum.
    pub(crate) fn add(
        self,
        whole: u64,
        unit: u64,
        weights: &[f64],
        most: &[u64],
        shares: Vec<u64>,
    ) -> Vec<u64> {
        let spare = whole.saturating_sub(shares.iter().sum());
        if self == Spare::Idle || spare == 0 {
            return shares;
        }
        let room = weights.iter().zip(most).zip(&shares);
        let all: Vec<Share> = room
            .map(|((weight, most), got)| Share { weight: *weight, least: 0, most: most.saturating_sub(*got) })
            .collect();
        shares.iter().zip(share(spare, unit, &all)).map(|(got, more)| got + more).collect()
    }
}
