//! Operator actions on a run that failed, and administrator flags on a machine.

use crate::api::{TestServer, at, fault, is, on_both, refused, states};
use crate::api_cli::Terminal;
use crate::fleet::{Clients, DatabaseKind, Server, Setup, new_database, postgres, steps};
use proto::v1;
use proto::v1::WorkflowState;
use proto::v1::run::Phase;
use proto::words::WireEnum;
use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound};
use tonic::{Response, Status};

type Answer = Result<v1::Run, Status>;

impl Clients {
    pub async fn retry_step(&mut self, run: &str) -> Answer {
        let request = v1::RetryStepRequest {
            run_id: run.into(),
            reason: "test".into(),
            ..Default::default()
        };
        self.runs.retry_step(request).await.map(Response::into_inner)
    }

    pub async fn resume(&mut self, run: &str) -> Answer {
        let request = v1::ResumeRunRequest {
            run_id: run.into(),
            reason: "test".into(),
            ..Default::default()
        };
        self.runs.resume_run(request).await.map(Response::into_inner)
    }

    pub async fn adopt(&mut self, run: &str) -> Answer {
        let request = v1::AdoptObservedStateRequest {
            run_id: run.into(),
            reason: "test".into(),
            ..Default::default()
        };
        self.runs.adopt_observed_state(request).await.map(Response::into_inner)
    }

    pub async fn mark_manual(&mut self, run: &str, reason: &str) -> Answer {
        let request = v1::MarkManualRequest {
            run_id: run.into(),
            reason: reason.into(),
            ..Default::default()
        };
        self.runs.mark_manual(request).await.map(Response::into_inner)
    }

    pub async fn rerun(&mut self, run: &str, request: &str) -> Answer {
        let (run_id, request_id) = (run.into(), request.into());
        let request =
            v1::RerunRequest { run_id, request_id, reason: "test".into(), ..Default::default() };
        self.runs.rerun(request).await.map(Response::into_inner)
    }

    pub async fn restart_clean(&mut self, run: &str, request: &str) -> Answer {
        let (run_id, request_id) = (run.into(), request.into());
        let request = v1::RestartCleanRequest {
            run_id,
            request_id,
            reason: "test".into(),
            ..Default::default()
        };
        self.runs.restart_clean(request).await.map(Response::into_inner)
    }

    /// Runs a reimage that fails permanently at the step with this effect, then removes the fault.
    pub async fn failed_reimage(&mut self, id: &str, effect: &str) -> v1::Run {
        self.in_maintenance(id).await;
        self.fault(fault(id, effect, "fail", 0)).await;
        let run = self.start(id, "REPAVE", "first").await;
        let run = self.finished(&run.run_id).await;
        assert_eq!(run.phase(), Phase::Failed, "{run:#?}");
        assert!(is(&self.machine(id).await, "NeedsIntervention"));
        self.clear_faults().await;
        run
    }

    /// Runs an operation whose effect was applied while its outcome could not be read.
    pub async fn in_doubt(&mut self, id: &str, kind: &str, effect: &str) -> v1::Run {
        self.in_maintenance(id).await;
        self.fault(fault(id, effect, "drop", 1)).await;
        self.fault(at("get_status", fault(id, effect, "fail", 0))).await;
        let run = self.start(id, kind, "first").await;
        let run = self.finished(&run.run_id).await;
        assert_eq!(run.error.as_ref().unwrap().details["fault"], "outcome-unknown");
        self.clear_faults().await;
        run
    }

