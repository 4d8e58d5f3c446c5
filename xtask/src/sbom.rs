//! `cargo xtask sbom`: the bill of materials of the two programs, as CycloneDX JSON. It has every
//! package that is compiled into them or that builds them, with its license and checksum, and which
//! package needs which. The same sources give the same text.

use crate::json::{Json, quoted};
use crate::shell::{self, Failure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The packages of our programs.
const PROGRAMS: [&str; 2] = ["farrier", "farrier-agent"];
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Prints the bill, or writes it to a file.
pub fn run(out: Option<&str>) -> Result<(), Failure> {
    let text = bill()?;
    match out {
        None => {
            print!("{text}");
            Ok(())
        }
        Some(path) => fs::write(path, text).map_err(|error| {
            Failure::new(format!("{path}: {error}"), "choose another file with --out")
        }),
    }
}

fn bill() -> Result<String, Failure> {
    let mut command = shell::cargo(["metadata", "--format-version", "1", "--locked"]);
    command.args(["--filter-platform", PLATFORM]);
    let output = shell::read_output(&mut command, "see that Cargo.lock is current")?;
    let unreadable = |what: &str| Failure::new(format!("{what} cannot be read"), "report it");
    let metadata = Json::parse(&output).ok_or_else(|| unreadable("the output of cargo"))?;
    let lock = read(&shell::root().join("Cargo.lock"))?;
    cyclonedx(&metadata, &checksums(&lock)).ok_or_else(|| unreadable("the packages"))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display()), "make it readable"))
}

/// The SHA-256 of each package of a registry, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |part: &str, name: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.strip_prefix(" = \"")?.strip_suffix('"')?.to_string())
    };
    lock.split("[[package]]")
        .filter_map(|part| {
            Some(((field(part, "name")?, field(part, "version")?), field(part, "checksum")?))
        })
        .collect()
}

/// A package, as the bill has it.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    license: &'a str,
}

impl Package<'_> {
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    fn component(&self, checksum: Option<&String>) -> String {
        let kind = if PROGRAMS.contains(&self.name) { "application" } else { "library" };
        let url = quoted(&self.url());
        let mut text = format!(
            "{{\"type\": \"{kind}\", \"bom-ref\": {url}, \"name\": {}, \"version\": {}, \"purl\": {url}",
            quoted(self.name),
            quoted(self.version)
        );
        if !self.license.is_empty() {
            // Older packages write a slash where SPDX has OR.
            let license = quoted(&self.license.replace('/', " OR "));
            text += &format!(", \"licenses\": [{{\"expression\": {license}}}]");
        }
        if let Some(checksum) = checksum {
            let content = quoted(checksum);
            text += &format!(", \"hashes\": [{{\"alg\": \"SHA-256\", \"content\": {content}}}]");
        }
        text + "}"
    }
}

fn cyclonedx(metadata: &Json, checksums: &BTreeMap<(String, String), String>) -> Option<String> {
    let mut packages = BTreeMap::new();
    for one in metadata.list("packages") {
        let (name, version) = (one.text("name")?, one.text("version")?);
        let license = one.text("license").unwrap_or_default();
        packages.insert(one.text("id")?, Package { name, version, license });
    }
    let mut needs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in metadata.get("resolve")?.list("nodes") {
        let used = node.list("deps").iter().filter(|one| !only_for_tests(one));
        needs.insert(node.text("id")?, used.filter_map(|one| one.text("pkg")).collect());
    }
    let roots = packages.iter().filter(|(_, package)| PROGRAMS.contains(&package.name));
    let mut open: Vec<&str> = roots.map(|(id, _)| *id).collect();
    let mut used: BTreeSet<&str> = BTreeSet::new();
    while let Some(id) = open.pop() {
        if used.insert(id) {
            open.extend(needs.get(id)?);
        }
    }
    let (mut components, mut dependencies) = (BTreeMap::new(), BTreeMap::new());
    for id in used {
        let package = packages.get(id)?;
        let key = (package.name.to_string(), package.version.to_string());
        let on: Option<BTreeSet<String>> =
            needs.get(id)?.iter().map(|one| Some(quoted(&packages.get(one)?.url()))).collect();
        let on = on?.into_iter().collect::<Vec<_>>().join(", ");
        let url = package.url();
        dependencies
            .insert(url.clone(), format!("{{\"ref\": {}, \"dependsOn\": [{on}]}}", quoted(&url)));
        components.insert(url, package.component(checksums.get(&key)));
    }
    let lines = |lines: BTreeMap<String, String>| {
        lines.into_values().map(|line| format!("    {line}")).collect::<Vec<_>>().join(",\n")
    };
    Some(format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \
         \"components\": [\n{}\n  ],\n  \"dependencies\": [\n{}\n  ]\n}}\n",
        lines(components),
        lines(dependencies)
    ))
}

