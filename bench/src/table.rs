//! Plain text tables.

use crate::output::say;

/// Prints rows under a title; the first row is the heading, the first column is aligned to the left.
pub fn print(title: &str, rows: &[Vec<String>]) {
    say!("{title}");
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(String::len).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            line += &if at == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        say!("{}", line.trim_end());
    }
    say!("");
}

/// A row from anything that is text.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// A number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
