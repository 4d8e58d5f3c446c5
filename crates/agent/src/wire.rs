//! What the agent and Farrier say to each other: JSON over HTTP, in three requests.
//!
//! A claim trades the one-time token of the kernel's command line for the work there is to do; the image is fetched by
//! ranges; reports say how far it is, and their answers say what to do next. Nothing else is ever said.

use serde::{Deserialize, Serialize, Serializer};

pub const CLAIM: &str = "/deploy/claim";
pub const REPORT: &str = "/deploy/report";

/// Asks for the work. The same token and session may ask again, because an answer may be lost. It holds secrets, so it
/// can be sent and not be printed.
#[derive(Serialize)]
pub struct Claim<'a> {
    pub token: &'a str,
    pub session: &'a str,
    pub mac: &'a str,
    pub macs: &'a [String],
    pub disks: Vec<DiskSeen<'a>>,
}

#[derive(Serialize)]
pub struct DiskSeen<'a> {
    pub path: &'a str,
    pub size: u64,
    pub serial: &'a str,
    pub wwn: &'a str,
    pub model: &'a str,
}

/// The work.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Granted {
    pub run: String,
    pub machine: String,
    pub hostname: String,
    pub user: String,
    #[serde(default)]
    pub authorized_keys: Vec<String>,
    #[serde(default)]
    pub root_disk: String,
    pub image: Image,
    #[serde(default)]
    pub stamp: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Image {
    pub name: String,
    pub kind: Kind,
    /// Relative to Farrier's own address, or absolute.
    pub url: String,
    /// Of the file as it is served, like the size.
    pub sha256: String,
    pub size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Raw,
    Qcow2,
    Tar,
    /// A kind that a newer Farrier knows.
    #[serde(other)]
    Unknown,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Tar => "tar",
            Self::Unknown => "unknown",
        }
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Refusal {
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub said: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub stage: Stage,
    /// Bytes of the image file.
    pub done: u64,
    pub total: u64,
    pub said: String,
    /// Empty unless the stage is `failed`.
    #[serde(serialize_with = "code_or_nothing")]
    pub code: Option<Code>,
    pub host_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Writing,
    Installing,
    Installed,
    Failed,
}

/// Why the work failed. Each is a fault code of Farrier's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    ChecksumWrong,
    DiskTooSmall,
    DiskMissing,
    DiskAmbiguous,
    ImageBroken,
    InstallFailed,
}

impl Code {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChecksumWrong => "checksum-wrong",
            Self::DiskTooSmall => "disk-too-small",
            Self::DiskMissing => "disk-missing",
            Self::DiskAmbiguous => "disk-ambiguous",
            Self::ImageBroken => "image-broken",
            Self::InstallFailed => "install-failed",
        }
    }
}

fn code_or_nothing<S: Serializer>(code: &Option<Code>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.map_or("", Code::as_str))
}

/// The answer to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Told {
    pub then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    GoOn,
    /// Only after `installed` or `failed`.
    Reboot,
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_spelled_as_agreed() {
        let mut report = Report {
            stage: Stage::Writing,
            done: 1,
            total: 2,
            said: "writing".into(),
            code: None,
            host_keys: Vec::new(),
        };
        let text = |report: &Report| serde_json::to_string(report).unwrap();
        assert_eq!(
            text(&report),
            r#"{"stage":"writing","done":1,"total":2,"said":"writing","code":"","host_keys":[]}"#
        );
        for (stage, word) in [
            (Stage::Installing, "installing"),
            (Stage::Installed, "installed"),
            (Stage::Failed, "failed"),
        ] {
            report.stage = stage;
            assert!(text(&report).contains(&format!("\"stage\":\"{word}\"")));
        }
        for (code, word) in [
            (Code::ChecksumWrong, "checksum-wrong"),
            (Code::DiskTooSmall, "disk-too-small"),
            (Code::DiskMissing, "disk-missing"),
            (Code::DiskAmbiguous, "disk-ambiguous"),
            (Code::ImageBroken, "image-broken"),
            (Code::InstallFailed, "install-failed"),
        ] {
            report.code = Some(code);
            assert!(text(&report).contains(&format!("\"code\":\"{word}\"")));
        }
    }

    #[test]
    fn answers_are_read_as_agreed() {
        for (text, then) in [("go-on", Then::GoOn), ("reboot", Then::Reboot), ("stop", Then::Stop)]
        {
            let told: Told = serde_json::from_str(&format!(r#"{{"then":"{text}"}}"#)).unwrap();
            assert_eq!(told.then, then);
        }
        let granted: Granted = serde_json::from_str(
            r#"{"run":"op-1","machine":"m-1","hostname":"node-1","user":"root",
                "authorized_keys":["ssh-ed25519 AAAA x"],"root_disk":"","image":{"name":"debian-12",
                "kind":"raw","url":"/deploy/image","sha256":"00","size":123456},"stamp":"s","later":1}"#,
        )
        .unwrap();
        assert_eq!((granted.image.kind, granted.image.size), (Kind::Raw, 123_456));
        for (text, kind) in
            [("raw", Kind::Raw), ("qcow2", Kind::Qcow2), ("tar", Kind::Tar), ("ova", Kind::Unknown)]
        {
            assert_eq!(serde_json::from_str::<Kind>(&format!("{text:?}")).unwrap(), kind);
        }
    }
}
