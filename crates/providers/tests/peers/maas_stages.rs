//! Nodes at MAAS without failures: onboarding stage by stage, every mode of decommission, and
//! adoption.

use crate::maas_api::{NodeStatus, OperationTime, PlannedOutcomes, Released};
use crate::maas_fixture::{MAC, MaasFixture, NODE, SUBNET};
use model::condition::ConditionType;
use model::effect::{CallVerb, ProviderAnswer};
use model::fault::FaultCode;
use model::node::{DecommissionMode, MaasState, NodeStage, NodeState, StageExecutor};
use serde_json::json;
use std::time::Duration;

/// The stages of an onboarding that run at MAAS.
fn onboarding() -> impl Iterator<Item = NodeStage> {
    NodeStage::ONBOARDING.into_iter().filter(|stage| stage.executor() == StageExecutor::Maas)
}

/// Lets the deployed machine report its hardware.
fn sync(fixture: &MaasFixture, id: &str) {
    fixture.api.state().report_hardware(id);
}

/// Performs all stages. Once MAAS has installed the image, and not before, Provisioned is proven.
async fn onboard(fixture: &MaasFixture) {
    let mut disk = Vec::new();
    for stage in onboarding() {
        if stage == NodeStage::WaitForHardwareSyncHealthy {
            sync(fixture, &fixture.node().await.system_id);
        }
        disk.extend(perform_for_evidence(fixture, stage).await);
    }
    disk.dedup();
    assert_eq!(disk, [(true, "Image:ubuntu/jammy".to_string())]);
}

/// Performs a stage that must succeed. Returns what it proves of Provisioned.
async fn perform_for_evidence(fixture: &MaasFixture, stage: NodeStage) -> Vec<(bool, String)> {
    let answer = fixture.call_stage(stage, CallVerb::Perform).await;
    let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{stage}: {answer:?}") };
    let evidence = outcome.evidence.into_iter();
    let disk = evidence.filter(|one| one.condition == ConditionType::Provisioned);
    disk.map(|one| (one.status, one.reason)).collect()
}

#[tokio::test]
async fn an_unknown_machine_is_created_and_deployed() {
    let fixture = MaasFixture::new().await;
    fixture.change_site(|spec| spec.network.roce_interfaces = "ens2".into()).await;
    onboard(&fixture).await;
    let node = fixture.node().await;
    assert_eq!(node.maas.map(|observed| observed.state), Some(MaasState::Deployed));
    let id = node.system_id;
    {
        let env = fixture.api.state();
        let machine = &env.machines[&id];
        assert_eq!((machine.hostname.as_str(), machine.pool.as_str()), ("m-1", "gpu"));
        assert_eq!((machine.zone.as_str(), machine.power_type.as_str()), ("east", "redfish"));
        assert_eq!(machine.power_parameters["power_pass"], "calvin");
        assert_eq!(machine.annotations["farrier-node"], NODE);
        assert!(machine.enable_hw_sync);
        assert!(machine.user_data.contains("token-of-node-1"), "{}", machine.user_data);
        assert!(machine.user_data.contains("http://farrier:8440"), "{}", machine.user_data);
        let boots = &machine.interfaces[0]["links"];
        assert_eq!((&boots[0]["mode"], boots.as_array().unwrap().len()), (&json!("auto"), 1));
        let roce = &machine.interfaces[1];
        assert_eq!(
            (&roce["effective_mtu"], &roce["links"][0]["subnet"]["cidr"]),
            (&json!(9_000), &json!(SUBNET))
        );
        for (name, times) in [("commission", 1), ("allocate", 1), ("deploy", 1), ("release", 0)] {
            assert_eq!(env.count(&id, name), times, "{name}");
        }
    }
    // A second pass by another run changes nothing.
    let changes = fixture.api.state().changes(&id);
    let mut again = fixture;
    again.run = "op-2".into();
    onboard(&again).await;
    assert_eq!(again.api.state().changes(&id), changes);
}

