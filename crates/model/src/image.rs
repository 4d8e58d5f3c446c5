//! Images: the operating systems that can be written to a machine or booted, by name.
//!
//! An image never changes after it was added to the catalogue. Its files are identified by their
//! checksums, and the deploy environment verifies these when it writes a file to a disk.

use crate::filter::FilterValues;
use crate::refusal::Refusal;
use crate::text;
use crate::time::Timestamp;
use core::net::{IpAddr, SocketAddr};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    pub body: ImageContent,
    pub created_at: Timestamp,
}

/// The content of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ImageContent {
    /// A disk image, written by the deploy environment.
    Disk { format: DiskFormat, file: Artifact },
    /// A kernel that is booted over the network, such as a custom installer.
    Kernel { kernel: Artifact, initrd: Option<Artifact>, cmdline: String },
    /// An ISO that the BMC attaches as virtual media.
    Iso { file: Artifact },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFormat {
    Raw,
    Qcow2,
    /// The files of a root file system.
    Tar,
}

impl DiskFormat {
    pub const ALL: [DiskFormat; 3] = [Self::Raw, Self::Qcow2, Self::Tar];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Tar => "tar",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == name)
    }
}

/// A file, identified by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// In lower-case hexadecimal.
    pub sha256: String,
    pub size: u64,
    /// The address from which a machine downloads it. None: from Farrier, which stores it.
    pub url: Option<String>,
}

const SHA256_DIGITS: usize = 64;
const MAX_CMDLINE: usize = 2_048;
/// The placeholders in a kernel's command line.
pub const PLACEHOLDERS: [&str; 5] = ["{url}", "{token}", "{mac}", "{hostname}", "{machine}"];

/// The kinds of images.
pub const IMAGE_KINDS: &[&str] = &["raw", "qcow2", "tar", "kernel", "iso"];

impl FilterValues for Image {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "name" => vec![self.name.clone()],
            "kind" => vec![self.body.kind().into()],
            _ => Vec::new(),
        }
    }
}

impl ImageContent {
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Disk { format, .. } => format.as_str(),
            Self::Kernel { .. } => "kernel",
            Self::Iso { .. } => "iso",
        }
    }

    pub fn artifacts(&self) -> Vec<&Artifact> {
        match self {
            Self::Disk { file, .. } | Self::Iso { file } => vec![file],
            Self::Kernel { kernel, initrd, .. } => {
                std::iter::once(kernel).chain(initrd.as_ref()).collect()
            }
        }
    }

    /// True if the booted system reports its progress to Farrier. If not, Farrier only waits for
    /// it.
    pub fn reports_progress(&self) -> bool {
        match self {
            Self::Disk { .. } => true,
            Self::Kernel { cmdline, .. } => cmdline.contains("{token}"),
            Self::Iso { .. } => false,
        }
    }
}

impl Image {
    pub fn checked(self) -> Result<Self, Refusal> {
        text::check_name("image.name", &self.name)?;
        match &self.body {
            ImageContent::Disk { file, .. } | ImageContent::Iso { file } => {
                file.check("image.file")?
            }
            ImageContent::Kernel { kernel, initrd, cmdline } => {
                kernel.check("image.kernel")?;
                if let Some(initrd) = initrd {
                    initrd.check("image.initrd")?;
                }
                check_cmdline(cmdline)?;
                if kernel.url.is_some() || initrd.as_ref().is_some_and(|one| one.url.is_some()) {
                    return Err(Refusal::invalid(
                        "image.kernel",
                        "is fetched from elsewhere",
                        "upload it, because its checksum is not checked there",
                    ));
                }
            }
        }
        Ok(self)
    }
}

impl Artifact {
    fn check(&self, field: &str) -> Result<(), Refusal> {
        sha256(&format!("{field}.sha256"), &self.sha256)?;
        if self.size == 0 {
            return Err(Refusal::invalid(&format!("{field}.size"), "is 0", "use its real size"));
        }
        let Some(url) = &self.url else { return Ok(()) };
        let field = format!("{field}.url");
        text::check_short(&field, url)?;
        match is_plain_http_url(url) {
            true => Ok(()),
            false => Err(Refusal::invalid(
                &field,
                format!("is {url:?}"),
                "write http://10.0.0.2/…, with an IP address: the deploy environment speaks no TLS \
                 and asks no name server, and the checksum is what it trusts",
            )),
        }
    }
}

/// Checks text that becomes a part of a line in an iPXE script. iPXE expands `${…}`, and takes the
/// words `||`, `&&`, `;` and `#` as the end of a command, so the characters are a closed set.
pub fn check_boot_words(field: &str, text: &str) -> Result<(), Refusal> {
    const INSTEAD: &str = "use words of letters, digits and = . , : ; / _ - + @ % ? ~ * [ ] alone";
    let fits = |c: char| c.is_ascii_alphanumeric() || " =.,:;/_-+@%?~*[]".contains(c);
    if let Some(wrong) = text.chars().find(|c| !fits(*c)) {
        return Err(Refusal::invalid(field, format!("has {wrong:?}"), INSTEAD));
    }
    match text.split(' ').any(|word| word == ";") {
        true => Err(Refusal::invalid(field, "has the word \";\"", INSTEAD)),
        false => Ok(()),
    }
}

/// True if a machine without TLS and DNS can download from this URL.
pub fn is_plain_http_url(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    if rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return false;
    }
    let position = rest.split('/').next().unwrap_or_default();
    position.parse::<SocketAddr>().is_ok()
        || position.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Checks a checksum in the format of `sha256sum`.
pub fn sha256(field: &str, value: &str) -> Result<(), Refusal> {
    let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if value.len() == SHA256_DIGITS && value.chars().all(digit) {
        return Ok(());
    }
    let instead = "write the 64 digits that sha256sum prints";
    Err(Refusal::invalid(field, format!("{value:?} is no SHA-256 checksum"), instead))
}

fn check_cmdline(cmdline: &str) -> Result<(), Refusal> {
    const FIELD: &str = "image.cmdline";
    if cmdline.len() > MAX_CMDLINE {
        let problem = format!("has {} bytes", cmdline.len());
        return Err(Refusal::invalid(FIELD, problem, format!("use at most {MAX_CMDLINE}")));
    }
    let filled =
        |text: &str| PLACEHOLDERS.iter().fold(text.to_string(), |text, one| text.replace(one, "x"));
    let unknown = cmdline.split_whitespace().find(|word| filled(word).contains(['{', '}']));
    match unknown {
        None => check_boot_words(FIELD, &filled(cmdline)),
        Some(name) => Err(Refusal::invalid(
            FIELD,
            format!("has {name:?}"),
            format!("what is filled in is {}", PLACEHOLDERS.join(", ")),
        )),
    }
}
