//! Firmware on scripted devices: what is sent, followed and read back, and that nothing is
//! installed twice.

use crate::desk::{Desk, behind, key, said, target, work};
use crate::http::Peer;
use crate::sushy::Emulator;
use crate::until;
use crate::updater::{
    COMPONENT, FETCH, FILE, FORM, Fate, NEW, OLD, PLAIN, SERVICE, Takes, Updater, file_server,
    parts, sha256,
};
use model::effect::{Answer, DeviceWork, Effect, Outcome, Verb};
use model::fault::{Code, Fault, Happened};
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
struct Scene {
    desk: Desk,
    device: Updater,
    peer: Peer,
    files: Peer,
    effect: Effect,
    target: Target,
}

impl Scene {
    async fn new(takes: Takes, fate: Fate) -> Self {
        let device = Updater::new(takes, fate);
        let peer = device.serve().await;
        let (files, url) = file_server().await;
        let effect = firmware(&url, sha256(FILE));
        let target = behind(TargetKind::Switch, &peer);
        Self { desk: Desk::new(), device, peer, files, effect, target }
    }

    async fn ask(&self, verb: Verb) -> Result<Answer, Fault> {
        self.desk.ask(&self.target, verb, &self.effect).await
    }

    async fn noted(&self) -> Option<Checkpoint> {
        self.desk.store.recall(&key(&self.effect)).await.unwrap()
    }
}

#[tokio::test]
async fn a_file_is_checked_sent_followed_and_the_version_read_back() {
    let scene = Scene::new(Takes::Form, Fate::Well).await;
    assert_eq!(scene.ask(Verb::GetStatus).await, Ok(Answer::NeverStarted));
    let Ok(Answer::Differs(seen)) = scene.ask(Verb::Observe).await else { panic!() };
    assert_eq!(seen, format!("BMC_0 is at {OLD}"));
    let (answer, log) = scene.desk.ask_and_read(&scene.target, Verb::Perform, &scene.effect).await;
    let Ok(Answer::Done(outcome)) = answer else { panic!("{answer:?}") };
    assert_eq!(outcome.said, format!("BMC_0 is at {NEW}"));
    let facts = outcome.facts.unwrap();
    assert_eq!(facts.replaced.as_deref(), Some(OLD));
    assert_eq!(facts.firmware.get("BMC_0").map(String::as_str), Some(NEW));
    for words in ["the checksum is right", "MultipartHttpPush", "Running, 10 %", "Completed, 100 %"]
    {
        assert!(log.contains(words), "{words:?} is not in {log}");
    }
    let (parameters, file) = parts(&scene.device.files()[0]);
    assert_eq!((parameters, file.as_str()), (json!({ "Targets": [COMPONENT] }), FILE));
    // A repeated call finds it done.
    for verb in [Verb::GetStatus, Verb::Follow, Verb::Perform, Verb::Observe, Verb::Stop] {
        let answer = scene.ask(verb).await;
        assert!(matches!(answer, Ok(Answer::Done(_))), "{verb:?}: {answer:?}");
    }
    assert_eq!(scene.device.files().len(), 1);
}

#[tokio::test]
async fn each_way_is_taken_that_a_device_offers() {
    for (takes, fate, path) in [
        (Takes::Plain, Fate::Well, PLAIN),
        (Takes::Fetch, Fate::Well, FETCH),
        (Takes::Form, Fate::Silent, FORM),
    ] {
        let scene = Scene::new(takes, fate).await;
        assert_eq!(said(scene.ask(Verb::Perform).await), format!("BMC_0 is at {NEW}"));
        assert_eq!(scene.peer.count("POST", path), 1, "{takes:?}");
        match takes {
            Takes::Form => {}
            Takes::Plain => {
                assert_eq!(scene.device.files(), [FILE]);
                assert_eq!(
                    scene.device.world.get(SERVICE)["HttpPushUriTargets"],
                    json!([COMPONENT])
                );
            }
            Takes::Fetch => {
                let body: serde_json::Value =
                    serde_json::from_str(&scene.device.files()[0]).unwrap();
                let url = format!("{}/bmc-2.0.bin", scene.files.url());
                assert_eq!(body, json!({ "ImageURI": url, "Targets": [COMPONENT] }));
                assert_eq!(scene.files.calls().len(), 1, "its checksum was compared before");
            }
        }
    }
}

