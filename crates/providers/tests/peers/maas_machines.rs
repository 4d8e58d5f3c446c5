//! Machines behind MAAS that are no nodes: power, images, inspection.

use crate::maas_desk::{Desk, NODE, SITE};
use model::condition::ConditionType;
use model::effect::{
    Answer, Effect, NetbootMode, PowerOffPolicy, PowerTo, RebootMode, RmaAction, Verb,
};
use model::fault::Code;
use model::node::{NodeState, Stage};
use providers::Provider;
use providers::maas::Status;
use providers::power::PowerState;

const IMAGE: &str = "ubuntu/jammy";

async fn behind(status: Status) -> (Desk, String) {
    let mut desk = Desk::new().await;
    let id = desk.add(status);
    desk.put_node(NODE, "", NodeState::Enrolling);
    desk.target.spec.bmc_endpoint = format!("maas://{SITE}/{id}");
    (desk, id)
}

async fn ask(desk: &Desk, verb: Verb, effect: &Effect) -> Result<Answer, model::fault::Fault> {
    desk.ask_effect(verb, effect, 1).await.0
}

#[tokio::test]
async fn power_follows_and_is_read_back() {
    let power_off = PowerOffPolicy::CONFIGURED;
    let (off, on) = (
        Effect::Power { to: PowerTo::Off, power_off },
        Effect::Power { to: PowerTo::On, power_off },
    );
    let (desk, id) = behind(Status::Deployed).await;
    desk.api.world().machines.get_mut(&id).unwrap().power = "on";
    assert!(matches!(ask(&desk, Verb::Observe, &off).await, Ok(Answer::Differs(_))));
    let answer = ask(&desk, Verb::Perform, &off).await.unwrap();
    let Answer::Done(outcome) = answer else { panic!("{answer:?}") };
    assert_eq!(outcome.evidence[0].condition, ConditionType::Reachable);
    assert_eq!(desk.api.world().machines[&id].power, "off");
    desk.ask_effect(Verb::Perform, &on, 2).await.0.unwrap();
    assert_eq!((desk.count(&id, "power_off"), desk.count(&id, "power_on")), (1, 1));
    let cycle = Effect::Reboot { mode: RebootMode::Bmc, power_off };
    ask(&desk, Verb::Perform, &cycle).await.unwrap();
    assert_eq!((desk.count(&id, "power_off"), desk.count(&id, "power_on")), (2, 2));
    // In MAAS, switching on an allocated machine deploys it.
    let (desk, id) = behind(Status::Allocated).await;
    let fault = ask(&desk, Verb::Perform, &on).await.unwrap_err();
    assert_eq!(fault.code, Code::StateDisagrees);
    assert_eq!(desk.api.world().changes(&id), 0);
    desk.api.world().machines.get_mut(&id).unwrap().power_type = "manual".into();
    let fault = desk.ask_effect(Verb::Perform, &on, 2).await.0.unwrap_err();
    assert_eq!(fault.code, Code::NotSupported);
}

/// Where MAAS cannot switch the power, the operator does it, and only the operator can confirm it.
#[tokio::test]
async fn power_by_hand_is_never_taken_for_done() {
    let power_off = PowerOffPolicy::CONFIGURED;
    let of_machine = Effect::Power { to: PowerTo::Off, power_off };
    let of_node = crate::maas_desk::effect(Stage::PowerOffMaasNode, false);
    for (kind, power, performed, adopted) in [
        ("manual", "unknown", false, true),
        ("", "unknown", false, true),
        ("manual", "error", false, true),
        ("manual", "on", false, false),
        ("manual", "off", true, true),
    ] {
        for effect in [&of_machine, &of_node] {
            let (desk, id) = behind(Status::Ready).await;
            desk.put_node(NODE, &id, NodeState::Retired);
            desk.api.world().machines.get_mut(&id).unwrap().power = power;
            desk.api.world().machines.get_mut(&id).unwrap().power_type = kind.into();
            match ask(&desk, Verb::Perform, effect).await {
                Ok(Answer::Done(outcome)) if performed => {
                    assert_eq!(outcome.facts.unwrap().power, Some(PowerTo::Off));
                }
                Err(fault) if !performed => {
                    assert_eq!(fault.code, Code::StateDisagrees);
                    assert!(fault.said.contains("`farrier workflow adopt op-1`"), "{fault}");
                }
                other => panic!("{kind} {power}: {other:?}"),
            }
            assert_eq!(ask(&desk, Verb::GetStatus, effect).await, Ok(Answer::NeverStarted));
            match ask(&desk, Verb::Observe, effect).await {
                Ok(Answer::Done(outcome)) if adopted => {
                    // The power was not observed.
                    let seen = outcome.facts.unwrap().power;
                    assert_eq!(seen, performed.then_some(PowerTo::Off), "{kind} {power}");
                }
                Ok(Answer::Differs(_)) if !adopted => {}
                other => panic!("{kind} {power}: {other:?}"),
            }
            assert_eq!(desk.api.world().changes(&id), 0);
        }
    }
}

