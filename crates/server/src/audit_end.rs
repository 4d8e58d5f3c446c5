//! The end of the audit log, recorded outside of the database.
//!
//! Whoever can write to the database while no server runs can cut the log and its recorded end. So
//! the last sealed position with its seal is also in a file of the data directory, signed with the
//! key of the chain. A log that lacks this entry raises an alarm, which lasts until a person has
//! removed the file and restarted the server. Meanwhile a shorter log is not sealed.

use crate::audit_stream::PositionFile;
use crate::serve::ServeError;
use engine::audit::AuditLog;
use engine::{Attention, AttentionItem, Explained, clock};
use model::audit::AuditSeal;
use model::time::Timestamp;
use model::why::{Explanation, Urgency};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often to look for entries that another replica has sealed.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// How often an alarm is logged.
const ALARM_INTERVAL: Duration = Duration::from_secs(600);
/// The file is `audit-end.position`.
const NAME: &str = "end";
/// The id of the audit log among the objects that need a person.
const AUDIT_LOG: &str = "audit-log";
/// Between the seal and its signature in the file.
const SIGNED: char = '.';

/// The log lacks an entry that this server has recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CutAlarm {
    pub problem: String,
    pub since: Timestamp,
}

/// The record of this replica. A clone shares it.
#[derive(Clone)]
pub(crate) struct RecordedEnd(Arc<RecordState>);

struct RecordState {
    audit: AuditLog,
    file: PositionFile,
    alarm: Mutex<Option<CutAlarm>>,
}

impl RecordedEnd {
    /// Compares the log with the record, and keeps the record current until the process ends.
    pub async fn open(data_dir: &Path, audit: &AuditLog) -> Result<Self, ServeError> {
        let (file, audit) = (PositionFile::new(data_dir, NAME), audit.clone());
        let record = Self(Arc::new(RecordState { audit, file, alarm: Mutex::default() }));
        match record.0.load().await {
            Ok(known) => {
                record.0.compare(known.as_ref()).await?;
                tokio::spawn(Arc::clone(&record.0).run(known));
            }
            Err(problem) => {
                record.0.raise(problem);
                tokio::spawn(Arc::clone(&record.0).run(None));
            }
        }
        Ok(record)
    }

    pub fn alarm(&self) -> Option<CutAlarm> {
        self.0.alarm.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds the alarm to what needs a person, after what may be damaged.
    pub fn list_alarm(&self, attention: &mut Attention) {
        let Some(CutAlarm { problem, since }) = self.alarm() else { return };
        let explanation = Explanation {
            headline: "the audit log was cut".into(),
            failed: problem,
            since: Some(since),
            next_commands: vec!["farrier audit verify".into()],
            ..Explanation::default()
        };
        let item = AttentionItem {
            id: AUDIT_LOG.into(),
            kind: "audit_log",
            urgency: Urgency::Stopped,
            explained: Explained { explanation, ..Explained::default() },
            explains: Vec::new(),
        };
        let is_worse = |item: &&AttentionItem| item.urgency == Urgency::MayBeDamaged;
        let first = attention.items.iter().take_while(is_worse).count();
        attention.items.insert(first, item);
    }
}

impl RecordState {
    /// The seal in the file; None: there is no file.
    async fn load(&self) -> Result<Option<AuditSeal>, String> {
        let loaded = self.file.load().await.map_err(|error| {
            format!("{error}: the audit log may have been cut; {}", self.advice())
        });
        let Some(AuditSeal { position, seal }) = loaded? else { return Ok(None) };
        let (seal, signature) = seal.split_once(SIGNED).unwrap_or((&seal, ""));
        let known = AuditSeal { position, seal: seal.to_string() };
        if self.audit.sign_record(&known) != signature {
            let path = self.file.path().display();
            return Err(format!(
                "{path} was changed, or belongs to another database; compare the audit log with a \
                 copy, remove {path}, and restart this server"
            ));
        }
        Ok(Some(known))
    }

    async fn compare(&self, known: Option<&AuditSeal>) -> Result<(), ServeError> {
        let end = self.audit.end_after(known.cloned()).await?;
        match (known, end) {
            (Some(known), end) => {
                self.audit.require_position(known.position);
                if end.is_none() {
                    self.raise(self.missing(Some(known)));
                    return Ok(());
                }
                let missing = self.audit.count_missing(known.position).await?;
                if missing > 0 {
                    self.raise(self.incomplete(known, missing));
                }
            }
            // A new replica, or one of an older farrier.
            (None, Some(AuditSeal { position: 1.., .. })) => {
                let file = self.file.path().display();
                tracing::warn!(
                    %file,
                    "the audit log has entries, and its end was not recorded here; nobody can tell whether it was cut before this start"
                );
            }
            (None, Some(_) | None) => {}
        }
        Ok(())
    }

    fn missing(&self, known: Option<&AuditSeal>) -> String {
        let position = known.map_or(0, |known| known.position);
        let path = self.file.path().display();
        format!(
            "entry {position}, which this server has recorded in {path}, is missing or another \
             one: the log was cut, or the database is an older copy or another one; {}",
            self.advice()
        )
    }

    fn incomplete(&self, known: &AuditSeal, missing: i64) -> String {
        format!(
            "{missing} entries before entry {} are missing, and `farrier audit verify` names them: \
             the log was cut; {}",
            known.position,
            self.advice()
        )
    }

    fn advice(&self) -> String {
        let path = self.file.path().display();
        format!("compare it with a copy of the log, remove {path}, and restart this server")
    }

    fn raise(&self, problem: String) {
        tracing::error!(problem, "the audit log was cut");
        metrics::gauge!("farrier_audit_log_cut").set(1.0);
        let alarm = CutAlarm { problem, since: clock::system()() };
        *self.alarm.lock().unwrap_or_else(PoisonError::into_inner) = Some(alarm);
    }

    async fn run(self: Arc<Self>, mut known: Option<AuditSeal>) {
        let mut sealed = self.audit.sealed();
        let mut failing = false;
        loop {
            let alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(CutAlarm { problem, .. }) = alarm {
                tokio::time::sleep(ALARM_INTERVAL).await;
                tracing::error!(problem, "the audit log was cut");
                continue;
            }
            match self.advance(&mut known).await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        tracing::warn!(error, "the end of the audit log is not recorded");
                    }
                    failing = true;
                }
            }
            tokio::select! {
                // The sender lives as long as the log that this record has.
                _ = sealed.changed() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Records the present end of the chain, if the chain continues the known one.
    async fn advance(&self, known: &mut Option<AuditSeal>) -> Result<(), String> {
        let end = self.audit.end_after(known.clone()).await.map_err(|error| error.to_string())?;
        let Some(end) = end else {
            self.raise(self.missing(known.as_ref()));
            return Ok(());
        };
        if end.position > known.as_ref().map_or(0, |known| known.position) {
            let signed = format!("{}{SIGNED}{}", end.seal, self.audit.sign_record(&end));
            self.file.save(&AuditSeal { position: end.position, seal: signed }).await?;
            *known = Some(end);
        }
        Ok(())
    }
}
