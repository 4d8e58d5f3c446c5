//! The deployments of machines that boot over the network: what a machine boots, which client may
//! execute the deployment, and its progress.
//!
//! The token of a deployment is derived from its key and this installation's secret. So every
//! replica can issue it, also after a restart, and it is not in the database.

use super::SecretStore;
use super::cipher::checksum;
use model::deploy::{Claim, Denied, Deployment, Report, Steer, Then};
use model::effect::Key;
use model::refusal::Refusal;
use model::time::Timestamp;
use serde_json::Value;
use store::{DeploymentRow, Result, Shown, Tx};

/// A deployment that a machine boots, and its token.
#[derive(Clone)]
pub struct Boot {
    pub deployment: Deployment,
    pub token: String,
}

impl SecretStore {
    pub(super) fn token_of(&self, key: &Key) -> String {
        self.cipher.token(key.as_str())
    }

    /// The deployment that the machine with this MAC address boots now, if there is one.
    pub async fn boot_of(&self, mac: &str) -> Result<Option<Boot>> {
        let now = (self.clock)();
        let shown = Shown::Mac(mac.into());
        let asked = self.note_boot(shown, now).await?;
        Ok(asked.map(|deployment| Boot { token: self.token_of(&deployment.key), deployment }))
    }

    /// The deployment with this token, while its files are served.
    pub async fn booting(&self, token: &str) -> Result<Option<Deployment>> {
        let now = (self.clock)();
        let token = Shown::Token(checksum(token));
        let gives = |deployment: &Deployment| deployment.gives_files(now);
        let found = self.shown(token.clone()).await?.filter(gives);
        match found {
            // A BMC fetches virtual media in pieces; only the first request is recorded.
            Some(new) if new.asked_at.is_none() => self.note_boot(token, now).await,
            other => Ok(other),
        }
    }

    async fn note_boot(&self, shown: Shown, now: Timestamp) -> Result<Option<Deployment>> {
        self.store
            .retry_write("note_boot", (shown, now), |(shown, now), tx| {
                Box::pin(note_boot(tx, shown, *now))
            })
            .await
    }

    /// The open deployment that was claimed under this session.
    pub async fn claimed(&self, session: &str) -> Result<Option<Deployment>> {
        let found = self.shown(Shown::Session(checksum(session))).await?;
        Ok(found.filter(Deployment::open))
    }

    /// Claims the deployment with this token for the caller's session.
    pub async fn claim(
        &self,
        token: &str,
        session: &str,
        macs: Vec<String>,
    ) -> Result<std::result::Result<Deployment, Denied>> {
        let claim = Claim { macs, session: checksum(session) };
        let input = (checksum(token), claim, (self.clock)());
        self.store
            .retry_write("claim_deployment", input, |(token, claim, now), tx| {
                Box::pin(claim_deployment(tx, token, claim, *now))
            })
            .await
    }

    /// Records a progress report and returns the next instruction.
    pub async fn hear(
        &self,
        session: &str,
        report: Report,
    ) -> Result<std::result::Result<Then, Denied>> {
        let input = (checksum(session), report, (self.clock)());
        self.store
            .retry_write("report_deployment", input, |(session, report, now), tx| {
                Box::pin(report_deployment(tx, session, report, *now))
            })
            .await
    }

    pub(super) async fn shown(&self, shown: Shown) -> Result<Option<Deployment>> {
        let found = self.store.read(shown, |shown, tx| Box::pin(tx.deployment(shown))).await?;
        Ok(found.map(|row| row.deployment))
    }

    pub(super) async fn open_deployment(
        &self,
        wanted: &Deployment,
        note: &Value,
    ) -> Result<Option<Deployment>> {
        let (token, now) = (checksum(&self.token_of(&wanted.key)), (self.clock)());
        let open = Open { wanted: wanted.clone(), token, note: note.to_string(), now };
        self.store.retry_write("open_deployment", open, |open, tx| Box::pin(open.run(tx))).await
    }

    pub(super) async fn steer_deployment(
        &self,
        key: &Key,
        to: Steer,
    ) -> Result<Option<Deployment>> {
        let input = (key.clone(), to, (self.clock)());
        self.store
            .retry_write("steer_deployment", input, |(key, to, now), tx| {
                Box::pin(steer(tx, key, *to, *now))
            })
            .await
    }
}

