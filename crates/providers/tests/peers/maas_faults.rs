//! Failures between Farrier and MAAS: the code of each, what was observed, and what was not
//! changed.

use crate::maas_api::{End, NodeStatus, OperationTime, PlannedOutcomes, Trouble};
use crate::maas_fixture::{MAC, MaasFixture, NODE, bound, effect};
use model::effect::{CallVerb, ProviderAnswer};
use model::fault::{EffectOutcome, FaultCode};
use model::node::{NodeStage, NodeState, StageExecutor};
use providers::state_store::Secret;
use serde_json::json;
use std::time::Duration;

const DATASOURCE: &str =
    "cloud-init[1273]: Can not apply stage final, no datasource found! Likely bad things to come!";

fn failing(log: &str) -> PlannedOutcomes {
    let events = vec!["curtin".to_owned()];
    PlannedOutcomes {
        deployment: End::Fails { events, log: log.into() },
        ..PlannedOutcomes::default()
    }
}

async fn deployed_badly(log: &str) -> (MaasFixture, String) {
    let fixture = MaasFixture::new().await;
    fixture.change_site(|spec| spec.network.roce_interfaces.clear()).await;
    let id = fixture.add(NodeStatus::Ready);
    fixture.api.state().machines.get_mut(&id).unwrap().planned = failing(log);
    fixture.perform(NodeStage::DeployViaMaas).await;
    assert!(fixture.perform(NodeStage::WaitForDeployed).await.contains("Failed deployment"));
    (fixture, id)
}

#[tokio::test]
async fn an_invalid_site_names_its_field() {
    let fixture = MaasFixture::new().await;
    fixture.change_site(|spec| spec.image = "ubuntu/noble".into()).await;
    fixture
        .assert_fails(
            NodeStage::LoadSiteConfig,
            FaultCode::SiteUnfit,
            &["site.spec.image", "ubuntu/jammy"],
        )
        .await;
    // MAAS lists an uploaded image as gpu-node.
    fixture.change_site(|spec| spec.image = "custom/gpu-node".into()).await;
    fixture.perform(NodeStage::LoadSiteConfig).await;
    fixture
        .change_site(|spec| {
            spec.image = "ubuntu/jammy".into();
            spec.network.roce_interfaces = "ib".into();
        })
        .await;
    fixture.add(NodeStatus::Ready);
    fixture
        .assert_fails(
            NodeStage::ApplyRocePhase2,
            FaultCode::SiteUnfit,
            &["roce_interfaces", "roce0"],
        )
        .await;
    fixture.change_site(|spec| spec.maas_credential = "nobody".into()).await;
    fixture
        .assert_fails(NodeStage::LoadSiteConfig, FaultCode::CredentialMissing, &["nobody"])
        .await;
}

/// MAAS gets the password of the BMC and sends it there: the binding must include both.
#[tokio::test]
async fn the_password_of_a_bmc_goes_to_maas_only_if_both_are_bound() {
    let fixture = MaasFixture::new().await;
    let password = || Secret::Password { user: "root".into(), password: "calvin".into() };
    for peers in [&["10.0.0.5"][..], &["127.0.0.1"], &["192.0.2.0/24"], &[]] {
        fixture.store.bind_credential("bmc", password(), bound(peers));
        fixture
            .assert_fails(
                NodeStage::ResolvePowerCredentials,
                FaultCode::CredentialNotAllowed,
                &["was not sent to"],
            )
            .await;
    }
    fixture.store.bind_credential("bmc", password(), bound(&["10.0.0.5", "127.0.0.1"]));
    fixture.perform(NodeStage::ResolvePowerCredentials).await;
}

