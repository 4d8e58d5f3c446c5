//! The fixture of one scenario of the crash matrix: its own BMC, host and cluster, as far as the
//! scenario needs them, so that every effect in it can be counted.

use crate::http::{Call, Peer, Said};
use crate::kube_api::{Api, TOKEN};
use crate::kube_pki::Pki;
use crate::kubernetes::{cluster_info, node};
use crate::matrix::Life;
use crate::reaper::{Point, Reaper, Watched, When, Who};
use crate::shelves::{self, At};
use crate::sshd::{Sshd, Wish};
use crate::switches;
use crate::updater::{Fate, Takes, Updater, file_server};
use crate::world::{PASSWORD, RESET, SYSTEM, World, settings as redfish_settings};
use model::deploy::{Claim, Report, ReportStep, Stage};
use model::effect::{Answer, Key, Order, Verb};
use model::fault::Fault;
use model::id::RunId;
use model::image::{Artifact, Body, DiskFormat, Image};
use model::machine::MachineSpec;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::datacenter::{
    Datacenter, FabricPatience, FirmwarePatience, Imaging, Netplan, Settings,
};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::ssh::Proof;
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
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Counts every command and, at the crash point, never returns.
const WARDEN: &str = r#"#!/bin/sh
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

pub struct Site {
    pub life: Life,
    /// Unique per site: test hosts share a folder for temporary files.
    key: Key,
    pub reaper: Arc<Reaper>,
    store: Arc<Watched>,
    pub bmc: Option<(World, Peer)>,
    pub host: Option<Sshd>,
    pub api: Option<Api>,
    /// A device that accepts firmware, and the server of the file.
    firmware: Option<(Updater, Peer, String)>,
    /// Adds the node of a host that has joined.
    kubelet: Option<JoinHandle<()>>,
    /// Plays a machine that boots over the network, and counts its installations.
    machine: Option<JoinHandle<()>>,
    installed: Arc<AtomicUsize>,
}

impl Drop for Site {
    fn drop(&mut self) {
        for task in self.kubelet.iter().chain(&self.machine) {
            task.abort();
        }
    }
}

impl Site {
    /// The state before the scenario; None if a peer is missing.
    pub async fn new(life: Life, at: Option<Point>) -> Option<Self> {
        let reaper = Reaper::new(at);
        let kept = Arc::new(InMemoryStateStore::default());
        let firmware = if life == Life::Firmware {
            let (peer, url) = file_server().await;
            Some((Updater::new(Takes::Form, Fate::Well), peer, url))
        } else {
            None
        };
        let bmc = match (&firmware, life.needs_bmc()) {
            (Some((device, ..)), _) => {
                let (device, world) = (device.clone(), device.world.clone());
                Some((world, serve(&reaper, move |call| device.answer(call)).await))
            }
            (None, true) => Some(serve_bmc(life, &reaper).await),
            (None, false) => None,
        };
        let host = match life.needs_host() {
            true => Some(tokio::task::spawn_blocking(move || start_host(life)).await.unwrap()?),
            false => None,
        };
        let api = match life.needs_cluster() {
            true => Some(serve_cluster(life, &kept, &reaper).await),
            false => None,
        };
        kept.set(
            "bmc",
            Secret::Password { user: "root".into(), password: PASSWORD.to_string().into() },
        );
        if let Some(host) = &host {
            let login = host.login(host.key());
            let Proof::Key { pem, passphrase } = login.proof else { panic!("a key") };
            kept.set("host", Secret::Key { user: login.user, pem, passphrase });
            if let Some(Point { who: Who::Host, call, when }) = at {
                let when = match when {
                    When::Before => "before",
                    When::After => "after",
                };
                fs::write(home(host).join("strike"), format!("{call} {when}\n")).unwrap();
            }
        }
        let store = Arc::new(Watched { kept, reaper: Arc::clone(&reaper) });
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let site = SITES.fetch_add(1, Ordering::SeqCst);
        let key = Key::new(&RunId::trusted(format!("op-{}-{site}", std::process::id())), "step", 1);
        let (kubelet, machine, installed) = (None, None, Arc::default());
        let mut site = Self {
            life,
            key,
            reaper,
            store,
            bmc,
            host,
            api,
            firmware,
            kubelet,
            machine,
            installed,
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
            again: Duration::from_secs(1),
        };
        let mut settings = Settings {
            bmc_credential: "bmc".into(),
            ssh_credential: "host".into(),
            power_timeouts,
            call: Duration::from_secs(20),
            redfish: redfish_settings(Auth::Basic),
            imaging: Some(Imaging {
                url: "http://10.0.0.1:8480".into(),
                token: Duration::from_secs(600),
                boot: Duration::from_secs(60),
                silence: Duration::from_secs(60),
            }),
            firmware: FirmwarePatience {
                look_every: LOOK_EVERY,
                settle: Duration::from_millis(500),
                away: Duration::from_secs(20),
            },
            fabric: FabricPatience { look_every: LOOK_EVERY, ..FabricPatience::default() },
            ..Settings::default()
        };
        if let Some(host) = &self.host {
            settings.ssh = host.settings();
            let folder = home(host).join("netplan").display().to_string();
            settings.netplan = Netplan { folder, confirm_seconds: 20 };
        }
        Datacenter::new(Arc::clone(&self.store) as Arc<dyn ProviderStateStore>, settings)
    }

