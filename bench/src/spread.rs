//! Figures of several rounds: their median, with the least and the greatest.

use crate::table::grouped;

/// The median of some figures and the least and greatest of them.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Spread {
    /// Of some figures; without any, all three are NaN.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
        Spread { median: at(sorted.len() / 2), least: at(0), most: at(sorted.len().saturating_sub(1)) }
    }

    /// For a table, with this many digits after the point.
    pub fn shown(self, digits: usize) -> String {
        let Spread { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }

    /// For a table, as whole numbers with commas.
    pub fn grouped(self) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(|n| grouped(n as u64));
        format!("{median} ({least} to {most})")
    }

    /// As an object.
    pub fn json(self) -> String {
        format!("{{\"median\":{:.3},\"least\":{:.3},\"most\":{:.3}}}", self.median, self.least, self.most)
    }
}
