//! Health reports over gRPC: the operations that they prevent, and where they are shown.

use crate::api::{fault, field_of, on_both, params, refused};
use crate::fleet::Clients;
use proto::v1;
use proto::words::WireEnum;
use tonic::Code;
use tonic_types::StatusExt;

fn alert(id: &str, classes: &[&str]) -> v1::HealthAlert {
    v1::HealthAlert {
        id: id.into(),
        message: format!("{id} is broken"),
        classifications: classes.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn merge(id: &str, source: &str, alerts: &[v1::HealthAlert]) -> v1::MergeHealthReportRequest {
    let (id, source, alerts) = (id.into(), source.into(), alerts.to_vec());
    v1::MergeHealthReportRequest { id, source, alerts, dry_run: false }
}

async fn report(
    api: &mut Clients,
    id: &str,
    source: &str,
    alerts: &[v1::HealthAlert],
) -> v1::Health {
    api.health.merge_health_report(merge(id, source, alerts)).await.unwrap().into_inner()
}

async fn remove(api: &mut Clients, id: &str, source: &str) {
    let (id, source) = (id.to_string(), source.to_string());
    let request = v1::DeleteHealthReportRequest { id, source, ..Default::default() };
    api.health.delete_health_report(request).await.unwrap();
}

fn run(id: &str, kind: &str, request: &str, pairs: &[(&str, &str)]) -> v1::StartRunRequest {
    v1::StartRunRequest {
        machine_id: id.into(),
        request_id: request.into(),
        r#type: kind.into(),
        params: params(pairs),
        ..Default::default()
    }
}

/// A run that continues keeps its override; the history of both says so.
async fn continued(api: &mut Clients) {
    api.fault(fault("m-1", "reboot", "fail", 0)).await;
    let start = v1::StartRunRequest {
        gate_override: Some(v1::GateOverride {
            gates: vec!["health".into()],
            reason: "the water is off".into(),
        }),
        ..run("m-1", "REBOOT", "continued", &[])
    };
    let id = api.try_run(start).await.unwrap().run_id;
    assert_eq!(api.finished(&id).await.phase(), v1::run::Phase::Failed);
    api.clear_faults().await;
    let (run_id, reason) = (id.clone(), "mended".to_string());
    api.runs
        .retry_step(v1::RetryStepRequest { run_id, reason, ..Default::default() })
        .await
        .unwrap();
    assert_eq!(api.finished(&id).await.phase(), v1::run::Phase::Succeeded);
    let note = format!("; gate health overridden by admin as in {id}: the water is off");
    for (object, message) in [
        (id.as_str(), format!("retry-step by admin: mended{note}")),
        ("m-1", format!("held by {id} again{note}")),
    ] {
        let history = api.history(object).await;
        assert!(history.iter().any(|one| one.message == message), "{message}: {history:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reported_keeps_operations_from_starting() {
    on_both("zero", async |_, mut api| {
        api.in_maintenance("m-1").await;
        api.done("m-1", "REPAVE", "image").await;
        let alerts = [alert("fan", &["prevent-allocations", "site-word"])];
        let reported = report(&mut api, "m-1", "dcim", &alerts).await;
        assert_eq!(
            (reported.alerts, reported.bars.len(), reported.kind().word()),
            (1, 1, "machine")
        );
        let refusal = refused(
            api.try_run(run("m-1", "EXIT_MAINTENANCE", "out", &[])).await,
            Code::FailedPrecondition,
            &["dcim reports fan: fan is broken", "farrier health get m-1"],
        );
        assert!(refusal.message().contains("--override health --reason"), "{refusal:?}");
        let details = refusal.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["gate"], "health");
        // An operation that places no workload is not prevented.
        api.done("m-1", "REBOOT", "reboot").await;

        report(&mut api, "m-1", "leak", &[alert("water", &["prevent-state-changes"])]).await;
        let reboot = run("m-1", "REBOOT", "again", &[]);
        refused(api.try_run(reboot).await, Code::FailedPrecondition, &["leak reports water"]);
        // A repeated request returns the run that it started before.
        assert!(api.try_run(run("m-1", "REBOOT", "reboot", &[])).await.is_ok());
        let why = api.why("m-1").await;
        assert_eq!(why.health.len(), 3, "{why:?}");
        assert!(why.next_commands.contains(&"farrier health get m-1".to_string()), "{why:?}");
        let shown = api.machine("m-1").await.status.unwrap().health.unwrap();
        assert_eq!((shown.alerts, shown.reports.len()), (2, 2));

        passing(&mut api).await;
        continued(&mut api).await;

        remove(&mut api, "m-1", "leak").await;
        remove(&mut api, "m-1", "dcim").await;
        api.done("m-1", "EXIT_MAINTENANCE", "out").await;
        assert_eq!(api.machine("m-1").await.status.unwrap().health, None);
        let reported = api.history("m-1").await;
        let message: Vec<&str> = reported.iter().map(|one| one.message.as_str()).collect();
        for line in [
            "dcim reports fan: fan is broken",
            "leak reports water: water is broken",
            "the report of leak is removed",
        ] {
            assert!(message.contains(&line), "{line:?} is not in {message:?}");
        }
    })
    .await;
}

/// The override is on the run and in the history of both; a rerun keeps it.
async fn passing(api: &mut Clients) {
    let named = |gate: &str, reason: &str| v1::StartRunRequest {
        gate_override: Some(v1::GateOverride { gates: vec![gate.into()], reason: reason.into() }),
        ..run("m-1", "REBOOT", "named", &[])
    };
    let wrong = api.try_run(named("devices", "the water is off")).await;
    let words = ["gate_override.gates[0]", "can be overridden: in-service, health"];
    refused(wrong, Code::InvalidArgument, &words);
    let passed = api.try_run(named("health", "the water is off")).await.unwrap();
    assert_eq!(passed.params["gate_override"], "health");
    assert_eq!(passed.params["gate_override_reason"], "the water is off");
    api.finished(&passed.run_id).await;
    // A repetition is the same request only with the same override.
    let again = api.try_run(named("health", "the water is off")).await.unwrap();
    assert_eq!(again.run_id, passed.run_id);
    let other = api.try_run(named("health", "another reason")).await;
    refused(other, Code::AlreadyExists, &["named"]);
    let note = "; gate health overridden by admin: the water is off";
    for id in ["m-1", passed.run_id.as_str()] {
        let history = api.history(id).await;
        assert!(history.iter().any(|one| one.message.ends_with(note)), "{id}: {history:#?}");
    }
    let rerun = v1::RerunRequest {
        run_id: passed.run_id.clone(),
        request_id: "rerun".into(),
        reason: "once more".into(),
        ..Default::default()
    };
    let rerun = api.runs.rerun(rerun).await.unwrap().into_inner();
    assert_eq!(rerun.params, passed.params);
    let history = api.history(&rerun.run_id).await;
    let id = &passed.run_id;
    let note = format!(
        "REBOOT accepted, rerun of {id} by admin: once more; gate health overridden by admin as in {id}: the water is off"
    );
    assert!(history.iter().any(|one| one.message == note), "{history:#?}");
    api.finished(&rerun.run_id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_merged_replaced_listed_and_refused_by_field() {
    on_both("zero", async |_, mut api| {
        for n in 1..=3 {
            api.register(&format!("m-{n}")).await;
        }
        for id in ["m-1", "m-2"] {
            report(&mut api, id, "dcim", &[alert("fan", &["odd"]), alert("psu", &[])]).await;
        }
        let exactly = v1::ReplaceHealthReportRequest {
            id: "m-2".into(),
            source: "dcim".into(),
            alerts: vec![alert("nic", &[])],
            dry_run: false,
        };
        let reported = api.health.replace_health_report(exactly).await.unwrap().into_inner();
        let ids: Vec<&str> = reported.reports[0].alerts.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["nic"]);

        let mut ids = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListHealthRequest { page_size: 1, page_token, ..Default::default() };
            let page = api.health.list_health(request).await.unwrap().into_inner();
            ids.extend(page.objects.into_iter().map(|one| one.id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(ids, ["m-1", "m-2"]);
        let odd =
            v1::ListHealthRequest { filter: "classification=odd".into(), ..Default::default() };
        let odd = api.health.list_health(odd).await.unwrap().into_inner().objects;
        assert_eq!(odd.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["m-1"]);

        let twice = [alert("fan", &[]), alert("fan", &[])];
        let many: Vec<_> = (0..33).map(|n| alert(&format!("a{n}"), &[])).collect();
        for (request, field) in [
            (merge("", "dcim", &[alert("a", &[])]), "id"),
            (merge("op-1", "dcim", &[alert("a", &[])]), "id"),
            (merge("m-1", "", &[alert("a", &[])]), "source"),
            (merge("m-1", "Not A Name", &[alert("a", &[])]), "source"),
            (merge("m-1", "dcim", &[]), "alerts"),
            (merge("m-1", "dcim", &many), "alerts"),
            (merge("m-1", "dcim", &twice), "alerts.id"),
            (merge("m-1", "dcim", &[alert("a", &["Bad Word"])]), "alerts[a].classifications"),
        ] {
            let answer = api.health.merge_health_report(request).await;
            assert_eq!(field_of(&refused(answer, Code::InvalidArgument, &[])), field);
        }
        for id in ["m-9", "rack-9", "sw-9", "ps-9"] {
            let answer = api.health.get_health(v1::GetHealthRequest { id: id.into() }).await;
            refused(answer, Code::NotFound, &[id]);
            let answer =
                api.health.merge_health_report(merge(id, "dcim", &[alert("a", &[])])).await;
            refused(answer, Code::NotFound, &[id]);
        }
        let nothing = v1::DeleteHealthReportRequest {
            id: "m-1".into(),
            source: "dcim".into(),
            alert_ids: vec!["nobody".into()],
            dry_run: false,
        };
        let answer = api.health.delete_health_report(nothing).await;
        refused(answer, Code::NotFound, &["no alert nobody of dcim on m-1"]);
    })
    .await;
}
