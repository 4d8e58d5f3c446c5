//! Selects the kernel modules of a ramdisk: the requested ones by path prefix, and their
//! dependencies.

use super::{RootTree, io_failure};
use crate::shell::{self, Failure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NEXT: &str = "compare the table of modules with what the kernel's package has";

/// Installs the modules with these path prefixes, their dependencies, and the tables that modprobe
/// reads.
pub fn install(tree: &RootTree, kernel: &Path, desired: &[&str]) -> Result<usize, Failure> {
    let version = version(kernel)?;
    let folder = format!("lib/modules/{version}");
    depmod(tree, kernel, &version)?;
    let read = |name: &str| {
        let table = kernel.join(&folder).join(name);
        fs::read_to_string(&table).map_err(|error| io_failure(&table, &error))
    };
    let (modules, builtin) = (read("modules.dep")?, read("modules.builtin")?);
    let chosen = select_modules(&parse_dependencies(&modules), &builtin, desired)?;
    for module in &chosen {
        let path = format!("{folder}/{module}");
        tree.copy_file(&kernel.join(&path), &path, 0o644)?;
    }
    for list in ["modules.builtin", "modules.order"] {
        let path = format!("{folder}/{list}");
        tree.copy_file(&kernel.join(&path), &path, 0o644)?;
    }
    depmod(tree, tree.root(), &version)?;
    Ok(chosen.len())
}

/// The kernel image to boot.
pub fn kernel_image(kernel: &Path) -> Result<PathBuf, Failure> {
    Ok(kernel.join(format!("boot/vmlinuz-{}", version(kernel)?)))
}

/// The only version in the modules directory.
fn version(kernel: &Path) -> Result<String, Failure> {
    let folder = kernel.join("lib/modules");
    let entries = fs::read_dir(&folder).map_err(|error| io_failure(&folder, &error))?;
    let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    match (names.next(), names.next()) {
        (Some(version), None) => Ok(version),
        _ => Err(Failure::new(format!("{} has not one kernel", folder.display()), NEXT)),
    }
}

/// Debian's packages do not contain these tables. Busybox writes them, so that the build host needs
/// no depmod.
fn depmod(tree: &RootTree, root: &Path, version: &str) -> Result<(), Failure> {
    let mut depmod = Command::new(tree.packages().join("bin/busybox"));
    depmod.args(["depmod", "-b"]).arg(root).arg(version);
    shell::run(&mut depmod, NEXT)
}

/// Each module with its dependencies, from `modules.dep`: `path: path path`.
fn parse_dependencies(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let line = |line| str::split_once(line, ':');
    text.lines()
        .filter_map(line)
        .map(|(one, all)| (one, all.split_whitespace().collect()))
        .collect()
}

/// The modules with one of the wanted prefixes, and their dependencies. A prefix may also match a
/// built-in module, which varies between kernels.
fn select_modules<'a>(
    all: &BTreeMap<&'a str, Vec<&'a str>>,
    builtin: &str,
    desired: &[&str],
) -> Result<BTreeSet<&'a str>, Failure> {
    let mut waiting = Vec::new();
    for path in desired {
        let before = waiting.len();
        waiting.extend(all.keys().copied().filter(|module| module.starts_with(path)));
        let is_there = waiting.len() > before || builtin.lines().any(|one| one.starts_with(path));
        if !is_there {
            return Err(Failure::new(format!("no module's path begins with {path}"), NEXT));
        }
    }
    let mut chosen = BTreeSet::new();
    while let Some(module) = waiting.pop() {
        if chosen.insert(module) {
            waiting.extend(all.get(module).into_iter().flatten().copied());
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n\
                         kernel/fs/jbd2/jbd2.ko:\nkernel/lib/crc16.ko:\nkernel/fs/xfs/xfs.ko:\n\
                         kernel/drivers/net/a/a.ko: kernel/drivers/net/b.ko\n\
                         kernel/drivers/net/b.ko: kernel/lib/crc16.ko\n";

    const BUILTIN: &str = "kernel/crypto/crc32c_generic.ko\n";

    #[test]
    fn a_module_comes_with_what_it_needs() {
        let table = parse_dependencies(TABLE);
        let names = |desired: &[&str]| {
            let chosen = select_modules(&table, BUILTIN, desired).unwrap();
            chosen.iter().map(|path| path.rsplit('/').next().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["kernel/fs/ext4/"]), ["ext4.ko", "jbd2.ko", "crc16.ko"]);
        assert_eq!(names(&["kernel/drivers/net/a"]), ["a.ko", "b.ko", "crc16.ko"]);
        assert_eq!(names(&["kernel/crypto/crc32c"]), [""; 0], "it is in the kernel itself");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let failure = select_modules(&parse_dependencies(TABLE), BUILTIN, &["kernel/fs/zfs"]);
        let failure = failure.unwrap_err().to_string();
        assert!(failure.contains("no module's path begins with kernel/fs/zfs"), "{failure}");
    }
}
