//! Operations: start, list, show and follow them, and the repair actions.
//!
//! An operation and a run are the same record. These commands fetch it as a run, which has the
//! steps. A node ID stands for the newest operation on that node. For a command that only reads,
//! so does the ID of a device or of a rack.

mod preview;
mod submit;
mod table;
pub use preview::{format_steps, time_line, usual_cell};
pub use submit::*;
pub use table::*;

use crate::args::{
    OperationActionArgs, OperationCommand, OperationListArgs, OperationRestartArgs,
    OperationStartArgs, OperationWatchArgs, Since, gate_override,
};
use crate::client::{Client, build_id_filter, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::FilterText;
use crate::follow::log_end;
use crate::follow::progress::Progress;
use crate::machine::{fetch, fetch_run_machine};
use crate::output::Screen;
use crate::time::Clock;
use crate::{OPERATION_PREFIX, logs, node, watch};
use model::filter::{Filter, FilterSubject};
use model::node::NODE;
use model::plan::RunType;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use proto::v1::{
    AdoptObservedStateRequest, CancelRunRequest, GetRunRequest, ListRunsRequest, MarkManualRequest,
    RerunRequest, RestartCleanRequest, ResumeRunRequest, RetryStepRequest, Run, StartRunRequest,
    run::Phase,
};

/// The prefix of node IDs; no other ID starts with it.
const NODE_PREFIX: &str = "node-";
/// The short form of `operation cancel`.
const CANCEL: &str = "cancel";
/// Printed in place of an empty list.
const NONE_MATCH: &str = "no operations match";

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    mut command: OperationCommand,
) -> Result<Exit> {
    let dry_run = client.is_dry_run();
    if let Some(acting) = ActingCommand::of(&mut command) {
        acting.resolve(client).await?;
    }
    match command {
        OperationCommand::List(args) => list(client, screen, &args).await,
        OperationCommand::Get(args) => get(client, screen, &args.operation_id).await,
        OperationCommand::Start(args) => start(client, screen, args).await,
        OperationCommand::Watch(args) => watch_one_or_all(client, screen, args).await,
        OperationCommand::Logs(args) => logs::print_log(client, screen, args).await,
        OperationCommand::Cancel(args) => cancel(client, screen, &args).await,
        OperationCommand::RetryStep(args) => {
            let call = async |run_id, reason| {
                client
                    .call(client.runs().retry_step(RetryStepRequest { run_id, reason, dry_run }))
                    .await
            };
            continue_run(client, screen, &args, call).await
        }
        OperationCommand::Resume(args) => {
            let call = async |run_id, reason| {
                client
                    .call(client.runs().resume_run(ResumeRunRequest { run_id, reason, dry_run }))
                    .await
            };
            continue_run(client, screen, &args, call).await
        }
        OperationCommand::Adopt(args) => {
            let call = async |run_id, reason| {
                let request = AdoptObservedStateRequest { run_id, reason, dry_run };
                client.call(client.runs().adopt_observed_state(request)).await
            };
            continue_run(client, screen, &args, call).await
        }
        OperationCommand::Rerun(args) => {
            let gate_override = gate_override(&args.gates, &args.reason);
            let call = async |run_id, request_id, reason| {
                let request = RerunRequest { run_id, request_id, reason, dry_run, gate_override };
                client.call(client.runs().rerun(request)).await
            };
            restart_run(client, screen, &args, call).await
        }
        OperationCommand::RestartClean(args) => {
            let gate_override = gate_override(&args.gates, &args.reason);
            let call = async |run_id, request_id, reason| {
                let request =
                    RestartCleanRequest { run_id, request_id, reason, dry_run, gate_override };
                client.call(client.runs().restart_clean(request)).await
            };
            restart_run(client, screen, &args, call).await
        }
        OperationCommand::MarkManual(args) => {
            let request =
                MarkManualRequest { run_id: args.operation_id, reason: args.reason, dry_run };
            let run = client.call(client.runs().mark_manual(request)).await?;
            if dry_run {
                let request = preview::PreviewedRequest::MarkManual;
                screen.print_record(&run, |run| preview::format_preview(run, request))?;
                return Ok(Exit::Success);
            }
            print_run(screen, &run)
        }
    }
}

/// A command that acts on one operation.
struct ActingCommand<'a> {
    name: &'static str,
    /// The required options of the command.
    options: &'static str,
    id: &'a mut String,
}

