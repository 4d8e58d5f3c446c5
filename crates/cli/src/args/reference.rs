//! docs/reference/cli.md is what clap knows about the command line. `cargo xtask reference` writes
//! the page; without that, this test compares it. Another test checks the form of every help text.
#![cfg(test)]

use super::Cli;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write;
use std::path::PathBuf;

/// Set by `cargo xtask reference`: the page is written instead of compared.
const REWRITE: &str = "FARRIER_REWRITE_REFERENCE";

#[test]
fn the_page_about_the_command_line_is_current() {
    let mut tree = Cli::command();
    tree.build();
    let page = page(&tree);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(known, page, "docs/reference/cli.md is out of date; run `cargo xtask reference`");
}

/// The length limit of a help text, in characters.
const MAX_HELP: usize = 80;

#[test]
fn every_help_text_is_one_short_line() {
    let mut tree = Cli::command();
    tree.build();
    let mut wrong = Vec::new();
    check_help(&tree, "farrier", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check_help(command: &Command, name: &str, wrong: &mut Vec<String>) {
    let mut texts = vec![(name.to_string(), command.get_about())];
    for arg in command.get_arguments().filter(|arg| is_own(arg)) {
        texts.push((format!("{name} {arg}"), arg.get_help()));
    }
    for (place, text) in texts {
        let text = text.map(ToString::to_string).unwrap_or_default();
        let capital = text.chars().next().is_some_and(char::is_uppercase);
        let short = text.chars().count() <= MAX_HELP && !text.contains('\n');
        if !capital || !short || text.ends_with('.') {
            wrong.push(format!(
                "{place}: {text:?}; write one line of at most {MAX_HELP} characters that begins \
                 with a capital letter and has no full stop"
            ));
        }
    }
    for nested in command.get_subcommands().filter(|one| one.get_name() != "help") {
        check_help(nested, &format!("{name} {}", nested.get_name()), wrong);
    }
}

fn page(tree: &Command) -> String {
    let mut page = String::from(
        "# Command line\n\n<!-- Made by `cargo xtask reference` from the definitions in `crates/cli/src/args.rs`. \
         Change them, not this page. -->\n\n",
    );
    let _ = writeln!(page, "{}\n", about(tree));
    page.push_str("These options work with every command:\n\n");
    table(&mut page, tree.get_arguments().filter(|one| one.is_global_set()));
    if let Some(text) = tree.get_after_help() {
        let _ = write!(page, "\n```text\n{text}\n```\n");
    }
    for command in commands(tree) {
        section(&mut page, command, "farrier", 2);
    }
    page
}

fn section(page: &mut String, command: &Command, before: &str, level: usize) {
    let name = format!("{before} {}", command.get_name());
    let _ = write!(page, "\n{} {name}\n\n{}\n", "#".repeat(level), about(command));
    let others: Vec<String> = command.get_all_aliases().map(|one| format!("`{one}`")).collect();
    if !others.is_empty() {
        let _ = write!(page, "\nOther names: {}\n", others.join(", "));
    }
    let nested: Vec<&Command> = commands(command).collect();
    if nested.is_empty() {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
        let _ = write!(page, "\n```text\n{usage}\n```\n");
    }
    let own: Vec<&Arg> = command.get_arguments().filter(|one| is_own(one)).collect();
    if !own.is_empty() {
        page.push('\n');
        table(page, own.into_iter());
    }
    if let Some(text) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{text}\n```\n");
    }
    for command in nested {
        section(page, command, &name, (level + 1).min(4));
    }
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

/// True if an argument gets a row: it is not help, not hidden, and not one that every command has.
fn is_own(arg: &Arg) -> bool {
    !arg.is_hide_set()
        && !arg.is_global_set()
        && !["help", "version"].contains(&arg.get_id().as_str())
}

fn about(command: &Command) -> String {
    let text = command.get_long_about().or_else(|| command.get_about());
    text.map(ToString::to_string).unwrap_or_default().trim_end().to_owned()
}

fn table<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    page.push_str("| argument | means |\n|---|---|\n");
    for arg in arguments {
        let short = arg.get_short().map(|one| format!("-{one}, ")).unwrap_or_default();
        let _ = writeln!(page, "| `{short}{arg}` | {} |", meaning(arg));
    }
}

/// Its help, its values and its default, in one cell.
fn meaning(arg: &Arg) -> String {
    let mut parts: Vec<String> = arg.get_help().iter().map(ToString::to_string).collect();
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        let shown = values.iter().filter(|one| !one.is_hide_set());
        let names: Vec<String> = shown.map(|one| format!("`{}`", one.get_name())).collect();
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<String> =
            defaults.map(|one| format!("`{}`", one.to_string_lossy())).collect();
        let named = [("values", names), ("default", defaults)];
        let named = named.into_iter().filter(|(_, all)| !all.is_empty());
        parts.extend(named.map(|(name, all)| format!("{name}: {}", all.join(", "))));
    }
    parts.join("; ").replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}
