//! Deployments, found by effect key, MAC address, token or session.

use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::deploy::Deployment;
use model::effect::EffectKey;
use model::id::MachineId;
use model::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentRow {
    pub deployment: Deployment,
    pub version: i64,
}

/// A unique lookup key of a deployment. Tokens and sessions are stored as checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeploymentLookup {
    Key(EffectKey),
    Mac(String),
    Token(String),
    Session(String),
}

impl Tx {
    pub async fn deployment(&mut self, shown: &DeploymentLookup) -> Result<Option<DeploymentRow>> {
        let (by, value) = match shown {
            DeploymentLookup::Key(key) => ("key = $1", key.as_str()),
            DeploymentLookup::Mac(mac) => {
                ("key = (SELECT m.key FROM deployment_macs m WHERE m.mac = $1)", mac.as_str())
            }
            DeploymentLookup::Token(token) => ("token = $1", token.as_str()),
            DeploymentLookup::Session(session) => ("session = $1", session.as_str()),
        };
        let sql = format!("SELECT body, version FROM deployments WHERE {by}");
        self.query_one(&sql, values![value]).await?.as_ref().map(deployment).transpose()
    }

    /// The open deployments of a machine.
    pub async fn open_deployments(&mut self, machine: &MachineId) -> Result<Vec<DeploymentRow>> {
        let sql = "SELECT body, version FROM deployments \
                   WHERE machine_id = $1 AND is_open = 1 ORDER BY key";
        let rows = self.query(sql, values![machine.as_str()]).await?;
        rows.iter().map(deployment).collect()
    }

    /// True if an open deployment uses this image.
    pub async fn image_in_use(&mut self, name: &str) -> Result<bool> {
        let sql = "SELECT key FROM deployments WHERE image = $1 AND is_open = 1 LIMIT 1";
        Ok(self.query_one(sql, values![name]).await?.is_some())
    }

    /// Inserts an open deployment with the checksum of its token. A conflict means
    /// that another open deployment has one of its MAC addresses.
    pub async fn insert_deployment(
        &mut self,
        deployment: &Deployment,
        token: &str,
        now: Timestamp,
    ) -> Result<()> {
        let sql = "INSERT INTO deployments (key, run_id, machine_id, image, token, session, \
                   is_open, version, body, updated_at) VALUES ($1, $2, $3, $4, $5, NULL, 1, 1, $6, $7)";
        let values = values![
            deployment.key.as_str(),
            deployment.key.run(),
            deployment.machine_id.as_str(),
            deployment.image.name.as_str(),
            token,
            serde_json::to_string(deployment)?,
            now,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        for mac in &deployment.macs {
            let sql = "INSERT INTO deployment_macs (mac, key) VALUES ($1, $2)";
            let values = values![mac.as_str(), deployment.key.as_str()];
            self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        }
        Ok(())
    }

    /// Replaces the version that was read. A closed deployment releases its MAC addresses.
    pub async fn update_deployment(&mut self, row: &DeploymentRow, now: Timestamp) -> Result<()> {
        let deployment = &row.deployment;
        let sql = "UPDATE deployments SET session = $2, is_open = $3, version = $4 + 1, body = $5, \
                   updated_at = $6 WHERE key = $1 AND version = $4";
        let values = values![
            deployment.key.as_str(),
            deployment.session.clone(),
            i64::from(deployment.open()),
            row.version,
            serde_json::to_string(deployment)?,
            now,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        if !deployment.open() {
            let sql = "DELETE FROM deployment_macs WHERE key = $1";
            self.execute(sql, values![deployment.key.as_str()]).await?;
        }
        Ok(())
    }
}

pub(crate) fn deployment(row: &Row) -> Result<DeploymentRow> {
    Ok(DeploymentRow { deployment: row.json(0)?, version: row.int(1)? })
}
