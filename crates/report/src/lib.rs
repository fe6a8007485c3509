//! Self-contained HTML pages with plots: one file, no network, readable on light and dark screens and in print.
//!
//! A [`Page`] has [`Section`]s; a section has text, [`Table`]s and charts ([`LineChart`], [`StackedArea`], [`Bars`],
//! [`HeatMap`]).
//! Charts are inline SVG; a few lines of script show values under the pointer, and without script only that is
//! missing. A chart is also available as a standalone SVG file, and a table as plain text.
//!
//! ```
//! use haversack_report::{Axis, LineChart, Page, Section, Table, Unit};
//!
//! let curve = LineChart::new("Miss ratio", Axis::log("Cache size", Unit::Bytes), Axis::share("Miss ratio"))
//!     .line("LRU", vec![(4096.0, 0.9), (65536.0, 0.5), (1048576.0, 0.1)])
//!     .dashed("MIN", vec![(4096.0, 0.8), (65536.0, 0.3), (1048576.0, 0.1)]);
//! let mut table = Table::new(["policy", "miss ratio"]);
//! table.row(["LRU", "50.0 %"]);
//! table.marked_row(["MIN", "30.0 %"]);
//! let page = Page::new("Two policies").section(Section::new("Curves").text("Lower is better.").chart(curve).table(table));
//! assert!(page.to_html().starts_with("<!DOCTYPE html>"));
//! ```
//!
//! Invariants
//! - Everything that comes from outside (names, texts) is escaped.
//! - Points that cannot be drawn (not finite, or not positive on a logarithmic axis) are left out, never drawn wrong.
//! - A chart without anything to draw is a sentence that says why, not an empty frame.
//! - Equal input gives equal bytes.

mod area;
mod axis;
mod bars;
mod empty;
mod escape;
mod frame;
mod heat;
mod line;
mod page;
mod table;
mod unit;
mod words;

pub use area::StackedArea;
pub use axis::Axis;
pub use bars::Bars;
pub use heat::HeatMap;
pub use line::LineChart;
pub use page::{Chart, Page, Section};
pub use table::Table;
pub use unit::Unit;
pub use words::{counted, plural};
