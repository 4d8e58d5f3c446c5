//! Nodes at MAAS without failures: onboarding stage by stage, every mode of decommission, and
//! adoption.

use crate::maas_api::{Fate, Released, Takes};
use crate::maas_desk::{Desk, MAC, NODE, SUBNET};
use model::effect::{Answer, Verb};
use model::fault::Code;
use model::node::{Mode, NodeState, Room, Stage, Upstream};
use providers::maas::Status;
use serde_json::json;
use std::time::Duration;

/// The stages of an onboarding that run at MAAS.
fn onboarding() -> impl Iterator<Item = Stage> {
    Stage::ONBOARDING.into_iter().filter(|stage| stage.room() == Room::Maas)
}

/// Lets the deployed machine report its hardware.
fn sync(desk: &Desk, id: &str) {
    let now = jiff::Timestamp::now().to_string();
    desk.api.world().machines.get_mut(id).unwrap().last_sync = Some(now);
}

async fn onboard(desk: &Desk) {
    for stage in onboarding() {
        if stage == Stage::WaitForHardwareSyncHealthy {
            sync(desk, &desk.node().await.system_id);
        }
        desk.done(stage).await;
    }
}

#[tokio::test]
async fn a_machine_that_maas_does_not_know_is_made_and_installed() {
    let desk = Desk::new().await;
    desk.change_site(|spec| spec.network.roce_interfaces = "ens2".into()).await;
    onboard(&desk).await;
    let node = desk.node().await;
    assert_eq!(node.upstream.map(|seen| seen.state), Some(Upstream::Deployed));
    let id = node.system_id;
    {
        let world = desk.api.world();
        let machine = &world.machines[&id];
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
            assert_eq!(world.count(&id, name), times, "{name}");
        }
    }
    // A second pass by another run changes nothing.
    let changes = desk.api.world().changes(&id);
    let mut again = desk;
    again.run = "op-2".into();
    onboard(&again).await;
    assert_eq!(again.api.world().changes(&id), changes);
}

#[tokio::test]
async fn a_machine_that_maas_has_is_found_and_brought_to_what_is_wanted() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    desk.put_node(NODE, "", NodeState::Enrolling);
    assert!(desk.done(Stage::CreateOrFindInMaas).await.contains("was found"));
    assert_eq!((desk.count(&id, "update"), desk.node().await.system_id), (1, id.clone()));
    desk.ask_effect(Verb::Perform, &crate::maas_desk::effect(Stage::CreateOrFindInMaas, false), 2)
        .await
        .0
        .unwrap();
    assert_eq!(desk.count(&id, "update"), 1, "nothing differs");
    assert!(desk.done(Stage::CommissionNode).await.contains("MAAS has the machine as Ready"));
    desk.done(Stage::WaitForReady).await;
    assert_eq!(desk.count(&id, "commission"), 0);
    // A machine in use keeps its settings.
    desk.api.world().machines.get_mut(&id).unwrap().pool = "default".into();
    desk.api.world().machines.get_mut(&id).unwrap().status = Status::Deployed;
    desk.ask_effect(Verb::Perform, &crate::maas_desk::effect(Stage::CreateOrFindInMaas, false), 3)
        .await
        .0
        .unwrap();
    assert_eq!(desk.count(&id, "update"), 1);
}

/// A card on another VLAN than its subnet is moved there, which removes its links in MAAS.
#[tokio::test]
async fn a_card_of_the_fabric_moves_to_the_vlan_of_its_subnet() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    {
        let mut world = desk.api.world();
        let subnet = world.subnets[0].clone();
        let card = &mut world.machines.get_mut(&id).unwrap().interfaces[1];
        card["links"] = json!([{"id": 901, "mode": "dhcp", "subnet": subnet}]);
    }
    desk.done(Stage::ApplyRocePhase2).await;
    let world = desk.api.world();
    let card = &world.machines[&id].interfaces[1];
    assert_eq!((&card["vlan"]["id"], &card["effective_mtu"]), (&json!(5002), &json!(9_000)));
    let links = card["links"].as_array().unwrap();
    assert_eq!((links.len(), &links[0]["subnet"]["cidr"]), (1, &json!(SUBNET)));
}

