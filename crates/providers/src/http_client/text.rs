//! Text from a server, shortened for a log line or a fault.

/// The text in one line without control characters, truncated to `max_chars`.
pub(crate) fn one_line(text: &str, max_chars: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean: String = line.chars().filter(|c| !c.is_control()).collect();
    match clean.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_line_and_not_too_long() {
        assert_eq!(one_line("a\r\n b\u{7}\t c", 400), "a b c");
        assert_eq!(one_line(&"é".repeat(500), 400).chars().count(), 401);
    }
}
