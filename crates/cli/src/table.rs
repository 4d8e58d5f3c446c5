//! Tables: aligned columns without borders, so that scripts can split them.
//!
//! Widths are display widths, not bytes: `⛔` takes two columns. Colour is applied without counting
//! towards the width, so it never shifts a column.

use crate::text::one_line;
use unicode_width::UnicodeWidthStr;

/// The meaning of a text, shown as a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
    Warn,
    Busy,
    Dim,
}

/// Colours of the output: on or off.
#[derive(Debug, Clone, Copy)]
pub struct ColorMode {
    pub enabled: bool,
}

impl ColorMode {
    pub fn apply(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_string(),
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Warn => "33",
            Tone::Busy => "34",
            Tone::Dim => "2",
        };
        if self.enabled { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_string() }
    }
}

pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub fn with_tone(text: impl AsRef<str>, tone: Tone) -> Self {
        let text = match one_line(text.as_ref()).as_ref() {
            "" => "-".to_string(),
            text => text.replace('\t', " "),
        };
        Self { text, tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::with_tone(text, Tone::Plain)
    }
}

pub struct Table {
    header: Vec<(&'static str, usize)>,
    rows: Vec<Vec<Cell>>,
}

/// The space between two columns, in characters.
const GAP: usize = 2;

impl Table {
    pub fn new(names: &[&'static str]) -> Self {
        Self { header: names.iter().map(|name| (*name, name.width())).collect(), rows: Vec::new() }
    }

    /// Sets the minimum width of a column.
    pub fn min_width(mut self, name: &str, width: usize) -> Self {
        for (column, least) in &mut self.header {
            if *column == name {
                *least = width.max(*least);
            }
        }
        self
    }

    pub fn add_row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub fn render(&self, colors: ColorMode) -> String {
        let widths = self.widths();
        let header: Vec<Cell> = self.header.iter().map(|(name, _)| Cell::from(*name)).collect();
        let mut text = String::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            push_row(&mut text, row, &widths, colors);
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(|(_, least)| *least).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        widths
    }
}

fn push_row(text: &mut String, row: &[Cell], widths: &[usize], colors: ColorMode) {
    for (position, (cell, width)) in row.iter().zip(widths).enumerate() {
        text.push_str(&colors.apply(cell.tone, &cell.text));
        if position + 1 < row.len() {
            let padding = width.saturating_sub(cell.text.width()) + GAP;
            text.extend(std::iter::repeat_n(' ', padding));
        }
    }
    text.push('\n');
}

/// Formats `name  value` lines with aligned values.
pub fn format_pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in pairs {
        let padding = " ".repeat(width - name.width() + GAP);
        text.push_str(&format!("{name}{padding}{}\n", one_line(value)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_screen_width() {
        let mut table = Table::new(&["ID", "STATE", "OP"]).min_width("ID", 5);
        table.add_row(vec!["a".into(), Cell::with_tone("⛔BLOCKED", Tone::Bad), "-".into()]);
        table.add_row(vec!["b".into(), "IDLE".into(), "".into()]);
        table.add_row(vec!["c\u{1b}".into(), "日本".into(), "op-1".into()]);
        assert_eq!(
            table.render(ColorMode { enabled: false }),
            "ID     STATE      OP\n\
             a      ⛔BLOCKED  -\n\
             b      IDLE       -\n\
             c\\x1b  日本       op-1\n"
        );
    }

    #[test]
    fn colour_does_not_move_a_column() {
        let mut table = Table::new(&["A", "B"]);
        table.add_row(vec![Cell::with_tone("x", Tone::Good), "y".into()]);
        assert_eq!(table.render(ColorMode { enabled: true }), "A  B\n\u{1b}[32mx\u{1b}[0m  y\n");
    }

    #[test]
    fn pairs_align() {
        let text = format_pairs(&[("id", "m-1".into()), ("phase", "READY".into())]);
        assert_eq!(text, "id     m-1\nphase  READY\n");
    }
}