#[tokio::test]
async fn what_has_the_version_is_left_alone() {
    let scene = Scene::new(Takes::Form, Fate::Well).await;
    scene.device.world.set(COMPONENT, "/Version", json!(NEW));
    let Ok(Answer::Done(outcome)) = scene.ask(Verb::Perform).await else { panic!() };
    assert_eq!(outcome.said, format!("BMC_0 is already at {NEW}, and was left alone"));
    assert_eq!(outcome.facts.unwrap().replaced, None);
    assert!(scene.device.files().is_empty());
    assert!(scene.files.calls().is_empty(), "nothing was fetched for nothing");
    assert_eq!(said(scene.ask(Verb::GetStatus).await), outcome.said);
}

#[tokio::test]
async fn a_device_is_not_touched_before_the_file_is_right() {
    let scene = Scene::new(Takes::Form, Fate::Well).await;
    let (base, right) = (scene.files.url(), sha256(FILE));
    for (effect, code, words) in [
        (
            firmware(&format!("{base}/bmc-2.0.bin"), sha256("x")),
            Code::ChecksumWrong,
            "has the SHA-256",
        ),
        (firmware(&format!("{base}/none.bin"), right.clone()), Code::FirmwareUnfetched, "404"),
        (firmware("http://127.0.0.1:1/x", right.clone()), Code::FirmwareUnfetched, "127.0.0.1:1"),
        (firmware("tftp://10.0.0.1/x", right.clone()), Code::NotSupported, "http or https"),
        (
            work(DeviceWork::Firmware {
                component: "CPLD".into(),
                version: NEW.into(),
                url: format!("{base}/bmc-2.0.bin"),
                sha256: right.clone(),
            }),
            Code::NotSupported,
            "it has BMC_0",
        ),
    ] {
        let desk = Desk::new();
        let fault = desk.ask(&scene.target, Verb::Perform, &effect).await.unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
        assert_eq!(fault.code.happened(), Happened::No);
        assert!(fault.said.contains(words), "{fault}");
    }
    let moved = firmware(&format!("{base}/moved.bin"), right);
    scene.device.world.set(SERVICE, "/MaxImageSizeBytes", json!(5));
    let fault = Desk::new().ask(&scene.target, Verb::Perform, &moved).await.unwrap_err();
    assert!(fault.said.contains("takes 5 at most"), "{fault}");
    scene.device.world.set(SERVICE, "/ServiceEnabled", json!(false));
    let fault = Desk::new().ask(&scene.target, Verb::Perform, &moved).await.unwrap_err();
    assert!(fault.said.contains("switched off"), "{fault}");
    assert_eq!(scene.device.files(), [""; 0]);
}

#[tokio::test]
async fn what_goes_wrong_on_the_device_has_its_code_and_its_words() {
    for (fate, code, words) in [
        (Fate::Fails, Code::FirmwareFailed, "The signature is not valid."),
        (Fate::Wrong, Code::FirmwareDiffers, "shows 1.9"),
    ] {
        let scene = Scene::new(Takes::Form, fate).await;
        let fault = scene.ask(Verb::Perform).await.unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.said.contains(words), "{fault}");
        assert_eq!(scene.device.files().len(), 1);
    }
}

#[tokio::test]
async fn a_controller_that_restarts_or_forgets_is_believed_by_its_version() {
    for fate in [Fate::Restarts(25), Fate::Forgotten] {
        let scene = Scene::new(Takes::Form, fate).await;
        assert_eq!(said(scene.ask(Verb::Perform).await), format!("BMC_0 is at {NEW}"), "{fate:?}");
        assert_eq!(scene.device.files().len(), 1);
    }
}

