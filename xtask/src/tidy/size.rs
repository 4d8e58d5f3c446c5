//! The maximum sizes of files and functions. An enforced limit makes authors split a file while
//! that is still easy.

use super::Finding;
use super::source::Source;

const FILE_LINES: usize = 500;
const FILE_LINES_WITH_TESTS: usize = 800;
const FUNCTION_LINES: usize = 70;

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

pub fn functions(source: &Source) -> Vec<Finding> {
    if source.is_test_file() {
        return Vec::new();
    }
    let too_long =
        |f: &super::source::Function| f.lines > FUNCTION_LINES && !source.is_test_line(f.line);
    let finding = |f: super::source::Function| {
        let wrong = format!("`{}` has {} lines, {FUNCTION_LINES} are allowed", f.name, f.lines);
        Finding::new(&source.path, f.line, wrong, "split deciding from doing, or name its parts")
    };
    source.functions().into_iter().filter(too_long).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&Source::parse(path, text)).len()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_may_have_500_lines() {
        let path = "crates/engine/src/turn.rs";
        assert_eq!(found(file, path, &"\n".repeat(500)), 0);
        assert_eq!(found(file, path, &"\n".repeat(501)), 1);
    }

    #[test]
    fn with_inline_tests_or_for_tests_it_may_have_800() {
        let tests = "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\n";
        assert_eq!(
            found(file, "crates/engine/src/turn.rs", &format!("{}{tests}", "\n".repeat(796))),
            0
        );
        assert_eq!(
            found(file, "crates/engine/src/turn.rs", &format!("{}{tests}", "\n".repeat(797))),
            1
        );
        assert_eq!(found(file, "crates/engine/tests/it/main.rs", &"\n".repeat(800)), 0);
        assert_eq!(found(file, "crates/engine/tests/it/main.rs", &"\n".repeat(801)), 1);
    }

    #[test]
    fn a_function_may_have_70_lines() {
        assert_eq!(found(functions, "crates/engine/src/turn.rs", &function(70)), 0);
        assert_eq!(found(functions, "crates/engine/src/turn.rs", &function(71)), 1);
    }

    #[test]
    fn the_functions_of_tests_are_free() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(100));
        assert_eq!(found(functions, "crates/engine/src/turn.rs", &tests), 0);
        assert_eq!(found(functions, "crates/engine/tests/it/main.rs", &function(100)), 0);
    }
}
