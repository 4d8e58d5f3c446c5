//! Machines behind MAAS that are no nodes: power, images, inspection.

use crate::maas_api::NodeStatus;
use crate::maas_fixture::{MaasFixture, NODE, SITE};
use crate::sshd::Sshd;
use async_trait::async_trait;
use model::condition::{ConditionObservation, ConditionType, imaged};
use model::effect::{
    CallOutcome, CallVerb, Capability, DesiredPower, DrainOptions, Effect, KubeadmOptions,
    NetbootMode, PowerOffPolicy, ProviderAnswer, ProviderCall, RebootMode, RmaAction,
};
use model::fault::{Fault, FaultCode};
use model::machine::MachineSpec;
use model::node::{NodeStage, NodeState};
use providers::cluster_check::DrainPreview;
use providers::datacenter::{self, Datacenter};
use providers::power::PowerState;
use providers::redfish::Inventory;
use providers::ssh::{Endpoint, LoginSecret};
use providers::state_store::{ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const IMAGE: &str = "ubuntu/jammy";

async fn machine_behind_maas(status: NodeStatus) -> (MaasFixture, String) {
    let mut fixture = MaasFixture::new().await;
    let id = fixture.add(status);
    fixture.put_node(NODE, "", NodeState::Enrolling);
    fixture.target.spec.bmc_endpoint = format!("maas://{SITE}/{id}");
    (fixture, id)
}

async fn call_provider(
    fixture: &MaasFixture,
    verb: CallVerb,
    effect: &Effect,
) -> Result<ProviderAnswer, model::fault::Fault> {
    fixture.call_effect(verb, effect, 1).await.0
}

#[tokio::test]
async fn power_follows_and_is_read_back() {
    let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
    let (off, on) = (
        Effect::Power { to: DesiredPower::Off, power_off },
        Effect::Power { to: DesiredPower::On, power_off },
    );
    let (fixture, id) = machine_behind_maas(NodeStatus::Deployed).await;
    fixture.api.state().machines.get_mut(&id).unwrap().power = "on";
    assert!(matches!(
        call_provider(&fixture, CallVerb::Observe, &off).await,
        Ok(ProviderAnswer::Differs(_))
    ));
    let answer = call_provider(&fixture, CallVerb::Perform, &off).await.unwrap();
    let ProviderAnswer::Done(outcome) = answer else { panic!("{answer:?}") };
    assert_eq!(outcome.evidence[0].condition, ConditionType::Reachable);
    assert_eq!(fixture.api.state().machines[&id].power, "off");
    fixture.call_effect(CallVerb::Perform, &on, 2).await.0.unwrap();
    assert_eq!((fixture.count(&id, "power_off"), fixture.count(&id, "power_on")), (1, 1));
    let cycle = Effect::Reboot { mode: RebootMode::Bmc, power_off };
    call_provider(&fixture, CallVerb::Perform, &cycle).await.unwrap();
    assert_eq!((fixture.count(&id, "power_off"), fixture.count(&id, "power_on")), (2, 2));
    // In MAAS, switching on an allocated machine deploys it.
    let (fixture, id) = machine_behind_maas(NodeStatus::Allocated).await;
    let fault = call_provider(&fixture, CallVerb::Perform, &on).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::StateDisagrees);
    assert_eq!(fixture.api.state().changes(&id), 0);
    fixture.api.state().machines.get_mut(&id).unwrap().power_type = "manual".into();
    let fault = fixture.call_effect(CallVerb::Perform, &on, 2).await.0.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported);
    // MAAS switches on no machine without an owner, so a reboot would leave it off.
    for status in [NodeStatus::New, NodeStatus::Ready, NodeStatus::Broken] {
        let (fixture, id) = machine_behind_maas(status).await;
        fixture.api.state().machines.get_mut(&id).unwrap().power = "on";
        for effect in [&on, &cycle] {
            let fault = call_provider(&fixture, CallVerb::Perform, effect).await.unwrap_err();
            assert_eq!(fault.code, FaultCode::StateDisagrees, "{fault}");
            assert!(fault.message.contains("allocated to no user"), "{fault}");
        }
        assert_eq!(fixture.api.state().changes(&id), 0);
        call_provider(&fixture, CallVerb::Perform, &off).await.unwrap();
    }
}

