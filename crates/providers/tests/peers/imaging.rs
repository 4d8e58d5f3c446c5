//! Writing an image to a machine, against a scripted BMC and a deploy environment played by the
//! test: the requests to the BMC, the result of each report or missing report, and what a stop
//! leaves behind.

use crate::DEADLINE;
use crate::http::{Call, Peer};
use crate::world::{PASSWORD, RESET, SYSTEM, World, settings};
use model::deploy::{Claim, Deployment, Report, ReportStep, Stage, Trouble};
use model::effect::{Answer, Effect, Key, Order, Verb};
use model::fault::{Code, Fault};
use model::id::{MachineId, RunId};
use model::image::{Artifact, Body, DiskFormat, Image};
use model::machine::MachineSpec;
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

struct Scene {
    store: Arc<InMemoryStateStore>,
    world: World,
    peer: Peer,
    /// The limits for booting and for silence.
    boot: Duration,
    silence: Duration,
}

impl Scene {
    /// With limits that do not expire.
    async fn new() -> Self {
        Self::within(DEADLINE, DEADLINE).await
    }

    async fn within(boot: Duration, silence: Duration) -> Self {
        let store = Arc::new(InMemoryStateStore::default());
        let secret = |user: &str| Secret::Password {
            user: user.into(),
            password: PASSWORD.to_string().into(),
        };
        store.set("bmc", secret("root"));
        store.set("host", secret("admin"));
        let file = Artifact { sha256: "ab".repeat(32), size: 1_000, url: None };
        let body = Body::Disk { format: DiskFormat::Raw, file };
        store.add_image(Image { name: "debian".into(), body, created_at: now() });
        let world = World::new();
        world.set(SYSTEM, "/PowerState", json!("On"));
        let peer = world.serve().await;
        Self { store, world, peer, boot, silence }
    }

