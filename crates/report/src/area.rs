//! Stacked areas: how the parts of a whole change.

use std::fmt::Write;

use crate::axis::Axis;
use crate::frame::{COLOURS, Frame, Sample, Traced};

/// A chart with layers over a common x axis.
#[derive(Clone, Debug)]
pub struct StackedArea {
    title: String,
    x: Axis,
    y: Axis,
    at: Vec<f64>,
    layers: Vec<(String, Vec<f64>)>,
}

impl StackedArea {
    /// Makes a chart without layers, for values at the given places of the x axis, in order.
    pub fn new(title: &str, x: Axis, y: Axis, at: Vec<f64>) -> StackedArea {
        StackedArea { title: title.into(), x, y, at, layers: Vec::new() }
    }

    /// Adds a layer on top: one value for each place; a missing or non-finite value counts as 0.
    pub fn layer(mut self, name: &str, values: Vec<f64>) -> StackedArea {
        self.layers.push((name.into(), values));
        self
    }

    /// Returns the chart's title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the chart as a standalone picture.
    pub fn to_svg(&self) -> String {
        self.draw(true)
    }

    pub(crate) fn draw(&self, alone: bool) -> String {
        let value =
            |layer: &[f64], n: usize| layer.get(n).copied().filter(|v| v.is_finite()).unwrap_or(0.0).max(0.0);
        let places: Vec<usize> = (0..self.at.len()).filter(|n| self.x.takes(self.at[*n])).collect();
        let total = |n: &usize| self.layers.iter().map(|(_, values)| value(values, *n)).sum::<f64>();
        let (x, y) = (self.x.over(places.iter().map(|n| self.at[*n])), self.y.over(places.iter().map(total)));
        let legend: Vec<_> = self.layers.iter().map(|(name, _)| (name.clone(), false)).collect();
        let mut frame = Frame::new((&self.x, x), (&self.y, y), &legend, Sample::Box);
        let mut base = vec![0.0; self.at.len()];
        for (index, (name, values)) in self.layers.iter().enumerate() {
            let (mut upper, mut lower) = (String::new(), String::new());
            let mut points = Vec::with_capacity(places.len());
            for &n in &places {
                let own = value(values, n);
                let (left, low, high) =
                    (frame.left_of(self.at[n]), frame.top_of(base[n]), frame.top_of(base[n] + own));
                // Writing to a string cannot fail.
                let _ = write!(upper, "{}{left} {high}", if upper.is_empty() { "M" } else { "L" });
                lower.insert_str(0, &format!("L{left} {low}"));
                points.push((left, high, self.x.unit.format(self.at[n]), self.y.unit.format(own)));
                base[n] += own;
            }
            let colour = index % COLOURS;
            if !points.is_empty() {
                frame.push(&format!("<path class=\"fill c{colour}\" d=\"{upper}{lower}Z\"/>"));
            }
            frame.trace(Traced { name: name.clone(), colour, points });
        }
        frame.finish(&self.title, alone)
    }
}
