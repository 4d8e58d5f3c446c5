//! Writing an image to a machine, against a scripted BMC and a deploy environment played by the
//! test: the requests to the BMC, the result of each report or missing report, and what a stop
//! leaves behind.

use crate::DEADLINE;
use crate::fake_bmc::{FakeBmc, PASSWORD, RESET, SYSTEM, settings};
use crate::http::{Call, Peer};
use model::condition::{ConditionObservation, ConditionType, imaged};
use model::deploy::{
    Deployment, DeploymentClaim, DeploymentFailure, DeploymentReport, DeploymentStage, ReportStep,
};
use model::effect::{CallResult, CallVerb, Effect, EffectKey, ProviderAnswer, ProviderCall};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::machine::{DiskReport, MachineSpec};
use model::time::Timestamp;
use providers::datacenter::{Datacenter, Imaging, Settings};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const MAC: &str = "52:54:00:00:00:01";
/// A limit that expires while a test waits, and that nothing else exceeds.
const SHORT: Duration = Duration::from_secs(4);
const HOST_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIOWmp6IWg6RFBqK2hqkVqDLKjNPXA4pSkPq5L7fMnnE";

struct ImagingFixture {
    store: Arc<InMemoryStateStore>,
    bmc: FakeBmc,
    peer: Peer,
    /// The limits for booting and for silence.
    boot: Duration,
    silence: Duration,
}

impl ImagingFixture {
    /// With limits that do not expire.
    async fn new() -> Self {
        Self::with_limits(DEADLINE, DEADLINE).await
    }

    async fn with_limits(boot: Duration, silence: Duration) -> Self {
        let store = Arc::new(InMemoryStateStore::default());
        let secret = |user: &str| Secret::Password {
            user: user.into(),
            password: PASSWORD.to_string().into(),
        };
        store.set_credential("bmc", secret("root"));
        store.set_credential("host", secret("admin"));
        let file = Artifact { sha256: "ab".repeat(32), size: 1_000, url: None };
        let body = ImageContent::Disk { format: DiskFormat::Raw, file };
        store.add_image(Image { name: "debian".into(), body, created_at: now() });
        let env = FakeBmc::new();
        env.set(SYSTEM, "/PowerState", json!("On"));
        let peer = env.serve().await;
        Self { store, bmc: env, peer, boot, silence }
    }

    /// One replica; another one can continue.
    fn replica(&self) -> Datacenter {
        let power_timeouts = PowerTimeouts { graceful: Duration::ZERO, ..PowerTimeouts::default() };
        let imaging = Imaging {
            url: "http://10.0.0.1:8480".into(),
            token_ttl: Duration::from_secs(60),
            boot_timeout: self.boot,
            silence_timeout: self.silence,
        };
        let settings = Settings {
            bmc_credential: "bmc".into(),
            ssh_credential: "host".into(),
            power_timeouts,
            call_timeout: Duration::from_secs(15),
            redfish: settings(Auth::Basic),
            imaging: Some(imaging),
            ..Settings::default()
        };
        Datacenter::new(Arc::clone(&self.store) as Arc<dyn ProviderStateStore>, settings)
    }

