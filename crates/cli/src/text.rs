//! Makes untrusted text safe to print.
//!
//! Log lines and messages come from untrusted devices. Control characters, and the characters that
//! reorder or hide text, are escaped before they reach a terminal.

use model::list_format::join_limited;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Escapes all control characters except newline and tab.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe_char(c) && c != '\n' && c != '\t')
}

/// Like `printable`, but also escapes newlines, so that the text stays on one line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe_char(c) && c != '\t')
}

/// The text, or a dash where there is none.
pub fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// True for control characters, and for characters that change the text direction or are invisible.
fn is_unsafe_char(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn escape(text: &str, harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harmful(c) {
            push_escaped(&mut safe, c);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

fn push_escaped(safe: &mut String, c: char) {
    match c {
        '\n' => safe.push_str("\\n"),
        '\r' => safe.push_str("\\r"),
        c if u32::from(c) < 0x100 => {
            // Writing to a String cannot fail.
            let _ = write!(safe, "\\x{:02x}", u32::from(c));
        }
        c => {
            let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
        }
    }
}

/// The maximum number of names in a table cell; the rest is shown as a count.
pub const MAX_IN_CELL: usize = 12;

pub fn join_names<'a>(all: impl Iterator<Item = &'a str>, most: usize) -> String {
    join_limited(&all.collect::<Vec<_>>(), ", ", most)
}

/// Formats labels, versions or parameters, sorted by name.
pub fn join_pairs(pairs: &HashMap<String, String>, between: &str) -> String {
    let sorted: BTreeMap<_, _> = pairs.iter().collect();
    let pairs: Vec<String> =
        sorted.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_the_terminal() {
        for (raw, shown) in [
            ("plain ✓ text", "plain ✓ text"),
            ("a\tb\nc", "a\tb\nc"),
            ("\u{1b}[2Jgone", "\\x1b[2Jgone"),
            ("back\u{8}space\r", "back\\x08space\\r"),
            ("c1 \u{9b}31m", "c1 \\x9b31m"),
            ("evil\u{202e}txt", "evil\\u{202e}txt"),
            ("\u{0}\u{7f}", "\\x00\\x7f"),
        ] {
            assert_eq!(printable(raw), shown);
        }
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(one_line("a\r\nb"), "a\\r\\nb");
        assert_eq!(one_line("a\tb"), "a\tb");
    }

    #[test]
    fn pairs_are_listed_by_name() {
        let pairs = [("b", "2"), ("a", "1")].map(|(key, value)| (key.into(), value.into()));
        assert_eq!(join_pairs(&pairs.into(), ", "), "a=1, b=2");
    }

    #[test]
    fn many_names_are_counted() {
        let all: Vec<String> = (1..=14).map(|n| format!("m-{n}")).collect();
        let message = join_names(all.iter().map(String::as_str), MAX_IN_CELL);
        assert!(message.ends_with("m-12, and 2 more"), "{message}");
    }
}
