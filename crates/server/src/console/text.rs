//! Makes foreign text safe to show. Devices send colour codes and cursor movements; a page shows
//! neither, nor characters that hide or reorder the text beside them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The longest foreign text that is shown in one place, in characters.
const MAX_SHOWN: usize = 4_096;

/// One line without control characters and terminal sequences, at most `MAX_SHOWN` characters.
pub(super) fn clean_text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_SHOWN));
    let mut rest = text.chars().peekable();
    let mut count = 0;
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_sequence(&mut rest),
            '\u{9b}' => skip_parameters(&mut rest),
            '\t' | '\n' | '\r' => shown.push(' '),
            c if is_harmful(c) => continue,
            c => shown.push(c),
        }
        count += 1;
        if count == MAX_SHOWN && rest.peek().is_some() {
            shown.push('…');
            break;
        }
    }
    shown
}

/// The lines of a chunk of a log. A lone carriage return begins a new line, as in progress bars.
pub(super) fn clean_lines(data: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(data);
    let text = text.replace("\r\n", "\n");
    let text = text.strip_suffix(['\n', '\r']).unwrap_or(&text);
    text.split(['\n', '\r']).map(clean_text).collect()
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Skips what follows an escape: a control sequence, a command up to its terminator, or one
/// character.
fn skip_sequence(rest: &mut Chars<'_>) {
    match rest.next() {
        Some('[') => skip_parameters(rest),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = rest.next() {
                if c == '\u{7}' {
                    return;
                }
                if c == '\u{1b}' {
                    rest.next_if_eq(&'\\');
                    return;
                }
            }
        }
        Some(' '..='/') => drop(rest.next()),
        Some(_) | None => {}
    }
}

/// Skips the parameters and the final character of a control sequence.
fn skip_parameters(rest: &mut Chars<'_>) {
    while rest.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')).is_some() {}
    rest.next_if(|c| matches!(c, '\u{40}'..='\u{7e}'));
}

/// Control characters, and characters that hide text or change its direction.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// All characters but the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Escapes a value for the query of a URL.
pub(super) fn encode_query(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_sequences_are_gone() {
        for (raw, shown) in [
            ("plain ✓ text", "plain ✓ text"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link", "link"),
            ("\u{9b}2Jgone", "gone"),
            ("\u{1b}(Bascii", "ascii"),
            ("bell\u{7} back\u{8} del\u{7f}", "bell back del"),
            ("evil\u{202e}txt", "eviltxt"),
            ("a\tb", "a b"),
            ("cut \u{1b}[", "cut "),
            ("\u{1b}", ""),
        ] {
            assert_eq!(clean_text(raw), shown, "{raw:?}");
        }
        let long = clean_text(&"x".repeat(MAX_SHOWN + 1));
        assert!(long.ends_with('…') && long.chars().count() == MAX_SHOWN + 1);
    }

    #[test]
    fn log_chunks_split_into_lines() {
        assert_eq!(clean_lines(b"one\r\ntwo\n"), ["one", "two"]);
        assert_eq!(clean_lines(b"10%\r20%\r"), ["10%", "20%"]);
        assert_eq!(clean_lines(b"bad \xff byte"), ["bad \u{fffd} byte"]);
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(encode_query("a=b AND c!=\"d&e\""), "a%3Db%20AND%20c%21%3D%22d%26e%22");
    }
}