#[tokio::test]
async fn a_missing_credential_names_the_command() {
    let mut fixture = MaasFixture::new().await;
    for (name, words) in [("", "bmc_credential"), ("other", "farrier credential set other")] {
        fixture.target.spec.bmc_credential = name.into();
        fixture
            .assert_fails(
                NodeStage::ResolvePowerCredentials,
                FaultCode::CredentialMissing,
                &[words, "farrier machine update"],
            )
            .await;
    }
    fixture.target.spec.bmc_endpoint.clear();
    assert!(fixture.perform(NodeStage::ResolvePowerCredentials).await.contains("no bmc_endpoint"));
    fixture.target.spec.mac_addresses.clear();
    fixture
        .assert_fails(NodeStage::CreateOrFindInMaas, FaultCode::NotSupported, &["mac_addresses"])
        .await;
    assert!(fixture.api.state().machines.is_empty());
}

#[tokio::test]
async fn conflicting_candidates_stop_for_the_operator() {
    let fixture = MaasFixture::new().await;
    let (one, two) = (fixture.add(NodeStatus::New), fixture.add(NodeStatus::Ready));
    fixture.put_node(NODE, "", NodeState::Enrolling);
    fixture
        .assert_fails(
            NodeStage::CreateOrFindInMaas,
            FaultCode::CandidatesConflict,
            &[&one, &two, "MAC"],
        )
        .await;
    // The MAC address names one machine, the serial number another.
    let mut fixture = MaasFixture::new().await;
    fixture.add(NodeStatus::Ready);
    fixture.put_node(NODE, "", NodeState::Enrolling);
    fixture.api.state().add("aa:bb:cc:00:00:09").serial = "J7".into();
    fixture.target.spec.serial = "J7".into();
    fixture
        .assert_fails(
            NodeStage::CreateOrFindInMaas,
            FaultCode::CandidatesConflict,
            &["by serial number"],
        )
        .await;
    // It belongs to another node that is not deleted.
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    fixture.put_node(NODE, "", NodeState::Enrolling);
    fixture.mark(&id, "node-2", "op-0/deploy_via_maas/1");
    fixture.put_node("node-2", &id, NodeState::Active);
    fixture
        .assert_fails(NodeStage::CreateOrFindInMaas, FaultCode::CandidatesConflict, &["node-2"])
        .await;
    fixture.put_node(NODE, &id, NodeState::Retired);
    fixture.assert_fails(NodeStage::DeployViaMaas, FaultCode::StateDisagrees, &["node-2"]).await;
    fixture.assert_fails(NodeStage::ReleaseMaasNode, FaultCode::StateDisagrees, &["node-2"]).await;
    assert_eq!(fixture.api.state().changes(&id), 0);
    fixture.put_node("node-2", &id, NodeState::Deleted);
    fixture.perform(NodeStage::CreateOrFindInMaas).await;
}

#[tokio::test]
async fn every_stage_reports_a_deleted_machine() {
    for stage in
        NodeStage::ALL.iter().copied().filter(|stage| stage.executor() == StageExecutor::Maas)
    {
        let fixture = MaasFixture::new().await;
        fixture.put_node(NODE, "gone", NodeState::Enrolling);
        let answer = fixture.call_stage(stage, CallVerb::Perform).await;
        match stage {
            NodeStage::LoadSiteConfig
            | NodeStage::ResolvePowerCredentials
            | NodeStage::CreateOrFindInMaas
            | NodeStage::RenderCloudInit
            | NodeStage::ReleaseMaasNode
            | NodeStage::PowerOffMaasNode
            | NodeStage::RemoveMaasRecord => {
                assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{stage}: {answer:?}")
            }
            _ => assert_eq!(answer.unwrap_err().code, FaultCode::MaasMachineGone, "{stage}"),
        }
    }
    // In the middle of a wait.
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deploying);
    fixture.api.state().operation_time = OperationTime::UntilAdvanced;
    let wait = fixture.call_stage(NodeStage::WaitForDeployed, CallVerb::Perform);
    let delete = async {
        while fixture.api.state().requests.len() < 4 {
            tokio::task::yield_now().await;
        }
        fixture.api.state().machines.remove(&id);
    };
    let (answer, ()) = tokio::join!(wait, delete);
    assert_eq!(answer.unwrap_err().code, FaultCode::MaasMachineGone);
}

