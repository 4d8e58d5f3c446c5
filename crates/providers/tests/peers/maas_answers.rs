//! The answers in which MAAS differs from what its documents say, each with the version that the
//! peer notes: errors that repeat, images, times, secrets, and what a key may do.

use crate::maas_api::{End, NodeStatus, OperationTime, Trouble};
use crate::maas_fixture::{MaasFixture, NODE, effect};
use model::effect::{CallVerb, ProviderAnswer};
use model::fault::{EffectOutcome, FaultCode};
use model::node::{NodeStage, NodeState};
use std::time::Duration;

/// A 500 that repeats ends each attempt: it is not an answer that was lost, and nothing is open.
#[tokio::test]
async fn a_500_ends_the_attempt_and_leaves_nothing_open() {
    for (stage, status, name) in [
        (NodeStage::CreateOrFindInMaas, None, "create"),
        (NodeStage::CreateOrFindInMaas, Some(NodeStatus::Ready), "update"),
        (NodeStage::CommissionNode, Some(NodeStatus::New), "commission"),
        (NodeStage::DeployViaMaas, Some(NodeStatus::Ready), "deploy"),
        (NodeStage::ReleaseMaasNode, Some(NodeStatus::Deployed), "release"),
    ] {
        let mut fixture = MaasFixture::new().await;
        fixture.settings.in_flight_window = Duration::from_secs(3_600);
        if let Some(status) = status {
            fixture.add(status);
        }
        let says = || Trouble::Says(500, "IPAddress() does not support netmasks".into());
        fixture.api.state().trouble(name, says(), 1);
        let fault = fixture.perform_failing(stage, 1).await;
        assert_eq!(fault.code, FaultCode::MaasFailed, "{stage}: {fault}");
        assert_eq!(fault.code.effect_outcome(), EffectOutcome::NotApplied);
        assert!(fault.message.contains("does not support netmasks"), "{stage}: {fault}");
        // The next attempt works once MAAS does.
        let next = fixture.call_effect(CallVerb::Perform, &effect(stage, false), 2).await.0;
        assert!(matches!(next, Ok(ProviderAnswer::Done(_))), "{stage}: {next:?}");
    }
}

/// A BMC that no rack reaches ends each attempt with MAAS's reason, and so does a region of 3.5
/// without a rack: the request is not repeated.
#[tokio::test]
async fn a_bmc_that_no_rack_reaches_ends_the_attempt() {
    for (stage, status, name) in [
        (NodeStage::CommissionNode, NodeStatus::New, "commission"),
        (NodeStage::DeployViaMaas, NodeStatus::Ready, "deploy"),
    ] {
        for connected in [true, false] {
            let mut fixture = MaasFixture::new().await;
            fixture.settings.in_flight_window = Duration::from_secs(3_600);
            let id = fixture.add(status);
            fixture.api.state().version = "3.5.13";
            match connected {
                true => fixture.api.state().trouble(name, Trouble::BmcUnreachable, 1),
                false => fixture.api.state().rack_connected = false,
            }
            let fault = fixture.perform_failing(stage, 1).await;
            assert_eq!(fault.code, FaultCode::MaasFailed, "{stage}: {fault}");
            assert_eq!(fault.code.effect_outcome(), EffectOutcome::NotApplied);
            assert!(fault.message.contains("can access the BMC of node"), "{stage}: {fault}");
            assert!(fault.message.contains("the login of the BMC"), "{stage}: {fault}");
            assert_eq!(fixture.count(&id, name), 1, "{stage}");
            // The next attempt works once a rack reaches it.
            fixture.api.state().rack_connected = true;
            let next = fixture.call_effect(CallVerb::Perform, &effect(stage, false), 2).await.0;
            assert!(matches!(next, Ok(ProviderAnswer::Done(_))), "{stage}: {next:?}");
        }
    }
}

