//! Horizontal bars: a few named values side by side.

use std::fmt::Write;

use crate::empty::{self, NO_PLACE, NO_VALUES};
use crate::escape::html;
use crate::frame::{COLOURS, open, round};
use crate::unit::Unit;

/// A chart with one bar per name, or several if groups are compared.
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    unit: Unit,
    bars: Vec<(String, f64, usize)>,
    when_empty: Option<String>,
}

const LINE: f64 = 24.0;
/// The smallest and the largest distance of the bars from the left edge: names are to the left of the bars.
const LEFT: (f64, f64) = (170.0, 340.0);
/// Where the longest bar ends.
const END: f64 = 540.0;
/// Width of a name's character, about.
const CHARACTER: f64 = 6.4;

impl Bars {
    /// Makes a chart without bars.
    pub fn new(title: &str, unit: Unit) -> Bars {
        Bars { title: title.into(), unit, bars: Vec::new(), when_empty: None }
    }

    /// Adds a bar.
    pub fn bar(self, name: &str, value: f64) -> Bars {
        self.bar_of(name, value, 0)
    }

    /// Adds a bar in the colour of group number `group`.
    pub fn bar_of(mut self, name: &str, value: f64, group: usize) -> Bars {
        self.bars.push((name.into(), value, group));
        self
    }

    /// Sets the sentence that stands in its place if there is nothing to draw.
    pub fn when_empty(mut self, sentence: &str) -> Bars {
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

    /// Why there is nothing to draw, if that is so. A bar of length 0 shows its value.
    fn emptiness(&self) -> Option<&str> {
        let default = if self.bars.is_empty() { NO_VALUES } else { NO_PLACE };
        let drawn = self.bars.iter().any(|(_, value, _)| value.is_finite());
        (!drawn).then(|| self.when_empty.as_deref().unwrap_or(default))
    }

    pub(crate) fn draw(&self, alone: bool) -> String {
        if let Some(sentence) = self.emptiness() {
            return empty::picture(&self.title, sentence, alone);
        }
        let drawn = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
        let largest = self.bars.iter().map(|(_, value, _)| drawn(*value)).fold(0.0, f64::max);
        let longest = self.bars.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        let left = round((longest as f64 * CHARACTER + 14.0).clamp(LEFT.0, LEFT.1));
        let mut out = open(&self.title, 16.0 + LINE * self.bars.len() as f64, alone);
        for (number, (name, value, group)) in self.bars.iter().enumerate() {
            let top = 8.0 + LINE * number as f64;
            let width = if largest > 0.0 { round(drawn(*value) / largest * (END - left)) } else { 0.0 };
            let (name, text, colour) = (html(name), html(&self.unit.format(*value)), group % COLOURS);
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "<text class=\"name\" x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>\
                 <rect class=\"fill c{colour}\" x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"{}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{middle}\">{text}</text>",
                left - 8.0,
                top + 3.0,
                LINE - 6.0,
                left + width + 7.0,
                middle = top + 16.0,
            );
        }
        out + "</svg>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_without_a_value_give_a_sentence() {
        let chart = || Bars::new("t", Unit::Count);
        assert!(chart().to_svg().contains(NO_VALUES));
        let outside = chart().bar("a", f64::NAN);
        assert!(outside.to_svg().contains(NO_PLACE));
        assert!(
            outside.clone().when_empty("Nothing was measured.").to_svg().contains("Nothing was measured.")
        );
        let drawn = outside.bar("b", 0.0).when_empty("Nothing was measured.").to_svg();
        assert!(drawn.contains("<rect") && !drawn.contains("Nothing was measured."), "{drawn}");
    }
}
