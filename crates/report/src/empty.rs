//! Charts that have nothing to draw: a sentence in their place says why.

use std::fmt::Write;

use crate::escape::html;
use crate::frame::open;

/// Why a chart is empty if it was given no values.
pub(crate) const NO_VALUES: &str = "There is nothing to draw: there are no values.";
/// Why it is empty if none of its values can be drawn.
pub(crate) const NO_PLACE: &str = "There is nothing to draw: no value has a place on the axes.";
/// Why a stack of layers without height is empty.
pub(crate) const ALL_ZERO: &str = "There is nothing to draw: all values are 0.";

/// The most characters of a line.
const MOST_CHARACTERS: usize = 84;
const LINE: f64 = 20.0;
const MIDDLE: f64 = 320.0;

/// Returns a picture with this sentence instead of a chart.
pub(crate) fn picture(title: &str, sentence: &str, alone: bool) -> String {
    let lines = lines(sentence);
    let mut out = open(title, 36.0 + LINE * lines.len() as f64, alone);
    for (number, line) in lines.iter().enumerate() {
        let y = 32.0 + LINE * number as f64;
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<text class=\"title\" x=\"{MIDDLE}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            html(line)
        );
    }
    out + "</svg>"
}

/// The sentence in lines that fit into a picture.
fn lines(sentence: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= MOST_CHARACTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_is_broken_between_words() {
        let sentence = "word ".repeat(40);
        let lines = lines(&sentence);
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= MOST_CHARACTERS), "{lines:?}");
        assert_eq!(lines.join(" "), sentence.trim_end());
    }
}
