//! Which room may know which, and which may bring in what from outside. This table is the picture in ARCHITECTURE.md.
//!
//! Tests may bring tools of their own, such as a database client, but a crate's tests do not look upward either:
//! `[dev-dependencies]` is held to the table of our own crates and free otherwise.

use super::Finding;
use super::source::numbered;

/// A room, and the rooms it may use.
const ROOMS: [(&str, &[&str]); 9] = [
    ("model", &[]),
    ("store", &["model"]),
    ("providers", &["model"]),
    ("engine", &["model", "store", "providers"]),
    ("proto", &[]),
    ("server", &["model", "store", "engine", "providers", "proto", "wire"]),
    ("cli", &["model", "proto", "server", "agent"]),
    ("agent", &["wire"]),
    ("wire", &[]),
];

/// Dependencies from outside that only some rooms may use, by how their names begin.
const RESERVED: [Reserved; 3] = [
    Reserved {
        names: &[
            "rusqlite",
            "libsqlite3-sys",
            "tokio-postgres",
            "postgres",
            "deadpool",
            "sqlx",
            "diesel",
            "refinery",
        ],
        rooms: &["store"],
        todo: "only `store` talks to a database; ask it instead",
    },
    Reserved {
        names: &["tonic", "prost", "pbjson", "protox"],
        rooms: &["proto", "server", "cli"],
        todo: "the wire ends in `server`; use the model's types",
    },
    Reserved {
        names: &[
            "tokio", "futures", "async-", "axum", "hyper", "reqwest", "tower", "russh", "kube",
        ],
        rooms: &["store", "providers", "engine", "proto", "server", "cli"],
        todo: "`model` decides and does not wait; do it in `engine` or `providers`",
    },
];

struct Reserved {
    names: &'static [&'static str],
    rooms: &'static [&'static str],
    todo: &'static str,
}

struct Dependency {
    line: usize,
    name: String,
    for_tests: bool,
}

/// Checks the manifest of one of our crates; any other file has nothing to answer for.
pub fn check(path: &str, manifest: &str) -> Vec<Finding> {
    let Some(room) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
    else {
        return Vec::new();
    };
    let Some((_, may_use)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        let wrong = format!("nobody knows what the crate `{room}` may use");
        return vec![Finding::new(
            path,
            1,
            wrong,
            "add it to the table in xtask and the picture in ARCHITECTURE.md",
        )];
    };
    dependencies(manifest)
        .iter()
        .filter_map(|dependency| judge(room, may_use, dependency))
        .map(|(line, wrong, todo)| Finding::new(path, line, wrong, todo))
        .collect()
}

fn judge(
    room: &str,
    may_use: &[&str],
    dependency: &Dependency,
) -> Option<(usize, String, &'static str)> {
    let name = dependency.name.strip_prefix("farrier-").unwrap_or(&dependency.name);
    let wrong = || (dependency.line, format!("`{room}` must not use `{name}`"));
    if ROOMS.iter().any(|(ours, _)| *ours == name) || name == "farrier" {
        // The top room's tests look at the whole system.
        let allowed =
            may_use.contains(&name) || name == room || (room == "cli" && dependency.for_tests);
        return (!allowed)
            .then(wrong)
            .map(|(line, wrong)| (line, wrong, "see the picture in ARCHITECTURE.md"));
    }
    if dependency.for_tests {
        return None;
    }
    let reserved = RESERVED.iter().find(|r| {
        r.names.iter().any(|begin| name.starts_with(begin)) && !r.rooms.contains(&room)
    })?;
    let (line, wrong) = wrong();
    Some((line, wrong, reserved.todo))
}

