//! Heat maps: a value of many things over time, as the darkness of cells.

use std::fmt::Write;

use crate::axis::{Axis, Scale};
use crate::empty::{self, NO_PLACE, NO_VALUES};
use crate::escape::html;
use crate::frame::{open, round};
use crate::unit::Unit;

/// A chart with a row of cells for each thing.
#[derive(Clone, Debug)]
pub struct HeatMap {
    title: String,
    x: Axis,
    at: Vec<f64>,
    rows: Vec<(String, Vec<f64>)>,
    unit: Unit,
    range: (f64, f64),
    limit: Option<f64>,
}

const LEFT: f64 = 88.0;
const RIGHT: f64 = 614.0;
const TOP: f64 = 34.0;
/// The largest and the smallest height of a row, and the approximate height of all rows.
const ROW: (f64, f64) = (18.0, 3.0);
const HEIGHT: f64 = 260.0;
/// Names of rows have this much room.
const NAME: f64 = 13.0;
/// Shades that are distinguished.
const SHADES: f64 = 16.0;
/// Samples in the legend.
const SAMPLES: usize = 6;

impl HeatMap {
    /// Makes a chart without rows, for values at the given places of the x axis, in order and at equal distances: each
    /// is the end of its cell. A value of `range.0` or less is white, one of `range.1` or more has the full colour.
    pub fn new(title: &str, x: Axis, at: Vec<f64>, unit: Unit, range: (f64, f64)) -> HeatMap {
        HeatMap { title: title.into(), x, at, rows: Vec::new(), unit, range, limit: None }
    }

    /// Adds a row below: one value for each place; a missing or non-finite one leaves its cell empty.
    pub fn row(mut self, name: &str, values: Vec<f64>) -> HeatMap {
        self.rows.push((name.into(), values));
        self
    }

    /// Shows values above a limit in another colour.
    pub fn limit(mut self, limit: f64) -> HeatMap {
        self.limit = Some(limit);
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
    fn emptiness(&self) -> Option<&'static str> {
        let mut values = self.rows.iter().flat_map(|(_, values)| values.iter().zip(&self.at)).peekable();
        let sentence = if values.peek().is_none() { NO_VALUES } else { NO_PLACE };
        let drawn = values.any(|(value, at)| value.is_finite() && self.x.takes(*at));
        (!drawn).then_some(sentence)
    }

    /// The shade of a value from 0 to [`SHADES`], and whether it is above the limit.
    fn shade(&self, value: f64) -> (u32, bool) {
        let (low, high) = self.range;
        let part = ((value - low) / (high - low)).clamp(0.0, 1.0);
        ((part * SHADES).round() as u32, self.limit.is_some_and(|limit| value > limit))
    }

    pub(crate) fn draw(&self, alone: bool) -> String {
        if let Some(sentence) = self.emptiness() {
            return empty::picture(&self.title, sentence, alone);
        }
        let height = (HEIGHT / self.rows.len() as f64).clamp(ROW.1, ROW.0);
        let bottom = TOP + height * self.rows.len() as f64;
        // Cells reach back to the place before, the first as far as the second.
        let width = self.at.windows(2).map(|pair| pair[1] - pair[0]).next().unwrap_or(1.0);
        let first = self.at.first().map(|at| at - width);
        let scale = self.x.over(self.at.iter().copied().chain(first));
        let mut out = open(&self.title, bottom + 48.0, alone);
        self.draw_legend(&mut out);
        let names_every = (NAME / height).ceil() as usize;
        for (number, (name, values)) in self.rows.iter().enumerate() {
            let top = TOP + height * number as f64;
            if number.is_multiple_of(names_every) {
                // Writing to a string cannot fail.
                let _ = write!(
                    out,
                    "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                    LEFT - 7.0,
                    round(top + height.min(NAME) / 2.0 + 4.0),
                    html(name)
                );
            }
            self.draw_row(&mut out, &scale, width, (round(top), round(height)), values);
        }
        self.draw_axis(&mut out, &scale, bottom);
        out + "</svg>"
    }

    /// Neighbours of the same shade are one rectangle.
    fn draw_row(&self, out: &mut String, scale: &Scale, width: f64, place: (f64, f64), values: &[f64]) {
        let left_of = |value: f64| round(LEFT + scale.place(value) * (RIGHT - LEFT));
        let cells: Vec<(f64, Option<(u32, bool)>)> = self
            .at
            .iter()
            .zip(values)
            .map(|(at, value)| (*at, value.is_finite().then(|| self.shade(*value))))
            .collect();
        for run in cells.chunk_by(|a, b| a.1 == b.1) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let Some((shade, is_above)) = first.1.filter(|(shade, is_above)| *shade > 0 || *is_above) else {
                continue;
            };
            let (from, to) = (left_of(first.0 - width), left_of(last.0));
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "<rect class=\"heat c{}\" x=\"{from}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\"{}\"/>",
                usize::from(is_above),
                place.0,
                round(to - from),
                place.1,
                round(f64::from(shade.max(1)) / SHADES)
            );
        }
    }

    fn draw_legend(&self, out: &mut String) {
        let (low, high) = self.range;
        for number in 0..SAMPLES {
            let value = low + (high - low) * number as f64 / (SAMPLES - 1) as f64;
            let (shade, is_above) = self.shade(value);
            let x = LEFT + 88.0 * number as f64;
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "<rect class=\"heat c{}\" x=\"{x}\" y=\"6\" width=\"24\" height=\"12\" fill-opacity=\"{}\"/>\
                 <text class=\"name\" x=\"{}\" y=\"16\">{}{}</text>",
                usize::from(is_above),
                round(f64::from(shade) / SHADES),
                x + 30.0,
                html(&self.unit.format(value)),
                if number + 1 == SAMPLES { "+" } else { "" }
            );
        }
    }

    fn draw_axis(&self, out: &mut String, scale: &Scale, bottom: f64) {
        // Writing to a string cannot fail.
        let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{RIGHT}\"/>");
        for tick in scale.ticks() {
            let x = round(LEFT + scale.place(tick) * (RIGHT - LEFT));
            let _ = write!(
                out,
                "<path class=\"axis\" d=\"M{x} {bottom}v4\"/><text class=\"tick\" x=\"{x}\" y=\"{}\" \
                 text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                html(&self.x.unit.format(tick))
            );
        }
        let _ = write!(
            out,
            "<text class=\"title\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            bottom + 38.0,
            html(&self.x.title)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> HeatMap {
        HeatMap::new("t", Axis::time("x"), vec![1.0, 2.0, 3.0], Unit::Share, (0.0, 1.0))
    }

    #[test]
    fn without_a_cell_there_is_a_sentence() {
        assert!(chart().to_svg().contains(NO_VALUES));
        let nowhere = chart().row("a", vec![f64::NAN]);
        assert!(nowhere.to_svg().contains(NO_PLACE));
    }

    #[test]
    fn neighbours_of_a_shade_are_one_cell_and_what_is_above_the_limit_has_another_colour() {
        let cells = |svg: &str, class: &str| svg.matches(&format!("class=\"heat {class}\"")).count();
        let legend = chart().row("a", vec![0.0, 0.0, f64::NAN]).to_svg();
        assert_eq!((cells(&legend, "c0"), cells(&legend, "c1")), (SAMPLES, 0));
        let drawn = chart().limit(0.9).row("<a>", vec![0.5, 0.5, 0.95]).to_svg();
        assert_eq!((cells(&drawn, "c0"), cells(&drawn, "c1")), (SAMPLES, 2));
        assert!(drawn.contains("&lt;a&gt;") && !drawn.contains("<a>"), "{drawn}");
    }
}