/// MAAS fails to take back the first erase that no rack can start, and then says why.
#[tokio::test]
async fn an_erase_that_no_rack_can_start_says_why() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    fixture.api.state().trouble("release", Trouble::BmcUnreachable, 2);
    let stage = NodeStage::ReleaseMaasNode;
    let fault = fixture.perform_failing(stage, 1).await;
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    assert_eq!(fixture.status(&id), NodeStatus::FailedDiskErasing);
    let fault = fixture.perform_failing(stage, 2).await;
    assert_eq!(fault.code, FaultCode::MaasFailed, "{fault}");
    assert!(fault.message.contains("can access the BMC of node"), "{fault}");
    assert_eq!(fixture.count(&id, "release"), 2);
    let next = fixture.call_effect(CallVerb::Perform, &effect(stage, false), 3).await.0;
    assert!(matches!(next, Ok(ProviderAnswer::Done(_))), "{next:?}");
}

/// Redfish BMCs are named to MAAS by host and port, and only those that speak https.
#[tokio::test]
async fn a_bmc_is_given_to_maas_without_its_scheme() {
    let mut fixture = MaasFixture::new().await;
    fixture.target.spec.bmc_endpoint = "https://[fe80::5]:8443/redfish/v1/Systems/1".into();
    fixture.perform(NodeStage::CreateOrFindInMaas).await;
    let id = fixture.node().await.system_id;
    let sent = fixture.api.state().machines[&id].power_parameters.clone();
    assert_eq!((sent["power_address"].as_str(), sent["node_id"].as_str()), ("[fe80::5]:8443", "1"));
    fixture.target.spec.bmc_endpoint = "http://10.0.0.5:8000".into();
    fixture
        .assert_fails(
            NodeStage::ResolvePowerCredentials,
            FaultCode::NotSupported,
            &["http://10.0.0.5:8000", "only https", "farrier machine update m-1 --bmc-endpoint"],
        )
        .await;
}

/// The password of the BMC is masked wherever MAAS quotes it.
#[tokio::test]
async fn the_password_of_a_bmc_is_not_shown() {
    let mut fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::New);
    let events = vec!["power off failed: ipmipower -p calvin".to_owned()];
    {
        let mut env = fixture.api.state();
        let machine = env.machines.get_mut(&id).unwrap();
        machine.planned.commissioning = End::Fails { events, log: String::new() };
    }
    fixture.perform(NodeStage::CommissionNode).await;
    fixture.api.state().advance(&id);
    fixture.api.state().machines.get_mut(&id).unwrap().status_message = "-p calvin".into();
    let (answer, log) =
        fixture.call_effect(CallVerb::Perform, &effect(NodeStage::WaitForReady, false), 1).await;
    let fault = answer.unwrap_err();
    assert!(log.contains("ipmipower -p ***") && !log.contains("calvin"), "{log}");
    assert!(fault.message.contains("-p ***") && !fault.message.contains("calvin"), "{fault}");
    // Texts whose secrets are unknown cannot be masked, so they are not read.
    fixture.crash_injector.fail_store_for("bmc");
    let (answer, log) =
        fixture.call_effect(CallVerb::Perform, &effect(NodeStage::WaitForReady, false), 2).await;
    assert_eq!((answer.unwrap_err().code, log.as_str()), (FaultCode::DatabaseUnreachable, ""));
    fixture.crash_injector.fail_store_for("");
    fixture.target.spec.bmc_credential = "removed".into();
    let next = fixture.perform_failing(NodeStage::WaitForReady, 3).await;
    assert_ne!(next.code, FaultCode::CredentialMissing, "{next}");
}

/// No rack is connected, or the image is being synced: a retry may help, and nothing was changed.
#[tokio::test]
async fn an_unavailable_image_is_retryable() {
    for version in ["3.4.8", "3.5.13", "3.7.3"] {
        for (stage, status) in [
            (NodeStage::CommissionNode, NodeStatus::New),
            (NodeStage::DeployViaMaas, NodeStatus::Ready),
        ] {
            let fixture = MaasFixture::new().await;
            let id = fixture.add(status);
            fixture.api.state().version = version;
            fixture.api.state().image_synced = false;
            let fault = fixture.perform_failing(stage, 1).await;
            assert_eq!(fault.code, FaultCode::MaasBusy, "{fault}");
            assert!(fault.message.contains("is unavailable"), "{fault}");
            assert!(fault.message.contains("no rack controller is connected"), "{fault}");
            fixture.api.state().image_synced = true;
            let next = fixture.call_effect(CallVerb::Perform, &effect(stage, false), 2).await.0;
            assert!(matches!(next, Ok(ProviderAnswer::Done(_))), "{stage}: {next:?}");
            assert_eq!(fixture.count(&id, "allocate"), usize::from(status == NodeStatus::Ready));
        }
    }
}

