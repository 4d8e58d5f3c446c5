//! Words that were replaced by the words of the field, and must not come back: not in an
//! identifier, not in a comment, not in a text, not in the documentation.
//!
//! A line is read as its words: `take_up`, `TakeUp` and "take up" are the same. This file is the
//! one that may name them.

use super::Finding;
use super::source::numbered;

const THIS: &str = "xtask/src/tidy/retired.rs";
/// Released texts stay as they were written.
const HISTORY: &str = "CHANGELOG.md";

/// A retired word or phrase, and the word to use.
const RETIRED: &[(&str, &str)] = &[
    ("admittance", "peer login"),
    ("amend", "compare and swap"),
    ("bury", "expire"),
    ("conduct", "fan out"),
    ("desk", "deployment store, or fixture in a test"),
    ("doors", "API"),
    ("enlist", "register"),
    ("errand", "task"),
    ("errands", "tasks"),
    ("fate", "impact"),
    ("flood", "mass outage"),
    ("forgetful", "in memory"),
    ("glance", "probe"),
    ("glances", "probes"),
    ("heir", "successor"),
    ("hindrance", "degraded reason"),
    ("in hand", "claimed, or current"),
    ("inquire", "get status"),
    ("introduce", "pin"),
    ("keeper", "provider state store"),
    ("legs", "rack steps"),
    ("memo", "checkpoint"),
    ("mischief", "injected fault"),
    ("patience", "timeout, or normal duration"),
    ("pulse", "heartbeat"),
    ("reaper", "crash injector"),
    ("rehearsal", "dry run"),
    ("resign", "deregister"),
    ("roster", "matcher or cache"),
    ("scout", "BMC discovery"),
    ("sight", "observation"),
    ("sighting", "observation"),
    ("small print", "guarantees"),
    ("steer", "deployment command"),
    ("take up", "claim"),
    ("takes up", "claims"),
    ("tell run", "append run event"),
    ("teller", "progress log"),
    ("vault", "secret store"),
    ("whereabouts", "location"),
    ("wish", "request"),
    ("witness", "failure detector"),
];

pub fn check(path: &str, text: &str) -> Vec<Finding> {
    // Recorded data has the names that it was recorded with.
    if [THIS, HISTORY].contains(&path) || path.ends_with(".json") {
        return Vec::new();
    }
    let lines = numbered(text)
        .filter(|(_, text)| !is_stored_name(text))
        .map(|(line, text)| (line, format!(" {} ", words(text))));
    lines.flat_map(|(line, words)| findings(path, line, &words)).collect()
}

fn findings(path: &str, line: usize, words: &str) -> Vec<Finding> {
    let found = RETIRED.iter().filter(|(word, _)| words.contains(&format!(" {word} ")));
    let wrong = |word: &str, instead: &str| format!("`{word}` is retired: say {instead}");
    found
        .map(|(word, instead)| {
            Finding::new(path, line, wrong(word, instead), "see docs/glossary.md")
        })
        .collect()
}

/// Names that are stored or sent keep the form that they had first.
fn is_stored_name(line: &str) -> bool {
    line.contains("rename = \"")
}

/// The words of a line in lower case: identifiers are split at `_` and at capitals.
fn words(line: &str) -> String {
    let mut words = String::with_capacity(line.len() + 8);
    let mut after_lower = false;
    for c in line.chars() {
        if c.is_uppercase() && after_lower {
            words.push(' ');
        }
        after_lower = c.is_lowercase();
        match c.is_alphanumeric() {
            true => words.extend(c.to_lowercase()),
            false if words.ends_with(' ') => {}
            false => words.push(' '),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_word_is_found_however_it_is_written() {
        for text in ["fn take_up() {}", "struct TakeUp;", "// Workers take up runs."] {
            let found = check("crates/x/src/lib.rs", text);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].message.contains("claim"), "{}", found[0].message);
        }
        assert_eq!(check("crates/x/src/lib.rs", "let intake_upper = 1;"), []);
        assert_eq!(check(HISTORY, "take up"), []);
    }

    #[test]
    fn identifiers_are_split_into_their_words() {
        assert_eq!(
            words("let FailureDetector::bury_it = 1;").trim(),
            "let failure detector bury it 1"
        );
    }
}
