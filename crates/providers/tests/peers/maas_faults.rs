//! Failures between Farrier and MAAS: the code of each, what was observed, and what was not
//! changed.

use crate::maas_api::{End, Fate, Takes, Trouble};
use crate::maas_desk::{Desk, MAC, NODE, effect};
use model::effect::{Answer, Verb};
use model::fault::{Code, Happened};
use model::node::{NodeState, Room, Stage};
use providers::maas::Status;
use serde_json::json;
use std::time::Duration;

const DATASOURCE: &str =
    "cloud-init[1273]: Can not apply stage final, no datasource found! Likely bad things to come!";

fn failing(log: &str) -> Fate {
    let events = vec!["curtin".to_owned()];
    Fate { deployment: End::Fails { events, log: log.into() }, ..Fate::default() }
}

async fn deployed_badly(log: &str) -> (Desk, String) {
    let desk = Desk::new().await;
    desk.change_site(|spec| spec.network.roce_interfaces.clear()).await;
    let id = desk.add(Status::Ready);
    desk.api.world().machines.get_mut(&id).unwrap().fate = failing(log);
    desk.done(Stage::DeployViaMaas).await;
    assert!(desk.done(Stage::WaitForDeployed).await.contains("Failed deployment"));
    (desk, id)
}

#[tokio::test]
async fn a_site_that_does_not_fit_is_named_by_its_field() {
    let desk = Desk::new().await;
    desk.change_site(|spec| spec.image = "ubuntu/noble".into()).await;
    desk.fails_as(Stage::LoadSiteConfig, Code::SiteUnfit, &["site.spec.image", "ubuntu/jammy"])
        .await;
    desk.change_site(|spec| {
        spec.image = "ubuntu/jammy".into();
        spec.network.roce_interfaces = "ib".into();
    })
    .await;
    desk.add(Status::Ready);
    desk.fails_as(Stage::ApplyRocePhase2, Code::SiteUnfit, &["roce_interfaces", "roce0"]).await;
    desk.change_site(|spec| spec.maas_credential = "nobody".into()).await;
    desk.fails_as(Stage::LoadSiteConfig, Code::CredentialMissing, &["nobody"]).await;
}

#[tokio::test]
async fn a_machine_without_a_credential_says_what_to_type() {
    let mut desk = Desk::new().await;
    for (name, words) in [("", "bmc_credential"), ("other", "farrier credential set other")] {
        desk.target.spec.bmc_credential = name.into();
        desk.fails_as(
            Stage::ResolvePowerCredentials,
            Code::CredentialMissing,
            &[words, "farrier machine update"],
        )
        .await;
    }
    desk.target.spec.bmc_endpoint.clear();
    assert!(desk.done(Stage::ResolvePowerCredentials).await.contains("no bmc_endpoint"));
    desk.target.spec.mac_addresses.clear();
    desk.fails_as(Stage::CreateOrFindInMaas, Code::NotSupported, &["mac_addresses"]).await;
    assert!(desk.api.world().machines.is_empty());
}

