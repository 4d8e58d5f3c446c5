//! The boot override: what the machine boots from next.
//!
//! An override is set and then read back, because devices accept values that they do not keep, and
//! some need a moment. The caller gets the value as it was read: several devices show `Continuous`
//! for an override that applies once, and the client does not decide whether that matters.

use super::decode::{Doc, Part};
use super::system::System;
use super::verdict::unconfirmed;
use model::fault::{Code, Fault};
use serde_json::{Map, Value, json};

/// How often the override is read back.
const MAX_LOOKS: usize = 5;

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
    pub word: String,
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
    /// Whether the machine would boot from this source, once or always.
    pub fn leads_to(&self, source: BootSource) -> bool {
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
    pub async fn boot(&self) -> Result<BootOverride, Fault> {
        let doc = self.read().await?;
        self.seen(&doc)
    }

    /// The source for booting from disk: no override, or the disk if `None` is not allowed.
    pub async fn back_to_disk(&self) -> Result<BootSource, Fault> {
        let doc = self.read().await?;
        let listed =
            doc.root().get("Boot").texts("BootSourceOverrideTarget@Redfish.AllowableValues");
        let none = offers(&listed, BootSource::None.as_str());
        Ok(if none || !offers(&listed, BootSource::Hdd.as_str()) {
            BootSource::None
        } else {
            BootSource::Hdd
        })
    }

    /// Sets the override and reads it back. With `BootSource::None` the span does not matter.
    pub async fn set_boot(
        &self,
        source: BootSource,
        span: BootSpan,
    ) -> Result<BootOverride, Fault> {
        let doc = self.read().await?;
        let body = self.wish(doc.root().get("Boot"), source, span)?;
        self.link.patch(&doc, &body).await?;
        self.see_boot(source).await.map_err(unconfirmed)
    }

    /// Reads until the override is as it was set.
    async fn see_boot(&self, source: BootSource) -> Result<BootOverride, Fault> {
        let mut seen = self.boot().await?;
        for _ in 1..MAX_LOOKS {
            if seen.leads_to(source) {
                break;
            }
            tokio::time::sleep(self.poll_interval).await;
            seen = self.boot().await?;
        }
        if seen.leads_to(source) {
            return Ok(seen);
        }
        let said = format!(
            "{} took {} for the next boot of {} and shows {} ({})",
            self.link.endpoint(),
            source.as_str(),
            self.path,
            seen.word,
            seen.span.map_or("no span", BootSpan::as_str),
        );
        Err(Fault::new(Code::ReadBackDiffers, said))
    }

    /// The request body for an override that the device lists as allowed.
    fn wish(&self, boot: Part<'_>, source: BootSource, span: BootSpan) -> Result<Value, Fault> {
        let sources = boot.texts("BootSourceOverrideTarget@Redfish.AllowableValues");
        let spans = boot.texts("BootSourceOverrideEnabled@Redfish.AllowableValues");
        let span = if source == BootSource::None { BootSpan::Disabled } else { span };
        let word = self.word(source, &sources);
        // An override can be disabled without naming a source; not every device lists `None`.
        let named = source != BootSource::None || offers(&sources, word);
        if named && !offers(&sources, word) {
            let what = format!("boot source {word}, only {},", sources.join(", "));
            return Err(self.lacks(&what));
        }
        if !offers(&spans, span.as_str()) {
            let what = format!("boot override {}, only {},", span.as_str(), spans.join(", "));
            return Err(self.lacks(&what));
        }
        let mut fields = Map::new();
        if named {
            fields.insert("BootSourceOverrideTarget".into(), json!(word));
        }
        fields.insert("BootSourceOverrideEnabled".into(), json!(span.as_str()));
        if self.quirks.send_boot_mode()
            && let Some(mode) = boot.text("BootSourceOverrideMode")
        {
            fields.insert("BootSourceOverrideMode".into(), json!(mode));
        }
        Ok(json!({ "Boot": fields }))
    }

    fn word(&self, source: BootSource, offered: &[String]) -> &'static str {
        match (source, self.quirks.cd()) {
            (BootSource::Cd, Some(cd)) if offered.iter().any(|word| word == cd) => cd,
            (source, _) => source.as_str(),
        }
    }

    fn seen(&self, doc: &Doc) -> Result<BootOverride, Fault> {
        let boot = doc.root().get("Boot");
        let word =
            boot.text("BootSourceOverrideTarget").ok_or_else(|| self.lacks("boot override"))?;
        let span = boot.text("BootSourceOverrideEnabled");
        let is_cd = self.quirks.cd() == Some(word.as_str());
        let source = BootSource::ALL.into_iter().find(|source| {
            source.as_str().eq_ignore_ascii_case(&word) || (is_cd && *source == BootSource::Cd)
        });
        Ok(BootOverride {
            source,
            word,
            span: span.and_then(|word| {
                BootSpan::ALL.into_iter().find(|span| span.as_str().eq_ignore_ascii_case(&word))
            }),
            mode: boot.text("BootSourceOverrideMode"),
        })
    }
}

/// A device that lists no values is assumed to allow all.
fn offers(listed: &[String], word: &str) -> bool {
    listed.is_empty() || listed.iter().any(|one| one == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_leads_where_it_says_unless_it_is_off() {
        let shown = |source, span| BootOverride {
            source,
            word: String::new(),
            span: Some(span),
            mode: None,
        };
        for source in [BootSource::Pxe, BootSource::Hdd, BootSource::Cd] {
            assert!(shown(Some(source), BootSpan::Once).leads_to(source));
            assert!(shown(Some(source), BootSpan::Continuous).leads_to(source));
            assert!(!shown(Some(source), BootSpan::Disabled).leads_to(source));
            assert!(shown(Some(source), BootSpan::Disabled).leads_to(BootSource::None));
            assert!(!shown(Some(source), BootSpan::Once).leads_to(BootSource::None));
        }
        assert!(shown(Some(BootSource::None), BootSpan::Once).leads_to(BootSource::None));
        assert!(!shown(None, BootSpan::Once).leads_to(BootSource::Pxe));
    }
}
