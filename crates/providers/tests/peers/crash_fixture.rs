//! The fixture of one scenario of the crash matrix: its own BMC, host and cluster, as far as the
//! scenario needs them, so that every effect in it can be counted.

use crate::crash_injector::{
    CallTarget, CountingStateStore, CrashInjector, CrashPoint, CrashTiming,
};
use crate::crash_matrix::Scenario;
use crate::fake_bmc::{FakeBmc, PASSWORD, RESET, SYSTEM, settings as redfish_settings};
use crate::fake_updater::{UpdateOutcome, Updater, UploadMethod, file_server};
use crate::http::{Call, Peer, Response};
use crate::joins::SED;
use crate::kube_api::{Api, TOKEN};
use crate::kube_pki::Pki;
use crate::kubernetes::{cluster_info, node};
use crate::power_shelves::{self, PowerControl};
use crate::sshd::{Sshd, SshdOptions};
use crate::switches;
use model::deploy::{DeploymentClaim, DeploymentReport, DeploymentStage, ReportStep};
use model::effect::{CallResult, CallVerb, EffectKey, ProviderCall};
use model::id::RunId;
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::machine::MachineSpec;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::datacenter::{
    Datacenter, FabricTimeouts, FirmwareTimeouts, Imaging, Netplan, Settings,
};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::ssh::LoginSecret;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

pub const MACHINE: &str = "m-1";
pub const CLUSTER: &str = "cluster-a";
pub const IMAGE: &str = "debian-12";
const MAC: &str = "52:54:00:00:00:01";
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Counts every command and, at the crash point, never returns.
const COMMAND_WRAPPER: &str = r#"#!/bin/sh
here=$HOME
until mkdir "$here/lock" 2>/dev/null; do sleep 0.01; done
call=0
{ read -r call <"$here/calls"; } 2>/dev/null
call=$((call + 1))
echo "$call" >"$here/calls"
rmdir "$here/lock"
strike=
{ read -r strike <"$here/strike"; } 2>/dev/null
case $strike in
    "$call before") : >"$here/struck"; exec sleep 600 ;;
    "$call after") sh -c "$SSH_ORIGINAL_COMMAND"; : >"$here/struck"; exec sleep 600 ;;
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
"#;

pub struct CrashFixture {
    pub scenario: Scenario,
    /// Unique per site: test hosts share a folder for temporary files.
    key: EffectKey,
    pub crash_injector: Arc<CrashInjector>,
    store: Arc<CountingStateStore>,
    pub bmc: Option<(FakeBmc, Peer)>,
    pub host: Option<Sshd>,
    pub api: Option<Api>,
    /// A device that accepts firmware, and the server of the file.
    firmware: Option<(Updater, Peer, String)>,
    /// Adds the node of a host that has joined.
    kubelet: Option<JoinHandle<()>>,
    /// Plays a machine that boots over the network, and counts its installations.
    machine: Option<JoinHandle<()>>,
    installations: Arc<AtomicUsize>,
}

impl Drop for CrashFixture {
    fn drop(&mut self) {
        for task in self.kubelet.iter().chain(&self.machine) {
            task.abort();
        }
    }
}

impl CrashFixture {
    /// The state before the scenario; None if a peer is missing.
    pub async fn new(life: Scenario, at: Option<CrashPoint>) -> Option<Self> {
        let injector = CrashInjector::new(at);
        let stored = Arc::new(InMemoryStateStore::default());
        let firmware = if life == Scenario::Firmware {
            let (peer, url) = file_server().await;
            Some((Updater::new(UploadMethod::Form, UpdateOutcome::Well), peer, url))
        } else {
            None
        };
        let bmc = match (&firmware, life.needs_bmc()) {
            (Some((device, ..)), _) => {
                let (device, env) = (device.clone(), device.bmc.clone());
                Some((env, serve(&injector, move |call| device.answer(call)).await))
            }
            (None, true) => Some(serve_bmc(life, &injector).await),
            (None, false) => None,
        };
        let host = match life.needs_host() {
            true => Some(tokio::task::spawn_blocking(move || start_host(life)).await.unwrap()?),
            false => None,
        };
        let api = match life.needs_cluster() {
            true => Some(serve_cluster(life, &stored, &injector).await),
            false => None,
        };
        if let (Scenario::Adopt, Some(host), Some(api)) = (life, &host, &api) {
            let server = format!("    server: https://{}\n", api.address);
            fs::write(home(host).join("kubelet.conf"), server).unwrap();
        }
        stored.set_credential(
            "bmc",
            Secret::Password { user: "root".into(), password: PASSWORD.to_string().into() },
        );
        if let Some(host) = &host {
            let login = host.login(host.key());
            let LoginSecret::Key { pem, passphrase } = login.proof else { panic!("a key") };
            stored.set_credential("host", Secret::Key { user: login.user, pem, passphrase });
            if let Some(CrashPoint { target: CallTarget::Host, call, timing: when }) = at {
                let when = match when {
                    CrashTiming::Before => "before",
                    CrashTiming::After => "after",
                };
                fs::write(home(host).join("strike"), format!("{call} {when}\n")).unwrap();
            }
        }
        let store =
            Arc::new(CountingStateStore { inner: stored, crash_injector: Arc::clone(&injector) });
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let site = SITES.fetch_add(1, Ordering::SeqCst);
        let key =
            EffectKey::new(&RunId::trusted(format!("op-{}-{site}", std::process::id())), "step", 1);
        let (kubelet, machine, installed) = (None, None, Arc::default());
        let mut site = Self {
            scenario: life,
            key,
            crash_injector: injector,
            store,
            bmc,
            host,
            api,
            firmware,
            kubelet,
            machine,
            installations: installed,
        };
        site.kubelet = site.kubelet();
        site.machine = site.machine();
        Some(site)
    }

