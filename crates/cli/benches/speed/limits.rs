//! The limits that the figures are compared with: the results of the store's benchmark on this
//! disk, and of the empty server.

use crate::empty::EmptyServer;
use crate::fanout::WATCHERS;
use crate::table::{Report, Row, Unit};
use crate::{Outcome, Store};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const SPAN: Duration = Duration::from_millis(1_500);

/// The output of the store's benchmark.
#[derive(Deserialize)]
struct Raw {
    fsync_ms: f64,
    fsync_p99_ms: f64,
    sqlite_commits_per_s: f64,
    postgres_commits_per_s: Option<f64>,
    postgres_commits_per_s_32: Option<f64>,
}

/// Calls of an empty method.
#[derive(Clone, Copy)]
pub struct Calls {
    pub per_second: f64,
    pub median_ms: f64,
    pub p99_ms: f64,
}

pub struct Limits {
    raw: Raw,
    calls: BTreeMap<usize, Calls>,
    pub events_per_second: f64,
}

impl Limits {
    pub async fn measure(path: &Path, clients: &[usize], report: &mut Report) -> Outcome<Self> {
        let raw = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let server = EmptyServer::start()?;
        let mut calls = BTreeMap::new();
        // Some figures need the limit for one or eight clients, whatever `--clients` says.
        for clients in clients.iter().copied().chain([1, 8]) {
            if calls.contains_key(&clients) {
                continue;
            }
            let tally = server.calls(clients, SPAN).await?;
            report.errors_of("empty calls", &tally);
            let (median_ms, p99_ms) = (tally.percentile_ms(50.0), tally.percentile_ms(99.0));
            calls.insert(clients, Calls { per_second: tally.per_second(), median_ms, p99_ms });
        }
        let events_per_second = server.streamed_per_second(WATCHERS, SPAN).await?;
        let limits = Self { raw, calls, events_per_second };
        limits.show(report);
        Ok(limits)
    }

    fn show(&self, report: &mut Report) {
        let raw = &self.raw;
        let p99 = format!("p99 {:.2} ms", raw.fsync_p99_ms);
        report.add(
            Row::new("limit: fsync of 4 KiB appended, median", raw.fsync_ms, Unit::Millis)
                .note(p99),
        );
        let commits = [
            (Store::Sqlite, 1, Some(raw.sqlite_commits_per_s)),
            (Store::Postgres, 1, raw.postgres_commits_per_s),
            (Store::Postgres, 32, raw.postgres_commits_per_s_32),
        ];
        for (store, clients, found) in commits {
            if let Some(rate) = found {
                let row = Row::new("limit: raw single-row commits", rate, Unit::PerSecond);
                report.add(row.store(store).clients(clients));
            }
        }
        for (clients, calls) in &self.calls {
            let note = format!("median {:.2} ms, p99 {:.2} ms", calls.median_ms, calls.p99_ms);
            let row = Row::new("limit: empty gRPC calls", calls.per_second, Unit::PerSecond);
            report.add(row.clients(*clients).note(note));
        }
        let row =
            Row::new("limit: empty events, 200 streams", self.events_per_second, Unit::PerSecond);
        report.add(row.clients(WATCHERS));
    }

    pub fn fsync_ms(&self) -> f64 {
        self.raw.fsync_ms
    }

    pub fn sqlite_commits(&self) -> f64 {
        self.raw.sqlite_commits_per_s
    }

    /// Raw commits per second of this database, with one client or with many.
    pub fn commits(&self, store: Store, clients: usize) -> f64 {
        let raw = &self.raw;
        match (store, clients) {
            (Store::Sqlite, _) => raw.sqlite_commits_per_s,
            (Store::Postgres, 1) => raw.postgres_commits_per_s.unwrap_or_default(),
            (Store::Postgres, _) => raw.postgres_commits_per_s_32.unwrap_or_default(),
        }
    }

    pub fn calls(&self, clients: usize) -> Outcome<Calls> {
        let found = self.calls.get(&clients).copied();
        found.ok_or_else(|| format!("the empty server was not asked by {clients} clients").into())
    }
}