/// Once the node's record is gone, another record with its MAC address is not the node's, except to
/// the stage that finds or creates the record.
#[tokio::test]
async fn a_newer_record_is_left_alone() {
    let at_maas = |stage: &NodeStage| {
        stage.executor() == StageExecutor::Maas && *stage != NodeStage::CreateOrFindInMaas
    };
    for stage in NodeStage::ALL.iter().copied().filter(at_maas) {
        for known in ["gone", ""] {
            let fixture = MaasFixture::new().await;
            let id = fixture.add(NodeStatus::Ready);
            fixture.api.state().machines.get_mut(&id).unwrap().power = "on";
            fixture.put_node(NODE, known, NodeState::Retired);
            // The first stage learns that it is gone, and the next one must still know its system
            // id.
            fixture.perform(NodeStage::ReleaseMaasNode).await;
            assert_eq!(fixture.node().await.system_id, known);
            match fixture.call_effect(CallVerb::Perform, &effect(stage, false), 2).await.0 {
                Ok(ProviderAnswer::Done(_)) => {}
                Err(fault) => assert_eq!(fault.code, FaultCode::MaasMachineGone, "{stage}"),
                other => panic!("{stage}: {other:?}"),
            }
            assert_eq!(fixture.node().await.system_id, known, "{stage}");
            assert_eq!(fixture.api.state().changes(&id), 0, "{stage}");
        }
    }
}

#[tokio::test]
async fn an_unstored_record_is_deleted_by_undo() {
    for (maker, stored) in [(NODE, false), ("node-2", true)] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::New);
        let made = format!("Made by Farrier for {maker} (op-1/create_or_find_in_maas/1)");
        fixture.api.state().machines.get_mut(&id).unwrap().description = made;
        fixture.put_node(NODE, "", NodeState::Enrolling);
        fixture.undo(NodeStage::DeployViaMaas).await;
        fixture.undo(NodeStage::CreateOrFindInMaas).await;
        assert_eq!(fixture.api.state().machines.contains_key(&id), stored, "{maker}");
        assert_eq!(fixture.node().await.system_id, "", "{maker}");
    }
}

#[tokio::test]
async fn a_machine_of_another_user_is_neither_released_nor_switched_off() {
    for (owner, marked, status, released, off) in [
        (Some("eve"), None, NodeStatus::Deployed, false, false),
        (Some("eve"), None, NodeStatus::Allocated, false, false),
        (Some("eve"), None, NodeStatus::RescueMode, false, false),
        (Some("eve"), None, NodeStatus::FailedDeployment, false, false),
        (Some("eve"), None, NodeStatus::Commissioning, false, false),
        (Some("admin"), None, NodeStatus::FailedTesting, false, false),
        (Some("admin"), None, NodeStatus::DiskErasing, true, false),
        (Some("eve"), Some("node-2"), NodeStatus::Deployed, false, false),
        (Some("admin"), Some("node-2"), NodeStatus::Deployed, false, false),
        (Some("admin"), None, NodeStatus::Deployed, true, false),
        (Some("admin"), Some(NODE), NodeStatus::Deployed, true, true),
        (Some("eve"), Some(NODE), NodeStatus::Deployed, true, true),
        (None, None, NodeStatus::Broken, true, true),
    ] {
        for (stage, may, name) in [
            (NodeStage::ReleaseMaasNode, released, "release"),
            (NodeStage::PowerOffMaasNode, off, "power_off"),
        ] {
            let message = format!("{stage} of {status:?}, {owner:?}'s, marked {marked:?}");
            let fixture = MaasFixture::new().await;
            let id = fixture.add(status);
            fixture.put_node(NODE, &id, NodeState::Retired);
            fixture.put_node("node-2", &id, NodeState::Active);
            if let Some(node) = marked {
                fixture.mark(&id, node, "op-0/deploy_via_maas/1");
            }
            {
                let mut env = fixture.api.state();
                let machine = env.machines.get_mut(&id).unwrap();
                machine.owner = owner.map(str::to_owned);
                machine.power = "on";
            }
            match fixture.call_stage(stage, CallVerb::Perform).await {
                // A release in progress is not requested again.
                Ok(ProviderAnswer::Done(_)) if may && status == NodeStatus::DiskErasing => {}
                Ok(ProviderAnswer::Done(_)) if may => {
                    assert_eq!(fixture.count(&id, name), 1, "{message}")
                }
                Err(fault) if !may => {
                    assert_eq!(fault.code, FaultCode::StateDisagrees, "{message}");
                    assert_eq!(fixture.api.state().changes(&id), 0, "{message}");
                }
                other => panic!("{message}: {other:?}"),
            }
        }
    }
}

