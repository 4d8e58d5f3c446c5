//! The network of a host, over a real sshd and a fake netplan that records its calls.

use crate::sshd::{Sshd, SshdOptions, is_root};
use crate::until;
use model::effect::{CallResult, CallVerb, Effect, EffectKey, ProviderAnswer, ProviderCall};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use model::retry::fnv1a;
use providers::datacenter::{Datacenter, Netplan, Settings};
use providers::ssh::LoginSecret;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DOCUMENT: &str = "network:\n  version: 2\n  ethernets: {eth0: {dhcp4: true}}";
const CONFIRM_SECONDS: u32 = 4;
const APPLY_SECONDS: u64 = 4;

/// A host with a folder for netplan.
struct NetplanFixture {
    sshd: Sshd,
    folder: PathBuf,
    provider: Datacenter,
    key: EffectKey,
}

impl NetplanFixture {
    /// `generate` is netplan's answer to a document.
    fn start(generate: &str) -> Option<Self> {
        let netplan = format!("#!/bin/sh\nif [ \"$1\" = generate ]; then {generate}; fi\n");
        let sshd = Sshd::with(&SshdOptions {
            shims: vec![("netplan", netplan)],
            ..SshdOptions::default()
        })?;
        let folder = sshd.home.path().join("disk/netplan");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let store = InMemoryStateStore::default();
        let login = sshd.login(sshd.key());
        let LoginSecret::Key { pem, passphrase } = login.proof else { panic!("a key") };
        store.set_credential("host", Secret::Key { user: login.user, pem, passphrase });
        let settings = Settings {
            ssh_credential: "host".into(),
            ssh: sshd.settings(),
            netplan: Netplan {
                folder: folder.display().to_string(),
                confirm_seconds: CONFIRM_SECONDS,
            },
            ..Settings::default()
        };
        let provider = Datacenter::new(Arc::new(store) as Arc<dyn ProviderStateStore>, settings);
        // Test hosts share a folder for temporary files, so each has its own key.
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let site = SITES.fetch_add(1, Ordering::SeqCst);
        let run = RunId::trusted(format!("op-{}-{site}", std::process::id()));
        Some(Self { sshd, folder, provider, key: EffectKey::new(&run, "net", 1) })
    }

    async fn call_provider(&self, verb: CallVerb) -> CallResult {
        let spec =
            MachineSpec { ssh_endpoint: self.sshd.endpoint().to_string(), ..Default::default() };
        let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
        let key = self.key.clone();
        let effect = Effect::Net { document: DOCUMENT.into() };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
        let call = ProviderCall { key, verb, effect, log_offset_bytes: 0 };
        let answer = self.provider.call(&target, &call, &journal).await;
        drop(journal);
        reader.await.unwrap();
        answer
    }

    /// Starts the change, and crashes while it is being applied.
    async fn perform_and_crash(&self) {
        tokio::select! {
            ended = self.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
            () = until("the document is there", async || self.has(DOCUMENT)) => {}
        }
    }

    fn has(&self, text: &str) -> bool {
        self.document().is_some_and(|document| document.trim_end() == text)
    }

    /// The marks of earlier versions, in a folder where every user can write.
    fn public_mark(&self, name: &str) -> PublicMark {
        let hash = fnv1a(self.key.as_str(), 0);
        PublicMark(PathBuf::from(format!("/var/tmp/farrier-net-{hash:016x}.{name}")))
    }

