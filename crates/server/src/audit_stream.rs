//! Copies of the audit log: a file of JSON lines, and syslog.
//!
//! A stream reads sealed entries from the database, in the order of the chain, and sends them. No
//! request waits for it. Its position is in a file of the data directory and moves after the
//! entries have been sent, so a stream that is killed sends some of them again and leaves none out.

mod file;
mod position;
mod syslog;

use crate::config::Audit;
use crate::grpc::{audit_entry, time};
use engine::audit::AuditLog;
use engine::clock;
use file::FileSink;
use model::audit::{AuditOutcome, AuditSeal, StoredAuditEntry};
use model::time::Timestamp;
pub(crate) use position::PositionFile;
use proto::{json_form, v1};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::AuditQuery;
use syslog::SyslogSink;
pub(crate) use syslog::SyslogTarget;

/// The number of entries that are sent, and made durable, together.
const BATCH: i64 = 200;
/// The interval of the search for entries that another replica has sealed.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The interval at which a failing stream is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The streams of this replica.
#[derive(Clone, Default)]
pub(crate) struct AuditStreams(Arc<Vec<Arc<StreamState>>>);

impl AuditStreams {
    /// Starts the streams of the configuration. They run until the process ends.
    pub fn start(config: &Audit, data_dir: &Path, audit: &AuditLog) -> Self {
        let mut states = Vec::new();
        let mut start = |sink: Sink, target: String| {
            let state = Arc::new(StreamState::new(sink.name(), target));
            states.push(Arc::clone(&state));
            let position = PositionFile::new(data_dir, state.name);
            let stream =
                Stream { audit: audit.clone(), sink, position, after: None, confirmed: 0, state };
            tokio::spawn(stream.run());
        };
        if !config.file.as_os_str().is_empty() {
            let sink = Sink::File(FileSink::new(config.file.clone()));
            start(sink, config.file.display().to_string());
        }
        if let Ok(target) = SyslogTarget::parse(&config.syslog) {
            start(Sink::Syslog(SyslogSink::new(target)), config.syslog.clone());
        }
        Self(Arc::new(states))
    }

    pub fn report(&self) -> Vec<v1::AuditStream> {
        self.0.iter().map(|state| state.report()).collect()
    }
}

/// The receiver of the entries.
enum Sink {
    File(FileSink),
    Syslog(SyslogSink),
}

/// An entry as it is sent.
struct Line {
    /// RFC 3339.
    at: String,
    accepted: bool,
    json: String,
}

impl Line {
    fn of(stored: &StoredAuditEntry) -> Self {
        let form = json_form::to_json(&audit_entry(stored.clone()));
        let at = form.get("at").and_then(|at| at.as_str()).unwrap_or("-").to_string();
        let accepted = stored.entry.outcome == AuditOutcome::Accepted;
        Self { at, accepted, json: form.to_string() }
    }
}

/// The reason why entries could not be sent.
struct SinkError {
    said: String,
    resend: Resend,
}

/// The entries that may be lost with a connection, beside those that could not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resend {
    Nothing,
    /// The entries that were sent since the connection was last seen open.
    Unconfirmed,
    /// The same, and a batch before: the connection broke, and may have been dead for a while.
    Recent,
}

impl Sink {
    const fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Syslog(_) => "syslog",
        }
    }

    async fn send(&mut self, lines: Vec<Line>) -> Result<(), SinkError> {
        match self {
            Self::File(file) => file.append(lines).await,
            Self::Syslog(syslog) => syslog.send(&lines).await,
        }
    }

    /// Checks that the entries sent before can have arrived.
    fn check(&mut self) -> Result<(), SinkError> {
        match self {
            Self::File(_) => Ok(()),
            Self::Syslog(syslog) => syslog.check(),
        }
    }
}

struct Stream {
    audit: AuditLog,
    sink: Sink,
    position: PositionFile,
    /// The last position that was sent; None: it has not been read from the file.
    after: Option<i64>,
    /// The last position whose entries count as received: the connection was open some seconds
    /// after them.
    confirmed: i64,
    state: Arc<StreamState>,
}

impl Stream {
    async fn run(mut self) {
        let mut sealed = self.audit.sealed();
        loop {
            match self.advance().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(problem) => {
                    self.state.fail(problem);
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            tokio::select! {
                // The sender lives as long as the log that this stream has.
                _ = sealed.changed() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    match self.sink.check() {
                        Ok(()) => self.confirmed = self.after.unwrap_or_default(),
                        Err(error) => self.go_back(&error),
                    }
                }
            }
        }
    }