/// Records when a machine requested its boot files, to diagnose a boot that goes no further.
async fn note_boot(tx: &mut Tx, shown: &Shown, now: Timestamp) -> Result<Option<Deployment>> {
    let found = tx.deployment(shown).await?;
    let told = |row: &DeploymentRow| match shown {
        Shown::Token(_) => row.deployment.gives_files(now),
        Shown::Key(_) | Shown::Mac(_) | Shown::Session(_) => row.deployment.boots(now),
    };
    let Some(mut row) = found.filter(told) else { return Ok(None) };
    row.deployment.asked_at = Some(now);
    tx.update_deployment(&row, now).await?;
    Ok(Some(row.deployment))
}

async fn claim_deployment(
    tx: &mut Tx,
    token: &str,
    claim: &Claim,
    now: Timestamp,
) -> Result<std::result::Result<Deployment, Denied>> {
    let Some(mut row) = tx.deployment(&Shown::Token(token.to_string())).await? else {
        return Ok(Err(Denied::TokenUnknown));
    };
    if let Err(denied) = row.deployment.claim(claim, now) {
        return Ok(Err(denied));
    }
    tx.update_deployment(&row, now).await?;
    Ok(Ok(row.deployment))
}

async fn report_deployment(
    tx: &mut Tx,
    session: &str,
    report: &Report,
    now: Timestamp,
) -> Result<std::result::Result<Then, Denied>> {
    let Some(mut row) = tx.deployment(&Shown::Session(session.to_string())).await? else {
        return Ok(Err(Denied::SessionUnknown));
    };
    let (then, changed) = row.deployment.hear(report, now);
    if changed {
        tx.update_deployment(&row, now).await?;
    }
    Ok(Ok(then))
}

/// Opens a deployment, unless its key was stopped or its checkpoint has changed. A machine has one
/// open deployment: those of earlier attempts are closed.
struct Open {
    wanted: Deployment,
    token: String,
    note: String,
    now: Timestamp,
}

