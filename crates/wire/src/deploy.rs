//! The messages of the deploy environment.
//!
//! A claim trades the one-time token of the kernel's command line for an assignment, in a manifest
//! that Farrier has signed. The image is fetched by ranges. Reports carry the progress, and their
//! replies say what to do next.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub const CLAIM: &str = "/deploy/claim";
pub const REPORT: &str = "/deploy/report";
/// The path of an image that Farrier stores itself.
pub const IMAGE: &str = "/deploy/image";

/// Requests the assignment. The same token and session may repeat it, because a reply may be lost.
/// It holds secrets, so it has no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct Claim {
    pub token: String,
    /// The secret that the agent chose for itself.
    pub session: String,
    /// The network card that the machine booted from.
    pub mac: String,
    /// All network cards.
    #[serde(default)]
    pub macs: Vec<String>,
    #[serde(default)]
    pub disks: Vec<Disk>,
}

/// A disk that the machine has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    pub path: String,
    pub size: u64,
    pub serial: String,
    pub wwn: String,
    pub model: String,
}

/// The work to do. The agent requires an image; the server sends `null` for an image that is not
/// written to a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment<I = Image> {
    pub run: String,
    pub machine: String,
    pub hostname: String,
    pub user: String,
    #[serde(default)]
    pub authorized_keys: Vec<String>,
    /// The disk to write; empty if the machine has only one.
    #[serde(default)]
    pub root_disk: String,
    pub image: I,
    /// The answer of the new system to the question which image it is.
    #[serde(default)]
    pub stamp: String,
}

/// Begins what is signed, so that a signature of a manifest is valid for nothing else.
pub const MANIFEST_CONTEXT: &str = "farrier deploy manifest 1\n";

/// The reply to a claim. The fields of the assignment are beside the manifest for installers that
/// do not verify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimReply<I = Image> {
    #[serde(flatten)]
    pub assignment: Assignment<I>,
    #[serde(flatten)]
    pub signed: SignedManifest,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SignedManifest {
    /// A [`Manifest`] as JSON.
    pub manifest: String,
    /// Ed25519 over [`MANIFEST_CONTEXT`] and the bytes of the manifest, in hexadecimal.
    pub signature: String,
}

/// All that decides what becomes of a machine, and for whom it was signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest<I = Image> {
    pub assignment: Assignment<I>,
    /// The SHA-256 of the session of the claim, in hexadecimal: an older manifest is of no use.
    pub session: String,
    /// The network cards of the machine.
    pub macs: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    pub kind: ImageKind,
    /// Relative to Farrier's own address, or absolute.
    pub url: String,
    /// The checksum of the file as it is served, like the size.
    pub sha256: String,
    pub size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageKind {
    Raw,
    Qcow2,
    Tar,
    /// A kind that a newer Farrier knows.
    #[serde(other)]
    Unknown,
}

impl ImageKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Tar => "tar",
            Self::Unknown => "unknown",
        }
    }
}

/// The progress of the work. The server reads the stage as a string, so that it can name an unknown
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report<S = Stage> {
    pub stage: S,
    /// Bytes of the image file.
    #[serde(default)]
    pub done: u64,
    #[serde(default)]
    pub total: u64,
    #[serde(default, rename = "said")]
    pub message: String,
    /// Set when the stage is `failed`. A reader treats an unknown code as none.
    #[serde(default, serialize_with = "write_code", deserialize_with = "read_code")]
    pub code: Option<DeploymentFailure>,
    /// The host keys of the new system, each as a line of a `.pub` file.
    #[serde(default)]
    pub host_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Writing,
    Installing,
    Installed,
    Failed,
}

impl Stage {
    pub const ALL: [Self; 4] = [Self::Writing, Self::Installing, Self::Installed, Self::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Writing => "writing",
            Self::Installing => "installing",
            Self::Installed => "installed",
            Self::Failed => "failed",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == name)
    }
}

/// The reason why the deploy environment failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeploymentFailure {
    ChecksumWrong,
    DiskTooSmall,
    DiskMissing,
    DiskAmbiguous,
    ImageBroken,
    InstallFailed,
}

impl DeploymentFailure {
    pub const ALL: [Self; 6] = [
        Self::ChecksumWrong,
        Self::DiskTooSmall,
        Self::DiskMissing,
        Self::DiskAmbiguous,
        Self::ImageBroken,
        Self::InstallFailed,
    ];

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

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == name)
    }
}

fn write_code<S: Serializer>(code: &Option<DeploymentFailure>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(code.map_or("", DeploymentFailure::as_str))
}

fn read_code<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DeploymentFailure>, D::Error> {
    Ok(DeploymentFailure::parse(&String::deserialize(from)?))
}

/// The reply to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportReply {
    #[serde(rename = "then")]
    pub next_action: DeploymentInstruction,
}

/// The next action of the deploy environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeploymentInstruction {
    #[serde(rename = "go-on")]
    Continue,
    /// Only after `installed` or `failed`.
    Reboot,
    Stop,
}
