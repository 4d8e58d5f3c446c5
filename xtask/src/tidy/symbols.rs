//! Checks that the symbols that a checklist names in backticks exist: a checklist is followed step
//! by step, so a renamed symbol stops its reader.
//!
//! A name is known when it is an identifier or a word of a literal somewhere in the source;
//! `Type::item` when one file has both; a file when a path of the tree ends with it. That is enough
//! to find renamed and deleted symbols.

use super::links::prose;
use super::source::{Source, is_word};
use super::{Finding, RepositoryFiles};
use crate::reference::Text;
use std::collections::BTreeSet;

/// True if the document is a checklist.
fn is_checked(path: &str) -> bool {
    path.starts_with("docs/adding-") || path == "ARCHITECTURE.md"
}

pub fn check(texts: &[Text], tree: &RepositoryFiles) -> Vec<Finding> {
    let pages: Vec<&Text> = texts.iter().filter(|(path, _)| is_checked(path)).collect();
    if pages.is_empty() {
        return Vec::new();
    }
    let files: Vec<BTreeSet<String>> = texts
        .iter()
        .filter(|(path, _)| is_source(path))
        .map(|(path, text)| words(path, text))
        .collect();
    let known = KnownNames { files: &files, tree };
    let unknown = |(path, text): &&Text| {
        let spans =
            prose(text).flat_map(|(line, prose)| spans(prose).map(move |span| (line, span)));
        let missing = spans.filter(|(_, span)| !known.has(span));
        let finding = |(line, span): (usize, &str)| {
            let wrong = format!("`{span}` is not in the source");
            Finding::new(path, line, wrong, "name what exists")
        };
        missing.map(finding).collect::<Vec<_>>()
    };
    pages.iter().flat_map(unknown).collect()
}

fn is_source(path: &str) -> bool {
    let ours = path.starts_with("crates/") || path.starts_with("xtask/");
    let written =
        ["rs", "proto", "toml", "sql"].iter().any(|end| path.ends_with(&format!(".{end}")));
    ours && written
}

/// Every word of a file that is not in a comment.
fn words(path: &str, text: &str) -> BTreeSet<String> {
    let split = |text: &str| text.split(|c| !is_word(c)).map(str::to_owned).collect::<Vec<_>>();
    if !path.ends_with(".rs") {
        return split(text).into_iter().collect();
    }
    let source = Source::parse(path, text);
    let literals = source.literals.iter().flat_map(|literal| split(&literal.text));
    split(&source.code).into_iter().chain(literals).collect()
}

/// The spans in backticks on a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

struct KnownNames<'a> {
    files: &'a [BTreeSet<String>],
    tree: &'a RepositoryFiles,
}

impl KnownNames<'_> {
    /// True if a span names something that exists. Commands, patterns and prose are not names.
    fn has(&self, span: &str) -> bool {
        const FILES: [&str; 6] = [".rs", ".proto", ".md", ".toml", ".sql", ".sh"];
        let span = span.trim_end_matches("()").trim_end_matches('!');
        if FILES.iter().any(|end| span.ends_with(end)) && is_name(span, "_-./") {
            return self.tree.ends_with(span);
        }
        if !is_name(span, "_:") || span.starts_with(|c: char| c.is_ascii_digit()) {
            return true;
        }
        let parts: Vec<&str> = span.split("::").filter(|part| !part.is_empty()).collect();
        self.files.iter().any(|words| parts.iter().all(|part| words.contains(*part)))
    }
}

fn is_name(span: &str, besides: &str) -> bool {
    !span.is_empty() && span.chars().all(|c| c.is_ascii_alphanumeric() || besides.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let sources = [
            (
                "crates/model/src/effect.rs",
                "//! Gone here.\npub enum Effect { Ssh }\nimpl Effect { fn word(&self) {} }\n",
            ),
            ("crates/model/src/fault.rs", "fn refuse() { f(\"CAPABILITY_MISSING\") }\n"),
            ("crates/proto/proto/plans.proto", "message Step {}\n"),
            ("docs/adding-a-step.md", page),
        ];
        let texts = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let tree = RepositoryFiles(texts.iter().map(|(path, _)| path.clone()).collect());
        let findings = check(&texts, &tree).into_iter();
        findings.map(|finding| format!("{} {}", finding.line, finding.message)).collect()
    }

    #[test]
    fn names_that_exist_pass() {
        let page = "`Effect`, `Effect::word`, `word()`, `CAPABILITY_MISSING`, `Step`, `effect.rs`, `src/fault.rs`,\n\
                    `cargo xtask tidy`, `op-…`, `rack-7`, `docs/<kind>.md`\n```text\n`Gone`\n```\n";
        assert_eq!(found(page), Vec::<String>::new());
    }

    #[test]
    fn names_that_do_not_exist_are_found() {
        let page =
            "`Absent`\n`Effect::refuse` and `Effect::gone`\n`absent_test`\n`gone.rs`, `Gone`\n";
        let expected = [
            (1, "Absent"),
            (2, "Effect::refuse"),
            (2, "Effect::gone"),
            (3, "absent_test"),
            (4, "gone.rs"),
            (4, "Gone"),
        ];
        assert_eq!(
            found(page),
            expected.map(|(line, name)| format!("{line} `{name}` is not in the source"))
        );
    }

    #[test]
    fn other_documents_are_not_held_to_it() {
        let texts = [("docs/nodes.md".to_owned(), "`Gone`".to_owned())];
        assert!(check(&texts, &RepositoryFiles::default()).is_empty());
    }
}