#[tokio::test]
async fn an_existing_machine_is_found_and_updated() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    fixture.put_node(NODE, "", NodeState::Enrolling);
    assert!(fixture.perform(NodeStage::CreateOrFindInMaas).await.contains("was found"));
    assert_eq!((fixture.count(&id, "update"), fixture.node().await.system_id), (1, id.clone()));
    fixture
        .call_effect(
            CallVerb::Perform,
            &crate::maas_fixture::effect(NodeStage::CreateOrFindInMaas, false),
            2,
        )
        .await
        .0
        .unwrap();
    assert_eq!(fixture.count(&id, "update"), 1, "nothing differs");
    assert!(
        fixture.perform(NodeStage::CommissionNode).await.contains("MAAS has the machine as Ready")
    );
    fixture.perform(NodeStage::WaitForReady).await;
    assert_eq!(fixture.count(&id, "commission"), 0);
    // A machine in use keeps its settings.
    fixture.api.state().machines.get_mut(&id).unwrap().pool = "default".into();
    fixture.api.state().machines.get_mut(&id).unwrap().status = NodeStatus::Deployed;
    fixture
        .call_effect(
            CallVerb::Perform,
            &crate::maas_fixture::effect(NodeStage::CreateOrFindInMaas, false),
            3,
        )
        .await
        .0
        .unwrap();
    assert_eq!(fixture.count(&id, "update"), 1);
}

/// A card on another VLAN than its subnet is moved there, which removes its links in MAAS.
#[tokio::test]
async fn a_card_of_the_fabric_moves_to_the_vlan_of_its_subnet() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    {
        let mut env = fixture.api.state();
        let subnet = env.subnets[0].clone();
        let card = &mut env.machines.get_mut(&id).unwrap().interfaces[1];
        card["links"] = json!([{"id": 901, "mode": "dhcp", "subnet": subnet}]);
    }
    fixture.perform(NodeStage::ApplyRocePhase2).await;
    let env = fixture.api.state();
    let card = &env.machines[&id].interfaces[1];
    assert_eq!((&card["vlan"]["id"], &card["effective_mtu"]), (&json!(5002), &json!(9_000)));
    let links = card["links"].as_array().unwrap();
    assert_eq!((links.len(), &links[0]["subnet"]["cidr"]), (1, &json!(SUBNET)));
}

/// The options of operators in MAAS beside the image: kernel, tags, commissioning, and how disks
/// are erased.
#[tokio::test]
async fn the_options_of_a_site_reach_maas() {
    use model::site::{Commissioning, EraseMethod};
    let fixture = MaasFixture::new().await;
    fixture
        .change_site(|spec| {
            spec.network.roce_interfaces.clear();
            spec.hwe_kernel = "hwe-22.04".into();
            spec.tags = vec!["h100".into(), "lab".into()];
            spec.commissioning = Commissioning {
                skip_bmc_config: true,
                scripts: vec!["update_firmware".into()],
                tests: vec!["none".into()],
            };
            spec.erase_method = EraseMethod::SecureOrQuick;
        })
        .await;
    fixture.api.state().tags.push(("lab".into(), "of others".into()));
    onboard(&fixture).await;
    let id = fixture.node().await.system_id;
    fixture.put_node(NODE, &id, NodeState::Retired);
    fixture.perform(NodeStage::ReleaseMaasNode).await;
    let machine = fixture.api.state().machines[&id].clone();
    assert_eq!(machine.tags.iter().collect::<Vec<_>>(), ["h100", "lab"]);
    for (op, name, value) in [
        ("commission", "skip_bmc_config", "1"),
        ("commission", "commissioning_scripts", "update_firmware"),
        ("commission", "testing_scripts", "none"),
        ("deploy", "hwe_kernel", "hwe-22.04"),
        ("release", "secure_erase", "true"),
        ("release", "quick_erase", "true"),
    ] {
        assert_eq!(machine.requested[op][name], value, "{op} {name}");
    }
    // A script that MAAS does not have is refused by name, and nothing is started.
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::New);
    fixture.change_site(|spec| spec.commissioning.scripts = vec!["nothing".into()]).await;
    fixture
        .assert_fails(
            NodeStage::CommissionNode,
            FaultCode::MaasRefused,
            &["commissioning_scripts", "nothing"],
        )
        .await;
    assert_eq!(fixture.status(&id), NodeStatus::New);
}

