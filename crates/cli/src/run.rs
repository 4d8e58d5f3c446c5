//! Runs: operations with the operator's details, their steps, and the repair actions.

use crate::args::{
    CancelArgs, ListArgs, RunActionArgs, RunCommand, RunRestartArgs, RunStartArgs, RunWatchArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::follow::log_end;
use crate::follow::progress::Progress;
use crate::follow::summary::{error_lines, phase_label};
use crate::machine::{fetch, fetch_run_machine};
use crate::operation::{
    AcceptedOperation, ExpectedEnd, RecordKind, RunOrigin, choose_request_id, follow_or_report,
    follow_to_end, operation_to_run, target_label, target_name,
};
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::join_pairs;
use crate::time::Clock;
use crate::{logs, watch};
use model::node::NODE;
use proto::v1::{
    AdoptObservedStateRequest, CancelOperationRequest, CancelRunRequest, GetRunRequest,
    ListRunsRequest, MarkManualRequest, RerunRequest, RestartCleanRequest, ResumeRunRequest,
    RetryStepRequest, Run, StartRunRequest, StepStatus, WorkflowState, step_status::State,
};

pub async fn run(client: &Client, screen: &mut Screen, command: RunCommand) -> Result<Exit> {
    match command {
        RunCommand::Start(args) => start(client, screen, args).await,
        RunCommand::Get(args) => get(client, screen, &args.run_id).await,
        RunCommand::List(args) => list(client, screen, &args).await,
        RunCommand::Watch(args) => watch_one_or_all(client, screen, args).await,
        RunCommand::Logs(args) => logs::print_log(client, screen, args).await,
        RunCommand::Cancel(args) => cancel(client, screen, &args, RecordKind::Run).await,
        RunCommand::RetryStep(args) => {
            let call = async |run_id, reason| {
                client.call(client.runs().retry_step(RetryStepRequest { run_id, reason })).await
            };
            start_action(client, screen, &args, call).await
        }
        RunCommand::Resume(args) => {
            let call = async |run_id, reason| {
                client.call(client.runs().resume_run(ResumeRunRequest { run_id, reason })).await
            };
            start_action(client, screen, &args, call).await
        }
        RunCommand::Adopt(args) => {
            let call = async |run_id, reason| {
                let request = AdoptObservedStateRequest { run_id, reason };
                client.call(client.runs().adopt_observed_state(request)).await
            };
            start_action(client, screen, &args, call).await
        }
        RunCommand::Rerun(args) => {
            let call = async |run_id, request_id, reason| {
                client.call(client.runs().rerun(RerunRequest { run_id, request_id, reason })).await
            };
            restart_run(client, screen, &args, call).await
        }
        RunCommand::RestartClean(args) => {
            let call = async |run_id, request_id, reason| {
                let request = RestartCleanRequest { run_id, request_id, reason };
                client.call(client.runs().restart_clean(request)).await
            };
            restart_run(client, screen, &args, call).await
        }
        RunCommand::MarkManual(args) => {
            let request = MarkManualRequest { run_id: args.run_id, reason: args.reason };
            let run = client.call(client.runs().mark_manual(request)).await?;
            print_run(screen, &run)
        }
    }
}

pub async fn fetch_run(client: &Client, run_id: &str) -> Result<Run> {
    client.call(client.runs().get_run(GetRunRequest { run_id: run_id.to_string() })).await
}

fn print_run(screen: &mut Screen, run: &Run) -> Result<Exit> {
    screen.print_record(run, |run| describe(run, &Clock::system()))?;
    Ok(Exit::Success)
}

pub async fn get(client: &Client, screen: &mut Screen, run_id: &str) -> Result<Exit> {
    let run = fetch_run(client, run_id).await?;
    print_run(screen, &run)
}

pub async fn start(client: &Client, screen: &mut Screen, args: RunStartArgs) -> Result<Exit> {
    let RunStartArgs { machine_id, kind, plan_id, params, submit } = args;
    let before = if submit.wait.waits() { Some(fetch(client, &machine_id).await?) } else { None };
    let request_id = choose_request_id(screen, submit.request_id.as_ref())?;
    let params = params.into_iter().collect();
    let request = StartRunRequest {
        request_id,
        machine_id,
        r#type: kind.wire_name().into(),
        plan_id,
        params,
    };
    let run = client.call(client.runs().start_run(request)).await?;
    let accepted = AcceptedOperation {
        run,
        record_kind: RecordKind::Run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Submitted,
        before,
    };
    follow_or_report(client, screen, accepted, &submit.wait).await
}

async fn watch_one_or_all(
    client: &Client,
    screen: &mut Screen,
    args: RunWatchArgs,
) -> Result<Exit> {
    let Some(run_id) = args.run_id else {
        return watch::watch_runs(client, screen, args.filter, args.all).await;
    };
    let run = fetch_run(client, &run_id).await?;
    let accepted = AcceptedOperation {
        run,
        record_kind: RecordKind::Run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Watched,
        before: None,
    };
    follow_to_end(client, screen, accepted, args.timeout).await
}

/// Cancels an operation or a run; `record_kind` decides which record is returned.
pub async fn cancel(
    client: &Client,
    screen: &mut Screen,
    args: &CancelArgs,
    record_kind: RecordKind,
) -> Result<Exit> {
    let action = RunAction { run_id: &args.operation_id, reason: &args.reason, wait: &args.wait };
    let call = async |id: String, reason: String| match record_kind {
        RecordKind::Run => {
            client.call(client.runs().cancel_run(CancelRunRequest { run_id: id, reason })).await
        }
        RecordKind::Operation => {
            let request = CancelOperationRequest { operation_id: id, reason, dry_run: false };
            client.call(client.machines().cancel_operation(request)).await.map(operation_to_run)
        }
    };
    apply_action(client, screen, action, (record_kind, ExpectedEnd::Canceled), call).await
}

async fn start_action(
    client: &Client,
    screen: &mut Screen,
    args: &RunActionArgs,
    call: impl AsyncFnOnce(String, String) -> Result<Run>,
) -> Result<Exit> {
    let action = RunAction { run_id: &args.run_id, reason: &args.reason, wait: &args.wait };
    apply_action(client, screen, action, (RecordKind::Run, ExpectedEnd::Succeeded), call).await
}

/// An operator's action on an existing run.
struct RunAction<'a> {
    run_id: &'a str,
    reason: &'a str,
    wait: &'a crate::args::WaitArgs,
}

