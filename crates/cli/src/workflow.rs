//! Workflows: the commands of `farrier run`, for the operations on nodes.
//!
//! An onboarding, a decommission and a drain are ordinary runs, so every command here ends in
//! `run`. This module adds that a node ID stands for the newest operation on that node, and a list
//! of node operations only.

use crate::args::{
    CancelArgs, MarkManualArgs, RunActionArgs, RunArg, RunCommand, RunRestartArgs, WorkflowCommand,
    WorkflowListArgs,
};
use crate::client::{Client, build_id_filter};
use crate::exit::{Exit, Failure, Result};
use crate::node;
use crate::output::Screen;
use crate::run::{self, RunListColumn};
use model::node::NODE;
use model::plan::RunType;

/// The prefix of node IDs; no other ID starts with it.
const NODE_PREFIX: &str = "node-";

pub async fn run(client: &Client, screen: &mut Screen, command: WorkflowCommand) -> Result<Exit> {
    let resolve = async |id: String| resolve_operation_id(client, id).await;
    let command = match command {
        WorkflowCommand::List(args) => return list(client, screen, &args).await,
        WorkflowCommand::Get(args) => {
            RunCommand::Get(RunArg { run_id: resolve(args.run_id).await? })
        }
        WorkflowCommand::RetryStage(args) => {
            RunCommand::RetryStep(RunActionArgs { run_id: resolve(args.run_id).await?, ..args })
        }
        WorkflowCommand::Resume(args) => {
            RunCommand::Resume(RunActionArgs { run_id: resolve(args.run_id).await?, ..args })
        }
        WorkflowCommand::Adopt(args) => {
            RunCommand::Adopt(RunActionArgs { run_id: resolve(args.run_id).await?, ..args })
        }
        WorkflowCommand::Rerun(args) => {
            RunCommand::Rerun(RunRestartArgs { run_id: resolve(args.run_id).await?, ..args })
        }
        WorkflowCommand::RestartClean(args) => {
            RunCommand::RestartClean(RunRestartArgs { run_id: resolve(args.run_id).await?, ..args })
        }
        WorkflowCommand::Cancel(args) => {
            let operation_id = resolve(args.operation_id).await?;
            RunCommand::Cancel(CancelArgs { operation_id, ..args })
        }
        WorkflowCommand::MarkManual(args) => {
            RunCommand::MarkManual(MarkManualArgs { run_id: resolve(args.run_id).await?, ..args })
        }
    };
    run::run(client, screen, command).await
}

/// Resolves an ID to an operation ID: a node ID becomes the newest operation on the node.
async fn resolve_operation_id(client: &Client, id: String) -> Result<String> {
    if !id.starts_with(NODE_PREFIX) {
        return Ok(id);
    }
    let detail = node::fetch(client, &id).await?;
    match detail.workflow {
        Some(run) => Ok(run.run_id),
        None => {
            let message = format!("{id} has had no operation yet, or it has been cleared away");
            Err(Failure::refused(format!("{message}\nnext: farrier node get {id}")))
        }
    }
}

async fn list(client: &Client, screen: &mut Screen, args: &WorkflowListArgs) -> Result<Exit> {
    let node_filter = node_operations_filter(&args.states);
    let runs = match &args.node {
        None => run::fetch_runs(client, &node_filter, args.limit).await?,
        Some(id) => {
            // Runs are filtered by machine, and the machine may have been another node before.
            let known = node::fetch(client, id).await?.node.unwrap_or_default();
            let machine_filter = build_id_filter("machine_id", &known.machine_id, &node_filter)?;
            let mut runs = run::fetch_runs(client, &machine_filter, None).await?;
            runs.retain(|run| run.params.get(NODE) == Some(id));
            runs.truncate(args.limit.map_or(usize::MAX, |limit| limit as usize));
            runs
        }
    };
    run::print_runs(screen, &runs, RunListColumn::Node)?;
    Ok(Exit::Success)
}

/// A filter for node operations in these workflow states; an empty list matches any state.
fn node_operations_filter(states: &[String]) -> String {
    let types = RunType::NODES.map(RunType::as_str).join(", ");
    let node_filter = format!("type in ({types})");
    match states {
        [] => node_filter,
        states => format!("{node_filter} AND workflow_state in ({})", states.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::filter::{Filter, FilterField, FilterSubject};
    use model::run::Workflow;

    #[test]
    fn the_filters_are_those_that_the_server_reads() {
        let terms = |states: &[String]| {
            Filter::parse(&node_operations_filter(states), FilterSubject::Run).unwrap().terms
        };
        let all = terms(&[]);
        assert_eq!((all.len(), &all[0].field), (1, &FilterField::Type));
        assert_eq!(all[0].values, RunType::NODES.map(RunType::as_str));
        let every = Workflow::ALL.map(|state| state.as_str().to_string());
        let some = terms(&every);
        assert_eq!(
            (&some[1].field, &some[1].values[..]),
            (&FilterField::WorkflowState, &every[..])
        );
    }
}
