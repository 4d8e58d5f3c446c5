//! Firmware on scripted devices: what is sent, followed and read back, and that nothing is
//! installed twice.

use crate::datacenter_fixture::{
    DatacenterFixture, done_message, key, target, target_behind, work,
};
use crate::fake_updater::{
    COMPONENT, FETCH, FILE, FORM, NEW, OLD, PLAIN, SERVICE, UpdateOutcome, Updater, UploadMethod,
    file_server, parts, sha256,
};
use crate::http::Peer;
use crate::sushy::Emulator;
use crate::until;
use model::effect::{CallOutcome, CallResult, CallVerb, DeviceWork, Effect, ProviderAnswer};
use model::fault::{EffectOutcome, FaultCode};
use model::machine::MachineSpec;
use model::target::TargetKind;
use providers::peer_login::TrustPolicy;
use providers::state_store::{Checkpoint, ProviderStateStore};
use providers::{Journal, Provider, Target};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

fn firmware(url: &str, checksum: String) -> Effect {
    work(DeviceWork::Firmware {
        component: "BMC_0".into(),
        version: NEW.into(),
        url: url.into(),
        sha256: checksum,
    })
}

/// A device of this kind, with a file server for its firmware.
struct FirmwareFixture {
    fixture: DatacenterFixture,
    device: Updater,
    peer: Peer,
    files: Peer,
    effect: Effect,
    target: Target,
}

impl FirmwareFixture {
    async fn new(takes: UploadMethod, impact: UpdateOutcome) -> Self {
        let device = Updater::new(takes, impact);
        let peer = device.serve().await;
        let (files, url) = file_server().await;
        let effect = firmware(&url, sha256(FILE));
        let target = target_behind(TargetKind::Switch, &peer);
        Self { fixture: DatacenterFixture::new(), device, peer, files, effect, target }
    }

    async fn call_provider(&self, verb: CallVerb) -> CallResult {
        self.fixture.call_provider(&self.target, verb, &self.effect).await
    }

    async fn stored_checkpoint(&self) -> Option<Checkpoint> {
        self.fixture.store.checkpoint(&key(&self.effect)).await.unwrap()
    }
}

#[tokio::test]
async fn a_file_is_checked_sent_followed_and_the_version_read_back() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Well).await;
    assert_eq!(fixture.call_provider(CallVerb::GetStatus).await, Ok(ProviderAnswer::NeverStarted));
    let Ok(ProviderAnswer::Differs(observed)) = fixture.call_provider(CallVerb::Observe).await
    else {
        panic!()
    };
    assert_eq!(observed, format!("BMC_0 is at {OLD}"));
    let (answer, log) =
        fixture.fixture.call_with_log(&fixture.target, CallVerb::Perform, &fixture.effect).await;
    let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{answer:?}") };
    assert_eq!(outcome.message, format!("BMC_0 is at {NEW}"));
    let facts = outcome.facts.unwrap();
    assert_eq!(facts.replaced.as_deref(), Some(OLD));
    assert_eq!(facts.firmware.get("BMC_0").map(String::as_str), Some(NEW));
    for words in ["the checksum is right", "MultipartHttpPush", "Running, 10 %", "Completed, 100 %"]
    {
        assert!(log.contains(words), "{words:?} is not in {log}");
    }
    let (parameters, file) = parts(&fixture.device.files()[0]);
    assert_eq!((parameters, file.as_str()), (json!({ "Targets": [COMPONENT] }), FILE));
    // A repeated call finds it done.
    for verb in [
        CallVerb::GetStatus,
        CallVerb::Follow,
        CallVerb::Perform,
        CallVerb::Observe,
        CallVerb::Stop,
    ] {
        let answer = fixture.call_provider(verb).await;
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{verb:?}: {answer:?}");
    }
    assert_eq!(fixture.device.files().len(), 1);
}

#[tokio::test]
async fn every_upload_method_works() {
    for (takes, impact, path) in [
        (UploadMethod::Plain, UpdateOutcome::Well, PLAIN),
        (UploadMethod::Fetch, UpdateOutcome::Well, FETCH),
        (UploadMethod::Form, UpdateOutcome::Silent, FORM),
    ] {
        let fixture = FirmwareFixture::new(takes, impact).await;
        assert_eq!(
            done_message(fixture.call_provider(CallVerb::Perform).await),
            format!("BMC_0 is at {NEW}")
        );
        assert_eq!(fixture.peer.count("POST", path), 1, "{takes:?}");
        match takes {
            UploadMethod::Form => {}
            UploadMethod::Plain => {
                assert_eq!(fixture.device.files(), [FILE]);
                assert_eq!(
                    fixture.device.bmc.get(SERVICE)["HttpPushUriTargets"],
                    json!([COMPONENT])
                );
            }
            UploadMethod::Fetch => {
                let body: serde_json::Value =
                    serde_json::from_str(&fixture.device.files()[0]).unwrap();
                let url = format!("{}/bmc-2.0.bin", fixture.files.url());
                assert_eq!(body, json!({ "ImageURI": url, "Targets": [COMPONENT] }));
                assert_eq!(fixture.files.calls().len(), 1, "its checksum was compared before");
            }
        }
    }
}

