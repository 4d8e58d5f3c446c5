//! `farrier operation`: one noun for the operations on machines, racks, their devices and nodes.
//!
//! The earlier nouns `run` and `workflow` are aliases of it, and `ops` and `runs` list operations.

use super::gate_override::override_help;
use super::*;
use clap::builder::PossibleValuesParser;
use model::run::Workflow;
use model::time::Timestamp;

const LIST_HELP: &str = "\
Examples:
  farrier operation list --filter 'type=REIMAGE AND phase=FAILED'
  farrier operation list --state failed_retryable --state failed_manual_intervention
  farrier operation list --since 2h --initiator ada
  farrier operation list --node node-…

";

#[derive(Debug, Subcommand)]
pub enum OperationCommand {
    /// List operations, newest first
    #[command(after_help = format!("{LIST_HELP}{OPERATION_FILTERS}"))]
    List(OperationListArgs),
    /// Show one operation with its steps
    Get(OperationArg),
    /// Start an operation on a machine by its type or plan
    Start(OperationStartArgs),
    /// Follow one operation until it ends, or stream the events of all operations
    #[command(after_help = OPERATION_FILTERS)]
    Watch(OperationWatchArgs),
    /// Show the log of an operation
    Logs(LogsArgs),
    /// Cancel an active operation and undo the steps that have an undo
    Cancel(OperationActionArgs),
    /// Retry the failed step as a new attempt
    #[command(alias = "retry-stage")]
    RetryStep(OperationActionArgs),
    /// Check the result of the last step, then continue from there
    Resume(OperationActionArgs),
    /// Start the same plan again as a new operation; adopt the steps whose result holds
    Rerun(OperationRestartArgs),
    /// Undo the steps of an operation, then start its plan again as a new operation
    RestartClean(OperationRestartArgs),
    /// Accept the failed step as done if the device confirms it, and continue
    #[command(alias = "adopt-observed-state")]
    Adopt(OperationActionArgs),
    /// Freeze an operation until an operator decides
    #[command(alias = "mark-manual-intervention-required")]
    MarkManual(MarkManualArgs),
}

#[derive(Debug, Default, Args)]
pub struct OperationListArgs {
    #[command(flatten)]
    pub list: OperationFilterArgs,
    /// Only operations on this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only operations in this workflow state; can be repeated
    #[arg(long = "state", value_name = "STATE", value_parser = workflow_states())]
    pub states: Vec<String>,
    /// Only operations created since then: a duration such as 2h, or a time in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<Since>,
    /// Only operations that this caller started
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub initiator: String,
    /// Only the child operations of this operation
    #[arg(long, value_name = "OPERATION", default_value = "", hide_default_value = true)]
    pub parent: String,
    /// List child operations and routine ones (INTAKE, CHECK) too
    #[arg(long)]
    pub all: bool,
}

/// The start of a list: some time ago, or a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    Ago(Duration),
    Time(Timestamp),
}

fn parse_since(text: &str) -> Result<Since, String> {
    match Timestamp::parse(text) {
        Some(time) => Ok(Since::Time(time)),
        None => parse_duration(text).map(Since::Ago).map_err(|_| {
            "write a duration, as 30m or 2h, or a time in UTC, as 2026-01-31T12:00:00Z".into()
        }),
    }
}

fn workflow_states() -> PossibleValuesParser {
    PossibleValuesParser::new(Workflow::ALL.map(Workflow::as_str))
}

/// The arguments that every list of operations has.
#[derive(Debug, Default, Args)]
pub struct OperationFilterArgs {
    /// Filter expression, e.g. 'type=REIMAGE AND phase=FAILED'
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub sort: SortArg,
}

const START_HELP: &str = "\
Examples:
  farrier operation start machine-1 --type REIMAGE --param image_ref=ubuntu-2204
  farrier operation start machine-1 --type NET_RECONFIG --param network=\"$(cat net.json)\"
  farrier operation start machine-1 --type REBOOT --override health --reason 'the sensor is broken'";

#[derive(Debug, Args)]
#[command(after_help = START_HELP)]
pub struct OperationStartArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Type of the operation
    #[arg(long = "type", value_enum, ignore_case = true, value_name = "TYPE")]
    pub kind: OperationTypeArg,
    /// Plan ID (default: the default plan of the type)
    #[arg(long = "plan", value_name = "PLAN", default_value = "", hide_default_value = true)]
    pub plan_id: String,
    /// Parameter; can be repeated
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub params: Vec<(String, String)>,
    #[command(flatten)]
    pub overrides: StartOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

/// The types that a client can start, with the names of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OperationTypeArg {
    Reboot,
    #[value(alias = "REPAVE")]
    Reimage,
    EnterMaintenance,
    ExitMaintenance,
    Upgrade,
    NetReconfig,
    Rma,
    /// Switches on, unless --plan is plan-power-off-v1 or plan-power-cycle-v1
    Power,
    ExitRma,
    /// Joins an installed machine to its cluster
    Join,
}

