//! The results: a row per figure, with the limit it is compared with, its target, and the
//! assessment.

use crate::tally::Tally;
use crate::{Outcome, Store};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

#[derive(Clone, Copy, PartialEq)]
pub enum Unit {
    PerSecond,
    Millis,
    Seconds,
    Megabytes,
    /// Of one core.
    Percent,
    Times,
}

impl Unit {
    const fn as_str(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Millis => " ms",
            Self::Seconds => " s",
            Self::Megabytes => " MB",
            Self::Percent => " %",
            Self::Times => "×",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Amount {
    pub value: f64,
    pub unit: Unit,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.value.abs() {
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        write!(f, "{:.digits$}{}", self.value, self.unit.as_str())
    }
}

/// The target, in the unit of the measured value.
#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Clone, Copy, PartialEq)]
enum Assessment {
    Reached,
    /// The percentage by which the target was missed.
    Short(f64),
    NoTarget,
    /// No request finished in time to be measured.
    NoSample,
}

impl fmt::Display for Assessment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached => f.write_str("reached"),
            Self::Short(percent) => write!(f, "{percent:.0}% short"),
            Self::NoTarget => f.write_str("-"),
            Self::NoSample => f.write_str("no sample"),
        }
    }
}

pub struct Row {
    figure: String,
    store: Option<Store>,
    clients: Option<usize>,
    measured: Amount,
    limit: Option<(Amount, &'static str)>,
    target: Option<Target>,
    note: String,
}

impl Row {
    pub fn new(figure: impl Into<String>, value: f64, unit: Unit) -> Self {
        let measured = Amount { value, unit };
        let (limit, target, note) = (None, None, String::new());
        Self { figure: figure.into(), store: None, clients: None, measured, limit, target, note }
    }

    pub fn store(self, store: Store) -> Self {
        Self { store: Some(store), ..self }
    }

    pub fn clients(self, clients: usize) -> Self {
        Self { clients: Some(clients), ..self }
    }

    /// The value that was measured without Farrier, in the unit of the row, and its description.
    pub fn limit(self, value: f64, what: &'static str) -> Self {
        let unit = self.measured.unit;
        Self { limit: Some((Amount { value, unit }, what)), ..self }
    }

    pub fn target(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    pub fn target_if(self, holds: bool, target: Target) -> Self {
        if holds { self.target(target) } else { self }
    }

    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    fn ratio(&self) -> Option<f64> {
        let (limit, _) = self.limit?;
        (limit.value > 0.0).then(|| self.measured.value / limit.value)
    }

    fn assessment(&self) -> Assessment {
        let measured = self.measured.value;
        match self.target {
            _ if measured.is_nan() => Assessment::NoSample,
            None => Assessment::NoTarget,
            Some(Target::AtLeast(desired)) if measured >= desired => Assessment::Reached,
            Some(Target::AtMost(desired)) if measured <= desired => Assessment::Reached,
            Some(Target::AtLeast(desired)) => Assessment::Short((1.0 - measured / desired) * 100.0),
            Some(Target::AtMost(desired)) => Assessment::Short((measured / desired - 1.0) * 100.0),
        }
    }

    fn target_text(&self) -> Option<String> {
        let unit = self.measured.unit;
        Some(match self.target? {
            Target::AtLeast(value) => format!("≥ {}", Amount { value, unit }),
            Target::AtMost(value) => format!("≤ {}", Amount { value, unit }),
        })
    }

    fn cells(&self) -> [String; 9] {
        let dash = || "-".to_string();
        [
            self.figure.clone(),
            self.store.map_or_else(dash, |store| store.as_str().into()),
            self.clients.map_or_else(dash, |clients| clients.to_string()),
            self.measured.to_string(),
            self.limit.map_or_else(dash, |(limit, what)| format!("{limit} {what}")),
            self.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}")),
            self.target_text().unwrap_or_else(dash),
            self.assessment().to_string(),
            self.note.clone(),
        ]
    }

    fn json(&self) -> Value {
        let limit = self.limit.map(|(limit, what)| json!({ "value": limit.value, "what": what }));
        let (kind, desired) = match self.target {
            Some(Target::AtLeast(value)) => ("at_least", Some(value)),
            Some(Target::AtMost(value)) => ("at_most", Some(value)),
            None => ("none", None),
        };
        json!({
            "figure": self.figure,
            "store": self.store.map(Store::as_str),
            "clients": self.clients,
            "measured": self.measured.value,
            "unit": self.measured.unit.as_str().trim(),
            "limit": limit,
            "ratio": self.ratio(),
            "target": { "kind": kind, "value": desired },
            "assessment": self.assessment().to_string(),
            "note": self.note,
        })
    }
}

/// The column widths. A row is printed as soon as it is known, so they cannot depend on the widest
/// cell.
const WIDTHS: [usize; 8] = [38, 8, 7, 11, 32, 8, 12, 10];
const HEADS: [&str; 9] =
    ["FIGURE", "STORE", "CLIENTS", "MEASURED", "LIMIT", "RATIO", "TARGET", "ASSESSMENT", "NOTE"];

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
    wrong: Vec<String>,
}

impl Report {
    pub fn begin() -> Self {
        print_cells(HEADS.map(str::to_string));
        Self::default()
    }

    pub fn add(&mut self, row: Row) {
        print_cells(row.cells());
        self.rows.push(row);
    }

    /// Records a failure or a wrong result: this run of the benchmark is then no success.
    pub fn wrong(&mut self, message: String) {
        println!("WRONG: {message}");
        self.wrong.push(message);
    }

    /// Reports the errors of a load, and a load without samples.
    pub fn errors_of(&mut self, what: &str, tally: &Tally) {
        if let Some(first) = &tally.first_error {
            self.wrong(format!("{what}: {} errors, the first: {first}", tally.errors));
        }
        if tally.samples.is_empty() {
            self.wrong(format!("{what}: nothing ended within the time measured"));
        }
    }

    /// Writes the JSON file and prints the summary. Returns true if nothing was wrong.
    pub fn finish(&self, path: Option<&Path>) -> Outcome<bool> {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        if let Some(path) = path {
            let text = serde_json::to_string_pretty(&json!({ "rows": rows, "wrong": self.wrong }))?;
            std::fs::write(path, text)?;
            println!("\nthe same as JSON: {}", path.display());
        }
        let count = |kind: fn(&Assessment) -> bool| {
            self.rows.iter().map(Row::assessment).filter(kind).count()
        };
        let reached = count(|one| *one == Assessment::Reached);
        let short = count(|one| matches!(one, Assessment::Short(_)));
        println!("targets reached: {reached}, short: {short}; wrong results: {}", self.wrong.len());
        self.wrong.iter().for_each(|message| println!("  {message}"));
        Ok(self.wrong.is_empty())
    }
}

fn print_cells(cells: [String; 9]) {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        line.push_str(&format!("{cell:<width$} "));
    }
    line.push_str(&cells[8]);
    println!("{}", line.trim_end());
}