#[tokio::test]
async fn a_device_with_the_version_is_left_alone() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Well).await;
    fixture.device.bmc.set(COMPONENT, "/Version", json!(NEW));
    let Ok(ProviderAnswer::Done(outcome)) = fixture.call_provider(CallVerb::Perform).await else {
        panic!()
    };
    assert_eq!(outcome.message, format!("BMC_0 is already at {NEW}, and was left alone"));
    assert_eq!(outcome.facts.unwrap().replaced, None);
    assert!(fixture.device.files().is_empty());
    assert!(fixture.files.calls().is_empty(), "nothing was fetched for nothing");
    assert_eq!(done_message(fixture.call_provider(CallVerb::GetStatus).await), outcome.message);
}

#[tokio::test]
async fn a_device_is_not_touched_before_the_file_is_right() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Well).await;
    let (base, right) = (fixture.files.url(), sha256(FILE));
    for (effect, code, words) in [
        (
            firmware(&format!("{base}/bmc-2.0.bin"), sha256("x")),
            FaultCode::ChecksumWrong,
            "has the SHA-256",
        ),
        (firmware(&format!("{base}/none.bin"), right.clone()), FaultCode::FirmwareUnfetched, "404"),
        (
            firmware("http://127.0.0.1:1/x", right.clone()),
            FaultCode::FirmwareUnfetched,
            "127.0.0.1:1",
        ),
        (firmware("tftp://10.0.0.1/x", right.clone()), FaultCode::NotSupported, "http or https"),
        (
            work(DeviceWork::Firmware {
                component: "CPLD".into(),
                version: NEW.into(),
                url: format!("{base}/bmc-2.0.bin"),
                sha256: right.clone(),
            }),
            FaultCode::NotSupported,
            "it has BMC_0",
        ),
    ] {
        let datacenter_fixture = DatacenterFixture::new();
        let fault = datacenter_fixture
            .call_provider(&fixture.target, CallVerb::Perform, &effect)
            .await
            .unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
        assert_eq!(fault.code.effect_outcome(), EffectOutcome::NotApplied);
        assert!(fault.message.contains(words), "{fault}");
    }
    let moved = firmware(&format!("{base}/moved.bin"), right);
    fixture.device.bmc.set(SERVICE, "/MaxImageSizeBytes", json!(5));
    let fault = DatacenterFixture::new()
        .call_provider(&fixture.target, CallVerb::Perform, &moved)
        .await
        .unwrap_err();
    assert!(fault.message.contains("takes 5 at most"), "{fault}");
    fixture.device.bmc.set(SERVICE, "/ServiceEnabled", json!(false));
    let fault = DatacenterFixture::new()
        .call_provider(&fixture.target, CallVerb::Perform, &moved)
        .await
        .unwrap_err();
    assert!(fault.message.contains("switched off"), "{fault}");
    assert_eq!(fixture.device.files(), [""; 0]);
}

#[tokio::test]
async fn a_failed_update_reports_code_and_message() {
    for (impact, code, words) in [
        (UpdateOutcome::Fails, FaultCode::FirmwareFailed, "The signature is not valid."),
        (UpdateOutcome::Wrong, FaultCode::FirmwareDiffers, "shows 1.9"),
    ] {
        let fixture = FirmwareFixture::new(UploadMethod::Form, impact).await;
        let fault = fixture.call_provider(CallVerb::Perform).await.unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.message.contains(words), "{fault}");
        assert_eq!(fixture.device.files().len(), 1);
    }
}

#[tokio::test]
async fn a_forgotten_task_is_decided_by_the_version() {
    for impact in [UpdateOutcome::Restarts(25), UpdateOutcome::Forgotten] {
        let fixture = FirmwareFixture::new(UploadMethod::Form, impact).await;
        assert_eq!(
            done_message(fixture.call_provider(CallVerb::Perform).await),
            format!("BMC_0 is at {NEW}"),
            "{impact:?}"
        );
        assert_eq!(fixture.device.files().len(), 1);
    }
}