/// The site's architecture is used for machines that are not amd64.
#[tokio::test]
async fn a_record_is_made_for_the_architecture_of_its_site() {
    use model::id::SiteId;
    use providers::state_store::ProviderStateStore;
    for (label, expected) in [(None, "amd64/generic"), (Some("arm64"), "arm64/generic")] {
        let desk = Desk::new().await;
        let mut site = desk.store.site(&SiteId::trusted("site-east")).await.unwrap();
        site.head.labels.extend(label.map(|name| ("architecture".into(), name.into())));
        desk.store.set_site(site);
        desk.done(Stage::CreateOrFindInMaas).await;
        let id = desk.node().await.system_id;
        assert_eq!(desk.api.world().machines[&id].architecture, expected);
    }
}

#[tokio::test]
async fn every_mode_of_decommission_lets_go_of_what_it_should() {
    for mode in Mode::DECOMMISSION {
        let desk = Desk::new().await;
        let id = desk.add(Status::Deployed);
        desk.put_node(NODE, &id, NodeState::Retired);
        desk.mark(&id, NODE, "op-0/deploy_via_maas/1");
        let stages = mode.stages(true).into_iter().filter(|stage| stage.room() == Room::Maas);
        for stage in stages {
            if stage == Stage::WaitForHardwareSyncHealthy {
                sync(&desk, &id);
            }
            desk.done(stage).await;
        }
        let (kept, released, deployed) = match mode {
            Mode::FullDecommission => (false, 1, 0),
            Mode::Reimage => (true, 1, 1),
            Mode::SoftReset
            | Mode::StorageCleanup
            | Mode::Drain
            | Mode::Retire
            | Mode::Reactivate => (true, 0, 0),
        };
        let counts = (desk.count(&id, "release"), desk.count(&id, "deploy"));
        assert_eq!(counts, (released, deployed), "{mode}");
        assert_eq!(desk.api.world().machines.contains_key(&id), kept, "{mode}");
        let seen = desk.node().await.upstream.map(|seen| seen.state);
        assert!(kept || seen == Some(Upstream::Absent), "{mode}: {seen:?}");
    }
}

#[tokio::test]
async fn what_is_released_ends_as_maas_ends_it() {
    for (fate, locked, status, expected) in [
        (Released::Ready, false, Status::Deployed, Ok(Status::Ready)),
        (Released::New, false, Status::Deployed, Ok(Status::New)),
        (Released::Fails, false, Status::Deployed, Err(Code::EffectFailed)),
        (Released::Ready, true, Status::Deployed, Err(Code::StateDisagrees)),
        (Released::Ready, false, Status::RescueMode, Err(Code::StateDisagrees)),
        (Released::Ready, false, Status::Ready, Ok(Status::Ready)),
    ] {
        let desk = Desk::new().await;
        let id = desk.add(status);
        {
            let mut world = desk.api.world();
            let machine = world.machines.get_mut(&id).unwrap();
            machine.fate = Fate { release: fate, ..Fate::default() };
            machine.locked = locked;
        }
        match (desk.ask(Stage::ReleaseMaasNode, Verb::Perform).await, expected) {
            (Ok(Answer::Done(_)), Ok(end)) => assert_eq!(desk.status(&id), end),
            (Err(fault), Err(code)) => {
                assert_eq!(fault.code, code, "{fault}");
                assert!(!locked || fault.said.contains("unlock it in MAAS"), "{fault}");
            }
            (answer, expected) => panic!("{fate:?}: {answer:?}, not {expected:?}"),
        }
    }
}

