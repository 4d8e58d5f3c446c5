//! The options of a drain. By default it is as careful as `kubectl drain`: a pod that no controller
//! replaces, or whose emptyDir data would be lost, stops it.

use crate::plan::{
    DRAIN_EMPTYDIR, DRAIN_GRACE_SECONDS, DRAIN_SELECTOR, DRAIN_UNMANAGED_PODS, MAX_TIMEOUT_SECONDS,
    Params,
};
use crate::refusal::Refusal;
use crate::text;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainOptions {
    /// Evict pods that no controller replaces.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unmanaged_pods: bool,
    /// Evict pods with emptyDir volumes, whose data is lost.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub emptydir: bool,
    /// The grace period of evicted pods. None means their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
    /// Evict only the pods that this label selector matches. Empty means all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

impl DrainOptions {
    /// Every pod goes. For nodes that are taken out of service with all that is on them.
    pub const ALL_PODS: Self =
        Self { unmanaged_pods: true, emptydir: true, grace_seconds: None, selector: String::new() };

    /// The meaning of a stored drain without options.
    pub(super) fn all_pods() -> Self {
        Self::ALL_PODS
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// These options, with what they leave open from others.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            unmanaged_pods: self.unmanaged_pods || other.unmanaged_pods,
            emptydir: self.emptydir || other.emptydir,
            grace_seconds: self.grace_seconds.or(other.grace_seconds),
            selector: match self.selector.as_str() {
                "" => other.selector.clone(),
                own => own.into(),
            },
        }
    }

    /// These options as parameters of a run.
    pub fn params(&self) -> Params {
        let flag = |name: &str, set: bool| set.then(|| (name.to_owned(), "true".to_owned()));
        let grace = self.grace_seconds.map(|s| (DRAIN_GRACE_SECONDS.to_owned(), s.to_string()));
        let selector =
            (!self.selector.is_empty()).then(|| (DRAIN_SELECTOR.to_owned(), self.selector.clone()));
        let flags = [
            flag(DRAIN_UNMANAGED_PODS, self.unmanaged_pods),
            flag(DRAIN_EMPTYDIR, self.emptydir),
            grace,
            selector,
        ];
        flags.into_iter().flatten().collect()
    }

    /// These options as flags of `farrier enter-maintenance --drain`, each after a space.
    pub fn flags(&self) -> String {
        let mut flags = String::new();
        if self.unmanaged_pods {
            flags.push_str(" --drain-unmanaged-pods");
        }
        if self.emptydir {
            flags.push_str(" --drain-emptydir");
        }
        if let Some(seconds) = self.grace_seconds {
            flags.push_str(&format!(" --drain-grace {seconds}s"));
        }
        if !self.selector.is_empty() {
            flags.push_str(&format!(" --drain-selector {}", text::shell_word(&self.selector)));
        }
        flags
    }

    /// `at` names the field in a refusal.
    pub fn check(&self, at: impl Fn(&str) -> String) -> Result<(), Refusal> {
        text::check_short(&at("selector"), &self.selector)?;
        match self.grace_seconds {
            Some(seconds) if seconds > MAX_TIMEOUT_SECONDS => Err(Refusal::invalid(
                &at("grace_seconds"),
                format!("is {seconds}"),
                format!("use at most {MAX_TIMEOUT_SECONDS}"),
            )),
            Some(_) | None => Ok(()),
        }
    }
}
