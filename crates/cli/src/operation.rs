//! Operations: start, list, show and follow them, and the repair actions.
//!
//! An operation and a run are the same record. These commands fetch it as a run, which has the
//! steps. A node ID stands for the newest operation on that node.

mod submit;
mod table;
pub use submit::*;
pub use table::*;

use crate::args::{
    OperationActionArgs, OperationCommand, OperationFilterArgs, OperationListArgs,
    OperationRestartArgs, OperationStartArgs, OperationWatchArgs,
};
use crate::client::{Client, build_id_filter, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::follow::log_end;
use crate::follow::progress::Progress;
use crate::machine::{fetch, fetch_run_machine};
use crate::output::Screen;
use crate::time::Clock;
use crate::{logs, node, watch};
use model::node::NODE;
use model::plan::RunType;
use proto::v1::{
    AdoptObservedStateRequest, CancelOperationRequest, CancelRunRequest, GetRunRequest,
    ListOperationsRequest, ListRunsRequest, MarkManualRequest, RerunRequest, RestartCleanRequest,
    ResumeRunRequest, RetryStepRequest, Run, StartRunRequest,
};

/// The prefix of node IDs; no other ID starts with it.
const NODE_PREFIX: &str = "node-";
/// Printed in place of an empty list.
const NONE_MATCH: &str = "no operations match";

pub async fn run(client: &Client, screen: &mut Screen, command: OperationCommand) -> Result<Exit> {
    match command {
        OperationCommand::List(args) => list(client, screen, &args).await,
        OperationCommand::Get(args) => get(client, screen, &args.operation_id).await,
        OperationCommand::Start(args) => start(client, screen, args).await,
        OperationCommand::Watch(args) => watch_one_or_all(client, screen, args).await,
        OperationCommand::Logs(args) => logs::print_log(client, screen, args).await,
        OperationCommand::Cancel(args) => cancel(client, screen, &args, RecordKind::Run).await,
        OperationCommand::RetryStep(args) => {
            let call = async |run_id, reason| {
                client.call(client.runs().retry_step(RetryStepRequest { run_id, reason })).await
            };
            continue_run(client, screen, &args, call).await
        }
        OperationCommand::Resume(args) => {
            let call = async |run_id, reason| {
                client.call(client.runs().resume_run(ResumeRunRequest { run_id, reason })).await
            };
            continue_run(client, screen, &args, call).await
        }
        OperationCommand::Adopt(args) => {
            let call = async |run_id, reason| {
                let request = AdoptObservedStateRequest { run_id, reason };
                client.call(client.runs().adopt_observed_state(request)).await
            };
            continue_run(client, screen, &args, call).await
        }
        OperationCommand::Rerun(args) => {
            let call = async |run_id, request_id, reason| {
                client.call(client.runs().rerun(RerunRequest { run_id, request_id, reason })).await
            };
            restart_run(client, screen, &args, call).await
        }
        OperationCommand::RestartClean(args) => {
            let call = async |run_id, request_id, reason| {
                let request = RestartCleanRequest { run_id, request_id, reason };
                client.call(client.runs().restart_clean(request)).await
            };
            restart_run(client, screen, &args, call).await
        }
        OperationCommand::MarkManual(args) => {
            let run_id = resolve_operation_id(client, &args.operation_id).await?;
            let request = MarkManualRequest { run_id, reason: args.reason };
            let run = client.call(client.runs().mark_manual(request)).await?;
            print_run(screen, &run)
        }
    }
}

/// Resolves an ID to an operation ID: a node ID becomes the newest operation on the node.
pub async fn resolve_operation_id(client: &Client, id: &str) -> Result<String> {
    if !id.starts_with(NODE_PREFIX) {
        return Ok(id.to_string());
    }
    match node::fetch(client, id).await?.workflow {
        Some(run) => Ok(run.run_id),
        None => {
            let message = format!("{id} has had no operation yet, or it has been cleared away");
            Err(Failure::refused(format!("{message}\nnext: farrier node get {id}")))
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

pub async fn get(client: &Client, screen: &mut Screen, operation_id: &str) -> Result<Exit> {
    let run_id = resolve_operation_id(client, operation_id).await?;
    let run = fetch_run(client, &run_id).await?;
    print_run(screen, &run)
}

pub async fn start(client: &Client, screen: &mut Screen, args: OperationStartArgs) -> Result<Exit> {
    let OperationStartArgs { machine_id, kind, plan_id, params, overrides, submit } = args;
    let before = if submit.wait.waits() { Some(fetch(client, &machine_id).await?) } else { None };
    let request_id = choose_request_id(screen, submit.request_id.as_ref())?;
    let params = params.into_iter().collect();
    let request = StartRunRequest {
        request_id,
        machine_id,
        r#type: kind.wire_name().into(),
        plan_id,
        params,
        gate_override: overrides.to_message(),
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
    args: OperationWatchArgs,
) -> Result<Exit> {
    let Some(operation_id) = args.operation_id else {
        return watch::watch_runs(client, screen, args.filter, args.all).await;
    };
    let run_id = resolve_operation_id(client, &operation_id).await?;
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

/// Cancels an operation; `record_kind` decides which record is returned.
pub async fn cancel(
    client: &Client,
    screen: &mut Screen,
    args: &OperationActionArgs,
    record_kind: RecordKind,
) -> Result<Exit> {
    let call = async |id: String, reason: String| match record_kind {
        RecordKind::Run => {
            client.call(client.runs().cancel_run(CancelRunRequest { run_id: id, reason })).await
        }
        RecordKind::Operation => {
            let request = CancelOperationRequest { operation_id: id, reason, dry_run: false };
            client.call(client.machines().cancel_operation(request)).await.map(operation_to_run)
        }
    };
    apply_action(client, screen, args, (record_kind, ExpectedEnd::Canceled), call).await
}

async fn continue_run(
    client: &Client,
    screen: &mut Screen,
    args: &OperationActionArgs,
    call: impl AsyncFnOnce(String, String) -> Result<Run>,
) -> Result<Exit> {
    apply_action(client, screen, args, (RecordKind::Run, ExpectedEnd::Succeeded), call).await
}

/// Records the run's state before the action, so that only later changes are printed.
async fn apply_action(
    client: &Client,
    screen: &mut Screen,
    args: &OperationActionArgs,
    (record_kind, expected_end): (RecordKind, ExpectedEnd),
    call: impl AsyncFnOnce(String, String) -> Result<Run>,
) -> Result<Exit> {
    let run_id = resolve_operation_id(client, &args.operation_id).await?;
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
    let accepted = AcceptedOperation { run, record_kind, expected_end, origin, before };
    follow_or_report(client, screen, accepted, &args.wait).await
}

/// Starts a new run from an existing one.
async fn restart_run(
    client: &Client,
    screen: &mut Screen,
    args: &OperationRestartArgs,
    call: impl AsyncFnOnce(String, String, String) -> Result<Run>,
) -> Result<Exit> {
    let run_id = resolve_operation_id(client, &args.operation_id).await?;
    let mut before = None;
    if args.submit.wait.waits() {
        let old = fetch_run(client, &run_id).await?;
        before = fetch_run_machine(client, &old).await?;
    }
    let request_id = choose_request_id(screen, args.submit.request_id.as_ref())?;
    let run = call(run_id, request_id, args.reason.clone()).await?;
    let accepted = AcceptedOperation {
        run,
        record_kind: RecordKind::Run,
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Submitted,
        before,
    };
    follow_or_report(client, screen, accepted, &args.submit.wait).await
}

pub async fn list(client: &Client, screen: &mut Screen, args: &OperationListArgs) -> Result<Exit> {
    let filter = list_filter(&args.list.filter, &args.states);
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

/// `farrier ops`: the same list, whose JSON and YAML output contains operations and not runs.
pub async fn list_records(
    client: &Client,
    screen: &mut Screen,
    args: &OperationFilterArgs,
) -> Result<Exit> {
    let operations = fetch_pages(args.limit, async |page_size, page_token| {
        let (filter, order_by) = (args.filter.clone(), args.sort.order_by.clone());
        let request = ListOperationsRequest { filter, page_size, page_token, order_by };
        let answer = client.call(client.operations().list_operations(request)).await?;
        Ok((answer.operations, answer.next_page_token, answer.unreadable_rows))
    })
    .await?;
    let clock = Clock::system();
    let runs: Vec<Run> = operations.iter().cloned().map(operation_to_run).collect();
    screen.print_list(&operations, |_, wide| operation_table(&runs, wide, &clock), NONE_MATCH)?;
    Ok(Exit::Success)
}

/// Fetches the runs that match, newest first unless an order is given.
async fn fetch_runs(
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
    let filter = join_filters([node_types_filter(), filter.to_string()]);
    let filter = build_id_filter("machine_id", &node.machine_id, &filter)?;
    let mut runs = fetch_runs(client, (&filter, order_by), None).await?;
    runs.retain(|run| run.params.get(NODE).is_some_and(|id| id == node_id));
    runs.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
    Ok(runs)
}

fn node_types_filter() -> String {
    format!("type in ({})", RunType::NODES.map(RunType::as_str).join(", "))
}

/// The filter of a list: the one that was typed, and the workflow states; no states mean any.
fn list_filter(typed: &str, states: &[String]) -> String {
    let states = match states {
        [] => String::new(),
        states => format!("workflow_state in ({})", states.join(", ")),
    };
    join_filters([typed.trim().to_string(), states])
}

fn join_filters(filters: [String; 2]) -> String {
    let given: Vec<String> = filters.into_iter().filter(|filter| !filter.is_empty()).collect();
    given.join(" AND ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::filter::{Filter, FilterField, FilterSubject};
    use model::run::Workflow;

    #[test]
    fn the_filters_are_those_that_the_server_reads() {
        let fields = |filter: &str| {
            let parsed = Filter::parse(filter, FilterSubject::Run).unwrap();
            parsed.terms.into_iter().map(|term| (term.field, term.values)).collect::<Vec<_>>()
        };
        let every = Workflow::ALL.map(|state| state.as_str().to_string());
        let states = (FilterField::WorkflowState, every.to_vec());
        let reboot = (FilterField::Type, vec!["REBOOT".to_string()]);
        for (typed, chosen, expected) in [
            ("", &[][..], vec![]),
            (" ", &every[..], vec![states.clone()]),
            ("type=REBOOT", &[][..], vec![reboot.clone()]),
            ("type=REBOOT", &every[..], vec![reboot, states.clone()]),
        ] {
            assert_eq!(fields(&list_filter(typed, chosen)), expected, "{typed:?} {chosen:?}");
        }
        let types = RunType::NODES.map(|kind| kind.as_str().to_string()).to_vec();
        let node = join_filters([node_types_filter(), list_filter("", &every)]);
        assert_eq!(fields(&node), [(FilterField::Type, types), states]);
    }
}