/// If MAAS cannot switch the power, the operator does it, and only the operator can confirm it.
#[tokio::test]
async fn manual_power_needs_the_operator() {
    let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
    let of_machine = Effect::Power { to: DesiredPower::Off, power_off };
    let of_node = crate::maas_fixture::effect(NodeStage::PowerOffMaasNode, false);
    for (kind, power, performed, adopted) in [
        ("manual", "unknown", false, true),
        ("", "unknown", false, true),
        ("manual", "error", false, true),
        ("manual", "on", false, false),
        ("manual", "off", true, true),
    ] {
        for effect in [&of_machine, &of_node] {
            let (fixture, id) = machine_behind_maas(NodeStatus::Ready).await;
            fixture.put_node(NODE, &id, NodeState::Retired);
            fixture.api.state().machines.get_mut(&id).unwrap().power = power;
            fixture.api.state().machines.get_mut(&id).unwrap().power_type = kind.into();
            match call_provider(&fixture, CallVerb::Perform, effect).await {
                Ok(ProviderAnswer::Done(outcome)) if performed => {
                    assert_eq!(outcome.facts.unwrap().power, Some(DesiredPower::Off));
                }
                Err(fault) if !performed => {
                    assert_eq!(fault.code, FaultCode::StateDisagrees);
                    assert!(fault.message.contains("`farrier operation adopt op-1`"), "{fault}");
                }
                other => panic!("{kind} {power}: {other:?}"),
            }
            assert_eq!(
                call_provider(&fixture, CallVerb::GetStatus, effect).await,
                Ok(ProviderAnswer::NeverStarted)
            );
            match call_provider(&fixture, CallVerb::Observe, effect).await {
                Ok(ProviderAnswer::Done(outcome)) if adopted => {
                    // The power was not observed.
                    let observed = outcome.facts.unwrap().power;
                    assert_eq!(observed, performed.then_some(DesiredPower::Off), "{kind} {power}");
                }
                Ok(ProviderAnswer::Differs(_)) if !adopted => {}
                other => panic!("{kind} {power}: {other:?}"),
            }
            assert_eq!(fixture.api.state().changes(&id), 0);
        }
    }
}

#[tokio::test]
async fn an_image_is_deployed_once() {
    let repave = Effect::Repave { image: IMAGE.into() };
    for status in [NodeStatus::Deployed, NodeStatus::Ready, NodeStatus::FailedDeployment] {
        let (fixture, id) = machine_behind_maas(status).await;
        for verb in [CallVerb::Perform, CallVerb::Observe, CallVerb::GetStatus] {
            let answer = call_provider(&fixture, verb, &repave).await.unwrap();
            let ProviderAnswer::Done(outcome) = answer else { panic!("{verb:?}: {answer:?}") };
            assert_eq!(outcome.evidence, [imaged(IMAGE)], "{verb:?}");
        }
        assert_eq!((fixture.status(&id), fixture.count(&id, "deploy")), (NodeStatus::Deployed, 1));
        let other = Effect::Repave { image: "custom/gpu-node".into() };
        assert!(matches!(
            call_provider(&fixture, CallVerb::Observe, &other).await,
            Ok(ProviderAnswer::Differs(_))
        ));
        // An uploaded image is told from a release of the same name by its system.
        fixture.api.state().images.insert(0, "centos/gpu-node".into());
        let answer = fixture.call_effect(CallVerb::Perform, &other, 2).await.0.unwrap();
        let ProviderAnswer::Done(outcome) = answer else { panic!("{answer:?}") };
        assert_eq!(outcome.evidence, [imaged("custom/gpu-node")]);
    }
    let (fixture, id) = machine_behind_maas(NodeStatus::Deployed).await;
    fixture.mark(&id, NODE, "op-0/deploy_via_maas/1");
    let fault = call_provider(&fixture, CallVerb::Perform, &repave).await.unwrap_err();
    assert_eq!((fault.code, fixture.api.state().changes(&id)), (FaultCode::StateDisagrees, 0));
    assert!(fault.message.contains("--mode reimage"), "{fault}");
    let wrong = Effect::Repave { image: "jammy".into() };
    assert_eq!(
        call_provider(&fixture, CallVerb::Perform, &wrong).await.unwrap_err().code,
        FaultCode::ImageUnknown
    );
}