/// A record of a machine that another user owns is left alone, whatever its status in MAAS.
#[tokio::test]
async fn the_record_of_another_user_is_not_deleted() {
    for (owner, status, stored) in [
        (Some("eve"), NodeStatus::Commissioning, true),
        (Some("eve"), NodeStatus::Broken, true),
        (Some("eve"), NodeStatus::FailedDeployment, true),
        (Some("admin"), NodeStatus::FailedTesting, true),
        (Some("admin"), NodeStatus::DiskErasing, true),
        (Some("admin"), NodeStatus::FailedCommissioning, false),
        (None, NodeStatus::Broken, false),
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(status);
        fixture.api.state().operation_time = OperationTime::UntilAdvanced;
        fixture.api.state().machines.get_mut(&id).unwrap().owner = owner.map(str::to_owned);
        let answer = fixture.call_stage(NodeStage::RemoveMaasRecord, CallVerb::Perform).await;
        assert_eq!(fixture.api.state().machines.contains_key(&id), stored, "{owner:?} {status:?}");
        assert_eq!(answer.is_err(), stored, "{owner:?} {status:?}: {answer:?}");
    }
}

/// A node in service that fails a test of MAAS still has everything on its disks.
#[tokio::test]
async fn a_node_that_failed_tests_is_not_free() {
    for stage in [
        NodeStage::CommissionNode,
        NodeStage::WaitForReady,
        NodeStage::ReleaseMaasNode,
        NodeStage::PowerOffMaasNode,
        NodeStage::RemoveMaasRecord,
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::FailedTesting);
        fixture.api.state().machines.get_mut(&id).unwrap().osystem = "ubuntu".into();
        fixture
            .assert_fails(stage, FaultCode::StateDisagrees, &["override the failed tests in MAAS"])
            .await;
        assert_eq!(fixture.api.state().changes(&id), 0, "{stage}");
    }
    // A machine that failed during commissioning stops for the operator, too: MAAS would refuse.
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::FailedTesting);
    fixture.api.state().machines.get_mut(&id).unwrap().owner = None;
    fixture
        .assert_fails(
            NodeStage::CommissionNode,
            FaultCode::StateDisagrees,
            &["override the failed tests"],
        )
        .await;
    assert_eq!(fixture.api.state().changes(&id), 0);
}