    pub async fn ask(&self, verb: Verb) -> Result<Answer, Fault> {
        let key = self.key.clone();
        let files = self.firmware.as_ref().map_or("", |(_, _, url)| url);
        let order = Order { key, verb, effect: self.life.effect(files), logged: 0 };
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
        let target = Target { id: TargetId::new(self.life.kind(), MACHINE), spec };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
        let answer = self.replica().ask(&target, &order, &journal).await;
        drop(journal);
        reader.await.unwrap();
        answer
    }

    /// Ends when the scenario has crashed.
    pub async fn struck(&self) {
        let Some(host) = &self.host else { return self.reaper.wait().await };
        let mark = home(host).join("struck");
        let on_host = async {
            while !mark.exists() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            self.reaper.strike();
        };
        tokio::select! {
            () = self.reaper.wait() => {}
            () = on_host => {}
        }
    }

    /// The number of calls of each component; commands on the host are counted there.
    pub fn calls(&self) -> Vec<(Who, usize)> {
        let mut calls: Vec<(Who, usize)> = self.reaper.calls().into_iter().collect();
        if let Some(host) = &self.host {
            let counted = fs::read_to_string(home(host).join("calls")).unwrap_or_default();
            calls.push((Who::Host, counted.trim().parse().unwrap_or(0)));
        }
        calls
    }

    /// How often this line is in the records of the host's programs.
    pub fn happened(&self, line: &str) -> usize {
        let Some(host) = &self.host else { return 0 };
        let log = fs::read_to_string(home(host).join("happened")).unwrap_or_default();
        log.lines().filter(|found| *found == line).count()
    }

    pub fn document(&self) -> Option<String> {
        fs::read_to_string(home(self.host.as_ref()?).join("netplan/90-farrier.yaml")).ok()
    }

    /// The resets that the BMC received.
    pub fn resets(&self) -> Vec<String> {
        let Some((world, _)) = &self.bmc else { return Vec::new() };
        let heard = world.get("/heard");
        let words = heard["resets"].as_array().cloned().unwrap_or_default();
        words.iter().map(|word| word.as_str().unwrap().to_string()).collect()
    }

    pub fn cordoned(&self) -> bool {
        let Some(api) = &self.api else { return false };
        api.world.lock().nodes[MACHINE]["spec"]["unschedulable"] == json!(true)
    }

    pub fn device(&self) -> &Updater {
        &self.firmware.as_ref().unwrap().0
    }

    pub fn shelf_power(&self) -> String {
        let (world, _) = self.bmc.as_ref().unwrap();
        world.get(shelves::CHASSIS)["PowerState"].as_str().unwrap().to_owned()
    }

    /// The state of the fabric on the switch, and of its manager.
    pub fn fabric(&self) -> (String, String) {
        let folder = switches::state(self.host.as_ref().unwrap());
        let read = |name| fs::read_to_string(folder.join(name)).unwrap().trim().to_owned();
        (read("state"), read("manager"))
    }

    pub fn installed(&self) -> usize {
        self.installed.load(Ordering::SeqCst)
    }

    /// A machine that, once power cycled, boots the deploy environment, installs the image, and
    /// comes back with it.
    fn machine(&self) -> Option<JoinHandle<()>> {
        if self.life != Life::Repave {
            return None;
        }
        let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
        let body = Body::Disk { format: DiskFormat::Raw, file };
        let created_at = Timestamp::default();
        let kept = Arc::clone(&self.store.kept);
        kept.add_image(Image { name: IMAGE.into(), body, created_at });
        let (world, host) = (self.bmc.as_ref()?.0.clone(), self.host.as_ref()?);
        let (key, installed) = (self.key.clone(), Arc::clone(&self.installed));
        let host_keys = vec![host.host_key().to_string()];
        let stamp = home(host).join("stamp");
        Some(tokio::spawn(async move {
            let now = providers::clock::now;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let cycled = world.get("/heard")["resets"] == json!(["ForceOff", "On"]);
                let Some(one) = kept.deployment(&key).await.unwrap().filter(|_| cycled) else {
                    continue;
                };
                match one.stage {
                    Stage::Wanted => {
                        let claim = Claim { macs: vec![MAC.into()], session: "s".into() };
                        kept.change(&key, |one| one.claim(&claim, now()).unwrap());
                    }
                    Stage::Claimed => {
                        installed.fetch_add(1, Ordering::SeqCst);
                        let (step, said) = (ReportStep::Installed, String::new());
                        let host_keys = host_keys.clone();
                        let report = Report { step, done: 10, total: 10, said, host_keys };
                        kept.change(&key, |one| one.hear(&report, now()));
                    }
                    Stage::Released => {
                        fs::write(&stamp, one.stamp()).unwrap();
                        return;
                    }
                    Stage::Prepared
                    | Stage::Writing
                    | Stage::Installing
                    | Stage::Installed
                    | Stage::Failed(_)
                    | Stage::Finished
                    | Stage::Closed => {}
                }
            }
        }))
    }

    fn kubelet(&self) -> Option<JoinHandle<()>> {
        let (host, api) = (self.host.as_ref()?, self.api.as_ref()?);
        let (log, world) = (home(host).join("happened"), api.world.clone());
        Some(tokio::spawn(async move {
            let joined = || fs::read_to_string(&log).unwrap_or_default().contains("join");
            while !joined() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            world.lock().add_node(node(MACHINE));
        }))
    }
}

