//! Joins of hosts to a cluster: with sudo, with the options of the plan, of a machine that is a
//! member already, and with the words of kubeadm when it fails.

use crate::kube_api::{Api, TOKEN};
use crate::kube_pki::Pki;
use crate::kubernetes::{cluster_info, node};
use crate::sshd::{Sshd, SshdOptions};
use model::condition::ConditionType;
use model::effect::{
    CallResult, CallVerb, Effect, EffectKey, KubeadmOptions, NodeLabels, ProviderAnswer,
    ProviderCall,
};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use model::target::TargetId;
use providers::datacenter::{Datacenter, Settings};
use providers::ssh::LoginSecret;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The host says that its user is not root, and records what sudo is called with.
const ID: &str = "#!/bin/sh\necho 1000\n";
const SUDO: &str =
    "#!/bin/sh\necho \"sudo $*\" >>\"$HOME/happened\"\n[ \"$1\" = -n ] && shift\nexec \"$@\"\n";
/// Records its arguments, the file that they name with its mode, and the arguments of all
/// processes.
const KUBEADM: &str = "#!/bin/sh\necho \"kubeadm $*\" >>\"$HOME/happened\"\n\
    case $2 in --config | --discovery-file)\n\
    cat \"$3\" >\"$HOME/config\"; ls -ln \"$3\" >\"$HOME/mode\"\n\
    cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' >\"$HOME/listing\" ;;\nesac\nexit 0\n";
/// Fails at its preflight checks, in the words of kubeadm 1.35.8 as it was run.
const BROKEN_KUBEADM: &str = "#!/bin/sh\necho '[preflight] Running pre-flight checks'\n\
    echo '[preflight] Some fatal errors occurred:' >&2\n\
    echo '\t[ERROR Swap]: running with swap on is not supported' >&2\n\
    echo '[preflight] If you know what you are doing, you can make a check non-fatal with `--ignore-preflight-errors=...`' >&2\n\
    echo 'error: error execution phase preflight: preflight checks failed' >&2\n\
    echo 'To see the stack trace of this error execute with --v=5 or higher' >&2\nexit 1\n";
/// Reads the kubelet's file from the home of the test's user.
pub const SED: &str = "#!/bin/sh\nfor last; do :; done\n\
    [ \"$last\" = /etc/kubernetes/kubelet.conf ] && last=$HOME/kubelet.conf\n\
    exec busybox sed \"$1\" \"$2\" \"$last\"\n";

struct JoinFixture {
    api: Api,
    host: Sshd,
    provider: Datacenter,
}

impl JoinFixture {
    async fn start(kubeadm: &str) -> Option<Self> {
        let shims = vec![
            ("id", ID.into()),
            ("sudo", SUDO.into()),
            ("kubeadm", kubeadm.into()),
            ("sed", SED.into()),
        ];
        let host = Sshd::with(&SshdOptions { shims, ..SshdOptions::default() })?;
        let pki = Pki::new();
        let api = Api::start(&pki).await;
        let store = Arc::new(InMemoryStateStore::default());
        let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
        store.set_credential("c1", Secret::Kubeconfig { text });
        let login = host.login(host.key());
        let LoginSecret::Key { pem, passphrase } = login.proof else { panic!("a key") };
        store.set_credential("host", Secret::Key { user: login.user, pem, passphrase });
        let info = cluster_info(&pki, &format!("https://{}", api.address));
        api.state.lock().config_maps.insert("cluster-info".into(), info);
        let settings =
            Settings { ssh_credential: "host".into(), ssh: host.settings(), ..Settings::default() };
        let provider = Datacenter::new(store as Arc<dyn ProviderStateStore>, settings);
        Some(Self { api, host, provider })
    }

    fn home(&self) -> PathBuf {
        self.host.home.path().join("user")
    }

    fn happened(&self) -> String {
        std::fs::read_to_string(self.home().join("happened")).unwrap_or_default()
    }

    async fn join(&self, step: &str, kubeadm: KubeadmOptions) -> CallResult {
        let labels = NodeLabels::from([("zone".into(), "b".into())]);
        let effect = Effect::Join { cluster_ref: "c1".into(), labels, taints: Vec::new(), kubeadm };
        self.call(CallVerb::Perform, step, effect).await
    }

