//! Machines from a JSON or YAML file, in the form of the API.
//!
//! The file is a list of machines, or an object with such a list, so that the output of `farrier
//! list -o json` can be imported. The status is ignored, because the server owns it. Parse errors
//! name line and column.

use super::ImportRow;
use super::csv;
use crate::exit::{Failure, Result};
use crate::text::printable;
use proto::Name;
use proto::json_form::FromJson;
use proto::v1::Machine;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// The maximum file size, in bytes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSyntax {
    Csv,
    Json,
    Yaml,
}

impl FileSyntax {
    /// Determined by the file extension.
    pub fn from_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "csv" => Some(FileSyntax::Csv),
            "json" => Some(FileSyntax::Json),
            "yaml" | "yml" => Some(FileSyntax::Yaml),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Machines {
    machines: Vec<FromJson<Machine>>,
}

/// All machines of a file, or its error.
pub fn read_rows(path: &Path) -> Result<Vec<ImportRow>> {
    let Some(syntax) = FileSyntax::from_path(path) else {
        let shown = path.display();
        return Err(Failure::refused(format!(
            "{shown}: type a number, or the name of a .csv, .yaml or .json file"
        )));
    };
    let text = read_file(path)?;
    match syntax {
        FileSyntax::Csv => csv::parse_rows(path, &text),
        FileSyntax::Json | FileSyntax::Yaml => parse_machines(path, &text, syntax),
    }
}

pub fn read_file(path: &Path) -> Result<String> {
    let wrong = |problem: String| Failure::refused(format!("{}: {problem}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(wrong(format!("is {size} bytes long; use at most {MAX_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))
}

fn parse_machines(path: &Path, text: &str, syntax: FileSyntax) -> Result<Vec<ImportRow>> {
    let machines: Vec<FromJson<Machine>> = match is_list(text) {
        true => parse_file(path, text, syntax)?,
        false => parse_file::<Machines>(path, text, syntax)?.machines,
    };
    let rows = machines.into_iter().enumerate().map(|(at, FromJson(mut machine))| {
        let position = format!("{}, machine {}", path.display(), at + 1);
        if machine.machine_id.is_empty() {
            let hint = "name it, so that importing again changes nothing";
            return Err(Failure::refused(format!(
                "{position}: machine_id is missing; {hint}\nnothing was registered"
            )));
        }
        machine.status = None;
        Ok(ImportRow { source: position, machine })
    });
    rows.collect()
}

/// Decides by the first line that is neither empty nor a comment. Trying both parsers instead would
/// lose the position of an error.
fn is_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.find(|line| !line.starts_with('#') && !line.starts_with("---"));
    first.is_some_and(|line| line.starts_with('-') || line.starts_with('['))
}

/// Parses the whole file as one message.
pub fn parse_as<T: Name + Default>(path: &Path, text: &str, syntax: FileSyntax) -> Result<T> {
    parse_file::<FromJson<T>>(path, text, syntax).map(|read| read.0)
}

fn parse_file<T: DeserializeOwned>(path: &Path, text: &str, syntax: FileSyntax) -> Result<T> {
    let parsed = match syntax {
        FileSyntax::Yaml => serde_saphyr::from_str(text).map_err(|error| error.to_string()),
        FileSyntax::Json | FileSyntax::Csv => {
            serde_json::from_str(text).map_err(|error| error.to_string())
        }
    };
    parsed.map_err(|problem| {
        let problem = problem.strip_prefix("error: ").unwrap_or(&problem);
        let hint = "correct it and repeat the command; --help shows the form; nothing was sent";
        Failure::refused(format!("{}: {}\n{hint}", path.display(), printable(problem)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<Vec<ImportRow>> {
        let path = Path::new(name);
        parse_machines(path, text, FileSyntax::from_path(path).unwrap())
    }

    const JSON: &str = r#"[
  {"machine_id": "a", "labels": {"env": "prod"}, "spec": {"ssh_endpoint": "10.0.0.1:22", "mac_addresses": ["aa:bb:cc:dd:ee:ff"]},
   "status": {"phase": "READY"}},
  {"machine_id": "b"}
]"#;

    const YAML: &str = "\
# the fleet
machines:
  - machine_id: a
    labels: {env: prod}
    spec:
      ssh_endpoint: 10.0.0.1:22
      mac_addresses: ['aa:bb:cc:dd:ee:ff']
  - machine_id: b
";

    #[test]
    fn json_and_yaml_say_the_same() {
        let json = parse("f.json", JSON).unwrap();
        let yaml = parse("f.yml", YAML).unwrap();
        assert_eq!(json.len(), 2);
        assert_eq!(json[0].source, "f.json, machine 1");
        assert_eq!(json[0].machine, yaml[0].machine);
        assert_eq!(json[0].machine.status, None);
        assert_eq!(json[1].machine, yaml[1].machine);
        assert_eq!(parse("f.yaml", "- machine_id: x\n").unwrap()[0].machine.machine_id, "x");
        assert_eq!(parse("f.json", r#"{"machines": []}"#).unwrap(), []);
    }

    #[test]
    fn mistakes_have_a_place() {
        for (name, text, parts) in [
            ("f.json", "[\n  {\"machine_id\": 7}\n]", ["f.json: ", "line 2"]),
            ("f.json", "[\n  {\"machine\": \"a\"}\n]", ["unknown field `machine`", "line 2"]),
            ("f.json", "{\"machine\": []}", ["unknown field `machine`", "line 1"]),
            ("f.yaml", "- machine_id: a\n  spec:\n    ssh: x\n", ["f.yaml: ", "line 3"]),
            (
                "f.yaml",
                "- machine_id: a\n- labels: {a: b}\n",
                ["f.yaml, machine 2", "machine_id is missing"],
            ),
            ("f.yaml", "machines: [\n", ["f.yaml: ", "nothing was sent"]),
        ] {
            let failure = parse(name, text).unwrap_err();
            for part in parts {
                assert!(failure.message.contains(part), "{part:?} not in {}", failure.message);
            }
        }
    }

    #[test]
    fn unknown_and_absent_files_are_refused() {
        assert!(
            read_rows(Path::new("fleet.xlsx"))
                .unwrap_err()
                .message
                .contains(".csv, .yaml or .json")
        );
        assert!(
            read_rows(Path::new("/nowhere/fleet.csv"))
                .unwrap_err()
                .message
                .starts_with("/nowhere/fleet.csv: ")
        );
    }

    #[test]
    fn what_a_list_prints_can_be_imported() {
        let printed = "- machine_id: m-1\n  status:\n    effective_state: IDLE\n    version: 7\n";
        let rows = parse("fleet.yaml", printed).unwrap();
        assert_eq!(rows[0].machine.machine_id, "m-1");
        let wrong = printed.replace("IDLE", "SLEEPY");
        assert!(parse("fleet.yaml", &wrong).is_err());
    }
}
