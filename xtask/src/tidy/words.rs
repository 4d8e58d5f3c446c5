//! Rules about forbidden and required words. Each pattern is built from pieces, so that this file
//! does not match itself.

use super::Finding;
use super::source::{Source, is_word, numbered};

/// Finds marks of unfinished work, in code and in comments.
pub fn unfinished(source: &Source) -> Vec<Finding> {
    const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    const CALLS: [&str; 3] =
        [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!(")];
    let note = |line: &str| NOTES.iter().find(|name| has_word(line, name)).copied();
    let call = |line: &str| CALLS.iter().find(|call| line.contains(**call)).copied();
    numbered(&source.text)
        .filter_map(|(line, text)| Some((line, note(text).or_else(|| call(text))?)))
        .map(|(line, name)| {
            Finding::new(
                &source.path,
                line,
                format!("`{name}` says this is unfinished"),
                "finish it, or file an issue and remove it",
            )
        })
        .collect()
}

pub fn ignored_tests(source: &Source) -> Vec<Finding> {
    numbered(&source.code)
        .filter(|(_, code)| code.contains("#[ignore"))
        .map(|(line, _)| {
            Finding::new(&source.path, line, "a test that is not run", "mend it or delete it")
        })
        .collect()
}

pub fn sql(source: &Source) -> Vec<Finding> {
    if source.path.starts_with("crates/store/") {
        return Vec::new();
    }
    source
        .literals
        .iter()
        .filter(|literal| is_sql(&literal.text))
        .map(|literal| {
            Finding::new(
                &source.path,
                literal.line,
                "SQL outside `store`",
                "give `store` a function for it",
            )
        })
        .collect()
}

pub fn sql_file(path: &str) -> Vec<Finding> {
    if path.starts_with("crates/store/") {
        return Vec::new();
    }
    vec![Finding::new(path, 1, "SQL outside `store`", "move it to crates/store")]
}

/// True if the words of a statement occur in its order. SQL is written in capitals here, prose is
/// not.
fn is_sql(text: &str) -> bool {
    const STATEMENTS: [[&str; 2]; 4] =
        [["SELECT", "FROM"], ["INSERT", "INTO"], ["UPDATE", "SET"], ["DELETE", "FROM"]];
    STATEMENTS.iter().any(|[verb, follower]| {
        let mut words = text.split(|c| !is_word(c));
        words.any(|name| name == *verb) && words.any(|name| name == *follower)
    })
}

/// The model decides from values alone, so that it can be tested by tables and rerun after a crash.
pub fn impure_model(source: &Source) -> Vec<Finding> {
    const OUTSIDE: [&str; 9] = [
        "async ",
        ".await",
        "::now()",
        "std::env",
        "std::fs",
        "std::io",
        "std::net",
        "std::process",
        "std::thread",
    ];
    if !source.path.starts_with("crates/model/src/") || source.is_test_file() {
        return Vec::new();
    }
    source
        .code_lines()
        .filter_map(|(line, code)| Some((line, OUTSIDE.iter().find(|name| code.contains(**name))?)))
        .map(|(line, name)| {
            let wrong = format!(
                "`{}` in `model`, which does no I/O, reads no clock and does not wait",
                name.trim()
            );
            Finding::new(&source.path, line, wrong, "take the value as a parameter")
        })
        .collect()
}

pub fn module_doc(source: &Source) -> Vec<Finding> {
    let mut parts = source.path.split('/');
    let is_module = parts.next() == Some("crates") && parts.nth(1) == Some("src");
    if !is_module || source.text.trim_start().starts_with("//!") {
        return Vec::new();
    }
    vec![Finding::new(
        &source.path,
        1,
        "no module doc",
        "begin with `//!` and why this module exists",
    )]
}

/// The word *machine* is only used for computers in a rack.
pub fn lifecycle(path: &str, text: &str) -> Vec<Finding> {
    const WORDS: [&str; 4] = [
        concat!("state ", "machine"),
        concat!("state-", "machine"),
        concat!("state_", "machine"),
        concat!("state", "machine"),
    ];
    numbered(text)
        .filter(|(_, line)| WORDS.iter().any(|name| line.to_lowercase().contains(name)))
        .map(|(line, _)| {
            Finding::new(
                path,
                line,
                format!("`{}`", WORDS[0]),
                "it is a *lifecycle*: a machine is a computer",
            )
        })
        .collect()
}

/// Finds absolute paths of a particular computer or build service: the repository must not depend
/// on its location.
pub fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    const FOLDERS: [&str; 6] = ["home", "root", "Users", "work", "workspace", "builds"];
    numbered(text)
        .filter_map(|(line, text)| {
            Some((line, FOLDERS.iter().find(|folder| has_absolute(text, folder))?))
        })
        .map(|(line, folder)| {
            Finding::new(
                path,
                line,
                format!("a path under `/{folder}`, which is one computer's"),
                "use a relative path or a setting",
            )
        })
        .collect()
}

/// True if the line has an absolute path that starts with this directory, and not as part of a
/// longer path or URL.
fn has_absolute(line: &str, folder: &str) -> bool {
    let complete = format!("/{folder}/");
    let begins = |at: usize| {
        line[..at].chars().next_back().is_none_or(|c| !is_word(c) && !"./-*}>~$".contains(c))
    };
    let goes_on = |at: usize| {
        line[at + complete.len()..].chars().next().is_some_and(|c| is_word(c) || c == '.')
    };
    line.match_indices(&complete).any(|(at, _)| begins(at) && goes_on(at))
}

fn has_word(line: &str, name: &str) -> bool {
    let free = |c: Option<char>| c.is_none_or(|c| !is_word(c));
    line.match_indices(name).any(|(at, _)| {
        free(line[..at].chars().next_back()) && free(line[at + name.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::parse(path, text)).iter().map(|finding| finding.line).collect()
    }

    const FILE: &str = "crates/engine/src/turn.rs";

    #[test]
    fn unfinished_work_is_found() {
        let samples = [
            concat!("// TO", "DO: later"),
            concat!("// FIX", "ME"),
            concat!("// XX", "X odd"),
            concat!("to", "do!()"),
            concat!("unimple", "mented!()"),
            concat!("db", "g!(1)"),
        ];
        for sample in samples {
            assert_eq!(
                lines(unfinished, FILE, &format!("fn a() {{\n    {sample}\n}}\n")),
                [2],
                "{sample}"
            );
        }
        assert!(
            lines(
                unfinished,
                FILE,
                concat!("let to", "do = 1; // MAXX", "XX, farrier.XX", "XXXX\n")
            )
            .is_empty()
        );
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(lines(ignored_tests, FILE, "#[test]\n#[ignore]\nfn a() {}\n"), [2]);
        assert_eq!(lines(ignored_tests, FILE, "#[ignore = \"slow\"]\nfn a() {}\n"), [1]);
        assert!(lines(ignored_tests, FILE, "// #[ignore] would hide it\nfn a() {}\n").is_empty());
    }

    #[test]
    fn sql_is_found_outside_the_store() {
        let statements = [
            concat!("\"SEL", "ECT id\n     FROM runs\""),
            concat!("\"INS", "ERT INTO runs VALUES (1)\""),
            concat!("r#\"UPD", "ATE runs SET a = 1\"#"),
            concat!("\"DEL", "ETE\\nFROM runs\""),
        ];
        for statement in statements {
            assert_eq!(lines(sql, FILE, &format!("\nlet a = {statement};\n")), [2], "{statement}");
            assert!(
                lines(sql, "crates/store/src/run.rs", &format!("let a = {statement};\n"))
                    .is_empty()
            );
        }
        for prose in [
            "let a = \"select a machine from the list\";",
            concat!("let a = 1; // UPD", "ATE runs SET a = 1"),
            concat!("let a = \"UPD", "ATE\"; let b = \"SET\";"),
            "let a = \"CREATE DATABASE t\";",
        ] {
            assert!(lines(sql, FILE, prose).is_empty(), "{prose}");
        }
        assert_eq!(sql_file("crates/server/a.sql").len(), 1);
        assert!(sql_file("crates/store/migrations/1.sql").is_empty());
    }

    #[test]
    fn the_model_is_pure() {
        let path = "crates/model/src/run.rs";
        for impure in ["async fn a() {}", "b().await", "let t = SystemTime::now();", "use std::fs;"]
        {
            assert_eq!(lines(impure_model, path, &format!("\n{impure}\n")), [2], "{impure}");
            assert!(lines(impure_model, FILE, impure).is_empty(), "{impure}");
        }
        assert!(
            lines(impure_model, path, "use std::fmt; // std::fs\nfn a(now: Timestamp) {}\n")
                .is_empty()
        );
    }

    #[test]
    fn every_module_says_why_it_exists() {
        assert_eq!(lines(module_doc, FILE, "use a;\n"), [1]);
        assert_eq!(lines(module_doc, FILE, "// Why.\n"), [1]);
        assert!(lines(module_doc, FILE, "//! Why.\n").is_empty());
        assert!(lines(module_doc, "crates/engine/tests/it/main.rs", "use a;\n").is_empty());
    }

    #[test]
    fn a_lifecycle_is_called_one() {
        for bad in [
            concat!("The state ", "machine of"),
            concat!("a State-", "Machine"),
            concat!("State", "Machine"),
        ] {
            assert_eq!(lifecycle("docs/a.md", bad).len(), 1, "{bad}");
        }
        assert!(
            lifecycle("docs/a.md", "The state of a machine; the machine's state.\n").is_empty()
        );
    }

    #[test]
    fn paths_of_one_computer_are_found() {
        for bad in ["cd |home|ann|src", "\"|root|.ssh|key\"", "(|Users|ann|a)", "dir=|builds|1|x"] {
            let bad = bad.replace('|', "/");
            assert_eq!(machine_paths("README.md", &bad).len(), 1, "{bad}");
        }
        for good in [
            "/etc/farrier/farrier.toml",
            "https://example.com/home/x",
            "./builds/x",
            "a /home/ folder",
            "$X/root/y",
        ] {
            assert!(machine_paths("README.md", good).is_empty(), "{good}");
        }
    }
}
