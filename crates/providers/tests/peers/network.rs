//! The network of a host, over a real sshd and a fake netplan that records its calls.

use crate::sshd::{Sshd, SshdOptions};
use crate::until;
use model::effect::{CallResult, CallVerb, Effect, EffectKey, ProviderAnswer, ProviderCall};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use providers::datacenter::{Datacenter, Netplan, Settings};
use providers::ssh::LoginSecret;
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
    // The provider begins it, and crashes while it is being applied.
    let is = |text: &str| site.document().is_some_and(|document| document.trim_end() == text);
    tokio::select! {
        ended = site.call_provider(CallVerb::Perform) => panic!("{ended:?}"),
        () = until("the document is there", async || is(DOCUMENT)) => {}
    }
    assert_eq!(site.call_provider(CallVerb::GetStatus).await, Ok(ProviderAnswer::UnderWay));
    until("the old document is back", async || is("before")).await;
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