impl OperationTypeArg {
    pub fn wire_name(self) -> &'static str {
        match self {
            OperationTypeArg::Reboot => "REBOOT",
            OperationTypeArg::Reimage => "REIMAGE",
            OperationTypeArg::EnterMaintenance => "ENTER_MAINTENANCE",
            OperationTypeArg::ExitMaintenance => "EXIT_MAINTENANCE",
            OperationTypeArg::Upgrade => "UPGRADE",
            OperationTypeArg::NetReconfig => "NET_RECONFIG",
            OperationTypeArg::Rma => "RMA",
            OperationTypeArg::Power => "POWER",
            OperationTypeArg::ExitRma => "EXIT_RMA",
            OperationTypeArg::Join => "JOIN",
        }
    }
}

#[derive(Debug, Args)]
pub struct OperationArg {
    /// ID of the operation (op-…), or of a device or node for its newest operation
    pub operation_id: String,
}

#[derive(Debug, Args)]
pub struct OperationWatchArgs {
    /// ID of the operation, device or node to follow (default: all events)
    pub operation_id: Option<String>,
    /// Filter expression, e.g. 'type=REIMAGE'
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "operation_id"
    )]
    pub filter: String,
    /// Start with all stored events, not only with those of active operations
    #[arg(long, conflicts_with = "operation_id")]
    pub all: bool,
    /// Maximum time to follow one operation, e.g. 30s, 5m, 1h
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// ID of the operation (op-…), or of a device or node for its newest operation
    pub operation_id: String,
    /// Print what is logged so far, and do not wait for the end of the operation
    #[arg(long)]
    pub no_follow: bool,
    /// The default; accepted for those who type it
    #[arg(short, long, hide = true, conflicts_with = "no_follow")]
    pub follow: bool,
    /// Byte offset to start from
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub offset: i64,
}

#[derive(Debug, Args)]
pub struct OperationActionArgs {
    /// ID of the operation (op-…), or of a node (node-…) for its newest operation
    pub operation_id: String,
    /// Reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct OperationRestartArgs {
    /// ID of the operation (op-…), or of a node (node-…) for its newest operation
    pub operation_id: String,
    /// Reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[arg(
        long = "override",
        value_name = "GATE",
        value_delimiter = ',',
        requires = "reason",
        help = override_help!("in-service, health, unfinished-disk, budget:NAME, approval")
    )]
    pub gates: Vec<String>,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct MarkManualArgs {
    /// ID of the operation (op-…), or of a node (node-…) for its newest operation
    pub operation_id: String,
    /// Reason, shown to everyone who finds the operation frozen
    #[arg(long)]
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<ClientCommand, clap::Error> {
        let Command::Client(command) = Cli::try_parse_from(line.split(' '))?.command else {
            panic!("{line} calls no server")
        };
        Ok(command)
    }

    /// The earlier names of the noun parse to the same command, with the same arguments.
    #[test]
    fn every_action_has_the_same_meaning_under_every_name() {
        for line in [
            "list --filter type=REIMAGE --limit 3",
            "list --node node-1 --state failed_retryable --limit 3",
            "get node-1",
            "start m-1 --type REIMAGE --param a=b=c",
            "watch --all",
            "watch op-1 --timeout 5m",
            "logs op-1 -f",
            "cancel node-1 --reason enough",
            "retry-step op-1 --reason mended",
            "resume node-1 --no-wait",
            "rerun node-1 --request-id again",
            "restart-clean op-1",
            "adopt node-1",
            "mark-manual node-1 --reason look",
        ] {
            let expected = parse(&format!("farrier operation {line}")).unwrap();
            for noun in ["op", "run", "workflow"] {
                let alias = parse(&format!("farrier {noun} {line}")).unwrap();
                assert_eq!(format!("{alias:?}"), format!("{expected:?}"), "{noun} {line}");
            }
        }
    }

    #[test]
    fn every_action_keeps_its_earlier_name() {
        for (old, new) in [
            ("retry-stage op-1", "retry-step op-1"),
            ("adopt-observed-state op-1", "adopt op-1"),
            ("mark-manual-intervention-required op-1 --reason x", "mark-manual op-1 --reason x"),
            ("start m-1 --type repave", "start m-1 --type reimage"),
        ] {
            let [old, new] =
                [old, new].map(|line| parse(&format!("farrier operation {line}")).unwrap());
            assert_eq!(format!("{old:?}"), format!("{new:?}"));
        }
        for line in ["farrier ops --limit 3", "farrier runs --filter phase=FAILED"] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn a_list_begins_some_time_ago_or_at_a_time() {
        for (text, expected) in [
            ("2h", Ok(Since::Ago(Duration::from_secs(7_200)))),
            ("1970-01-02", Ok(Since::Time(Timestamp::from_millis(86_400_000)))),
            ("yesterday", Err(())),
        ] {
            assert_eq!(parse_since(text).map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn a_wrong_argument_is_a_usage_error() {
        for bad in [
            "list --since soon",
            "list --state broken",
            "mark-manual node-1",
            "get",
            "watch op-1 --all",
        ] {
            let line = format!("farrier operation {bad}");
            assert_eq!(parse(&line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn only_the_noun_and_its_short_name_are_in_the_help() {
        let help = Cli::command().render_help().to_string();
        let names: Vec<&str> = help.lines().filter_map(|line| line.split(' ').nth(2)).collect();
        assert!(names.contains(&"operation") && help.contains("[alias: op]"), "{help}");
        for hidden in ["ops", "run", "runs", "workflow"] {
            assert!(!names.contains(&hidden), "{hidden} in\n{help}");
        }
    }
}
