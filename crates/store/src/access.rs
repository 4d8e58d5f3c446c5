//! API tokens by the hash of their secret, roles, and role bindings. Every replica keeps a copy of
//! all of them in memory; a version says whether the copy is current.

use crate::driver::{ExpectedRows, Statement};
use crate::signal::Signal;
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::access::{
    AccessPolicy, BindingReach, Permission, PermissionSet, Role, RoleBinding, Subject, TokenKind,
    TokenRecord,
};
use model::time::Timestamp;

/// A token with the hash of its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    pub token: TokenRecord,
    pub hash: String,
}

/// All tokens that are not revoked, all roles and bindings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessState {
    pub version: i64,
    pub tokens: Vec<StoredToken>,
    pub policy: AccessPolicy,
    /// The reason why rows were left out. They grant nothing; the others, and revocations, still
    /// count.
    pub unreadable: Vec<String>,
}

const TOKEN_COLUMNS: &str = "id, hash, kind, parent, user_name, description, created_at, \
                             created_by, expires_at, revoked_at, user_groups";

impl Tx {
    pub async fn access_version(&mut self) -> Result<i64> {
        let row = self.query_one("SELECT version FROM access_version", values![]).await?;
        row.ok_or_else(|| StoreError::Corrupt("access_version has no row".into()))?.int(0)
    }

    pub async fn access_state(&mut self) -> Result<AccessState> {
        let version = self.access_version().await?;
        let sql = format!("SELECT {TOKEN_COLUMNS} FROM api_tokens WHERE revoked_at IS NULL");
        let mut unreadable = Vec::new();
        let tokens = readable(&self.query(&sql, values![]).await?, token, &mut unreadable);
        let policy = self.access_policy(&mut unreadable).await?;
        Ok(AccessState { version, tokens, policy, unreadable })
    }

    /// The roles and bindings. `unreadable` gets the reasons of the rows that were left out: they
    /// grant nothing.
    pub async fn access_policy(&mut self, unreadable: &mut Vec<String>) -> Result<AccessPolicy> {
        let sql = "SELECT name, permissions FROM roles ORDER BY name";
        let roles = readable(&self.query(sql, values![]).await?, role, unreadable);
        let sql = "SELECT id, subject, role, selector FROM role_bindings ORDER BY id";
        let bindings = readable(&self.query(sql, values![]).await?, binding, unreadable);
        Ok(AccessPolicy { roles, bindings })
    }

    /// All API tokens, revoked ones too, ordered by id after `after`.
    pub async fn api_tokens(&mut self, after: &str, limit: i64) -> Result<Vec<TokenRecord>> {
        let sql = format!(
            "SELECT {TOKEN_COLUMNS} FROM api_tokens WHERE kind = $1 AND id > $2 \
             ORDER BY id LIMIT $3"
        );
        let rows = self.query(&sql, values![TokenKind::Api.as_str(), after, limit]).await?;
        rows.iter().map(|row| token(row).map(|stored| stored.token)).collect()
    }

    pub async fn api_token(&mut self, id: &str) -> Result<Option<TokenRecord>> {
        let sql = format!("SELECT {TOKEN_COLUMNS} FROM api_tokens WHERE id = $1");
        let row = self.query_one(&sql, values![id]).await?;
        Ok(row.as_ref().map(token).transpose()?.map(|stored| stored.token))
    }

    pub async fn has_api_tokens(&mut self) -> Result<bool> {
        let sql = "SELECT id FROM api_tokens WHERE kind = $1 LIMIT 1";
        Ok(self.query_one(sql, values![TokenKind::Api.as_str()]).await?.is_some())
    }

