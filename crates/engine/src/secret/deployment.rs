//! The deployments of machines that boot over the network: what a machine boots, which client may
//! execute the deployment, and its progress.
//!
//! The token of a deployment is derived from its key and this installation's secret. So every
//! replica can issue it, also after a restart, and it is not in the database.

use super::SecretStore;
use super::cipher::checksum;
use model::deploy::{
    ClaimRefusal, Deployment, DeploymentClaim, DeploymentCommand, DeploymentInstruction,
    DeploymentReport,
};
use model::effect::EffectKey;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use serde_json::Value;
use std::time::Duration;
use store::{DeploymentLookup, DeploymentRow, Result, Tx};

/// The age at which the record of a boot request is written again.
const BOOT_RECORD_AGE: Duration = Duration::from_secs(5);

/// The answer to a deploy agent, or why it is refused.
type ClaimResult<T> = Result<std::result::Result<T, ClaimRefusal>>;

/// A deployment that a machine boots, and its token.
#[derive(Clone)]
pub struct BootOffer {
    pub deployment: Deployment,
    pub token: String,
}

impl SecretStore {
    pub(super) fn deployment_token(&self, key: &EffectKey) -> String {
        self.cipher.deployment_token(key.as_str())
    }

    /// The deployment that the machine with this MAC address boots now, if there is one.
    pub async fn boot_offer(&self, mac: &str) -> Result<Option<BootOffer>> {
        let now = (self.clock)();
        let shown = DeploymentLookup::Mac(mac.into());
        let known = self.find_deployment(shown.clone()).await?;
        let requested = match known.filter(|deployment| deployment.offers_boot(now)) {
            // A request proves nothing about its sender, so it does not always cause a write.
            Some(new) if new.boot_requested_at.is_none_or(|at| now.since(at) > BOOT_RECORD_AGE) => {
                self.record_boot_request(shown, now).await?
            }
            known => known,
        };
        Ok(requested.map(|deployment| BootOffer {
            token: self.deployment_token(&deployment.key),
            deployment,
        }))
    }

    /// The deployment with this token, while its files are served.
    pub async fn deployment_by_token(&self, token: &str) -> Result<Option<Deployment>> {
        let now = (self.clock)();
        let token = DeploymentLookup::Token(checksum(token));
        let gives = |deployment: &Deployment| deployment.offers_files(now);
        let found = self.find_deployment(token.clone()).await?.filter(gives);
        match found {
            // A BMC fetches virtual media in pieces; only the first request is recorded.
            Some(new) if new.boot_requested_at.is_none() => {
                self.record_boot_request(token, now).await
            }
            other => Ok(other),
        }
    }

    async fn record_boot_request(
        &self,
        shown: DeploymentLookup,
        now: Timestamp,
    ) -> Result<Option<Deployment>> {
        self.store
            .retry_write("note_boot", (shown, now), |(shown, now), tx| {
                Box::pin(record_boot_request(tx, shown, *now))
            })
            .await
    }

    /// The open deployment that was claimed under this session.
    pub async fn deployment_by_session(&self, session: &str) -> Result<Option<Deployment>> {
        let found = self.find_deployment(DeploymentLookup::Session(checksum(session))).await?;
        Ok(found.filter(Deployment::open))
    }

    /// Claims the deployment with this token for the caller's session.
    pub async fn claim(
        &self,
        token: &str,
        session: &str,
        macs: Vec<String>,
    ) -> ClaimResult<Deployment> {
        let claim = DeploymentClaim { macs, session: checksum(session) };
        let token = checksum(token);
        // A read: a request with an unknown token must not take part in a write.
        if self.find_deployment(DeploymentLookup::Token(token.clone())).await?.is_none() {
            return Ok(Err(ClaimRefusal::TokenUnknown));
        }
        let input = (token, claim, (self.clock)());
        self.store
            .retry_write("claim_deployment", input, |(token, claim, now), tx| {
                Box::pin(claim_deployment(tx, token, claim, *now))
            })
            .await
    }

    /// Records a progress report and returns the next instruction.
    pub async fn record_report(
        &self,
        session: &str,
        report: DeploymentReport,
    ) -> ClaimResult<DeploymentInstruction> {
        let session = checksum(session);
        if self.find_deployment(DeploymentLookup::Session(session.clone())).await?.is_none() {
            return Ok(Err(ClaimRefusal::SessionUnknown));
        }
        let input = (session, report, (self.clock)());
        self.store
            .retry_write("report_deployment", input, |(session, report, now), tx| {
                Box::pin(report_deployment(tx, session, report, *now))
            })
            .await
    }

