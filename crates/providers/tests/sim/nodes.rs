//! The machine as a node of a cluster: join, drain, cordon.

use super::*;
use model::id::{NodeId, SiteId};
use model::machine::Labels;
use model::node::MaasState;
use model::site::{Site, SiteSpec};
use providers::SiteNode;

#[tokio::test]
async fn a_node_has_what_its_join_gave_it() {
    let sim = Sim::in_ram(Speed::Zero);
    let taint = Taint { key: "gpu".into(), value: String::new(), effect: TaintEffect::NoSchedule };
    let dressed = Effect::Join {
        cluster_ref: "c1".into(),
        labels: NodeLabels::from([("zone".into(), "a".into())]),
        taints: vec![taint],
        kubeadm: Default::default(),
    };
    perform(&sim, "plain", join("c1")).await.unwrap();
    let observed = answer(&sim, CallVerb::Observe, "look", dressed.clone()).await;
    assert_eq!(observed, Ok(ProviderAnswer::Differs("the node has other labels or taints".into())));
    perform(&sim, "dressed", dressed.clone()).await.unwrap();
    let observed = answer(&sim, CallVerb::Observe, "look", dressed).await;
    assert!(matches!(observed, Ok(ProviderAnswer::Done(_))), "{observed:?}");
}

/// A drain begins with a cordon, continues without polls, and keeps its progress when it is
/// stopped.
#[tokio::test]
async fn a_drain_takes_its_time() {
    let (_dir, memories) = memories();
    for memory in memories {
        let call = ManualClock::new();
        let instant = Sim::new(memory.clone(), Speed::Zero);
        perform(&instant, "join", join("c1")).await.unwrap();
        let sim = call.sim(&memory);
        let observe = || async {
            match answer(&sim, CallVerb::Observe, "look", drain()).await.unwrap() {
                ProviderAnswer::Differs(observed) => observed,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(observe().await, "the node still takes work");
        begin_and_crash(&sim, &order(CallVerb::Perform, "drain", drain())).await;
        assert_eq!(observe().await, "the node is cordoned, and 4 pods are still on it");
        call.advance(3_000);
        assert_eq!(
            answer(&sim, CallVerb::Stop, "drain", drain()).await,
            Ok(ProviderAnswer::Stopped)
        );
        call.advance(60_000);
        assert_eq!(observe().await, "the node is cordoned, and 2 pods are still on it");
        perform(&instant, "again", drain()).await.unwrap();
        let observed = answer(&sim, CallVerb::Observe, "look", drain()).await;
        assert!(matches!(observed, Ok(ProviderAnswer::Done(_))), "{observed:?}");
    }
}

/// A cancel undoes only what this run did.
#[tokio::test]
async fn a_cordon_of_another_run_is_not_undone() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "join", join("c1")).await.unwrap();
    perform(&sim, "owner", ssh("kubectl cordon m-1")).await.unwrap();
    perform(&sim, "drain", drain()).await.unwrap();
    let stored = perform(&sim, "undo-drain", uncordon(true)).await.unwrap();
    assert!(stored.message.contains("stays cordoned"), "{stored:?}");
    assert_eq!(evidence(&stored), [(Drained, true, "Evicted")]);
    perform(&sim, "exit", uncordon(false)).await.unwrap();
    perform(&sim, "drain-2", drain()).await.unwrap();
    let released = perform(&sim, "undo-drain-2", uncordon(true)).await.unwrap();
    assert_eq!(evidence(&released), [(Drained, false, "Schedulable")]);
}

/// A budget that allows nothing is a fault rule like any other, and leaves the node cordoned.
#[tokio::test]
async fn a_budget_blocks_by_a_rule() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "join", join("c1")).await.unwrap();
    let rule = FaultRule {
        effect: "drain".into(),
        times: 1,
        message: "shop/db-0 (needs 2 healthy pods and has 2)".into(),
        ..FaultRule::new(Action::Fail)
    };
    sim.add_fault(rule).unwrap();
    let fault = perform(&sim, "drain", drain()).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EvictionBlocked);
    assert!(fault.message.contains("`m-1`") && fault.message.contains("shop/db-0"), "{fault}");
    let observed =
        answer(&sim, CallVerb::Observe, "look", verify(ClusterExpectation::Drained, false)).await;
    let differs = matches!(&observed, Ok(ProviderAnswer::Differs(text)) if text.contains("pods"));
    assert!(differs, "a cordoned node is not drained: {observed:?}");
    perform(&sim, "again", drain()).await.unwrap();
}

#[tokio::test]
async fn a_machine_without_a_cluster_needs_no_drain() {
    let sim = Sim::in_ram(Speed::Zero);
    let nowhere = Effect::Drain {
        cluster_ref: String::new(),
        deadline_seconds: Some(60),
        options: Default::default(),
    };
    for (step, effect) in [("any", nowhere), ("other", drain()), ("back", uncordon(false))] {
        let done = perform(&sim, step, effect).await.unwrap();
        assert!(done.message.contains("in no cluster"), "{done:?}");
        assert_eq!(evidence(&done), [(Drained, true, "NotInCluster")], "{step}");
    }
}

/// MAAS knows the power only of machines that it has.
#[tokio::test]
async fn the_power_of_a_machine_that_maas_has_not_is_unknown() {
    let sim = Sim::in_ram(Speed::Zero);
    let (site, labels) = (SiteId::trusted("site-1"), Labels::new());
    let site = Site::new(&site, SiteSpec::default(), labels, Timestamp::default());
    let node = SiteNode {
        id: NodeId::trusted("node-1"),
        machine: MachineId::trusted("m-1"),
        system_id: String::new(),
    };
    let observed = sim.observe_site(&site, &[node]).await.unwrap();
    let upstream = &observed.machines[0].upstream;
    assert_eq!((upstream.state, upstream.powered_on), (MaasState::Absent, None));
}
