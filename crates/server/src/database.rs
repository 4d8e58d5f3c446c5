//! The check of the database, for the admin calls, and for `farrier db` without a server.

use crate::grpc::status::{OrStatus, refusal_status};
use crate::grpc::time;
use engine::access::{AccessControl, new_secret};
use engine::database::{self, RowRequest};
use model::access::TokenKind;
use model::audit::AuditEntry;
use model::refusal::Refusal;
use model::run::actions::Requester;
use model::text;
use proto::{v1, words};
use secrecy::{ExposeSecret, SecretString};
use std::path::Path;
use std::sync::Arc;
use store::{AuditDraft, Options, RowKind, SetAsideRow, Store};
use tonic::Status;

/// One connection for the check, and one that listens.
const CONNECTIONS: usize = 2;

/// A database that is opened without a server. Its schema is not migrated.
pub struct OfflineDatabase {
    store: Store,
    actor: String,
}

/// A new administrator's token.
pub struct RecoveredToken {
    pub token_id: String,
    pub user: String,
    secret: SecretString,
}

impl RecoveredToken {
    /// The secret, for the file of its owner.
    pub fn expose(&self) -> &str {
        self.secret.expose_secret()
    }
}

impl OfflineDatabase {
    /// Opens a data directory, or a `postgres://` URL.
    pub async fn open(location: &str, actor: String) -> Result<Self, Status> {
        let options = if location.contains("://") {
            let (url, name) = (location.to_string(), "farrier/db".to_string());
            Options::Postgres { url, connections: CONNECTIONS, name }
        } else {
            Options::Sqlite { path: Path::new(location).join(crate::data_dir::DATABASE_FILE) }
        };
        let store = Store::open_unmigrated(&options).await.or_status()?;
        Ok(Self { store, actor })
    }

    /// The database for one command, whose commit writes an entry of the audit log. The entry names
    /// the user of the host.
    fn for_command(&self, command: &str, objects: &[&str], reason: &str) -> Store {
        let now = engine::clock::system()();
        let entry = AuditEntry { user: self.actor.clone(), ..AuditEntry::of(None, command, now) };
        let draft = AuditDraft::new(AuditEntry { peer: "host".into(), ..entry });
        draft.describe(objects.iter().map(|one| one.to_string()).collect(), reason.to_string());
        self.store.with_audit(Some(Arc::new(draft)))
    }

    /// Adds an administrator's token, for an installation whose tokens are lost.
    pub async fn recover_administrator(&self) -> Result<RecoveredToken, Status> {
        let (clock, random) = (engine::clock::system(), engine::random::system());
        let store = self.for_command("farrier token recover", &[], "");
        let access = AccessControl::open(store, clock, random).await.or_status()?;
        let secret = new_secret(TokenKind::Api);
        let token = access.recover(&secret).await.or_status()?;
        Ok(RecoveredToken { token_id: token.id, user: token.user, secret })
    }

    pub async fn check(&self) -> Result<v1::CheckDatabaseResponse, Status> {
        check(&self.store).await
    }

    pub async fn set_aside(
        &self,
        requested: v1::SetAsideRowRequest,
    ) -> Result<v1::RowSetAside, Status> {
        let store = self.for_command("farrier db set-aside", &[&requested.id], &requested.reason);
        set_aside(&store, requested, self.actor.clone()).await
    }

    pub async fn put_back(
        &self,
        requested: v1::PutBackRowRequest,
    ) -> Result<v1::RowSetAside, Status> {
        let store = self.for_command("farrier db put-back", &[&requested.id], &requested.reason);
        put_back(&store, requested, self.actor.clone()).await
    }
}

pub(crate) async fn check(store: &Store) -> Result<v1::CheckDatabaseResponse, Status> {
    let found = database::check(store).await.or_status()?;
    let unreadable = found.unreadable.into_iter().map(|row| v1::UnreadableRow {
        kind: words::value::<v1::RowKind>(row.kind.as_str()),
        id: row.id,
        problem: row.problem,
    });
    Ok(v1::CheckDatabaseResponse {
        rows_checked: i64::try_from(found.checked).unwrap_or(i64::MAX),
        unreadable: unreadable.collect(),
        more: found.more,
        set_aside: found.set_aside.into_iter().map(set_aside_row).collect(),
    })
}

pub(crate) async fn set_aside(
    store: &Store,
    requested: v1::SetAsideRowRequest,
    by: String,
) -> Result<v1::RowSetAside, Status> {
    let v1::SetAsideRowRequest { kind, id, reason, dry_run } = requested;
    let request = row_request(kind, id, &reason, by).map_err(refusal_status)?;
    let moved = database::set_aside(&store.with_dry_run(dry_run), request).await.or_status()?;
    Ok(set_aside_row(moved))
}

pub(crate) async fn put_back(
    store: &Store,
    requested: v1::PutBackRowRequest,
    by: String,
) -> Result<v1::RowSetAside, Status> {
    let v1::PutBackRowRequest { kind, id, reason, dry_run } = requested;
    let request = row_request(kind, id, &reason, by).map_err(refusal_status)?;
    let moved = database::put_back(&store.with_dry_run(dry_run), request).await.or_status()?;
    Ok(set_aside_row(moved))
}

fn row_request(kind: i32, id: String, reason: &str, by: String) -> Result<RowRequest, Refusal> {
    let reason = text::check_reason("reason", reason)?;
    if id.is_empty() {
        return Err(Refusal::missing("id"));
    }
    let known = RowKind::ALL.map(RowKind::as_str).join(", ");
    let unknown = || Refusal::invalid("kind", "is unknown", format!("use one of {known}"));
    let kind = RowKind::parse(words::word::<v1::RowKind>(kind)).ok_or_else(unknown)?;
    Ok(RowRequest { kind, id, who: Requester { by, reason }, now: engine::clock::system()() })
}

fn set_aside_row(row: SetAsideRow) -> v1::RowSetAside {
    v1::RowSetAside {
        kind: words::value::<v1::RowKind>(row.kind.as_str()),
        id: row.id,
        problem: row.problem,
        actor: row.actor,
        reason: row.reason,
        set_aside_at: Some(time(row.at)),
    }
}