/// A stage that has begun does not continue after another user allocated the machine.
#[tokio::test]
async fn a_stage_stops_when_another_user_took_the_machine() {
    use model::effect::EffectKey;
    use providers::state_store::{Checkpoint, ProviderStateStore};
    for (stage, note) in [
        (
            NodeStage::RecoverForDatasourceRetry,
            json!({"what": "reinstall", "round": 2, "leg": {"letting": "begun"}}),
        ),
        (NodeStage::ReleaseMaasNode, json!({"what": "release", "letting": "begun"})),
        (
            NodeStage::PowerOffMaasNode,
            json!({"what": "power", "goal": "off", "stage": "begun", "watched": null}),
        ),
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Deployed);
        fixture.put_node(NODE, &id, NodeState::Retired);
        {
            let mut env = fixture.api.state();
            let machine = env.machines.get_mut(&id).unwrap();
            machine.owner = Some("eve".into());
            machine.power = "on";
        }
        let key = EffectKey::trusted(format!("op-1/{stage}/1"));
        fixture.store.begin(&key, &Checkpoint::Begun(note)).await.unwrap();
        let fault = fixture.call_stage(stage, CallVerb::Follow).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::StateDisagrees, "{stage}: {fault}");
        assert_eq!(
            fixture.call_stage(stage, CallVerb::Stop).await,
            Ok(ProviderAnswer::Stopped),
            "{stage}"
        );
        assert_eq!(fixture.api.state().changes(&id), 0, "{stage}");
    }
}

#[tokio::test]
async fn busy_answers_are_retried() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deploying);
    fixture.mark(&id, NODE, "op-1/deploy_via_maas/1");
    // More failures than the client retries itself.
    fixture.api.state().operation_time = OperationTime::UntilAdvanced;
    let wait = fixture.call_stage(NodeStage::WaitForDeployed, CallVerb::Perform);
    let storm = async {
        while fixture.api.state().requests.is_empty() {
            tokio::task::yield_now().await;
        }
        fixture.api.state().trouble("read", Trouble::Busy { retry_after: None }, 40);
        while fixture.api.state().requests.len() < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fixture.api.state().advance(&id);
    };
    let (answer, ()) = tokio::join!(wait, storm);
    assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
    // A deployment whose answer is lost is read back, and not requested again.
    for failure in [Trouble::BusyAfterActing { retry_after: None }, Trouble::CutAfterActing] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Ready);
        fixture.api.state().trouble("deploy", failure, 1);
        let fault = fixture.perform_failing(NodeStage::DeployViaMaas, 1).await;
        assert_eq!(fault.code.effect_outcome(), EffectOutcome::Unknown, "{fault}");
        let answer = fixture.call_stage(NodeStage::DeployViaMaas, CallVerb::GetStatus).await;
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
        assert_eq!(fixture.count(&id, "deploy"), 1);
    }
    // A deployment that never began is requested again.
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    fixture.api.state().trouble("deploy", Trouble::Busy { retry_after: None }, 1);
    let fault = fixture.perform_failing(NodeStage::DeployViaMaas, 1).await;
    assert_eq!(fault.code, FaultCode::AnswerLost);
    let request = async |verb| fixture.call_stage(NodeStage::DeployViaMaas, verb).await;
    assert_eq!(request(CallVerb::GetStatus).await, Ok(ProviderAnswer::NeverStarted));
    assert_eq!(request(CallVerb::Stop).await, Ok(ProviderAnswer::Stopped));
    let late = request(CallVerb::Perform).await.unwrap_err();
    assert!(late.message.contains("was stopped"), "{late}");
    let next =
        fixture.call_effect(CallVerb::Perform, &effect(NodeStage::DeployViaMaas, false), 2).await.0;
    assert!(matches!(next, Ok(ProviderAnswer::Done(_))), "{next:?}");
    assert_eq!((fixture.status(&id), fixture.count(&id, "allocate")), (NodeStatus::Deploying, 1));
}

#[tokio::test]
async fn a_stuck_operation_times_out_with_the_maas_message() {
    let mut fixture = MaasFixture::new().await;
    fixture.settings.max_wait = Duration::from_millis(60);
    let id = fixture.add(NodeStatus::Deploying);
    fixture.api.state().machines.get_mut(&id).unwrap().planned =
        PlannedOutcomes { deployment: End::Stuck, ..PlannedOutcomes::default() };
    fixture.api.state().machines.get_mut(&id).unwrap().status_message = "Loading ephemeral".into();
    fixture
        .assert_fails(
            NodeStage::WaitForDeployed,
            FaultCode::StepTimeout,
            &["Deploying", "Loading ephemeral"],
        )
        .await;
    assert_eq!(
        fixture.call_stage(NodeStage::WaitForDeployed, CallVerb::GetStatus).await,
        Ok(ProviderAnswer::NeverStarted)
    );
    assert_eq!((fixture.status(&id), fixture.api.state().changes(&id)), (NodeStatus::Deploying, 0));
}