    /// Sends the next entries. True: there may be more.
    async fn advance(&mut self) -> Result<bool, String> {
        let after = match self.after {
            Some(after) => after,
            None => self.resume().await?,
        };
        let read = self.audit.sealed_after(AuditQuery::default(), after, BATCH).await;
        let (entries, head) = read.map_err(|error| error.to_string())?;
        let Some(last) = entries.last().and_then(|entry| entry.sealed.clone()) else {
            self.state.succeed(after, head.position);
            return Ok(false);
        };
        self.after = Some(after);
        if let Err(error) = self.sink.send(entries.iter().map(Line::of).collect()).await {
            self.go_back(&error);
            self.state.wait_at(self.after.unwrap_or_default(), head.position);
            return Err(error.said);
        }
        self.after = Some(last.position);
        self.position.save(&last).await?;
        self.state.succeed(last.position, head.position);
        Ok(last.position < head.position)
    }

    /// Sends entries again that may be lost with a connection.
    fn go_back(&mut self, error: &SinkError) {
        let after = self.after.unwrap_or_default();
        let from = match error.resend {
            Resend::Nothing => after,
            Resend::Unconfirmed => self.confirmed,
            Resend::Recent => (self.confirmed - BATCH).max(0),
        };
        self.after = Some(from.min(after));
    }

    /// The position that was saved. A chain without its seal is another one, such as that of a
    /// restored backup: it is sent from its beginning.
    async fn resume(&mut self) -> Result<i64, String> {
        let saved = self.position.load().await;
        let saved = saved.map_err(|error| format!("{error}; remove it to send the whole log"));
        let Some(saved) = saved? else { return Ok(0) };
        let known = self.audit.contains(&saved).await.map_err(|error| error.to_string())?;
        let AuditSeal { position, .. } = saved;
        if !known {
            let stream = self.state.name;
            tracing::warn!(
                stream,
                position,
                "the audit log is not the one that was streamed before; all of it is sent again"
            );
            return Ok(0);
        }
        self.confirmed = position;
        Ok(position)
    }
}

/// The state of a stream that the API and the metrics show.
struct StreamState {
    name: &'static str,
    target: String,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    position: i64,
    end: i64,
    failure: Option<StreamFailure>,
}

struct StreamFailure {
    problem: String,
    since: Timestamp,
    logged: Instant,
}

impl StreamState {
    fn new(name: &'static str, target: String) -> Self {
        metrics::counter!("farrier_audit_stream_failures_total", "stream" => name).increment(0);
        metrics::gauge!("farrier_audit_stream_waiting", "stream" => name).set(0.0);
        Self { name, target, progress: Mutex::default() }
    }

    fn wait_at(&self, position: i64, end: i64) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        (progress.position, progress.end) = (position, end.max(position));
        let waiting = (progress.end - position) as f64;
        metrics::gauge!("farrier_audit_stream_waiting", "stream" => self.name).set(waiting);
    }

    fn succeed(&self, position: i64, end: i64) {
        self.wait_at(position, end);
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.failure.take().is_some() {
            tracing::info!(stream = self.name, position, "the audit log is streamed again");
        }
    }

    fn fail(&self, problem: String) {
        metrics::counter!("farrier_audit_stream_failures_total", "stream" => self.name)
            .increment(1);
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = progress.end - progress.position;
        let (stream, target) = (self.name, self.target.as_str());
        let log = |problem: &str| {
            tracing::warn!(stream, target, waiting, problem, "the audit log is not streamed");
        };
        match &mut progress.failure {
            Some(failure) => {
                if failure.logged.elapsed() >= LOG_INTERVAL {
                    log(&problem);
                    failure.logged = Instant::now();
                }
                failure.problem = problem;
            }
            none => {
                log(&problem);
                let (since, logged) = (clock::system()(), Instant::now());
                *none = Some(StreamFailure { problem, since, logged });
            }
        }
    }

    fn report(&self) -> v1::AuditStream {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = progress.failure.as_ref();
        v1::AuditStream {
            name: self.name.to_string(),
            target: self.target.clone(),
            position: progress.position,
            waiting: progress.end - progress.position,
            problem: failure.map(|failure| failure.problem.clone()).unwrap_or_default(),
            failing_since: failure.map(|failure| time(failure.since)),
        }
    }
}
