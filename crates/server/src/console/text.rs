//! Text from elsewhere, made safe to show. Devices colour their output and move the cursor; a page
//! shows neither, and no character that hides or reorders what stands beside it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The longest piece of foreign text that is shown in one place.
const MAX_SHOWN: usize = 4_096;

/// One line, without control characters and terminal sequences, at most so long.
pub(super) fn clean(text: &str) -> String {
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

/// The lines of a piece of a log. A lone carriage return begins a new one, as progress bars have it.
pub(super) fn lines(data: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(data);
    let text = text.replace("\r\n", "\n");
    let text = text.strip_suffix(['\n', '\r']).unwrap_or(&text);
    text.split(['\n', '\r']).map(clean).collect()
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// What follows an escape: a control sequence, a command up to its terminator, or one character.
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

/// Parameters, then the one character that ends a control sequence.
fn skip_parameters(rest: &mut Chars<'_>) {
    while rest.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')).is_some() {}
    rest.next_if(|c| matches!(c, '\u{40}'..='\u{7e}'));
}

/// Control characters, and what turns the direction of the text around or hides it.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Everything but the characters that stand for themselves in every part of a URL (RFC 3986).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A value as it stands in the query of an address.
pub(super) fn in_query(value: &str) -> String {
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
            assert_eq!(clean(raw), shown, "{raw:?}");
        }
        let long = clean(&"x".repeat(MAX_SHOWN + 1));
        assert!(long.ends_with('…') && long.chars().count() == MAX_SHOWN + 1);
    }

    #[test]
    fn pieces_fall_into_lines() {
        assert_eq!(lines(b"one\r\ntwo\n"), ["one", "two"]);
        assert_eq!(lines(b"10%\r20%\r"), ["10%", "20%"]);
        assert_eq!(lines(b"bad \xff byte"), ["bad \u{fffd} byte"]);
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(in_query("a=b AND c!=\"d&e\""), "a%3Db%20AND%20c%21%3D%22d%26e%22");
    }
}
