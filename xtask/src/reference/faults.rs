//! docs/reference/faults.md: the index of the fault pages, from the table of codes in the model and
//! the first sentence of each page.

use super::{Text, cell, find, header};
use std::fmt::Write;

const MODEL: &str = "crates/model/src/";

pub fn page(texts: &[Text]) -> String {
    let mut page = header("Faults", "`crates/model/src/fault.rs` and `docs/faults`");
    page.push_str(
        "A fault is what stopped a step. `farrier fault <code>` prints its page. [Errors of the API](../api-errors.md#failed-work) explains \
         the classes. Where the effect may have happened, Farrier asks the device before it does anything else.\n\n\
         | fault | class | may have happened | means |\n|---|---|---|---|\n",
    );
    let model = texts.iter().filter(|(path, _)| path.starts_with(MODEL));
    let mut codes: Vec<_> = model.flat_map(|(_, text)| codes(text)).collect();
    codes.sort();
    for (name, class, happened) in codes {
        let about = find(texts, &format!("docs/faults/{name}.md")).map_or("", first_sentence);
        let _ = writeln!(
            page,
            "| [{name}](../faults/{name}.md) | {class} | {happened} | {} |",
            cell(about)
        );
    }
    page
}

/// The lines of the table: `Variant = "name", Class, EffectOutcome;`.
fn codes(text: &str) -> Vec<(String, String, String)> {
    let row = |line: &str| {
        let (_, rest) = line.trim().strip_suffix(';')?.split_once(" = \"")?;
        let mut cells = rest.split(", ");
        let name = cells.next()?.strip_suffix('"')?.to_owned();
        let class = kebab(cells.next()?);
        let happened = if cells.next()? == "Unknown" { "maybe" } else { "no" };
        Some((name, class, happened.to_owned()))
    };
    let table = text.split_once("\ncodes! {\n").and_then(|(_, rest)| rest.split_once("\n}\n"));
    table.map_or_else(Vec::new, |(rows, _)| rows.lines().filter_map(row).collect())
}

fn kebab(name: &str) -> String {
    let mut word = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(c.to_lowercase());
    }
    word
}

/// Of the paragraph under the heading.
fn first_sentence(page: &str) -> &str {
    let body = page.split_once("\n\n").map_or("", |(_, body)| body);
    let paragraph = body.split("\n\n").next().unwrap_or_default();
    paragraph.find(". ").map_or(paragraph.trim_end(), |end| &paragraph[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_a_row_with_its_class_and_its_sentence() {
        let table = "macro_rules! codes {}\n\ncodes! {\n    B = \"b-c\", NeedsIntervention, Unknown;\n    A = \"a\", Bug, NotApplied;\n}\n";
        let texts = [
            ("crates/model/src/fault.rs", table),
            ("docs/faults/a.md", "# a\n\nIt broke. Twice.\n\nMore.\n"),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned()));
        let page = page(&texts);
        let rows = "| [a](../faults/a.md) | bug | no | It broke. |\n| [b-c](../faults/b-c.md) | needs-intervention | maybe |  |\n";
        assert!(page.ends_with(rows), "{page}");
    }
}