/// The site's architecture is used for machines that are not amd64.
#[tokio::test]
async fn a_record_is_made_for_the_architecture_of_its_site() {
    use model::id::SiteId;
    use providers::state_store::ProviderStateStore;
    for (label, expected) in [(None, "amd64/generic"), (Some("arm64"), "arm64/generic")] {
        let fixture = MaasFixture::new().await;
        let mut site = fixture.store.site(&SiteId::trusted("site-east")).await.unwrap();
        site.head.labels.extend(label.map(|name| ("architecture".into(), name.into())));
        fixture.store.set_site(site);
        fixture.perform(NodeStage::CreateOrFindInMaas).await;
        let id = fixture.node().await.system_id;
        assert_eq!(fixture.api.state().machines[&id].architecture, expected);
    }
}

#[tokio::test]
async fn every_decommission_mode_releases_what_it_should() {
    for mode in DecommissionMode::DECOMMISSION {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Deployed);
        fixture.put_node(NODE, &id, NodeState::Retired);
        fixture.mark(&id, NODE, "op-0/deploy_via_maas/1");
        let stages =
            mode.stages(true).into_iter().filter(|stage| stage.executor() == StageExecutor::Maas);
        let mut disk = Vec::new();
        for stage in stages {
            if stage == NodeStage::WaitForHardwareSyncHealthy {
                sync(&fixture, &id);
            }
            disk.extend(perform_for_evidence(&fixture, stage).await);
            disk.dedup();
        }
        let removed = (false, "Released".to_string());
        let expected = match mode {
            DecommissionMode::FullDecommission => vec![removed],
            DecommissionMode::Reimage => vec![removed, (true, "Image:ubuntu/jammy".to_string())],
            DecommissionMode::SoftReset
            | DecommissionMode::StorageCleanup
            | DecommissionMode::Drain
            | DecommissionMode::Retire
            | DecommissionMode::Reactivate => Vec::new(),
        };
        assert_eq!(disk, expected, "{mode}");
        let (stored, released, deployed) = match mode {
            DecommissionMode::FullDecommission => (false, 1, 0),
            DecommissionMode::Reimage => (true, 1, 1),
            DecommissionMode::SoftReset
            | DecommissionMode::StorageCleanup
            | DecommissionMode::Drain
            | DecommissionMode::Retire
            | DecommissionMode::Reactivate => (true, 0, 0),
        };
        let counts = (fixture.count(&id, "release"), fixture.count(&id, "deploy"));
        assert_eq!(counts, (released, deployed), "{mode}");
        assert_eq!(fixture.api.state().machines.contains_key(&id), stored, "{mode}");
        let observed = fixture.node().await.maas.map(|observed| observed.state);
        assert!(stored || observed == Some(MaasState::Absent), "{mode}: {observed:?}");
    }
}

#[tokio::test]
async fn a_release_ends_as_maas_reports() {
    for (impact, locked, status, expected) in [
        (Released::Ready, false, NodeStatus::Deployed, Ok(NodeStatus::Ready)),
        (Released::New, false, NodeStatus::Deployed, Ok(NodeStatus::New)),
        (Released::Fails, false, NodeStatus::Deployed, Err(FaultCode::EffectFailed)),
        (Released::Ready, true, NodeStatus::Deployed, Err(FaultCode::StateDisagrees)),
        (Released::Ready, false, NodeStatus::RescueMode, Err(FaultCode::StateDisagrees)),
        (Released::Ready, false, NodeStatus::Ready, Ok(NodeStatus::Ready)),
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(status);
        {
            let mut env = fixture.api.state();
            let machine = env.machines.get_mut(&id).unwrap();
            machine.planned = PlannedOutcomes { release: impact, ..PlannedOutcomes::default() };
            machine.locked = locked;
        }
        match (fixture.call_stage(NodeStage::ReleaseMaasNode, CallVerb::Perform).await, expected) {
            (Ok(ProviderAnswer::Done(_)), Ok(end)) => assert_eq!(fixture.status(&id), end),
            (Err(fault), Err(code)) => {
                assert_eq!(fault.code, code, "{fault}");
                assert!(!locked || fault.message.contains("unlock it in MAAS"), "{fault}");
            }
            (answer, expected) => panic!("{impact:?}: {answer:?}, not {expected:?}"),
        }
    }
}

