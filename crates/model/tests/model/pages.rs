//! The tables in the documents that mirror lists in the code must match them exactly.

use model::fault::{EffectOutcome, FaultCode};
use model::gate::Gate;
use model::plan::RunType;
use model::refusal::{Reason, RefusalKind};
use std::path::{Path, PathBuf};

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file)
}

fn page(file: &str) -> String {
    let path = path(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sorted lines of a page that begin with this text.
fn rows<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    let mut rows: Vec<&str> = page.lines().filter(|line| line.starts_with(begin)).collect();
    rows.sort_unstable();
    rows
}

/// The lines that surround a generated table.
const TABLE_END: &str = "<!-- end of the table -->";

fn table_begin(name: &str) -> String {
    format!("<!-- table of {name}: made by `cargo xtask reference` -->")
}

/// The page with a new table between the two lines.
fn with_table(page: &str, name: &str, table: &str) -> String {
    let begin = table_begin(name);
    let (before, rest) = page.split_once(&begin).expect("the begin of the table");
    let (_, after) = rest.split_once(TABLE_END).expect("the end of the table");
    format!("{before}{begin}\n\n{table}\n{TABLE_END}{after}")
}

fn refusal_table() -> String {
    let row = |reason: &Reason| {
        let code = match reason.kind() {
            RefusalKind::Invalid => "INVALID_ARGUMENT",
            RefusalKind::NotFound => "NOT_FOUND",
            RefusalKind::Precondition => "FAILED_PRECONDITION",
            RefusalKind::Exists => "ALREADY_EXISTS",
            RefusalKind::Gone => "OUT_OF_RANGE",
            RefusalKind::Unauthenticated => "UNAUTHENTICATED",
            RefusalKind::Denied => "PERMISSION_DENIED",
            RefusalKind::Exhausted => "RESOURCE_EXHAUSTED",
        };
        let (means, advice) = reason.help();
        format!("| `{reason}` | {code} | {means} | {advice} |\n")
    };
    let rows: String = Reason::ALL.iter().map(row).collect();
    format!("| reason | code | means | do |\n|---|---|---|---|\n{rows}")
}

fn fault_table() -> String {
    let row = |code: &FaultCode| {
        let (name, class) = (code.as_str(), code.class().as_str());
        let happened = match code.effect_outcome() {
            EffectOutcome::NotApplied => "no",
            EffectOutcome::Unknown => "maybe",
        };
        format!("| [{name}](faults/{name}.md) | {class} | {happened} |\n")
    };
    let rows: String = FaultCode::ALL.iter().map(row).collect();
    format!("| fault | class | may have happened |\n|---|---|---|\n{rows}")
}

#[test]
fn the_page_about_errors_has_every_refusal_and_every_fault() {
    let written = page("api-errors.md");
    let refusals = with_table(&written, "refusals", &refusal_table());
    let current = with_table(&refusals, "faults", &fault_table());
    if std::env::var_os("FARRIER_REWRITE_REFERENCE").is_some() {
        std::fs::write(path("api-errors.md"), current).unwrap();
        return;
    }
    assert!(written == current, "docs/api-errors.md is out of date: run `cargo xtask reference`");
}

#[test]
fn every_gate_that_can_be_overridden_has_its_row() {
    let page = page("concepts/gates.md");
    let expected = Gate::ALL.map(|gate| format!("| `{gate}` | {} |", gate.sentence()));
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for (row, expected) in rows.iter().zip(&expected) {
        assert!(row.starts_with(expected.as_str()), "{row} does not begin with {expected}");
    }
}

#[test]
fn every_type_of_operation_is_named_among_the_filters() {
    let page = page("filters.md");
    let rows = rows(&page, "| `type` |");
    let [row] = rows[..] else { panic!("{rows:?}") };
    for kind in RunType::ALL {
        let named = row.split([' ', ',', ';']).any(|name| name == kind.as_str());
        assert!(named, "{} is not in {row}", kind.as_str());
    }
}