#[tokio::test]
async fn failed_commissioning_reports_the_reason() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::New);
    let events = vec!["Failed to power on".to_owned()];
    fixture.api.state().note(&id, "ERROR", ("Node commissioning failure", "of another round"));
    fixture.api.state().machines.get_mut(&id).unwrap().planned = PlannedOutcomes {
        commissioning: End::Fails { events, log: String::new() },
        failed_scripts: vec!["30-maas-01-bmc-config", "own-check"],
        ..PlannedOutcomes::default()
    };
    fixture.perform(NodeStage::CommissionNode).await;
    let (answer, log) =
        fixture.call_effect(CallVerb::Perform, &effect(NodeStage::WaitForReady, false), 1).await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code, FaultCode::CommissioningFailed);
    // Not named: a script that never began, and one whose result is suppressed.
    let named =
        "failed: 30-maas-01-bmc-config (Failed, exit status 1), own-check (Failed, exit status 1)";
    assert!(fault.message.ends_with(named), "{fault}");
    assert!(log.contains("Failed to power on") && !log.contains("of another round"), "{log}");
    // A new attempt of the step would find the same; a rerun commissions again.
    let first = fault.code.repairs()[0].words();
    assert_eq!(first, "farrier operation rerun");
    for (status, stage) in [
        (NodeStatus::Broken, NodeStage::CommissionNode),
        (NodeStatus::FailedDeployment, NodeStage::CommissionNode),
        (NodeStatus::Broken, NodeStage::WaitForReady),
        (NodeStatus::RescueMode, NodeStage::ConfigureStorage),
        (NodeStatus::New, NodeStage::DeployViaMaas),
        (NodeStatus::Ready, NodeStage::ClassifyDeployFailure),
        (NodeStatus::Ready, NodeStage::RecoverForDatasourceRetry),
        (NodeStatus::Ready, NodeStage::EnsureHardwareSyncConfigured),
        (NodeStatus::Deployed, NodeStage::RemoveMaasRecord),
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(status);
        fixture.assert_fails(stage, FaultCode::StateDisagrees, &[&id, status.name()]).await;
        assert_eq!(fixture.api.state().changes(&id), 0, "{stage}");
    }
}

#[tokio::test]
async fn a_missing_boot_disk_stops_for_the_operator() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    let disks = fixture.api.state().machines[&id].disks.clone();
    fixture.change_site(|spec| spec.boot_disk_model = "m.2".into()).await;
    fixture
        .assert_fails(
            NodeStage::ConfigureStorage,
            FaultCode::BootDiskMissing,
            &["DELLBOSS VD", "MZQL2"],
        )
        .await;
    assert_eq!(fixture.api.state().changes(&id), 0);
    fixture.change_site(|spec| spec.boot_disk_model = "mzql".into()).await;
    fixture
        .call_effect(CallVerb::Perform, &effect(NodeStage::ConfigureStorage, false), 2)
        .await
        .0
        .unwrap();
    assert_eq!(json!(fixture.api.state().machines[&id].boot_disk), disks[1]["id"]);
}

/// MAAS changes the disks of machines in Ready only.
#[tokio::test]
async fn disks_of_an_allocated_machine_are_left_alone() {
    for (marked, words) in [(true, "restart-clean"), (false, "release it in MAAS")] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Allocated);
        if marked {
            fixture.mark(&id, NODE, "op-0/deploy_via_maas/1");
        }
        fixture
            .assert_fails(NodeStage::ConfigureStorage, FaultCode::StateDisagrees, &[words])
            .await;
        assert_eq!(fixture.api.state().changes(&id), 0);
    }
}