impl<'a> ActingCommand<'a> {
    fn of(command: &'a mut OperationCommand) -> Option<Self> {
        let (name, options, id) = match command {
            OperationCommand::Cancel(args) => (CANCEL, "", &mut args.operation_id),
            OperationCommand::RetryStep(args) => {
                ("operation retry-step", "", &mut args.operation_id)
            }
            OperationCommand::Resume(args) => ("operation resume", "", &mut args.operation_id),
            OperationCommand::Adopt(args) => ("operation adopt", "", &mut args.operation_id),
            OperationCommand::Rerun(args) => ("operation rerun", "", &mut args.operation_id),
            OperationCommand::RestartClean(args) => {
                ("operation restart-clean", "", &mut args.operation_id)
            }
            OperationCommand::MarkManual(args) => {
                ("operation mark-manual", " --reason …", &mut args.operation_id)
            }
            OperationCommand::List(_)
            | OperationCommand::Get(_)
            | OperationCommand::Start(_)
            | OperationCommand::Watch(_)
            | OperationCommand::Logs(_) => return None,
        };
        Some(Self { name, options, id })
    }

    /// Resolves its ID. A device has many operations, so its ID names none.
    async fn resolve(self, client: &Client) -> Result<()> {
        let Self { name, options, id } = self;
        if [OPERATION_PREFIX, NODE_PREFIX].iter().any(|prefix| id.starts_with(prefix)) {
            *id = resolve_operation_id(client, id).await?;
            return Ok(());
        }
        let run = fetch_newest(client, id).await?;
        let (run_id, phase) = (&run.run_id, run.phase());
        let which = match matches!(phase, Phase::Pending | Phase::Running) {
            true => format!("{run_id} is active on {id}"),
            false => {
                let phase = phase.as_str_name();
                format!("none is active on {id}, and the last one was {run_id}: {phase}")
            }
        };
        // Nothing is left to cancel of an operation that did not fail.
        let over = name == CANCEL && matches!(phase, Phase::Succeeded | Phase::Canceled);
        let next = if over { "why" } else { name };
        Err(Failure::refused(format!(
            "farrier {name} needs the ID of an operation: {which}\n\
             next: farrier {next} {run_id}{options}"
        )))
    }
}

/// Resolves the ID of a command that reads to an operation ID.
pub async fn resolve_operation_id(client: &Client, id: &str) -> Result<String> {
    if id.starts_with(OPERATION_PREFIX) {
        return Ok(id.to_string());
    }
    if !id.starts_with(NODE_PREFIX) {
        return Ok(fetch_newest(client, id).await?.run_id);
    }
    match node::fetch(client, id).await?.workflow {
        Some(run) => Ok(run.run_id),
        None => Err(no_operation(id, &format!("node get {id}"))),
    }
}

/// Fetches the operation that holds a machine, or else the newest one on a machine, rack, switch or
/// power shelf.
async fn fetch_newest(client: &Client, id: &str) -> Result<Run> {
    // The server says what is wrong with an ID that names nothing.
    let Ok(target) = TargetId::parse(id) else { return fetch_run(client, id).await };
    if target.kind == TargetKind::Machine {
        let machine = fetch(client, id).await?;
        let holder = machine.status.unwrap_or_default().active_operation_id;
        if !holder.is_empty() {
            return fetch_run(client, &holder).await;
        }
    }
    let filter = build_id_filter("target_id", id, "")?;
    let runs = fetch_runs(client, (&filter, ""), Some(1)).await?;
    runs.into_iter().next().ok_or_else(|| no_operation(id, &format!("why {id}")))
}

fn no_operation(id: &str, next: &str) -> Failure {
    let message = format!("{id} has had no operation yet, or it has been cleared away");
    Failure::refused(format!("{message}\nnext: farrier {next}"))
}

pub async fn fetch_run(client: &Client, run_id: &str) -> Result<Run> {
    client.call(client.runs().get_run(GetRunRequest { run_id: run_id.to_string() })).await
}

fn print_run(screen: &mut Screen, run: &Run) -> Result<Exit> {
    screen.print_record(run, |run| describe(run, &Clock::system()))?;
    Ok(Exit::Success)
}

pub async fn get(client: &Client, screen: &mut Screen, operation_id: &str) -> Result<Exit> {
    let run_id = resolve_operation_id(client, operation_id).await?;
    let run = fetch_run(client, &run_id).await?;
    print_run(screen, &run)
}