    pub async fn succeeds(&mut self, run: &str) -> v1::Run {
        let run = self.finished(run).await;
        assert_eq!(run.phase(), Phase::Succeeded, "{run:#?}");
        assert!(run.error.is_none(), "{run:#?}");
        assert!(!is(&self.machine(&run.machine_id).await, "NeedsIntervention"));
        run
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_step_goes_on_with_a_new_attempt() {
    on_both("zero", retrying).await;
}

async fn retrying(_world: &TestServer, mut api: Clients) {
    let failed = api.failed_reimage("m-1", "join").await;
    let before = failed.steps[3].retry_count;
    let again = api.retry_step(&failed.run_id).await.unwrap();
    assert_eq!(again.run_id, failed.run_id);
    assert!(again.finished_at.is_none() && again.error.is_none(), "{again:#?}");
    let run = api.succeeds(&failed.run_id).await;
    assert_eq!(run.steps[3].retry_count, before + 1);
    assert_eq!(run.workflow_state(), WorkflowState::Completed);
    // The step that succeeded before the failure was not executed again.
    let applied = api.applied(&run.run_id).await;
    assert_eq!(applied[&format!("{}/repave-os/1", run.run_id)], 1);
    assert!(!applied.contains_key(&format!("{}/repave-os/2", run.run_id)), "{applied:?}");
    refused(api.retry_step(&run.run_id).await, FailedPrecondition, &["already ended SUCCEEDED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_looks_first_and_does_nothing_twice() {
    let (_world, mut api) = TestServer::open("zero").await;
    let run = api.in_doubt("m-1", "REBOOT", "reboot").await.run_id;
    api.resume(&run).await.unwrap();
    let ended = api.succeeds(&run).await;
    assert_eq!(ended.steps[0].retry_count, 0);
    assert_eq!(api.applied(&run).await.into_values().collect::<Vec<_>>(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn adopt_takes_what_the_device_shows() {
    let (_world, mut api) = TestServer::open("zero").await;
    let run = api.in_doubt("m-1", "REPAVE", "repave").await.run_id;
    api.adopt(&run).await.unwrap();
    let ended = api.succeeds(&run).await;
    assert_eq!(ended.workflow_state(), WorkflowState::Reconciled);
    assert!(ended.steps[1].message.starts_with("adopted: "), "{ended:#?}");
    assert_eq!(api.applied(&run).await[&format!("{run}/repave-os/1")], 1);
    // A result that the device does not confirm is not adopted, and the machine still needs
    // intervention.
    let failed = api.failed_reimage("m-2", "join").await.run_id;
    api.adopt(&failed).await.unwrap();
    let ended = api.finished(&failed).await;
    assert_eq!(ended.phase(), Phase::Failed);
    let error = ended.error.unwrap();
    assert_eq!(error.details["fault"], "not-adoptable");
    assert!(error.message.contains("in no cluster"), "{error:?}");
    assert_eq!(error.next_command, format!("farrier operation retry-step {failed}"));
    assert!(is(&api.machine("m-2").await, "NeedsIntervention"));
    api.retry_step(&failed).await.unwrap();
    api.succeeds(&failed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rerun_adopts_what_already_holds() {
    on_both("zero", rerunning).await;
}

async fn rerunning(_world: &TestServer, mut api: Clients) {
    let failed = api.failed_reimage("m-1", "join").await;
    refused(api.rerun(&failed.run_id, "").await, InvalidArgument, &["request_id is required"]);
    let words = ["first", failed.run_id.as_str()];
    refused(api.rerun(&failed.run_id, "first").await, AlreadyExists, &words);
    let again = api.rerun(&failed.run_id, "second").await.unwrap();
    assert_ne!(again.run_id, failed.run_id);
    assert_eq!(
        (&again.parent_run_id, &again.plan_id, &again.params),
        (&failed.run_id, &failed.plan_id, &failed.params)
    );
    let run = api.succeeds(&again.run_id).await;
    let adopted: Vec<bool> =
        run.steps.iter().map(|step| step.message.starts_with("adopted")).collect();
    assert_eq!(adopted, [true, true, false, false, false], "{run:#?}");
    let applied = api.applied(&run.run_id).await;
    let done: Vec<&str> = applied.keys().map(|key| key.split('/').nth(1).unwrap()).collect();
    assert_eq!(done, ["join-cluster", "reboot", "verify"], "{applied:?}");
    // The same request ID returns the same run; the failed run is unchanged.
    assert_eq!(api.rerun(&failed.run_id, "second").await.unwrap().run_id, run.run_id);
    assert_eq!(api.run(&failed.run_id).await.phase(), Phase::Failed);
    let words = ["followed by", run.run_id.as_str(), "farrier operation rerun"];
    refused(api.retry_step(&failed.run_id).await, FailedPrecondition, &words);
    refused(api.adopt(&failed.run_id).await, FailedPrecondition, &words);
}

/// The host of another image is a member of the same cluster: that does not make the image right.
#[tokio::test(flavor = "multi_thread")]
async fn a_rerun_of_an_old_reimage_writes_its_image_again() {
    let (world, mut api) = TestServer::open("zero").await;
    let person = Terminal::new(world.server.url());
    api.in_maintenance("m-1").await;
    let first = api.done("m-1", "REPAVE", "first").await;
    let line = "reimage m-1 --image rhel-9".to_string();
    tokio::task::block_in_place(|| person.line(&line, 0));
    let image = |machine: v1::Machine| {
        let known = machine.status.unwrap().conditions;
        known.into_iter().find(|one| one.r#type == "Provisioned").unwrap().reason
    };
    assert_eq!(image(api.machine("m-1").await), "Image:rhel-9");
    let dry_run = format!("operation rerun {} --dry-run", first.run_id);
    let text = tokio::task::block_in_place(|| person.line(&dry_run, 0));
    assert!(text.contains("repave-os") && !text.contains("adopted"), "{text}");
    let again = api.rerun(&first.run_id, "again").await.unwrap();
    let run = api.succeeds(&again.run_id).await;
    assert_eq!(api.applied(&run.run_id).await[&format!("{}/repave-os/1", run.run_id)], 1);
    assert_eq!(image(api.machine("m-1").await), "Image:ubuntu-2204");
    // A refused action on a success recommends nothing that would write it once more.
    let status = api.retry_step(&run.run_id).await.unwrap_err();
    assert!(!status.message().contains("rerun"), "{status:?}");
}

/// The dry run of a rerun asks the device, and names every step that it would adopt.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_a_rerun_names_the_steps_that_it_adopts() {
    let (world, mut api) = TestServer::open("zero").await;
    let person = Terminal::new(world.server.url());
    let failed = api.failed_reimage("m-1", "join").await.run_id;
    let line = format!("operation rerun {failed} --dry-run");
    let text = tokio::task::block_in_place(|| person.line(&line, 0));
    for adopted in ["set-netboot would be adopted: ", "repave-os would be adopted: "] {
        assert!(text.contains(adopted), "{text}");
    }
    // It is not among the steps that would be executed.
    assert_eq!(text.lines().filter(|line| line.starts_with("repave-os")).count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_clean_undoes_first_and_then_does_everything() {
    on_both("zero", restarting).await;
}

async fn restarting(_world: &TestServer, mut api: Clients) {
    let failed = api.failed_reimage("m-1", "verify").await;
    refused(api.restart_clean(&failed.run_id, "").await, InvalidArgument, &["request_id"]);
    let again = api.restart_clean(&failed.run_id, "clean").await.unwrap();
    assert_eq!(again.parent_run_id, failed.run_id);
    let run = api.succeeds(&again.run_id).await;
    let names: Vec<(&str, bool)> =
        run.steps.iter().map(|step| (step.name.as_str(), step.undo)).collect();
    let expected = [
        ("undo-join-cluster", true),
        ("undo-set-netboot", true),
        ("set-netboot", false),
        ("repave-os", false),
        ("reboot", false),
        ("join-cluster", false),
        ("verify", false),
    ];
    assert_eq!(names, expected);
    assert!(run.steps.iter().all(|step| !step.message.starts_with("adopted")), "{run:#?}");
    let starts: Vec<_> = run.steps.iter().map(|step| step.started_at.unwrap()).collect();
    assert!(starts.is_sorted_by_key(|at| (at.seconds, at.nanos)), "{starts:?}");
    let applied = api.applied(&run.run_id).await;
    assert_eq!(applied.len(), expected.len(), "{applied:?}");
    assert!(applied.values().all(|count| *count == 1), "{applied:?}");
    let twice = api.restart_clean(&failed.run_id, "clean").await.unwrap();
    assert_eq!(twice.run_id, run.run_id);
}

/// The join of the original found the host as a member: its clean restart does not reset the host.
#[tokio::test(flavor = "multi_thread")]
async fn restart_clean_does_not_undo_a_join_that_changed_nothing() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    api.done("m-1", "REPAVE", "image").await;
    api.fault(fault("m-1", "verify", "fail", 0)).await;
    let failed = api.start("m-1", "JOIN", "join").await.run_id;
    assert_eq!(api.finished(&failed).await.phase(), Phase::Failed);
    api.clear_faults().await;
    let again = api.restart_clean(&failed, "clean").await.unwrap().run_id;
    let run = api.succeeds(&again).await;
    let undo = run.steps.iter().find(|step| step.name == "undo-join-cluster").unwrap();
    assert!(undo.message.contains("The machine is in cluster"), "{run:#?}");
    // The undo steps reverse a join that changed something.
    let failed = api.failed_reimage("m-2", "verify").await.run_id;
    let again = api.restart_clean(&failed, "clean").await.unwrap().run_id;
    let run = api.succeeds(&again).await;
    let undo = run.steps.iter().find(|step| step.name == "undo-join-cluster").unwrap();
    assert!(undo.message.contains("The machine is in no cluster"), "{run:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mark_manual_freezes_until_a_person_resumes() {
    on_both("zero", freezing).await;
}

async fn freezing(_world: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "repave", "hang", 1)).await;
    let run = api.start("m-1", "REPAVE", "r").await.run_id;
    api.at_step(&run, "repave-os").await;
    for reason in ["", "  "] {
        let answer = api.mark_manual(&run, reason).await;
        refused(answer, InvalidArgument, &["reason is required"]);
    }
    api.mark_manual(&run, "smoke in aisle 3").await.unwrap();
    let frozen = api.finished(&run).await;
    assert_eq!(frozen.phase(), Phase::Failed);
    assert_eq!(frozen.workflow_state(), WorkflowState::FailedManualIntervention);
    let error = frozen.error.clone().unwrap();
    assert_eq!((error.code.as_str(), error.retryable), ("INTERVENTION_REQUIRED", false));
    assert_eq!(error.details["fault"], "frozen-by-operator");
    assert!(error.message.contains("smoke in aisle 3"), "{error:?}");
    assert_eq!(error.next_command, format!("farrier operation resume {run}"));
    assert_eq!(states(&api.machine("m-1").await), ("MAINTENANCE", "EFFECTIVE_STATE_ATTENTION"));
    // Nothing was undone, and the run does not continue by itself.
    assert!(frozen.steps.iter().all(|step| !step.undo), "{frozen:#?}");
    let again = api.mark_manual(&run, "smoke in aisle 3").await.unwrap();
    assert_eq!((again.run_id.as_str(), again.version), (run.as_str(), frozen.version));
    api.resume(&run).await.unwrap();
    api.succeeds(&run).await;
    refused(api.mark_manual(&run, "late").await, FailedPrecondition, &["already ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_by_itself_can_be_frozen_too() {
    on_both("zero", freezing_a_failure).await;
}

async fn freezing_a_failure(_world: &TestServer, mut api: Clients) {
    let failed = api.failed_reimage("m-1", "join").await;
    assert_eq!(failed.workflow_state(), WorkflowState::FailedRetryable);
    let frozen = api.mark_manual(&failed.run_id, "wait for parts").await.unwrap();
    assert_eq!(frozen.workflow_state(), WorkflowState::FailedManualIntervention);
    api.retry_step(&failed.run_id).await.unwrap();
    api.succeeds(&failed.run_id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_was_frozen_while_undoing_ends_canceled() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "repave", "hang", 0)).await;
    let run = api.start("m-1", "REPAVE", "r").await.run_id;
    api.at_step(&run, "repave-os").await;
    api.fault(fault("m-1", "netboot", "hang", 0)).await;
    api.cancel(&run).await.unwrap();
    let undoing = api.at_step(&run, "undo-set-netboot").await;
    assert_eq!(undoing.workflow_state(), WorkflowState::Compensating);
    api.mark_manual(&run, "stop everything").await.unwrap();
    assert_eq!(api.finished(&run).await.phase(), Phase::Failed);
    api.clear_faults().await;
    api.resume(&run).await.unwrap();
    let ended = api.finished(&run).await;
    assert_eq!(ended.phase(), Phase::Canceled, "{ended:#?}");
    assert_eq!(steps(&ended).pop(), Some(("undo-set-netboot".to_string(), "SUCCEEDED")));
}

#[tokio::test(flavor = "multi_thread")]
async fn going_on_passes_the_same_gates_as_starting() {
    let (_world, mut api) = TestServer::open("zero").await;
    let failed = api.failed_reimage("m-1", "join").await.run_id;
    let flag = |reason: &str| v1::SetRmaRequest {
        machine_id: "m-1".into(),
        reason: reason.into(),
        ..Default::default()
    };
    api.admin.set_rma(flag("fan")).await.unwrap();
    let words = ["RMA", "farrier admin clear-rma m-1"];
    refused(api.retry_step(&failed).await, FailedPrecondition, &words);
    refused(api.resume(&failed).await, FailedPrecondition, &words);
    refused(api.adopt(&failed).await, FailedPrecondition, &words);
    refused(api.rerun(&failed, "r-1").await, FailedPrecondition, &words);
    refused(api.restart_clean(&failed, "r-2").await, FailedPrecondition, &words);
    assert_eq!(api.run(&failed).await.phase(), Phase::Failed);
    let request = v1::ClearRmaRequest {
        machine_id: "m-1".into(),
        reason: "new fan".into(),
        ..Default::default()
    };
    api.admin.clear_rma(request).await.unwrap();
    // A machine that is back in service must not be repaved.
    api.done("m-1", "EXIT_MAINTENANCE", "exit").await;
    let words = ["phase READY", "farrier enter-maintenance m-1"];
    refused(api.rerun(&failed, "r-3").await, FailedPrecondition, &words);
    refused(api.retry_step(&failed).await, FailedPrecondition, &[]);
    assert_eq!(api.run(&failed).await.phase(), Phase::Failed);
}

/// Sets or clears a flag by its name.
async fn flag(
    api: &mut Clients,
    name: &str,
    (id, reason): (&str, &str),
) -> Result<v1::Machine, Status> {
    let (machine_id, reason) = (id.to_string(), reason.to_string());
    let admin = &mut api.admin;
    let answer = match name {
        "set-rma" => {
            admin.set_rma(v1::SetRmaRequest { machine_id, reason, ..Default::default() }).await
        }
        "clear-rma" => {
            admin.clear_rma(v1::ClearRmaRequest { machine_id, reason, ..Default::default() }).await
        }
        "set-retired" => {
            admin
                .set_retired(v1::SetRetiredRequest { machine_id, reason, ..Default::default() })
                .await
        }
        "clear-retired" => {
            admin
                .clear_retired(v1::ClearRetiredRequest { machine_id, reason, ..Default::default() })
                .await
        }
        _ => {
            let request =
                v1::ClearNeedsInterventionRequest { machine_id, reason, ..Default::default() };
            admin.clear_needs_intervention(request).await
        }
    };
    answer.map(Response::into_inner)
}

const FLAGS: [&str; 5] =
    ["set-rma", "clear-rma", "set-retired", "clear-retired", "clear-needs-intervention"];

#[tokio::test(flavor = "multi_thread")]
async fn flags_need_a_machine_and_a_reason() {
    let (_world, mut api) = TestServer::open("zero").await;
    let before = api.settled(crate::api::machine("m-1")).await;
    let long = "x".repeat(1_025);
    for name in FLAGS {
        let answer = flag(&mut api, name, ("nobody", "why")).await;
        refused(answer, NotFound, &["nobody", "farrier list"]);
        refused(flag(&mut api, name, ("", "why")).await, InvalidArgument, &["machine_id"]);
        for reason in ["", "  ", "a\u{7}", &long] {
            refused(flag(&mut api, name, ("m-1", reason)).await, InvalidArgument, &["reason"]);
        }
        if name.starts_with("clear") {
            let answer = flag(&mut api, name, ("m-1", "why")).await;
            refused(answer, FailedPrecondition, &["is not flagged", "farrier get m-1"]);
        }
    }
    assert_eq!(api.machine("m-1").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_block_everything_but_their_own_undo() {
    on_both("zero", flagging).await;
}

async fn flagging(_world: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    for (name, condition, lifecycle) in [
        ("rma", "RMA", v1::LifecycleState::Rma),
        ("retired", "Retired", v1::LifecycleState::Retired),
    ] {
        let set = flag(&mut api, &format!("set-{name}"), ("m-1", "it burns")).await.unwrap();
        assert!(is(&set, condition));
        assert_eq!(states(&set), ("MAINTENANCE", "EFFECTIVE_STATE_BLOCKED"));
        assert_eq!(set.status.unwrap().lifecycle_state(), lifecycle);
        let undo = format!("farrier admin clear-{name} m-1");
        for kind in
            ["REBOOT", "REPAVE", "ENTER_MAINTENANCE", "EXIT_MAINTENANCE", "UPGRADE", "RMA", "POWER"]
        {
            let answer = api.try_start("m-1", kind, &format!("{name}-{kind}")).await;
            refused(answer, FailedPrecondition, &[condition, "blocked", &undo]);
        }
        // A probe may have been recorded since.
        let by_admin = |event: &&v1::HistoryEntry| event.cause().word() == "admin";
        let history = api.history("m-1").await;
        let reported = history.iter().rfind(by_admin).unwrap();
        assert_eq!(reported.actor, "admin");
        assert!(reported.message.contains("it burns"), "{reported:?}");
        let cleared = flag(&mut api, &format!("clear-{name}"), ("m-1", "repaired")).await.unwrap();
        assert!(!is(&cleared, condition));
        assert_eq!(states(&cleared), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
    }
    // Both flags are set: each must be cleared by its own command.
    for name in ["set-rma", "set-retired"] {
        flag(&mut api, name, ("m-1", "both")).await.unwrap();
    }
    let left = flag(&mut api, "clear-retired", ("m-1", "one")).await.unwrap();
    assert_eq!(states(&left).1, "EFFECTIVE_STATE_BLOCKED");
    flag(&mut api, "clear-rma", ("m-1", "two")).await.unwrap();
    api.done("m-1", "REBOOT", "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_may_clear_needs_intervention() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.failed_reimage("m-1", "repave").await;
    assert_eq!(states(&api.machine("m-1").await), ("MAINTENANCE", "EFFECTIVE_STATE_ATTENTION"));
    let machine = flag(&mut api, "clear-needs-intervention", ("m-1", "looked")).await.unwrap();
    assert!(!is(&machine, "NeedsIntervention"));
    assert_eq!(states(&machine), ("MAINTENANCE", "EFFECTIVE_STATE_MAINTENANCE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rma_run_ends_in_a_flagged_machine() {
    let (_world, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let run = api.done("m-1", "RMA", "r").await;
    let names: Vec<String> = steps(&run).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["drain", "record", "power-off", "mark"]);
    let machine = api.machine("m-1").await;
    assert!(is(&machine, "RMA"));
    assert_eq!(states(&machine), ("MAINTENANCE", "EFFECTIVE_STATE_BLOCKED"));
    assert!(!is(&machine, "Reachable"), "{machine:#?}");
    let answer = api.try_start("m-1", "REBOOT", "later").await;
    refused(answer, FailedPrecondition, &["RMA", "farrier admin clear-rma m-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_its_next_attempt_is_not_resumed() {
    let Some(cluster) = postgres() else { return };
    let dir = tempfile::tempdir().unwrap();
    let home = DatabaseKind::Postgres(new_database(&cluster).await);
    let config = "[engine]\nbackoff_first_ms = 1000\nbackoff_most_ms = 1000".into();
    let server = Server::start(Setup { home, config, ..Setup::new(dir.path(), "zero") });
    let mut api = server.clients().await;
    api.in_maintenance("m-1").await;
    api.fault(fault("m-1", "reboot", "fail", 1)).await;
    let run = api.start("m-1", "REBOOT", "r").await.run_id;
    api.until(&run, |run| !run.steps[0].message.is_empty()).await;
    refused(api.resume(&run).await, FailedPrecondition, &[&run, "still at work"]);
    api.succeeds(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rerun_and_restart_clean_are_different_requests() {
    let (_world, mut api) = TestServer::open("zero").await;
    let failed = api.failed_reimage("m-1", "join").await.run_id;
    let again = api.rerun(&failed, "again").await.unwrap().run_id;
    api.succeeds(&again).await;
    refused(api.restart_clean(&failed, "again").await, AlreadyExists, &["again", &again]);
}