#[tokio::test]
async fn disks_are_erased_as_the_site_says_and_that_is_not_called_back() {
    for (erase, status) in [(true, Status::DiskErasing), (false, Status::Releasing)] {
        let mut desk = Desk::new().await;
        desk.settings.longest_wait = Duration::from_millis(20);
        desk.change_site(|spec| spec.erase_on_release = erase).await;
        let id = desk.add(Status::Deployed);
        desk.api.world().takes = Takes::Hand;
        desk.fails_as(Stage::ReleaseMaasNode, Code::StepTimeout, &[status.words()]).await;
        assert_eq!(desk.status(&id), status);
        for verb in [Verb::GetStatus, Verb::Stop] {
            assert_eq!(desk.ask(Stage::ReleaseMaasNode, verb).await, Ok(Answer::UnderWay));
        }
        while desk.status(&id) != Status::Ready {
            desk.api.world().advance(&id);
        }
        let answer = desk.ask(Stage::ReleaseMaasNode, Verb::Stop).await;
        assert!(matches!(answer, Ok(Answer::Done(_))), "the stop came too late: {answer:?}");
        assert_eq!(desk.count(&id, "release"), 1);
    }
}

/// A wait is resumed by `get_status`: it reports that the machine is gone when it waits again.
#[tokio::test]
async fn a_wait_for_a_machine_that_is_gone_is_begun_anew_and_says_so() {
    for stage in [Stage::WaitForReady, Stage::WaitForDeployed] {
        let desk = Desk::new().await;
        desk.add(Status::Deploying);
        desk.api.world().machines.clear();
        assert_eq!(desk.ask(stage, Verb::GetStatus).await, Ok(Answer::NeverStarted), "{stage}");
        assert_eq!(desk.ask(stage, Verb::Stop).await, Ok(Answer::Stopped), "{stage}");
        desk.fails_as(stage, Code::MaasMachineGone, &[]).await;
    }
}

#[tokio::test]
async fn a_record_stays_in_maas_where_the_site_keeps_them() {
    let desk = Desk::new().await;
    desk.change_site(|spec| spec.keep_in_maas = true).await;
    let id = desk.add(Status::Ready);
    let observed = desk.ask(Stage::RemoveMaasRecord, Verb::Observe).await;
    assert!(matches!(observed, Ok(Answer::Done(_))), "{observed:?}");
    assert!(desk.done(Stage::RemoveMaasRecord).await.contains("stays in MAAS"));
    assert_eq!(desk.status(&id), Status::Ready);
    desk.api.world().machines.clear();
    assert!(desk.done(Stage::RemoveMaasRecord).await.contains("no record"));
}

#[tokio::test]
async fn what_is_begun_is_broken_off_where_maas_can() {
    for (stage, before, begun, after) in [
        (Stage::CommissionNode, Status::New, Status::Commissioning, Status::New),
        (Stage::DeployViaMaas, Status::Ready, Status::Deploying, Status::Allocated),
    ] {
        let desk = Desk::new().await;
        let id = desk.add(before);
        desk.api.world().takes = Takes::Hand;
        desk.done(stage).await;
        assert_eq!(desk.status(&id), begun);
        assert_eq!(desk.ask(stage, Verb::Stop).await, Ok(Answer::Stopped));
        assert_eq!((desk.status(&id), desk.count(&id, "abort")), (after, 1));
        // A second stop changes nothing, and nothing begins under this key any more.
        assert_eq!(desk.ask(stage, Verb::Stop).await, Ok(Answer::Stopped));
        let late = desk.fails(stage, 1).await;
        assert!(late.said.contains("was stopped"), "{late}");
        assert_eq!((desk.status(&id), desk.count(&id, "abort")), (after, 1));
    }
}

