//! docs/reference/configuration.md: the fields of the configuration structs with their comments,
//! and their defaults from the example file, which a test of the server compares with the code.

use super::{Text, cell, find, header};
use std::collections::BTreeMap;
use std::fmt::Write;

const CONFIG: &str = "crates/server/src/config.rs";
const FOLDER: &str = "crates/server/src/config/";
const EXAMPLE: &str = "docs/farrier.example.toml";
/// The struct of the whole file.
const TOP: &str = "Config";

#[derive(Debug, Default)]
struct Struct {
    about: String,
    fields: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    name: String,
    shape: String,
    about: String,
}

pub fn page(texts: &[Text]) -> String {
    let mut structs = BTreeMap::new();
    for (_, text) in texts.iter().filter(|(path, _)| path == CONFIG || path.starts_with(FOLDER)) {
        parse(text, &mut structs);
    }
    let defaults = defaults(find(texts, EXAMPLE).unwrap_or_default());
    let mut page = header("Configuration", "the structs in `crates/server/src/config.rs`");
    page.push_str(
        "`farrier serve --config FILE` reads one TOML file. Unknown keys are refused. The command line overrides the file. \
         [farrier.example.toml](../farrier.example.toml) is a complete file with every default.\n",
    );
    let Some(top) = structs.get(TOP) else { return page };
    let (sections, plain): (Vec<_>, Vec<_>) =
        top.fields.iter().partition(|field| structs.contains_key(&field.shape));
    let top = Section { name: "", about: "", fields: plain };
    top.write(&mut page, &defaults);
    for section in sections {
        let found = &structs[&section.shape];
        let (name, about) = (section.name.as_str(), found.about.as_str());
        let section = Section { name, about, fields: found.fields.iter().collect() };
        section.write(&mut page, &defaults);
    }
    page
}

/// Values by section and key.
type Defaults = BTreeMap<(String, String), String>;

struct Section<'a> {
    /// Empty: the top of the file.
    name: &'a str,
    about: &'a str,
    fields: Vec<&'a Field>,
}

impl Section<'_> {
    fn write(&self, page: &mut String, defaults: &Defaults) {
        let _ = match self.name {
            "" => write!(page, "\n## Top level\n\n"),
            name => write!(page, "\n## [{name}]\n\n"),
        };
        if !self.about.is_empty() {
            let _ = write!(page, "{}\n\n", self.about);
        }
        page.push_str("| key | type | default | means |\n|---|---|---|---|\n");
        let mut before = "";
        for Field { name, shape, about } in &self.fields {
            let default = defaults.get(&(self.name.to_owned(), name.clone()));
            let default = default.map_or("none".to_owned(), |value| format!("`{value}`"));
            // One comment may apply to several fields.
            let about = match about.is_empty() {
                true => format!("See `{before}`."),
                false => cell(about),
            };
            let _ = writeln!(page, "| `{name}` | {} | {default} | {about} |", in_toml(shape));
            before = name;
        }
    }
}

/// The TOML name of a Rust type.
fn in_toml(rust: &str) -> &'static str {
    match rust {
        "SocketAddr" | "Option<SocketAddr>" => "address",
        "PathBuf" => "path",
        "Vec<PathBuf>" => "list of paths",
        "Vec<String>" => "list of strings",
        "bool" => "boolean",
        "u8" | "u16" | "u32" | "u64" | "usize" => "number",
        other if other.starts_with("Vec<") => "list of tables",
        _ => "string",
    }
}

/// The public structs of a file, by name.
fn parse(text: &str, structs: &mut BTreeMap<String, Struct>) {
    let mut comment = String::new();
    let mut open: Option<(String, Struct)> = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("///") {
            comment = format!("{comment} {}", words.trim()).trim().to_owned();
        } else if let Some(name) =
            line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {"))
        {
            let found = Struct { about: std::mem::take(&mut comment), fields: Vec::new() };
            open = Some((name.to_owned(), found));
        } else if line == "}" {
            structs.extend(open.take());
        } else if !line.starts_with("#[") {
            let about = std::mem::take(&mut comment);
            let field =
                line.strip_prefix("pub ").and_then(|rest| rest.strip_suffix(',')?.split_once(": "));
            if let (Some((_, found)), Some((name, shape))) = (&mut open, field) {
                found.fields.push(Field { name: name.into(), shape: shape.into(), about });
            }
        }
    }
}

/// The values of the example, by section and key.
fn defaults(example: &str) -> Defaults {
    let mut section = String::new();
    let mut found = BTreeMap::new();
    for line in example.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, value)) =
            line.split_once(" = ").filter(|(key, _)| !key.contains(['#', ' ']))
        {
            found.insert((section.clone(), key.to_owned()), value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRUCTS: &str = "\
pub struct Config {
    /// Where it
    /// listens.
    pub listen: SocketAddr,
    pub log: Log,
}

/// What is logged.
pub struct Log {
    /// How much.
    pub level: String,
    pub files: Vec<PathBuf>,
}

struct Hidden {
    a: u8,
}
";

    const SAMPLE: &str = "\
# A comment = no.
listen = \"127.0.0.1:1\"

[log]
# level = \"x\"
level = \"info\"
";

    #[test]
    fn a_field_has_its_type_its_default_and_its_comment() {
        let texts = [(CONFIG, STRUCTS), (EXAMPLE, SAMPLE)]
            .map(|(path, text)| (path.to_owned(), text.to_owned()));
        let page = page(&texts);
        for expected in [
            "## Top level\n\n| key | type | default | means |\n|---|---|---|---|\n",
            "| `listen` | address | `\"127.0.0.1:1\"` | Where it listens. |\n\n## [log]\n",
            "## [log]\n\nWhat is logged.\n\n",
            "| `level` | string | `\"info\"` | How much. |\n",
            "| `files` | list of paths | none | See `level`. |\n",
        ] {
            assert!(page.contains(expected), "{expected} is not in\n{page}");
        }
    }
}
