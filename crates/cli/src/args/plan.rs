//! `farrier plan`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Show one plan with its steps
    Get(PlanArg),
    /// List plans
    #[command(after_help = PLAN_FILTERS)]
    List(ListArgs),
    /// Create a plan from a file; a plan is immutable, so a change needs a new plan_id
    Create(PlanCreateArgs),
}

#[derive(Debug, Args)]
pub struct PlanArg {
    /// ID of the plan, from `farrier plan list`
    pub plan_id: String,
}

const CREATE_HELP: &str = "\
Example of a file:
  plan_id: repave-a
  display_name: Repave and join
  steps:
    - {name: set-netboot, timeout_seconds: 60, max_retries: 2, netboot: {mode: PXE}}
    - {name: repave, repave: {image: ubuntu-2204}}
    - {name: join-cluster, join: {cluster_ref: cluster-a}}";

#[derive(Debug, Args)]
#[command(after_help = CREATE_HELP)]
pub struct PlanCreateArgs {
    /// File with one plan, .yaml or .json
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
}
