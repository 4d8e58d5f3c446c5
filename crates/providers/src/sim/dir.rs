//! The simulated fleet in a directory.
//!
//! ```text
//! machines/<id>.jsonl  the hardware of one machine: its last complete line is current
//! locks/<n>.lock       held for microseconds to change one of the machines with this number
//! effects.jsonl        the effect log, one line for each call and each effect, append only
//! faults.json          the fault rules, under locks/faults.lock
//! ```
//!
//! A process may be killed at any point: a file has either its old or its new content. Machines are
//! appended to and share locks, because creating and removing files is slow on most file systems.

use super::effect_log::EffectRecord;
use super::fault::Rules;
use super::hardware::Hardware;
use crate::fault::LocalShortage;
use model::fault::{Fault, FaultCode, Result};
use model::id::MachineId;
use model::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

const MACHINES: &str = "machines";
const LOCKS: &str = "locks";
const EFFECT_LOG: &str = "effects.jsonl";
/// The start of every line of the effect log, which does not occur inside a line.
const ENTRY_START: &str = "{\"what\":";
/// A machine's file above this size is rewritten.
const LONG: usize = 32 * 1_024;
const RULES: &str = "faults.json";
const RULES_LOCK: &str = "faults";

pub fn prepare(root: &Path) -> io::Result<()> {
    fs::create_dir_all(root.join(MACHINES))?;
    fs::create_dir_all(root.join(LOCKS))
}

pub fn change_machine<T>(
    root: &Path,
    machine: &MachineId,
    now: Timestamp,
    change: impl FnOnce(&mut Hardware, &mut Vec<EffectRecord>) -> T,
) -> Result<T> {
    let name = file_name(machine);
    let _alone = lock_file(root, &lock_of(&name).to_string())?;
    let path = root.join(MACHINES).join(format!("{name}.jsonl"));
    let text = text_of(&path)?.unwrap_or_default();
    let before = last_line(&text);
    let mut hardware = match before {
        Some(line) => parse(&path, line)?,
        None => Hardware::factory(now),
    };
    let mut ledger = Vec::new();
    let result = change(&mut hardware, &mut ledger);
    // The effect log is written first: see `effect_log` for a crash in between.
    record(root, &ledger)?;
    append(&path, &text, before, &hardware)?;
    Ok(result)
}

/// The last complete line.
fn last_line(text: &str) -> Option<&str> {
    let complete = &text[..text.rfind('\n')?];
    Some(complete.rsplit('\n').next().unwrap_or(complete)).filter(|line| !line.is_empty())
}

/// Appends the current hardware, unless the last line is equal. A file that has grown long is
/// rewritten. The caller holds the lock.
fn append(path: &Path, text: &str, before: Option<&str>, hardware: &Hardware) -> Result<()> {
    let reported = |error: io::Error| unreachable(path, &error);
    let after = serde_json::to_string(hardware).map_err(|error| reported(error.into()))?;
    if before == Some(after.as_str()) {
        return Ok(());
    }
    if text.len() > LONG {
        return replace(path, &format!("{after}\n"));
    }
    // A truncated line is terminated, so that the next one is complete.
    let stump = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(reported)?;
    file.write_all(format!("{stump}{after}\n").as_bytes()).map_err(reported)
}

pub fn rules(root: &Path) -> Result<Rules> {
    let (_, rules) = read::<Rules>(&root.join(RULES))?;
    Ok(rules.unwrap_or_default())
}

pub fn change_rules<T>(root: &Path, change: impl FnOnce(&mut Rules) -> T) -> Result<T> {
    let _alone = lock_file(root, RULES_LOCK)?;
    let path = root.join(RULES);
    let (before, rules) = read::<Rules>(&path)?;
    let mut rules = rules.unwrap_or_default();
    let result = change(&mut rules);
    write(&path, before.as_deref(), &rules)?;
    Ok(result)
}

/// Appends to the effect log, one write for each line, so that lines of processes do not mix.
pub fn record(root: &Path, entries: &[EffectRecord]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let path = root.join(EFFECT_LOG);
    let reported = |error: io::Error| unreachable(&path, &error);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(reported)?;
    for entry in entries {
        let mut line = serde_json::to_vec(entry).map_err(|error| reported(error.into()))?;
        line.push(b'\n');
        file.write_all(&line).map_err(reported)?;
    }
    Ok(())
}

