//! Tables, for pages and for terminals.

use std::fmt::Write;

use crate::escape::html;

/// A table. The first column has names and is left-aligned, the others have values and are right-aligned.
#[derive(Clone, Debug, Default)]
pub struct Table {
    caption: Option<String>,
    notes: Vec<String>,
    columns: Vec<String>,
    rows: Vec<(Vec<String>, bool)>,
    left: Vec<usize>,
}

impl Table {
    /// Makes a table without rows.
    pub fn new<T: Into<String>>(columns: impl IntoIterator<Item = T>) -> Table {
        Table { columns: columns.into_iter().map(Into::into).collect(), left: vec![0], ..Table::default() }
    }

    /// Adds a line above it that says what it shows.
    pub fn caption(mut self, caption: &str) -> Table {
        self.caption = Some(caption.into());
        self
    }

    /// Adds a line below it: what a reader has to know about some of its figures.
    pub fn note(mut self, note: &str) -> Table {
        self.notes.push(note.into());
        self
    }

    /// Marks one more column as text.
    pub fn words(mut self, column: usize) -> Table {
        self.left.push(column);
        self
    }

    /// Adds a row; missing cells are empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push((cells.into_iter().map(Into::into).collect(), false));
    }

    /// Adds a highlighted row.
    pub fn marked_row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push((cells.into_iter().map(Into::into).collect(), true));
    }

    /// Returns whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table in aligned columns. Highlighted rows end with ` <`.
    pub fn to_text(&self) -> String {
        let length = |text: &String| text.chars().count();
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let columns = 0..self.columns.len();
        let widest = |column: usize| {
            let cells = self.rows.iter().map(|(row, _)| length(&cell(row, column)));
            cells.chain([length(&self.columns[column])]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = columns.clone().map(widest).collect();
        let line = |row: &[String], mark: &str| {
            let mut out = String::new();
            for column in columns.clone() {
                let (text, width) = (cell(row, column), widths[column]);
                let gap = if column == 0 { "" } else { "  " };
                // Writing to a string cannot fail.
                let _ = if self.left.contains(&column) {
                    write!(out, "{gap}{text:<width$}")
                } else {
                    write!(out, "{gap}{text:>width$}")
                };
            }
            format!("{}{mark}\n", out.trim_end())
        };
        let caption = self.caption.iter().map(|caption| format!("{caption}\n")).collect::<String>();
        let rows: String =
            self.rows.iter().map(|(row, marked)| line(row, if *marked { " <" } else { "" })).collect();
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        caption + &line(&self.columns, "") + &rows + &notes
    }

    pub(crate) fn to_html(&self) -> String {
        let class = |column: usize| if self.left.contains(&column) { " class=\"words\"" } else { "" };
        let mut out = String::from("<div class=\"table\"><table>");
        let caption = self.caption.iter().map(|caption| format!("<caption>{}</caption>", html(caption)));
        out.extend(caption);
        out += "<thead><tr>";
        out.extend(
            self.columns.iter().enumerate().map(|(n, name)| format!("<th{}>{}</th>", class(n), html(name))),
        );
        out += "</tr></thead><tbody>";
        for (row, marked) in &self.rows {
            out += if *marked { "<tr class=\"marked\">" } else { "<tr>" };
            for column in 0..self.columns.len() {
                let text = row.get(column).map(|text| html(text)).unwrap_or_default();
                let _ = write!(out, "<td{}>{text}</td>", class(column));
            }
            out += "</tr>";
        }
        out += "</tbody></table>";
        out.extend(self.notes.iter().map(|note| format!("<p>{}</p>", html(note))));
        out + "</div>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_in_text() {
        let mut table = Table::new(["volume", "reads", "note"]).words(2);
        table.row(["a", "12345", "fine"]);
        table.marked_row(["longer name", "6", "x"]);
        table.row(["b"]);
        assert_eq!(
            table.to_text(),
            "volume       reads  note\na            12345  fine\nlonger name      6  x <\nb\n"
        );
    }

    #[test]
    fn notes_stand_below() {
        let mut table = Table::new(["volume", "reads"]).note("one & two");
        table.row(["a", "1"]);
        assert_eq!(table.to_text(), "volume  reads\na           1\none & two\n");
        assert!(table.to_html().ends_with("</table><p>one &amp; two</p></div>"));
    }
}