    async fn call(&self, verb: CallVerb, step: &str, effect: Effect) -> CallResult {
        let step = format!("{step}-{}", std::process::id());
        let key = EffectKey::new(&RunId::trusted("op-1"), &step, 1);
        let call = ProviderCall { key, verb, effect, log_offset_bytes: 0 };
        let spec =
            MachineSpec { ssh_endpoint: self.host.endpoint().to_string(), ..Default::default() };
        let target = Target { id: TargetId::from(&MachineId::trusted("n1")), spec };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
        let answer = self.provider.call(&target, &call, &journal).await;
        drop(journal);
        reader.await.unwrap();
        answer
    }
}

#[tokio::test]
async fn a_join_uses_sudo_and_the_options_of_the_plan() {
    let Some(site) = JoinFixture::start(KUBEADM).await else { return };
    site.api.state.lock().add_node(node("n1"));
    let options = KubeadmOptions {
        arguments: vec!["--v=5".into()],
        ignore_preflight_errors: vec!["Swap".into()],
        ..KubeadmOptions::default()
    };
    let joined = site.join("flags", options).await;
    assert!(matches!(&joined, Ok(ProviderAnswer::Done(_))), "{joined:?}");
    let happened = site.happened();
    let sudo = happened.lines().find(|line| line.contains("kubeadm join")).unwrap();
    assert!(sudo.starts_with("sudo -n env PATH="), "{happened}");
    for words in ["--node-name n1", "--ignore-preflight-errors=Swap", "--v=5"] {
        assert!(sudo.contains(words), "{words}: {happened}");
    }
    let config = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
                  nodeRegistration: {criSocket: 'unix:///run/crio/crio.sock'}\n";
    let options = KubeadmOptions { config: config.into(), ..KubeadmOptions::default() };
    let joined = site.join("config", options).await;
    assert!(matches!(&joined, Ok(ProviderAnswer::Done(_))), "{joined:?}");
    let written = std::fs::read_to_string(site.home().join("config")).unwrap();
    for words in ["\"criSocket\":\"unix:///run/crio/crio.sock\"", "\"name\":\"n1\"", "caCertHashes"]
    {
        assert!(written.contains(words), "{words}: {written}");
    }
    assert!(site.api.state.lock().secrets.is_empty(), "the tokens are gone");
    let reasons: Vec<_> =
        site.api.state.lock().events.values().map(|one| one["reason"].clone()).collect();
    assert_eq!(reasons, ["Joined"]);
}

/// Every user of a host can list its processes with their arguments.
#[tokio::test]
async fn a_join_token_is_in_no_process_listing_and_its_file_is_private() {
    let config = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n";
    for config in ["", config] {
        let Some(site) = JoinFixture::start(KUBEADM).await else { return };
        site.api.state.lock().add_node(node("n1"));
        let watch = Listing::start();
        let options = KubeadmOptions { config: config.into(), ..KubeadmOptions::default() };
        let joined = site.join("secret", options).await;
        assert!(matches!(&joined, Ok(ProviderAnswer::Done(_))), "{joined:?}");
        let read = |name: &str| std::fs::read_to_string(site.home().join(name)).unwrap();
        let file: Value = serde_json::from_str(&read("config")).unwrap();
        let token = match config.is_empty() {
            true => &file["users"][0]["user"]["token"],
            false => &file["discovery"]["bootstrapToken"]["token"],
        };
        let token = token.as_str().unwrap();
        let secret = token.split_once('.').unwrap().1;
        let mut listings = watch.stop();
        listings.push_str(&read("listing"));
        assert!(listings.contains("kubeadm"), "the listing has the join in it");
        assert!(!listings.contains(secret), "a process had the token in its arguments");
        assert!(!site.happened().contains(secret));
        assert!(read("mode").starts_with("-rw-------"), "{}", read("mode"));
        let jobs = site.host.settings().folder.unwrap();
        assert!(read("mode").contains(jobs.as_str()), "{}", read("mode"));
        let grep = Command::new("grep").args(["-rl", secret, jobs.as_str()]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&grep.stdout), "", "the token stays on the host");
    }
}

/// Lists the processes of this computer until it is stopped.
struct Listing(Arc<AtomicBool>, JoinHandle<BTreeSet<String>>);