#[tokio::test]
async fn an_image_is_put_on_once() {
    let repave = Effect::Repave { image: IMAGE.into() };
    for status in [Status::Deployed, Status::Ready, Status::FailedDeployment] {
        let (desk, id) = behind(status).await;
        ask(&desk, Verb::Perform, &repave).await.unwrap();
        assert_eq!((desk.status(&id), desk.count(&id, "deploy")), (Status::Deployed, 1));
        assert!(matches!(ask(&desk, Verb::Observe, &repave).await, Ok(Answer::Done(_))));
        assert!(matches!(ask(&desk, Verb::GetStatus, &repave).await, Ok(Answer::Done(_))));
        let other = Effect::Repave { image: "custom/gpu-node".into() };
        assert!(matches!(ask(&desk, Verb::Observe, &other).await, Ok(Answer::Differs(_))));
    }
    let (desk, id) = behind(Status::Deployed).await;
    desk.mark(&id, NODE, "op-0/deploy_via_maas/1");
    let fault = ask(&desk, Verb::Perform, &repave).await.unwrap_err();
    assert_eq!((fault.code, desk.api.world().changes(&id)), (Code::StateDisagrees, 0));
    assert!(fault.said.contains("--mode reimage"), "{fault}");
    let wrong = Effect::Repave { image: "jammy".into() };
    assert_eq!(ask(&desk, Verb::Perform, &wrong).await.unwrap_err().code, Code::ImageUnknown);
}

#[tokio::test]
async fn what_somebody_has_installed_since_is_not_taken_from_him() {
    use model::effect::Key;
    use providers::state_store::{Checkpoint, ProviderStateStore};
    let (desk, id) = behind(Status::Deployed).await;
    let repave = Effect::Repave { image: IMAGE.into() };
    let asked = serde_json::json!({"what": "reinstall", "round": 1, "leg": {"letting": {"asked": {"marked": true, "at": 0}}}});
    desk.store.begin(&Key::trusted("op-1/repave/1"), &Checkpoint::Begun(asked)).await.unwrap();
    let answer = ask(&desk, Verb::GetStatus, &repave).await;
    assert!(matches!(answer, Ok(Answer::Unknown(_))), "{answer:?}");
    assert_eq!(ask(&desk, Verb::Follow, &repave).await.unwrap_err().code, Code::OutcomeUnknown);
    assert_eq!(desk.api.world().changes(&id), 0);
}

#[tokio::test]
async fn a_machine_is_looked_at_through_maas() {
    let (desk, id) = behind(Status::Deployed).await;
    desk.api.world().machines.get_mut(&id).unwrap().power = "on";
    desk.api.world().note_event(&id, "Deployed", "");
    let replica = desk.replica();
    let seen = replica.probe(&desk.target).await.unwrap();
    assert_eq!((seen[0].condition, seen[0].status), (ConditionType::BmcReachable, true));
    let inspector = replica.inspector().unwrap();
    let shown = inspector.inspect(&desk.target).await.unwrap();
    assert_eq!((shown.power, shown.inventory.disks.len()), (Some(PowerState::On), 2));
    assert_eq!(shown.inventory.nics[0].mac, crate::maas_desk::MAC);
    assert_eq!(inspector.power_now(&desk.target).await, Ok(PowerState::On));
    assert!(inspector.event_log(&desk.target, 5).await.unwrap()[0].message.contains("Deployed"));
    assert!(replica.check(&desk.target.spec).is_ok());
    for effect in [
        Effect::Netboot { mode: NetbootMode::Pxe },
        Effect::Rma { action: RmaAction::Record, power_off: PowerOffPolicy::CONFIGURED },
        Effect::Rma { action: RmaAction::Mark, power_off: PowerOffPolicy::CONFIGURED },
    ] {
        let answer = ask(&desk, Verb::Perform, &effect).await;
        assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
    }
    let ssh = Effect::Ssh { command: "true".into(), destructive: false };
    assert_eq!(ask(&desk, Verb::Perform, &ssh).await.unwrap_err().code, Code::NotSupported);
    desk.api.world().machines.clear();
    let gone = replica.probe(&desk.target).await.unwrap();
    assert_eq!((gone[0].status, gone[0].reason.as_str()), (false, "maas-machine-gone"));
}