#[tokio::test]
async fn conflicting_candidates_stop_for_a_person() {
    let desk = Desk::new().await;
    let (one, two) = (desk.add(Status::New), desk.add(Status::Ready));
    desk.put_node(NODE, "", NodeState::Enrolling);
    desk.fails_as(Stage::CreateOrFindInMaas, Code::CandidatesConflict, &[&one, &two, "MAC"]).await;
    // The MAC address names one machine, the serial number another.
    let mut desk = Desk::new().await;
    desk.add(Status::Ready);
    desk.put_node(NODE, "", NodeState::Enrolling);
    desk.api.world().add("aa:bb:cc:00:00:09").serial = "J7".into();
    desk.target.spec.serial = "J7".into();
    desk.fails_as(Stage::CreateOrFindInMaas, Code::CandidatesConflict, &["by serial number"]).await;
    // It belongs to another node that is not deleted.
    let desk = Desk::new().await;
    let id = desk.add(Status::Deployed);
    desk.put_node(NODE, "", NodeState::Enrolling);
    desk.mark(&id, "node-2", "op-0/deploy_via_maas/1");
    desk.put_node("node-2", &id, NodeState::Active);
    desk.fails_as(Stage::CreateOrFindInMaas, Code::CandidatesConflict, &["node-2"]).await;
    desk.put_node(NODE, &id, NodeState::Retired);
    desk.fails_as(Stage::DeployViaMaas, Code::StateDisagrees, &["node-2"]).await;
    desk.fails_as(Stage::ReleaseMaasNode, Code::StateDisagrees, &["node-2"]).await;
    assert_eq!(desk.api.world().changes(&id), 0);
    desk.put_node("node-2", &id, NodeState::Deleted);
    desk.done(Stage::CreateOrFindInMaas).await;
}

#[tokio::test]
async fn a_machine_deleted_on_the_way_is_said_by_every_stage() {
    for stage in Stage::ALL.iter().copied().filter(|stage| stage.room() == Room::Maas) {
        let desk = Desk::new().await;
        desk.put_node(NODE, "gone", NodeState::Enrolling);
        let answer = desk.ask(stage, Verb::Perform).await;
        match stage {
            Stage::LoadSiteConfig
            | Stage::ResolvePowerCredentials
            | Stage::CreateOrFindInMaas
            | Stage::RenderCloudInit
            | Stage::ReleaseMaasNode
            | Stage::PowerOffMaasNode
            | Stage::RemoveMaasRecord => {
                assert!(matches!(answer, Ok(Answer::Done(_))), "{stage}: {answer:?}")
            }
            _ => assert_eq!(answer.unwrap_err().code, Code::MaasMachineGone, "{stage}"),
        }
    }
    // In the middle of a wait.
    let desk = Desk::new().await;
    let id = desk.add(Status::Deploying);
    desk.api.world().takes = Takes::Hand;
    let wait = desk.ask(Stage::WaitForDeployed, Verb::Perform);
    let delete = async {
        while desk.api.world().requests.len() < 4 {
            tokio::task::yield_now().await;
        }
        desk.api.world().machines.remove(&id);
    };
    let (answer, ()) = tokio::join!(wait, delete);
    assert_eq!(answer.unwrap_err().code, Code::MaasMachineGone);
}

/// Once the node's record is gone, another record with its MAC address is not the node's, except to
/// the stage that finds or creates the record.
#[tokio::test]
async fn a_record_that_has_come_since_is_left_alone() {
    let at_maas = |stage: &Stage| stage.room() == Room::Maas && *stage != Stage::CreateOrFindInMaas;
    for stage in Stage::ALL.iter().copied().filter(at_maas) {
        for known in ["gone", ""] {
            let desk = Desk::new().await;
            let id = desk.add(Status::Ready);
            desk.api.world().machines.get_mut(&id).unwrap().power = "on";
            desk.put_node(NODE, known, NodeState::Retired);
            // The first stage learns that it is gone, and the next one must still know its system
            // id.
            desk.done(Stage::ReleaseMaasNode).await;
            assert_eq!(desk.node().await.system_id, known);
            match desk.ask_effect(Verb::Perform, &effect(stage, false), 2).await.0 {
                Ok(Answer::Done(_)) => {}
                Err(fault) => assert_eq!(fault.code, Code::MaasMachineGone, "{stage}"),
                other => panic!("{stage}: {other:?}"),
            }
            assert_eq!(desk.node().await.system_id, known, "{stage}");
            assert_eq!(desk.api.world().changes(&id), 0, "{stage}");
        }
    }
}

