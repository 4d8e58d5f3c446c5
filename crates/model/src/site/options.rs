//! Options of a site in MAAS beside the image: how disks are erased, tags, and commissioning.

use crate::refusal::Refusal;
use crate::text;
use serde::{Deserialize, Serialize};

/// Method by which MAAS erases disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EraseMethod {
    /// MAAS decides: up to 3.4 by the region's settings, from 3.5 on it writes zeroes.
    #[default]
    Default,
    /// The disk's own secure erase; zeroes where a disk has none.
    Secure,
    /// The disk's own secure erase; quick where a disk has none.
    SecureOrQuick,
    /// Only the beginning and the end of each disk.
    Quick,
    /// Zeroes over every disk, which takes hours.
    Zeroes,
}

impl EraseMethod {
    pub const ALL: [Self; 5] =
        [Self::Default, Self::Secure, Self::SecureOrQuick, Self::Quick, Self::Zeroes];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Secure => "secure",
            Self::SecureOrQuick => "secure_or_quick",
            Self::Quick => "quick",
            Self::Zeroes => "zeroes",
        }
    }

    /// Empty is the default.
    pub fn parse_field(name: &str, field: &str) -> Result<Self, Refusal> {
        if name.is_empty() {
            return Ok(Self::Default);
        }
        Self::ALL.into_iter().find(|one| one.as_str() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Refusal::invalid(field, format!("is {name:?}"), format!("write one of {names}"))
        })
    }
}

/// Options with which MAAS commissions the machines of a site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Commissioning {
    /// True if MAAS makes no account of its own in the BMC.
    pub skip_bmc_config: bool,
    /// The names or tags of the commissioning scripts; empty: all that apply. `none` alone: none.
    pub scripts: Vec<String>,
    /// The same for the tests.
    pub tests: Vec<String>,
}

impl Commissioning {
    pub(super) fn check(&self, field: &str) -> Result<(), Refusal> {
        for (name, names) in [("scripts", &self.scripts), ("tests", &self.tests)] {
            check_words(&format!("{field}.{name}"), names, is_script, "names without commas")?;
        }
        Ok(())
    }
}

/// The most tags, scripts or tests that a site names.
const MAX_WORDS: usize = 64;

/// Refuses tags that MAAS does not take.
pub(super) fn check_tags(field: &str, tags: &[String]) -> Result<(), Refusal> {
    check_words(field, tags, is_tag, "letters, digits, - and _")
}

fn check_words(
    field: &str,
    words: &[String],
    fits: fn(&str) -> bool,
    instead: &str,
) -> Result<(), Refusal> {
    if words.len() > MAX_WORDS {
        let problem = format!("has {} entries", words.len());
        return Err(Refusal::invalid(field, problem, format!("use at most {MAX_WORDS}")));
    }
    for word in words {
        text::check_short(field, word)?;
        if !fits(word) {
            return Err(Refusal::invalid(field, format!("has {word:?}"), format!("use {instead}")));
        }
    }
    Ok(())
}

/// True if MAAS accepts the name as a tag.
fn is_tag(name: &str) -> bool {
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !name.is_empty() && name.chars().all(fit)
}

/// MAAS takes scripts as one list, separated by commas.
fn is_script(name: &str) -> bool {
    !name.is_empty() && !name.contains([',', ' '])
}
