//! Filters, on every list, by every field and every operator, on both databases.

use crate::api::{
    TestServer, fault, field_of, labelled, on_both, page, plan, reboot, refused, step,
};
use crate::fleet::Clients;
use proto::v1;
use std::collections::BTreeSet;
use tonic::Code::InvalidArgument;

async fn ids(api: &mut Clients, list: &str, filter: &str) -> BTreeSet<String> {
    let answer = page(api, list, (filter, 1_000, "")).await;
    let (ids, next) = answer.unwrap_or_else(|status| panic!("{filter}: {}", status.message()));
    assert_eq!(next, "");
    ids.into_iter().collect()
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(String::from).collect()
}

/// Checks that `field=value` finds exactly these, and that the other operators agree.
async fn check(api: &mut Clients, list: &str, (field, value): (&str, &str), expected: &str) {
    let all = ids(api, list, "").await;
    let expected = words(expected);
    let others: BTreeSet<String> = all.difference(&expected).cloned().collect();
    for (filter, expected) in [
        (format!("{field}={value}"), &expected),
        (format!("{field} = \"{value}\""), &expected),
        (format!("{field} in ({value})"), &expected),
        (format!("{field}!={value}"), &others),
        (format!("{field} not in ( {value} )"), &others),
        (format!("{field}={value} AND {field}!={value}"), &BTreeSet::new()),
    ] {
        assert_eq!(ids(api, list, &filter).await, *expected, "{list}: {filter}");
    }
}