/// Records the run's state before the action, so that only later changes are printed.
async fn apply_action(
    client: &Client,
    screen: &mut Screen,
    action: RunAction<'_>,
    (record_kind, expected_end): (RecordKind, ExpectedEnd),
    call: impl AsyncFnOnce(String, String) -> Result<Run>,
) -> Result<Exit> {
    let mut before = None;
    let mut origin = RunOrigin::Acted { printed: Progress::default(), log_offset: 0 };
    if action.wait.waits() {
        let run = fetch_run(client, action.run_id).await?;
        before = fetch_run_machine(client, &run).await?;
        origin = RunOrigin::Acted {
            printed: Progress::after(&run),
            log_offset: log_end(client, action.run_id).await?,
        };
    }
    let run = call(action.run_id.to_string(), action.reason.to_string()).await?;
    follow_or_report(
        client,
        screen,
        AcceptedOperation { run, record_kind, expected_end, origin, before },
        action.wait,
    )
    .await
}

/// Starts a new run from an existing one.
async fn restart_run(
    client: &Client,
    screen: &mut Screen,
    args: &RunRestartArgs,
    call: impl AsyncFnOnce(String, String, String) -> Result<Run>,
) -> Result<Exit> {
    let mut before = None;
    if args.submit.wait.waits() {
        let old = fetch_run(client, &args.run_id).await?;
        before = fetch_run_machine(client, &old).await?;
    }
    let request_id = choose_request_id(screen, args.submit.request_id.as_ref())?;
    let run = call(args.run_id.clone(), request_id, args.reason.clone()).await?;
    let accepted = AcceptedOperation {
        run,
        record_kind: RecordKind::Run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Submitted,
        before,
    };
    follow_or_report(client, screen, accepted, &args.submit.wait).await
}