pub fn read_effect_log(root: &Path) -> Result<Vec<EffectRecord>> {
    let path = root.join(EFFECT_LOG);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreachable(&path, &error)),
    };
    Ok(text.lines().filter_map(entry).collect())
}

/// Parses one line. After a full disk a line may follow a truncated one; the effect of the
/// truncated line was not applied, so only the complete part counts.
fn entry(line: &str) -> Option<EffectRecord> {
    let complete = &line[line.rfind(ENTRY_START)?..];
    serde_json::from_str(complete).ok()
}

/// The number of a machine's lock, of 256. It must not change between versions.
fn lock_of(name: &str) -> u8 {
    name.bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte))
}

/// Holds the lock until it is dropped or the process dies.
fn lock_file(root: &Path, name: &str) -> Result<File> {
    let path = root.join(LOCKS).join(format!("{name}.lock"));
    let reported = |error: io::Error| unreachable(&path, &error);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(reported)?;
    file.lock().map_err(reported)?;
    Ok(file)
}

fn text_of(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|error| garbled(path, &error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreachable(path, &error)),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<(Option<String>, Option<T>)> {
    let text = text_of(path)?;
    let value = text.as_deref().map(|text| parse(path, text)).transpose()?;
    Ok((text, value))
}

/// Replaces the file unless its content is equal. The caller holds the lock.
fn write<T: Serialize>(path: &Path, before: Option<&str>, value: &T) -> Result<()> {
    let reported = |error: io::Error| unreachable(path, &error);
    let after = serde_json::to_string(value).map_err(|error| reported(error.into()))?;
    if before == Some(after.as_str()) {
        return Ok(());
    }
    replace(path, &after)
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let reported = |error: io::Error| unreachable(path, &error);
    let temporary = PathBuf::from(format!("{}.tmp", path.display()));
    fs::write(&temporary, text).map_err(reported)?;
    fs::rename(&temporary, path).map_err(reported)
}

fn parse<'text, T: Deserialize<'text>>(path: &Path, text: &'text str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| garbled(path, &error))
}

fn garbled(path: &Path, error: &dyn std::error::Error) -> Fault {
    Fault::new(FaultCode::AnswerGarbled, format!("{} cannot be read: {error}", path.display()))
}

fn unreachable(path: &Path, error: &io::Error) -> Fault {
    match LocalShortage::of(error) {
        Some(shortage) => shortage.fault(&path.display()),
        None => Fault::new(FaultCode::BmcUnreachable, format!("{}: {error}", path.display())),
    }
}

/// The id, with special characters in hexadecimal.
fn file_name(machine: &MachineId) -> String {
    let mut name = String::new();
    for (at, byte) in machine.as_str().bytes().enumerate() {
        let plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0);
        if plain {
            name.push(byte as char);
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_line_hides_no_line() {
        let line = r#"{"what":"applied","key":"op-1/a/1","machine":"m-1","effect":"ssh","act":1}"#;
        let complete = entry(line).unwrap();
        assert_eq!(serde_json::to_string(&complete).unwrap(), line);
        assert_eq!(entry(&format!("{}{line}", &line[..30])), Some(complete));
        assert_eq!(entry(&line[..30]), None);
        assert_eq!(entry(""), None);
    }

    #[test]
    fn the_last_complete_line_counts() {
        for (text, line) in [
            ("", None),
            ("stump", None),
            ("a\n", Some("a")),
            ("a\nb\n", Some("b")),
            ("a\nstump", Some("a")),
            ("a\nstump\nb\n", Some("b")),
        ] {
            assert_eq!(last_line(text), line, "{text:?}");
        }
    }

    #[test]
    fn no_machine_leaves_its_directory() {
        for (id, name) in [
            ("rack7.slot_3", "rack7.slot_3"),
            ("../../etc/passwd", "%2e.%2f..%2fetc%2fpasswd"),
            (".faults", "%2efaults"),
            ("a%b", "a%25b"),
        ] {
            assert_eq!(file_name(&MachineId::trusted(id)), name);
        }
    }
}