impl Open {
    async fn run(&self, tx: &mut Tx) -> Result<Option<Deployment>> {
        let wanted = &self.wanted;
        // This locks the checkpoint until the end of the transaction: a stop comes before or after.
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

async fn steer(tx: &mut Tx, key: &Key, to: Steer, now: Timestamp) -> Result<Option<Deployment>> {
    let Some(mut row) = tx.deployment(&Shown::Key(key.clone())).await? else {
        return Ok(None);
    };
    if row.deployment.steer(to) {
        tx.update_deployment(&row, now).await?;
    }
    Ok(Some(row.deployment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Cipher;
    use model::deploy::{ReportStep, Stage};
    use model::id::{MachineId, RunId};
    use model::image::{Artifact, Body, DiskFormat, Image};
    use providers::state_store::{Checkpoint, ProviderStateStore};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;
    use store::{Options, Store};

    const MAC: &str = "52:54:00:00:00:01";

    fn key(attempt: u32) -> Key {
        Key::new(&RunId::trusted("op-1"), "repave-os", attempt)
    }

    fn wanted(attempt: u32, machine: &str) -> Deployment {
        let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
        let body = Body::Disk { format: DiskFormat::Raw, file };
        let now = Timestamp::from_millis(0);
        let image = Image { name: "debian-12".into(), body, created_at: now };
        let machine = MachineId::trusted(machine);
        let one = Deployment::new(key(attempt), machine, image, now, Duration::from_secs(60));
        Deployment { macs: vec![MAC.into()], stage: Stage::Wanted, ..one }
    }

    struct Scene {
        secrets: SecretStore,
        millis: Arc<AtomicI64>,
        _dir: tempfile::TempDir,
    }

    async fn scene() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::Sqlite { path: dir.path().join("farrier.db") };
        let store = Store::open(&options).await.unwrap();
        let millis = Arc::new(AtomicI64::new(1_000));
        let clock = Arc::clone(&millis);
        let clock: crate::clock::Clock =
            Arc::new(move || Timestamp::from_millis(clock.load(Ordering::SeqCst)));
        Scene { secrets: SecretStore::new(store, Cipher::new(&[7; 32]), clock), millis, _dir: dir }
    }

    impl Scene {
        async fn open(&self, one: &Deployment) -> Deployment {
            let note = serde_json::json!({ "begun": one.key.as_str() });
            self.secrets.begin(&one.key, &Checkpoint::Begun(note.clone())).await.unwrap();
            self.secrets.want(one, &note).await.unwrap().unwrap()
        }

        async fn claim(
            &self,
            token: &str,
            session: &str,
            mac: &str,
        ) -> std::result::Result<(), Denied> {
            self.secrets.claim(token, session, vec![mac.into()]).await.unwrap().map(drop)
        }
    }

    #[tokio::test]
    async fn a_token_is_refused_twice_after_its_time_and_from_another_machine() {
        let scene = scene().await;
        assert!(scene.secrets.boot_of(MAC).await.unwrap().is_none(), "no deployment is open");
        scene.open(&wanted(1, "m-1")).await;
        let boot = scene.secrets.boot_of(MAC).await.unwrap().unwrap();
        let token = boot.token;
        assert_eq!(scene.claim("guess", "a", MAC).await, Err(Denied::TokenUnknown));
        let other = scene.claim(&token, "a", "52:54:00:00:00:02").await;
        assert_eq!(other, Err(Denied::MacRefused));
        scene.millis.store(60_000, Ordering::SeqCst);
        assert_eq!(scene.claim(&token, "a", MAC).await, Err(Denied::TokenExpired));
        assert!(scene.secrets.boot_of(MAC).await.unwrap().is_none());
        assert!(scene.secrets.booting(&token).await.unwrap().is_none());
        scene.millis.store(59_999, Ordering::SeqCst);
        scene.claim(&token, "a", MAC).await.unwrap();
        assert_eq!(scene.claim(&token, "b", MAC).await, Err(Denied::TokenUsed));
        scene.claim(&token, "a", MAC).await.unwrap();
        assert!(scene.secrets.booting(&token).await.unwrap().is_none());
        assert!(scene.secrets.claimed("a").await.unwrap().is_some());
        assert!(scene.secrets.claimed("b").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_new_attempt_closes_the_one_before_and_nobody_takes_anothers_card() {
        let scene = scene().await;
        scene.open(&wanted(1, "m-1")).await;
        let first = scene.secrets.boot_of(MAC).await.unwrap().unwrap().token;
        scene.claim(&first, "a", MAC).await.unwrap();
        scene.open(&wanted(2, "m-1")).await;
        let report = Report {
            step: ReportStep::Writing,
            done: 1,
            total: 2,
            said: String::new(),
            host_keys: Vec::new(),
        };
        assert_eq!(scene.secrets.hear("a", report).await.unwrap(), Ok(Then::Stop));
        let second = scene.secrets.boot_of(MAC).await.unwrap().unwrap().token;
        assert_ne!(first, second);
        assert_eq!(scene.claim(&first, "c", MAC).await, Err(Denied::TokenUsed));
        // Two machines must not have the same MAC address.
        let note = serde_json::json!("begun");
        let stranger = Deployment { key: key(3), ..wanted(3, "m-2") };
        scene.secrets.begin(&stranger.key, &Checkpoint::Begun(note.clone())).await.unwrap();
        let fault = scene.secrets.want(&stranger, &note).await.unwrap_err();
        assert!(fault.said.contains("m-1, which has the same MAC address"), "{fault}");
    }

    #[tokio::test]
    async fn a_key_that_was_stopped_or_went_on_wants_nothing() {
        let scene = scene().await;
        let note = serde_json::json!("begun");
        assert_eq!(scene.secrets.want(&wanted(1, "m-1"), &note).await, Ok(None), "never begun");
        scene.secrets.begin(&key(1), &Checkpoint::Barred).await.unwrap();
        assert_eq!(scene.secrets.want(&wanted(1, "m-1"), &note).await, Ok(None));
        assert!(scene.secrets.boot_of(MAC).await.unwrap().is_none());
    }
}
