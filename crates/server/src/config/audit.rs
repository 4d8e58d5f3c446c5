//! `[audit]`: where copies of the audit log go.

use crate::audit_stream::SyslogTarget;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Streams of the audit log. Each replica that has one sends the whole log, from the first entry
/// on: set it at one replica, or expect each entry once per replica.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// The file to which sealed entries are appended, one JSON object per line. It is opened again
    /// after a rotation. Empty: none.
    pub file: PathBuf,
    /// The syslog receiver of sealed entries (RFC 5424): `udp://host:514`, `tcp://host:514` or
    /// `unix:///dev/log`. Empty: none.
    pub syslog: String,
}

impl Audit {
    pub fn check(&self) -> Result<(), String> {
        let is_set = !self.file.as_os_str().is_empty();
        if is_set && !self.file.is_absolute() {
            return Err(format!(
                "audit.file is {:?}; write the whole path, as in \"/var/log/farrier/audit.jsonl\"",
                self.file.display().to_string()
            ));
        }
        match self.syslog.is_empty() {
            true => Ok(()),
            false => SyslogTarget::parse(&self.syslog).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, syslog: &str) -> Result<(), String> {
        Audit { file: file.into(), syslog: syslog.into() }.check()
    }

    #[test]
    fn targets_are_checked_at_the_start() {
        for (file, syslog) in [
            ("", ""),
            ("/var/log/audit.jsonl", ""),
            ("", "udp://127.0.0.1:514"),
            ("", "tcp://log.example:6514"),
            ("", "tcp://[::1]:514"),
            ("", "unix:///dev/log"),
        ] {
            assert_eq!(check(file, syslog), Ok(()), "{file} {syslog}");
        }
        for (file, syslog, word) in [
            ("audit.jsonl", "", "audit.file"),
            ("", "127.0.0.1:514", "audit.syslog"),
            ("", "udp://127.0.0.1", "audit.syslog"),
            ("", "udp://host:0", "audit.syslog"),
            ("", "udp://:514", "audit.syslog"),
            ("", "udp://host:514/path", "audit.syslog"),
            ("", "http://host:514", "audit.syslog"),
            ("", "unix://dev/log", "audit.syslog"),
        ] {
            let problem = check(file, syslog).unwrap_err();
            assert!(problem.starts_with(word) && problem.contains("write"), "{problem}");
        }
    }
}