#[tokio::test]
async fn a_task_that_is_lost_is_left_to_a_person() {
    let scene = Scene::new(Takes::Form, Fate::Lost).await;
    let fault = scene.ask(Verb::Perform).await.unwrap_err();
    assert_eq!(fault.code, Code::TaskLost, "{fault}");
    for _ in 0..2 {
        let Ok(Answer::Unknown(seen)) = scene.ask(Verb::GetStatus).await else { panic!() };
        assert!(seen.contains("it shows 1.0"), "{seen}");
    }
    assert_eq!(scene.device.files().len(), 1);
    // The operator checked, and the device has the version after all.
    scene.device.world.set(COMPONENT, "/Version", json!(NEW));
    assert_eq!(said(scene.ask(Verb::GetStatus).await), format!("BMC_0 is at {NEW}"));
}

/// The checkpoint says that the update was requested, and the device shows no trace of it: it is
/// not requested again.
#[tokio::test]
async fn what_may_have_been_asked_is_never_asked_again() {
    let scene = Scene::new(Takes::Form, Fate::Well).await;
    let asked = |ago: Duration| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() - ago;
        json!({"what": "firmware", "stage": {"asked": {"since": now.as_micros() as i64, "before": []}}})
    };
    let note = Checkpoint::Begun(asked(Duration::ZERO));
    scene.desk.store.begin(&key(&scene.effect), &note).await.unwrap();
    assert_eq!(scene.ask(Verb::GetStatus).await, Ok(Answer::UnderWay), "it may need a moment");
    let fault = scene.ask(Verb::Follow).await.unwrap_err();
    assert_eq!(fault.code.happened(), Happened::Maybe, "{fault}");
    let Ok(Answer::Unknown(seen)) = scene.ask(Verb::GetStatus).await else { panic!() };
    assert!(seen.contains("no task came of it, and the version is 1.0"), "{seen}");
    let fault = scene.ask(Verb::Perform).await.unwrap_err();
    assert_eq!(fault.code.happened(), Happened::Maybe, "{fault}");
    assert_eq!(scene.device.files(), [""; 0]);
    assert_eq!(scene.device.version(), OLD);
}

#[tokio::test]
async fn what_is_under_way_is_found_again_by_its_task() {
    let scene = Scene::new(Takes::Form, Fate::Slow).await;
    {
        let target = scene.target.clone();
        let replica = scene.desk.replica();
        let (journal, _lines) = Journal::new();
        let order = model::effect::Order {
            key: key(&scene.effect),
            verb: Verb::Perform,
            effect: scene.effect.clone(),
            logged: 0,
        };
        // The process crashes while the device works, after it stored the task.
        let working = until("the task is stored", async || {
            format!("{:?}", scene.noted().await).contains("Tasks/1")
        });
        tokio::select! {
            answer = replica.ask(&target, &order, &journal) => panic!("{answer:?}"),
            () = working => {}
        }
    }
    assert_eq!(scene.ask(Verb::GetStatus).await, Ok(Answer::UnderWay));
    scene.device.world.set("/redfish/v1/TaskService/Tasks/1", "/TaskState", json!("Completed"));
    scene.device.world.set(COMPONENT, "/Version", json!(NEW));
    assert_eq!(said(scene.ask(Verb::Follow).await), format!("BMC_0 is at {NEW}"));
    assert_eq!(scene.device.files().len(), 1);
}

#[tokio::test]
async fn what_has_begun_is_seen_through_and_what_has_not_is_stopped() {
    let scene = Scene::new(Takes::Form, Fate::Well).await;
    assert_eq!(scene.ask(Verb::Stop).await, Ok(Answer::Stopped));
    let late = scene.ask(Verb::Perform).await.unwrap_err();
    assert!(late.said.contains("stopped before it began"), "{late}");
    assert_eq!(scene.device.files(), [""; 0]);

    for (fate, expected) in [(Fate::Well, true), (Fate::Fails, false)] {
        let scene = Scene::new(Takes::Form, fate).await;
        let path = "/redfish/v1/TaskService/Tasks/1";
        scene.device.world.put(path, json!({"@odata.id": path, "TaskState": "Running"}));
        let note = json!({"what": "firmware", "stage": {"task": {"task": path}}});
        scene.desk.store.begin(&key(&scene.effect), &Checkpoint::Begun(note)).await.unwrap();
        let answer = scene.ask(Verb::Stop).await.unwrap();
        assert_eq!(matches!(answer, Answer::Done(_)), expected, "{answer:?}");
        assert!(expected || answer == Answer::Stopped, "{answer:?}");
    }
}

