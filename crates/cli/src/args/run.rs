//! `farrier run`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Start a run
    Start(RunStartArgs),
    /// Show one run with its steps
    Get(RunArg),
    /// List runs, newest first
    #[command(after_help = RUN_FILTERS)]
    List(ListArgs),
    /// Follow the steps and log of one run until it ends; or stream the events of all runs
    #[command(after_help = RUN_FILTERS)]
    Watch(RunWatchArgs),
    /// Show the log of a run
    Logs(LogsArgs),
    /// Cancel an active run: stop the current step, undo the steps that have an undo
    Cancel(CancelArgs),
    /// Retry the failed step, as a new attempt
    RetryStep(RunActionArgs),
    /// Check the result of the last step, then continue from there
    Resume(RunActionArgs),
    /// Start a new run of the same plan; steps whose result already holds are adopted
    Rerun(RunRestartArgs),
    /// Start a new run that first undoes the steps of this one
    RestartClean(RunRestartArgs),
    /// Accept the failed step as done if the device confirms it, and continue
    Adopt(RunActionArgs),
    /// Freeze the run until an operator decides
    MarkManual(MarkManualArgs),
}

const START_HELP: &str = "\
Examples:
  farrier run start machine-1 --type REPAVE --param image_ref=ubuntu-2204
  farrier run start machine-1 --type NET_RECONFIG --param network=\"$(cat net.json)\"";

#[derive(Debug, Args)]
#[command(after_help = START_HELP)]
pub struct RunStartArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Type of the run
    #[arg(long = "type", value_enum, ignore_case = true, value_name = "TYPE")]
    pub kind: RunType,
    /// Plan ID (default: the default plan of the type)
    #[arg(long = "plan", value_name = "PLAN", default_value = "", hide_default_value = true)]
    pub plan_id: String,
    /// Parameter; can be repeated
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub params: Vec<(String, String)>,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

/// The run types, with the names of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RunType {
    Reboot,
    /// Same as REIMAGE
    Repave,
    Reimage,
    EnterMaintenance,
    ExitMaintenance,
    Upgrade,
    NetReconfig,
    Rma,
    /// Switches on, unless --plan is plan-power-off-v1 or plan-power-cycle-v1
    Power,
    ExitRma,
}

impl RunType {
    pub fn wire_name(self) -> &'static str {
        match self {
            RunType::Reboot => "REBOOT",
            RunType::Repave => "REPAVE",
            RunType::Reimage => "REIMAGE",
            RunType::EnterMaintenance => "ENTER_MAINTENANCE",
            RunType::ExitMaintenance => "EXIT_MAINTENANCE",
            RunType::Upgrade => "UPGRADE",
            RunType::NetReconfig => "NET_RECONFIG",
            RunType::Rma => "RMA",
            RunType::Power => "POWER",
            RunType::ExitRma => "EXIT_RMA",
        }
    }
}

#[derive(Debug, Args)]
pub struct RunArg {
    /// ID of the run, from `farrier runs`
    pub run_id: String,
}

#[derive(Debug, Args)]
pub struct RunWatchArgs {
    /// Run to follow (default: stream the events of all runs)
    pub run_id: Option<String>,
    /// Filter expression, e.g. 'type=REPAVE'
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "run_id"
    )]
    pub filter: String,
    /// Start with all stored events, not only with those of active runs
    #[arg(long, conflicts_with = "run_id")]
    pub all: bool,
    /// With a run: maximum time to wait, e.g. 30s, 5m, 1h
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct RunActionArgs {
    /// ID of the run, from `farrier runs`
    pub run_id: String,
    /// The reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct RunRestartArgs {
    /// ID of the run to repeat
    pub run_id: String,
    /// The reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct MarkManualArgs {
    /// ID of the run, from `farrier runs`
    pub run_id: String,
    /// The reason, shown to everyone who finds the run frozen
    #[arg(long)]
    pub reason: String,
}