#[tokio::test]
async fn a_record_that_was_made_and_never_learned_of_is_taken_back() {
    for (maker, kept) in [(NODE, false), ("node-2", true)] {
        let desk = Desk::new().await;
        let id = desk.add(Status::New);
        let made = format!("Made by Farrier for {maker} (op-1/create_or_find_in_maas/1)");
        desk.api.world().machines.get_mut(&id).unwrap().description = made;
        desk.put_node(NODE, "", NodeState::Enrolling);
        desk.undo(Stage::DeployViaMaas).await;
        desk.undo(Stage::CreateOrFindInMaas).await;
        assert_eq!(desk.api.world().machines.contains_key(&id), kept, "{maker}");
        assert_eq!(desk.node().await.system_id, "", "{maker}");
    }
}

#[tokio::test]
async fn what_somebody_else_uses_is_neither_released_nor_switched_off() {
    for (owner, marked, status, released, off) in [
        (Some("eve"), None, Status::Deployed, false, false),
        (Some("eve"), None, Status::Allocated, false, false),
        (Some("eve"), None, Status::RescueMode, false, false),
        (Some("eve"), None, Status::FailedDeployment, false, false),
        (Some("eve"), None, Status::Commissioning, false, false),
        (Some("admin"), None, Status::FailedTesting, false, false),
        (Some("admin"), None, Status::DiskErasing, true, false),
        (Some("eve"), Some("node-2"), Status::Deployed, false, false),
        (Some("admin"), Some("node-2"), Status::Deployed, false, false),
        (Some("admin"), None, Status::Deployed, true, false),
        (Some("admin"), Some(NODE), Status::Deployed, true, true),
        (Some("eve"), Some(NODE), Status::Deployed, true, true),
        (None, None, Status::Broken, true, true),
    ] {
        for (stage, may, name) in [
            (Stage::ReleaseMaasNode, released, "release"),
            (Stage::PowerOffMaasNode, off, "power_off"),
        ] {
            let said = format!("{stage} of {status}, {owner:?}'s, marked {marked:?}");
            let desk = Desk::new().await;
            let id = desk.add(status);
            desk.put_node(NODE, &id, NodeState::Retired);
            desk.put_node("node-2", &id, NodeState::Active);
            if let Some(node) = marked {
                desk.mark(&id, node, "op-0/deploy_via_maas/1");
            }
            {
                let mut world = desk.api.world();
                let machine = world.machines.get_mut(&id).unwrap();
                machine.owner = owner.map(str::to_owned);
                machine.power = "on";
            }
            match desk.ask(stage, Verb::Perform).await {
                // A release in progress is not requested again.
                Ok(Answer::Done(_)) if may && status == Status::DiskErasing => {}
                Ok(Answer::Done(_)) if may => assert_eq!(desk.count(&id, name), 1, "{said}"),
                Err(fault) if !may => {
                    assert_eq!(fault.code, Code::StateDisagrees, "{said}");
                    assert_eq!(desk.api.world().changes(&id), 0, "{said}");
                }
                other => panic!("{said}: {other:?}"),
            }
        }
    }
}

/// A record of a machine that another user owns is left alone, whatever its status in MAAS.
#[tokio::test]
async fn what_somebody_else_has_is_not_forgotten() {
    for (owner, status, kept) in [
        (Some("eve"), Status::Commissioning, true),
        (Some("eve"), Status::Broken, true),
        (Some("eve"), Status::FailedDeployment, true),
        (Some("admin"), Status::FailedTesting, true),
        (Some("admin"), Status::DiskErasing, true),
        (Some("admin"), Status::FailedCommissioning, false),
        (None, Status::Broken, false),
    ] {
        let desk = Desk::new().await;
        let id = desk.add(status);
        desk.api.world().takes = Takes::Hand;
        desk.api.world().machines.get_mut(&id).unwrap().owner = owner.map(str::to_owned);
        let answer = desk.ask(Stage::RemoveMaasRecord, Verb::Perform).await;
        assert_eq!(desk.api.world().machines.contains_key(&id), kept, "{owner:?} {status}");
        assert_eq!(answer.is_err(), kept, "{owner:?} {status}: {answer:?}");
    }
}