/// Creates one machine in every state.
async fn fleet(api: &mut Clients) {
    api.fault(fault("dark*", "probe", "fail", 0)).await;
    api.fault(fault("busy*", "reboot", "hang", 0)).await;
    api.fault(fault("failed*", "reboot", "fail", 0)).await;
    let flags = [("env", "prod"), ("app.example.com/name", "web"), ("42", "x y")];
    api.settled(labelled("new", &flags)).await;
    for (id, env) in [("maint", "stage"), ("busy", "prod"), ("failed", "prod")] {
        api.settled(labelled(id, &[("env", env)])).await;
        api.done(id, "ENTER_MAINTENANCE", "enter").await;
    }
    api.in_service("served").await;
    let mut plain = labelled("plain", &[]);
    plain.spec.as_mut().unwrap().target_cluster_ref = String::new();
    api.settled(plain).await;
    for kind in ["ENTER_MAINTENANCE", "EXIT_MAINTENANCE"] {
        api.done("plain", kind, kind).await;
    }
    for id in ["rma", "retired"] {
        api.settled(labelled(id, &[])).await;
    }
    let (machine_id, reason) = ("rma".to_string(), "fan".to_string());
    api.admin
        .set_rma(v1::SetRmaRequest { machine_id, reason, ..Default::default() })
        .await
        .unwrap();
    let (machine_id, reason) = ("retired".to_string(), "old".to_string());
    api.admin
        .set_retired(v1::SetRetiredRequest { machine_id, reason, ..Default::default() })
        .await
        .unwrap();
    api.put(labelled("dark", &[])).await;
    api.machine_until("dark", |machine| !crate::api::conditions(machine).is_empty()).await;
    let run = api.start("failed", "REBOOT", "broken").await.run_id;
    api.finished(&run).await;
    let run = api.start("busy", "REBOOT", "stuck").await.run_id;
    api.at_step(&run, "reboot").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_found_by_every_field() {
    on_both("zero", machines).await;
}

async fn machines(_world: &TestServer, mut api: Clients) {
    fleet(&mut api).await;
    for (field, value, expected) in [
        ("machine_id", "new", "new"),
        ("machine_id", "nobody", ""),
        ("phase", "FACTORY_READY", "new rma retired dark"),
        ("phase", "READY", "served plain"),
        ("phase", "maintenance", "maint busy failed"),
        // The values that are no phases select by lifecycle state (rule 21).
        ("phase", "PROVISIONING", "busy"),
        ("phase", "IN_SERVICE", "served"),
        ("phase", "RMA", "rma"),
        ("phase", "RETIRED", "retired"),
        ("effective_state", "NEW", "new dark"),
        ("effective_state", "IDLE", "served plain"),
        ("effective_state", "BUSY", "busy"),
        ("effective_state", "MAINTENANCE", "maint"),
        ("effective_state", "ATTENTION", "failed"),
        ("effective_state", "BLOCKED", "rma retired"),
        ("lifecycle_state", "FACTORY_READY", "new dark"),
        ("lifecycle_state", "READY", "plain"),
        ("lifecycle_state", "PROVISIONING", "busy"),
        ("lifecycle_state", "IN_SERVICE", "served"),
        ("lifecycle_state", "MAINTENANCE", "maint failed"),
        ("lifecycle_state", "RMA", "rma"),
        ("lifecycle_state", "RETIRED", "retired"),
        ("provider", "other", ""),
        ("labels.env", "prod", "new busy failed"),
        ("labels.env", "PROD", ""),
        ("labels.app.example.com/name", "web", "new"),
        ("condition.Reachable", "false", "dark"),
        ("condition.BMCReachable", "false", "dark"),
        ("condition.Provisioned", "true", "served"),
        ("condition.InCustomerCluster", "true", "served"),
        ("condition.Drained", "true", "maint busy failed"),
        ("condition.Degraded", "true", "dark"),
        ("condition.NeedsIntervention", "true", "failed"),
        ("condition.OperationCanceled", "true", ""),
        ("condition.RMA", "true", "rma"),
        ("condition.Retired", "TRUE", "retired"),
    ] {
        check(&mut api, "machines", (field, value), expected).await;
    }
    for (filter, expected) in [
        ("", "new maint busy failed served plain rma retired dark"),
        ("labels.42=\"x y\"", "new"),
        ("labels.env", "new maint busy failed"),
        ("phase in (READY, MAINTENANCE) AND labels.env in (prod,stage)", "maint busy failed"),
        ("phase in (IN_SERVICE, MAINTENANCE, RMA)", "served maint busy failed rma"),
        ("phase not in (IN_SERVICE, MAINTENANCE, RMA)", "new plain retired dark"),
        ("phase=MAINTENANCE and effective_state!=BUSY and labels.env=prod", "failed"),
        ("labels.env!=prod AND phase=FACTORY_READY", "rma retired dark"),
        ("machine_id in (new, \"busy\", nobody)", "new busy"),
        ("labels.env=\"it's \\\"quoted\\\"; DROP TABLE machines\"", ""),
    ] {
        assert_eq!(ids(&mut api, "machines", filter).await, words(expected), "{filter}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_and_operations_are_found_by_every_field() {
    on_both("zero", runs).await;
}

async fn runs(_world: &TestServer, mut api: Clients) {
    fleet(&mut api).await;
    let canceled = api.start("busy", "REBOOT", "stuck").await.run_id;
    api.cancel(&canceled).await.unwrap();
    api.finished(&canceled).await;
    let stuck = api.start("busy", "REBOOT", "stuck-2").await.run_id;
    api.at_step(&stuck, "reboot").await;
    let all = api.list_runs("").await;
    let select = |pick: &dyn Fn(&v1::Run) -> bool| -> String {
        let found = all.iter().filter(|run| pick(run)).map(|run| run.run_id.clone());
        found.collect::<Vec<_>>().join(" ")
    };
    let of = |machines: &str| {
        let machines = words(machines);
        select(&|run| machines.contains(&run.machine_id))
    };
    let kind = |kind: &str| select(&|run| run.r#type == kind);
    let table = [
        ("run_id", stuck.as_str(), stuck.clone()),
        ("operation_id", stuck.as_str(), stuck.clone()),
        ("machine_id", "served", of("served")),
        ("target_id", "served", of("served")),
        ("target_kind", "machine", select(&|_| true)),
        ("target_kind", "rack", String::new()),
        ("initiator", "admin", select(&|_| true)),
        ("initiator", "ada", String::new()),
        ("part_of", "op-none", String::new()),
        ("rack_id", "rack-none", String::new()),
        ("rack", "rack-none", String::new()),
        ("type", "REPAVE", kind("REPAVE")),
        ("type", "reimage", kind("REPAVE")),
        ("type", "ENTER_MAINTENANCE", kind("ENTER_MAINTENANCE")),
        ("type", "EXIT_MAINTENANCE", kind("EXIT_MAINTENANCE")),
        ("type", "UPGRADE", String::new()),
        ("phase", "PENDING", String::new()),
        ("phase", "RUNNING", stuck.clone()),
        ("phase", "FAILED", select(&|run| run.request_id == "broken")),
        ("phase", "CANCELED", canceled.clone()),
        ("phase", "SUCCEEDED", select(&|run| run.phase() == v1::run::Phase::Succeeded)),
        ("workflow_state", "cancelled", canceled.clone()),
        ("workflow_state", "FAILED_RETRYABLE", select(&|run| run.request_id == "broken")),
        ("plan_id", "plan-repave-v1", kind("REPAVE")),
        ("request_id", "stuck-2", stuck.clone()),
        ("machine_phase", "READY", of("served plain")),
        ("machine_phase", "IN_SERVICE", of("served")),
        ("machine_phase", "PROVISIONING", of("busy")),
        ("effective_state", "ATTENTION", of("failed")),
        ("lifecycle_state", "PROVISIONING", of("busy")),
        ("provider", "sim", of("maint busy failed served plain")),
        ("labels.env", "stage", of("maint")),
        ("condition.NeedsIntervention", "true", of("failed")),
        ("condition.InCustomerCluster", "true", of("served")),
    ];
    for list in ["runs", "operations"] {
        for (field, value, expected) in &table {
            check(&mut api, list, (field, value), expected).await;
        }
        let newest = all.iter().find(|run| run.run_id == stuck).unwrap().created_at.unwrap();
        for (filter, expected) in [
            ("part_of=\"\"".to_string(), select(&|_| true)),
            ("labels.env".to_string(), of("maint busy failed")),
            (format!("created_at>={newest}"), stuck.clone()),
            (format!("created_at < {newest}"), select(&|run| run.run_id != stuck)),
            ("created_at>=1970-01-01".to_string(), select(&|_| true)),
            ("created_at<1970-01-01".to_string(), String::new()),
        ] {
            assert_eq!(ids(&mut api, list, &filter).await, words(&expected), "{filter}");
        }
        let filter = "type in (REBOOT, REPAVE) AND phase!=SUCCEEDED AND labels.env=prod";
        let expected = [stuck.clone(), canceled.clone(), select(&|run| run.request_id == "broken")];
        assert_eq!(ids(&mut api, list, filter).await, expected.into_iter().collect());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_found_by_id_and_type() {
    on_both("zero", plans).await;
}

async fn plans(_world: &TestServer, mut api: Clients) {
    api.try_plan(plan("mine", vec![step("a", reboot())])).await.unwrap();
    check(&mut api, "plans", ("plan_id", "mine"), "mine").await;
    check(&mut api, "plans", ("plan_id", "plan-rma-v1"), "plan-rma-v1").await;
    check(&mut api, "plans", ("type", "REPAVE"), "plan-repave-v1").await;
    check(&mut api, "plans", ("type", "REIMAGE"), "plan-repave-v1").await;
    let filter = "plan_id in (mine, plan-reboot-v1) AND type!=REBOOT";
    assert_eq!(ids(&mut api, "plans", filter).await, words("mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_filter_is_pointed_at() {
    let (_world, mut api) = TestServer::open("zero").await;
    for (list, filter, position) in [
        ("machines", "colour=red", 1),
        ("machines", "phase=READY AND colour=red", 17),
        ("machines", "type=REBOOT", 1),
        ("machines", "phase=SUCCEEDED", 7),
        ("machines", "phase>READY", 6),
        ("machines", "phase=READY OR phase=MAINTENANCE", 13),
        ("machines", "condition.Happy=true", 11),
        ("machines", "condition.Reachable=maybe", 21),
        ("machines", "labels.env=\"prod", 12),
        ("machines", "labels.ä=ü AND phase=☃", 22),
        ("runs", "phase=READY", 7),
        ("runs", "type=DANCE", 6),
        ("runs", "type in (REBOOT", 16),
        ("operations", "type in REBOOT", 9),
        ("operations", "operation_id", 13),
        ("operations", "created_at=2026-01-31", 11),
        ("operations", "created_at>=yesterday", 13),
        ("operations", "created_at<2026-02-30", 12),
        ("operations", "target_kind=site", 13),
        ("operations", "workflow_state=happy", 16),
        ("plans", "machine_id=m-1", 1),
        ("plans", "type=REBOOT AND", 16),
    ] {
        let answer = page(&mut api, list, (filter, 0, "")).await;
        let place_said = format!("at character {position}:");
        let status = refused(answer, InvalidArgument, &["filter", &place_said]);
        assert_eq!(field_of(&status), "filter");
        let lines: Vec<&str> = status.message().lines().collect();
        let [.., shown, caret] = lines[..] else { panic!("{}", status.message()) };
        assert_eq!(shown, format!("  {filter}"));
        assert_eq!(caret.chars().count(), 2 + position, "{shown}\n{caret}");
        assert!(caret.ends_with('^'), "{caret}");
    }
    let many = vec!["machine_id=a"; 33].join(" AND ");
    let values = vec!["a"; 101].join(",");
    let values = format!("machine_id in ({values})");
    let nested = "machine_id in ".to_string() + &"(".repeat(4_000);
    for filter in [many, values, nested] {
        let answer = page(&mut api, "machines", (&filter, 0, "")).await;
        refused(answer, InvalidArgument, &["filter"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_characters_in_a_filter_are_refused() {
    on_both("zero", control_characters).await;
}

async fn control_characters(_world: &TestServer, mut api: Clients) {
    for filter in ["machine_id=\"\u{0}\"", "labels.env=\"a\u{0}\"", "machine_id in (\"\u{7}\")"] {
        refused(page(&mut api, "machines", (filter, 0, "")).await, InvalidArgument, &["filter"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_an_order_and_its_tokens_fit_no_other() {
    on_both("zero", ordered).await;
}

async fn ordered(_world: &TestServer, mut api: Clients) {
    for id in ["m-2", "m-3", "m-1"] {
        api.register(id).await;
    }
    let list = |order_by: &str, page_size: i32, page_token: &str| v1::ListMachinesRequest {
        filter: "provider=sim".into(),
        page_size,
        page_token: page_token.into(),
        order_by: order_by.into(),
    };
    for (order_by, expected) in [
        ("", ["m-1", "m-2", "m-3"]),
        ("machine_id desc", ["m-3", "m-2", "m-1"]),
        ("created_at", ["m-2", "m-3", "m-1"]),
        ("created_at desc", ["m-1", "m-3", "m-2"]),
    ] {
        let (mut observed, mut token) = (Vec::new(), String::new());
        loop {
            let page = api.machines.list_machines(list(order_by, 1, &token)).await.unwrap();
            let page = page.into_inner();
            observed.extend(page.machines.into_iter().map(|machine| machine.machine_id));
            if page.next_page_token.is_empty() {
                break;
            }
            token = page.next_page_token;
            let other = if order_by == "updated_at" { "" } else { "updated_at" };
            let answer = api.machines.list_machines(list(other, 1, &token)).await;
            let status = refused(answer, InvalidArgument, &["page_token", "another order"]);
            assert_eq!(field_of(&status), "page_token");
        }
        assert_eq!(observed, expected, "{order_by}");
    }
    let answer = api.machines.list_machines(list("rack", 0, "")).await;
    let status = refused(answer, InvalidArgument, &["order_by", "machine_id, created_at"]);
    assert_eq!(field_of(&status), "order_by");
    let history = |order_by: &str, filter: &str| v1::ListHistoryRequest {
        id: "m-1".into(),
        order_by: order_by.into(),
        filter: filter.into(),
        ..Default::default()
    };
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;
    let newest = api.explain.list_history(history("ts desc", "")).await.unwrap().into_inner();
    let newest: Vec<_> = newest.entries.into_iter().rev().collect();
    let oldest = api.explain.list_history(history("", "")).await.unwrap().into_inner().entries;
    assert!(newest.len() > 2 && oldest.starts_with(&newest), "{newest:#?}");
    let requests = history("", "cause=request");
    let requests = api.explain.list_history(requests).await.unwrap().into_inner().entries;
    let expected = oldest.iter().filter(|one| one.cause() == v1::HistoryCause::Request);
    assert!(!requests.is_empty() && requests.iter().eq(expected), "{requests:#?}");
    let none = api.explain.list_history(history("", "actor=nobody")).await.unwrap().into_inner();
    assert_eq!(none.entries, [], "the object is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lists_of_the_simulator_have_filters_and_pages() {
    let (_world, mut api) = TestServer::open("zero").await;
    for (machine, action) in [("m-1*", "fail"), ("m-2*", "hang"), ("m-3*", "fail")] {
        api.fault(fault(machine, "repave", action, 1)).await;
    }
    let list = |filter: &str, page_token: &str| v1::ListFaultsRequest {
        page_size: 1,
        page_token: page_token.into(),
        filter: filter.into(),
    };
    let (mut machines, mut token) = (Vec::new(), String::new());
    loop {
        let page = api.sim.list_faults(list("action=fail", &token)).await.unwrap().into_inner();
        machines.extend(page.faults.into_iter().map(|fault| fault.machine));
        if page.next_page_token.is_empty() {
            break;
        }
        token = page.next_page_token;
    }
    assert_eq!(machines, ["m-1*", "m-3*"]);
    let answer = api.sim.list_faults(list("", &token)).await;
    refused(answer, InvalidArgument, &["page_token"]);
    refused(api.sim.list_faults(list("action=melt", "")).await, InvalidArgument, &["fail, hang"]);
    let effects = v1::ListEffectsRequest { filter: "colour=red".into(), ..Default::default() };
    refused(api.sim.list_effects(effects).await, InvalidArgument, &["key, run_id, step"]);
}