#[tokio::test]
async fn a_cancel_takes_back_what_the_run_has_made_and_nothing_else() {
    // Created and installed by this run.
    let desk = Desk::new().await;
    desk.change_site(|spec| spec.network.roce_interfaces.clear()).await;
    onboard(&desk).await;
    let id = desk.node().await.system_id;
    assert!(desk.undo(Stage::DeployViaMaas).await.contains("taken back"));
    assert_eq!(desk.status(&id), Status::Ready);
    assert!(desk.undo(Stage::CreateOrFindInMaas).await.contains("deleted"));
    assert!(desk.api.world().machines.is_empty());
    // Created by this run, and in commissioning for it.
    let desk = Desk::new().await;
    desk.done(Stage::CreateOrFindInMaas).await;
    desk.api.world().takes = Takes::Hand;
    desk.done(Stage::CommissionNode).await;
    let id = desk.node().await.system_id;
    desk.undo(Stage::DeployViaMaas).await;
    assert!(desk.undo(Stage::CommissionNode).await.contains("broken off"));
    assert_eq!((desk.status(&id), desk.count(&id, "abort")), (Status::New, 1));
    desk.undo(Stage::CreateOrFindInMaas).await;
    assert!(desk.api.world().machines.is_empty());
    // Commissioned by another user, or before this run: it continues.
    for (owner, seen) in [("eve", false), ("admin", true)] {
        let desk = Desk::new().await;
        let id = desk.add(Status::Commissioning);
        desk.api.world().takes = Takes::Hand;
        desk.api.world().machines.get_mut(&id).unwrap().owner = Some(owner.into());
        if seen {
            desk.done(Stage::CreateOrFindInMaas).await;
        }
        desk.undo(Stage::CommissionNode).await;
        assert_eq!(desk.count(&id, "abort"), 0, "{owner}");
    }
    // Installed by another user, and adopted.
    let desk = Desk::new().await;
    let id = desk.add(Status::Deployed);
    desk.done(Stage::CreateOrFindInMaas).await;
    desk.done(Stage::DeployViaMaas).await;
    desk.undo(Stage::DeployViaMaas).await;
    desk.undo(Stage::CreateOrFindInMaas).await;
    assert_eq!((desk.status(&id), desk.count(&id, "release")), (Status::Deployed, 0));
    // A run that begins with the undo of the earlier run's installation.
    desk.mark(&id, NODE, "op-1/deploy_via_maas/1");
    let again = Desk { run: "op-2".into(), ..desk };
    again.undo(Stage::DeployViaMaas).await;
    assert_eq!((again.status(&id), again.count(&id, "release")), (Status::Ready, 1));
}

/// A machine whose release fails in MAAS is not taken back, however often it is requested.
#[tokio::test]
async fn what_maas_does_not_let_go_of_is_not_taken_back() {
    let desk = Desk::new().await;
    let id = desk.add(Status::Ready);
    desk.change_site(|spec| spec.network.roce_interfaces.clear()).await;
    for stage in [Stage::CreateOrFindInMaas, Stage::DeployViaMaas, Stage::WaitForDeployed] {
        desk.done(stage).await;
    }
    let fails = |release| desk.api.world().machines.get_mut(&id).unwrap().fate.release = release;
    let undo = crate::maas_desk::effect(Stage::DeployViaMaas, true);
    fails(Released::Fails);
    for attempt in 1..=2 {
        let fault = desk.ask_effect(Verb::Perform, &undo, attempt).await.0.unwrap_err();
        assert_eq!(fault.code, Code::EffectFailed, "{fault}");
        assert_eq!(desk.count(&id, "release"), attempt as usize);
    }
    // Another user works on it: the operator must decide.
    for status in [Status::Testing, Status::RescueMode, Status::FailedTesting] {
        desk.api.world().takes = Takes::Hand;
        desk.api.world().machines.get_mut(&id).unwrap().status = status;
        let fault = desk.ask_effect(Verb::Perform, &undo, 3).await.0.unwrap_err();
        assert_eq!(fault.code, Code::StateDisagrees, "{status}: {fault}");
    }
    desk.api.world().takes = Takes::Looks(1);
    desk.api.world().machines.get_mut(&id).unwrap().status = Status::FailedReleasing;
    fails(Released::Ready);
    let answer = desk.ask_effect(Verb::Perform, &undo, 4).await.0;
    assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
    assert_eq!((desk.status(&id), desk.count(&id, "release")), (Status::Ready, 3));
}