pub async fn list(client: &Client, screen: &mut Screen, args: &ListArgs) -> Result<Exit> {
    let runs = fetch_runs(client, &args.filter, args.limit).await?;
    print_runs(screen, &runs, RunListColumn::Target)?;
    Ok(Exit::Success)
}

/// Fetches the runs that match, newest first.
pub async fn fetch_runs(client: &Client, filter: &str, limit: Option<u32>) -> Result<Vec<Run>> {
    fetch_pages(limit, async |page_size, page_token| {
        let request = ListRunsRequest { filter: filter.to_string(), page_size, page_token };
        let answer = client.call(client.runs().list_runs(request)).await?;
        Ok((answer.runs, answer.next_page_token))
    })
    .await
}

/// The object that a list shows next to each run ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunListColumn {
    /// The machine or device that the run acts on.
    Target,
    /// The node that the run works on.
    Node,
}

impl RunListColumn {
    fn heading(self) -> &'static str {
        match self {
            RunListColumn::Target => "MACHINE_ID",
            RunListColumn::Node => "NODE",
        }
    }

    fn value(self, run: &Run) -> &str {
        match self {
            RunListColumn::Target => target_name(&run.machine_id, &run.target_id),
            RunListColumn::Node => run.params.get(NODE).map_or("", String::as_str),
        }
    }
}

pub fn print_runs(screen: &mut Screen, runs: &[Run], column: RunListColumn) -> Result<()> {
    let clock = Clock::system();
    screen.print_list(runs, |runs, wide| table(runs, column, wide, &clock), "no runs match")
}

pub fn workflow_name(run: &Run) -> &'static str {
    match run.workflow_state() {
        WorkflowState::Unspecified => "-",
        WorkflowState::Pending => "PENDING",
        WorkflowState::Running => "RUNNING",
        WorkflowState::Completed => "COMPLETED",
        WorkflowState::FailedRetryable => "FAILED_RETRYABLE",
        WorkflowState::FailedManualIntervention => "FAILED_MANUAL_INTERVENTION",
        WorkflowState::Cancelled => "CANCELLED",
        WorkflowState::Compensating => "COMPENSATING",
        WorkflowState::Reconciled => "RECONCILED",
    }
}