#[tokio::test]
async fn disks_are_erased_as_configured_and_not_aborted() {
    for (erase, status) in [(true, NodeStatus::DiskErasing), (false, NodeStatus::Releasing)] {
        let mut fixture = MaasFixture::new().await;
        fixture.settings.max_wait = Duration::from_millis(20);
        fixture.change_site(|spec| spec.erase_on_release = erase).await;
        let id = fixture.add(NodeStatus::Deployed);
        fixture.api.state().operation_time = OperationTime::UntilAdvanced;
        fixture
            .assert_fails(NodeStage::ReleaseMaasNode, FaultCode::StepTimeout, &[status.name()])
            .await;
        assert_eq!(fixture.status(&id), status);
        for verb in [CallVerb::GetStatus, CallVerb::Stop] {
            assert_eq!(
                fixture.call_stage(NodeStage::ReleaseMaasNode, verb).await,
                Ok(ProviderAnswer::UnderWay)
            );
        }
        while fixture.status(&id) != NodeStatus::Ready {
            fixture.api.state().advance(&id);
        }
        let answer = fixture.call_stage(NodeStage::ReleaseMaasNode, CallVerb::Stop).await;
        assert!(
            matches!(answer, Ok(ProviderAnswer::Done(_))),
            "the stop came too late: {answer:?}"
        );
        assert_eq!(fixture.count(&id, "release"), 1);
    }
}

/// A wait is resumed by `get_status`: it reports that the machine is gone when it waits again.
#[tokio::test]
async fn a_wait_for_a_deleted_machine_reports_it() {
    for stage in [NodeStage::WaitForReady, NodeStage::WaitForDeployed] {
        let fixture = MaasFixture::new().await;
        fixture.add(NodeStatus::Deploying);
        fixture.api.state().machines.clear();
        assert_eq!(
            fixture.call_stage(stage, CallVerb::GetStatus).await,
            Ok(ProviderAnswer::NeverStarted),
            "{stage}"
        );
        assert_eq!(
            fixture.call_stage(stage, CallVerb::Stop).await,
            Ok(ProviderAnswer::Stopped),
            "{stage}"
        );
        fixture.assert_fails(stage, FaultCode::MaasMachineGone, &[]).await;
    }
}

#[tokio::test]
async fn a_record_stays_in_maas_where_the_site_keeps_them() {
    let fixture = MaasFixture::new().await;
    fixture.change_site(|spec| spec.keep_in_maas = true).await;
    let id = fixture.add(NodeStatus::Ready);
    let observed = fixture.call_stage(NodeStage::RemoveMaasRecord, CallVerb::Observe).await;
    assert!(matches!(observed, Ok(ProviderAnswer::Done(_))), "{observed:?}");
    assert!(fixture.perform(NodeStage::RemoveMaasRecord).await.contains("stays in MAAS"));
    assert_eq!(fixture.status(&id), NodeStatus::Ready);
    fixture.api.state().machines.clear();
    assert!(fixture.perform(NodeStage::RemoveMaasRecord).await.contains("no record"));
}

#[tokio::test]
async fn a_stop_aborts_where_maas_supports_it() {
    for (stage, before, begun, after) in [
        (NodeStage::CommissionNode, NodeStatus::New, NodeStatus::Commissioning, NodeStatus::New),
        (NodeStage::DeployViaMaas, NodeStatus::Ready, NodeStatus::Deploying, NodeStatus::Allocated),
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(before);
        fixture.api.state().operation_time = OperationTime::UntilAdvanced;
        fixture.perform(stage).await;
        assert_eq!(fixture.status(&id), begun);
        assert_eq!(fixture.call_stage(stage, CallVerb::Stop).await, Ok(ProviderAnswer::Stopped));
        assert_eq!((fixture.status(&id), fixture.count(&id, "abort")), (after, 1));
        // A second stop changes nothing, and nothing begins under this key any more.
        assert_eq!(fixture.call_stage(stage, CallVerb::Stop).await, Ok(ProviderAnswer::Stopped));
        let late = fixture.perform_failing(stage, 1).await;
        assert!(late.message.contains("was stopped"), "{late}");
        assert_eq!((fixture.status(&id), fixture.count(&id, "abort")), (after, 1));
    }
}

