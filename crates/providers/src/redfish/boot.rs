//! The boot override: what the machine boots from next.
//!
//! An override is set and then read back, because devices accept values that they do not keep, and
//! some need a moment. The caller gets the value as it was read: several devices show `Continuous`
//! for an override that applies once, and the client does not decide whether that matters.

use super::classification::unconfirmed;
use super::decode::{JsonNode, Resource};
use super::system::System;
use model::fault::{Fault, FaultCode, Result};
use serde_json::{Map, Value, json};

/// The number of times that the override is read back.
const MAX_READS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BootSource {
    /// No override: the machine's own boot order.
    None,
    Pxe,
    Hdd,
    Cd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BootSpan {
    Disabled,
    Once,
    Continuous,
}

/// The override as the device shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootOverride {
    /// None for a target that Farrier never requests; `target` has its name.
    pub source: Option<BootSource>,
    pub target: String,
    pub span: Option<BootSpan>,
    /// `UEFI` or `Legacy`, if the device shows it.
    pub mode: Option<String>,
}

impl BootSource {
    pub const ALL: [Self; 4] = [Self::None, Self::Pxe, Self::Hdd, Self::Cd];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Pxe => "Pxe",
            Self::Hdd => "Hdd",
            Self::Cd => "Cd",
        }
    }
}

impl BootSpan {
    pub const ALL: [Self; 3] = [Self::Disabled, Self::Once, Self::Continuous];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::Once => "Once",
            Self::Continuous => "Continuous",
        }
    }
}

impl BootOverride {
    /// True if the machine would boot from this source, once or always.
    pub fn boots_from(&self, source: BootSource) -> bool {
        let off = self.span == Some(BootSpan::Disabled);
        match source {
            BootSource::None => off || self.source == Some(BootSource::None),
            BootSource::Pxe | BootSource::Hdd | BootSource::Cd => {
                !off && self.source == Some(source)
            }
        }
    }
}

impl System {
    pub async fn boot(&self) -> Result<BootOverride> {
        let doc = self.read().await?;
        self.parse_boot_override(&doc)
    }

    /// The source for booting from disk: no override, or the disk if `None` is not allowed.
    pub async fn disk_boot_source(&self) -> Result<BootSource> {
        let doc = self.read().await?;
        let listed =
            doc.root().get("Boot").texts("BootSourceOverrideTarget@Redfish.AllowableValues");
        let none = allows(&listed, BootSource::None.as_str());
        Ok(if none || !allows(&listed, BootSource::Hdd.as_str()) {
            BootSource::None
        } else {
            BootSource::Hdd
        })
    }

    /// Sets the override and reads it back. With `BootSource::None` the span does not matter.
    pub async fn set_boot(&self, source: BootSource, span: BootSpan) -> Result<BootOverride> {
        let doc = self.read().await?;
        let body = self.boot_request(doc.root().get("Boot"), source, span)?;
        self.link.patch(&doc, &body).await?;
        self.confirm_boot(source).await.map_err(unconfirmed)
    }

    /// Reads until the override is as it was set.
    async fn confirm_boot(&self, source: BootSource) -> Result<BootOverride> {
        let mut observed = self.boot().await?;
        for _ in 1..MAX_READS {
            if observed.boots_from(source) {
                break;
            }
            tokio::time::sleep(self.poll_interval).await;
            observed = self.boot().await?;
        }
        if observed.boots_from(source) {
            return Ok(observed);
        }
        let message = format!(
            "{} took {} for the next boot of {} and shows {} ({})",
            self.link.endpoint(),
            source.as_str(),
            self.path,
            observed.target,
            observed.span.map_or("no span", BootSpan::as_str),
        );
        Err(Fault::new(FaultCode::ReadBackDiffers, message))
    }

    /// The request body for an override that the device lists as allowed.
    fn boot_request(
        &self,
        boot: JsonNode<'_>,
        source: BootSource,
        span: BootSpan,
    ) -> Result<Value> {
        let sources = boot.texts("BootSourceOverrideTarget@Redfish.AllowableValues");
        let spans = boot.texts("BootSourceOverrideEnabled@Redfish.AllowableValues");
        let span = if source == BootSource::None { BootSpan::Disabled } else { span };
        let name = self.target_name(source, &sources);
        // An override can be disabled without naming a source; not every device lists `None`.
        let named = source != BootSource::None || allows(&sources, name);
        if named && !allows(&sources, name) {
            let what = format!("boot source {name}, only {},", sources.join(", "));
            return Err(self.lacks(&what));
        }
        if !allows(&spans, span.as_str()) {
            let what = format!("boot override {}, only {},", span.as_str(), spans.join(", "));
            return Err(self.lacks(&what));
        }
        let mut fields = Map::new();
        if named {
            fields.insert("BootSourceOverrideTarget".into(), json!(name));
        }
        fields.insert("BootSourceOverrideEnabled".into(), json!(span.as_str()));
        if self.quirks.send_boot_mode()
            && let Some(mode) = boot.text("BootSourceOverrideMode")
        {
            fields.insert("BootSourceOverrideMode".into(), json!(mode));
        }
        Ok(json!({ "Boot": fields }))
    }

    fn target_name(&self, source: BootSource, offered: &[String]) -> &'static str {
        let cd = self.quirks.cd().filter(|_| source == BootSource::Cd);
        cd.filter(|cd| offered.iter().any(|name| name == cd)).unwrap_or(source.as_str())
    }

    fn parse_boot_override(&self, doc: &Resource) -> Result<BootOverride> {
        let boot = doc.root().get("Boot");
        let name =
            boot.text("BootSourceOverrideTarget").ok_or_else(|| self.lacks("boot override"))?;
        let span = boot.text("BootSourceOverrideEnabled");
        let is_cd = self.quirks.cd() == Some(name.as_str());
        let source = BootSource::ALL.into_iter().find(|source| {
            source.as_str().eq_ignore_ascii_case(&name) || (is_cd && *source == BootSource::Cd)
        });
        Ok(BootOverride {
            source,
            target: name,
            span: span.and_then(|name| {
                BootSpan::ALL.into_iter().find(|span| span.as_str().eq_ignore_ascii_case(&name))
            }),
            mode: boot.text("BootSourceOverrideMode"),
        })
    }
}

/// A device that lists no values is assumed to allow all.
fn allows(listed: &[String], name: &str) -> bool {
    listed.is_empty() || listed.iter().any(|one| one == name)
}