#[tokio::test]
async fn an_unfixable_interface_stops_for_the_operator() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    fixture.api.state().machines.get_mut(&id).unwrap().interfaces[0]["vlan"] =
        json!({"id": 77, "vid": 0});
    fixture
        .assert_fails(
            NodeStage::EnsurePxeInterfaceAuto,
            FaultCode::PxeInterfaceUnfixable,
            &["VLAN 77"],
        )
        .await;
    let fixture = MaasFixture::new().await;
    fixture.add(NodeStatus::Ready);
    let no = Trouble::Says(400, r#"{"mode": ["It is part of a bond."]}"#.into());
    fixture.api.state().trouble("link_subnet", no, 1);
    fixture
        .assert_fails(
            NodeStage::EnsurePxeInterfaceAuto,
            FaultCode::PxeInterfaceUnfixable,
            &["part of a bond"],
        )
        .await;
}

#[tokio::test]
async fn a_deployment_that_fails_is_classified() {
    let (fixture, id) = deployed_badly("curtin: Installation failed\nFailed to format sda").await;
    let (answer, log) = fixture
        .call_effect(CallVerb::Perform, &effect(NodeStage::ClassifyDeployFailure, false), 1)
        .await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code, FaultCode::DeployFailed);
    assert!(fault.message.ends_with("Failed to format sda"), "{fault}");
    assert!(log.contains("event: ") && log.contains("install: Failed to format sda"), "{log}");
    // The installer's input is in its log; the keys in it must not be shown.
    assert!(log.contains("oauth_token_secret=***"), "{log}");
    for secret in ["k3y", "t0k3n", "s3cr3t"] {
        assert!(!log.contains(secret) && !fault.message.contains(secret), "{log}");
    }
    // The next run finds the failed deployment and does not build on it.
    let fixture = MaasFixture { run: "op-2".into(), ..fixture };
    fixture
        .assert_fails(NodeStage::CommissionNode, FaultCode::StateDisagrees, &["restart-clean"])
        .await;
    assert_eq!(fixture.count(&id, "commission"), 0);
}

