//! Drains that wait, are stopped or undone, or meet a server that fails.

use super::*;

/// The API server is restarted during a drain, and refuses everyone while it starts.
#[tokio::test]
async fn a_drain_outlives_a_restart_of_the_api_server() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let drained =
        tokio::spawn(
            async move { call_provider(&one, CallVerb::Perform, "drain", &drain(60)).await },
        );
    until("pods were evicted", async || site.evictions() >= 2).await;
    site.api.state.lock().starting = true;
    // The second one shows that the first was answered while the server was starting.
    let asked = |one: &&String| one.contains("/readyz");
    let readyz = async || site.api.state.lock().requests.iter().filter(asked).count() >= 2;
    until("the drain was refused", readyz).await;
    site.allow(1);
    site.api.state.lock().starting = false;
    let (answer, log) = drained.await.unwrap();
    done(answer);
    assert!(log.contains("does not count yet"), "{log}");
}

/// After a failed drain the owner uncordons the node, and cordons it again for another reason.
#[tokio::test]
async fn a_cordon_of_the_owner_is_not_inherited() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let (answer, _) = call_provider(&one, CallVerb::Perform, "drain", &drain(3)).await;
    assert_eq!(answer.unwrap_err().code, FaultCode::EvictionBlocked);
    assert_eq!(site.cordoned_by(), "op-1");
    {
        let mut env = site.api.state.lock();
        env.kubectl_cordon("n1", false);
        env.kubectl_cordon("n1", true);
    }
    assert_eq!(site.cordoned_by(), "op-1", "kubectl leaves the annotation");
    site.allow(1);
    done(call_provider(&one, CallVerb::Perform, "drain-again", &drain(30)).await.0);
    let undone =
        done(call_provider(&one, CallVerb::Perform, "undo-drain", &uncordon(true)).await.0);
    assert!(undone.message.contains("it was so before this operation"), "{undone:?}");
    assert!(site.is_cordoned(), "it belongs to the owner");
}

#[tokio::test]
async fn a_drain_waits_for_a_budget() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let drained =
        tokio::spawn(
            async move { call_provider(&one, CallVerb::Perform, "drain", &drain(60)).await },
        );
    until("pods were evicted", async || site.evictions() >= 3).await;
    let observed = call_provider(&site.replica(), CallVerb::Observe, "drain", &drain(60)).await.0;
    let left = "pods on its node in c1 that must go: 1, such as shop/db-0";
    assert_eq!(observed, Ok(ProviderAnswer::Differs(left.into())));
    site.allow(1);
    let (answer, log) = drained.await.unwrap();
    done(answer);
    // An unchanged obstacle is logged once.
    assert_eq!(log.matches("shop/db-0 may not go yet").count(), 1, "{log}");
    assert!(log.contains("db-budget needs 2 healthy pods"), "{log}");
}

#[tokio::test]
async fn a_budget_that_never_allows_it_is_named() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    let (answer, _) = call_provider(&site.replica(), CallVerb::Perform, "drain", &drain(4)).await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code, FaultCode::EvictionBlocked, "{fault}");
    for words in ["`n1`", "shop/db-0", "db-budget needs 2 healthy pods"] {
        assert!(fault.message.contains(words), "{words}: {fault}");
    }
    assert!(site.is_cordoned(), "no pod is scheduled to it meanwhile");
    assert!(site.pods().contains(&"shop/db-0".to_string()), "no pod is deleted by force");
}

/// The process crashes while it waits for a budget, and another continues from what the node shows.
#[tokio::test]
async fn another_replica_continues_after_a_crash() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let killed =
        tokio::spawn(
            async move { call_provider(&one, CallVerb::Perform, "drain", &drain(60)).await },
        );
    until("pods were evicted", async || site.evictions() >= 2).await;
    killed.abort();
    let _ = killed.await;
    site.allow(1);
    let other = site.replica();
    assert_eq!(
        call_provider(&other, CallVerb::GetStatus, "drain", &drain(60)).await.0,
        Ok(ProviderAnswer::UnderWay)
    );
    let (answer, log) = call_provider(&other, CallVerb::Follow, "drain", &drain(60)).await;
    done(answer);
    assert!(!log.contains("web-0") && log.contains("db-0"), "only what was left: {log}");
}

#[tokio::test]
async fn a_stop_ends_the_evictions_and_leaves_the_cordon() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let drained =
        tokio::spawn(
            async move { call_provider(&one, CallVerb::Perform, "drain", &drain(60)).await },
        );
    until("pods were evicted", async || site.evictions() >= 2).await;
    let other = site.replica();
    assert_eq!(
        call_provider(&other, CallVerb::Stop, "drain", &drain(60)).await.0,
        Ok(ProviderAnswer::Stopped)
    );
    site.allow(1);
    let fault = drained.await.unwrap().0.unwrap_err();
    assert!(fault.message.contains("was stopped"), "{fault}");
    let evicted = site.evictions();
    for verb in [CallVerb::Perform, CallVerb::Follow] {
        let fault = call_provider(&other, verb, "drain", &drain(60)).await.0.unwrap_err();
        assert_eq!(fault.code, FaultCode::EffectFailed, "{verb:?}: {fault}");
    }
    let status = call_provider(&other, CallVerb::GetStatus, "drain", &drain(60)).await.0;
    assert!(matches!(status, Ok(ProviderAnswer::Unknown(_))), "{status:?}");
    assert_eq!(
        call_provider(&other, CallVerb::Stop, "drain", &drain(60)).await.0,
        Ok(ProviderAnswer::Stopped)
    );
    assert_eq!(site.evictions(), evicted);
    assert!(site.is_cordoned());
    // A key that was stopped before it began never begins.
    assert_eq!(
        call_provider(&other, CallVerb::Stop, "late", &drain(60)).await.0,
        Ok(ProviderAnswer::Stopped)
    );
    let fault = call_provider(&other, CallVerb::Perform, "late", &drain(60)).await.0.unwrap_err();
    assert!(fault.message.contains("stopped before it began"), "{fault}");
    assert_eq!(
        call_provider(&other, CallVerb::GetStatus, "late", &drain(60)).await.0,
        Ok(ProviderAnswer::NeverStarted)
    );
}