    /// A process of Farrier. Its state is in the store.
    fn replica(&self) -> Datacenter {
        let power_timeouts = PowerTimeouts {
            graceful: Duration::ZERO,
            force: true,
            change: Duration::from_secs(20),
            repeat_after: Duration::from_secs(1),
        };
        let mut settings = Settings {
            bmc_credential: "bmc".into(),
            ssh_credential: "host".into(),
            power_timeouts,
            call_timeout: Duration::from_secs(20),
            redfish: redfish_settings(Auth::Basic),
            imaging: Some(Imaging {
                url: "http://10.0.0.1:8480".into(),
                token_ttl: Duration::from_secs(600),
                boot_timeout: Duration::from_secs(60),
                silence_timeout: Duration::from_secs(60),
            }),
            firmware: FirmwareTimeouts {
                poll_interval: POLL_INTERVAL,
                settle: Duration::from_millis(500),
                max_unreachable: Duration::from_secs(20),
            },
            fabric: FabricTimeouts { poll_interval: POLL_INTERVAL, ..FabricTimeouts::default() },
            ..Settings::default()
        };
        if let Some(host) = &self.host {
            settings.ssh = host.settings();
            let folder = home(host).join("netplan").display().to_string();
            settings.netplan = Netplan { folder, confirm_seconds: 20 };
        }
        Datacenter::new(Arc::clone(&self.store) as Arc<dyn ProviderStateStore>, settings)
    }

    pub async fn call_provider(&self, verb: CallVerb) -> CallResult {
        let key = self.key.clone();
        let files = self.firmware.as_ref().map_or("", |(_, _, url)| url);
        let call =
            ProviderCall { key, verb, effect: self.scenario.effect(files), log_offset_bytes: 0 };
        let spec = MachineSpec {
            bmc_endpoint: self.bmc.as_ref().map_or(String::new(), |(_, peer)| peer.url()),
            ssh_endpoint: self
                .host
                .as_ref()
                .map_or(String::new(), |host| host.endpoint().to_string()),
            target_cluster_ref: CLUSTER.into(),
            mac_addresses: self.machine.iter().map(|_| MAC.to_string()).collect(),
            ..MachineSpec::default()
        };
        let target = Target { id: TargetId::new(self.scenario.kind(), MACHINE), spec };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
        let answer = self.replica().call(&target, &call, &journal).await;
        drop(journal);
        reader.await.unwrap();
        answer
    }

    /// Ends when the scenario has crashed.
    pub async fn wait_for_crash(&self) {
        let Some(host) = &self.host else { return self.crash_injector.wait_for_crash().await };
        let mark = home(host).join("struck");
        let on_host = async {
            while !mark.exists() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            self.crash_injector.crash();
        };
        tokio::select! {
            () = self.crash_injector.wait_for_crash() => {}
            () = on_host => {}
        }
    }

    /// The number of calls of each component; commands on the host are counted there.
    pub fn calls(&self) -> Vec<(CallTarget, usize)> {
        let mut calls: Vec<(CallTarget, usize)> = self.crash_injector.calls().into_iter().collect();
        if let Some(host) = &self.host {
            let counted = fs::read_to_string(home(host).join("calls")).unwrap_or_default();
            calls.push((CallTarget::Host, counted.trim().parse().unwrap_or(0)));
        }
        calls
    }