/// Reads the dependency tables of a manifest, one dependency a line or a table each, under the name of its package.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut table = String::new();
    for (line, text) in numbered(manifest) {
        let text = text.trim();
        if let Some(header) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = header.to_owned();
            if let Some((outer, name)) = table.rsplit_once("dependencies.") {
                found.push(Dependency {
                    line,
                    name: name.to_owned(),
                    for_tests: outer.ends_with("dev-"),
                });
            }
            continue;
        }
        let Some((key, value)) = text.split_once('=').filter(|_| !text.starts_with('#')) else {
            continue;
        };
        let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
        if table.ends_with("dependencies") {
            let name = renamed.unwrap_or_else(|| key.trim().split('.').next().unwrap_or_default());
            found.push(Dependency {
                line,
                name: name.trim_matches('"').to_owned(),
                for_tests: table.ends_with("dev-dependencies"),
            });
        } else if table.contains("dependencies.")
            && key.trim() == "package"
            && let Some(last) = found.last_mut()
        {
            last.name = value.trim().trim_matches('"').to_owned();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(room: &str, manifest: &str) -> Vec<usize> {
        check(&format!("crates/{room}/Cargo.toml"), manifest)
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn every_edge_is_in_the_table_or_refused() {
        let drawn = [
            ("store", "model"),
            ("providers", "model"),
            ("engine", "model"),
            ("engine", "store"),
            ("engine", "providers"),
            ("server", "model"),
            ("server", "store"),
            ("server", "engine"),
            ("server", "providers"),
            ("server", "proto"),
            ("server", "wire"),
            ("agent", "wire"),
            ("cli", "model"),
            ("cli", "proto"),
            ("cli", "server"),
            ("cli", "agent"),
        ];
        for (room, _) in ROOMS {
            for (other, _) in ROOMS.iter().filter(|(other, _)| *other != room) {
                let manifest = format!(
                    "[package]\nname = \"x\"\n\n[dependencies]\n{other}.workspace = true\n"
                );
                let expected: &[usize] = if drawn.contains(&(room, other)) { &[] } else { &[5] };
                assert_eq!(found(room, &manifest), expected, "{room} uses {other}");
            }
        }
    }

    #[test]
    fn a_dependency_is_known_however_it_is_written() {
        for manifest in [
            "[dependencies]\nstore = { package = \"farrier-store\", path = \"../store\" }\n",
            "[dependencies]\nfarrier-store = \"1\"\n",
            "[dependencies]\nmemory = { package = \"farrier-store\" }\n",
            "\n[dependencies.store]\n",
            "\n[target.'cfg(unix)'.dependencies.farrier-store]\n",
            "[target.'cfg(unix)'.dependencies]\nstore.workspace = true\n",
            "[build-dependencies]\nstore.workspace = true\n",
            "[dev-dependencies]\nstore.workspace = true\n",
        ] {
            assert_eq!(found("model", manifest), [2], "{manifest}");
        }
        assert_eq!(found("model", "[dependencies.memory]\npackage = \"farrier-store\"\n"), [1]);
    }

    #[test]
    fn what_is_reserved_is_for_its_rooms() {
        for (name, good, bad) in [
            ("rusqlite", "store", "engine"),
            ("tokio-postgres", "store", "server"),
            ("deadpool-postgres", "store", "cli"),
            ("tonic", "server", "engine"),
            ("prost", "proto", "store"),
            ("tokio", "engine", "model"),
            ("futures-util", "store", "model"),
            ("async-trait", "providers", "model"),
        ] {
            let manifest = format!("[dependencies]\n{name}.workspace = true\n");
            assert!(found(good, &manifest).is_empty(), "{good} uses {name}");
            assert_eq!(found(bad, &manifest), [2], "{bad} uses {name}");
            let for_tests = format!("[dev-dependencies]\n{name} = \"1\"\n");
            assert!(found(bad, &for_tests).is_empty(), "tests of {bad} use {name}");
        }
    }

    #[test]
    fn only_the_top_room_tests_the_whole_system() {
        let manifest = "[dev-dependencies]\nengine.workspace = true\n";
        assert!(found("cli", manifest).is_empty());
        assert_eq!(found("store", manifest), [2]);
    }

    #[test]
    fn what_is_not_a_dependency_is_left_alone() {
        assert!(found("model", "[package]\nstore = \"1\"\n\n[dependencies]\n# store = \"1\"\nserde = \"1\"\n\n[lints]\nstore = 1\n").is_empty());
        assert!(check("xtask/Cargo.toml", "[dependencies]\ntokio = \"1\"\n").is_empty());
    }

    #[test]
    fn a_crate_that_nobody_placed_is_found() {
        assert_eq!(found("helpers", ""), [1]);
    }
}