#[tokio::test]
async fn a_cancel_undoes_only_what_the_run_did() {
    // Created and installed by this run.
    let fixture = MaasFixture::new().await;
    fixture.change_site(|spec| spec.network.roce_interfaces.clear()).await;
    onboard(&fixture).await;
    let id = fixture.node().await.system_id;
    assert!(fixture.undo(NodeStage::DeployViaMaas).await.contains("taken back"));
    assert_eq!(fixture.status(&id), NodeStatus::Ready);
    assert!(fixture.undo(NodeStage::CreateOrFindInMaas).await.contains("deleted"));
    assert!(fixture.api.state().machines.is_empty());
    // Created by this run, and in commissioning for it.
    let fixture = MaasFixture::new().await;
    fixture.perform(NodeStage::CreateOrFindInMaas).await;
    fixture.api.state().operation_time = OperationTime::UntilAdvanced;
    fixture.perform(NodeStage::CommissionNode).await;
    let id = fixture.node().await.system_id;
    fixture.undo(NodeStage::DeployViaMaas).await;
    assert!(fixture.undo(NodeStage::CommissionNode).await.contains("broken off"));
    assert_eq!((fixture.status(&id), fixture.count(&id, "abort")), (NodeStatus::New, 1));
    fixture.undo(NodeStage::CreateOrFindInMaas).await;
    assert!(fixture.api.state().machines.is_empty());
    // Commissioned by another user, or before this run: it continues.
    for (owner, observed) in [("eve", false), ("admin", true)] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Commissioning);
        fixture.api.state().operation_time = OperationTime::UntilAdvanced;
        fixture.api.state().machines.get_mut(&id).unwrap().owner = Some(owner.into());
        if observed {
            fixture.perform(NodeStage::CreateOrFindInMaas).await;
        }
        fixture.undo(NodeStage::CommissionNode).await;
        assert_eq!(fixture.count(&id, "abort"), 0, "{owner}");
    }
    // Installed by another user, and adopted.
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    fixture.perform(NodeStage::CreateOrFindInMaas).await;
    fixture.perform(NodeStage::DeployViaMaas).await;
    fixture.undo(NodeStage::DeployViaMaas).await;
    fixture.undo(NodeStage::CreateOrFindInMaas).await;
    assert_eq!((fixture.status(&id), fixture.count(&id, "release")), (NodeStatus::Deployed, 0));
    // A run that begins with the undo of the earlier run's installation.
    fixture.mark(&id, NODE, "op-1/deploy_via_maas/1");
    let again = MaasFixture { run: "op-2".into(), ..fixture };
    again.undo(NodeStage::DeployViaMaas).await;
    assert_eq!((again.status(&id), again.count(&id, "release")), (NodeStatus::Ready, 1));
}

/// A machine whose release fails in MAAS is not taken back, however often it is requested.
#[tokio::test]
async fn a_failed_release_is_not_undone() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    fixture.change_site(|spec| spec.network.roce_interfaces.clear()).await;
    for stage in
        [NodeStage::CreateOrFindInMaas, NodeStage::DeployViaMaas, NodeStage::WaitForDeployed]
    {
        fixture.perform(stage).await;
    }
    let fails =
        |release| fixture.api.state().machines.get_mut(&id).unwrap().planned.release = release;
    let undo = crate::maas_fixture::effect(NodeStage::DeployViaMaas, true);
    fails(Released::Fails);
    for attempt in 1..=2 {
        let fault = fixture.call_effect(CallVerb::Perform, &undo, attempt).await.0.unwrap_err();
        assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
        assert_eq!(fixture.count(&id, "release"), attempt as usize);
    }
    // Another user works on it: the operator must decide.
    for status in [NodeStatus::Testing, NodeStatus::RescueMode, NodeStatus::FailedTesting] {
        fixture.api.state().operation_time = OperationTime::UntilAdvanced;
        fixture.api.state().machines.get_mut(&id).unwrap().status = status;
        let fault = fixture.call_effect(CallVerb::Perform, &undo, 3).await.0.unwrap_err();
        assert_eq!(fault.code, FaultCode::StateDisagrees, "{status:?}: {fault}");
    }
    fixture.api.state().operation_time = OperationTime::Reads(1);
    fixture.api.state().machines.get_mut(&id).unwrap().status = NodeStatus::FailedReleasing;
    fails(Released::Ready);
    let answer = fixture.call_effect(CallVerb::Perform, &undo, 4).await.0;
    assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
    assert_eq!((fixture.status(&id), fixture.count(&id, "release")), (NodeStatus::Ready, 3));
}

