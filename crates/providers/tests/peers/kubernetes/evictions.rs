//! Evictions: what must go, budgets, refusals, and the preview of a drain.

use super::*;

fn app(name: &str) -> Value {
    json!({ "metadata": { "labels": { "app": name } } })
}

#[tokio::test]
async fn a_node_is_emptied_page_by_page_of_what_must_go() {
    let (api, cluster) = start().await;
    {
        let mut env = api.state.lock();
        for n in 0..450 {
            env.add_pod(&format!("shop/web-{n:03}"), json!({}));
        }
        let owner = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true });
        env.add_pod("kube-system/daemon", json!({ "metadata": { "ownerReferences": [owner] } }));
        env.add_pod(
            "kube-system/mirror",
            json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } }),
        );
        env.add_pod("shop/finished", json!({ "status": { "phase": "Succeeded" } }));
        env.add_pod("shop/elsewhere", json!({ "spec": { "nodeName": "n2" } }));
    }
    let mut reported = 0;
    let pass = cluster
        .evict_all("n1", &DrainOptions::default(), |step| {
            reported += usize::from(matches!(step, PodEviction::Evicted(_)))
        })
        .await
        .unwrap();
    assert_eq!((pass.waiting.len(), pass.left_alone, reported), (450, 3, 450));
    let lists = api
        .state
        .lock()
        .requests
        .iter()
        .filter(|request| request.starts_with("GET /api/v1/pods"))
        .count();
    assert_eq!(lists, 3, "450 pods and 3 are three pages of 200");
    let pass = empty(&cluster).await;
    assert_eq!((pass.left_alone, pass.fault("n1")), (3, None));
    let left: BTreeSet<String> = api.state.lock().pods.keys().cloned().collect();
    let stored = ["kube-system/daemon", "kube-system/mirror", "shop/elsewhere", "shop/finished"];
    assert_eq!(left, stored.map(str::to_owned).into());
}

