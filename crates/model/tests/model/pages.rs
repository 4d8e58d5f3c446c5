//! The tables in the documents that mirror lists in the code must match them exactly.

use model::fault::{EffectOutcome, FaultCode};
use model::gate::Gate;
use model::plan::RunType;
use std::path::Path;

fn page(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sorted lines of a page that begin with this text.
fn rows<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    let mut rows: Vec<&str> = page.lines().filter(|line| line.starts_with(begin)).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn every_fault_has_its_row_among_the_errors() {
    let row = |code: &FaultCode| {
        let (name, class) = (code.as_str(), code.class().as_str());
        let happened = match code.effect_outcome() {
            EffectOutcome::NotApplied => "no",
            EffectOutcome::Unknown => "maybe",
        };
        format!("| [{name}](faults/{name}.md) | {class} | {happened} |")
    };
    let mut expected: Vec<String> = FaultCode::ALL.iter().map(row).collect();
    expected.sort_unstable();
    assert_eq!(rows(&page("api-errors.md"), "| ["), expected);
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
