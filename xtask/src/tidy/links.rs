//! Checks that the files that documents name exist. Links are relative to the document's directory;
//! a path in backticks is relative to the repository root.

use super::source::numbered;
use super::{Finding, RepositoryFiles};

pub fn check(path: &str, text: &str, tree: &RepositoryFiles) -> Vec<Finding> {
    let paths = prose(text)
        .flat_map(|(line, prose)| repository_paths(prose).map(move |target| (line, target)));
    links(path, text)
        .into_iter()
        .chain(paths)
        .filter(|(_, target)| !tree.has(target))
        .map(|(line, target)| {
            Finding::new(path, line, format!("`{target}` does not exist"), "name what exists")
        })
        .collect()
}

/// The links of a document that lead to a file of the repository, by line.
pub fn links(path: &str, text: &str) -> Vec<(usize, String)> {
    let found = |(line, prose)| {
        let targets = link_targets(prose).filter_map(|target| resolve(path, target));
        targets.map(move |target| (line, target)).collect::<Vec<_>>()
    };
    prose(text).flat_map(found).collect()
}

/// The lines outside fenced blocks: what is fenced is an example of something else.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    numbered(text).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The targets of `[text](target)` and `[name]: target`.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line
        .match_indices("](")
        .map(|(at, _)| &line[at + 2..])
        .filter_map(|rest| rest.split_once(')'));
    let defined =
        line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline
        .map(|(target, _)| target)
        .chain(defined)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_matches(['<', '>']))
}

/// A link's target relative to the repository root; none for external links and links within the
/// page.
fn resolve(document: &str, target: &str) -> Option<String> {
    let file = target.split(['#', '?']).next().unwrap_or_default();
    if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let mut parts: Vec<&str> = match file.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => document
            .rsplit_once('/')
            .map_or_else(Vec::new, |(folder, _)| folder.split('/').collect()),
    };
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The paths in backticks that are in our directories and are not patterns.
fn repository_paths(line: &str) -> impl Iterator<Item = String> {
    const OURS: [&str; 4] = ["crates/", "docs/", "xtask/", ".ci/"];
    let is_path =
        |span: &str| span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    line.split('`')
        .skip(1)
        .step_by(2)
        .map(|span| span.split(['#', ':']).next().unwrap_or_default())
        .filter(move |span| OURS.iter().any(|ours| span.starts_with(ours)) && is_path(span))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = RepositoryFiles(
            ["README.md", "docs/a.md", "docs/faults/b.md", "crates/model/src/run.rs"]
                .map(str::to_owned)
                .into(),
        );
        check(path, text, &tree)
            .into_iter()
            .map(|finding| format!("{} {}", finding.line, finding.message))
            .collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(
            found("README.md", "see\n[gone](docs/gone.md) and [a](docs/a.md)\n"),
            ["2 `docs/gone.md` does not exist"]
        );
        assert_eq!(found("docs/a.md", "[b](b.md)"), ["1 `docs/b.md` does not exist"]);
        assert_eq!(found("docs/a.md", "[name]: gone.md"), ["1 `docs/gone.md` does not exist"]);
        assert_eq!(found("docs/a.md", "[up](../../x.md)"), ["1 `../x.md` does not exist"]);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[a](a.md#part \"title\") [b](faults/b.md) [f](faults/) [top](../README.md) [abs](/docs/a.md) \
                    [web](https://example.com/x) [here](#part) [mail](mailto:a@example.com) <https://example.com>\n";
        assert!(found("docs/a.md", text).is_empty());
        assert!(found("docs/a.md", "[name]: a.md\n[web]: https://example.com\n").is_empty());
    }

    #[test]
    fn paths_in_backticks_are_looked_up() {
        assert_eq!(
            found("docs/a.md", "`crates/model/src/gone.rs`"),
            ["1 `crates/model/src/gone.rs` does not exist"]
        );
        let text = "`crates/model`, `crates/model/src/run.rs:12`, `docs/`, `crates/*/src`, `docs/<kind>.md`, `cargo run`, docs/gone.md\n";
        assert!(found("README.md", text).is_empty());
    }

    #[test]
    fn fenced_blocks_are_not_prose() {
        assert!(found("README.md", "```text\n[x](gone.md) `docs/gone.md`\n```\n").is_empty());
        assert_eq!(found("README.md", "```text\n```\n[x](gone.md)\n").len(), 1);
    }
}