/// A node in service that fails a test of MAAS still has everything on its disks.
#[tokio::test]
async fn what_failed_its_tests_in_service_is_not_taken_for_free() {
    for stage in [
        Stage::CommissionNode,
        Stage::WaitForReady,
        Stage::ReleaseMaasNode,
        Stage::PowerOffMaasNode,
        Stage::RemoveMaasRecord,
    ] {
        let desk = Desk::new().await;
        let id = desk.add(Status::FailedTesting);
        desk.api.world().machines.get_mut(&id).unwrap().osystem = "ubuntu".into();
        desk.fails_as(stage, Code::StateDisagrees, &["override the failed tests in MAAS"]).await;
        assert_eq!(desk.api.world().changes(&id), 0, "{stage}");
    }
    // One that failed during commissioning stops for the operator, too: MAAS would refuse.
    let desk = Desk::new().await;
    let id = desk.add(Status::FailedTesting);
    desk.api.world().machines.get_mut(&id).unwrap().owner = None;
    desk.fails_as(Stage::CommissionNode, Code::StateDisagrees, &["override the failed tests"])
        .await;
    assert_eq!(desk.api.world().changes(&id), 0);
}

/// A stage that has begun does not continue after another user allocated the machine.
#[tokio::test]
async fn what_was_begun_stops_where_somebody_has_come_since() {
    use model::effect::Key;
    use providers::state_store::{Checkpoint, ProviderStateStore};
    for (stage, note) in [
        (
            Stage::RecoverForDatasourceRetry,
            json!({"what": "reinstall", "round": 2, "leg": {"letting": "begun"}}),
        ),
        (Stage::ReleaseMaasNode, json!({"what": "release", "letting": "begun"})),
        (
            Stage::PowerOffMaasNode,
            json!({"what": "power", "goal": "off", "stage": "begun", "watched": null}),
        ),
    ] {
        let desk = Desk::new().await;
        let id = desk.add(Status::Deployed);
        desk.put_node(NODE, &id, NodeState::Retired);
        {
            let mut world = desk.api.world();
            let machine = world.machines.get_mut(&id).unwrap();
            machine.owner = Some("eve".into());
            machine.power = "on";
        }
        let key = Key::trusted(format!("op-1/{stage}/1"));
        desk.store.begin(&key, &Checkpoint::Begun(note)).await.unwrap();
        let fault = desk.ask(stage, Verb::Follow).await.unwrap_err();
        assert_eq!(fault.code, Code::StateDisagrees, "{stage}: {fault}");
        assert_eq!(desk.ask(stage, Verb::Stop).await, Ok(Answer::Stopped), "{stage}");
        assert_eq!(desk.api.world().changes(&id), 0, "{stage}");
    }
}