/// The home of the host's user.
fn home(host: &Sshd) -> PathBuf {
    host.home.path().join("user")
}

fn start_host(life: Life) -> Option<Sshd> {
    let write = |line: &str| format!("#!/bin/sh\necho \"{line}\" >>\"$HOME/happened\"\n");
    let reboot = "echo 00000000-0000-4000-8000-000000000002 >\"$HOME/boot_id\"\n";
    let shims = vec![
        ("kubeadm", write("kubeadm $1")),
        ("netplan", write("netplan $1")),
        ("reboot", write("reboot") + reboot),
        ("nv", switches::NV.into()),
        // A test host has no /etc of its own.
        ("cat", "#!/bin/sh\n[ \"$1\" = /etc/farrier/image ] && set -- \"$HOME/stamp\"\nexec busybox cat \"$@\"\n".into()),
    ];
    let own_boot_id = life.reboots_host();
    let wish = Wish { shims, warden: Some(WARDEN), own_boot_id, ..Wish::default() };
    let host = Sshd::with(&wish)?;
    let folder = home(&host).join("netplan");
    fs::create_dir(&folder).unwrap();
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&folder, anybody).unwrap();
    switches::lay_out(&host);
    if life == Life::FabricOff {
        switches::set(&host, "state", "enabled");
    }
    Some(host)
}

/// A BMC whose machine is on, or a shelf. It records the requests in a resource of its own.
async fn serve_bmc(life: Life, reaper: &Arc<Reaper>) -> (World, Peer) {
    if life.kind() == TargetKind::PowerShelf {
        let world = shelves::shelf(At::Chassis);
        let power = if life == Life::ShelfOn { "Off" } else { "On" };
        world.set(shelves::CHASSIS, "/PowerState", json!(power));
        let served = world.clone();
        let answer = move |call: &Call| {
            shelves::switched(&served, call).unwrap_or_else(|| served.answer(call))
        };
        return (world, serve(reaper, answer).await);
    }
    let world = World::new();
    world.set(SYSTEM, "/PowerState", json!("On"));
    world.put("/heard", json!({"resets": []}));
    let served = world.clone();
    let answer = move |call: &Call| {
        if call.is("POST", RESET) {
            let body: serde_json::Value = serde_json::from_str(&call.body).unwrap();
            let mut heard = served.get("/heard");
            heard["resets"].as_array_mut().unwrap().push(body["ResetType"].clone());
            served.put("/heard", heard);
        }
        served.answer(call)
    };
    (world, serve(reaper, answer).await)
}

/// A peer that answers with this function, until the crash.
async fn serve(
    reaper: &Arc<Reaper>,
    answer: impl Fn(&Call) -> Said + Send + Sync + 'static,
) -> Peer {
    let reaper = Arc::clone(reaper);
    Peer::start(move |call| {
        let fate = reaper.arrive(Who::Bmc);
        let said = match fate {
            Some(When::Before) => Said::Hang,
            None | Some(When::After) => answer(call),
        };
        match fate {
            None => said,
            Some(_) => {
                reaper.strike();
                Said::Hang
            }
        }
    })
    .await
}

async fn serve_cluster(life: Life, kept: &InMemoryStateStore, reaper: &Arc<Reaper>) -> Api {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    kept.set(CLUSTER, Secret::Kubeconfig { text });
    let mut world = api.world.lock();
    world.reaper = Some(Arc::clone(reaper));
    let server = format!("https://{}", api.address);
    world.config_maps.insert("cluster-info".into(), cluster_info(&pki, &server));
    if matches!(life, Life::Leave | Life::Drain | Life::Uncordon) {
        world.add_node(node(MACHINE));
    }
    match life {
        Life::Drain => {
            for name in ["shop/web-0", "shop/web-1"] {
                world.add_pod(name, json!({ "spec": { "nodeName": MACHINE } }));
            }
        }
        Life::Uncordon => {
            let node = world.nodes.get_mut(MACHINE).unwrap();
            node["spec"]["unschedulable"] = json!(true);
        }
        Life::Cycle
        | Life::PowerOff
        | Life::NetbootPxe
        | Life::NetbootDisk
        | Life::Command
        | Life::InBand
        | Life::Net
        | Life::Join
        | Life::Leave
        | Life::SwitchOff
        | Life::Repave
        | Life::Firmware
        | Life::ShelfOff
        | Life::ShelfOn
        | Life::FabricManager
        | Life::FabricOff => {}
    }
    drop(world);
    api
}
