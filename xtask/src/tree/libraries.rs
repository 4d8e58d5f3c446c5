//! Finds the libraries that a program needs: its own, theirs, and the loader. They are only
//! searched in the unpacked packages: a missing one means that a package is missing from a list,
//! which must fail here and not later on another machine.

use crate::shell::{self, Failure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library directories of Debian packages.
pub const FOLDERS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
/// The dynamic loader, by its path in the package.
pub const LOADER: &str = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
/// The dynamic loader, by the path that programs name.
const LOADER_NAMED: &str = "lib64/ld-linux-x86-64.so.2";
/// More libraries than any of our programs has: beyond it there must be a cycle.
const MAX_LIBRARIES: usize = 200;

/// The libraries of a program: the path of each, and its path in the tree.
pub fn libraries_of(packages: &Path, program: &Path) -> Result<Vec<(PathBuf, String)>, Failure> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut waiting = needed(program)?;
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    while let Some(name) = waiting.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let file = find(packages, &name).ok_or_else(|| missing_library(program, &name))?;
        if found.len() == MAX_LIBRARIES {
            return Err(Failure::new(
                format!("{} needs too much", program.display()),
                "look at it",
            ));
        }
        waiting.extend(needed(&file)?);
        found.insert(name, file);
    }
    let mut all: Vec<_> =
        found.into_iter().map(|(name, file)| (file, format!("{}/{name}", FOLDERS[0]))).collect();
    all.push((packages.join(LOADER), LOADER_NAMED.to_owned()));
    Ok(all)
}

fn find(packages: &Path, name: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| packages.join(folder).join(name)).find(|file| file.is_file())
}

fn missing_library(program: &Path, name: &str) -> Failure {
    Failure::new(
        format!("{} needs {name}, which is in none of the packages", program.display()),
        "add the package that has it to the list",
    )
}

fn needed(file: &Path) -> Result<Vec<String>, Failure> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--dynamic", "--wide"]).arg(file).env("LC_ALL", "C");
    Ok(parse_needed(&shell::read_output(&mut readelf, "install binutils, which has readelf")?))
}

/// The names in lines such as `0x01 (NEEDED)  Shared library: [libc.so.6]`.
fn parse_needed(reported: &str) -> Vec<String> {
    let bracketed = |line: &str| {
        let (_, rest) = line.split_once("(NEEDED)")?;
        Some(rest.split_once('[')?.1.split_once(']')?.0.to_owned())
    };
    reported.lines().filter_map(bracketed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_libraries_are_named_in_brackets() {
        let reported = " 0x0000000000000001 (NEEDED)  Shared library: [libuuid.so.1]\n\
                    0x000000000000000e (SONAME)  Library soname: [libx.so]\n\
                    0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]\n";
        assert_eq!(parse_needed(reported), ["libuuid.so.1", "libc.so.6"]);
        assert!(parse_needed("There is no dynamic section in this file.").is_empty());
    }

    #[test]
    fn a_library_that_no_package_has_is_named() {
        let program = std::env::current_exe().unwrap();
        let failure = libraries_of(Path::new("no/packages"), &program).unwrap_err().to_string();
        assert!(failure.contains("which is in none of the packages"), "{failure}");
    }
}
