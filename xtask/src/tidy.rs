//! Checks the architecture and style rules in every file, so that reviews need not. The rules are
//! pure functions of a file's path and text; this module collects files and prints findings.
//!
//! The rules read text, not syntax trees. That is enough for code formatted by rustfmt, takes a
//! fraction of a second, and needs no dependency.

mod graph;
mod links;
mod reasons;
mod retired;
mod size;
mod source;
mod symbols;
mod wildcard;
mod words;

use crate::reference::Text;
use crate::shell::{self, Failure};
use crate::{book, reference};
pub use links::links;
use source::Source;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A violation, its position, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
    remedy: &'static str,
}

impl Finding {
    fn new(path: &str, line: usize, wrong: impl Into<String>, remedy: &'static str) -> Self {
        Self { path: path.to_owned(), line, message: wrong.into(), remedy }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.message, self.remedy)
    }
}

/// The paths of all files.
#[derive(Default)]
struct RepositoryFiles(BTreeSet<String>);

impl RepositoryFiles {
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        path.is_empty()
            || self.0.contains(path)
            || self.0.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside))
    }

    /// True if there is a file whose path ends with these parts.
    fn ends_with(&self, path: &str) -> bool {
        self.0.iter().any(|one| Path::new(one).ends_with(path))
    }
}

pub fn run() -> Result<(), Failure> {
    let root = shell::root();
    let tree = RepositoryFiles(list(&root));
    let texts = read(&root);
    let mut findings: Vec<Finding> =
        texts.iter().flat_map(|(path, text)| check(path, text, &tree)).collect();
    findings.extend(reasons::unused(&texts));
    findings.extend(symbols::check(&texts, &tree));
    findings.extend(check_book(&texts));
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

/// Every file of the repository that is text.
pub fn read(root: &Path) -> Vec<Text> {
    let paths = list(root).into_iter();
    paths
        .filter_map(|path| fs::read_to_string(root.join(&path)).ok().map(|text| (path, text)))
        .collect()
}

/// All rules on one file.
fn check(path: &str, text: &str, tree: &RepositoryFiles) -> Vec<Finding> {
    let mut findings = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("rs") => check_rust(&Source::parse(path, text)),
        Some("md") => [words::lifecycle(path, text), links::check(path, text, tree)].concat(),
        Some("sql") => words::sql_file(path),
        _ if path.ends_with("Cargo.toml") => graph::check(path, text),
        _ => Vec::new(),
    };
    if path != "Cargo.lock" {
        findings.extend(words::machine_paths(path, text));
        findings.extend(retired::check(path, text));
    }
    findings
}

fn check_rust(source: &Source) -> Vec<Finding> {
    let rules = [
        size::file,
        size::comments,
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

/// The book: generated pages are current, every page is in the table of contents, no link is dead.
fn check_book(texts: &[Text]) -> Vec<Finding> {
    let outdated = reference::outdated(texts).into_iter().map(|path| {
        Finding::new(path, 1, "this page is out of date", "run `cargo xtask reference`")
    });
    let unlisted = book::unlisted(texts).into_iter().map(|path| {
        let wrong = format!("not listed in {}", book::SUMMARY);
        Finding::new(path, 1, wrong, "add a line for it there: the book has no other pages")
    });
    let dead = book::dead_links(texts).into_iter().map(|link| {
        let wrong = format!("`{}` is not in the book", link.target);
        Finding::new(&link.page, link.line, wrong, "link to a page of the book, or name the file")
    });
    outdated.chain(unlisted).chain(dead).collect()
}

/// The files of the repository according to git, including new ones; without git, all files that
/// are not build output.
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

/// Every file in a directory, except git's own files and build output.
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
        let tree = RepositoryFiles(["docs/a.md".to_owned(), "docs-old/b.md".to_owned()].into());
        assert!(
            tree.has("docs/a.md") && tree.has("docs") && tree.has("docs/") && tree.has("docs-old")
        );
        assert!(!tree.has("docs/b.md") && !tree.has("doc"));
    }

    #[test]
    fn the_rules_are_applied_by_kind_of_file() {
        let tree = RepositoryFiles::default();
        let found = |path, text| check(path, text, &tree).len();
        assert_eq!(found("crates/model/src/run.rs", "//! Runs.\nfn a() {}\n"), 0);
        assert_eq!(found("crates/model/src/run.rs", "fn a() {}\n"), 1);
        assert_eq!(found("crates/model/Cargo.toml", "[dependencies]\nstore.workspace = true\n"), 1);
        assert_eq!(found("README.md", "[gone](docs/gone.md)\n"), 1);
        assert_eq!(found("crates/server/migrations/1.sql", ""), 1);
    }

    #[test]
    fn without_git_the_tree_is_walked() {
        let mut files = BTreeSet::new();
        walk(&shell::root(), "xtask", &mut files);
        assert!(files.contains("xtask/src/tidy/source.rs"));
    }
}