    pub(super) async fn find_deployment(&self, by: DeploymentLookup) -> Result<Option<Deployment>> {
        let found = self.store.read(by, |by, tx| Box::pin(tx.deployment(by))).await?;
        Ok(found.map(|row| row.deployment))
    }

    pub(super) async fn open_deployment(
        &self,
        desired: &Deployment,
        note: &Value,
    ) -> Result<Option<Deployment>> {
        let (token, now) = (checksum(&self.deployment_token(&desired.key)), (self.clock)());
        let open =
            OpenDeployment { requested: desired.clone(), token, checkpoint: note.to_string(), now };
        self.store.retry_write("open_deployment", open, |open, tx| Box::pin(open.run(tx))).await
    }

    pub(super) async fn command_deployment(
        &self,
        key: &EffectKey,
        to: DeploymentCommand,
    ) -> Result<Option<Deployment>> {
        let input = (key.clone(), to, (self.clock)());
        self.store
            .retry_write("command_deployment", input, |(key, to, now), tx| {
                Box::pin(apply_command(tx, key, *to, *now))
            })
            .await
    }
}

/// Records when a machine requested its boot files, to diagnose a boot that goes no further.
async fn record_boot_request(
    tx: &mut Tx,
    shown: &DeploymentLookup,
    now: Timestamp,
) -> Result<Option<Deployment>> {
    let found = tx.deployment(shown).await?;
    let reported = |row: &DeploymentRow| match shown {
        DeploymentLookup::Token(_) => row.deployment.offers_files(now),
        DeploymentLookup::Key(_) | DeploymentLookup::Mac(_) | DeploymentLookup::Session(_) => {
            row.deployment.offers_boot(now)
        }
    };
    let Some(mut row) = found.filter(reported) else { return Ok(None) };
    row.deployment.boot_requested_at = Some(now);
    tx.update_deployment(&row, now).await?;
    Ok(Some(row.deployment))
}