impl Listing {
    fn start() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stop.load(Ordering::SeqCst) {
                let processes = std::fs::read_dir("/proc").unwrap().flatten();
                let lines =
                    processes.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
                seen.extend(lines.map(|line| String::from_utf8_lossy(&line).into_owned()));
            }
            seen
        });
        Self(ended, thread)
    }

    fn stop(self) -> String {
        self.0.store(true, Ordering::SeqCst);
        self.1.join().unwrap().into_iter().collect::<Vec<_>>().join("\n")
    }
}

#[tokio::test]
async fn a_failed_join_says_what_kubeadm_said() {
    let Some(site) = JoinFixture::start(BROKEN_KUBEADM).await else { return };
    let fault = site.join("broken", KubeadmOptions::default()).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::CommandFailed, "{fault}");
    for words in
        ["kubeadm failed", "Some fatal errors occurred", "[ERROR Swap]: running with swap on"]
    {
        assert!(fault.message.contains(words), "{words}: {fault}");
    }
    for advice in ["stack trace", "If you know what you are doing"] {
        assert!(!fault.message.contains(advice), "{advice}: {fault}");
    }
    assert!(site.api.state.lock().secrets.is_empty(), "the token is gone");
}

/// Rows: the step, whether the host is a member before it, the verb, and whether its undo resets
/// the host.
#[tokio::test]
async fn the_undo_of_a_join_resets_only_what_the_run_joined() {
    for (step, member, verb, resets) in [
        ("adopted", true, CallVerb::Perform, false),
        ("stopped", true, CallVerb::Stop, false),
        ("joined", false, CallVerb::Perform, true),
    ] {
        let Some(site) = JoinFixture::start(KUBEADM).await else { return };
        site.api.state.lock().add_node(node("n1"));
        if member {
            let server = format!("    server: https://{}\n", site.api.address);
            std::fs::write(site.home().join("kubelet.conf"), server).unwrap();
        }
        let join = Effect::Join {
            cluster_ref: "c1".into(),
            labels: NodeLabels::new(),
            taints: Vec::new(),
            kubeadm: KubeadmOptions::default(),
        };
        let leave = join.undo().unwrap();
        site.call(verb, step, join).await.unwrap();
        let undo = format!("undo-{step}");
        for verb in [CallVerb::Perform, CallVerb::GetStatus, CallVerb::Observe] {
            let answer = site.call(verb, &undo, leave.clone()).await;
            let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{step}: {answer:?}") };
            let stays = outcome.message.contains("this operation did not join it");
            assert_eq!(stays, !resets, "{step}: {outcome:?}");
        }
        assert_eq!(site.happened().contains("kubeadm reset"), resets, "{step}");
        assert_eq!(site.api.state.lock().nodes.contains_key("n1"), !resets, "{step}");
    }
}

#[tokio::test]
async fn a_member_is_adopted_and_a_member_elsewhere_is_not() {
    let Some(site) = JoinFixture::start(KUBEADM).await else { return };
    site.api.state.lock().add_node(node("n1"));
    let file = site.home().join("kubelet.conf");
    std::fs::write(
        &file,
        format!("clusters:\n- cluster:\n    server: https://{}\n", site.api.address),
    )
    .unwrap();
    let joined = site.join("member", KubeadmOptions::default()).await;
    let Ok(ProviderAnswer::Done(outcome)) = joined else { panic!("{joined:?}") };
    let observed =
        outcome.evidence.iter().find(|o| o.condition == ConditionType::InCustomerCluster);
    assert!(observed.is_some_and(|one| one.status), "{outcome:?}");
    assert!(!site.happened().contains("kubeadm"), "{}", site.happened());
    assert!(site.api.state.lock().events.is_empty(), "Farrier did not join it");
    assert_eq!(site.api.state.lock().nodes["n1"]["metadata"]["labels"]["zone"], "b");
    // The host belongs to another cluster: kubeadm decides, and says so.
    std::fs::write(&file, "clusters:\n- cluster:\n    server: https://10.9.9.9:6443\n").unwrap();
    site.join("foreign", KubeadmOptions::default()).await.unwrap();
    assert!(site.happened().contains("kubeadm join"), "{}", site.happened());
}
