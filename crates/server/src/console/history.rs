//! The history of an object: its transitions, newest first, in pages.

use super::badge::event_state_badge;
use super::clock::{format_utc, relative_time};
use super::text::clean_text;
use engine::Engine;
use maud::{Markup, html};
use model::time::Timestamp;
use store::{Event, Result, StoreError};

const PAGE: i64 = 50;

pub(super) struct History {
    /// Newest first.
    events: Vec<Event>,
    /// The next page has the versions below this one; none: this is the last page.
    older: Option<i64>,
    newest: bool,
}

/// The newest transitions of an object at `version`, or those before the version `before`.
pub(super) async fn read_history(
    engine: &Engine,
    id: &str,
    version: i64,
    before: Option<i64>,
) -> Result<History> {
    let newest = before.is_none_or(|before| before > version);
    let end = before.unwrap_or(i64::MAX).min(version.saturating_add(1));
    // Versions increase by one, so the page begins `PAGE` versions before `end`.
    let after = end.saturating_sub(PAGE + 1).max(0);
    let mut events = match engine.history(id, after, PAGE).await {
        Ok(events) => events,
        // The history has expired; the object still exists.
        Err(StoreError::Refused(_)) => Vec::new(),
        Err(error) => return Err(error),
    };
    events.retain(|event| event.version < end);
    // Retention deletes the oldest events first: when the page is not full, there are none before
    // it.
    let full = events.first().is_some_and(|first| first.version == after + 1);
    events.reverse();
    Ok(History { events, older: (after > 0 && full).then_some(after + 1), newest })
}

pub(super) fn before(requested: &super::QueryParams) -> Option<i64> {
    requested.get("before").and_then(|version| version.parse().ok()).filter(|version| *version > 0)
}

impl History {
    pub fn draw(&self, address: &str, now: Timestamp) -> Markup {
        html! {
            section #history data-region aria-labelledby="history-title" {
                h2 #history-title { "History" span.dim { " newest first" } }
                div.scroll {
                    table {
                        thead { tr {
                            th scope="col" { "When" } th.num scope="col" { "Version" }
                            th scope="col" { "State" } th scope="col" { "Cause" }
                            th scope="col" { "Actor" } th scope="col" { "Message" }
                            th scope="col" { "Decided by" }
                        } }
                        tbody {
                            @for event in &self.events { (row(event, now)) }
                            @if self.events.is_empty() { tr { td colspan="7" { "Nothing is recorded." } } }
                        }
                    }
                }
                nav.pages aria-label="History" {
                    @if !self.newest { a href={ (address) "#history" } { "« newest" } }
                    @if let Some(older) = self.older {
                        a href={ (address) "?before=" (older) "#history" } { "more: older than version " (older) " »" }
                    }
                }
            }
        }
    }
}

fn row(event: &Event, now: Timestamp) -> Markup {
    html! {
        tr {
            td.when { (format_utc(event.ts)) span.dim { " · " (relative_time(event.ts, now)) } }
            td.num { (event.version) }
            td { (event_state_badge(&event.state)) }
            td { (clean_text(&event.cause)) }
            td { (clean_text(&event.actor)) }
            td.words { (clean_text(&event.message)) }
            td { code.dim { (clean_text(&event.decided_by)) } }
        }
    }
}
