//! The desk where machines that boot over the network are dealt with: what they may boot, who may carry it out, how it goes.
//!
//! The token of a deployment is made of its key and this installation's secret. So every replica can give it out, also after a
//! restart, and nobody finds it in the database.

use super::Vault;
use super::cipher::checksum;
use model::deploy::{Claim, Denied, Deployment, Report, Steer, Then};
use model::effect::Key;
use model::refusal::Refusal;
use model::time::Timestamp;
use serde_json::Value;
use store::{DeploymentRow, Result, Shown, Tx, Work};

/// What a machine may boot, and with which token.
#[derive(Debug, Clone)]
pub struct Boot {
    pub deployment: Deployment,
    pub token: String,
}

impl Vault {
    pub(super) fn token_of(&self, key: &Key) -> String {
        self.cipher.token(key.as_str())
    }

    /// What the machine with this network card is to boot now, if anybody wants it to.
    pub async fn boot_of(&self, mac: &str) -> Result<Option<Boot>> {
        let now = (self.clock)();
        let asked = self.racing(|| Ask { mac: mac.into(), now }).await?;
        Ok(asked.map(|deployment| Boot { token: self.token_of(&deployment.key), deployment }))
    }

    /// The deployment whose token this is, while its machine is still to boot.
    pub async fn booting(&self, token: &str) -> Result<Option<Deployment>> {
        let now = (self.clock)();
        let found = self.shown(Shown::Token(checksum(token))).await?;
        Ok(found.filter(|deployment| deployment.boots(now)))
    }

    /// The deployment that was claimed under this session, while it is open.
    pub async fn claimed(&self, session: &str) -> Result<Option<Deployment>> {
        let found = self.shown(Shown::Session(checksum(session))).await?;
        Ok(found.filter(Deployment::open))
    }

    /// Lets whoever shows the token carry the deployment out, under a session of its own.
    pub async fn claim(
        &self,
        token: &str,
        session: &str,
        macs: Vec<String>,
    ) -> Result<std::result::Result<Deployment, Denied>> {
        let claim = Claim { macs, session: checksum(session) };
        let (token, now) = (checksum(token), (self.clock)());
        self.racing(|| MakeClaim { token: token.clone(), claim: claim.clone(), now }).await
    }

    /// Takes in how it goes, and says what is next.
    pub async fn hear(
        &self,
        session: &str,
        report: Report,
    ) -> Result<std::result::Result<Then, Denied>> {
        let (session, now) = (checksum(session), (self.clock)());
        self.racing(|| Hear { session: session.clone(), report: report.clone(), now }).await
    }

    pub(super) async fn shown(&self, shown: Shown) -> Result<Option<Deployment>> {
        let found = self.store.read(Find { shown }).await?;
        Ok(found.map(|row| row.deployment))
    }

    pub(super) async fn open_deployment(
        &self,
        wanted: &Deployment,
        note: &Value,
    ) -> Result<Option<Deployment>> {
        let (token, now) = (checksum(&self.token_of(&wanted.key)), (self.clock)());
        let note = note.to_string();
        self.racing(|| Open {
            wanted: wanted.clone(),
            token: token.clone(),
            note: note.clone(),
            now,
        })
        .await
    }

    pub(super) async fn steer_deployment(
        &self,
        key: &Key,
        to: Steer,
    ) -> Result<Option<Deployment>> {
        let now = (self.clock)();
        self.racing(|| DoSteer { key: key.clone(), to, now }).await
    }
}

struct Find {
    shown: Shown,
}

impl Work for Find {
    type Out = Option<DeploymentRow>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        tx.deployment(&self.shown).await
    }
}

/// The machine asks what to boot; that it asked is worth knowing when nothing comes after.
struct Ask {
    mac: String,
    now: Timestamp,
}

impl Work for Ask {
    type Out = Option<Deployment>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        let found = tx.deployment(&Shown::Mac(self.mac.clone())).await?;
        let Some(mut row) = found.filter(|row| row.deployment.boots(self.now)) else {
            return Ok(None);
        };
        row.deployment.asked_at = Some(self.now);
        tx.update_deployment(&row, self.now).await?;
        Ok(Some(row.deployment))
    }
}

struct MakeClaim {
    token: String,
    claim: Claim,
    now: Timestamp,
}

impl Work for MakeClaim {
    type Out = std::result::Result<Deployment, Denied>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        let Some(mut row) = tx.deployment(&Shown::Token(self.token.clone())).await? else {
            return Ok(Err(Denied::TokenUnknown));
        };
        if let Err(denied) = row.deployment.claim(&self.claim, self.now) {
            return Ok(Err(denied));
        }
        tx.update_deployment(&row, self.now).await?;
        Ok(Ok(row.deployment))
    }
}

struct Hear {
    session: String,
    report: Report,
    now: Timestamp,
}

impl Work for Hear {
    type Out = std::result::Result<Then, Denied>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        let Some(mut row) = tx.deployment(&Shown::Session(self.session.clone())).await? else {
            return Ok(Err(Denied::SessionUnknown));
        };
        let (then, changed) = row.deployment.hear(&self.report, self.now);
        if changed {
            tx.update_deployment(&row, self.now).await?;
        }
        Ok(Ok(then))
    }
}

/// Opens a deployment, unless its key has been stopped or has gone on. A machine has one at a time: what an attempt that
/// was given up has left open is closed.
struct Open {
    wanted: Deployment,
    token: String,
    note: String,
    now: Timestamp,
}

impl Work for Open {
    type Out = Option<Deployment>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        let wanted = &self.wanted;
        // The note is held to the end of the transaction, so that a stop comes before or after, and not in between.
        if !tx.amend_note(&wanted.key, &self.note, &self.note, self.now).await? {
            return Ok(None);
        }
        if let Some(row) = tx.deployment(&Shown::Key(wanted.key.clone())).await? {
            return Ok(Some(row.deployment));
        }
        for mut row in tx.open_deployments(&wanted.machine_id).await? {
            row.deployment.steer(Steer::Close);
            tx.update_deployment(&row, self.now).await?;
        }
        for mac in &wanted.macs {
            let other = tx.deployment(&Shown::Mac(mac.clone())).await?;
            if let Some(other) = other
                && other.deployment.machine_id != wanted.machine_id
            {
                let said = format!(
                    "the network card {mac} is being deployed as {}, which has the same MAC address",
                    other.deployment.machine_id
                );
                return Err(Refusal::precondition("MAC_IN_USE", said).into());
            }
        }
        tx.insert_deployment(wanted, &self.token, self.now).await?;
        Ok(Some(wanted.clone()))
    }
}

struct DoSteer {
    key: Key,
    to: Steer,
    now: Timestamp,
}

impl Work for DoSteer {
    type Out = Option<Deployment>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        let Some(mut row) = tx.deployment(&Shown::Key(self.key.clone())).await? else {
            return Ok(None);
        };
        if row.deployment.steer(self.to) {
            tx.update_deployment(&row, self.now).await?;
        }
        Ok(Some(row.deployment))
    }
}
