//! Runs: operations with the operator's details, their steps, and the repair actions.

use crate::args::{
    CancelArgs, ListArgs, RunActionArgs, RunCommand, RunRestartArgs, RunStartArgs, RunWatchArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure};
use crate::follow::log_end;
use crate::follow::progress::Progress;
use crate::follow::summary::{error_lines, phase_label};
use crate::machine::{fetch, fetch_of};
use crate::operation::{
    Errand, Goal, Origin, View, accompany, as_run, request_id, see_through, target_name,
    target_noun,
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

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    command: RunCommand,
) -> Result<Exit, Failure> {
    match command {
        RunCommand::Start(args) => start(client, screen, args).await,
        RunCommand::Get(args) => get(client, screen, &args.run_id).await,
        RunCommand::List(args) => list(client, screen, &args).await,
        RunCommand::Watch(args) => watch_one_or_all(client, screen, args).await,
        RunCommand::Logs(args) => logs::show(client, screen, args).await,
        RunCommand::Cancel(args) => cancel(client, screen, &args, View::Run).await,
        RunCommand::RetryStep(args) => {
            let ask = async |run_id, reason| {
                client.call(client.runs().retry_step(RetryStepRequest { run_id, reason })).await
            };
            act(client, screen, &args, ask).await
        }
        RunCommand::Resume(args) => {
            let ask = async |run_id, reason| {
                client.call(client.runs().resume_run(ResumeRunRequest { run_id, reason })).await
            };
            act(client, screen, &args, ask).await
        }
        RunCommand::Adopt(args) => {
            let ask = async |run_id, reason| {
                let request = AdoptObservedStateRequest { run_id, reason };
                client.call(client.runs().adopt_observed_state(request)).await
            };
            act(client, screen, &args, ask).await
        }
        RunCommand::Rerun(args) => {
            let ask = async |run_id, request_id, reason| {
                client.call(client.runs().rerun(RerunRequest { run_id, request_id, reason })).await
            };
            remake(client, screen, &args, ask).await
        }
        RunCommand::RestartClean(args) => {
            let ask = async |run_id, request_id, reason| {
                let request = RestartCleanRequest { run_id, request_id, reason };
                client.call(client.runs().restart_clean(request)).await
            };
            remake(client, screen, &args, ask).await
        }
        RunCommand::MarkManual(args) => {
            let request = MarkManualRequest { run_id: args.run_id, reason: args.reason };
            let run = client.call(client.runs().mark_manual(request)).await?;
            show(screen, &run)
        }
    }
}

pub async fn fetch_run(client: &Client, run_id: &str) -> Result<Run, Failure> {
    client.call(client.runs().get_run(GetRunRequest { run_id: run_id.to_string() })).await
}

fn show(screen: &mut Screen, run: &Run) -> Result<Exit, Failure> {
    screen.print_record(run, |run| describe(run, &Clock::system()))?;
    Ok(Exit::Success)
}

pub async fn get(client: &Client, screen: &mut Screen, run_id: &str) -> Result<Exit, Failure> {
    let run = fetch_run(client, run_id).await?;
    show(screen, &run)
}

pub async fn start(
    client: &Client,
    screen: &mut Screen,
    args: RunStartArgs,
) -> Result<Exit, Failure> {
    let RunStartArgs { machine_id, kind, plan_id, params, submit } = args;
    let before = if submit.wait.waits() { Some(fetch(client, &machine_id).await?) } else { None };
    let request_id = request_id(screen, submit.request_id.as_ref())?;
    let params = params.into_iter().collect();
    let request = StartRunRequest {
        request_id,
        machine_id,
        r#type: kind.wire_name().into(),
        plan_id,
        params,
    };
    let run = client.call(client.runs().start_run(request)).await?;
    let errand =
        Errand { run, view: View::Run, goal: Goal::Succeed, origin: Origin::Submitted, before };
    see_through(client, screen, errand, &submit.wait).await
}

async fn watch_one_or_all(
    client: &Client,
    screen: &mut Screen,
    args: RunWatchArgs,
) -> Result<Exit, Failure> {
    let Some(run_id) = args.run_id else {
        return watch::runs(client, screen, args.filter, args.all).await;
    };
    let run = fetch_run(client, &run_id).await?;
    let errand =
        Errand { run, view: View::Run, goal: Goal::Succeed, origin: Origin::Watched, before: None };
    accompany(client, screen, errand, args.timeout).await
}

/// Cancels an operation or a run; `view` decides which record is returned.
pub async fn cancel(
    client: &Client,
    screen: &mut Screen,
    args: &CancelArgs,
    view: View,
) -> Result<Exit, Failure> {
    let action = Action { run_id: &args.operation_id, reason: &args.reason, wait: &args.wait };
    let ask = async |id: String, reason: String| match view {
        View::Run => {
            client.call(client.runs().cancel_run(CancelRunRequest { run_id: id, reason })).await
        }
        View::Operation => {
            let request = CancelOperationRequest { operation_id: id, reason, dry_run: false };
            client.call(client.machines().cancel_operation(request)).await.map(as_run)
        }
    };
    act_on(client, screen, action, (view, Goal::Cancel), ask).await
}