/// A node that is removed is installed no more, so the site's image may be gone from MAAS.
#[tokio::test]
async fn a_removal_does_not_need_the_image_of_the_site() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::Deployed);
    fixture.change_site(|spec| spec.image = "ubuntu/noble".into()).await;
    fixture.put_node(NODE, &id, NodeState::Retired);
    fixture.assert_fails(NodeStage::LoadSiteConfig, FaultCode::SiteUnfit, &["ubuntu/noble"]).await;
    fixture.put_node(NODE, &id, NodeState::Removing);
    assert!(fixture.perform(NodeStage::LoadSiteConfig).await.contains("admin may remove it"));
    fixture.api.state().is_superuser = false;
    fixture
        .assert_fails(
            NodeStage::LoadSiteConfig,
            FaultCode::SiteUnfit,
            &["site.spec.maas_credential is the key of admin, who is no administrator"],
        )
        .await;
}

/// MAAS stamps the end of a deployment itself, and up to 3.5 in its local time without an offset:
/// only a change of what it shows is a report.
#[tokio::test]
async fn the_time_of_the_deployment_is_no_report_of_hardware() {
    for version in ["3.4.8", "3.5.13", "3.6.5", "3.7.3"] {
        let mut fixture = MaasFixture::new().await;
        fixture.settings.max_wait = Duration::from_millis(60);
        fixture.api.state().version = version;
        let id = fixture.add(NodeStatus::Ready);
        fixture.perform(NodeStage::DeployViaMaas).await;
        fixture.perform(NodeStage::WaitForDeployed).await;
        let stamped = fixture.api.state().machines[&id].last_sync.clone().unwrap();
        fixture
            .assert_fails(
                NodeStage::WaitForHardwareSyncHealthy,
                FaultCode::StepTimeout,
                &["Deployed"],
            )
            .await;
        let observe = async || {
            fixture.call_stage(NodeStage::WaitForHardwareSyncHealthy, CallVerb::Observe).await
        };
        let seen = observe().await;
        assert!(
            matches!(&seen, Ok(ProviderAnswer::Differs(said)) if said.contains(&stamped)),
            "{seen:?}"
        );
        fixture.api.state().report_hardware(&id);
        let seen = observe().await;
        assert!(matches!(seen, Ok(ProviderAnswer::Done(_))), "{version}: {seen:?}");
        let next = effect(NodeStage::WaitForHardwareSyncHealthy, false);
        let done = fixture.call_effect(CallVerb::Perform, &next, 2).await.0;
        assert!(matches!(done, Ok(ProviderAnswer::Done(_))), "{version}: {done:?}");
    }
}

/// The first request to deploy is delayed and its answer is lost; then it arrives just before the
/// second, which MAAS refuses with a 409 (run: 3.4.8). Where the machine cannot be read after that,
/// the installation may have begun: its status is read, and it is never taken as not begun.
#[tokio::test]
async fn a_refused_second_deployment_that_cannot_be_read_is_unknown() {
    let stage = NodeStage::DeployViaMaas;
    for unreadable in [
        Trouble::Says(502, "<html>Bad Gateway</html>".into()),
        Trouble::Says(500, "boom".into()),
        Trouble::Says(401, "Authorization Error: Invalid API key.".into()),
        Trouble::Says(403, String::new()),
        Trouble::Busy { retry_after: Some(3_600) },
    ] {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Ready);
        fixture.api.state().operation_time = OperationTime::UntilAdvanced;
        fixture.api.state().trouble("deploy", Trouble::Says(504, String::new()), 1);
        let fault = fixture.perform_failing(stage, 1).await;
        assert_eq!(fault.code.effect_outcome(), EffectOutcome::Unknown, "{fault}");
        {
            let mut env = fixture.api.state();
            env.trouble("deploy", Trouble::Second, 1);
            // The first read of the attempt is answered, the one after the refusal is not.
            env.trouble("read", Trouble::Slow(Duration::ZERO), 1);
            env.trouble("read", unreadable.clone(), 1);
        }
        let fault = fixture.perform_failing(stage, 2).await;
        assert_eq!(fault.code.effect_outcome(), EffectOutcome::Unknown, "{fault}");
        assert_eq!(fixture.status(&id), NodeStatus::Deploying);
        let status = fixture.call_effect(CallVerb::GetStatus, &effect(stage, false), 2).await.0;
        assert!(matches!(status, Ok(ProviderAnswer::Done(_))), "{status:?}");
        assert_eq!(fixture.count(&id, "deploy"), 2, "nothing is requested again");
    }
}