fn table(runs: &[Run], column: RunListColumn, wide: bool, clock: &Clock) -> Table {
    let heading = column.heading();
    let names = ["RUN_ID", heading, "TYPE", "PLAN", "WORKFLOW", "STEP", "CREATED", "DURATION"];
    let more = ["PHASE", "REQUEST_ID", "INITIATOR", "PARENT", "ERROR"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for run in runs {
        let (tone, _) = phase_label(run.phase());
        let mut row: Vec<Cell> = vec![
            (&run.run_id).into(),
            column.value(run).into(),
            (&run.r#type).into(),
            (&run.plan_id).into(),
            Cell::with_tone(workflow_name(run), tone),
            (&run.current_step).into(),
            clock.ago(run.created_at.as_ref()).into(),
            clock.elapsed(run.started_at.as_ref(), run.finished_at.as_ref()).into(),
        ];
        if wide {
            let error = run.error.as_ref().map_or("", |error| error.message.as_str());
            row.extend([
                run.phase().as_str_name().into(),
                (&run.request_id).into(),
                (&run.initiator).into(),
                (&run.parent_run_id).into(),
                error.into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// Formats all details of one run.
pub fn describe(run: &Run, clock: &Clock) -> String {
    let mut facts = vec![
        ("Operation:", run.run_id.clone()),
        (target_label(&run.target_kind), target_name(&run.machine_id, &run.target_id).into()),
        ("Part of:", run.part_of.clone()),
        ("Type:", run.r#type.clone()),
        ("Plan:", run.plan_id.clone()),
        ("Phase:", run.phase().as_str_name().into()),
        ("Workflow:", workflow_name(run).into()),
        ("Params:", join_pairs(&run.params, ", ")),
        ("RequestId:", run.request_id.clone()),
        ("Initiator:", run.initiator.clone()),
        ("Parent:", run.parent_run_id.clone()),
        ("Created:", clock.absolute(run.created_at.as_ref())),
        ("Duration:", clock.elapsed(run.started_at.as_ref(), run.finished_at.as_ref())),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format_pairs(&facts);
    for line in error_lines(run) {
        text.push_str(&format!("{line}\n"));
    }
    if !run.steps.is_empty() {
        text.push('\n');
        text.push_str(&steps_table(&run.steps, clock).render(ColorMode { enabled: false }));
    }
    text
}

fn steps_table(steps: &[StepStatus], clock: &Clock) -> Table {
    let mut table = Table::new(&["STEP", "KIND", "STATE", "RETRIES", "DURATION", "MESSAGE"]);
    for step in steps {
        let kind = if step.undo { format!("undo {}", step.kind) } else { step.kind.clone() };
        let state = match step.state() {
            State::Unspecified => Cell::from("-"),
            State::Waiting => Cell::with_tone("WAITING", Tone::Dim),
            State::Running => Cell::with_tone("RUNNING", Tone::Busy),
            State::Succeeded => Cell::with_tone("SUCCEEDED", Tone::Good),
            State::Failed => Cell::with_tone("FAILED", Tone::Bad),
        };
        table.add_row(vec![
            (&step.name).into(),
            kind.into(),
            state,
            step.retry_count.to_string().into(),
            clock.elapsed(step.started_at.as_ref(), step.finished_at.as_ref()).into(),
            (&step.message).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::run::Phase;

    #[test]
    fn a_list_names_what_runs_act_on_or_the_node_that_they_work_on() {
        let run = Run {
            run_id: "op-1".into(),
            machine_id: "machine-1".into(),
            r#type: "ONBOARD".into(),
            plan_id: "p".into(),
            workflow_state: WorkflowState::FailedRetryable.into(),
            current_step: "wait_for_ready".into(),
            params: [(NODE.to_string(), "node-1".to_string())].into(),
            ..Default::default()
        };
        for (column, first) in [
            (RunListColumn::Target, "op-1    machine-1   ONBOARD"),
            (RunListColumn::Node, "op-1    node-1  ONBOARD"),
        ] {
            let shown = table(std::slice::from_ref(&run), column, false, &Clock::fixed(0));
            let text = shown.render(ColorMode { enabled: false });
            let row = text.lines().nth(1).unwrap();
            assert!(row.starts_with(first), "{text}");
            assert!(row.contains("FAILED_RETRYABLE  wait_for_ready"), "{text}");
        }
    }

    #[test]
    fn a_run_in_full() {
        let step = StepStatus {
            name: "set-netboot".into(),
            kind: "netboot".into(),
            state: State::Running.into(),
            retry_count: 1,
            started_at: Some(Timestamp { seconds: 90, nanos: 0 }),
            message: "no answer".into(),
            ..Default::default()
        };
        let run = Run {
            run_id: "op-1".into(),
            machine_id: "machine-1".into(),
            r#type: "REIMAGE".into(),
            phase: Phase::Running.into(),
            workflow_state: WorkflowState::Running.into(),
            steps: vec![step],
            ..Default::default()
        };
        assert_eq!(
            describe(&run, &Clock::fixed(100)),
            "\
Operation:  op-1
Machine:    machine-1
Type:       REIMAGE
Phase:      RUNNING
Workflow:   RUNNING
Created:    -
Duration:   -

STEP         KIND     STATE    RETRIES  DURATION  MESSAGE
set-netboot  netboot  RUNNING  1        10s       no answer
"
        );
    }
}
