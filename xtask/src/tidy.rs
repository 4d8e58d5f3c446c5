//! The architecture is a test: what the design forbids is looked for in every file, so that it need not be remembered in
//! review. The rules are pure functions over a file's path and text; this module only gathers files and prints findings.
//!
//! The rules read text, not syntax trees. That is enough for code that rustfmt has laid out, costs a fraction of a
//! second, and needs no dependency.

mod graph;
mod links;
mod reasons;
mod size;
mod source;
mod wildcard;
mod words;

use crate::shell::{self, Failure};
use source::Source;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// One thing that is wrong, where it is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    wrong: String,
    todo: &'static str,
}

impl Finding {
    fn new(path: &str, line: usize, wrong: impl Into<String>, todo: &'static str) -> Self {
        Self { path: path.to_owned(), line, wrong: wrong.into(), todo }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.wrong, self.todo)
    }
}

/// What every file may be measured against: the names of all of them.
#[derive(Default)]
struct Tree(BTreeSet<String>);

impl Tree {
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        path.is_empty()
            || self.0.contains(path)
            || self.0.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside))
    }
}

pub fn run() -> Result<(), Failure> {
    let root = shell::root();
    let tree = Tree(list(&root));
    let texts: Vec<(&str, String)> = tree
        .0
        .iter()
        .filter_map(|path| Some((path.as_str(), fs::read_to_string(root.join(path)).ok()?)))
        .collect();
    let mut findings: Vec<Finding> =
        texts.iter().flat_map(|(path, text)| check(path, text, &tree)).collect();
    findings.extend(check_reasons(&texts));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to say", tree.0.len());
            Ok(())
        }
        count => {
            Err(Failure::new(format!("tidy: findings: {count}"), "each line above says what to do"))
        }
    }
}

/// All rules on one file.
fn check(path: &str, text: &str, tree: &Tree) -> Vec<Finding> {
    let mut findings = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("rs") => check_rust(&Source::parse(path, text)),
        Some("md") => [words::lifecycle(path, text), links::check(path, text, tree)].concat(),
        Some("sql") => words::sql_file(path),
        _ if path.ends_with("Cargo.toml") => graph::check(path, text),
        _ => Vec::new(),
    };
    if path != "Cargo.lock" {
        findings.extend(words::machine_paths(path, text));
    }
    findings
}

fn check_rust(source: &Source) -> Vec<Finding> {
    let rules = [
        size::file,
        words::unfinished,
        words::ignored_tests,
        words::sql,
        words::impure_model,
        words::module_doc,
        wildcard::check,
    ];
    let mut findings: Vec<Finding> = rules.iter().flat_map(|rule| rule(source)).collect();
    findings.extend(words::lifecycle(&source.path, &source.text));
    findings
}

/// The one rule that is about several files: the reasons that are refused with, and the table of them.
fn check_reasons(texts: &[(&str, String)]) -> Vec<Finding> {
    let page = texts.iter().find(|(path, _)| *path == reasons::PAGE).map(|(_, text)| text.as_str());
    let mut said = Vec::new();
    let mut findings = Vec::new();
    for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let (reasons, wrong) = reasons::said(&Source::parse(path, text));
        said.extend(reasons);
        findings.extend(wrong);
    }
    findings.extend(reasons::check(page.unwrap_or_default(), &said));
    findings
}

/// The files of the repository as git sees them, new ones included; without git, everything that is not built.
pub fn list(root: &Path) -> BTreeSet<String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    match git.output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split_terminator('\0')
            .filter(|path| root.join(path).is_file())
            .map(str::to_owned)
            .collect(),
        _ => walked(root),
    }
}

/// Every file in a folder that is neither git's nor built.
pub fn walked(root: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    walk(root, "", &mut files);
    files
}

fn walk(root: &Path, folder: &str, files: &mut BTreeSet<String>) {
    const NOT_OURS: [&str; 3] = [".git", "target", "farrier-data"];
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !NOT_OURS.contains(&name.as_str()) => {
                walk(root, &path, files)
            }
            Ok(kind) if kind.is_file() => drop(files.insert(path)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_where_what_and_what_to_do() {
        let finding = Finding::new("crates/model/src/run.rs", 7, "too long", "split it");
        assert_eq!(finding.to_string(), "crates/model/src/run.rs:7: too long; split it");
    }

    #[test]
    fn a_tree_knows_files_and_folders() {
        let tree = Tree(["docs/a.md".to_owned(), "docs-old/b.md".to_owned()].into());
        assert!(
            tree.has("docs/a.md") && tree.has("docs") && tree.has("docs/") && tree.has("docs-old")
        );
        assert!(!tree.has("docs/b.md") && !tree.has("doc"));
    }

    #[test]
    fn the_rules_are_applied_by_kind_of_file() {
        let tree = Tree::default();
        let found = |path, text| check(path, text, &tree).len();
        assert_eq!(found("crates/model/src/run.rs", "//! Runs.\nfn a() {}\n"), 0);
        assert_eq!(found("crates/model/src/run.rs", "fn a() {}\n"), 1);
        assert_eq!(found("crates/model/Cargo.toml", "[dependencies]\nstore.workspace = true\n"), 1);
        assert_eq!(found("README.md", "[gone](docs/gone.md)\n"), 1);
        assert_eq!(found("crates/server/migrations/1.sql", ""), 1);
    }

    #[test]
    fn the_reasons_of_all_files_are_held_against_one_table() {
        let refusal = "fn a() { Refusal::precondition(\"BUSY\", said) }\n".to_owned();
        let code = ("crates/model/src/a.rs", refusal);
        assert_eq!(check_reasons(std::slice::from_ref(&code)).len(), 1);
        let row = "| `BUSY` | FAILED_PRECONDITION | held | wait |\n".to_owned();
        assert!(check_reasons(&[code, (reasons::PAGE, row)]).is_empty());
    }

    #[test]
    fn without_git_the_tree_is_walked() {
        let mut files = BTreeSet::new();
        walk(&shell::root(), "xtask", &mut files);
        assert!(files.contains("xtask/src/tidy/source.rs"));
    }
}