    /// One replica; another one can continue.
    fn replica(&self) -> Datacenter {
        let power_timeouts = PowerTimeouts { graceful: Duration::ZERO, ..PowerTimeouts::default() };
        let imaging = Imaging {
            url: "http://10.0.0.1:8480".into(),
            token: Duration::from_secs(60),
            boot: self.boot,
            silence: self.silence,
        };
        let settings = Settings {
            bmc_credential: "bmc".into(),
            ssh_credential: "host".into(),
            power_timeouts,
            call: Duration::from_secs(15),
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

    async fn ask(&self, verb: Verb) -> Result<Answer, Fault> {
        self.ask_of(&self.target(), "debian", verb).await.0
    }

    async fn ask_of(
        &self,
        target: &Target,
        image: &str,
        verb: Verb,
    ) -> (Result<Answer, Fault>, String) {
        let effect = Effect::Repave { image: image.into() };
        let order = Order { key: key(), verb, effect, logged: 0 };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move {
            let mut log = Vec::new();
            while let Some(line) = lines.recv().await {
                log.extend(line.data);
            }
            String::from_utf8(log).unwrap()
        });
        let answer = self.replica().ask(target, &order, &journal).await;
        drop(journal);
        (answer, reader.await.unwrap())
    }

    /// Waits until the deployment matches, then changes it.
    async fn when(
        &self,
        ready: impl Fn(&Deployment) -> bool,
        change: impl FnOnce(&mut Deployment),
    ) {
        loop {
            if let Some(one) = self.store.deployment(&key()).await.unwrap()
                && ready(&one)
                && self.resets() == ["ForceOff", "On"]
            {
                self.store.change(&key(), change).unwrap();
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn resets(&self) -> Vec<String> {
        let calls = self.peer.calls();
        let resets = calls.iter().filter(|call| call.is("POST", RESET));
        let word = |call: &Call| call.body.split('"').nth(3).unwrap().to_string();
        resets.map(word).collect()
    }

    async fn stage(&self) -> Option<Stage> {
        self.store.deployment(&key()).await.unwrap().map(|one| one.stage)
    }

    fn boot(&self) -> String {
        self.world.get(SYSTEM)["Boot"]["BootSourceOverrideTarget"].as_str().unwrap().to_string()
    }
}

fn key() -> Key {
    Key::new(&RunId::trusted("op-1"), "repave-os", 1)
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    Timestamp::from_micros(since.as_micros() as i64)
}

fn wanted(one: &Deployment) -> bool {
    one.stage == Stage::Wanted
}

fn claim(one: &mut Deployment) {
    one.claim(&Claim { macs: vec![MAC.into()], session: "s".into() }, now()).unwrap();
}

fn says(step: ReportStep, done: u64, said: &str) -> impl FnOnce(&mut Deployment) {
    let report =
        Report { step, done, total: 1_000, said: said.into(), host_keys: vec![HOST_KEY.into()] };
    move |one| {
        one.hear(&report, now());
    }
}

#[tokio::test]
async fn a_machine_that_never_boots_is_said_to_be_silent() {
    let scene = Scene::within(SHORT, DEADLINE).await;
    let fault = scene.ask(Verb::Perform).await.unwrap_err();
    assert_eq!(fault.code, Code::NetbootSilent, "{fault}");
    assert!(fault.said.contains("never asked http://10.0.0.1:8480"), "{fault}");
    assert_eq!(scene.resets(), ["ForceOff", "On"]);
    assert_eq!(scene.boot(), "None");
    assert_eq!(scene.stage().await, Some(Stage::Closed), "nobody is told to boot it any more");

    let scene = Scene::within(SHORT, DEADLINE).await;
    let asks = scene.when(wanted, |one| one.asked_at = Some(now()));
    let (fault, ()) = tokio::join!(scene.ask(Verb::Perform), asks);
    let fault = fault.unwrap_err();
    assert_eq!(fault.code, Code::NetbootSilent, "{fault}");
    assert!(fault.said.contains("was told what to boot"), "{fault}");
}

#[tokio::test]
async fn what_the_deploy_environment_cannot_do_has_its_code() {
    for (trouble, code) in [
        (Trouble::ChecksumWrong, Code::ChecksumWrong),
        (Trouble::DiskTooSmall, Code::DiskUnfit),
        (Trouble::DiskAmbiguous, Code::DiskUnfit),
        (Trouble::InstallFailed, Code::InstallFailed),
    ] {
        let scene = Scene::new().await;
        let plays = async {
            scene.when(wanted, claim).await;
            let fails = says(ReportStep::Failed(trouble), 0, "because of /dev/sda");
            scene.when(|_| true, fails).await;
        };
        let (fault, ()) = tokio::join!(scene.ask(Verb::Perform), plays);
        let fault = fault.unwrap_err();
        assert_eq!((fault.code, fault.said.as_str()), (code, "because of /dev/sda"));
        assert_eq!(scene.stage().await, Some(Stage::Closed));
    }
}

#[tokio::test]
async fn who_falls_silent_loses_its_session() {
    let scene = Scene::within(DEADLINE, SHORT).await;
    let target = scene.target();
    let plays = async {
        scene.when(wanted, claim).await;
        scene.when(|_| true, says(ReportStep::Writing, 420, "writing")).await;
    };
    let ((fault, log), ()) = tokio::join!(scene.ask_of(&target, "debian", Verb::Perform), plays);
    let fault = fault.unwrap_err();
    assert_eq!(fault.code, Code::DeploySilent, "{fault}");
    assert!(fault.said.contains("it was at 42 %"), "{fault}");
    assert!(log.contains("image: 42 % written (420 of 1000 bytes)"), "{log}");
    assert_eq!(scene.stage().await, Some(Stage::Closed));
}

#[tokio::test]
async fn what_was_installed_is_let_go_to_its_disk_and_must_come_back() {
    let scene = Scene::within(SHORT, DEADLINE).await;
    let plays = async {
        scene.when(wanted, claim).await;
        scene.when(|_| true, says(ReportStep::Installed, 1_000, "installed")).await;
        scene.when(|one| one.stage == Stage::Released, |_| {}).await;
        assert_eq!(scene.boot(), "None", "its own boot order before it is let go");
        let known = scene.store.identity("ssh://127.0.0.1:9").await.unwrap();
        assert_eq!(known.as_deref(), Some(HOST_KEY), "whom we will meet");
    };
    let (fault, ()) = tokio::join!(scene.ask(Verb::Perform), plays);
    let fault = fault.unwrap_err();
    assert_eq!(fault.code, Code::SystemNotBack, "{fault}");
    assert_eq!(scene.resets(), ["ForceOff", "On"], "it restarts by itself");
}

#[tokio::test]
async fn another_replica_goes_on_without_touching_power() {
    let scene = Scene::new().await;
    assert_eq!(scene.ask(Verb::GetStatus).await, Ok(Answer::NeverStarted));
    let dies = async {
        scene.when(wanted, claim).await;
        scene.when(|_| true, says(ReportStep::Writing, 10, "writing")).await;
    };
    tokio::select! {
        ended = scene.ask(Verb::Perform) => panic!("{ended:?}"),
        () = dies => {}
    }
    assert_eq!(scene.ask(Verb::GetStatus).await, Ok(Answer::UnderWay));
    let broken = says(ReportStep::Failed(Trouble::ImageBroken), 0, "not a disk");
    let (fault, ()) = tokio::join!(scene.ask(Verb::Follow), scene.when(|_| true, broken));
    assert_eq!(fault.unwrap_err().code, Code::InstallFailed);
    assert_eq!(scene.resets(), ["ForceOff", "On"]);
}

#[tokio::test]
async fn a_stop_bars_closes_or_comes_too_late() {
    let scene = Scene::new().await;
    assert_eq!(scene.ask(Verb::Stop).await, Ok(Answer::Stopped));
    let fault = scene.ask(Verb::Perform).await.unwrap_err();
    assert_eq!(fault.code, Code::EffectFailed, "{fault}");
    assert!(scene.resets().is_empty() && scene.stage().await.is_none());

    // In the middle of writing.
    let scene = Scene::new().await;
    let dies = async {
        scene.when(wanted, claim).await;
        scene.when(|_| true, says(ReportStep::Writing, 500, "writing")).await;
    };
    tokio::select! {
        ended = scene.ask(Verb::Perform) => panic!("{ended:?}"),
        () = dies => {}
    }
    let (stopped, log) = scene.ask_of(&scene.target(), "debian", Verb::Stop).await;
    assert_eq!(stopped, Ok(Answer::Stopped));
    assert!(log.contains("stopped at 50 %"), "{log}");
    assert_eq!(scene.stage().await, Some(Stage::Closed));
    let fault = scene.ask(Verb::Follow).await.unwrap_err();
    assert_eq!(fault.code, Code::EffectFailed, "{fault}");
}

#[tokio::test]
async fn what_cannot_work_is_said_before_anything_is_touched() {
    let scene = Scene::new().await;
    let target = scene.target();
    let without = |change: fn(&mut MachineSpec)| {
        let mut target = target.clone();
        change(&mut target.spec);
        target
    };
    for (target, image, code, words) in [
        (target.clone(), "ubuntu", Code::ImageUnknown, "no image \"ubuntu\""),
        (without(|spec| spec.mac_addresses.clear()), "debian", Code::NotSupported, "mac_addresses"),
        (without(|spec| spec.ssh_endpoint.clear()), "debian", Code::NotSupported, "ssh_endpoint"),
        (
            without(|spec| spec.ssh_credential = "other".into()),
            "debian",
            Code::CredentialMissing,
            "other",
        ),
    ] {
        let (fault, _) = scene.ask_of(&target, image, Verb::Perform).await;
        let fault = fault.unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.said.contains(words), "{fault}");
    }
    assert!(scene.resets().is_empty());
}

#[tokio::test]
async fn while_nobody_listened_nobody_was_silent() {
    let scene = Scene::within(DEADLINE, SHORT).await;
    let dies = async {
        scene.when(wanted, claim).await;
        scene.when(|_| true, says(ReportStep::Writing, 10, "writing")).await;
    };
    tokio::select! {
        ended = scene.ask(Verb::Perform) => panic!("{ended:?}"),
        () = dies => {}
    }
    // Longer than the deploy environment may be silent; there was no listener to report to.
    tokio::time::sleep(SHORT + SHORT / 4).await;
    let goes_on = async {
        // A provider that counts the time before it listened has given up by then.
        tokio::time::sleep(SHORT / 8).await;
        let broken = says(ReportStep::Failed(Trouble::ImageBroken), 0, "not a disk");
        scene.when(|_| true, broken).await;
    };
    let (fault, ()) = tokio::join!(scene.ask(Verb::Follow), goes_on);
    assert_eq!(fault.unwrap_err().code, Code::InstallFailed, "it was heard, and not given up");
}

#[tokio::test]
async fn what_is_stopped_does_not_boot_from_the_network() {
    let scene = Scene::new().await;
    tokio::select! {
        ended = scene.ask(Verb::Perform) => panic!("{ended:?}"),
        () = scene.when(wanted, |_| {}) => {}
    }
    assert_eq!(scene.boot(), "Pxe");
    assert_eq!(scene.ask(Verb::Stop).await, Ok(Answer::Stopped));
    assert_eq!(scene.boot(), "None");
    assert_eq!(scene.resets(), ["ForceOff", "On"], "it is on, and was not switched off again");
}

/// The virtual medium is inserted before the machine is switched off, and ejected when it is no
/// longer needed.
#[tokio::test]
async fn a_disc_is_shown_and_taken_out_again() {
    const DRIVE: &str = "/redfish/v1/Systems/1/VirtualMedia/Cd";
    let scene = Scene::new().await;
    let file = Artifact { sha256: "cd".repeat(32), size: 1_000, url: None };
    let body = Body::Iso { file };
    scene.store.add_image(Image { name: "rescue".into(), body, created_at: now() });
    let drives = "/redfish/v1/Systems/1/VirtualMedia";
    scene.world.set(SYSTEM, "/VirtualMedia", json!({ "@odata.id": drives }));
    scene.world.put_list(drives, &[DRIVE]);
    let empty = json!({
        "@odata.id": DRIVE, "Id": "Cd", "MediaTypes": ["CD", "DVD"], "Inserted": false, "Image": null});
    scene.world.put(DRIVE, empty);
    let sources = "/Boot/BootSourceOverrideTarget@Redfish.AllowableValues";
    scene.world.set(SYSTEM, sources, json!(["None", "Pxe", "Hdd", "Cd"]));
    let target = scene.target();
    tokio::select! {
        ended = scene.ask_of(&target, "rescue", Verb::Perform) => panic!("{ended:?}"),
        () = scene.when(wanted, |_| {}) => {}
    }
    let drive = scene.world.get(DRIVE);
    assert!(drive["Image"].as_str().unwrap().ends_with("/disc.iso"), "{drive}");
    assert_eq!((&drive["Inserted"], scene.boot().as_str()), (&json!(true), "Cd"));
    let (stopped, _) = scene.ask_of(&target, "rescue", Verb::Stop).await;
    assert_eq!(stopped, Ok(Answer::Stopped));
    assert_eq!(scene.world.get(DRIVE)["Inserted"], json!(false));
    assert_eq!(scene.boot(), "None");
    assert_eq!(scene.resets(), ["ForceOff", "On"]);
}