/// A file that did not arrive completely is refused: nothing happened, and the fault says so.
#[tokio::test]
async fn half_a_file_is_no_file() {
    let scene = Scene::new(Takes::Form, Fate::Well).await;
    let big: String = "0123456789abcdef".repeat(256 * 1024);
    let (served, checksum) = (big.clone(), sha256(&big));
    let files = Peer::start(move |_| crate::http::Said::status(200, &served)).await;
    scene.device.world.set(SERVICE, "/MaxImageSizeBytes", json!(100_000_000));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let device = scene.device.clone();
    let door = tokio::spawn(half_deaf(listener, device));
    let spec = MachineSpec { bmc_endpoint: format!("http://{address}"), ..MachineSpec::default() };
    let target = target(TargetKind::Switch, spec);
    let effect = firmware(&files.url(), checksum);
    let fault = scene.desk.ask(&target, Verb::Perform, &effect).await.unwrap_err();
    assert_eq!(fault.code, Code::BmcUnreachable, "{fault}");
    let begun = Checkpoint::Begun(json!({"what": "firmware", "stage": "begun"}));
    assert_eq!(scene.noted().await, Some(begun));
    door.abort();
}

/// Forwards everything to the device, and closes the connection in the middle of a file.
async fn half_deaf(listener: TcpListener, device: Updater) {
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
    let mut desk = Desk::new();
    desk.settings.trust = TrustPolicy::Ca(emulator.trust());
    desk.settings.redfish = providers::redfish::Settings::default();
    desk.settings.call = Duration::from_secs(30);
    let spec = MachineSpec { bmc_endpoint: emulator.url(), ..MachineSpec::default() };
    let target = target(TargetKind::Machine, spec);
    let bios = |version: &str| {
        let (component, url, sha256) = ("BIOS".into(), url.clone(), sha256(FILE));
        work(DeviceWork::Firmware { component, version: version.into(), url, sha256 })
    };
    let answer = desk.ask(&target, Verb::Perform, &work(DeviceWork::Read)).await;
    let Ok(Answer::Done(Outcome { facts: Some(facts), .. })) = answer else { panic!("{answer:?}") };
    assert_eq!(facts.firmware.get("BIOS").map(String::as_str), Some("1.0.0"));
    let answer = desk.ask(&target, Verb::Perform, &bios("1.1.0")).await;
    let Ok(Answer::Done(outcome)) = answer else { panic!("{answer:?}") };
    assert_eq!(outcome.said, "BIOS is at 1.1.0");
    assert_eq!(outcome.facts.unwrap().replaced.as_deref(), Some("1.0.0"));
    assert_eq!(files.calls().len(), 1);
    // Under another key the same version is left alone, and another version is not what the update
    // yields.
    desk.store = Desk::new().store;
    let told = said(desk.ask(&target, Verb::Perform, &bios("1.1.0")).await);
    assert_eq!(told, "BIOS is already at 1.1.0, and was left alone");
    desk.store = Desk::new().store;
    let fault = desk.ask(&target, Verb::Perform, &bios("7.0.0")).await.unwrap_err();
    assert_eq!(fault.code, Code::TaskLost, "{fault}");
    let Ok(Answer::Unknown(seen)) = desk.ask(&target, Verb::GetStatus, &bios("7.0.0")).await else {
        panic!()
    };
    assert!(seen.contains("it shows 1.2.0"), "{seen}");
}
