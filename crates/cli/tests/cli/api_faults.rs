//! Hardware faults: retries, failures, lost responses, time limits and cancels.

use crate::api::{TestServer, at, fault, is, on_both, plan, reboot, refused, states, step};
use crate::fleet::{Clients, steps};
use proto::v1;
use proto::v1::run::Phase;
use tonic::Code::FailedPrecondition;

/// Starts a run and waits until it has ended.
async fn ended(api: &mut Clients, id: &str, kind: &str, request: &str) -> v1::Run {
    let run = api.start(id, kind, request).await;
    api.finished(&run.run_id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_once_is_tried_again() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "reboot", "fail", 1)).await;
    let run = ended(&mut api, "m-1", "REBOOT", "r").await;
    assert_eq!((run.phase(), run.steps[0].retry_count), (Phase::Succeeded, 1), "{run:#?}");
    assert!(run.error.is_none());
    assert!(!is(&api.machine("m-1").await, "NeedsIntervention"));
    let history = api.history(&run.run_id).await;
    assert!(history.iter().any(|entry| entry.message.contains("attempt 2")), "{history:#?}");
    // The failed attempt had no effect, and the second attempt executed it once.
    let applied: Vec<i32> = api.applied(&run.run_id).await.into_values().collect();
    assert_eq!(applied, [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_needs_intervention_and_keeps_the_phase() {
    on_both("zero", failing).await;
}

async fn failing(_world: &TestServer, mut api: Clients) {
    api.in_service("m-1").await;
    let rule = fault("m-1", "reboot", "fail", 0);
    api.fault(v1::SimFault { message: "SSH connection refused".into(), ..rule }).await;
    let run = ended(&mut api, "m-1", "REBOOT", "r").await;
    assert_eq!(run.phase(), Phase::Failed);
    assert_eq!(run.workflow_state(), v1::WorkflowState::FailedRetryable);
    assert_eq!(steps(&run), [("reboot".to_string(), "FAILED")]);
    assert_eq!(run.steps[0].retry_count, 2);
    let error = run.error.clone().unwrap();
    assert_eq!(error.code, "EXECUTION_FAILED");
    assert_eq!(error.message, "SSH connection refused after 2 retries");
    assert!(error.retryable);
    assert_eq!(error.next_command, format!("farrier operation retry-step {}", run.run_id));
    for (key, value) in
        [("fault", "effect-failed"), ("class", "retryable"), ("step", "reboot"), ("attempts", "3")]
    {
        assert_eq!(error.details[key], value, "{error:?}");
    }
    let request = v1::GetOperationRequest { operation_id: run.run_id.clone() };
    let operation = api.operations.get_operation(request).await.unwrap().into_inner();
    assert_eq!((operation.phase().as_str_name(), operation.error), ("FAILED", Some(error)));

    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("READY", "EFFECTIVE_STATE_ATTENTION"));
    assert!(is(&machine, "NeedsIntervention") && !is(&machine, "OperationCanceled"));
    assert_eq!(machine.status.unwrap().active_run_id, "");
    refused(api.cancel(&run.run_id).await, FailedPrecondition, &["FAILED", "farrier operation"]);

    // The attention state closes no gate, and the next success clears it.
    api.clear_faults().await;
    api.done("m-1", "REBOOT", "later").await;
    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("READY", "EFFECTIVE_STATE_IDLE"));
    assert!(!is(&machine, "NeedsIntervention"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_in_mid_repave_stops_and_undoes() {
    on_both("zero", canceling).await;
}

async fn canceling(_world: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "repave", "hang", 0)).await;
    let run = api.start("m-1", "REPAVE", "r").await.run_id;
    api.at_step(&run, "repave-os").await;
    assert_eq!(states(&api.machine("m-1").await), ("MAINTENANCE", "EFFECTIVE_STATE_BUSY"));
    api.cancel(&run).await.unwrap();
    let ended = api.finished(&run).await;
    assert_eq!(ended.phase(), Phase::Canceled);
    let expected = [
        ("set-netboot", "SUCCEEDED"),
        ("repave-os", "FAILED"),
        ("reboot", "WAITING"),
        ("join-cluster", "WAITING"),
        ("verify", "WAITING"),
        ("undo-set-netboot", "SUCCEEDED"),
    ];
    assert_eq!(steps(&ended), expected.map(|(name, state)| (name.to_string(), state)));
    let undo: Vec<bool> = ended.steps.iter().map(|step| step.undo).collect();
    assert_eq!(undo, [false, false, false, false, false, true]);
    assert!(ended.error.is_none(), "{ended:#?}");
    let applied = api.applied(&run).await;
    assert_eq!(applied[&format!("{run}/undo-set-netboot/1")], 1, "{applied:?}");
    assert_eq!(applied[&format!("{run}/repave-os/1")], 0, "{applied:?}");

    let machine = api.machine("m-1").await;
    assert_eq!(states(&machine), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
    assert!(is(&machine, "OperationCanceled") && !is(&machine, "NeedsIntervention"));
    let again = api.cancel(&run).await;
    refused(again, FailedPrecondition, &["already ended CANCELED", "farrier operation get"]);
    // The next start clears the condition.
    api.clear_faults().await;
    api.fault(fault("m-1", "reboot", "hang", 1)).await;
    let run = api.start("m-1", "REBOOT", "next").await.run_id;
    assert!(!is(&api.machine("m-1").await, "OperationCanceled"));
    api.at_step(&run, "reboot").await;
    // A second cancel changes nothing.
    for _ in 0..2 {
        let operation = api.cancel(&run).await;
        if let Err(status) = operation {
            refused(Err::<(), _>(status), FailedPrecondition, &["already ended CANCELED"]);
        }
    }
    assert_eq!(api.finished(&run).await.phase(), Phase::Canceled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_undo_is_reported() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "repave", "hang", 0)).await;
    let run = api.start("m-1", "REPAVE", "r").await.run_id;
    api.at_step(&run, "repave-os").await;
    api.fault(fault("m-1", "netboot", "fail", 0)).await;
    api.cancel(&run).await.unwrap();
    let ended = api.finished(&run).await;
    assert_eq!(ended.phase(), Phase::Canceled);
    assert_eq!(steps(&ended).pop(), Some(("undo-set-netboot".to_string(), "FAILED")));
    assert_eq!(ended.error.unwrap().details["fault"], "undo-failed");
    let machine = api.machine("m-1").await;
    assert!(is(&machine, "OperationCanceled") && is(&machine, "NeedsIntervention"));
    assert_eq!(states(&machine), ("MAINTENANCE", "EFFECTIVE_STATE_ATTENTION"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_invalid_answer_is_read_back_and_nothing_is_repeated() {
    let (_world, mut api) = TestServer::open("zero").await;
    for (id, action) in [("m-1", "drop"), ("m-2", "garbage")] {
        api.in_maintenance(id).await;
        api.fault(fault(id, "reboot", action, 1)).await;
        let run = ended(&mut api, id, "REBOOT", "r").await;
        assert_eq!((run.phase(), run.steps[0].retry_count), (Phase::Succeeded, 0), "{run:#?}");
        let history = api.history(&run.run_id).await;
        assert!(history.iter().any(|entry| entry.message.contains("looking")), "{history:#?}");
        let applied: Vec<i32> = api.applied(&run.run_id).await.into_values().collect();
        assert_eq!(applied, [1], "{action}");
        // The fault applies to every call of a whole reimage.
        api.fault(fault(id, "", action, 0)).await;
        let run = ended(&mut api, id, "REPAVE", "all").await;
        assert_eq!(run.phase(), Phase::Succeeded, "{run:#?}");
        let applied = api.applied(&run.run_id).await;
        assert_eq!(applied.len(), 5, "{applied:?}");
        assert!(applied.values().all(|count| *count == 1), "{applied:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_waits_for_the_operator() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "reboot", "drop", 1)).await;
    api.fault(at("get_status", fault("m-1", "reboot", "fail", 0))).await;
    let run = ended(&mut api, "m-1", "REBOOT", "r").await;
    assert_eq!(run.phase(), Phase::Failed);
    assert_eq!(run.workflow_state(), v1::WorkflowState::FailedManualIntervention);
    let error = run.error.unwrap();
    assert_eq!((error.code.as_str(), error.retryable), ("INTERVENTION_REQUIRED", false));
    assert_eq!(error.details["fault"], "outcome-unknown");
    assert_eq!(error.next_command, format!("farrier operation resume {}", run.run_id));
    // An effect that may have been applied is not executed again.
    let applied: Vec<i32> = api.applied(&run.run_id).await.into_values().collect();
    assert_eq!(applied, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_hangs_runs_into_its_time_limit() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let hasty = v1::Step { timeout_seconds: Some(1), ..step("reboot", reboot()) };
    api.try_plan(plan("hasty", vec![hasty])).await.unwrap();
    api.fault(fault("m-1", "reboot", "hang", 1)).await;
    let run = api.start_plan("m-1", "hasty", "r").await.run_id;
    let ended = api.finished(&run).await;
    assert_eq!((ended.phase(), ended.steps[0].retry_count), (Phase::Succeeded, 1), "{ended:#?}");
    let history = api.history(&run).await;
    let reported = |name: &str| history.iter().any(|entry| entry.message.contains(name));
    assert!(reported("looking") && reported("attempt 2"), "{history:#?}");
    let applied = api.applied(&run).await;
    assert_eq!(applied[&format!("{run}/reboot/1")], 0, "{applied:?}");
    assert_eq!(applied[&format!("{run}/reboot/2")], 1, "{applied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_may_ask_for_the_older_rule_about_failures() {
    let (_world, mut api) = TestServer::open("zero").await;
    let strict = v1::Plan {
        on_failure: v1::OnFailure::EnterMaintenance.into(),
        ..plan("strict", vec![step("reboot", reboot())])
    };
    api.try_plan(strict).await.unwrap();
    for (id, action) in [("m-1", "fail"), ("m-2", "hang")] {
        api.in_service(id).await;
        api.fault(fault(id, "reboot", action, 0)).await;
    }
    let run = api.start_plan("m-1", "strict", "r").await.run_id;
    assert_eq!(api.finished(&run).await.phase(), Phase::Failed);
    assert_eq!(states(&api.machine("m-1").await), ("MAINTENANCE", "EFFECTIVE_STATE_ATTENTION"));
    let run = api.start_plan("m-2", "strict", "r").await.run_id;
    api.at_step(&run, "reboot").await;
    assert_eq!(states(&api.machine("m-2").await), ("READY", "EFFECTIVE_STATE_BUSY"));
    api.cancel(&run).await.unwrap();
    assert_eq!(api.finished(&run).await.phase(), Phase::Canceled);
    assert_eq!(states(&api.machine("m-2").await), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
}