#[tokio::test]
async fn an_undo_reverts_only_what_the_run_did() {
    let site = NodeFixture::start().await;
    let one = site.replica();
    done(call_provider(&one, CallVerb::Perform, "drain", &drain(30)).await.0);
    let differs = call_provider(&one, CallVerb::Observe, "undo-drain", &uncordon(true)).await.0;
    assert_eq!(differs, Ok(ProviderAnswer::Differs("its node in c1 is cordoned".into())));
    let released =
        done(call_provider(&one, CallVerb::Perform, "undo-drain", &uncordon(true)).await.0);
    let open = [(InCustomerCluster, true, "Joined:c1"), (Drained, false, "Schedulable")];
    assert_eq!(evidence(&released), open);
    assert!(!site.is_cordoned() && site.cordoned_by().is_null(), "{}", site.node());

    // The owner has cordoned it: neither a drain nor its undo changes that.
    site.api.state.lock().add_node(node(json!({ "unschedulable": true })));
    done(call_provider(&one, CallVerb::Perform, "drain-2", &drain(30)).await.0);
    assert!(site.cordoned_by().is_null());
    let stored =
        done(call_provider(&one, CallVerb::Perform, "undo-drain-2", &uncordon(true)).await.0);
    assert!(stored.message.contains("it was so before this operation"), "{stored:?}");
    assert!(site.is_cordoned());
    // An explicit uncordon removes it.
    let (other, effect) = (site.replica(), uncordon(false));
    let released = done(call_provider(&other, CallVerb::Perform, "uncordon", &effect).await.0);
    assert_eq!(evidence(&released), open);
    assert_eq!(
        call_provider(&other, CallVerb::GetStatus, "uncordon", &effect).await.0,
        Ok(ProviderAnswer::UnderWay)
    );
    done(call_provider(&other, CallVerb::Follow, "uncordon", &effect).await.0);
    assert_eq!(
        call_provider(&other, CallVerb::Stop, "stopped", &effect).await.0,
        Ok(ProviderAnswer::Stopped)
    );
    let fault = call_provider(&other, CallVerb::Perform, "stopped", &effect).await.0.unwrap_err();
    assert!(fault.message.contains("stopped before it began"), "{fault}");
}

#[tokio::test]
async fn a_short_cluster_outage_is_retried() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.api.trouble(Method::GET, Trouble::Status(503), 2);
    let (answer, log) =
        call_provider(&site.replica(), CallVerb::Perform, "drain", &drain(60)).await;
    done(answer);
    assert_eq!(log.matches("asking again").count(), 1, "it is logged once: {log}");
    // A lasting outage is a fault of the cluster, and certainly nothing happened.
    site.api.trouble(Method::GET, Trouble::Status(503), 100);
    let fault =
        call_provider(&site.replica(), CallVerb::Perform, "again", &drain(3)).await.0.unwrap_err();
    assert_eq!(fault.code, FaultCode::ClusterUnreachable, "{fault}");
}

/// A machine that returns to its vendor is often broken, and no kubelet confirms that a pod has
/// ended.
#[tokio::test]
async fn pods_of_a_broken_node_do_not_block_for_ever() {
    let site = NodeFixture::start().await;
    {
        let mut env = site.api.state.lock();
        let gone = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        env.add_pod("shop/lost-0", gone);
        env.stubborn.insert("shop/lost-0".into());
    }
    // While the node is ready, a pod that does not end blocks the drain.
    let one = site.replica();
    let fault = call_provider(&one, CallVerb::Perform, "ready", &drain(3)).await.0.unwrap_err();
    assert_eq!(fault.code, FaultCode::EvictionBlocked, "{fault}");
    assert!(fault.message.contains("shop/lost-0 (should have been gone"), "{fault}");
    let mut broken = site.node();
    broken["status"]["conditions"][0]["status"] = json!("Unknown");
    site.api.state.lock().add_node(broken);
    let outcome = done(call_provider(&one, CallVerb::Perform, "broken", &drain(30)).await.0);
    assert!(outcome.message.contains("not ready"), "{outcome:?}");
    assert!(evidence(&outcome).contains(&(Drained, true, "Evicted")), "{outcome:?}");
    done(call_provider(&one, CallVerb::Observe, "broken", &drain(30)).await.0);
    // A pod that was just evicted still gets its grace period.
    site.api
        .state
        .lock()
        .add_pod("shop/new-0", json!({ "spec": { "terminationGracePeriodSeconds": 600 } }));
    let fault = call_provider(&one, CallVerb::Perform, "new", &drain(3)).await.0.unwrap_err();
    assert!(fault.message.contains("shop/new-0") && !fault.message.contains("lost-0"), "{fault}");
}