    fn target(&self) -> Target {
        let spec = MachineSpec {
            bmc_endpoint: self.peer.url(),
            // Nothing listens there.
            ssh_endpoint: "127.0.0.1:9".into(),
            mac_addresses: vec![MAC.into()],
            ..MachineSpec::default()
        };
        Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec }
    }

    async fn call_provider(&self, verb: CallVerb) -> CallResult {
        self.call_provider_for(&self.target(), "debian", verb).await.0
    }

    async fn call_provider_for(
        &self,
        target: &Target,
        image: &str,
        verb: CallVerb,
    ) -> (CallResult, String) {
        let effect = Effect::Repave { image: image.into() };
        let call = ProviderCall { key: key(), verb, effect, log_offset_bytes: 0 };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move {
            let mut log = Vec::new();
            while let Some(line) = lines.recv().await {
                log.extend(line.data);
            }
            String::from_utf8(log).unwrap()
        });
        let answer = self.replica().call(target, &call, &journal).await;
        drop(journal);
        (answer, reader.await.unwrap())
    }

    /// Waits until the deployment matches, then changes it.
    async fn change_when(
        &self,
        ready: impl Fn(&Deployment) -> bool,
        change: impl FnOnce(&mut Deployment),
    ) {
        loop {
            if let Some(one) = self.store.deployment(&key()).await.unwrap()
                && ready(&one)
                && self.resets() == ["ForceOff", "On"]
            {
                self.store.change_deployment(&key(), change).unwrap();
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn resets(&self) -> Vec<String> {
        let calls = self.peer.calls();
        let resets = calls.iter().filter(|call| call.is("POST", RESET));
        let name = |call: &Call| call.body.split('"').nth(3).unwrap().to_string();
        resets.map(name).collect()
    }

    async fn stage(&self) -> Option<DeploymentStage> {
        self.store.deployment(&key()).await.unwrap().map(|one| one.stage)
    }

    fn boot(&self) -> String {
        self.bmc.get(SYSTEM)["Boot"]["BootSourceOverrideTarget"].as_str().unwrap().to_string()
    }
}

fn key() -> EffectKey {
    EffectKey::new(&RunId::trusted("op-1"), "repave-os", 1)
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    Timestamp::from_micros(since.as_micros() as i64)
}

fn is_requested(one: &Deployment) -> bool {
    one.stage == DeploymentStage::Requested
}

fn claim(one: &mut Deployment) {
    one.claim(&DeploymentClaim { macs: vec![MAC.into()], session: "s".into() }, now()).unwrap();
}

fn reports(step: ReportStep, done: u64, said: &str) -> impl FnOnce(&mut Deployment) {
    let report = DeploymentReport {
        step,
        done,
        total: 1_000,
        message: said.into(),
        host_keys: vec![HOST_KEY.into()],
    };
    move |one| {
        one.record_report(&report, now());
    }
}

#[tokio::test]
async fn a_machine_that_never_boots_is_reported_as_silent() {
    let fixture = ImagingFixture::with_limits(SHORT, DEADLINE).await;
    let fault = fixture.call_provider(CallVerb::Perform).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NetbootSilent, "{fault}");
    assert!(fault.message.contains("http://10.0.0.1:8480 got no boot request"), "{fault}");
    assert_eq!(fixture.resets(), ["ForceOff", "On"]);
    assert_eq!(fixture.boot(), "None");
    assert_eq!(
        fixture.stage().await,
        Some(DeploymentStage::Closed),
        "nobody is told to boot it any more"
    );

    let fixture = ImagingFixture::with_limits(SHORT, DEADLINE).await;
    let asks = fixture.change_when(is_requested, |one| one.boot_requested_at = Some(now()));
    let (fault, ()) = tokio::join!(fixture.call_provider(CallVerb::Perform), asks);
    let fault = fault.unwrap_err();
    assert_eq!(fault.code, FaultCode::NetbootSilent, "{fault}");
    assert!(fault.message.contains("was told what to boot"), "{fault}");
}

#[tokio::test]
async fn deploy_failures_have_codes() {
    for (failure, code) in [
        (DeploymentFailure::ChecksumWrong, FaultCode::ChecksumWrong),
        (DeploymentFailure::DiskTooSmall, FaultCode::DiskUnfit),
        (DeploymentFailure::DiskAmbiguous, FaultCode::DiskUnfit),
        (DeploymentFailure::InstallFailed, FaultCode::InstallFailed),
    ] {
        let fixture = ImagingFixture::new().await;
        let plays = async {
            fixture.change_when(is_requested, claim).await;
            let fails = reports(ReportStep::Failed(failure), 0, "because of /dev/sda");
            fixture.change_when(|_| true, fails).await;
        };
        let (fault, ()) = tokio::join!(fixture.call_provider(CallVerb::Perform), plays);
        let fault = fault.unwrap_err();
        assert_eq!((fault.code, fault.message.as_str()), (code, "because of /dev/sda"));
        assert_eq!(fixture.stage().await, Some(DeploymentStage::Closed));
    }
}

#[tokio::test]
async fn a_silent_deploy_environment_loses_its_session() {
    let fixture = ImagingFixture::with_limits(DEADLINE, SHORT).await;
    let target = fixture.target();
    let plays = async {
        fixture.change_when(is_requested, claim).await;
        fixture.change_when(|_| true, reports(ReportStep::Writing, 420, "writing")).await;
    };
    let ((fault, log), ()) =
        tokio::join!(fixture.call_provider_for(&target, "debian", CallVerb::Perform), plays);
    let fault = fault.unwrap_err();
    assert_eq!(fault.code, FaultCode::DeploySilent, "{fault}");
    assert!(fault.message.contains("it was at 42 %"), "{fault}");
    assert!(log.contains("image: 42 % written (420 of 1000 bytes)"), "{log}");
    assert_eq!(fixture.stage().await, Some(DeploymentStage::Closed));
}

#[tokio::test]
async fn an_installed_machine_must_boot_from_its_disk() {
    let fixture = ImagingFixture::with_limits(SHORT, DEADLINE).await;
    let plays = async {
        fixture.change_when(is_requested, claim).await;
        fixture.change_when(|_| true, reports(ReportStep::Installed, 1_000, "installed")).await;
        fixture.change_when(|one| one.stage == DeploymentStage::Released, |_| {}).await;
        assert_eq!(fixture.boot(), "None", "its own boot order before it is let go");
        let known = fixture.store.identity("ssh://127.0.0.1:9").await.unwrap();
        assert_eq!(known.as_deref(), Some(HOST_KEY), "whom we will meet");
    };
    let (fault, ()) = tokio::join!(fixture.call_provider(CallVerb::Perform), plays);
    let fault = fault.unwrap_err();
    assert_eq!(fault.code, FaultCode::SystemNotBack, "{fault}");
    assert_eq!(fixture.resets(), ["ForceOff", "On"], "it restarts by itself");
}

#[tokio::test]
async fn another_replica_continues_without_a_power_change() {
    let fixture = ImagingFixture::new().await;
    assert_eq!(fixture.call_provider(CallVerb::GetStatus).await, Ok(ProviderAnswer::NeverStarted));
    let dies = async {
        fixture.change_when(is_requested, claim).await;
        fixture.change_when(|_| true, reports(ReportStep::Writing, 10, "writing")).await;
    };
    tokio::select! {
        ended = fixture.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
        () = dies => {}
    }
    assert_eq!(fixture.call_provider(CallVerb::GetStatus).await, Ok(ProviderAnswer::UnderWay));
    let broken = reports(ReportStep::Failed(DeploymentFailure::ImageBroken), 0, "not a disk");
    let (fault, ()) = tokio::join!(
        fixture.call_provider(CallVerb::Follow),
        fixture.change_when(|_| true, broken)
    );
    assert_eq!(fault.unwrap_err().code, FaultCode::InstallFailed);
    assert_eq!(fixture.resets(), ["ForceOff", "On"]);
}

#[tokio::test]
async fn a_stop_before_during_and_after_the_deployment() {
    let fixture = ImagingFixture::new().await;
    assert_eq!(fixture.call_provider(CallVerb::Stop).await, Ok(ProviderAnswer::Stopped));
    let fault = fixture.call_provider(CallVerb::Perform).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    assert!(fixture.resets().is_empty() && fixture.stage().await.is_none());

    // In the middle of writing.
    let fixture = ImagingFixture::new().await;
    let dies = async {
        fixture.change_when(is_requested, claim).await;
        fixture.change_when(|_| true, reports(ReportStep::Writing, 500, "writing")).await;
    };
    tokio::select! {
        ended = fixture.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
        () = dies => {}
    }
    let (stopped, log) =
        fixture.call_provider_for(&fixture.target(), "debian", CallVerb::Stop).await;
    assert_eq!(stopped, Ok(ProviderAnswer::Stopped));
    assert!(log.contains("stopped at 50 %"), "{log}");
    let effect = Effect::Repave { image: "debian".into() };
    let call = ProviderCall { key: key(), verb: CallVerb::Stop, effect, log_offset_bytes: 0 };
    let (journal, _lines) = Journal::new();
    assert_eq!(journal.disk_report(), None);
    fixture.replica().call(&fixture.target(), &call, &journal).await.unwrap();
    assert_eq!(journal.disk_report(), Some(DiskReport::Written(50)));
    assert_eq!(fixture.stage().await, Some(DeploymentStage::Closed));
    let fault = fixture.call_provider(CallVerb::Follow).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
}

#[tokio::test]
async fn a_finished_deployment_proves_its_image() {
    let fixture = ImagingFixture::new().await;
    tokio::select! {
        ended = fixture.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
        () = fixture.change_when(is_requested, |one| one.stage = DeploymentStage::Finished) => {}
    }
    for verb in [CallVerb::GetStatus, CallVerb::Follow, CallVerb::Stop] {
        let answer = fixture.call_provider(verb).await;
        let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{verb:?}: {answer:?}") };
        let answers = ConditionObservation::new(ConditionType::Reachable, true, "Imaged");
        assert_eq!(outcome.evidence, [answers, imaged("debian")], "{verb:?}");
    }
}

#[tokio::test]
async fn invalid_requests_fail_before_any_change() {
    let fixture = ImagingFixture::new().await;
    let target = fixture.target();
    let without = |change: fn(&mut MachineSpec)| {
        let mut target = target.clone();
        change(&mut target.spec);
        target
    };
    for (target, image, code, words) in [
        (target.clone(), "ubuntu", FaultCode::ImageUnknown, "no image \"ubuntu\""),
        (
            without(|spec| spec.mac_addresses.clear()),
            "debian",
            FaultCode::NotSupported,
            "mac_addresses",
        ),
        (
            without(|spec| spec.ssh_endpoint.clear()),
            "debian",
            FaultCode::NotSupported,
            "ssh_endpoint",
        ),
        (
            without(|spec| spec.ssh_credential = "other".into()),
            "debian",
            FaultCode::CredentialMissing,
            "other",
        ),
    ] {
        let (fault, _) = fixture.call_provider_for(&target, image, CallVerb::Perform).await;
        let fault = fault.unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.message.contains(words), "{fault}");
    }
    assert!(fixture.resets().is_empty());
}

