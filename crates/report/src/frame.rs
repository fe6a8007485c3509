//! Shared by all charts: the plot's rectangle with axes, grid, legend, and the data for the pointer.

use std::fmt::Write;

use serde::Serialize;

use crate::axis::{Axis, Scale};
use crate::escape::html;

const WIDTH: f64 = 640.0;
const LEFT: f64 = 88.0;
const RIGHT: f64 = 26.0;
const PLOT_HEIGHT: f64 = 230.0;
const LEGEND_LINE: f64 = 20.0;
/// Mean width of a character of the legend, and of its swatch with its gaps.
const CHARACTER: f64 = 6.9;
const SWATCH: f64 = 48.0;
/// Colours of the palette, see style.css.
pub(crate) const COLOURS: usize = 8;

/// The style sheet of charts, included in a standalone chart.
pub(crate) const CHART_STYLE: &str = include_str!("chart.css");

/// A curve or layer for the pointer.
#[derive(Serialize)]
pub(crate) struct Traced {
    pub name: String,
    pub colour: usize,
    /// Place in pixels, and the texts to show there: x, y, x's text, y's text.
    pub points: Vec<(f64, f64, String, String)>,
}

/// A chart's rectangle being drawn.
pub(crate) struct Frame {
    pub x: Scale,
    pub y: Scale,
    top: f64,
    svg: String,
    traced: Vec<Traced>,
}

/// How a legend's sample is drawn.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sample {
    Line,
    Box,
}

/// Returns the dashes of series number `index`: the first four lines are solid, so that in print without colours they
/// can be distinguished from the next four.
pub(crate) fn dashes(index: usize, dashed: bool) -> &'static str {
    match (dashed, index / 4 % 3) {
        (true, _) => " stroke-dasharray=\"3 4\"",
        (_, 0) => "",
        (_, 1) => " stroke-dasharray=\"9 4\"",
        _ => " stroke-dasharray=\"9 3 2 3\"",
    }
}

impl Frame {
    /// Draws the axes, the grid, and a legend with (name, dashed) of each series.
    pub fn new(x: (&Axis, Scale), y: (&Axis, Scale), legend: &[(String, bool)], sample: Sample) -> Frame {
        let mut svg = String::new();
        let top = draw_legend(&mut svg, legend, sample) + 12.0;
        let ((x_axis, x), (y_axis, y)) = (x, y);
        let mut frame = Frame { x, y, top, svg, traced: Vec::new() };
        frame.draw_axes(x_axis, y_axis);
        frame
    }

    /// Returns the position of a value, in pixels from the left.
    pub fn left_of(&self, value: f64) -> f64 {
        round(LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT))
    }

    /// Returns the position of a value, in pixels from the top.
    pub fn top_of(&self, value: f64) -> f64 {
        round(self.top + (1.0 - self.y.place(value)) * PLOT_HEIGHT)
    }

    /// Draws.
    pub fn push(&mut self, shape: &str) {
        self.svg.push_str(shape);
    }

    /// Makes a series available to the pointer.
    pub fn trace(&mut self, series: Traced) {
        self.traced.push(series);
    }

    fn draw_axes(&mut self, x_axis: &Axis, y_axis: &Axis) {
        let (bottom, right) = (self.top + PLOT_HEIGHT, WIDTH - RIGHT);
        let mut out = String::new();
        // Writing to a string cannot fail.
        for tick in self.y.ticks() {
            let y = self.top_of(tick);
            let label = html(&y_axis.unit.format(tick));
            let _ = write!(out, "<path class=\"grid\" d=\"M{LEFT} {y}H{right}\"/>");
            let _ = write!(
                out,
                "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>",
                LEFT - 7.0,
                y + 4.0
            );
        }
        for tick in self.x.ticks() {
            let x = self.left_of(tick);
            let label = html(&x_axis.unit.format(tick));
            let _ = write!(out, "<path class=\"grid\" d=\"M{x} {}V{}\"/>", self.top, bottom + 4.0);
            let _ = write!(
                out,
                "<text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 18.0
            );
        }
        let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {}V{bottom}H{right}\"/>", self.top);
        let middle = round(LEFT + (right - LEFT) / 2.0);
        let _ = write!(
            out,
            "<text class=\"title\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 38.0,
            html(&x_axis.title)
        );
        let centre = round(self.top + PLOT_HEIGHT / 2.0);
        let _ = write!(
            out,
            "<text class=\"title\" transform=\"translate(13 {centre}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            html(&y_axis.title)
        );
        self.svg.push_str(&out);
    }

    /// Returns the finished picture. A standalone one includes its style sheet; in a page, the data for the pointer
    /// follows it.
    pub fn finish(self, title: &str, alone: bool) -> String {
        let height = self.top + PLOT_HEIGHT + 48.0;
        let svg = open(title, height, alone) + &self.svg + "</svg>";
        if alone {
            return svg;
        }
        let (top, bottom) = (self.top, self.top + PLOT_HEIGHT);
        let data = serde_json::json!({ "top": top, "bottom": bottom, "series": self.traced }).to_string();
        // A name must not end the script that contains it.
        let data = data.replace('<', "\\u003c");
        format!("{svg}<script type=\"application/json\">{data}</script>")
    }
}

/// Returns the head of a picture.
pub(crate) fn open(title: &str, height: f64, alone: bool) -> String {
    let title = html(title);
    let (style, size) = if alone {
        (
            format!("<style>{CHART_STYLE}</style><rect class=\"paper\" width=\"100%\" height=\"100%\"/>"),
            format!(" width=\"{WIDTH}\" height=\"{height}\""),
        )
    } else {
        Default::default()
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\"{size} role=\"img\" \
         aria-label=\"{title}\">{style}"
    )
}

/// Draws the legend in as many lines as it needs. Returns its lower end.
fn draw_legend(svg: &mut String, legend: &[(String, bool)], sample: Sample) -> f64 {
    let (mut x, mut y) = (LEFT, 12.0);
    for (index, (name, dashed)) in legend.iter().enumerate() {
        let width = SWATCH + name.chars().count() as f64 * CHARACTER;
        if x > LEFT && x + width > WIDTH {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        let colour = index % COLOURS;
        let (from, to) = (round(x), round(x + 24.0));
        let _ = match sample {
            Sample::Line => write!(
                svg,
                "<path class=\"line c{colour}\" d=\"M{from} {y}H{to}\"{}/>",
                dashes(index, *dashed)
            ),
            Sample::Box => {
                write!(
                    svg,
                    "<rect class=\"fill c{colour}\" x=\"{from}\" y=\"{}\" width=\"24\" height=\"12\"/>",
                    y - 6.0
                )
            }
        };
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>",
            round(x + 30.0),
            y + 4.0,
            html(name)
        );
        x += width;
    }
    if legend.is_empty() { 0.0 } else { y + 8.0 }
}

/// Two decimals are finer than any screen.
pub(crate) fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