/// Repeats passes until nothing is left to evict.
async fn empty(cluster: &Cluster) -> providers::kubernetes::EvictionPass {
    let started = Instant::now();
    loop {
        let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
        if pass.is_done() {
            return pass;
        }
        assert!(started.elapsed() < DEADLINE, "{pass:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_disruption_budget_is_waited_for() {
    let (api, cluster) = start().await;
    {
        let mut env = api.state.lock();
        env.budgets.push(Budget { name: "db-budget", app: "db", allowed: 1 });
        for n in 1..=3 {
            env.add_pod(&format!("shop/db-{n}"), app("db"));
        }
        env.add_pod("shop/free", json!({}));
    }
    let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
    assert_eq!((pass.waiting.len(), pass.blocked.len()), (2, 2));
    let fault = pass.fault("n1").unwrap();
    assert_eq!(fault.code, FaultCode::EvictionBlocked);
    assert!(
        fault.message.contains("shop/db-2")
            && fault.message.contains("db-budget needs 2 healthy pods"),
        "{fault}"
    );
    // The application becomes healthy elsewhere, one pod at a time.
    let mut blocked = pass.blocked.len();
    while blocked > 0 {
        api.state.lock().budgets[0].allowed = 1;
        let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
        assert!(pass.blocked.len() < blocked, "{pass:?}");
        blocked = pass.blocked.len();
    }
    empty(&cluster).await;
    assert!(api.state.lock().pods.is_empty());
}

#[tokio::test]
async fn a_replaced_pod_is_not_evicted() {
    let (api, cluster) = start().await;
    api.state.lock().add_pod("shop/db-0", json!({}));
    api.trouble(Method::POST, Trouble::Race, 1);
    let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
    assert!(!pass.is_done(), "the next pass sees the new pod of that name");
    let pod = api.state.lock().pods["shop/db-0"].clone();
    assert!(pod["metadata"].get("deletionTimestamp").is_none(), "{pod}");
    empty(&cluster).await;
    assert!(api.state.lock().pods.is_empty());
}

#[tokio::test]
async fn two_budgets_for_one_pod_block_it_alone() {
    let (api, cluster) = start().await;
    {
        let mut env = api.state.lock();
        env.budgets.push(Budget { name: "one", app: "db", allowed: 9 });
        env.budgets.push(Budget { name: "two", app: "db", allowed: 9 });
        env.add_pod("shop/db", app("db"));
        env.add_pod("shop/web", json!({}));
    }
    let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
    assert_eq!((pass.waiting.len(), pass.blocked.len()), (1, 1));
    assert!(pass.blocked[0].message.contains("more than one PodDisruptionBudget"), "{pass:?}");
}

#[tokio::test]
async fn a_pod_that_ignores_its_grace_period_is_named() {
    let (api, cluster) = start().await;
    {
        let mut env = api.state.lock();
        env.add_pod("shop/deaf", json!({}));
        env.stubborn.insert("shop/deaf".into());
    }
    let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
    assert_eq!(pass.waiting.len(), 1);
    let started = Instant::now();
    let late = loop {
        let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
        assert!(!pass.is_done(), "the pod does not end");
        if pass.waiting[0].overdue_s > 0 {
            break pass;
        }
        assert!(started.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let fault = late.fault("n1").unwrap();
    assert_eq!(fault.code, FaultCode::EvictionBlocked);
    assert!(fault.message.contains("shop/deaf (should have been gone"), "{fault}");
    let evictions =
        api.state.lock().requests.iter().filter(|request| request.contains("/eviction")).count();
    assert_eq!(evictions, 1, "a terminating pod is not evicted again");
}

#[tokio::test]
async fn a_refused_pod_blocks_itself_alone() {
    let (api, cluster) = start().await;
    let denied = [
        ("policy", Admission::Policy),
        ("forbidden", Admission::ForbiddingPolicy),
        ("webhook", Admission::Webhook(403)),
        ("careless", Admission::Webhook(400)),
    ];
    {
        let mut env = api.state.lock();
        env.admission = denied.to_vec();
        for (name, _) in denied {
            env.add_pod(&format!("shop/{name}-0"), app(name));
        }
        env.terminating.insert("old".into());
        env.add_pod("old/job-0", json!({}));
        env.add_pod("shop/web-0", json!({}));
    }
    let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
    let blocked: BTreeMap<String, String> =
        pass.blocked.iter().map(|one| (one.pod.to_string(), one.message.clone())).collect();
    for (pod, why) in [
        ("shop/policy-0", "ValidatingAdmissionPolicy 'keep'"),
        ("shop/forbidden-0", "ValidatingAdmissionPolicy 'keep'"),
        ("shop/webhook-0", "admission webhook \"keep.example\" denied the request"),
        ("shop/careless-0", "admission webhook \"keep.example\" denied the request"),
        ("old/job-0", "namespace old because it is being terminated"),
    ] {
        assert!(blocked[pod].contains(why), "{pod}: {}", blocked[pod]);
    }
    assert_eq!((blocked.len(), pass.waiting.len()), (5, 1), "{pass:?}");
    // The namespace's own deletion ends its pods, and the rules are lifted.
    api.state.lock().terminating.clear();
    api.state.lock().admission.clear();
    empty(&cluster).await;
    assert!(api.state.lock().pods.is_empty());
}

/// As `kubectl drain` has it: such pods stop a drain before any pod is evicted.
#[tokio::test]
async fn pods_that_would_be_lost_are_evicted_only_when_told_to() {
    let (api, cluster) = start().await;
    let lonely = json!({ "metadata": { "ownerReferences": null } });
    let scratch = json!({ "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } });
    {
        let mut env = api.state.lock();
        env.add_pod("shop/lonely", lonely);
        env.add_pod("shop/scratch", scratch);
        env.add_pod("shop/web", app("web"));
    }
    let pass = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap();
    let fault = pass.fault("n1").unwrap();
    for words in [
        "shop/lonely (no controller replaces it; --drain-unmanaged-pods",
        "shop/scratch (its emptyDir data would be lost; --drain-emptydir",
    ] {
        assert!(fault.message.contains(words), "{words}: {fault}");
    }
    let evictions = || {
        let env = api.state.lock();
        env.requests.iter().filter(|request| request.contains("/eviction")).count()
    };
    assert_eq!(evictions(), 0);
    let only_emptydir = DrainOptions { emptydir: true, ..DrainOptions::default() };
    let pass = cluster.evict_all("n1", &only_emptydir, |_| {}).await.unwrap();
    assert_eq!((pass.refused.len(), evictions()), (1, 0), "{pass:?}");
    // A selector that matches none of them leaves them alone.
    let web = DrainOptions { selector: "app=web".into(), ..DrainOptions::default() };
    let pass = cluster.evict_all("n1", &web, |_| {}).await.unwrap();
    assert_eq!((pass.waiting.len(), evictions()), (1, 1), "{pass:?}");
    let all = DrainOptions { grace_seconds: Some(600), ..DrainOptions::ALL_PODS };
    let pass = cluster.evict_all("n1", &all, |_| {}).await.unwrap();
    assert_eq!(pass.waiting.len(), 2, "{pass:?}");
    let due = api.state.lock().pods["shop/lonely"]["metadata"]["deletionTimestamp"].clone();
    let due: jiff::Timestamp = due.as_str().unwrap().parse().unwrap();
    assert!(due > jiff::Timestamp::now() + Duration::from_secs(300), "its grace period is ours");
}

#[tokio::test]
async fn a_preview_asks_the_server_and_changes_nothing() {
    let (api, cluster) = start().await;
    {
        let mut env = api.state.lock();
        env.budgets.push(Budget { name: "db-budget", app: "db", allowed: 0 });
        env.budgets.push(Budget { name: "web-budget", app: "web", allowed: 1 });
        env.add_pod("shop/db", app("db"));
        env.add_pod("shop/web", app("web"));
        env.add_pod("shop/lonely", json!({ "metadata": { "ownerReferences": null } }));
        env.add_pod("shop/done", json!({ "status": { "phase": "Succeeded" } }));
        let going = json!({ "metadata": { "deletionTimestamp": "2100-01-01T00:00:00Z" } });
        env.add_pod("shop/going", going);
    }
    let before = api.state.lock().pods.clone();
    let pods = cluster.preview_drain("n1", &DrainOptions::default()).await.unwrap();
    let found: BTreeMap<String, PodDecision> =
        pods.into_iter().map(|one| (one.pod.to_string(), one.decision)).collect();
    assert_eq!(found["shop/web"], PodDecision::Evict);
    assert_eq!(found["shop/done"], PodDecision::Stay);
    assert_eq!(found["shop/going"], PodDecision::Terminating);
    let blocked =
        matches!(&found["shop/db"], PodDecision::Blocked(why) if why.contains("db-budget"));
    assert!(blocked, "{found:?}");
    assert!(matches!(&found["shop/lonely"], PodDecision::Refused(_)), "{found:?}");
    let budgets = cluster.budgets().await.unwrap();
    let allowed: Vec<(&str, i32)> =
        budgets.iter().map(|one| (one.name.as_str(), one.disruptions_allowed)).collect();
    assert_eq!(allowed, [("db-budget", 0), ("web-budget", 1)]);
    assert_eq!(api.state.lock().pods, before);
}