#[tokio::test]
async fn a_missing_datasource_is_retried_up_to_a_bound() {
    // The failure disappears in the first round.
    let (fixture, id) = deployed_badly(DATASOURCE).await;
    assert!(
        fixture.perform(NodeStage::ClassifyDeployFailure).await.contains("no datasource found")
    );
    fixture.api.state().machines.get_mut(&id).unwrap().planned = PlannedOutcomes::default();
    fixture.perform(NodeStage::RecoverForDatasourceRetry).await;
    let counts = |fixture: &MaasFixture, id: &str| {
        (fixture.count(id, "deploy"), fixture.count(id, "release"))
    };
    assert_eq!((fixture.status(&id), counts(&fixture, &id)), (NodeStatus::Deployed, (2, 1)));
    // The failure persists: two more rounds, then the operator.
    let (fixture, id) = deployed_badly(DATASOURCE).await;
    fixture
        .assert_fails(
            NodeStage::RecoverForDatasourceRetry,
            FaultCode::DatasourceFailed,
            &["2 more rounds"],
        )
        .await;
    assert_eq!(
        (fixture.status(&id), counts(&fixture, &id)),
        (NodeStatus::FailedDeployment, (3, 2))
    );
    // Another cause ends the recovery.
    let (fixture, id) = deployed_badly(DATASOURCE).await;
    fixture.api.state().machines.get_mut(&id).unwrap().planned = failing("Failed to format sda");
    fixture
        .assert_fails(
            NodeStage::RecoverForDatasourceRetry,
            FaultCode::DeployFailed,
            &["Failed to format"],
        )
        .await;
    assert_eq!(counts(&fixture, &id), (2, 1));
    // The installer finished, and the new system never fetched its data.
    let (fixture, id) = deployed_badly("curtin: Installation finished.").await;
    fixture
        .assert_fails(NodeStage::ClassifyDeployFailure, FaultCode::DeployFailed, &["finished"])
        .await;
    let late = "Machine operation 'Deploying' timed out after 30 minutes.";
    fixture.api.state().note(&id, "ERROR", ("Marking node failed", late));
    let classify = effect(NodeStage::ClassifyDeployFailure, false);
    let answer = fixture.call_effect(CallVerb::Perform, &classify, 2).await.0;
    assert!(matches!(answer, Ok(ProviderAnswer::Done(outcome)) if outcome.message.contains(late)));
    // The round before failed for its datasource, and this one for its disk.
    let (fixture, id) = deployed_badly(DATASOURCE).await;
    fixture.api.state().note(&id, "ERROR", ("Marking node failed", DATASOURCE));
    fixture.api.state().note_event(&id, "Releasing", "");
    for number in 0..250 {
        fixture.api.state().note(&id, "DEBUG", ("Node status event", &number.to_string()));
    }
    fixture.api.state().note_event(&id, "Deploying", "");
    fixture.api.state().machines.get_mut(&id).unwrap().logs.push("Failed to format sda".into());
    fixture
        .assert_fails(NodeStage::ClassifyDeployFailure, FaultCode::DeployFailed, &["format sda"])
        .await;
    // No recovery is allowed.
    let (fixture, id) = deployed_badly(DATASOURCE).await;
    fixture.change_site(|spec| spec.datasource_retries = 0).await;
    fixture
        .assert_fails(
            NodeStage::RecoverForDatasourceRetry,
            FaultCode::DatasourceFailed,
            &["datasource_retries"],
        )
        .await;
    assert_eq!(counts(&fixture, &id), (1, 0));
}

#[tokio::test]
async fn missing_hardware_sync_stops_for_the_operator() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    fixture.api.state().machines.get_mut(&id).unwrap().sync_interval_s = 0.02;
    fixture
        .assert_fails(
            NodeStage::EnsureHardwareSyncConfigured,
            FaultCode::HardwareSyncFailed,
            &[&id],
        )
        .await;
    fixture.api.state().machines.get_mut(&id).unwrap().enable_hw_sync = true;
    fixture.perform(NodeStage::EnsureHardwareSyncConfigured).await;
    fixture
        .assert_fails(
            NodeStage::WaitForHardwareSyncHealthy,
            FaultCode::HardwareSyncFailed,
            &[&id, "yet"],
        )
        .await;
    fixture.api.state().version = "3.1.0";
    assert!(
        fixture.perform(NodeStage::EnsureHardwareSyncConfigured).await.contains("no hardware sync")
    );
    assert!(
        fixture.perform(NodeStage::WaitForHardwareSyncHealthy).await.contains("no hardware sync")
    );
}

#[tokio::test]
async fn a_machine_allocated_by_another_user_is_left_alone() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Ready);
    fixture.perform(NodeStage::CreateOrFindInMaas).await;
    {
        let mut env = fixture.api.state();
        let machine = env.machines.get_mut(&id).unwrap();
        machine.status = NodeStatus::Deployed;
        machine.owner = Some("eve".into());
    }
    fixture
        .assert_fails(
            NodeStage::DeployViaMaas,
            FaultCode::StateDisagrees,
            &["since this operation began"],
        )
        .await;
    fixture.api.state().machines.get_mut(&id).unwrap().status = NodeStatus::Allocated;
    let fault = fixture.perform_failing(NodeStage::DeployViaMaas, 2).await;
    assert!(fault.message.contains("eve has allocated it"), "{fault}");
    fixture.undo(NodeStage::DeployViaMaas).await;
    assert_eq!((fixture.count(&id, "deploy"), fixture.count(&id, "release")), (0, 0));
    assert!(fixture.api.state().machines[&id].interfaces[0]["mac_address"] == MAC);
}
