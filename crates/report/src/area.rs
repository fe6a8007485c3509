//! Stacked areas: how the parts of a whole change.

use std::fmt::Write;

use crate::axis::Axis;
use crate::empty::{self, ALL_ZERO, NO_PLACE, NO_VALUES};
use crate::frame::{COLOURS, Frame, Sample, Traced};

/// A chart with layers over a common x axis.
#[derive(Clone, Debug)]
pub struct StackedArea {
    title: String,
    x: Axis,
    y: Axis,
    at: Vec<f64>,
    layers: Vec<(String, Vec<f64>)>,
    when_empty: Option<String>,
}

impl StackedArea {
    /// Makes a chart without layers, for values at the given places of the x axis, in order.
    pub fn new(title: &str, x: Axis, y: Axis, at: Vec<f64>) -> StackedArea {
        StackedArea { title: title.into(), x, y, at, layers: Vec::new(), when_empty: None }
    }

    /// Adds a layer on top: one value for each place; a missing or non-finite value counts as 0.
    pub fn layer(mut self, name: &str, values: Vec<f64>) -> StackedArea {
        self.layers.push((name.into(), values));
        self
    }

    /// Sets the sentence that stands in its place if there is nothing to draw.
    pub fn when_empty(mut self, sentence: &str) -> StackedArea {
        self.when_empty = Some(sentence.into());
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

    /// Why there is nothing to draw, if that is so.
    fn emptiness(&self) -> Option<&str> {
        let placed = || (0..self.at.len()).filter(|n| self.x.takes(self.at[*n]));
        let high = |n: usize| self.layers.iter().any(|(_, values)| value(values, n) > 0.0);
        let default = if self.at.is_empty() || self.layers.iter().all(|(_, values)| values.is_empty()) {
            NO_VALUES
        } else if placed().next().is_none() {
            NO_PLACE
        } else if !placed().any(high) {
            ALL_ZERO
        } else {
            return None;
        };
        Some(self.when_empty.as_deref().unwrap_or(default))
    }

    pub(crate) fn draw(&self, alone: bool) -> String {
        if let Some(sentence) = self.emptiness() {
            return empty::picture(&self.title, sentence, alone);
        }
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

/// The height of a layer at place number `n`.
fn value(layer: &[f64], n: usize) -> f64 {
    layer.get(n).copied().filter(|value| value.is_finite()).unwrap_or(0.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Unit;

    fn chart(at: Vec<f64>) -> StackedArea {
        StackedArea::new("t", Axis::time("x"), Axis::linear("y", Unit::Count), at)
    }

    #[test]
    fn layers_without_height_give_a_sentence() {
        for (nothing, why) in [
            (chart(vec![]), NO_VALUES),
            (chart(vec![]).layer("a", vec![1.0]), NO_VALUES),
            (chart(vec![0.0, 1.0]), NO_VALUES),
            (chart(vec![0.0, 1.0]).layer("a", vec![]), NO_VALUES),
            (chart(vec![f64::NAN]).layer("a", vec![1.0]), NO_PLACE),
            (chart(vec![0.0, 1.0]).layer("a", vec![0.0, f64::NAN]), ALL_ZERO),
        ] {
            let svg = nothing.to_svg();
            assert!(svg.contains(why) && !svg.contains("class=\"axis\""), "{svg}");
            assert!(nothing.when_empty("No samples.").to_svg().contains("No samples."));
        }
        let drawn = chart(vec![0.0, 1.0]).layer("a", vec![0.0, 1.0]).when_empty("No samples.").to_svg();
        assert!(drawn.contains("class=\"axis\"") && !drawn.contains("No samples."), "{drawn}");
    }
}