#[tokio::test]
async fn a_lost_task_is_left_to_the_operator() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Lost).await;
    let fault = fixture.call_provider(CallVerb::Perform).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::TaskLost, "{fault}");
    for _ in 0..2 {
        let Ok(ProviderAnswer::Unknown(observed)) =
            fixture.call_provider(CallVerb::GetStatus).await
        else {
            panic!()
        };
        assert!(observed.contains("it shows 1.0"), "{observed}");
    }
    assert_eq!(fixture.device.files().len(), 1);
    // The operator checked, and the device has the version after all.
    fixture.device.bmc.set(COMPONENT, "/Version", json!(NEW));
    assert_eq!(
        done_message(fixture.call_provider(CallVerb::GetStatus).await),
        format!("BMC_0 is at {NEW}")
    );
}

/// The checkpoint says that the update was requested, and the device shows no trace of it: it is
/// not requested again.
#[tokio::test]
async fn a_possibly_sent_update_is_not_repeated() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Well).await;
    let requested = |ago: Duration| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() - ago;
        json!({"what": "firmware", "stage": {"asked": {"since": now.as_micros() as i64, "before": []}}})
    };
    let note = Checkpoint::Begun(requested(Duration::ZERO));
    fixture.fixture.store.begin(&key(&fixture.effect), &note).await.unwrap();
    assert_eq!(
        fixture.call_provider(CallVerb::GetStatus).await,
        Ok(ProviderAnswer::UnderWay),
        "it may need a moment"
    );
    let fault = fixture.call_provider(CallVerb::Follow).await.unwrap_err();
    assert_eq!(fault.code.effect_outcome(), EffectOutcome::Unknown, "{fault}");
    let Ok(ProviderAnswer::Unknown(observed)) = fixture.call_provider(CallVerb::GetStatus).await
    else {
        panic!()
    };
    assert!(observed.contains("no task came of it, and the version is 1.0"), "{observed}");
    let fault = fixture.call_provider(CallVerb::Perform).await.unwrap_err();
    assert_eq!(fault.code.effect_outcome(), EffectOutcome::Unknown, "{fault}");
    assert_eq!(fixture.device.files(), [""; 0]);
    assert_eq!(fixture.device.version(), OLD);
}

#[tokio::test]
async fn an_update_in_progress_is_found_by_its_task() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Slow).await;
    {
        let target = fixture.target.clone();
        let replica = fixture.fixture.replica();
        let (journal, _lines) = Journal::new();
        let call = model::effect::ProviderCall {
            key: key(&fixture.effect),
            verb: CallVerb::Perform,
            effect: fixture.effect.clone(),
            log_offset_bytes: 0,
        };
        // The process crashes while the device works, after it stored the task.
        let working = until("the task is stored", async || {
            format!("{:?}", fixture.stored_checkpoint().await).contains("Tasks/1")
        });
        tokio::select! {
            answer = replica.call(&target, &call, &journal) => panic!("{answer:?}"),
            () = working => {}
        }
    }
    assert_eq!(fixture.call_provider(CallVerb::GetStatus).await, Ok(ProviderAnswer::UnderWay));
    fixture.device.bmc.set("/redfish/v1/TaskService/Tasks/1", "/TaskState", json!("Completed"));
    fixture.device.bmc.set(COMPONENT, "/Version", json!(NEW));
    assert_eq!(
        done_message(fixture.call_provider(CallVerb::Follow).await),
        format!("BMC_0 is at {NEW}")
    );
    assert_eq!(fixture.device.files().len(), 1);
}

#[tokio::test]
async fn a_stop_lets_a_started_update_finish() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Well).await;
    assert_eq!(fixture.call_provider(CallVerb::Stop).await, Ok(ProviderAnswer::Stopped));
    let late = fixture.call_provider(CallVerb::Perform).await.unwrap_err();
    assert!(late.message.contains("stopped before it began"), "{late}");
    assert_eq!(fixture.device.files(), [""; 0]);

    for (impact, expected) in [(UpdateOutcome::Well, true), (UpdateOutcome::Fails, false)] {
        let fixture = FirmwareFixture::new(UploadMethod::Form, impact).await;
        let path = "/redfish/v1/TaskService/Tasks/1";
        fixture.device.bmc.put(path, json!({"@odata.id": path, "TaskState": "Running"}));
        let note = json!({"what": "firmware", "stage": {"task": {"task": path}}});
        fixture.fixture.store.begin(&key(&fixture.effect), &Checkpoint::Begun(note)).await.unwrap();
        let answer = fixture.call_provider(CallVerb::Stop).await.unwrap();
        assert_eq!(matches!(answer, ProviderAnswer::Done(_)), expected, "{answer:?}");
        assert!(expected || answer == ProviderAnswer::Stopped, "{answer:?}");
    }
}