/// Erasing may take longer than a stage may: the stage times out, and the next attempt continues to
/// wait.
#[tokio::test]
async fn slow_erasing_is_continued_by_the_next_attempt() {
    use model::effect::EffectKey;
    use providers::state_store::{Checkpoint, ProviderStateStore};
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::DiskErasing);
    fixture.api.state().operation_time = OperationTime::UntilAdvanced;
    let note = json!({"what": "release", "letting": {"asked": {"marked": true, "at": 0}}});
    let key = EffectKey::trusted(format!("op-1/{}/1", NodeStage::ReleaseMaasNode));
    fixture.store.begin(&key, &Checkpoint::Begun(note)).await.unwrap();
    assert_eq!(
        fixture.call_stage(NodeStage::ReleaseMaasNode, CallVerb::GetStatus).await,
        Ok(ProviderAnswer::UnderWay)
    );
    assert_eq!(
        fixture.call_stage(NodeStage::ReleaseMaasNode, CallVerb::Stop).await,
        Ok(ProviderAnswer::Stopped)
    );
    fixture.api.state().operation_time = OperationTime::Reads(1);
    let release = crate::maas_fixture::effect(NodeStage::ReleaseMaasNode, false);
    let next = fixture.call_effect(CallVerb::Perform, &release, 2).await.0;
    assert!(matches!(next, Ok(ProviderAnswer::Done(_))), "{next:?}");
    assert_eq!((fixture.status(&id), fixture.count(&id, "release")), (NodeStatus::Ready, 0));
}

#[tokio::test]
async fn one_request_observes_a_site() {
    use model::id::{MachineId, NodeId, SiteId};
    use providers::state_store::ProviderStateStore;
    use providers::{Provider, SiteNode, SiteObservation};
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    fixture.mark(&id, NODE, "op-1/deploy_via_maas/1");
    fixture.api.state().add("aa:bb:cc:00:00:09").power = "on";
    let site = fixture.store.site(&SiteId::trusted("site-east")).await.unwrap();
    let (node, machine) = (NodeId::trusted(NODE), MachineId::trusted("m-1"));
    let nodes = [SiteNode { id: node, machine, system_id: id.clone() }];
    let replica = fixture.replica();
    let SiteObservation { machines: observed, total } =
        replica.observe_site(&site, &nodes).await.unwrap();
    // Its user is asked for once.
    assert_eq!(fixture.api.state().requests.len(), 2, "{:?}", fixture.api.state().requests);
    assert_eq!(total, 2);
    let reported: Vec<_> = observed
        .iter()
        .map(|one| (one.upstream.state, one.upstream.powered_on, one.node.is_some()))
        .collect();
    assert_eq!(
        reported,
        [(MaasState::Deployed, Some(false), true), (MaasState::New, Some(true), false)]
    );
    let found = replica.find_at_site(&site, &fixture.target).await.unwrap();
    assert_eq!(found.map(|observed| observed.state), Some(MaasState::Deployed));
    // The marked node is reported, even if it was not part of the request.
    fixture.mark(&id, "node-2", "op-9/deploy_via_maas/1");
    let observed = replica.observe_site(&site, &nodes).await.unwrap().machines;
    assert_eq!(
        (observed[0].node.as_ref(), observed[0].upstream.message.as_str()),
        (None, "it is marked as node-2")
    );
    assert_eq!(observed[1].upstream.message, "");
    fixture.perform(NodeStage::WaitForDeployed).await;
    assert!(
        fixture.node().await.maas.unwrap().same(&observed[0].upstream),
        "a stage observes the same"
    );
    // The machine's name in MAAS from the inventory is enough.
    let mut named = fixture.target.clone();
    named.spec.mac_addresses = vec!["aa:bb:cc:00:00:77".into()];
    assert_eq!(replica.find_at_site(&site, &named).await, Ok(None));
    named.spec.bmc_endpoint = format!("maas://site-east/{id}");
    let found = replica.find_at_site(&site, &named).await.unwrap();
    assert_eq!(found.map(|observed| observed.state), Some(MaasState::Deployed));
    fixture.api.state().add(MAC);
    let fault = replica.find_at_site(&site, &fixture.target).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::CandidatesConflict);
}

