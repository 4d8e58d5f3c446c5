//! docs/reference/api.md, from the protos: every service with its methods, and every message with
//! its fields, each with the comment above it.

use super::{Text, cell, header};
use std::fmt::Write;

const FOLDER: &str = "crates/proto/proto/farrier/v1/";

pub fn page(texts: &[Text]) -> String {
    let mut page = header("API", "`crates/proto/proto/farrier/v1`");
    page.push_str(
        "The package is `farrier.v1`. The server answers gRPC reflection, so a client such as `grpcurl` needs no files. \
         Errors are listed in [Errors of the API](../api-errors.md).\n",
    );
    for (path, text) in texts {
        if let Some(name) = path.strip_prefix(FOLDER).filter(|name| name.ends_with(".proto")) {
            file(&mut page, name, text);
        }
    }
    page
}

/// A block of a proto: a service, a message, an enum or a oneof.
struct Block {
    kind: Kind,
    name: String,
    about: String,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Service,
    Message,
    Enum,
    Oneof,
}

impl Kind {
    const ALL: [(&'static str, Self); 4] = [
        ("service ", Self::Service),
        ("message ", Self::Message),
        ("enum ", Self::Enum),
        ("oneof ", Self::Oneof),
    ];
}

/// A method, a field or a value.
struct Row {
    name: String,
    /// Request and response of a method; empty for an enum value.
    shape: String,
    about: String,
}

fn file(page: &mut String, name: &str, text: &str) {
    let (about, blocks) = parse(text);
    let _ = write!(page, "\n## {name}\n\n{about}\n");
    for block in &blocks {
        let head = match block.kind {
            Kind::Service => "method | takes → answers | means",
            Kind::Message => "field | type | means",
            Kind::Enum => "value | | means",
            // Its fields are rows of the message around it.
            Kind::Oneof => continue,
        };
        let _ = write!(page, "\n### {}\n", block.name);
        if !block.about.is_empty() {
            let _ = write!(page, "\n{}\n", block.about.replace('<', "&lt;"));
        }
        if block.rows.is_empty() {
            page.push_str("\nNo fields.\n");
            continue;
        }
        let _ = write!(page, "\n| {head} |\n|---|---|---|\n");
        for row in &block.rows {
            let shape =
                if row.shape.is_empty() { String::new() } else { format!("`{}`", row.shape) };
            let _ = writeln!(page, "| `{}` | {shape} | {} |", row.name, cell(&row.about));
        }
    }
}

/// The file comment, and the blocks in the order in which they end.
fn parse(text: &str) -> (String, Vec<Block>) {
    let mut about = String::new();
    let mut comment = String::new();
    let mut open: Vec<Block> = Vec::new();
    let mut done = Vec::new();
    let mut in_method = false;
    for line in text.lines().map(str::trim) {
        if in_method {
            // The options of a method are not listed.
            in_method = line != "}";
            continue;
        }
        if let Some(words) = line.strip_prefix("//") {
            comment = format!("{comment} {}", words.trim()).trim().to_owned();
            continue;
        }
        let above = std::mem::take(&mut comment);
        if line.starts_with("syntax") {
            about = above;
        } else if let Some((kind, name)) = opened(line) {
            let name = match open.last() {
                Some(outer) if kind != Kind::Oneof => format!("{}.{name}", outer.name),
                Some(_) | None => name.to_owned(),
            };
            let block = Block { kind, name, about: above, rows: Vec::new() };
            match line.ends_with("{}") {
                true => done.push(block),
                false => open.push(block),
            }
        } else if line == "}" {
            close(&mut open, &mut done);
        } else if let (Some(block), Some(row)) = (open.last_mut(), row(line, above)) {
            block.rows.push(row);
            in_method = line.ends_with('{');
        }
    }
    (about, done)
}

/// Ends the innermost block. A oneof and its fields become rows of the message around it.
fn close(open: &mut Vec<Block>, done: &mut Vec<Block>) {
    let Some(block) = open.pop() else { return };
    match (block.kind, open.last_mut()) {
        (Kind::Oneof, Some(outer)) => {
            let fields = block.rows.into_iter().map(|row| Row {
                about: format!("One of `{}`. {}", block.name, row.about).trim().to_owned(),
                ..row
            });
            let fields: Vec<Row> = fields.collect();
            outer.rows.push(Row { name: block.name, shape: "oneof".into(), about: block.about });
            outer.rows.extend(fields);
        }
        (Kind::Oneof, None) | (Kind::Service | Kind::Message | Kind::Enum, _) => done.push(block),
    }
}

fn opened(line: &str) -> Option<(Kind, &str)> {
    let (label, kind) = Kind::ALL.into_iter().find(|(label, _)| line.starts_with(label))?;
    let name = line[label.len()..].split([' ', '{']).next()?;
    line.contains('{').then_some((kind, name))
}

fn row(line: &str, about: String) -> Option<Row> {
    let ends = [";", "{}", "{"];
    let line = ends.iter().find_map(|end| line.strip_suffix(end))?.trim();
    if let Some(method) = line.strip_prefix("rpc ") {
        let (name, rest) = method.split_once('(')?;
        let (takes, rest) = rest.split_once(')')?;
        let answers = rest.trim().strip_prefix("returns (")?.strip_suffix(')')?;
        let shape = format!("{takes} → {answers}");
        return Some(Row { name: name.trim().to_owned(), shape, about });
    }
    if ["reserved ", "option ", "import ", "package "].iter().any(|label| line.starts_with(label)) {
        return None;
    }
    let (declared, _number) = line.split_once(" = ")?;
    let (shape, name) = declared.rsplit_once(' ').unwrap_or(("", declared));
    let shape = shape.replace("google.protobuf.", "");
    Some(Row { name: name.to_owned(), shape, about })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTO: &str = "\
// Boxes: what is kept.
syntax = \"proto3\";

import \"a.proto\";

service BoxService {
  // Opens
  // a box.
  rpc Open(OpenRequest) returns (stream Box);
  // Looks at a box.
  rpc Look(LookRequest) returns (Box) {
    option idempotency_level = NO_SIDE_EFFECTS;
  }
}

message OpenRequest {}

// A box.
message Box {
  string id = 1;
  // In <mm>.
  repeated int32 sides = 2;
  // Its material.
  oneof kind {
    // Of wood.
    Wood wood = 3;
  }
  reserved 4;

  enum Lid {
    LID_NONE = 0;
  }
}
";

    #[test]
    fn services_messages_and_enums_are_listed_with_their_comments() {
        let page = page(&[(format!("{FOLDER}boxes.proto"), PROTO.to_owned())]);
        for expected in [
            "## boxes.proto\n\nBoxes: what is kept.\n",
            "### BoxService\n\n| method | takes → answers | means |\n",
            "| `Open` | `OpenRequest → stream Box` | Opens a box. |\n| `Look` | `LookRequest → Box` | Looks at a box. |\n",
            "### OpenRequest\n\nNo fields.\n",
            "### Box\n\nA box.\n",
            "| `id` | `string` |  |\n| `sides` | `repeated int32` | In &lt;mm>. |\n",
            "| `kind` | `oneof` | Its material. |\n| `wood` | `Wood` | One of `kind`. Of wood. |\n",
            "### Box.Lid\n\n| value | | means |\n|---|---|---|\n| `LID_NONE` |  |  |\n",
        ] {
            assert!(page.contains(expected), "{expected} is not in\n{page}");
        }
        assert!(!page.contains("reserved"));
    }
}