#[tokio::test]
async fn an_image_is_checked_where_it_is_kept() {
    let (fixture, id) = machine_behind_maas(NodeStatus::Ready).await;
    for (image, problem) in [
        (IMAGE, None),
        // MAAS lists it as gpu-node.
        ("custom/gpu-node", None),
        (
            "ubuntu/noble",
            Some("has no image \"ubuntu/noble\"; it has ubuntu/jammy, custom/gpu-node"),
        ),
        ("ubuntu-2204", Some("is no image of MAAS")),
    ] {
        match (fixture.replica().check_image(&fixture.target, image).await, problem) {
            (Ok(()), None) => {}
            (Err(fault), Some(problem)) => {
                assert_eq!(fault.code, FaultCode::ImageUnknown);
                assert!(fault.message.contains(problem), "{fault}");
            }
            (checked, problem) => panic!("{image}: {checked:?}, not {problem:?}"),
        }
    }
    assert_eq!(fixture.api.state().changes(&id), 0);
}

#[tokio::test]
async fn a_later_deployment_of_another_user_is_kept() {
    use model::effect::EffectKey;
    use providers::state_store::Checkpoint;
    let (fixture, id) = machine_behind_maas(NodeStatus::Deployed).await;
    let repave = Effect::Repave { image: IMAGE.into() };
    let requested = serde_json::json!({"what": "reinstall", "round": 1, "leg": {"letting": {"asked": {"marked": true, "at": 0}}}});
    fixture
        .store
        .begin(&EffectKey::trusted("op-1/repave/1"), &Checkpoint::Begun(requested))
        .await
        .unwrap();
    let answer = call_provider(&fixture, CallVerb::GetStatus, &repave).await;
    assert!(matches!(answer, Ok(ProviderAnswer::Unknown(_))), "{answer:?}");
    assert_eq!(
        call_provider(&fixture, CallVerb::Follow, &repave).await.unwrap_err().code,
        FaultCode::OutcomeUnknown
    );
    assert_eq!(fixture.api.state().changes(&id), 0);
}

/// A provider that records what it is asked to do on hosts.
#[derive(Default)]
pub struct RecordingHosts(Mutex<Vec<(&'static str, String)>>);

#[async_trait]
impl Provider for RecordingHosts {
    fn name(&self) -> &'static str {
        "hosts"
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::RemoteExec, Capability::ClusterJoin]
    }

    fn peers(&self, spec: &MachineSpec) -> Vec<String> {
        vec![format!("ssh://{}", spec.ssh_endpoint)]
    }

    async fn call(
        &self,
        target: &Target,
        call: &ProviderCall,
        _journal: &Journal,
    ) -> Result<ProviderAnswer, Fault> {
        let asked = (call.effect.name(), target.spec.ssh_endpoint.clone());
        self.0.lock().unwrap().push(asked);
        Ok(ProviderAnswer::Done(CallOutcome::default()))
    }

    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>, Fault> {
        assert_eq!(
            (target.spec.bmc_endpoint.as_str(), target.spec.ssh_endpoint.as_str()),
            ("", "")
        );
        Ok(vec![ConditionObservation::new(ConditionType::InCustomerCluster, true, "Ready")])
    }

    async fn preview_drain(
        &self,
        _target: &Target,
        _options: &DrainOptions,
    ) -> Result<DrainPreview, Fault> {
        Ok(DrainPreview { cluster: "prod".into(), ..DrainPreview::default() })
    }
}