    /// The number of times that this line is in the records of the host's programs.
    pub fn count_recorded(&self, line: &str) -> usize {
        let Some(host) = &self.host else { return 0 };
        let log = fs::read_to_string(home(host).join("happened")).unwrap_or_default();
        log.lines().filter(|found| *found == line).count()
    }

    pub fn document(&self) -> Option<String> {
        fs::read_to_string(home(self.host.as_ref()?).join("netplan/90-farrier.yaml")).ok()
    }

    /// The resets that the BMC received.
    pub fn resets(&self) -> Vec<String> {
        let Some((env, _)) = &self.bmc else { return Vec::new() };
        let heartbeat = env.get("/heard");
        let words = heartbeat["resets"].as_array().cloned().unwrap_or_default();
        words.iter().map(|name| name.as_str().unwrap().to_string()).collect()
    }

    pub fn is_cordoned(&self) -> bool {
        let Some(api) = &self.api else { return false };
        api.state.lock().nodes[MACHINE]["spec"]["unschedulable"] == json!(true)
    }

    pub fn device(&self) -> &Updater {
        &self.firmware.as_ref().unwrap().0
    }

    pub fn shelf_power(&self) -> String {
        let (env, _) = self.bmc.as_ref().unwrap();
        env.get(power_shelves::CHASSIS)["PowerState"].as_str().unwrap().to_owned()
    }

    /// The state of the fabric on the switch, and of its manager.
    pub fn fabric(&self) -> (String, String) {
        let folder = switches::state(self.host.as_ref().unwrap());
        let read = |name| fs::read_to_string(folder.join(name)).unwrap().trim().to_owned();
        (read("state"), read("manager"))
    }

    pub fn installed(&self) -> usize {
        self.installations.load(Ordering::SeqCst)
    }

    /// A machine that, once power cycled, boots the deploy environment, installs the image, and
    /// comes back with it.
    fn machine(&self) -> Option<JoinHandle<()>> {
        if self.scenario != Scenario::Repave {
            return None;
        }
        let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
        let body = ImageContent::Disk { format: DiskFormat::Raw, file };
        let created_at = Timestamp::default();
        let stored = Arc::clone(&self.store.inner);
        stored.add_image(Image { name: IMAGE.into(), body, created_at });
        let (env, host) = (self.bmc.as_ref()?.0.clone(), self.host.as_ref()?);
        let (key, installed) = (self.key.clone(), Arc::clone(&self.installations));
        let host_keys = vec![host.host_key().to_string()];
        let stamp = home(host).join("stamp");
        Some(tokio::spawn(async move {
            let now = providers::clock::now;
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let cycled = env.get("/heard")["resets"] == json!(["ForceOff", "On"]);
                let Some(one) = stored.deployment(&key).await.unwrap().filter(|_| cycled) else {
                    continue;
                };
                match one.stage {
                    DeploymentStage::Requested => {
                        let claim = DeploymentClaim { macs: vec![MAC.into()], session: "s".into() };
                        stored.change_deployment(&key, |one| one.claim(&claim, now()).unwrap());
                    }
                    DeploymentStage::Claimed => {
                        installed.fetch_add(1, Ordering::SeqCst);
                        let (step, message) = (ReportStep::Installed, String::new());
                        let host_keys = host_keys.clone();
                        let report =
                            DeploymentReport { step, done: 10, total: 10, message, host_keys };
                        stored.change_deployment(&key, |one| one.record_report(&report, now()));
                    }
                    DeploymentStage::Released => {
                        fs::write(&stamp, one.stamp()).unwrap();
                        return;
                    }
                    DeploymentStage::Prepared
                    | DeploymentStage::Writing
                    | DeploymentStage::Installing
                    | DeploymentStage::Installed
                    | DeploymentStage::Failed(_)
                    | DeploymentStage::Finished
                    | DeploymentStage::Closed => {}
                }
            }
        }))
    }

    fn kubelet(&self) -> Option<JoinHandle<()>> {
        let (host, api) = (self.host.as_ref()?, self.api.as_ref()?);
        let (log, env) = (home(host).join("happened"), api.state.clone());
        Some(tokio::spawn(async move {
            let joined = || fs::read_to_string(&log).unwrap_or_default().contains("join");
            while !joined() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            env.lock().add_node(node(MACHINE));
        }))
    }
}

/// The home of the host's user.
fn home(host: &Sshd) -> PathBuf {
    host.home.path().join("user")
}

