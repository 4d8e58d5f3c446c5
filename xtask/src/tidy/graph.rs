//! The allowed dependencies of each crate, on our own crates and on external ones. This table is
//! the picture in ARCHITECTURE.md.
//!
//! Tests may use external tools, such as a database client, but a crate's tests may not depend on
//! higher crates either: `[dev-dependencies]` must follow the table of our own crates, and are
//! otherwise free.

use super::Finding;
use super::source::numbered;

/// A crate, and the crates that it may use.
const CRATES: [(&str, &[&str]); 9] = [
    ("model", &["wire"]),
    ("store", &["model"]),
    ("providers", &["model"]),
    ("engine", &["model", "store", "providers"]),
    ("proto", &[]),
    ("server", &["model", "store", "engine", "providers", "proto", "wire"]),
    ("cli", &["model", "proto", "server", "agent"]),
    ("agent", &["wire"]),
    ("wire", &[]),
];

/// External dependencies that only some crates may use, by name prefix.
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
        crates: &["store"],
        todo: "only `store` talks to a database; ask it instead",
    },
    Reserved {
        names: &["tonic", "prost", "protox"],
        crates: &["proto", "server", "cli"],
        todo: "the wire ends in `server`; use the model's types",
    },
    Reserved {
        names: &["tokio", "futures", "async-", "axum", "hyper", "reqwest", "tower", "russh"],
        crates: &["store", "providers", "engine", "proto", "server", "cli"],
        todo: "`model` decides and does not wait; do it in `engine` or `providers`",
    },
];

struct Reserved {
    names: &'static [&'static str],
    crates: &'static [&'static str],
    todo: &'static str,
}

struct Dependency {
    line: usize,
    name: String,
    for_tests: bool,
}

/// Checks the manifest of one of our crates; ignores any other file.
pub fn check(path: &str, manifest: &str) -> Vec<Finding> {
    let Some(crate_name) =
        path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
    else {
        return Vec::new();
    };
    let Some((_, may_use)) = CRATES.iter().find(|(name, _)| *name == crate_name) else {
        let wrong = format!("nobody knows what the crate `{crate_name}` may use");
        return vec![Finding::new(
            path,
            1,
            wrong,
            "add it to the table in xtask and the picture in ARCHITECTURE.md",
        )];
    };
    dependencies(manifest)
        .iter()
        .filter_map(|dependency| check_dependency(crate_name, may_use, dependency))
        .map(|(line, wrong, todo)| Finding::new(path, line, wrong, todo))
        .collect()
}

fn check_dependency(
    crate_name: &str,
    may_use: &[&str],
    dependency: &Dependency,
) -> Option<(usize, String, &'static str)> {
    let name = dependency.name.strip_prefix("farrier-").unwrap_or(&dependency.name);
    let wrong = || (dependency.line, format!("`{crate_name}` must not use `{name}`"));
    if CRATES.iter().any(|(ours, _)| *ours == name) || name == "farrier" {
        // The tests of the top crate cover the whole system.
        let allowed = may_use.contains(&name)
            || name == crate_name
            || (crate_name == "cli" && dependency.for_tests);
        return (!allowed)
            .then(wrong)
            .map(|(line, wrong)| (line, wrong, "see the picture in ARCHITECTURE.md"));
    }
    if dependency.for_tests {
        return None;
    }
    let reserved = RESERVED.iter().find(|r| {
        r.names.iter().any(|begin| name.starts_with(begin)) && !r.crates.contains(&crate_name)
    })?;
    let (line, wrong) = wrong();
    Some((line, wrong, reserved.todo))
}

/// Reads the dependency tables of a manifest, by package name. A dependency is one line or its own
/// table.
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

    fn found(crate_name: &str, manifest: &str) -> Vec<usize> {
        check(&format!("crates/{crate_name}/Cargo.toml"), manifest)
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn every_edge_is_in_the_table_or_refused() {
        let drawn = [
            ("model", "wire"),
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
        for (crate_name, _) in CRATES {
            for (other, _) in CRATES.iter().filter(|(other, _)| *other != crate_name) {
                let manifest = format!(
                    "[package]\nname = \"x\"\n\n[dependencies]\n{other}.workspace = true\n"
                );
                let expected: &[usize] =
                    if drawn.contains(&(crate_name, other)) { &[] } else { &[5] };
                assert_eq!(found(crate_name, &manifest), expected, "{crate_name} uses {other}");
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
    fn reserved_dependencies_are_for_their_crates() {
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
    fn only_the_top_crate_tests_the_whole_system() {
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
    fn an_unlisted_crate_is_found() {
        assert_eq!(found("helpers", ""), [1]);
    }
}
