//! The event logs of a BMC.
//!
//! Devices have several logs with thousands of entries, expanded or as links, in any order. Only
//! event logs are read, up to a limit; the newest entries of all logs are returned, newest first.

use super::client::{MAX_MEMBERS, Skipped};
use super::decode::{Entry, JsonNode, Resource, last_piece, shown};
use super::system::System;
use model::fault::Result;
use model::time::Timestamp;

/// The most entries that one call returns.
pub const MAX_LOG_ENTRIES: usize = 500;
/// The most managers of one System whose logs are read.
const MAX_MANAGERS: usize = 8;
/// The ids of event logs, in lower case. Other logs hold boot codes, dumps or traces of the BMC.
const EVENT_LOGS: [&str; 7] = ["sel", "iel", "iml", "log1", "eventlog", "event", "log"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub id: String,
    /// The id of the log.
    pub log: String,
    pub at: Option<Timestamp>,
    pub severity: Option<String>,
    pub message: String,
}

impl System {
    /// The newest entries, newest first: at most `count` and at most [`MAX_LOG_ENTRIES`].
    pub async fn log(&self, count: usize) -> Result<Vec<LogEntry>> {
        let count = count.min(MAX_LOG_ENTRIES);
        let mut skipped = Skipped::new();
        let mut entries = Vec::new();
        for service in self.log_services(&mut skipped).await? {
            if let Some(path) = service.root().link("Entries") {
                entries.extend(self.log_entries(&service, &path, count, &mut skipped).await?);
            }
        }
        entries.sort_by(|a: &LogEntry, b| newest_first(a, b));
        entries.truncate(count);
        Ok(entries)
    }

    /// The names of the event logs; a fault if there is none.
    pub async fn logs(&self) -> Result<Vec<String>> {
        let services = self.log_services(&mut Skipped::new()).await?;
        match services.is_empty() {
            true => Err(self.lacks("event log")),
            false => Ok(services.iter().map(|service| service.name().to_owned()).collect()),
        }
    }

    /// The event logs of the System, or of its managers if it has none.
    async fn log_services(&self, skipped: &mut Skipped) -> Result<Vec<Resource>> {
        let system = self.read().await?;
        let links = system.root().get("Links");
        let managers = links.list("ManagedBy").filter_map(JsonNode::as_link).take(MAX_MANAGERS);
        let managers: Vec<String> = managers.collect();
        let own = self.event_logs(&system, skipped).await?;
        if !own.is_empty() {
            return Ok(own);
        }
        let mut logs = Vec::new();
        for manager in managers {
            if let Some(manager) = self.link.find_or_skip(&manager, skipped).await? {
                logs.extend(self.event_logs(&manager, skipped).await?);
            }
        }
        Ok(logs)
    }

    async fn event_logs(&self, owner: &Resource, skipped: &mut Skipped) -> Result<Vec<Resource>> {
        let Some(path) = owner.root().link("LogServices") else { return Ok(Vec::new()) };
        let mut services = self.link.members(&path, MAX_MEMBERS, skipped).await?;
        services.retain(|service| is_event_log(service.name()));
        Ok(services)
    }

    async fn log_entries(
        &self,
        service: &Resource,
        path: &str,
        count: usize,
        skipped: &mut Skipped,
    ) -> Result<Vec<LogEntry>> {
        let mut entries = Vec::new();
        let mut links = Vec::new();
        for entry in self.link.entries(path, MAX_MEMBERS, skipped).await? {
            match entry {
                Entry::Expanded(doc) => entries.extend(read(service.name(), &doc)),
                Entry::Link(link) => links.push(link),
            }
        }
        // A link says nothing about the entry's age except its number.
        links.sort_by_key(|link| std::cmp::Reverse(number(last_piece(link))));
        for link in links.iter().take(count) {
            let doc = self.link.find_or_skip(link, skipped).await?;
            entries.extend(doc.and_then(|doc| read(service.name(), &doc)));
        }
        Ok(entries)
    }
}

fn is_event_log(id: &str) -> bool {
    let id = id.to_ascii_lowercase();
    EVENT_LOGS.iter().any(|name| id == *name)
}

fn read(log: &str, doc: &Resource) -> Option<LogEntry> {
    let part = doc.root();
    let message = part.text("Message").or_else(|| part.text("MessageId"))?;
    Some(LogEntry {
        id: part.text("Id").unwrap_or_else(|| doc.name().to_owned()),
        log: log.to_owned(),
        at: part.time("Created").or_else(|| part.time("EventTimestamp")),
        severity: part.text("Severity"),
        message: shown(&message),
    })
}

/// By time, entries without one last. Within a second, the higher number is newer.
fn newest_first(a: &LogEntry, b: &LogEntry) -> std::cmp::Ordering {
    b.at.cmp(&a.at).then_with(|| number(&b.id).cmp(&number(&a.id)))
}

fn number(id: &str) -> u64 {
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_comes_first() {
        let entry = |id: &str, at: Option<i64>| LogEntry {
            id: id.into(),
            log: "Sel".into(),
            at: at.map(Timestamp::from_millis),
            severity: None,
            message: "m".into(),
        };
        let mut entries =
            [entry("1", None), entry("9", Some(5)), entry("10", Some(5)), entry("2", Some(7))];
        entries.sort_by(newest_first);
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids, ["2", "10", "9", "1"]);
    }

    #[test]
    fn only_event_logs_are_read() {
        for (id, is) in
            [("Sel", true), ("SEL", true), ("Log1", true), ("EventLog", true), ("PostCodes", false)]
        {
            assert_eq!(is_event_log(id), is, "{id}");
        }
    }
}
