//! `farrier budget`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum BudgetCommand {
    /// Limit how many machines may be out of service at once
    Create(BudgetCreateArgs),
    /// List budgets, each with its fullest domain
    List(BudgetListArgs),
    /// Show one budget, with the machines and operations that use it
    Get(BudgetArg),
    /// Change the filter, the limit or the failure domain of a budget
    Update(BudgetUpdateArgs),
    /// Delete a budget
    Delete(BudgetDeleteArgs),
}

#[derive(Debug, Args)]
pub struct BudgetArg {
    /// ID of the budget, from `farrier budget list`
    pub budget_id: String,
}

const BUDGET_HELP: &str = "\
Examples:
  farrier budget create gpu-prod --filter 'labels.role=gpu AND labels.env=prod' --max-unavailable 5%
  farrier budget create one-per-rack --max-unavailable 1 --per rack
  farrier budget create zones --filter labels.env=prod --max-unavailable 10% --per labels.zone

Fields of the filter: labels.KEY, rack_id, provider, machine_id.

A machine is unavailable while its phase is not READY, an operation takes it out of service, it is
not reachable, or the node on it is not active.";

#[derive(Debug, Args)]
#[command(after_help = BUDGET_HELP)]
pub struct BudgetCreateArgs {
    /// ID of the new budget: letters, digits, '.', '_' and '-'
    pub budget_id: String,
    /// Machines that count (default: all)
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Machines that may be unavailable: a count, or a percentage such as 5%
    #[arg(long, value_name = "COUNT|PERCENT")]
    pub max_unavailable: String,
    /// Failure domain in which the limit holds: rack, feed or labels.KEY
    #[arg(long, value_name = "DOMAIN", default_value = "", hide_default_value = true)]
    pub per: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Filters:\n  per=rack\n  budget_id")]
pub struct BudgetListArgs {
    #[command(flatten)]
    pub list: FilteredListArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farrier budget update gpu-prod --max-unavailable 10%\n  farrier budget update gpu-prod --per rack\n  farrier budget update gpu-prod --per ''    for all machines together again"
)]
pub struct BudgetUpdateArgs {
    /// ID of the budget, from `farrier budget list`
    pub budget_id: String,
    /// Machines that count; empty: all
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Machines that may be unavailable: a count, or a percentage such as 5%
    #[arg(long, value_name = "COUNT|PERCENT")]
    pub max_unavailable: Option<String>,
    /// Failure domain in which the limit holds: rack, feed or labels.KEY; empty: none
    #[arg(long, value_name = "DOMAIN")]
    pub per: Option<String>,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct BudgetDeleteArgs {
    /// ID of the budget, from `farrier budget list`
    pub budget_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}
