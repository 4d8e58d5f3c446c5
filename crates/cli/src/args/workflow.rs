//! `farrier workflow`: the commands of `farrier run`, for the workflows on nodes.

use super::*;
use clap::Arg;
use clap::builder::PossibleValuesParser;
use model::run::Workflow;

const WORKFLOW_HELP: &str = "\
Examples:
  farrier workflow list --state failed_retryable --state failed_manual_intervention
  farrier workflow list --node node-…";

/// Describes the run argument: a workflow command accepts a node in place of an operation.
fn run_or_node(arg: Arg) -> Arg {
    arg.value_name("ID").help("The operation (op-…), or a node (node-…) for the newest one on it")
}

#[derive(Debug, Subcommand)]
pub enum WorkflowCommand {
    /// List onboardings, decommissions and drains, newest first
    #[command(after_help = WORKFLOW_HELP)]
    List(WorkflowListArgs),
    /// Show one workflow with its stages
    #[command(mut_arg("run_id", run_or_node))]
    Get(RunArg),
    /// Retry the failed stage, as a new attempt
    #[command(mut_arg("run_id", run_or_node))]
    RetryStage(RunActionArgs),
    /// Check the result of the last stage, then continue from there
    #[command(mut_arg("run_id", run_or_node))]
    Resume(RunActionArgs),
    /// Restart as a new operation; stages whose result already holds are adopted
    #[command(mut_arg("run_id", run_or_node))]
    Rerun(RunRestartArgs),
    /// Restart as a new operation that first undoes the stages of this one
    #[command(mut_arg("run_id", run_or_node))]
    RestartClean(RunRestartArgs),
    /// Cancel: stop the current stage, undo the stages that have an undo
    #[command(mut_arg("operation_id", run_or_node))]
    Cancel(CancelArgs),
    /// Accept the failed stage as done if the observed state confirms it, and continue
    #[command(mut_arg("run_id", run_or_node))]
    Adopt(RunActionArgs),
    /// Freeze the workflow until an operator decides
    #[command(mut_arg("run_id", run_or_node))]
    MarkManual(MarkManualArgs),
}

#[derive(Debug, Args)]
pub struct WorkflowListArgs {
    /// Only workflows on this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only workflows in this state; can be repeated
    #[arg(long = "state", value_name = "STATE", value_parser = workflow_states())]
    pub states: Vec<String>,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

fn workflow_states() -> PossibleValuesParser {
    PossibleValuesParser::new(Workflow::ALL.map(Workflow::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_takes_an_operation_or_a_node() {
        for line in [
            "get node-1",
            "retry-stage op-1 --reason mended",
            "resume node-1 --no-wait",
            "rerun node-1 --request-id again",
            "restart-clean op-1",
            "cancel node-1 --reason enough",
            "adopt node-1",
            "mark-manual node-1 --reason look",
            "list --node node-1 --state failed_retryable --limit 3",
        ] {
            let words = format!("farrier workflow {line}");
            Cli::try_parse_from(words.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for bad in ["list --state broken", "mark-manual node-1", "get"] {
            let words = format!("farrier workflow {bad}");
            assert_eq!(Cli::try_parse_from(words.split(' ')).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn the_help_says_that_a_node_will_do() {
        use clap::CommandFactory;
        let mut tree = Cli::command();
        let workflow = tree.find_subcommand_mut("workflow").unwrap();
        for name in ["get", "retry-stage", "resume", "rerun", "restart-clean", "cancel", "adopt"] {
            let help = workflow.find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.contains("<ID>") && help.contains("node-…"), "{name}:\n{help}");
        }
    }
}