#[tokio::test]
async fn downtime_of_farrier_is_no_silence_of_the_machine() {
    let fixture = ImagingFixture::with_limits(DEADLINE, SHORT).await;
    let dies = async {
        fixture.change_when(is_requested, claim).await;
        fixture.change_when(|_| true, reports(ReportStep::Writing, 10, "writing")).await;
    };
    tokio::select! {
        ended = fixture.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
        () = dies => {}
    }
    // Longer than the deploy environment may be silent; there was no listener to report to.
    tokio::time::sleep(SHORT + SHORT / 4).await;
    let goes_on = async {
        // A provider that counts the time before it listened has given up by then.
        tokio::time::sleep(SHORT / 8).await;
        let broken = reports(ReportStep::Failed(DeploymentFailure::ImageBroken), 0, "not a disk");
        fixture.change_when(|_| true, broken).await;
    };
    let (fault, ()) = tokio::join!(fixture.call_provider(CallVerb::Follow), goes_on);
    assert_eq!(fault.unwrap_err().code, FaultCode::InstallFailed, "it was heard, and not given up");
}

#[tokio::test]
async fn a_stopped_deployment_does_not_netboot() {
    let fixture = ImagingFixture::new().await;
    tokio::select! {
        ended = fixture.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
        () = fixture.change_when(is_requested, |_| {}) => {}
    }
    assert_eq!(fixture.boot(), "Pxe");
    assert_eq!(fixture.call_provider(CallVerb::Stop).await, Ok(ProviderAnswer::Stopped));
    assert_eq!(fixture.boot(), "None");
    assert_eq!(fixture.resets(), ["ForceOff", "On"], "it is on, and was not switched off again");
}

