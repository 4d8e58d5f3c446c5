//! The history of a machine: the events of MAAS and the output of its scripts and installers.
//! Events are read in a bounded number of pages; of a log only the end is kept, where the error is.

use super::Maas;
use super::call::Call;
use super::classify::CallTarget;
use super::hardware::nullable;
use crate::http_client::form::encode;
use crate::secret_mask::SecretMask;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::fault::Result;
use serde::{Deserialize, Deserializer};

/// Events per page. MAAS allows at most a thousand.
const PAGE: usize = 200;
/// The most pages that one query reads.
pub const MAX_EVENT_PAGES: usize = 10;
/// MAAS's name for the installer's own log. The other result is an archive of everything.
const INSTALL_LOG: &str = "/tmp/install.log";
/// The bytes at the end of a script's output that are kept.
const MAX_OUTPUT_BYTES: usize = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Event {
    pub id: i64,
    /// The system id of the machine.
    #[serde(default, deserialize_with = "nullable")]
    pub node: String,
    #[serde(default, deserialize_with = "nullable")]
    pub level: String,
    /// As MAAS writes it: `Mon, 16 Nov. 2026 10:00:00`.
    #[serde(default, deserialize_with = "nullable")]
    pub created: String,
    #[serde(rename = "type", default, deserialize_with = "nullable")]
    pub kind: String,
    #[serde(default, deserialize_with = "nullable")]
    pub description: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventQuery {
    pub system_id: String,
    /// Only events after this id. Without it, the newest ones.
    pub after: Option<i64>,
    /// The lowest level, `DEBUG` to `CRITICAL`; the default of MAAS is `INFO`.
    pub level: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Events {
    /// Oldest first.
    pub events: Vec<Event>,
    /// More exist: newer ones if `after` was given, otherwise older ones.
    pub more: bool,
}

#[derive(Deserialize)]
struct EventPage {
    #[serde(default, deserialize_with = "nullable")]
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    Commissioning,
    Testing,
    Installation,
}

impl ResultKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Commissioning => "commissioning",
            Self::Testing => "testing",
            Self::Installation => "installation",
        }
    }
}

/// One execution of all scripts of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResultSet {
    pub id: i64,
    #[serde(default, deserialize_with = "nullable")]
    pub results: Vec<ScriptResult>,
}

/// The result of one script.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ScriptResult {
    pub name: String,
    /// `Passed`, `Failed`, `Running` …
    #[serde(default, deserialize_with = "nullable")]
    pub status_name: String,
    pub exit_status: Option<i64>,
    /// The time when it began, as MAAS writes it. `None`: it never did.
    pub started: Option<String>,
    /// An operator has told MAAS to ignore a failure of it.
    #[serde(default, deserialize_with = "nullable")]
    pub suppressed: bool,
    /// The end of its output.
    #[serde(default, deserialize_with = "written")]
    pub output: String,
}

impl ScriptResult {
    /// True if it ran and failed: by its exit status, by its time limit, or in its preparation.
    /// MAAS also shows scripts as failed that never began, because the machine failed before them.
    pub fn failed(&self) -> bool {
        let name = &self.status_name;
        let failed =
            name.starts_with("Failed") || matches!(name.as_str(), "Timed out" | "Degraded");
        let began = self.started.is_some() || self.exit_status.is_some();
        failed && began && !self.suppressed
    }
}

impl Maas {
    /// The events of a machine, read page by page.
    pub async fn events(&self, query: &EventQuery) -> Result<Events> {
        let mut found: Vec<Event> = Vec::new();
        for _ in 0..MAX_EVENT_PAGES {
            let page = self.event_page(query, &found).await?;
            let last = page.len() < PAGE;
            found.extend(page);
            found.sort_by_key(|event| event.id);
            found.dedup_by_key(|event| event.id);
            if last {
                return Ok(Events { events: found, more: false });
            }
        }
        Ok(Events { events: found, more: true })
    }

    /// The events of a machine from the last one of this type on, oldest first. Empty if none is
    /// found in the pages that one query reads.
    pub async fn events_since(&self, system_id: &str, kind: &str) -> Result<Vec<Event>> {
        let query = EventQuery { system_id: system_id.to_owned(), ..EventQuery::default() };
        let mut found: Vec<Event> = Vec::new();
        for _ in 0..MAX_EVENT_PAGES {
            let page = self.event_page(&query, &found).await?;
            let last = page.len() < PAGE;
            found.extend(page);
            found.sort_by_key(|event| event.id);
            if let Some(at) = found.iter().rposition(|event| event.kind == kind) {
                return Ok(found.split_off(at));
            }
            if last {
                break;
            }
        }
        Ok(Vec::new())
    }

    async fn event_page(&self, query: &EventQuery, found: &[Event]) -> Result<Vec<Event>> {
        let call = Call::get("events/")
            .op("query")
            .query("id", &query.system_id)
            .query("limit", PAGE)
            .query("level", query.level.as_deref().unwrap_or("INFO"));
        let call = match (query.after, found.first(), found.last()) {
            (Some(after), _, None) => call.query("after", after),
            (Some(_), _, Some(newest)) => call.query("after", newest.id),
            (None, Some(oldest), _) => call.query("before", oldest.id),
            (None, None, _) => call,
        };
        Ok(self.read::<EventPage>(call).await?.events)
    }

    /// The results of all scripts of a kind, one set per execution, newest last.
    pub async fn results(&self, system_id: &str, kind: ResultKind) -> Result<Vec<ResultSet>> {
        let call = Call::get(format!("nodes/{}/results/", encode(system_id)))
            .query("type", kind.as_str())
            .query("include_output", true)
            .about(CallTarget::Machine);
        let mut sets: Vec<ResultSet> = self.read(call).await?;
        sets.sort_by_key(|set| set.id);
        // Outputs come in base64, so they are masked once they are decoded, and cut after that.
        let mask = SecretMask::of(self.inner.key.secrets()).with(&self.mask);
        for result in sets.iter_mut().flat_map(|set| &mut set.results) {
            result.output = end_of(&mask.text(&result.output)).to_owned();
        }
        Ok(sets)
    }

    /// The end of the log of the last installation. `None` when nothing was installed yet.
    pub async fn installation_log(&self, system_id: &str) -> Result<Option<String>> {
        let newest = self.results(system_id, ResultKind::Installation).await?.pop();
        let Some(set) = newest else { return Ok(None) };
        let log = set.results.into_iter().find(|result| result.name == INSTALL_LOG);
        Ok(log.map(|log| log.output))
    }
}

/// The end of an output, where the error is.
fn end_of(output: &str) -> &str {
    let mut from = output.len().saturating_sub(MAX_OUTPUT_BYTES);
    while !output.is_char_boundary(from) {
        from += 1;
    }
    &output[from..]
}

fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let encoded = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    let bytes = STANDARD.decode(encoded.trim()).map_err(serde::de::Error::custom)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_is_cut_to_its_end_at_a_character() {
        assert_eq!(end_of("short"), "short");
        let long = format!("{}why", "x".repeat(MAX_OUTPUT_BYTES));
        assert_eq!(end_of(&long), &long[3..]);
        // The cut is in the middle of the first character.
        let accented = format!("é{}", "x".repeat(MAX_OUTPUT_BYTES - 1));
        assert_eq!(end_of(&accented), "x".repeat(MAX_OUTPUT_BYTES - 1));
    }
}
