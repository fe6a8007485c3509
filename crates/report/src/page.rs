//! Pages and their sections.

use std::fmt::Write;
use std::io;
use std::path::Path;

use crate::area::StackedArea;
use crate::bars::Bars;
use crate::escape::html;
use crate::frame::CHART_STYLE;
use crate::heat::HeatMap;
use crate::line::LineChart;
use crate::table::Table;

/// A chart of any kind.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Lines.
    Line(LineChart),
    /// Stacked layers.
    Area(StackedArea),
    /// Bars.
    Bars(Bars),
    /// Cells.
    Heat(HeatMap),
}

impl From<LineChart> for Chart {
    fn from(chart: LineChart) -> Chart {
        Chart::Line(chart)
    }
}

impl From<StackedArea> for Chart {
    fn from(chart: StackedArea) -> Chart {
        Chart::Area(chart)
    }
}

impl From<Bars> for Chart {
    fn from(chart: Bars) -> Chart {
        Chart::Bars(chart)
    }
}

impl From<HeatMap> for Chart {
    fn from(chart: HeatMap) -> Chart {
        Chart::Heat(chart)
    }
}

impl Chart {
    fn to_html(&self) -> String {
        let (title, drawing) = match self {
            Chart::Line(chart) => (chart.title(), chart.draw(false)),
            Chart::Area(chart) => (chart.title(), chart.draw(false)),
            Chart::Bars(chart) => (chart.title(), chart.draw(false)),
            Chart::Heat(chart) => (chart.title(), chart.draw(false)),
        };
        format!("<figure><figcaption>{}</figcaption>{drawing}</figure>", html(title))
    }
}

#[derive(Clone, Debug)]
enum Block {
    Text(String),
    Facts(Vec<(String, String)>),
    Table(Table),
    Chart(Chart),
}

/// A part of a page with its own heading.
#[derive(Clone, Debug)]
pub struct Section {
    title: String,
    blocks: Vec<Block>,
}

impl Section {
    /// Makes an empty section.
    pub fn new(title: &str) -> Section {
        Section { title: title.into(), blocks: Vec::new() }
    }

    /// Adds a paragraph.
    pub fn text(self, text: &str) -> Section {
        self.with(Block::Text(text.into()))
    }

    /// Adds a few important figures, in large type: (name, value).
    pub fn facts<T: Into<String>>(self, facts: impl IntoIterator<Item = (T, String)>) -> Section {
        self.with(Block::Facts(facts.into_iter().map(|(what, value)| (what.into(), value)).collect()))
    }

    /// Adds a table.
    pub fn table(self, table: Table) -> Section {
        self.with(Block::Table(table))
    }

    /// Adds a chart. Consecutive charts are side by side if there is room.
    pub fn chart(self, chart: impl Into<Chart>) -> Section {
        self.with(Block::Chart(chart.into()))
    }

    fn with(mut self, block: Block) -> Section {
        self.blocks.push(block);
        self
    }

    fn to_html(&self) -> String {
        let mut out = format!("<section><h2>{}</h2>", html(&self.title));
        let mut in_charts = false;
        for block in &self.blocks {
            let is_chart = matches!(block, Block::Chart(_));
            if is_chart != in_charts {
                out += if is_chart { "<div class=\"charts\">" } else { "</div>" };
                in_charts = is_chart;
            }
            out += &match block {
                Block::Text(text) => format!("<p>{}</p>", html(text)),
                Block::Facts(facts) => facts_html(facts),
                Block::Table(table) => table.to_html(),
                Block::Chart(chart) => chart.to_html(),
            };
        }
        out + if in_charts { "</div></section>" } else { "</section>" }
    }
}

fn facts_html(facts: &[(String, String)]) -> String {
    let mut out = String::from("<dl class=\"facts\">");
    for (what, value) in facts {
        // Writing to a string cannot fail.
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", html(what), html(value));
    }
    out + "</dl>"
}

/// A page: one self-contained HTML file.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    lead: String,
    sections: Vec<Section>,
}

impl Page {
    /// Makes an empty page.
    pub fn new(title: &str) -> Page {
        Page { title: title.into(), lead: String::new(), sections: Vec::new() }
    }

    /// Adds a line under the title: what was examined, and how.
    pub fn lead(mut self, lead: &str) -> Page {
        self.lead = lead.into();
        self
    }

    /// Adds a section.
    pub fn section(mut self, section: Section) -> Page {
        self.sections.push(section);
        self
    }

    /// Returns the whole file.
    pub fn to_html(&self) -> String {
        let (title, lead) = (html(&self.title), html(&self.lead));
        let sections: String = self.sections.iter().map(Section::to_html).collect();
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
             <style>{CHART_STYLE}{}</style></head>\n<body><main><header><h1>{title}</h1><p>{lead}</p></header>\
             {sections}</main><script>{}</script></body></html>\n",
            include_str!("page.css"),
            include_str!("pointer.js"),
        )
    }

    /// Writes the file.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_html())
    }
}
