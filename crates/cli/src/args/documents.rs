//! The commands that the documents tell people to type are commands.
#![cfg(test)]

use super::Cli;
use clap::Parser;
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

#[test]
fn the_commands_in_the_documents_parse() {
    let top = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![top.join("README.md"), top.join("CONTRIBUTING.md")];
    collect(&top.join("docs"), &mut pages);
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for command in commands(&text) {
            count += 1;
            if let Err(message) = parse(&command).and_then(|()| uses_the_noun(&command)) {
                wrong.push(format!("{}: `{command}`: {message}", page.display()));
            }
        }
    }
    assert!(count > 300, "only {count} commands were found: the documents look different now");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every Markdown file in a folder, except the page that clap has written itself.
fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|end| end == "md") && !path.ends_with("cli.md") {
            pages.push(path);
        }
    }
}

/// The commands of a page: the lines of its `sh` blocks, and what stands in backticks.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for line in page.replace("\\\n", " ").lines() {
        let line = line.trim();
        if let Some(kind) = line.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(if kind == "sh" { "sh" } else { "" }) };
            continue;
        }
        match fence {
            Some("sh") => found.push(line.to_owned()),
            Some(_) => {}
            // A command that is cut short is an example of how it begins.
            None => found.extend(
                line.split('`')
                    .skip(1)
                    .step_by(2)
                    .filter(|span| !span.contains('…'))
                    .map(str::to_owned),
            ),
        }
    }
    found.retain(|line| line.starts_with("farrier "));
    found
}

/// The pages use the noun `operation`, not its other names.
fn uses_the_noun(command: &str) -> Result<(), String> {
    match words(command).get(1).map(String::as_str) {
        Some("ops" | "run" | "runs" | "workflow") => Err("write `farrier operation …`".into()),
        Some(_) | None => Ok(()),
    }
}

/// Help and groups without a verb are fine; unknown words and missing values are not.
fn parse(command: &str) -> Result<(), String> {
    let words = words(command);
    let Err(error) = Cli::try_parse_from(&words) else { return Ok(()) };
    let fine = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
        // Prose names a command without its arguments.
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
    ];
    match fine.contains(&error.kind()) {
        true => Ok(()),
        false => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// A command line as a shell would split it, up to a comment, a pipe, a redirection or the next
/// command.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut name: Option<String> = None;
    let mut quote: Option<char> = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => name.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                name.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(name.take()),
            (None, '#' | '|' | '>' | ';' | '&') if name.is_none() => break,
            (None, ';') => break,
            (None, c) => name.get_or_insert_default().push(c),
        }
    }
    words.extend(name);
    words
}
