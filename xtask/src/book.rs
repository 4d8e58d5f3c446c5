//! `cargo xtask book`: renders docs/ with mdBook.
//!
//! The pages are plain Markdown with relative links, so that they also work on a forge. mdBook
//! reads only one directory, so the pages at the top of the repository are copied beside those of
//! docs/, and the links between the two are adjusted. `cargo xtask tidy` finds links that lead out
//! of the book.

use crate::reference::Text;
use crate::shell::{self, Failure};
use crate::test::target;
use crate::tidy;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The table of contents: mdBook renders the pages that it lists.
pub const SUMMARY: &str = "docs/SUMMARY.md";
const FOLDER: &str = "docs/";
/// Files at the top of the repository that are part of the book.
const TOP: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"];
/// Pinned, so that the same pages are rendered everywhere.
const MDBOOK: &str = "0.5.4";

pub fn run() -> Result<(), Failure> {
    let pages = pages(&tidy::read(&shell::root()));
    let (source, book) = (target().join("book-src"), target().join("book"));
    stage(&source, &pages)?;
    let mut build = Command::new(mdbook()?);
    build.arg("build").arg(&source).arg("--dest-dir").arg(&book);
    shell::run(&mut build, "the lines above say which page cannot be rendered")?;
    println!("{}", book.join("index.html").display());
    Ok(())
}

/// The pinned mdBook, installed into the target directory when it is not there yet.
fn mdbook() -> Result<PathBuf, Failure> {
    let tools = target().join("tools");
    let program = tools.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    let is_pinned = |text: &[u8]| String::from_utf8_lossy(text).trim().ends_with(MDBOOK);
    if version.is_ok_and(|output| is_pinned(&output.stdout)) {
        return Ok(program);
    }
    let mut install = shell::cargo(["install", "--locked", "mdbook", "--version", MDBOOK]);
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&tools);
    install.env("CARGO_TARGET_DIR", tools.join("build"));
    shell::run(&mut install, "check that cargo reaches its registry")?;
    Ok(program)
}

/// The files of the book, by their paths in it.
fn pages(texts: &[Text]) -> Vec<Text> {
    let page = |(path, text): &Text| {
        let (folder, name) = match path.strip_prefix(FOLDER) {
            Some(name) => (FOLDER, name),
            None => ("", TOP.iter().find(|top| *top == path).copied()?),
        };
        let text = if name.ends_with(".md") { adjusted(folder, name, text) } else { text.clone() };
        Some((name.to_owned(), text))
    };
    texts.iter().filter_map(page).collect()
}

/// A page with its links as they are in the book, and without diagrams that only a forge draws.
fn adjusted(folder: &str, name: &str, text: &str) -> String {
    let text = match folder {
        // From the top of the repository into docs/.
        "" => text.replace("](docs/", "]("),
        // From docs/ to the top of the repository.
        _ => {
            let up = "../".repeat(name.matches('/').count());
            TOP.iter().fold(text.to_owned(), |text, top| {
                text.replace(&format!("]({up}../{top}"), &format!("]({up}{top}"))
            })
        }
    };
    without_mermaid(&text)
}

/// mdBook shows Mermaid as source. Every page that has a diagram has the same as a table.
fn without_mermaid(text: &str) -> String {
    let mut stored = String::new();
    let mut skipping = false;
    for line in text.split_inclusive('\n') {
        skipping |= line.starts_with("```mermaid");
        if !skipping {
            stored.push_str(line);
        }
        skipping &= line.trim_end() != "```";
    }
    stored
}

/// A link whose target is not in the book.
#[derive(Debug, PartialEq, Eq)]
pub struct DeadLink {
    pub page: String,
    pub line: usize,
    pub target: String,
}

pub fn dead_links(texts: &[Text]) -> Vec<DeadLink> {
    let pages = pages(texts);
    // The table of contents is no page of its own.
    let names = pages.iter().map(|(name, _)| name.as_str());
    let names: BTreeSet<&str> = names.filter(|name| *name != "SUMMARY.md").collect();
    let is_in_book = |to: &str| to.strip_prefix(FOLDER).is_some_and(|to| names.contains(to));
    let dead = |(name, text): &Text| -> Vec<DeadLink> {
        let folder = if TOP.contains(&name.as_str()) { "" } else { FOLDER };
        let links = tidy::links(&format!("{FOLDER}{name}"), text).into_iter();
        let dead = links.filter(|(_, to)| !is_in_book(to));
        let page = format!("{folder}{name}");
        dead.map(|(line, target)| DeadLink { page: page.clone(), line, target }).collect()
    };
    pages.iter().filter(|(name, _)| name.ends_with(".md")).flat_map(dead).collect()
}

/// The pages of docs/ that the table of contents does not list.
pub fn unlisted(texts: &[Text]) -> Vec<&str> {
    let summary = texts.iter().find(|(path, _)| path == SUMMARY).map_or("", |(_, text)| text);
    let listed: BTreeSet<String> =
        tidy::links(SUMMARY, summary).into_iter().map(|(_, to)| to).collect();
    let pages = texts.iter().map(|(path, _)| path.as_str());
    pages
        .filter(|path| path.starts_with(FOLDER) && path.ends_with(".md") && *path != SUMMARY)
        .filter(|path| !listed.contains(*path))
        .collect()
}

/// Writes the pages into the directory that mdBook reads.
fn stage(folder: &Path, pages: &[Text]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("{}: {error}", folder.display()), "check the target directory")
    };
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    for (name, text) in pages {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        fs::write(path, text).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[(&str, &str)]) -> Vec<Text> {
        all.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn links_between_the_top_and_the_pages_are_adjusted() {
        let repository = texts(&[
            ("README.md", "[a](docs/a.md) [c](CHANGELOG.md)"),
            ("docs/a.md", "[r](../README.md#x) [b](b/c.md)"),
            ("docs/b/c.md", "[r](../../README.md) [a](../a.md)"),
            ("docs/book.toml", "[book]"),
            ("crates/a.rs", ""),
        ]);
        let expected = texts(&[
            ("README.md", "[a](a.md) [c](CHANGELOG.md)"),
            ("a.md", "[r](README.md#x) [b](b/c.md)"),
            ("b/c.md", "[r](../README.md) [a](../a.md)"),
            ("book.toml", "[book]"),
        ]);
        assert_eq!(pages(&repository), expected);
        let (page, target) = ("README.md".to_owned(), "docs/CHANGELOG.md".to_owned());
        assert_eq!(dead_links(&repository), [DeadLink { page, line: 1, target }]);
    }

    #[test]
    fn diagrams_that_mdbook_does_not_draw_are_left_out() {
        let page = "a\n```mermaid\nx\n```\nb\n```text\nc\n```\n";
        assert_eq!(without_mermaid(page), "a\nb\n```text\nc\n```\n");
    }

    #[test]
    fn a_page_that_is_not_listed_is_named() {
        let all = [
            (SUMMARY, "- [a](a.md)\n"),
            ("docs/a.md", ""),
            ("docs/b/c.md", ""),
            ("docs/x.toml", ""),
        ];
        assert_eq!(unlisted(&texts(&all)), ["docs/b/c.md"]);
        assert!(unlisted(&texts(&[("README.md", "")])).is_empty());
    }

    #[test]
    fn the_settings_are_where_mdbook_looks_for_them() {
        assert!(shell::root().join("docs/book.toml").is_file());
    }
}