    fn document(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("90-farrier.yaml")).ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_applied_and_confirmed_over_a_new_connection() {
    let Some(site) = NetplanFixture::start("exit 0") else { return };
    assert!(matches!(
        site.call_provider(CallVerb::Observe).await.unwrap(),
        ProviderAnswer::Differs(_)
    ));
    let done = site.call_provider(CallVerb::Perform).await.unwrap();
    assert!(
        matches!(&done, ProviderAnswer::Done(outcome) if outcome.message.contains("confirmed")),
        "{done:?}"
    );
    assert_eq!(site.document().unwrap().trim_end(), DOCUMENT);
    for verb in [CallVerb::GetStatus, CallVerb::Observe, CallVerb::Follow] {
        assert!(
            matches!(site.call_provider(verb).await.unwrap(), ProviderAnswer::Done(_)),
            "{verb:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unconfirmed_network_is_rolled_back() {
    let slow = format!("exit 0; else sleep {APPLY_SECONDS}");
    let Some(site) = NetplanFixture::start(&slow) else { return };
    fs::write(site.folder.join("90-farrier.yaml"), "before").unwrap();
    site.perform_and_crash().await;
    assert_eq!(site.call_provider(CallVerb::GetStatus).await, Ok(ProviderAnswer::UnderWay));
    until("the old document is back", async || site.has("before")).await;
    let fault = site.call_provider(CallVerb::Follow).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    assert!(fault.message.contains("went back"), "{fault}");
    assert_eq!(site.document().as_deref(), Some("before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_netplan_refuses_changes_nothing() {
    let Some(site) = NetplanFixture::start("echo bad document >&2; exit 1") else { return };
    let fault = site.call_provider(CallVerb::Perform).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::CommandFailed, "{fault}");
    assert!(fault.message.contains("refused the document"), "{fault}");
    assert_eq!(site.document(), None);
}

/// A path in /var/tmp that is deleted with the test.
struct PublicMark(PathBuf);

impl Drop for PublicMark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs a command as a user of the host who has no rights. Without root it is the user of the host.
fn attack(script: &str, path: &Path) -> bool {
    const NOBODY: u32 = 65_534;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(path);
    if is_root() {
        shell.uid(NOBODY).gid(NOBODY);
    }
    shell.status().unwrap().success()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planted_mark_confirms_nothing() {
    let slow = format!("exit 0; else sleep {APPLY_SECONDS}");
    let Some(site) = NetplanFixture::start(&slow) else { return };
    fs::write(site.folder.join("90-farrier.yaml"), "before").unwrap();
    site.perform_and_crash().await;
    let marks = ["applied", "seen"].map(|name| site.public_mark(name));
    for mark in &marks {
        assert!(attack(": >\"$1\"", &mark.0));
    }
    if is_root() {
        let jobs = site.sshd.settings().folder.unwrap();
        let name = site.key.as_str().replace('/', "%2F");
        let mark = Path::new(jobs.as_str()).join(name).join("job/confirmed");
        assert!(mark.parent().unwrap().is_dir(), "{mark:?}");
        assert!(!attack(": >\"$1\"", &mark), "the job's folder is its user's");
    }
    until("the old document is back", async || site.has("before")).await;
    let fault = site.call_provider(CallVerb::Follow).await.unwrap_err();
    assert!(fault.message.contains("went back"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planted_link_is_not_followed() {
    let Some(site) = NetplanFixture::start("exit 0") else { return };
    fs::write(site.folder.join("90-farrier.yaml"), "before").unwrap();
    let victim = site.sshd.home.path().join("user/victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o666)).unwrap();
    let marks = ["old", "applied", "seen"].map(|name| site.public_mark(name));
    for mark in &marks {
        assert!(attack(&format!("ln -s {} \"$1\"", victim.display()), &mark.0));
    }
    let done = site.call_provider(CallVerb::Perform).await;
    assert!(matches!(done, Ok(ProviderAnswer::Done(_))), "{done:?}");
    assert!(site.has(DOCUMENT));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    for mark in &marks {
        assert!(mark.0.is_symlink(), "{:?} is untouched", mark.0);
    }
}

/// The folder for jobs is made by another user before Farrier makes it: as a folder, as a link to
/// one, and as a folder of the right user that others can write.
#[tokio::test(flavor = "multi_thread")]
async fn a_planted_folder_is_not_believed() {
    let job = |path: &str| {
        format!(
            "p={path}; mkdir -p \"$p/$JOB/job\" && cd \"$p/$JOB/job\" && \
             echo '0 0 0 0 0 .' >status && : >confirmed && chmod -R a+rwX \"$p\""
        )
    };
    for plant in [job("\"$1\""), format!("{} && ln -s \"$1.there\" \"$1\"", job("\"$1.there\""))] {
        let Some(site) = NetplanFixture::start("exit 0") else { return };
        let jobs = site.sshd.settings().folder.unwrap();
        let name = site.key.as_str().replace('/', "%2F");
        let plant = format!("JOB={name}; {plant}");
        assert!(attack(&plant, Path::new(jobs.as_str())));
        for verb in [CallVerb::Perform, CallVerb::GetStatus, CallVerb::Follow] {
            let fault = site.call_provider(verb).await.unwrap_err();
            assert!(fault.message.contains("the folder for jobs is a link"), "{verb:?}: {fault}");
        }
        assert_eq!(site.document(), None, "nothing was changed");
    }
}

/// The script of a job as earlier versions wrote it, with its marks in /var/tmp.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_during_an_upgrade_is_confirmed() {
    let Some(site) = NetplanFixture::start("exit 0") else { return };
    let [applied, seen] = ["applied", "seen"].map(|name| site.public_mark(name));
    let script = format!(
        ": >{}; left=60; while [ $left -gt 0 ]; do [ -e {} ] && exit 0; sleep 1; \
         left=$((left - 1)); done; exit 66",
        applied.0.display(),
        seen.0.display()
    );
    site.sshd.host().await.start(site.key.as_str(), &script).await.unwrap();
    let done = site.call_provider(CallVerb::Follow).await;
    assert!(
        matches!(&done, Ok(ProviderAnswer::Done(outcome)) if outcome.message.contains("confirmed")),
        "{done:?}"
    );
}
