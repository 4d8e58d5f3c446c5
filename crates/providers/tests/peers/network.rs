//! The network of a host, over a real sshd and a fake netplan that records its calls.

use crate::sshd::{Sshd, Wish};
use crate::until;
use model::effect::{Answer, Effect, Key, Order, Verb};
use model::fault::{Code, Fault};
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use providers::datacenter::{Datacenter, Netplan, Settings};
use providers::ssh::Proof;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DOCUMENT: &str = "network:\n  version: 2\n  ethernets: {eth0: {dhcp4: true}}";
const CONFIRM_SECONDS: u32 = 4;
const APPLY_SECONDS: u64 = 4;

/// A host with a folder for netplan.
struct Site {
    sshd: Sshd,
    folder: PathBuf,
    provider: Datacenter,
    key: Key,
}

impl Site {
    /// `generate` is netplan's answer to a document.
    fn start(generate: &str) -> Option<Self> {
        let netplan = format!("#!/bin/sh\nif [ \"$1\" = generate ]; then {generate}; fi\n");
        let sshd = Sshd::with(&Wish { shims: vec![("netplan", netplan)], ..Wish::default() })?;
        let folder = sshd.home.path().join("disk/netplan");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let store = InMemoryStateStore::default();
        let login = sshd.login(sshd.key());
        let Proof::Key { pem, passphrase } = login.proof else { panic!("a key") };
        store.set("host", Secret::Key { user: login.user, pem, passphrase });
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
        Some(Self { sshd, folder, provider, key: Key::new(&run, "net", 1) })
    }

    async fn ask(&self, verb: Verb) -> Result<Answer, Fault> {
        let spec =
            MachineSpec { ssh_endpoint: self.sshd.endpoint().to_string(), ..Default::default() };
        let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
        let key = self.key.clone();
        let effect = Effect::Net { document: DOCUMENT.into() };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
        let order = Order { key, verb, effect, logged: 0 };
        let answer = self.provider.ask(&target, &order, &journal).await;
        drop(journal);
        reader.await.unwrap();
        answer
    }

    fn document(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("90-farrier.yaml")).ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_applied_and_confirmed_over_a_new_connection() {
    let Some(site) = Site::start("exit 0") else { return };
    assert!(matches!(site.ask(Verb::Observe).await.unwrap(), Answer::Differs(_)));
    let done = site.ask(Verb::Perform).await.unwrap();
    assert!(
        matches!(&done, Answer::Done(outcome) if outcome.said.contains("confirmed")),
        "{done:?}"
    );
    assert_eq!(site.document().unwrap().trim_end(), DOCUMENT);
    for verb in [Verb::GetStatus, Verb::Observe, Verb::Follow] {
        assert!(matches!(site.ask(verb).await.unwrap(), Answer::Done(_)), "{verb:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_nobody_comes_back_over_is_taken_back() {
    let slow = format!("exit 0; else sleep {APPLY_SECONDS}");
    let Some(site) = Site::start(&slow) else { return };
    fs::write(site.folder.join("90-farrier.yaml"), "before").unwrap();
    // The provider begins it, and crashes while it is being applied.
    let is = |text: &str| site.document().is_some_and(|document| document.trim_end() == text);
    tokio::select! {
        ended = site.ask(Verb::Perform) => panic!("{ended:?}"),
        () = until("the document is there", async || is(DOCUMENT)) => {}
    }
    assert_eq!(site.ask(Verb::GetStatus).await, Ok(Answer::UnderWay));
    until("the old document is back", async || is("before")).await;
    let fault = site.ask(Verb::Follow).await.unwrap_err();
    assert_eq!(fault.code, Code::EffectFailed, "{fault}");
    assert!(fault.said.contains("went back"), "{fault}");
    assert_eq!(site.document().as_deref(), Some("before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_netplan_refuses_changes_nothing() {
    let Some(site) = Site::start("echo bad document >&2; exit 1") else { return };
    let fault = site.ask(Verb::Perform).await.unwrap_err();
    assert_eq!(fault.code, Code::CommandFailed, "{fault}");
    assert!(fault.said.contains("refused the document"), "{fault}");
    assert_eq!(site.document(), None);
}
