//! The maximum size of a file. An enforced limit makes authors split a file while that is still
//! easy. Clippy limits functions (`clippy.toml`).

use super::Finding;
use super::source::Source;

const FILE_LINES: usize = 500;
const FILE_LINES_WITH_TESTS: usize = 800;

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
}