/// A file that did not arrive completely is refused: nothing happened, and the fault says so.
#[tokio::test]
async fn an_incomplete_upload_is_not_installed() {
    let fixture = FirmwareFixture::new(UploadMethod::Form, UpdateOutcome::Well).await;
    let big: String = "0123456789abcdef".repeat(256 * 1024);
    let (served, checksum) = (big.clone(), sha256(&big));
    let files = Peer::start(move |_| crate::http::Response::status(200, &served)).await;
    fixture.device.bmc.set(SERVICE, "/MaxImageSizeBytes", json!(100_000_000));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let device = fixture.device.clone();
    let client = tokio::spawn(forward_half_a_file(listener, device));
    let spec = MachineSpec { bmc_endpoint: format!("http://{address}"), ..MachineSpec::default() };
    let target = target(TargetKind::Switch, spec);
    let effect = firmware(&files.url(), checksum);
    let fault =
        fixture.fixture.call_provider(&target, CallVerb::Perform, &effect).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::BmcUnreachable, "{fault}");
    let begun = Checkpoint::Begun(json!({"what": "firmware", "stage": "begun"}));
    assert_eq!(fixture.stored_checkpoint().await, Some(begun));
    client.abort();
}

/// Forwards everything to the device, and closes the connection in the middle of a file.
async fn forward_half_a_file(listener: TcpListener, device: Updater) {
    let inner = device.serve().await;
    let to = inner.url().trim_start_matches("http://").to_owned();
    while let Ok((mut stream, _)) = listener.accept().await {
        let to = to.clone();
        tokio::spawn(async move {
            let mut first = [0; 4];
            if stream.read_exact(&mut first).await.is_err() {
                return;
            }
            if &first == b"POST" {
                let mut some = vec![0; 200_000];
                let _ = stream.read_exact(&mut some).await;
                return;
            }
            let mut beyond = tokio::net::TcpStream::connect(to).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut beyond, &first).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut beyond).await;
        });
    }
}

/// A third-party emulator: it raises the version of its BIOS by one with each update.
#[tokio::test]
async fn sushy_installs_firmware() {
    let Some(emulator) = Emulator::with_firmware().await else { return };
    let (files, url) = file_server().await;
    let mut fixture = DatacenterFixture::new();
    fixture.settings.trust = TrustPolicy::Ca(emulator.trust());
    fixture.settings.redfish = providers::redfish::Settings::default();
    fixture.settings.call_timeout = Duration::from_secs(30);
    let spec = MachineSpec { bmc_endpoint: emulator.url(), ..MachineSpec::default() };
    let target = target(TargetKind::Machine, spec);
    let bios = |version: &str| {
        let (component, url, sha256) = ("BIOS".into(), url.clone(), sha256(FILE));
        work(DeviceWork::Firmware { component, version: version.into(), url, sha256 })
    };
    let answer = fixture.call_provider(&target, CallVerb::Perform, &work(DeviceWork::Read)).await;
    let Ok(ProviderAnswer::Done(CallOutcome { facts: Some(facts), .. })) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(facts.firmware.get("BIOS").map(String::as_str), Some("1.0.0"));
    let answer = fixture.call_provider(&target, CallVerb::Perform, &bios("1.1.0")).await;
    let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{answer:?}") };
    assert_eq!(outcome.message, "BIOS is at 1.1.0");
    assert_eq!(outcome.facts.unwrap().replaced.as_deref(), Some("1.0.0"));
    assert_eq!(files.calls().len(), 1);
    // Under another key the same version is left alone, and another version is not what the update
    // yields.
    fixture.store = DatacenterFixture::new().store;
    let reported =
        done_message(fixture.call_provider(&target, CallVerb::Perform, &bios("1.1.0")).await);
    assert_eq!(reported, "BIOS is already at 1.1.0, and was left alone");
    fixture.store = DatacenterFixture::new().store;
    let fault =
        fixture.call_provider(&target, CallVerb::Perform, &bios("7.0.0")).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::TaskLost, "{fault}");
    let Ok(ProviderAnswer::Unknown(observed)) =
        fixture.call_provider(&target, CallVerb::GetStatus, &bios("7.0.0")).await
    else {
        panic!()
    };
    assert!(observed.contains("it shows 1.2.0"), "{observed}");
}