async fn act(
    client: &Client,
    screen: &mut Screen,
    args: &RunActionArgs,
    ask: impl AsyncFnOnce(String, String) -> Result<Run, Failure>,
) -> Result<Exit, Failure> {
    let action = Action { run_id: &args.run_id, reason: &args.reason, wait: &args.wait };
    act_on(client, screen, action, (View::Run, Goal::Succeed), ask).await
}

/// An operator's action on an existing run.
struct Action<'a> {
    run_id: &'a str,
    reason: &'a str,
    wait: &'a crate::args::WaitArgs,
}

/// Records the run's state before the action, so that only later changes are printed.
async fn act_on(
    client: &Client,
    screen: &mut Screen,
    action: Action<'_>,
    (view, goal): (View, Goal),
    ask: impl AsyncFnOnce(String, String) -> Result<Run, Failure>,
) -> Result<Exit, Failure> {
    let mut before = None;
    let mut origin = Origin::Acted { told: Progress::default(), log_offset: 0 };
    if action.wait.waits() {
        let run = fetch_run(client, action.run_id).await?;
        before = fetch_of(client, &run).await?;
        origin = Origin::Acted {
            told: Progress::after(&run),
            log_offset: log_end(client, action.run_id).await?,
        };
    }
    let run = ask(action.run_id.to_string(), action.reason.to_string()).await?;
    see_through(client, screen, Errand { run, view, goal, origin, before }, action.wait).await
}

/// Starts a new run from an existing one.
async fn remake(
    client: &Client,
    screen: &mut Screen,
    args: &RunRestartArgs,
    ask: impl AsyncFnOnce(String, String, String) -> Result<Run, Failure>,
) -> Result<Exit, Failure> {
    let mut before = None;
    if args.submit.wait.waits() {
        let old = fetch_run(client, &args.run_id).await?;
        before = fetch_of(client, &old).await?;
    }
    let request_id = request_id(screen, args.submit.request_id.as_ref())?;
    let run = ask(args.run_id.clone(), request_id, args.reason.clone()).await?;
    let errand =
        Errand { run, view: View::Run, goal: Goal::Succeed, origin: Origin::Submitted, before };
    see_through(client, screen, errand, &args.submit.wait).await
}

pub async fn list(client: &Client, screen: &mut Screen, args: &ListArgs) -> Result<Exit, Failure> {
    let runs = fetch_all(client, &args.filter, args.limit).await?;
    show_all(screen, &runs, Subject::Target)?;
    Ok(Exit::Success)
}

/// Fetches the runs that match, newest first.
pub async fn fetch_all(
    client: &Client,
    filter: &str,
    limit: Option<u32>,
) -> Result<Vec<Run>, Failure> {
    fetch_pages(limit, async |page_size, page_token| {
        let request = ListRunsRequest { filter: filter.to_string(), page_size, page_token };
        let answer = client.call(client.runs().list_runs(request)).await?;
        Ok((answer.runs, answer.next_page_token))
    })
    .await
}

/// The object that a list shows next to each run ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The machine or device that the run acts on.
    Target,
    /// The node that the run works on.
    Node,
}

impl Subject {
    fn column(self) -> &'static str {
        match self {
            Subject::Target => "MACHINE_ID",
            Subject::Node => "NODE",
        }
    }

    fn of(self, run: &Run) -> &str {
        match self {
            Subject::Target => target_name(&run.machine_id, &run.target_id),
            Subject::Node => run.params.get(NODE).map_or("", String::as_str),
        }
    }
}

pub fn show_all(screen: &mut Screen, runs: &[Run], subject: Subject) -> Result<(), Failure> {
    let clock = Clock::system();
    screen.print_list(runs, |runs, wide| table(runs, subject, wide, &clock), "no runs match")
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

fn table(runs: &[Run], subject: Subject, wide: bool, clock: &Clock) -> Table {
    let column = subject.column();
    let names = ["RUN_ID", column, "TYPE", "PLAN", "WORKFLOW", "STEP", "CREATED", "DURATION"];
    let more = ["PHASE", "REQUEST_ID", "INITIATOR", "PARENT", "ERROR"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for run in runs {
        let (tone, _) = phase_label(run.phase());
        let mut row: Vec<Cell> = vec![
            (&run.run_id).into(),
            subject.of(run).into(),
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
        (target_noun(&run.target_kind), target_name(&run.machine_id, &run.target_id).into()),
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
        for (subject, first) in [
            (Subject::Target, "op-1    machine-1   ONBOARD"),
            (Subject::Node, "op-1    node-1  ONBOARD"),
        ] {
            let shown = table(std::slice::from_ref(&run), subject, false, &Clock::fixed(0));
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