/// The sites of a region are polled at once: one list serves all of them, whatever their limits.
#[tokio::test]
async fn sites_of_one_region_share_one_list() {
    use model::id::SiteId;
    use model::site::Site;
    use providers::Provider;
    use providers::state_store::ProviderStateStore;
    let mut fixture = MaasFixture::new().await;
    fixture.settings.list_max_age = Duration::from_secs(60);
    fixture.add(NodeStatus::Deployed);
    let site = fixture.store.site(&SiteId::trusted("site-east")).await.unwrap();
    let sites: Vec<Site> = ["site-a", "site-b", "site-c"]
        .map(|id| {
            let mut spec = site.spec.clone();
            spec.calls_at_once += id.len() as u32;
            spec.maas_url.push_str(if id == "site-b" { "/" } else { "" });
            Site::new(&SiteId::trusted(id), spec, site.head.labels.clone(), site.head.since)
        })
        .to_vec();
    let replica = fixture.replica();
    for _ in 0..2 {
        let polls = sites.iter().map(|site| replica.observe_site(site, &[]));
        for observed in futures_util::future::join_all(polls).await {
            assert_eq!(observed.unwrap().total, 1);
        }
    }
    let lists = |name: &str| {
        let env = fixture.api.state();
        env.requests.iter().filter(|one| one.contains(name)).count()
    };
    assert_eq!((lists("/machines/"), lists("op=whoami")), (1, 1));
    // The key of a user who is no administrator does not see all machines.
    let other = MaasFixture::new().await;
    other.api.state().is_superuser = false;
    let site = other.store.site(&SiteId::trusted("site-east")).await.unwrap();
    let fault = other.replica().observe_site(&site, &[]).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::MaasRefused);
    assert!(fault.message.contains("the key of admin, who is no administrator"), "{fault}");
}

/// If the nodes are few, MAAS is asked for them alone.
#[tokio::test]
async fn a_large_region_is_polled_for_its_nodes_alone() {
    use model::id::{MachineId, NodeId, SiteId};
    use providers::state_store::ProviderStateStore;
    use providers::{Provider, SiteNode};
    const REGION: usize = 20;
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    for number in 1..REGION {
        fixture.api.state().add(&format!("aa:00:00:00:00:{number:02x}"));
    }
    let site = fixture.store.site(&SiteId::trusted("site-east")).await.unwrap();
    let (node, machine) = (NodeId::trusted(NODE), MachineId::trusted("m-1"));
    let nodes = [SiteNode { id: node, machine, system_id: id.clone() }];
    let replica = fixture.replica();
    let whole = replica.observe_site(&site, &nodes).await.unwrap();
    assert_eq!((whole.machines.len(), whole.total), (REGION, REGION));
    let named = replica.observe_site(&site, &nodes).await.unwrap();
    assert_eq!((named.machines.len(), named.total), (1, REGION));
    assert_eq!(named.machines[0].system_id, id);
    let last = fixture.api.state().requests.back().cloned().unwrap();
    assert!(last.ends_with(&format!("machines/?id={id}")), "{last}");
    // A machine that is gone is not in the answer.
    fixture.api.state().machines.remove(&id);
    assert!(replica.observe_site(&site, &nodes).await.unwrap().machines.is_empty());
    // Its record is looked for by MAC address, as MAAS writes it.
    let mut target = fixture.target.clone();
    target.spec.mac_addresses = vec!["AA-00-00-00-00-07".into()];
    assert!(replica.find_at_site(&site, &target).await.unwrap().is_some());
    let last = fixture.api.state().requests.back().cloned().unwrap();
    assert!(last.contains("mac_address=aa%3A00"), "{last}");
}