/// The virtual medium is inserted before the machine is switched off, and ejected when it is no
/// longer needed.
#[tokio::test]
async fn a_virtual_medium_is_inserted_and_ejected() {
    const DRIVE: &str = "/redfish/v1/Systems/1/VirtualMedia/Cd";
    let fixture = ImagingFixture::new().await;
    let file = Artifact { sha256: "cd".repeat(32), size: 1_000, url: None };
    let body = ImageContent::Iso { file };
    fixture.store.add_image(Image { name: "rescue".into(), body, created_at: now() });
    let drives = "/redfish/v1/Systems/1/VirtualMedia";
    fixture.bmc.set(SYSTEM, "/VirtualMedia", json!({ "@odata.id": drives }));
    fixture.bmc.put_list(drives, &[DRIVE]);
    let empty = json!({
        "@odata.id": DRIVE, "Id": "Cd", "MediaTypes": ["CD", "DVD"], "Inserted": false, "Image": null});
    fixture.bmc.put(DRIVE, empty);
    let sources = "/Boot/BootSourceOverrideTarget@Redfish.AllowableValues";
    fixture.bmc.set(SYSTEM, sources, json!(["None", "Pxe", "Hdd", "Cd"]));
    let target = fixture.target();
    tokio::select! {
        ended = fixture.call_provider_for(&target, "rescue", CallVerb::Perform) => panic!("{ended:?}"),
        () = fixture.change_when(is_requested, |_| {}) => {}
    }
    let drive = fixture.bmc.get(DRIVE);
    assert!(drive["Image"].as_str().unwrap().ends_with("/disc.iso"), "{drive}");
    assert_eq!((&drive["Inserted"], fixture.boot().as_str()), (&json!(true), "Cd"));
    let (stopped, _) = fixture.call_provider_for(&target, "rescue", CallVerb::Stop).await;
    assert_eq!(stopped, Ok(ProviderAnswer::Stopped));
    assert_eq!(fixture.bmc.get(DRIVE)["Inserted"], json!(false));
    assert_eq!(fixture.boot(), "None");
    assert_eq!(fixture.resets(), ["ForceOff", "On"]);
}