async fn claim_deployment(
    tx: &mut Tx,
    token: &str,
    claim: &DeploymentClaim,
    now: Timestamp,
) -> ClaimResult<Deployment> {
    let Some(mut row) = tx.deployment(&DeploymentLookup::Token(token.to_string())).await? else {
        return Ok(Err(ClaimRefusal::TokenUnknown));
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
    report: &DeploymentReport,
    now: Timestamp,
) -> ClaimResult<DeploymentInstruction> {
    let Some(mut row) = tx.deployment(&DeploymentLookup::Session(session.to_string())).await?
    else {
        return Ok(Err(ClaimRefusal::SessionUnknown));
    };
    let (then, changed) = row.deployment.record_report(report, now);
    if changed {
        tx.update_deployment(&row, now).await?;
    }
    Ok(Ok(then))
}

/// Opens a deployment, unless its key was stopped or its checkpoint has changed. A machine has one
/// open deployment: those of earlier attempts are closed.
struct OpenDeployment {
    requested: Deployment,
    token: String,
    checkpoint: String,
    now: Timestamp,
}

impl OpenDeployment {
    async fn run(&self, tx: &mut Tx) -> Result<Option<Deployment>> {
        let desired = &self.requested;
        // This locks the checkpoint until the end of the transaction: a stop comes before or after.
        if !tx.swap_checkpoint(&desired.key, &self.checkpoint, &self.checkpoint, self.now).await? {
            return Ok(None);
        }
        if let Some(row) = tx.deployment(&DeploymentLookup::Key(desired.key.clone())).await? {
            return Ok(Some(row.deployment));
        }
        for mut row in tx.open_deployments(&desired.machine_id).await? {
            row.deployment.apply_command(DeploymentCommand::Close);
            tx.update_deployment(&row, self.now).await?;
        }
        for mac in &desired.macs {
            let other = tx.deployment(&DeploymentLookup::Mac(mac.clone())).await?;
            if let Some(other) = other
                && other.deployment.machine_id != desired.machine_id
            {
                let message = format!(
                    "the network card {mac} is being deployed as {}, which has the same MAC address",
                    other.deployment.machine_id
                );
                return Err(Refusal::new(Reason::MacInUse, message).into());
            }
        }
        tx.insert_deployment(desired, &self.token, self.now).await?;
        Ok(Some(desired.clone()))
    }
}

async fn apply_command(
    tx: &mut Tx,
    key: &EffectKey,
    to: DeploymentCommand,
    now: Timestamp,
) -> Result<Option<Deployment>> {
    let Some(mut row) = tx.deployment(&DeploymentLookup::Key(key.clone())).await? else {
        return Ok(None);
    };
    if row.deployment.apply_command(to) {
        tx.update_deployment(&row, now).await?;
    }
    Ok(Some(row.deployment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Cipher;
    use futures_util::future::BoxFuture;
    use model::deploy::{DeploymentStage, ReportStep};
    use model::id::{MachineId, RunId};
    use model::image::{Artifact, DiskFormat, Image, ImageContent};
    use providers::state_store::{Checkpoint, ProviderStateStore};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
    use store::{Options, Store, TransactionHook, TransactionPoint};

    const MAC: &str = "52:54:00:00:00:01";

    fn key(attempt: u32) -> EffectKey {
        EffectKey::new(&RunId::trusted("op-1"), "repave-os", attempt)
    }

    fn deployment(attempt: u32, machine: &str) -> Deployment {
        let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
        let body = ImageContent::Disk { format: DiskFormat::Raw, file };
        let now = Timestamp::from_millis(0);
        let image = Image { name: "debian-12".into(), body, created_at: now };
        let machine = MachineId::trusted(machine);
        let one = Deployment::new(key(attempt), machine, image, now, Duration::from_secs(60));
        Deployment { macs: vec![MAC.into()], stage: DeploymentStage::Requested, ..one }
    }

    /// Counts the write transactions.
    #[derive(Default)]
    struct Writes(AtomicUsize);

    impl TransactionHook for Writes {
        fn intercept(&self, passing: TransactionPoint) -> BoxFuture<'_, Result<()>> {
            if matches!(passing, TransactionPoint::BeforeCommit(_)) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
            Box::pin(async { Ok(()) })
        }
    }

    struct Fixture {
        secrets: SecretStore,
        writes: Arc<Writes>,
        millis: Arc<AtomicI64>,
        _dir: tempfile::TempDir,
    }

    async fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::Sqlite { path: dir.path().join("farrier.db") };
        let writes = Arc::new(Writes::default());
        let store = Store::open(&options).await.unwrap();
        let store = store.with_hook(Arc::clone(&writes) as Arc<dyn TransactionHook>);
        let millis = Arc::new(AtomicI64::new(1_000));
        let clock = Arc::clone(&millis);
        let clock: crate::clock::Clock =
            Arc::new(move || Timestamp::from_millis(clock.load(Ordering::SeqCst)));
        Fixture {
            secrets: SecretStore::new(store, Cipher::new(&[7; 32]), clock),
            writes,
            millis,
            _dir: dir,
        }
    }

    impl Fixture {
        async fn open(&self, one: &Deployment) -> Deployment {
            let note = serde_json::json!({ "begun": one.key.as_str() });
            self.secrets.begin(&one.key, &Checkpoint::Begun(note.clone())).await.unwrap();
            self.secrets.create_deployment(one, &note).await.unwrap().unwrap()
        }

        async fn claim(
            &self,
            token: &str,
            session: &str,
            mac: &str,
        ) -> std::result::Result<(), ClaimRefusal> {
            self.secrets.claim(token, session, vec![mac.into()]).await.unwrap().map(drop)
        }
    }

    #[tokio::test]
    async fn a_token_is_refused_twice_after_its_time_and_from_another_machine() {
        let scene = fixture().await;
        assert!(scene.secrets.boot_offer(MAC).await.unwrap().is_none(), "no deployment is open");
        scene.open(&deployment(1, "m-1")).await;
        let boot = scene.secrets.boot_offer(MAC).await.unwrap().unwrap();
        let token = boot.token;
        assert_eq!(scene.claim("guess", "a", MAC).await, Err(ClaimRefusal::TokenUnknown));
        let other = scene.claim(&token, "a", "52:54:00:00:00:02").await;
        assert_eq!(other, Err(ClaimRefusal::MacRefused));
        scene.millis.store(60_000, Ordering::SeqCst);
        assert_eq!(scene.claim(&token, "a", MAC).await, Err(ClaimRefusal::TokenExpired));
        assert!(scene.secrets.boot_offer(MAC).await.unwrap().is_none());
        assert!(scene.secrets.deployment_by_token(&token).await.unwrap().is_none());
        scene.millis.store(59_999, Ordering::SeqCst);
        scene.claim(&token, "a", MAC).await.unwrap();
        assert_eq!(scene.claim(&token, "b", MAC).await, Err(ClaimRefusal::TokenUsed));
        scene.claim(&token, "a", MAC).await.unwrap();
        assert!(scene.secrets.deployment_by_token(&token).await.unwrap().is_none());
        assert!(scene.secrets.deployment_by_session("a").await.unwrap().is_some());
        assert!(scene.secrets.deployment_by_session("b").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_new_attempt_closes_the_previous_one_and_a_mac_is_used_once() {
        let scene = fixture().await;
        scene.open(&deployment(1, "m-1")).await;
        let first = scene.secrets.boot_offer(MAC).await.unwrap().unwrap().token;
        scene.claim(&first, "a", MAC).await.unwrap();
        scene.open(&deployment(2, "m-1")).await;
        let report = DeploymentReport {
            step: ReportStep::Writing,
            done: 1,
            total: 2,
            message: String::new(),
            host_keys: Vec::new(),
        };
        assert_eq!(
            scene.secrets.record_report("a", report).await.unwrap(),
            Ok(DeploymentInstruction::Stop)
        );
        let second = scene.secrets.boot_offer(MAC).await.unwrap().unwrap().token;
        assert_ne!(first, second);
        assert_eq!(scene.claim(&first, "c", MAC).await, Err(ClaimRefusal::TokenUsed));
        // Two machines must not have the same MAC address.
        let note = serde_json::json!("begun");
        let stranger = Deployment { key: key(3), ..deployment(3, "m-2") };
        scene.secrets.begin(&stranger.key, &Checkpoint::Begun(note.clone())).await.unwrap();
        let fault = scene.secrets.create_deployment(&stranger, &note).await.unwrap_err();
        assert!(fault.message.contains("m-1, which has the same MAC address"), "{fault}");
    }

    #[tokio::test]
    async fn an_unknown_token_session_or_mac_writes_nothing() {
        let scene = fixture().await;
        scene.open(&deployment(1, "m-1")).await;
        let before = scene.writes.0.load(Ordering::SeqCst);
        assert!(scene.secrets.boot_offer("52:54:00:00:00:02").await.unwrap().is_none());
        assert!(scene.secrets.deployment_by_token("guess").await.unwrap().is_none());
        assert_eq!(scene.claim("guess", "a", MAC).await, Err(ClaimRefusal::TokenUnknown));
        let report = DeploymentReport {
            step: ReportStep::Writing,
            done: 1,
            total: 2,
            message: String::new(),
            host_keys: Vec::new(),
        };
        let told = scene.secrets.record_report("guess", report).await.unwrap();
        assert_eq!(told, Err(ClaimRefusal::SessionUnknown));
        assert_eq!(scene.writes.0.load(Ordering::SeqCst), before);
        // A machine that boots is recorded, but not with every request.
        for _ in 0..100 {
            scene.secrets.boot_offer(MAC).await.unwrap().unwrap();
        }
        assert_eq!(scene.writes.0.load(Ordering::SeqCst), before + 1);
        scene.millis.fetch_add(6_000, Ordering::SeqCst);
        let boot = scene.secrets.boot_offer(MAC).await.unwrap().unwrap();
        assert_eq!(boot.deployment.boot_requested_at, Some(Timestamp::from_millis(7_000)));
        assert_eq!(scene.writes.0.load(Ordering::SeqCst), before + 2);
    }

    #[tokio::test]
    async fn a_stopped_or_changed_key_opens_no_deployment() {
        let scene = fixture().await;
        let note = serde_json::json!("begun");
        assert_eq!(
            scene.secrets.create_deployment(&deployment(1, "m-1"), &note).await,
            Ok(None),
            "never begun"
        );
        scene.secrets.begin(&key(1), &Checkpoint::StoppedBeforeStart).await.unwrap();
        assert_eq!(scene.secrets.create_deployment(&deployment(1, "m-1"), &note).await, Ok(None));
        assert!(scene.secrets.boot_offer(MAC).await.unwrap().is_none());
    }
}