pub async fn start(client: &Client, screen: &mut Screen, args: OperationStartArgs) -> Result<Exit> {
    let OperationStartArgs { machine_id, kind, plan_id, params, overrides, submit } = args;
    let before = if submit.wait.waits() { Some(fetch(client, &machine_id).await?) } else { None };
    let request_id = request_id_unless_dry_run(client, screen, &submit)?;
    let params = params.into_iter().collect();
    let request = StartRunRequest {
        request_id,
        machine_id,
        r#type: kind.wire_name().into(),
        plan_id,
        params,
        gate_override: overrides.to_message(),
        dry_run: client.is_dry_run(),
    };
    let run = client.call(client.runs().start_run(request)).await?;
    let accepted = AcceptedOperation {
        run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Submitted { replayed: submit.request_id.is_some() },
        before,
    };
    follow_or_report(client, screen, accepted, &submit.wait).await
}

async fn watch_one_or_all(
    client: &Client,
    screen: &mut Screen,
    args: OperationWatchArgs,
) -> Result<Exit> {
    let Some(operation_id) = args.operation_id else {
        return watch::watch_runs(client, screen, args.filter, args.all).await;
    };
    let run_id = resolve_operation_id(client, &operation_id).await?;
    let run = fetch_run(client, &run_id).await?;
    let accepted = AcceptedOperation {
        run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Watched,
        before: None,
    };
    follow_to_end(client, screen, accepted, args.timeout).await
}

pub async fn cancel(
    client: &Client,
    screen: &mut Screen,
    args: &OperationActionArgs,
) -> Result<Exit> {
    let dry_run = client.is_dry_run();
    let call = async |run_id, reason| {
        client.call(client.runs().cancel_run(CancelRunRequest { run_id, reason, dry_run })).await
    };
    apply_action(client, screen, args, ExpectedEnd::Canceled, call).await
}

async fn continue_run(
    client: &Client,
    screen: &mut Screen,
    args: &OperationActionArgs,
    call: impl AsyncFnOnce(String, String) -> Result<Run>,
) -> Result<Exit> {
    apply_action(client, screen, args, ExpectedEnd::Succeeded, call).await
}

/// Records the run's state before the action, so that only later changes are printed.
async fn apply_action(
    client: &Client,
    screen: &mut Screen,
    args: &OperationActionArgs,
    expected_end: ExpectedEnd,
    call: impl AsyncFnOnce(String, String) -> Result<Run>,
) -> Result<Exit> {
    let run_id = args.operation_id.clone();
    let mut before = None;
    let mut origin = RunOrigin::Acted { printed: Progress::default(), log_offset: 0 };
    if args.wait.waits() {
        let run = fetch_run(client, &run_id).await?;
        before = fetch_run_machine(client, &run).await?;
        origin = RunOrigin::Acted {
            printed: Progress::after(&run),
            log_offset: log_end(client, &run_id).await?,
        };
    }
    let run = call(run_id, args.reason.clone()).await?;
    let accepted = AcceptedOperation { run, expected_end, origin, before };
    follow_or_report(client, screen, accepted, &args.wait).await
}

/// Starts a new run from an existing one.
async fn restart_run(
    client: &Client,
    screen: &mut Screen,
    args: &OperationRestartArgs,
    call: impl AsyncFnOnce(String, String, String) -> Result<Run>,
) -> Result<Exit> {
    let run_id = args.operation_id.clone();
    let mut before = None;
    if args.submit.wait.waits() {
        let old = fetch_run(client, &run_id).await?;
        before = fetch_run_machine(client, &old).await?;
    }
    let request_id = request_id_unless_dry_run(client, screen, &args.submit)?;
    let run = call(run_id, request_id, args.reason.clone()).await?;
    let accepted = AcceptedOperation {
        run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Submitted { replayed: args.submit.request_id.is_some() },
        before,
    };
    follow_or_report(client, screen, accepted, &args.submit.wait).await
}

pub async fn list(client: &Client, screen: &mut Screen, args: &OperationListArgs) -> Result<Exit> {
    let filter = list_filter(args, Clock::system().now());
    let order_by = args.list.sort.order_by.as_str();
    let runs = match &args.node {
        None => fetch_runs(client, (&filter, order_by), args.list.limit).await?,
        Some(node_id) => {
            fetch_node_runs(client, node_id, (&filter, order_by), args.list.limit).await?
        }
    };
    let clock = Clock::system();
    screen.print_list(&runs, |runs, wide| operation_table(runs, wide, &clock), NONE_MATCH)?;
    Ok(Exit::Success)
}

