//! `farrier sim`.

use super::*;
use clap::builder::{PossibleValue, PossibleValuesParser};
use model::effect::Effect;
use model::node::NodeStage;

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Create, list and delete faults of the simulated hardware
    #[command(subcommand)]
    Fault(SimFaultCommand),
    /// Show how often each effect was requested, and how often it was executed
    Effects(SimEffectsArgs),
}

#[derive(Debug, Subcommand)]
pub enum SimFaultCommand {
    /// Create a fault rule
    #[command(alias = "add")]
    Create(SimFaultArgs),
    /// List the fault rules
    #[command(
        after_help = "Filters:\n  action=fail    fail, hang, drop, garbage, slow, twice\n  verb=perform   perform, follow, get_status, observe, stop\n  fault_id, machine, effect"
    )]
    List(FilteredListArgs),
    /// Delete one fault rule, or all
    #[command(alias = "clear")]
    Delete(SimFaultDeleteArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farrier sim fault create --machine 'machine-*' --effect repave --action fail --times 1\n  farrier sim fault create --effect configure_storage --action fail --code boot-disk-missing\n  farrier sim fault create --machine machine-3 --effect repave --action fail --at-percent 44"
)]
pub struct SimFaultArgs {
    /// Machine ID; * matches any characters (default: every machine)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub machine: String,
    /// Effect, or step of a node such as wait_for_ready (default: every one)
    #[arg(long, value_parser = sim_effects())]
    pub effect: Option<String>,
    /// Provider call that fails (default: perform)
    #[arg(long, value_enum)]
    pub verb: Option<SimVerb>,
    /// Kind of fault
    #[arg(long, value_enum)]
    pub action: SimAction,
    /// Number of times; 0 means forever
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(0..))]
    pub times: i32,
    /// For slow: delay of the response
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub delay: Option<Duration>,
    /// For fail: error message of the hardware
    #[arg(long, default_value = "", hide_default_value = true)]
    pub message: String,
    /// For fail of repave: percent written when it fails (default: by code)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(i32).range(1..100))]
    pub at_percent: Option<i32>,
    /// For fail: fault code, e.g. boot-disk-missing (default: one that fits the effect)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub code: String,
}

/// The names that a fault rule can match: effects, node stages, and `probe`, which is no effect.
/// `parts` and the stages of Farrier's own records are left out: they call no provider.
fn sim_effects() -> PossibleValuesParser {
    let effects = Effect::NAMES.into_iter().filter(|name| *name != "parts").chain(["probe"]);
    let stages = NodeStage::ALL.iter().filter(|stage| !stage.is_record());
    let stages = stages.map(|stage| PossibleValue::new(stage.as_str()).hide(true));
    PossibleValuesParser::new(effects.map(PossibleValue::new).chain(stages))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimVerb {
    Perform,
    Follow,
    #[value(name = "get_status")]
    GetStatus,
    Observe,
    Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimAction {
    Fail,
    Hang,
    Drop,
    Garbage,
    Slow,
    Twice,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SimFaultDeleteArgs {
    /// ID of the rule, from `farrier sim fault list`
    pub fault_id: Option<String>,
    /// Delete all rules
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Filters:\n  run_id=op-… AND step=repave-os\n  key, machine, effect")]
pub struct SimEffectsArgs {
    /// Only this operation and its children, this OPERATION/STEP, or this effect key
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
    #[command(flatten)]
    pub list: FilteredListArgs,
}