/// MAAS has the power, netboot and imaging of a machine; commands and its cluster are reached over
/// SSH, at its own address or at the one that MAAS reports.
#[tokio::test]
async fn hosts_behind_maas_are_reached_over_ssh() {
    let (mut fixture, id) = machine_behind_maas(NodeStatus::Deployed).await;
    let capabilities = |fixture: &MaasFixture| fixture.replica().capabilities().to_vec();
    assert!(!capabilities(&fixture).contains(&Capability::RemoteExec));
    let hosts = Arc::new(RecordingHosts::default());
    fixture.hosts = Some(Arc::clone(&hosts) as Arc<dyn Provider>);
    for needed in [Capability::RemoteExec, Capability::ClusterJoin, Capability::Imaging] {
        assert!(capabilities(&fixture).contains(&needed), "{needed:?}");
    }
    let cluster_ref = || "prod".to_owned();
    let effects = [
        Effect::Ssh { command: "true".into(), destructive: false },
        Effect::Net { document: "network: {}".into() },
        Effect::Join {
            cluster_ref: cluster_ref(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            kubeadm: KubeadmOptions::default(),
        },
        Effect::Leave { cluster_ref: cluster_ref(), joined_by: None },
        Effect::Reboot { mode: RebootMode::InBand, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
        Effect::Drain {
            cluster_ref: cluster_ref(),
            deadline_seconds: None,
            options: DrainOptions::default(),
        },
        Effect::Uncordon { cluster_ref: cluster_ref(), own: false },
    ];
    let no_address = call_provider(&fixture, CallVerb::Perform, &effects[0]).await.unwrap_err();
    assert_eq!(no_address.code, FaultCode::NotSupported);
    assert!(no_address.message.contains("--ssh-endpoint HOST"), "{no_address}");
    fixture.api.state().machines.get_mut(&id).unwrap().addresses = vec!["fe80::7".into()];
    for effect in &effects {
        call_provider(&fixture, CallVerb::Perform, effect).await.unwrap();
    }
    let asked = std::mem::take(&mut *hosts.0.lock().unwrap());
    let names: Vec<_> = asked.iter().map(|(name, at)| (*name, at.as_str())).collect();
    let host = "[fe80::7]";
    let over_ssh = ["ssh", "net", "join", "leave", "reboot"].map(|name| (name, host));
    assert_eq!(names, [&over_ssh[..], &[("drain", ""), ("uncordon", "")]].concat());
    fixture.target.spec.ssh_endpoint = "127.0.0.1:9".into();
    call_provider(&fixture, CallVerb::Perform, &effects[0]).await.unwrap();
    assert_eq!(hosts.0.lock().unwrap().pop(), Some(("ssh", "127.0.0.1:9".into())));
    // A new system has a new host key; the power stays with MAAS.
    let peer = "ssh://127.0.0.1:9";
    fixture.store.pin(peer, Some("old key")).await.unwrap();
    let repave = Effect::Repave { image: IMAGE.into() };
    call_provider(&fixture, CallVerb::Perform, &repave).await.unwrap();
    assert_eq!(fixture.store.identity(peer).await, Ok(None));
    assert_eq!((fixture.count(&id, "deploy"), hosts.0.lock().unwrap().len()), (1, 0));
    // The same at the address that MAAS reports.
    fixture.target.spec.ssh_endpoint.clear();
    let peer = format!("ssh://{host}");
    fixture.store.pin(&peer, Some("old key")).await.unwrap();
    fixture.call_effect(CallVerb::Perform, &repave, 2).await.0.unwrap();
    assert_eq!(fixture.store.identity(&peer).await, Ok(None));
    let observed = fixture.replica().probe(&fixture.target).await.unwrap();
    assert!(observed.iter().any(|one| one.condition == ConditionType::InCustomerCluster));
    let drain = DrainOptions::default();
    let previewed = fixture.replica().preview_drain(&fixture.target, &drain).await.unwrap();
    assert_eq!(previewed.cluster, "prod");
}

/// An installation that MAAS has proven stays proven when the old host key cannot be removed, and
/// only the calls that have the time wait for the new system.
#[tokio::test]
async fn a_proven_installation_is_not_doubted_for_its_host() {
    let (mut fixture, _) = machine_behind_maas(NodeStatus::Deployed).await;
    fixture.hosts = Some(Arc::new(RecordingHosts::default()));
    let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = host.local_addr().unwrap().to_string();
    let logins = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&logins);
    let host = tokio::spawn(async move {
        while let Ok((mut stream, _)) = host.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            stream.write_all(b"SSH-2.0-host\r\n").await.unwrap();
        }
    });
    fixture.settings.host_wait = Duration::from_secs(60);
    fixture.target.spec.ssh_endpoint = address.clone();
    fixture.crash_injector.fail_store_for(&format!("ssh://{address}"));
    let repave = Effect::Repave { image: IMAGE.into() };
    for (verb, waits) in [
        (CallVerb::Perform, 1),
        (CallVerb::Follow, 1),
        (CallVerb::GetStatus, 0),
        (CallVerb::Stop, 0),
    ] {
        let (answer, log) = fixture.call_effect(verb, &repave, 1).await;
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{verb:?}: {answer:?}");
        assert!(log.contains("the old host key is kept"), "{log}");
        assert_eq!(logins.swap(0, Ordering::SeqCst), waits, "{verb:?}");
    }
    host.abort();
}

