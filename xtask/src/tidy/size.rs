//! The maximum size of a file, and the maximum width of a comment, which rustfmt does not wrap. An
//! enforced limit makes authors split a file while that is still easy. Clippy limits functions
//! (`clippy.toml`).

use super::Finding;
use super::source::{Source, numbered};

const FILE_LINES: usize = 500;
const FILE_LINES_WITH_TESTS: usize = 800;
const COMMENT_COLUMNS: usize = 100;

pub fn file(source: &Source) -> Vec<Finding> {
    let roomy = source.is_test_file() || source.has_inline_tests();
    let limit = if roomy { FILE_LINES_WITH_TESTS } else { FILE_LINES };
    let lines = source.text.lines().count();
    if lines <= limit {
        return Vec::new();
    }
    vec![Finding::new(
        &source.path,
        limit + 1,
        format!("the file has {lines} lines, {limit} are allowed"),
        "split it by what its parts know",
    )]
}

pub fn comments(source: &Source) -> Vec<Finding> {
    let is_wide =
        |text: &str| text.trim_start().starts_with("//") && text.chars().count() > COMMENT_COLUMNS;
    numbered(&source.text)
        .filter(|(_, text)| is_wide(text))
        .map(|(line, _)| {
            let message = format!("a comment wider than {COMMENT_COLUMNS} columns");
            Finding::new(&source.path, line, message, "wrap it")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        file(&Source::parse(path, text)).len()
    }

    #[test]
    fn a_file_may_have_500_lines() {
        let path = "crates/engine/src/turn.rs";
        assert_eq!(found(path, &"\n".repeat(500)), 0);
        assert_eq!(found(path, &"\n".repeat(501)), 1);
    }

    #[test]
    fn with_inline_tests_or_for_tests_it_may_have_800() {
        let tests = "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\n";
        assert_eq!(found("crates/engine/src/turn.rs", &format!("{}{tests}", "\n".repeat(796))), 0);
        assert_eq!(found("crates/engine/src/turn.rs", &format!("{}{tests}", "\n".repeat(797))), 1);
        assert_eq!(found("crates/engine/tests/it/main.rs", &"\n".repeat(800)), 0);
        assert_eq!(found("crates/engine/tests/it/main.rs", &"\n".repeat(801)), 1);
    }

    #[test]
    fn a_comment_may_have_100_columns() {
        let wide = |columns: usize| {
            let text = format!("    // {}\n", "ä".repeat(columns - 7));
            comments(&Source::parse("crates/engine/src/turn.rs", &text)).len()
        };
        assert_eq!((wide(100), wide(101)), (0, 1));
    }
}
