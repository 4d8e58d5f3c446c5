//! docs/reference/metrics.md, from the descriptions in the server's telemetry and the labels that
//! the code gives each series.

use super::{Text, cell, header};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const PREFIX: &str = "farrier_";

/// One series.
#[derive(Default)]
struct Series {
    kind: &'static str,
    about: String,
    labels: BTreeSet<String>,
}

pub fn page(texts: &[Text]) -> String {
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for (path, text) in texts.iter().filter(|(path, _)| is_product(path)) {
        described(text, &mut all);
        emitted(path, text, &mut all);
    }
    let mut page = header("Metrics", "`crates/server/src/telemetry.rs` and the code that counts");
    page.push_str(
        "`/metrics` serves these series in the format of Prometheus, on the port of the API. [Metrics and alerts](../operate/metrics.md) says \
         what to watch.\n\n| series | kind | labels | means |\n|---|---|---|---|\n",
    );
    for (name, series) in &all {
        let labels: Vec<String> = series.labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, about) = (series.kind, cell(&series.about));
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {about} |", labels.join(", "));
    }
    page
}

fn is_product(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs")
}

/// The calls of `describe_…!` with their names and sentences.
fn described(text: &str, all: &mut BTreeMap<String, Series>) {
    const CALLS: [(&str, &str); 3] = [
        ("describe_counter!(", "counter"),
        ("describe_gauge!(", "gauge"),
        ("describe_histogram!(", "histogram"),
    ];
    for (call, kind) in CALLS {
        for (at, _) in text.match_indices(call) {
            let mut strings = literals(arguments(&text[at + call.len()..])).into_iter();
            if let (Some(name), Some(about)) = (strings.next(), strings.next()) {
                let series = all.entry(name).or_default();
                (series.kind, series.about) = (kind, about);
            }
        }
    }
}

/// The calls that increment, set or record a series, with their labels. Gauges of providers are
/// named in a list instead.
fn emitted(path: &str, text: &str, all: &mut BTreeMap<String, Series>) {
    const CALLS: [(&str, &str); 3] = [
        ("metrics::counter!(", "counter"),
        ("metrics::gauge!(", "gauge"),
        ("metrics::histogram!(", "histogram"),
    ];
    for (call, kind) in CALLS {
        for (at, _) in text.match_indices(call) {
            let call = arguments(&text[at + call.len()..]);
            let Some(name) =
                literals(call).into_iter().next().filter(|one| one.starts_with(PREFIX))
            else {
                continue;
            };
            let series = all.entry(name).or_default();
            if series.kind.is_empty() {
                (series.kind, series.about) = (kind, format!("See `{path}`."));
            }
            series.labels.extend(labels(call));
        }
    }
}

/// The text up to the parenthesis that closes the call.
fn arguments(text: &str) -> &str {
    let mut depth = 1usize;
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth == 1 => return &text[..at],
            ')' if !quoted => depth -= 1,
            _ => {}
        }
    }
    text
}

fn literals(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The names on the left of `=>`.
fn labels(call: &str) -> Vec<String> {
    let sides = call.split("=>").collect::<Vec<_>>();
    let names = sides.iter().take(sides.len().saturating_sub(1));
    names
        .filter_map(|side| Some(side.trim_end().strip_suffix('"')?.rsplit_once('"')?.1.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_its_sentence_and_its_labels() {
        let telemetry = "fn describe() {\n    describe_counter!(\n        \"farrier_a_total\",\n        \"Counts (all) a|b.\"\n    );\n}\n";
        let engine = "fn f() { metrics::counter!(\"farrier_a_total\", \"type\" => kind(x), \"end\" => \"e\").increment(1); \
                      metrics::gauge!(name).set(1.0); metrics::gauge!(\"farrier_b\").set(2.0); }";
        let texts =
            [("crates/server/src/telemetry.rs", telemetry), ("crates/engine/src/a.rs", engine)]
                .map(|(path, text)| (path.to_owned(), text.to_owned()));
        let page = page(&texts);
        assert!(
            page.contains("| `farrier_a_total` | counter | `end`, `type` | Counts (all) a\\|b. |"),
            "{page}"
        );
        assert!(
            page.contains("| `farrier_b` | gauge |  | See `crates/engine/src/a.rs`. |"),
            "{page}"
        );
    }
}