#[tokio::test]
async fn a_storm_of_busy_answers_is_waited_out() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Deploying);
    desk.mark(&id, NODE, "op-1/deploy_via_maas/1");
    // More failures than the client retries itself.
    desk.api.world().takes = Takes::Hand;
    let wait = desk.ask(Stage::WaitForDeployed, Verb::Perform);
    let storm = async {
        while desk.api.world().requests.is_empty() {
            tokio::task::yield_now().await;
        }
        desk.api.world().trouble("read", Trouble::Busy { retry_after: None }, 40);
        while desk.api.world().requests.len() < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        desk.api.world().advance(&id);
    };
    let (answer, ()) = tokio::join!(wait, storm);
    assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
    // A deployment whose answer is lost is read back, and not requested again.
    for trouble in [Trouble::BusyAfterActing { retry_after: None }, Trouble::CutAfterActing] {
        let desk = Desk::new().await;
        let id = desk.add(Status::Ready);
        desk.api.world().trouble("deploy", trouble, 1);
        let fault = desk.fails(Stage::DeployViaMaas, 1).await;
        assert_eq!(fault.code.happened(), Happened::Maybe, "{fault}");
        let answer = desk.ask(Stage::DeployViaMaas, Verb::GetStatus).await;
        assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
        assert_eq!(desk.count(&id, "deploy"), 1);
    }
    // One that never began is requested again.
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    desk.api.world().trouble("deploy", Trouble::Busy { retry_after: None }, 1);
    let fault = desk.fails(Stage::DeployViaMaas, 1).await;
    assert_eq!(fault.code, Code::AnswerLost);
    let ask = async |verb| desk.ask(Stage::DeployViaMaas, verb).await;
    assert_eq!(ask(Verb::GetStatus).await, Ok(Answer::NeverStarted));
    assert_eq!(ask(Verb::Stop).await, Ok(Answer::Stopped));
    let late = ask(Verb::Perform).await.unwrap_err();
    assert!(late.said.contains("was stopped"), "{late}");
    let next = desk.ask_effect(Verb::Perform, &effect(Stage::DeployViaMaas, false), 2).await.0;
    assert!(matches!(next, Ok(Answer::Done(_))), "{next:?}");
    assert_eq!((desk.status(&id), desk.count(&id, "allocate")), (Status::Deploying, 1));
}

#[tokio::test]
async fn what_is_stuck_ends_with_what_maas_says() {
    let mut desk = Desk::new().await;
    desk.settings.longest_wait = Duration::from_millis(60);
    let id = desk.add(Status::Deploying);
    desk.api.world().machines.get_mut(&id).unwrap().fate =
        Fate { deployment: End::Stuck, ..Fate::default() };
    desk.api.world().machines.get_mut(&id).unwrap().status_message = "Loading ephemeral".into();
    desk.fails_as(Stage::WaitForDeployed, Code::StepTimeout, &["Deploying", "Loading ephemeral"])
        .await;
    assert_eq!(desk.ask(Stage::WaitForDeployed, Verb::GetStatus).await, Ok(Answer::NeverStarted));
    assert_eq!((desk.status(&id), desk.api.world().changes(&id)), (Status::Deploying, 0));
}

#[tokio::test]
async fn commissioning_that_fails_says_why() {
    let desk = Desk::new().await;
    let id = desk.add(Status::New);
    let events = vec!["Failed to power on".to_owned()];
    desk.api.world().machines.get_mut(&id).unwrap().fate =
        Fate { commissioning: End::Fails { events, log: String::new() }, ..Fate::default() };
    desk.done(Stage::CommissionNode).await;
    let (answer, log) =
        desk.ask_effect(Verb::Perform, &effect(Stage::WaitForReady, false), 1).await;
    assert_eq!(answer.unwrap_err().code, Code::CommissioningFailed);
    assert!(log.contains("Failed to power on"), "{log}");
    for (status, stage) in [
        (Status::Broken, Stage::CommissionNode),
        (Status::FailedDeployment, Stage::CommissionNode),
        (Status::Broken, Stage::WaitForReady),
        (Status::RescueMode, Stage::ConfigureStorage),
        (Status::New, Stage::DeployViaMaas),
        (Status::Ready, Stage::ClassifyDeployFailure),
        (Status::Ready, Stage::RecoverForDatasourceRetry),
        (Status::Ready, Stage::EnsureHardwareSyncConfigured),
        (Status::Deployed, Stage::RemoveMaasRecord),
    ] {
        let desk = Desk::new().await;
        let id = desk.add(status);
        desk.fails_as(stage, Code::StateDisagrees, &[&id, status.words()]).await;
        assert_eq!(desk.api.world().changes(&id), 0, "{stage}");
    }
}