/// Fetches the runs that match, newest first unless an order is given.
pub async fn fetch_runs(
    client: &Client,
    (filter, order_by): (&str, &str),
    limit: Option<u32>,
) -> Result<Vec<Run>> {
    fetch_pages(limit, async |page_size, page_token| {
        let (filter, order_by) = (filter.to_string(), order_by.to_string());
        let request = ListRunsRequest { filter, page_size, page_token, order_by };
        let answer = client.call(client.runs().list_runs(request)).await?;
        Ok((answer.runs, answer.next_page_token, answer.unreadable_rows))
    })
    .await
}

/// Fetches the runs on one node. Runs are filtered by machine, and the machine may have been
/// another node before.
async fn fetch_node_runs(
    client: &Client,
    node_id: &str,
    (filter, order_by): (&str, &str),
    limit: Option<u32>,
) -> Result<Vec<Run>> {
    let node = node::fetch(client, node_id).await?.node.unwrap_or_default();
    let filter = FilterText::typed(filter).any_of("type", &node_types()).build();
    let filter = build_id_filter("machine_id", &node.machine_id, &filter)?;
    let mut runs = fetch_runs(client, (&filter, order_by), None).await?;
    runs.retain(|run| run.params.get(NODE).is_some_and(|id| id == node_id));
    runs.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
    Ok(runs)
}

fn node_types() -> [String; 3] {
    RunType::NODES.map(|kind| kind.as_str().to_string())
}

/// The filter of a list: the one that was typed, and the options. Child operations are left out
/// unless the request names them; without a filter, routine operations are left out too.
fn list_filter(args: &OperationListArgs, now: Timestamp) -> String {
    let typed = &args.list.filter;
    let since = match &args.since {
        None => None,
        Some(Since::Ago(ago)) => Some(now - *ago),
        Some(Since::Time(time)) => Some(*time),
    };
    let filter = FilterText::typed(typed)
        .any_of("workflow_state", &args.states)
        .equal("initiator", &args.initiator)
        .equal("part_of", &args.parent);
    let filter = match filter.is_empty() && !args.all {
        true => filter.none_of("type", &RunType::ROUTINE.map(RunType::as_str)),
        false => filter,
    };
    let filter = filter.not_before("created_at", since);
    // A filter that cannot be parsed is refused by the server.
    let names_child =
        Filter::parse(typed, FilterSubject::Run).map_or(true, |filter| filter.names_child());
    match args.all || !args.parent.is_empty() || names_child {
        true => filter.build(),
        false => filter.empty("part_of").build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OperationFilterArgs;
    use model::filter::FilterField;
    use model::run::Workflow;
    use std::time::Duration;

    #[test]
    fn the_filters_are_those_that_the_server_reads() {
        let now = Timestamp::from_millis(10_000);
        let fields = |args: OperationListArgs| {
            let parsed = Filter::parse(&list_filter(&args, now), FilterSubject::Run).unwrap();
            parsed.terms.into_iter().map(|term| (term.field, term.values)).collect::<Vec<_>>()
        };
        let of = |field, value: &str| (field, vec![value.to_string()]);
        let whole = of(FilterField::PartOf, "");
        let typed = |filter: &str| {
            let list = OperationFilterArgs { filter: filter.into(), ..Default::default() };
            OperationListArgs { list, ..Default::default() }
        };
        let every = Workflow::ALL.map(|state| state.as_str().to_string());
        let states = (FilterField::WorkflowState, every.to_vec());
        let reboot = of(FilterField::Type, "REBOOT");
        let child = of(FilterField::PartOf, "op-1");
        let not_routine = (FilterField::Type, vec!["INTAKE".to_string(), "CHECK".to_string()]);
        let since = |since| OperationListArgs { since: Some(since), all: true, ..typed("") };
        for (args, expected) in [
            (typed(" "), vec![not_routine, whole.clone()]),
            (OperationListArgs { all: true, ..typed("") }, vec![]),
            (
                OperationListArgs { states: every.to_vec(), ..typed("type=REBOOT") },
                vec![reboot, states, whole.clone()],
            ),
            (OperationListArgs { parent: "op-1".into(), ..typed("") }, vec![child.clone()]),
            (typed("part_of=op-1"), vec![child]),
            (typed("operation_id=op-1"), vec![of(FilterField::RunId, "op-1")]),
            (
                OperationListArgs { initiator: "a \"b\"".into(), ..typed("") },
                vec![of(FilterField::Initiator, "a \"b\""), whole],
            ),
            (
                since(Since::Ago(Duration::from_secs(4))),
                vec![of(FilterField::CreatedFrom, "6000000")],
            ),
            (since(Since::Time(now)), vec![of(FilterField::CreatedFrom, "10000000")]),
        ] {
            assert_eq!(fields(args), expected);
        }
    }
}
