//! The scripts for a host's shell. They are sent over standard input, never on a command line.
//!
//! A script is one function and a last line that calls it. A shell runs a function only after it
//! has read all of it, so a connection that breaks during the transfer has no effect.

use super::Settings;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::SystemTime;

/// The command that reads a script. Every login shell has `exec`; it makes the script's shell the
/// leader of the process group that the server created.
pub(super) const SHELL: &str = "exec sh -s";

/// The most samples of the output sizes of one job.
const MAX_SAMPLES: u64 = 20_000;
/// The unit of `ulimit -f`.
const LIMIT_BLOCK: u64 = 512;
/// Longer file names are shortened. Hosts allow 255 bytes.
const MAX_NAME: usize = 180;
const NAME_HEAD: usize = 100;
/// The longest command of a job, in bytes.
pub(super) const MAX_COMMAND: usize = 512 << 10;

const COMMON: &str = include_str!("sh/common.sh");
const START: &str = include_str!("sh/start.sh");
const RUN: &str = include_str!("sh/run.sh");
const LEAD: &str = include_str!("sh/lead.sh");

/// A request about a job.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobRequest<'a> {
    Start {
        command: &'a str,
    },
    Status {
        skip: u64,
        most: usize,
        tenths: u64,
    },
    Fetch {
        file: &'static str,
        block: u64,
        first: u64,
        count: u64,
    },
    Stop {
        tenths: u64,
        kill_wait_tenths: u64,
    },
    /// `earlier` is the path prefix of the marks of a job that an earlier version started.
    Confirm {
        earlier: &'a str,
    },
    Forget,
    Prune {
        days: u32,
    },
}

/// The complete script for one request about the job of a key.
pub(super) fn script(settings: &Settings, key: &str, request: JobRequest<'_>) -> String {
    let base = settings.folder.as_ref().map_or("", |folder| folder.as_str());
    let mut text = format!("farrier() {{\nbase='{base}'\nname='{}'\n", file_name(key));
    let body = match request {
        JobRequest::Start { command } => {
            text += &format!("nonce={}\n", nonce());
            text += &prepare(settings, command);
            START
        }
        JobRequest::Status { skip, most, tenths } => {
            text += &format!("skip={skip}\nmost={most}\ntenths={tenths}\n");
            include_str!("sh/look.sh")
        }
        JobRequest::Fetch { file, block, first, count } => {
            text += &format!("file={file}\nblock={block}\nfirst={first}\ncount={count}\n");
            include_str!("sh/fetch.sh")
        }
        JobRequest::Stop { tenths, kill_wait_tenths: timeout } => {
            text += &format!("tenths={tenths}\ngrace={timeout}\n");
            include_str!("sh/stop.sh")
        }
        JobRequest::Confirm { earlier } => {
            text += &format!("earlier='{earlier}'\n");
            include_str!("sh/confirm.sh")
        }
        JobRequest::Forget => {
            text += &format!("nonce={}\n", nonce());
            include_str!("sh/forget.sh")
        }
        JobRequest::Prune { days } => {
            text += &format!("days={days}\n");
            include_str!("sh/prune.sh")
        }
    };
    text + COMMON + body + "}\nfarrier\n"
}

/// The shell function that writes a job's files. It writes with programs, not with the shell: their
/// error messages show whether the disk is full.
fn prepare(settings: &Settings, command: &str) -> String {
    let blocks = settings.max_output.div_ceil(LIMIT_BLOCK);
    let run = format!("base=.\nblocks={blocks}\nmost={MAX_SAMPLES}\n{COMMON}{RUN}");
    let lead = format!("base=.\n{COMMON}{LEAD}");
    // Reserves space for every line that overwrites it later.
    let slot = " ".repeat(120);
    let mut text = String::from("prepare() {\nmkdir \"$fresh\" && cd \"$fresh\" || return 1\n");
    for (file, content) in [
        ("command", command),
        ("run", &run),
        ("lead", &lead),
        ("runner", &slot),
        ("leader", &slot),
        ("status.new", &slot),
    ] {
        text += &here_document(file, content);
    }
    text += "booted\necho \"$boot\" | cat >boot || return 1\n";
    text += ": >out && : >err && : >out.kept && : >err.kept && : >samples || return 1\n";
    text += "mkfifo out.pipe err.pipe\n}\n";
    text
}