fn start_host(scenario: Scenario) -> Option<Sshd> {
    let write = |line: &str| format!("#!/bin/sh\necho \"{line}\" >>\"$HOME/happened\"\n");
    let reboot = "echo 00000000-0000-4000-8000-000000000002 >\"$HOME/boot_id\"\n";
    let shims = vec![
        ("kubeadm", write("kubeadm $1")),
        ("netplan", write("netplan $1")),
        ("reboot", write("reboot") + reboot),
        ("nv", switches::NV.into()),
        ("sed", SED.into()),
        // A test host has no /etc of its own.
        ("cat", "#!/bin/sh\n[ \"$1\" = /etc/farrier/image ] && set -- \"$HOME/stamp\"\nexec busybox cat \"$@\"\n".into()),
    ];
    let own_boot_id = scenario.reboots_host();
    let requested = SshdOptions {
        shims,
        command_wrapper: Some(COMMAND_WRAPPER),
        own_boot_id,
        ..SshdOptions::default()
    };
    let host = Sshd::with(&requested)?;
    let folder = home(&host).join("netplan");
    fs::create_dir(&folder).unwrap();
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&folder, anybody).unwrap();
    switches::lay_out(&host);
    if scenario == Scenario::FabricOff {
        switches::set(&host, "state", "enabled");
    }
    Some(host)
}

/// A BMC whose machine is on, or a shelf. It records the requests in a resource of its own.
async fn serve_bmc(scenario: Scenario, injector: &Arc<CrashInjector>) -> (FakeBmc, Peer) {
    if scenario.kind() == TargetKind::PowerShelf {
        let env = power_shelves::shelf(PowerControl::Chassis);
        let power = if scenario == Scenario::ShelfOn { "Off" } else { "On" };
        env.set(power_shelves::CHASSIS, "/PowerState", json!(power));
        let served = env.clone();
        let answer = move |call: &Call| {
            power_shelves::switch_power(&served, call).unwrap_or_else(|| served.answer(call))
        };
        return (env, serve(injector, answer).await);
    }
    let env = FakeBmc::new();
    env.set(SYSTEM, "/PowerState", json!("On"));
    env.put("/heard", json!({"resets": []}));
    let served = env.clone();
    let answer = move |call: &Call| {
        if call.is("POST", RESET) {
            let body: serde_json::Value = serde_json::from_str(&call.body).unwrap();
            let mut heartbeat = served.get("/heard");
            heartbeat["resets"].as_array_mut().unwrap().push(body["ResetType"].clone());
            served.put("/heard", heartbeat);
        }
        served.answer(call)
    };
    (env, serve(injector, answer).await)
}

/// A peer that answers with this function, until the crash.
async fn serve(
    injector: &Arc<CrashInjector>,
    answer: impl Fn(&Call) -> Response + Send + Sync + 'static,
) -> Peer {
    let injector = Arc::clone(injector);
    Peer::start(move |call| {
        let impact = injector.count_call(CallTarget::Bmc);
        let message = match impact {
            Some(CrashTiming::Before) => Response::Hang,
            None | Some(CrashTiming::After) => answer(call),
        };
        match impact {
            None => message,
            Some(_) => {
                injector.crash();
                Response::Hang
            }
        }
    })
    .await
}

async fn serve_cluster(
    scenario: Scenario,
    stored: &InMemoryStateStore,
    injector: &Arc<CrashInjector>,
) -> Api {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    stored.set_credential(CLUSTER, Secret::Kubeconfig { text });
    let mut env = api.state.lock();
    env.crash_injector = Some(Arc::clone(injector));
    let server = format!("https://{}", api.address);
    env.config_maps.insert("cluster-info".into(), cluster_info(&pki, &server));
    if matches!(scenario, Scenario::Adopt | Scenario::Leave | Scenario::Drain | Scenario::Uncordon)
    {
        env.add_node(node(MACHINE));
    }
    match scenario {
        Scenario::Drain => {
            for name in ["shop/web-0", "shop/web-1"] {
                env.add_pod(name, json!({ "spec": { "nodeName": MACHINE } }));
            }
        }
        Scenario::Uncordon => {
            let node = env.nodes.get_mut(MACHINE).unwrap();
            node["spec"]["unschedulable"] = json!(true);
        }
        Scenario::Cycle
        | Scenario::PowerOff
        | Scenario::NetbootPxe
        | Scenario::NetbootDisk
        | Scenario::Command
        | Scenario::InBand
        | Scenario::Net
        | Scenario::Join
        | Scenario::Adopt
        | Scenario::Leave
        | Scenario::SwitchOff
        | Scenario::Repave
        | Scenario::Firmware
        | Scenario::ShelfOff
        | Scenario::ShelfOn
        | Scenario::FabricManager
        | Scenario::FabricOff => {}
    }
    drop(env);
    api
}