/// A command on the host of a machine behind MAAS, by a real SSH server: before and after its
/// system is replaced, which changes its host key.
#[tokio::test]
async fn a_command_runs_on_a_host_behind_maas() {
    let Some(sshd) = Sshd::start() else { return };
    let (mut fixture, _) = machine_behind_maas(NodeStatus::Deployed).await;
    let login = sshd.login(sshd.key());
    let LoginSecret::Key { pem, passphrase } = login.proof else { panic!("a key") };
    fixture.store.set_credential("host", Secret::Key { user: login.user, pem, passphrase });
    let settings = datacenter::Settings {
        ssh_credential: "host".into(),
        ssh: sshd.settings(),
        ..datacenter::Settings::default()
    };
    let store = Arc::clone(&fixture.store) as Arc<dyn ProviderStateStore>;
    fixture.hosts = Some(Arc::new(Datacenter::new(store, settings)));
    let Endpoint { host, port, .. } = sshd.endpoint();
    fixture.target.spec.ssh_endpoint = format!("{host}:{port}");
    let echo = Effect::Ssh { command: "echo over ssh".into(), destructive: false };
    let (answer, log) = fixture.call_effect(CallVerb::Perform, &echo, 1).await;
    assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
    assert!(log.contains("over ssh"), "{log}");
    // The system before had another key.
    let peer = fixture.replica().peers(&fixture.target.spec).pop().unwrap();
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    fixture.store.pin(&peer, Some(other)).await.unwrap();
    let refused = fixture.call_effect(CallVerb::Perform, &echo, 2).await.0.unwrap_err();
    assert_ne!(refused.code, FaultCode::HostUnreachable, "{refused}");
    let repave = Effect::Repave { image: IMAGE.into() };
    call_provider(&fixture, CallVerb::Perform, &repave).await.unwrap();
    let answer = fixture.call_effect(CallVerb::Perform, &echo, 3).await.0;
    assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
}

#[tokio::test]
async fn a_machine_is_inspected_through_maas() {
    let (fixture, id) = machine_behind_maas(NodeStatus::Deployed).await;
    fixture.api.state().machines.get_mut(&id).unwrap().power = "on";
    fixture.api.state().note_event(&id, "Deployed", "");
    let replica = fixture.replica();
    let observed = replica.probe(&fixture.target).await.unwrap();
    assert_eq!((observed[0].condition, observed[0].status), (ConditionType::BmcReachable, true));
    let inspector = replica.inspector().unwrap();
    let shown = inspector.inspect(&fixture.target).await.unwrap();
    assert_eq!((shown.power, shown.inventory.disks.len()), (Some(PowerState::On), 2));
    let Inventory { vendor, bios_version, memory_mib, cpus, .. } = &shown.inventory;
    assert_eq!((vendor.as_deref(), bios_version.as_deref()), (Some("Dell"), Some("2.1.7")));
    assert_eq!((*memory_mib, cpus[0].cores), (Some(2_097_152), Some(128)));
    assert_eq!(cpus[0].model.as_deref(), Some("Xeon 8480C"));
    assert_eq!(shown.inventory.nics[0].mac, crate::maas_fixture::MAC);
    assert_eq!(inspector.power_now(&fixture.target).await, Ok(PowerState::On));
    assert!(inspector.event_log(&fixture.target, 5).await.unwrap()[0].message.contains("Deployed"));
    assert!(replica.check(&fixture.target.spec).is_ok());
    for effect in [
        Effect::Netboot { mode: NetbootMode::Pxe },
        Effect::Rma { action: RmaAction::Record, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
        Effect::Rma { action: RmaAction::Mark, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
    ] {
        let answer = call_provider(&fixture, CallVerb::Perform, &effect).await;
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
    }
    let ssh = Effect::Ssh { command: "true".into(), destructive: false };
    assert_eq!(
        call_provider(&fixture, CallVerb::Perform, &ssh).await.unwrap_err().code,
        FaultCode::NotSupported
    );
    fixture.api.state().machines.clear();
    let gone = replica.probe(&fixture.target).await.unwrap();
    assert_eq!((gone[0].status, gone[0].reason.as_str()), (false, "maas-machine-gone"));
}
