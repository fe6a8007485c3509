//! Lines over a common x axis: curves and time series.

use std::fmt::Write;

use crate::axis::Axis;
use crate::empty::{self, NO_PLACE, NO_VALUES};
use crate::frame::{COLOURS, Frame, Sample, Traced, dashes};

/// A chart with lines.
#[derive(Clone, Debug)]
pub struct LineChart {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Line>,
    marks: Vec<(f64, f64, String)>,
    when_empty: Option<String>,
}

#[derive(Clone, Debug)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Whole,
    Dashed,
    Steps,
    Dots,
}

impl LineChart {
    /// Makes a chart without lines.
    pub fn new(title: &str, x: Axis, y: Axis) -> LineChart {
        LineChart { title: title.into(), x, y, series: Vec::new(), marks: Vec::new(), when_empty: None }
    }

    /// Adds a line through the points, which are in the order of x.
    pub fn line(self, name: &str, points: Vec<(f64, f64)>) -> LineChart {
        self.with(name, points, Kind::Whole)
    }

    /// Adds a dashed line: for bounds and estimates.
    pub fn dashed(self, name: &str, points: Vec<(f64, f64)>) -> LineChart {
        self.with(name, points, Kind::Dashed)
    }

    /// Adds a line that keeps each value until the next: for step changes.
    pub fn steps(self, name: &str, points: Vec<(f64, f64)>) -> LineChart {
        self.with(name, points, Kind::Steps)
    }

    /// Adds points that no line connects.
    pub fn dots(self, name: &str, points: Vec<(f64, f64)>) -> LineChart {
        self.with(name, points, Kind::Dots)
    }

    /// Adds a point with a marker and a name.
    pub fn mark(mut self, x: f64, y: f64, name: &str) -> LineChart {
        self.marks.push((x, y, name.into()));
        self
    }

    fn with(mut self, name: &str, points: Vec<(f64, f64)>, kind: Kind) -> LineChart {
        self.series.push(Line { name: name.into(), points, kind });
        self
    }

    /// Sets the sentence that stands in its place if there is nothing to draw.
    pub fn when_empty(mut self, sentence: &str) -> LineChart {
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
        let mut points = self.series.iter().flat_map(|line| &line.points).peekable();
        let default = if points.peek().is_none() { NO_VALUES } else { NO_PLACE };
        let drawn = points.any(|point| self.takes(point));
        (!drawn).then(|| self.when_empty.as_deref().unwrap_or(default))
    }

    pub(crate) fn draw(&self, alone: bool) -> String {
        if let Some(sentence) = self.emptiness() {
            return empty::picture(&self.title, sentence, alone);
        }
        let values = || self.series.iter().flat_map(|s| s.points.iter().copied()).filter(|p| self.takes(p));
        let (x, y) = (self.x.over(values().map(|p| p.0)), self.y.over(values().map(|p| p.1)));
        let legend: Vec<_> = self.series.iter().map(|s| (s.name.clone(), s.kind == Kind::Dashed)).collect();
        let mut frame = Frame::new((&self.x, x), (&self.y, y), &legend, Sample::Line);
        for (index, line) in self.series.iter().enumerate() {
            self.draw_line(&mut frame, index, line);
        }
        for (x, y, name) in self.marks.iter().filter(|(x, y, _)| self.takes(&(*x, *y))) {
            let (left, top) = (frame.left_of(*x), frame.top_of(*y));
            let name = crate::escape::html(name);
            frame.push(&format!(
                "<circle class=\"mark\" cx=\"{left}\" cy=\"{top}\" r=\"5\"/><text class=\"name\" x=\"{}\" y=\"{}\">{name}</text>",
                left + 8.0,
                top - 8.0
            ));
        }
        frame.finish(&self.title, alone)
    }

    fn takes(&self, point: &(f64, f64)) -> bool {
        self.x.takes(point.0) && self.y.takes(point.1)
    }

    fn draw_line(&self, frame: &mut Frame, index: usize, line: &Line) {
        let mut path = String::new();
        let mut points = Vec::with_capacity(line.points.len());
        for point in line.points.iter().filter(|p| self.takes(p)) {
            let (x, y) = (frame.left_of(point.0), frame.top_of(point.1));
            // Writing to a string cannot fail.
            let _ = match (path.is_empty(), line.kind) {
                (true, _) => write!(path, "M{x} {y}"),
                (_, Kind::Steps) => write!(path, "H{x}V{y}"),
                _ => write!(path, "L{x} {y}"),
            };
            points.push((x, y, self.x.unit.format(point.0), self.y.unit.format(point.1)));
        }
        let colour = index % COLOURS;
        let dots = line.kind == Kind::Dots;
        if !dots {
            let dashes = dashes(index, line.kind == Kind::Dashed);
            frame.push(&format!("<path class=\"line c{colour}\" d=\"{path}\"{dashes}/>"));
        }
        for (x, y, ..) in points.iter().filter(|_| dots || points.len() == 1) {
            frame.push(&format!("<circle class=\"dot c{colour}\" cx=\"{x}\" cy=\"{y}\" r=\"3\"/>"));
        }
        frame.trace(Traced { name: line.name.clone(), colour, points });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Unit;

    fn chart() -> LineChart {
        LineChart::new("t", Axis::log("x", Unit::Bytes), Axis::share("y"))
    }

    #[test]
    fn lines_without_a_point_give_a_sentence() {
        for nothing in [chart(), chart().line("a", vec![])] {
            let svg = nothing.to_svg();
            assert!(svg.contains(NO_VALUES) && !svg.contains("class=\"axis\""), "{svg}");
        }
        let outside = chart().dots("a", vec![(0.0, 1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)]);
        assert!(outside.to_svg().contains(NO_PLACE));
        let told = outside.when_empty("No size was simulated.");
        assert!(told.to_svg().contains("No size was simulated.") && !told.to_svg().contains(NO_PLACE));
        let drawn = told.line("b", vec![(1.0, 0.0)]).draw(false);
        assert!(drawn.contains("class=\"axis\"") && !drawn.contains("No size was simulated."), "{drawn}");
    }
}