#[tokio::test]
async fn a_missing_boot_disk_stops_for_a_person() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    let disks = desk.api.world().machines[&id].disks.clone();
    desk.change_site(|spec| spec.boot_disk_model = "m.2".into()).await;
    desk.fails_as(Stage::ConfigureStorage, Code::BootDiskMissing, &["DELLBOSS VD", "MZQL2"]).await;
    assert_eq!(desk.api.world().changes(&id), 0);
    desk.change_site(|spec| spec.boot_disk_model = "mzql".into()).await;
    desk.ask_effect(Verb::Perform, &effect(Stage::ConfigureStorage, false), 2).await.0.unwrap();
    assert_eq!(json!(desk.api.world().machines[&id].boot_disk), disks[1]["id"]);
}

/// MAAS changes the disks of machines in Ready only.
#[tokio::test]
async fn disks_of_what_is_allocated_are_left_alone() {
    for (marked, words) in [(true, "restart-clean"), (false, "release it in MAAS")] {
        let desk = Desk::new().await;
        let id = desk.add(Status::Allocated);
        if marked {
            desk.mark(&id, NODE, "op-0/deploy_via_maas/1");
        }
        desk.fails_as(Stage::ConfigureStorage, Code::StateDisagrees, &[words]).await;
        assert_eq!(desk.api.world().changes(&id), 0);
    }
}

#[tokio::test]
async fn an_interface_that_cannot_be_mended_stops_for_a_person() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    desk.api.world().machines.get_mut(&id).unwrap().interfaces[0]["vlan"] =
        json!({"id": 77, "vid": 0});
    desk.fails_as(Stage::EnsurePxeInterfaceAuto, Code::PxeInterfaceUnfixable, &["VLAN 77"]).await;
    let desk = Desk::new().await;
    desk.add(Status::Ready);
    let no = Trouble::Says(400, r#"{"mode": ["It is part of a bond."]}"#.into());
    desk.api.world().trouble("link_subnet", no, 1);
    desk.fails_as(Stage::EnsurePxeInterfaceAuto, Code::PxeInterfaceUnfixable, &["part of a bond"])
        .await;
}

#[tokio::test]
async fn a_deployment_that_fails_is_classified() {
    let (desk, id) = deployed_badly("curtin: Installation failed\nFailed to format sda").await;
    let (answer, log) =
        desk.ask_effect(Verb::Perform, &effect(Stage::ClassifyDeployFailure, false), 1).await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code, Code::DeployFailed);
    assert!(fault.said.ends_with("Failed to format sda"), "{fault}");
    assert!(log.contains("event: ") && log.contains("install: Failed to format sda"), "{log}");
    // The installer's input is in its log; the keys in it must not be shown.
    assert!(log.contains("oauth_token_secret=***"), "{log}");
    for secret in ["k3y", "t0k3n", "s3cr3t"] {
        assert!(!log.contains(secret) && !fault.said.contains(secret), "{log}");
    }
    // The next run finds the failed deployment and does not build on it.
    let desk = Desk { run: "op-2".into(), ..desk };
    desk.fails_as(Stage::CommissionNode, Code::StateDisagrees, &["restart-clean"]).await;
    assert_eq!(desk.count(&id, "commission"), 0);
}