/// True if a package is needed for nothing but tests.
fn only_for_tests(dependency: &Json) -> bool {
    let kinds = dependency.list("dep_kinds");
    !kinds.is_empty() && kinds.iter().all(|kind| kind.text("kind") == Some("dev"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{
        "packages": [
            {"id": "f", "name": "farrier", "version": "0.1.0", "license": "MIT"},
            {"id": "a", "name": "farrier-agent", "version": "0.1.0", "license": null},
            {"id": "s", "name": "serde", "version": "1.0.0", "license": "MIT/Apache-2.0"},
            {"id": "c", "name": "cc", "version": "1.1.0", "license": "MIT"},
            {"id": "t", "name": "tempfile", "version": "3.0.0", "license": "MIT"}
        ],
        "resolve": {"nodes": [
            {"id": "f", "deps": [
                {"pkg": "s", "dep_kinds": [{"kind": null}]},
                {"pkg": "t", "dep_kinds": [{"kind": "dev"}]},
                {"pkg": "a", "dep_kinds": [{"kind": null}]}]},
            {"id": "a", "deps": []},
            {"id": "s", "deps": [{"pkg": "c", "dep_kinds": [{"kind": "build"}]}]},
            {"id": "c", "deps": []},
            {"id": "t", "deps": []}
        ]}
    }"#;

    #[test]
    fn the_bill_has_what_is_built_and_nothing_of_the_tests() {
        let lock = "[[package]]\nname = \"serde\"\nversion = \"1.0.0\"\nchecksum = \"abcd\"\n";
        let text = cyclonedx(&Json::parse(METADATA).unwrap(), &checksums(lock)).unwrap();
        let bill = Json::parse(&text).unwrap();
        assert_eq!(bill.text("bomFormat"), Some("CycloneDX"));
        let names: Vec<&str> =
            bill.list("components").iter().filter_map(|one| one.text("name")).collect();
        assert_eq!(names, ["cc", "farrier-agent", "farrier", "serde"]);
        let serde = &bill.list("components")[3];
        assert_eq!(serde.list("licenses")[0].text("expression"), Some("MIT OR Apache-2.0"));
        assert_eq!(serde.list("hashes")[0].text("content"), Some("abcd"));
        let needs = &bill.list("dependencies")[2];
        assert_eq!(needs.text("ref"), Some("pkg:cargo/farrier@0.1.0"));
        assert_eq!(needs.list("dependsOn").len(), 2);
    }

    /// The bill of this very tree: every package of a registry has a license and a checksum.
    #[test]
    fn every_package_of_the_tree_is_accounted_for() {
        let bill = Json::parse(&bill().unwrap()).unwrap();
        let components = bill.list("components");
        assert!(components.len() > 100, "{}", components.len());
        assert_eq!(components.len(), bill.list("dependencies").len());
        for one in components {
            let name = one.text("name").unwrap();
            let own = name == "farrier" || name.starts_with("farrier-");
            assert_eq!(one.list("hashes").len(), usize::from(!own), "{name}");
            assert_eq!(one.list("licenses").len(), 1, "{name}");
        }
        let has = |wanted: &str| components.iter().any(|one| one.text("name") == Some(wanted));
        assert!(has("ring") && has("tokio") && !has("proptest"));
    }
}