/// Erasing may take longer than a stage may: the stage times out, and the next attempt continues to
/// wait.
#[tokio::test]
async fn erasing_that_takes_too_long_is_no_riddle() {
    use model::effect::Key;
    use providers::state_store::{Checkpoint, ProviderStateStore};
    let desk = Desk::new().await;
    let id = desk.add(Status::DiskErasing);
    desk.api.world().takes = Takes::Hand;
    let note = json!({"what": "release", "letting": {"asked": {"marked": true, "at": 0}}});
    let key = Key::trusted(format!("op-1/{}/1", Stage::ReleaseMaasNode));
    desk.store.begin(&key, &Checkpoint::Begun(note)).await.unwrap();
    assert_eq!(desk.ask(Stage::ReleaseMaasNode, Verb::GetStatus).await, Ok(Answer::UnderWay));
    assert_eq!(desk.ask(Stage::ReleaseMaasNode, Verb::Stop).await, Ok(Answer::Stopped));
    desk.api.world().takes = Takes::Looks(1);
    let release = crate::maas_desk::effect(Stage::ReleaseMaasNode, false);
    let next = desk.ask_effect(Verb::Perform, &release, 2).await.0;
    assert!(matches!(next, Ok(Answer::Done(_))), "{next:?}");
    assert_eq!((desk.status(&id), desk.count(&id, "release")), (Status::Ready, 0));
}

#[tokio::test]
async fn a_whole_site_is_seen_with_one_question() {
    use model::id::{MachineId, NodeId, SiteId};
    use providers::Provider;
    use providers::state_store::ProviderStateStore;
    let desk = Desk::new().await;
    let id = desk.add(Status::Deployed);
    desk.mark(&id, NODE, "op-1/deploy_via_maas/1");
    desk.api.world().add("aa:bb:cc:00:00:09").power = "on";
    let site = desk.store.site(&SiteId::trusted("site-east")).await.unwrap();
    let nodes = [(NodeId::trusted(NODE), MachineId::trusted("m-1"))];
    let replica = desk.replica();
    let seen = replica.observe_site(&site, &nodes).await.unwrap();
    assert_eq!(desk.api.world().requests.len(), 1, "{:?}", desk.api.world().requests);
    let told: Vec<_> =
        seen.iter().map(|one| (one.seen.state, one.seen.on, one.node.is_some())).collect();
    assert_eq!(told, [(Upstream::Deployed, Some(false), true), (Upstream::New, Some(true), false)]);
    let found = replica.find_at_site(&site, &desk.target).await.unwrap();
    assert_eq!(found.map(|seen| seen.state), Some(Upstream::Deployed));
    // The marked node is reported, even if it was not part of the request.
    desk.mark(&id, "node-2", "op-9/deploy_via_maas/1");
    let seen = replica.observe_site(&site, &nodes).await.unwrap();
    assert_eq!(
        (seen[0].node.as_ref(), seen[0].seen.said.as_str()),
        (None, "it is marked as node-2")
    );
    assert_eq!(seen[1].seen.said, "");
    desk.done(Stage::WaitForDeployed).await;
    assert!(desk.node().await.upstream.unwrap().same(&seen[0].seen), "a stage observes the same");
    // Single-flight: concurrent callers share one answer.
    let before = desk.api.world().requests.len();
    let looks = (0..20).map(|_| replica.find_at_site(&site, &desk.target));
    for found in futures_util::future::join_all(looks).await {
        assert!(found.unwrap().is_some());
    }
    assert!(desk.api.world().requests.len() - before <= 2, "concurrent callers share a list");
    // The machine's name in MAAS from the inventory is enough.
    let mut named = desk.target.clone();
    named.spec.mac_addresses = vec!["aa:bb:cc:00:00:77".into()];
    assert_eq!(replica.find_at_site(&site, &named).await, Ok(None));
    named.spec.bmc_endpoint = format!("maas://site-east/{id}");
    let found = replica.find_at_site(&site, &named).await.unwrap();
    assert_eq!(found.map(|seen| seen.state), Some(Upstream::Deployed));
    desk.api.world().add(MAC);
    let fault = replica.find_at_site(&site, &desk.target).await.unwrap_err();
    assert_eq!(fault.code, Code::CandidatesConflict);
}