    pub fn insert_token(&mut self, stored: &StoredToken) -> Result<()> {
        let StoredToken { token, hash } = stored;
        let sql = format!(
            "INSERT INTO api_tokens ({TOKEN_COLUMNS}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
        );
        let values = values![
            token.id.as_str(),
            hash.as_str(),
            token.kind.as_str(),
            token.parent.clone().unwrap_or_default(),
            token.user.as_str(),
            token.description.as_str(),
            token.created_at,
            token.created_by.as_str(),
            token.expires_at,
            token.revoked_at,
            // A name of a group has no control characters.
            token.groups.join("\n"),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.raise_access_version()
    }

    /// Revokes a token that is not revoked; a conflict means that it is.
    pub fn revoke_token(&mut self, id: &str, at: Timestamp) -> Result<()> {
        let sql = "UPDATE api_tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
        self.queue_write(Statement::new(sql, values![id, at]), ExpectedRows::One)?;
        self.raise_access_version()
    }

    /// Deletes the sign-in codes and sessions that ended before this time.
    pub async fn delete_ended_sessions(&mut self, before: Timestamp) -> Result<u64> {
        let sql =
            "DELETE FROM api_tokens WHERE kind <> $1 AND (expires_at < $2 OR revoked_at < $2)";
        self.execute(sql, values![TokenKind::Api.as_str(), before]).await
    }

    pub fn insert_role(&mut self, role: &Role) -> Result<()> {
        let words: Vec<&str> = role.permissions.iter().map(Permission::as_str).collect();
        let sql = "INSERT INTO roles (name, permissions) VALUES ($1, $2)";
        let values = values![role.name.as_str(), words.join(" ")];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.raise_access_version()
    }

    pub fn delete_role(&mut self, name: &str) -> Result<()> {
        let sql = "DELETE FROM roles WHERE name = $1";
        self.queue_write(Statement::new(sql, values![name]), ExpectedRows::One)?;
        self.raise_access_version()
    }

    pub fn insert_role_binding(
        &mut self,
        binding: &RoleBinding,
        by: &str,
        at: Timestamp,
    ) -> Result<()> {
        let sql = "INSERT INTO role_bindings (id, subject, role, created_at, created_by, selector) \
                   VALUES ($1, $2, $3, $4, $5, $6)";
        let RoleBinding { id, subject, role, reach } = binding;
        let values = values![id.as_str(), subject.to_string(), role.as_str(), at, by, reach.text()];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.raise_access_version()
    }

    pub fn delete_role_binding(&mut self, id: &str) -> Result<()> {
        let sql = "DELETE FROM role_bindings WHERE id = $1";
        self.queue_write(Statement::new(sql, values![id]), ExpectedRows::One)?;
        self.raise_access_version()
    }

    /// Also serializes the changes of access: each locks this row.
    fn raise_access_version(&mut self) -> Result<()> {
        self.signal(Signal::Access);
        let sql = "UPDATE access_version SET version = version + 1";
        self.queue_write(Statement::new(sql, values![]), ExpectedRows::One)
    }

    /// Locks the access tables until the end of the transaction.
    pub async fn lock_access(&mut self) -> Result<()> {
        self.execute("UPDATE access_version SET version = version", values![]).await.map(drop)
    }
}

/// The rows that can be read. The first column of each is its id.
fn readable<T>(rows: &[Row], read: fn(&Row) -> Result<T>, unreadable: &mut Vec<String>) -> Vec<T> {
    let read = |row: &Row| match read(row) {
        Ok(value) => Some(value),
        Err(error) => {
            unreadable.push(format!("{}: {error}", row.text(0).unwrap_or_default()));
            None
        }
    };
    rows.iter().filter_map(read).collect()
}

fn token(row: &Row) -> Result<StoredToken> {
    let kind = row.text(2)?;
    let kind = TokenKind::parse(kind)
        .ok_or_else(|| StoreError::Corrupt(format!("the token kind {kind:?} is unknown")))?;
    let token = TokenRecord {
        id: row.text(0)?.to_string(),
        kind,
        parent: Some(row.text(3)?.to_string()).filter(|id| !id.is_empty()),
        user: row.text(4)?.to_string(),
        description: row.text(5)?.to_string(),
        created_at: row.time(6)?,
        created_by: row.text(7)?.to_string(),
        expires_at: row.opt_time(8)?,
        revoked_at: row.opt_time(9)?,
        groups: row.text(10)?.lines().map(str::to_string).collect(),
    };
    Ok(StoredToken { token, hash: row.text(1)?.to_string() })
}

/// A permission that this version does not know is not granted.
fn role(row: &Row) -> Result<Role> {
    let known: Vec<Permission> =
        row.text(1)?.split_whitespace().filter_map(Permission::parse).collect();
    Ok(Role { name: row.text(0)?.to_string(), permissions: PermissionSet::of(&known) })
}

fn binding(row: &Row) -> Result<RoleBinding> {
    let subject = row.text(1)?;
    let subject = Subject::parse("subject", subject)
        .map_err(|_| StoreError::Corrupt(format!("the subject {subject:?} is unknown")))?;
    Ok(RoleBinding {
        id: row.text(0)?.to_string(),
        subject,
        role: row.text(2)?.to_string(),
        reach: BindingReach::stored(row.text(3)?),
    })
}