/// Many waits share one request, and a read of one machine does not queue behind them.
#[tokio::test]
async fn many_waits_share_one_request() {
    use model::effect::{Effect, EffectKey, ProviderCall};
    use model::id::{NodeId, RunId, SiteId};
    use providers::{Journal, Provider};
    const MANY: usize = 30;
    const ROUNDS: usize = 5;
    let mut fixture = MaasFixture::new().await;
    fixture.settings.poll_interval = Duration::from_millis(100);
    let mut ids = Vec::new();
    for number in 0..MANY {
        let id = fixture.add(NodeStatus::Deploying);
        fixture.put_node(&format!("node-w{number}"), &id, NodeState::Enrolling);
        ids.push(id);
    }
    fixture.api.state().operation_time = OperationTime::UntilAdvanced;
    let (replica, stage) = (fixture.replica(), NodeStage::WaitForDeployed);
    let wait = async |number: usize| {
        let node = NodeId::trusted(format!("node-w{number}"));
        let site = Some(SiteId::trusted("site-east"));
        let effect = Effect::Stage { stage, node, site, provider: "maas".into(), undo: false };
        let key = EffectKey::new(&RunId::trusted(format!("op-w{number}")), effect.name(), 1);
        let call = ProviderCall { key, verb: CallVerb::Perform, effect, log_offset_bytes: 0 };
        let (journal, _lines) = Journal::new();
        replica.call(&fixture.target, &call, &journal).await
    };
    let all = futures_util::future::join_all((0..MANY).map(wait));
    let end = async {
        let probes = |from: usize| -> usize {
            let env = fixture.api.state();
            env.requests.iter().skip(from).filter(|one| one.contains("machines/?id=")).count()
        };
        while probes(0) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let before = fixture.api.state().requests.len();
        while probes(before) < ROUNDS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let requested = fixture.api.state().requests.len() - before;
        assert!(requested < MANY, "{requested} requests in {ROUNDS} rounds");
        ids.iter().for_each(|id| fixture.api.state().advance(id));
    };
    let (answers, ()) = tokio::join!(all, end);
    for answer in answers {
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
    }
}

/// The goal of a stage is observed before it holds, and after, and the observation changes nothing.
#[tokio::test]
async fn every_stage_observes_its_goal() {
    for stage in
        NodeStage::ALL.iter().copied().filter(|stage| stage.executor() == StageExecutor::Maas)
    {
        let done = match stage {
            NodeStage::ReleaseMaasNode
            | NodeStage::RemoveMaasRecord
            | NodeStage::PowerOffMaasNode => None,
            _ => Some(NodeStatus::Deployed),
        };
        let fixture = MaasFixture::new().await;
        let id = fixture.add(done.unwrap_or(NodeStatus::Ready));
        fixture.api.state().machines.get_mut(&id).unwrap().enable_hw_sync = true;
        sync(&fixture, &id);
        if stage == NodeStage::RemoveMaasRecord {
            fixture.api.state().machines.clear();
        }
        let changes = fixture.api.state().changes(&id);
        if stage == NodeStage::WaitForHardwareSyncHealthy {
            // The time that is read first may be that of the deployment itself, and an observation
            // does not record it.
            for _ in 0..2 {
                let first = fixture.call_stage(stage, CallVerb::Observe).await;
                assert!(
                    matches!(&first, Ok(ProviderAnswer::Differs(text)) if text.contains("not known")),
                    "{first:?}"
                );
                let status = fixture.call_stage(stage, CallVerb::GetStatus).await;
                assert_eq!(status, Ok(ProviderAnswer::NeverStarted));
                sync(&fixture, &id);
            }
            fixture.perform(NodeStage::WaitForDeployed).await;
            sync(&fixture, &id);
        }
        let holds = fixture.call_stage(stage, CallVerb::Observe).await;
        assert!(matches!(holds, Ok(ProviderAnswer::Done(_))), "{stage}: {holds:?}");
        let fixture = MaasFixture::new().await;
        let other = match stage {
            NodeStage::ReleaseMaasNode
            | NodeStage::RemoveMaasRecord
            | NodeStage::PowerOffMaasNode => NodeStatus::Deployed,
            _ => NodeStatus::New,
        };
        let id = fixture.add(other);
        fixture.api.state().machines.get_mut(&id).unwrap().power = "on";
        let differs = fixture.call_stage(stage, CallVerb::Observe).await;
        match stage {
            // They hold whatever the status in MAAS.
            NodeStage::LoadSiteConfig
            | NodeStage::ResolvePowerCredentials
            | NodeStage::RenderCloudInit
            | NodeStage::CreateOrFindInMaas
            // The boot disk happens to be right.
            | NodeStage::ConfigureStorage => {
                assert!(matches!(differs, Ok(ProviderAnswer::Done(_))), "{stage}: {differs:?}");
            }
            _ => assert!(matches!(differs, Ok(ProviderAnswer::Differs(_))), "{stage}: {differs:?}"),
        }
        assert_eq!((fixture.api.state().changes(&id), changes), (0, 0), "{stage}");
    }
}