/// Many waits share one request, and a read of one machine does not queue behind them.
#[tokio::test]
async fn many_wait_with_one_question() {
    use model::effect::{Effect, Key, Order};
    use model::id::{NodeId, RunId, SiteId};
    use providers::{Journal, Provider};
    const MANY: usize = 30;
    const ROUNDS: usize = 5;
    let mut desk = Desk::new().await;
    desk.settings.look_every = Duration::from_millis(100);
    let mut ids = Vec::new();
    for number in 0..MANY {
        let id = desk.add(Status::Deploying);
        desk.put_node(&format!("node-w{number}"), &id, NodeState::Enrolling);
        ids.push(id);
    }
    desk.api.world().takes = Takes::Hand;
    let (replica, stage) = (desk.replica(), Stage::WaitForDeployed);
    let wait = async |number: usize| {
        let node = NodeId::trusted(format!("node-w{number}"));
        let site = Some(SiteId::trusted("site-east"));
        let effect = Effect::Stage { stage, node, site, by: "maas".into(), undo: false };
        let key = Key::new(&RunId::trusted(format!("op-w{number}")), effect.word(), 1);
        let order = Order { key, verb: Verb::Perform, effect, logged: 0 };
        let (journal, _lines) = Journal::new();
        replica.ask(&desk.target, &order, &journal).await
    };
    let all = futures_util::future::join_all((0..MANY).map(wait));
    let end = async {
        let looks = |from: usize| -> usize {
            let world = desk.api.world();
            world.requests.iter().skip(from).filter(|one| one.contains("machines/?id=")).count()
        };
        while looks(0) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let before = desk.api.world().requests.len();
        while looks(before) < ROUNDS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let asked = desk.api.world().requests.len() - before;
        assert!(asked < MANY, "{asked} requests in {ROUNDS} rounds");
        ids.iter().for_each(|id| desk.api.world().advance(id));
    };
    let (answers, ()) = tokio::join!(all, end);
    for answer in answers {
        assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
    }
}

/// The goal of a stage is observed before it holds, and after, and the observation changes nothing.
#[tokio::test]
async fn every_stage_says_whether_its_goal_holds() {
    for stage in Stage::ALL.iter().copied().filter(|stage| stage.room() == Room::Maas) {
        let done = match stage {
            Stage::ReleaseMaasNode | Stage::RemoveMaasRecord | Stage::PowerOffMaasNode => None,
            _ => Some(Status::Deployed),
        };
        let desk = Desk::new().await;
        let id = desk.add(done.unwrap_or(Status::Ready));
        desk.api.world().machines.get_mut(&id).unwrap().enable_hw_sync = true;
        sync(&desk, &id);
        if stage == Stage::RemoveMaasRecord {
            desk.api.world().machines.clear();
        }
        let changes = desk.api.world().changes(&id);
        let holds = desk.ask(stage, Verb::Observe).await;
        assert!(matches!(holds, Ok(Answer::Done(_))), "{stage}: {holds:?}");
        let desk = Desk::new().await;
        let other = match stage {
            Stage::ReleaseMaasNode | Stage::RemoveMaasRecord | Stage::PowerOffMaasNode => {
                Status::Deployed
            }
            _ => Status::New,
        };
        let id = desk.add(other);
        desk.api.world().machines.get_mut(&id).unwrap().power = "on";
        let differs = desk.ask(stage, Verb::Observe).await;
        match stage {
            // They hold whatever the status in MAAS.
            Stage::LoadSiteConfig
            | Stage::ResolvePowerCredentials
            | Stage::RenderCloudInit
            | Stage::CreateOrFindInMaas
            // The boot disk happens to be right.
            | Stage::ConfigureStorage => {
                assert!(matches!(differs, Ok(Answer::Done(_))), "{stage}: {differs:?}");
            }
            _ => assert!(matches!(differs, Ok(Answer::Differs(_))), "{stage}: {differs:?}"),
        }
        assert_eq!((desk.api.world().changes(&id), changes), (0, 0), "{stage}");
    }
}