/// A text is masked before it is cut: of a secret in two, no half would be recognised.
#[tokio::test]
async fn a_secret_is_masked_before_its_text_is_cut() {
    let fixture = MaasFixture::new().await;
    let id = fixture.add(NodeStatus::New);
    // A fault quotes 400 characters of an answer.
    let quotes = format!("{} calvin", "x".repeat(396));
    fixture.api.state().trouble("commission", Trouble::Says(409, quotes), 1);
    let fault = fixture.perform_failing(NodeStage::CommissionNode, 1).await;
    assert!(fault.message.contains("x ***") && !fault.message.contains(" cal"), "{fault}");
    // And 300 of a line of the installer.
    let log = format!("{} calvin", "x".repeat(296));
    {
        let mut env = fixture.api.state();
        let machine = env.machines.get_mut(&id).unwrap();
        machine.status = NodeStatus::Ready;
        machine.planned.deployment = End::Fails { events: Vec::new(), log };
    }
    fixture.perform(NodeStage::DeployViaMaas).await;
    fixture.perform(NodeStage::WaitForDeployed).await;
    let fault = fixture.perform_failing(NodeStage::ClassifyDeployFailure, 1).await;
    assert_eq!(fault.code, FaultCode::DeployFailed);
    assert!(fault.message.ends_with("x ***") && !fault.message.contains(" cal"), "{fault}");
}

/// The record was deleted, and the read after it fails: its status is read, and it is not said to
/// be still there.
#[tokio::test]
async fn a_deletion_that_cannot_be_read_back_is_unknown() {
    let stage = NodeStage::RemoveMaasRecord;
    let fixture = MaasFixture::new().await;
    fixture.add(NodeStatus::Ready);
    {
        let mut env = fixture.api.state();
        env.trouble("read", Trouble::Slow(Duration::ZERO), 1);
        env.trouble("read", Trouble::Says(502, "<html>Bad Gateway</html>".into()), 1);
    }
    let fault = fixture.perform_failing(stage, 1).await;
    assert_eq!(fault.code.effect_outcome(), EffectOutcome::Unknown, "{fault}");
    let status = fixture.call_effect(CallVerb::GetStatus, &effect(stage, false), 1).await.0;
    assert!(matches!(status, Ok(ProviderAnswer::Done(_))), "{status:?}");
}

/// The first request has arrived, and its deployment has ended before the second was refused: it
/// has begun, however it ended, and is not requested again.
#[tokio::test]
async fn a_deployment_that_ended_at_once_has_begun() {
    let stage = NodeStage::DeployViaMaas;
    let fails = || End::Fails { events: Vec::new(), log: "Failed to format sda".into() };
    for (end, status) in
        [(fails(), NodeStatus::FailedDeployment), (End::default(), NodeStatus::Deployed)]
    {
        let fixture = MaasFixture::new().await;
        let id = fixture.add(NodeStatus::Ready);
        {
            let mut env = fixture.api.state();
            env.operation_time = OperationTime::Reads(0);
            env.machines.get_mut(&id).unwrap().planned.deployment = end;
            env.trouble("deploy", Trouble::Second, 1);
        }
        fixture.perform(stage).await;
        assert_eq!(fixture.status(&id), status);
        assert_eq!(fixture.count(&id, "deploy"), 1);
    }
}