#[tokio::test]
async fn a_missing_datasource_is_recovered_from_within_its_bound() {
    // The failure disappears in the first round.
    let (desk, id) = deployed_badly(DATASOURCE).await;
    assert!(desk.done(Stage::ClassifyDeployFailure).await.contains("no datasource found"));
    desk.api.world().machines.get_mut(&id).unwrap().fate = Fate::default();
    desk.done(Stage::RecoverForDatasourceRetry).await;
    let counts = |desk: &Desk, id: &str| (desk.count(id, "deploy"), desk.count(id, "release"));
    assert_eq!((desk.status(&id), counts(&desk, &id)), (Status::Deployed, (2, 1)));
    // The failure persists: two more rounds, then the operator.
    let (desk, id) = deployed_badly(DATASOURCE).await;
    desk.fails_as(Stage::RecoverForDatasourceRetry, Code::DatasourceFailed, &["2 more rounds"])
        .await;
    assert_eq!((desk.status(&id), counts(&desk, &id)), (Status::FailedDeployment, (3, 2)));
    // Another cause ends the recovery.
    let (desk, id) = deployed_badly(DATASOURCE).await;
    desk.api.world().machines.get_mut(&id).unwrap().fate = failing("Failed to format sda");
    desk.fails_as(Stage::RecoverForDatasourceRetry, Code::DeployFailed, &["Failed to format"])
        .await;
    assert_eq!(counts(&desk, &id), (2, 1));
    // The installer finished, and the new system never fetched its data.
    let (desk, id) = deployed_badly("curtin: Installation finished.").await;
    desk.fails_as(Stage::ClassifyDeployFailure, Code::DeployFailed, &["finished"]).await;
    let late = "Machine operation 'Deploying' timed out after 30 minutes.";
    desk.api.world().note_event(&id, "Marking node failed", late);
    let classify = effect(Stage::ClassifyDeployFailure, false);
    let answer = desk.ask_effect(Verb::Perform, &classify, 2).await.0;
    assert!(matches!(answer, Ok(Answer::Done(outcome)) if outcome.said.contains(late)));
    // No recovery is allowed.
    let (desk, id) = deployed_badly(DATASOURCE).await;
    desk.change_site(|spec| spec.datasource_retries = 0).await;
    desk.fails_as(
        Stage::RecoverForDatasourceRetry,
        Code::DatasourceFailed,
        &["datasource_retries"],
    )
    .await;
    assert_eq!(counts(&desk, &id), (1, 0));
}

#[tokio::test]
async fn hardware_that_does_not_tell_of_itself_stops_for_a_person() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Deployed);
    desk.api.world().machines.get_mut(&id).unwrap().sync_interval_s = 0.02;
    desk.fails_as(Stage::EnsureHardwareSyncConfigured, Code::HardwareSyncFailed, &[&id]).await;
    desk.api.world().machines.get_mut(&id).unwrap().enable_hw_sync = true;
    desk.done(Stage::EnsureHardwareSyncConfigured).await;
    desk.fails_as(Stage::WaitForHardwareSyncHealthy, Code::HardwareSyncFailed, &[&id, "yet"]).await;
    desk.api.world().machines.get_mut(&id).unwrap().last_sync = Some("2020-01-01T00:00:00".into());
    assert!(matches!(
        desk.ask(Stage::WaitForHardwareSyncHealthy, Verb::Observe).await,
        Ok(Answer::Differs(_))
    ));
    desk.api.world().version = "3.1.0";
    assert!(desk.done(Stage::EnsureHardwareSyncConfigured).await.contains("no hardware sync"));
    assert!(desk.done(Stage::WaitForHardwareSyncHealthy).await.contains("no hardware sync"));
}

#[tokio::test]
async fn what_somebody_else_has_taken_since_is_left_alone() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    desk.done(Stage::CreateOrFindInMaas).await;
    {
        let mut world = desk.api.world();
        let machine = world.machines.get_mut(&id).unwrap();
        machine.status = Status::Deployed;
        machine.owner = Some("eve".into());
    }
    desk.fails_as(Stage::DeployViaMaas, Code::StateDisagrees, &["since this operation began"])
        .await;
    desk.api.world().machines.get_mut(&id).unwrap().status = Status::Allocated;
    let fault = desk.fails(Stage::DeployViaMaas, 2).await;
    assert!(fault.said.contains("eve has allocated it"), "{fault}");
    desk.undo(Stage::DeployViaMaas).await;
    assert_eq!((desk.count(&id, "deploy"), desk.count(&id, "release")), (0, 0));
    assert!(desk.api.world().machines[&id].interfaces[0]["mac_address"] == MAC);
}