/// Shell text that writes a file with exactly this content, with a line end.
fn here_document(file: &str, content: &str) -> String {
    let mut end = String::from("END_OF_FILE");
    while content.lines().any(|line| line == end) {
        end.push('_');
    }
    let newline = if content.ends_with('\n') { "" } else { "\n" };
    format!("cat >{file} <<'{end}' || return 1\n{content}{newline}{end}\n")
}

/// A unique file name for any key: special characters are written in hexadecimal, and a long name
/// ends in a digest.
pub(super) fn file_name(key: &str) -> String {
    let mut name = String::new();
    for (at, byte) in key.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric()
            || byte == b'-'
            || byte == b'_'
            || (byte == b'.' && at > 0);
        if plain {
            name.push(char::from(byte));
        } else {
            name += &format!("%{byte:02X}");
        }
    }
    if name.is_empty() {
        return "%".to_string();
    }
    if name.len() <= MAX_NAME {
        return name;
    }
    let mut short = format!("{}~", &name[..NAME_HEAD]);
    for byte in Sha256::digest(key.as_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(short, "{byte:02x}");
    }
    short
}

/// A unique number for names of temporary files.
fn nonce() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::Folder;
    use std::collections::BTreeSet;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn every_key_has_a_safe_name_of_its_own() {
        let long = "x".repeat(1000);
        let longer = "x".repeat(1001);
        let keys = [
            "",
            "op-1/s/1",
            "op-1/s/2",
            "op-1%2Fs/1",
            ".",
            "..",
            "../x",
            "a b",
            "a'b",
            "ä",
            "%",
            "a\nb",
            "~",
            &long,
            &longer,
        ];
        let names: BTreeSet<String> = keys.iter().map(|key| file_name(key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in names {
            assert!(!name.is_empty() && !name.starts_with('.') && name.len() < 200, "{name}");
            assert!(
                name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.%~".contains(c)),
                "{name}"
            );
        }
        assert_eq!(file_name("op-1/install/1"), "op-1%2Finstall%2F1");
    }

    #[test]
    fn a_command_cannot_end_its_own_document() {
        let text = here_document("f", "echo a\nEND_OF_FILE\nEND_OF_FILE_\nrm x");
        assert!(text.ends_with("rm x\nEND_OF_FILE__\n"), "{text}");
    }

    /// Runs a text in a shell and returns its output.
    fn shell(home: &Path, text: &str) -> String {
        let mut shell = Command::new("sh");
        shell.arg("-s").current_dir(home).stdin(Stdio::piped());
        let mut shell = shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // A shell that finds an error stops reading.
        let _ = shell.stdin.take().unwrap().write_all(text.as_bytes());
        String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap()
    }

    #[test]
    fn an_incomplete_script_does_nothing() {
        const STRIDE: usize = 211;
        let home = tempfile::tempdir().unwrap();
        let jobs = home.path().join("jobs");
        let folder = Some(Folder::parse(jobs.to_str().unwrap()).unwrap());
        let settings = Settings { folder, ..Settings::default() };
        let text = script(&settings, "key", JobRequest::Start { command: "echo one\necho two" });
        let ends = (0..text.len()).step_by(STRIDE).chain(text.len() - 60..text.len() - 1);
        for end in ends.filter(|end| text.is_char_boundary(*end)) {
            let message = shell(home.path(), &text[..end]);
            assert!(
                message.is_empty() && !jobs.exists(),
                "{end} of {} bytes: {message}",
                text.len()
            );
        }
        assert_eq!(shell(home.path(), &text), "@farrier began\n");
        let status = jobs.join("key/job/status");
        let waits = (0..500).take_while(|_| !status.exists());
        waits.for_each(|_| std::thread::sleep(Duration::from_millis(20)));
        assert!(status.exists());
    }
}
