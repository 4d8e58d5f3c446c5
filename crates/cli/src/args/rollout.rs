//! `farrier rollout`.

use super::*;
use clap::builder::PossibleValuesParser;
use model::rollout::TargetState;
use model::time::Timestamp;
use std::path::PathBuf;

const CREATE_HELP: &str = "\
Each machine enters maintenance (with a drain, if it has a cluster), is worked on, and leaves
maintenance. A failed machine stays in maintenance; one that was in maintenance before is left
there. A machine that is busy or unreachable waits without holding up others, and is skipped at its
deadline.

Examples:
  farrier rollout create reimage --image debian-12 --filter 'labels.role=gpu' --dry-run
  farrier rollout create reimage --image debian-12 --filter 'labels.role=gpu' --canary 1 \\
    --batch 5% --stop-after 2% --soak 10m --gate 'condition.InCustomerCluster=true for 5m'
  farrier rollout create reboot --filter 'labels.env=prod' --batch exponential:1x2 \\
    --max-in-flight 50 --order labels.zone --wave-approval
  farrier rollout create -f rollout.yaml

A file has the form of `farrier rollout get -o yaml`; other arguments overwrite what it says.";

#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Carry out an operation on all machines that match, in waves
    #[command(after_help = CREATE_HELP)]
    Create(Box<RolloutCreateArgs>),
    /// List rollouts
    #[command(
        after_help = "Filters:\n  rollout_id, state\n\nOrders: rollout_id, created_at, updated_at"
    )]
    List(RolloutListArgs),
    /// Show one rollout with all details
    Get(RolloutArg),
    /// List the targets of a rollout with their states
    Targets(RolloutTargetsArgs),
    /// Follow a rollout until it ends; exit with 1 unless every target is done
    Watch(RolloutWatchArgs),
    /// Change the pace of a rollout; values not given stay
    #[command(
        after_help = "Example:\n  farrier rollout update ro-01m7… --max-in-flight 10 --stop-after 5"
    )]
    Update(RolloutUpdateArgs),
    /// Begin no further target; what runs finishes
    Pause(RolloutReasonArgs),
    /// Resume a paused rollout and accept its failed targets
    Resume(RolloutArg),
    /// End a rollout; targets that were not begun are skipped
    Abort(RolloutAbortArgs),
    /// Begin the next wave now: end the soak, the wait for approval or for the start
    Promote(RolloutArg),
    /// Try the failed targets again
    RetryFailed(RolloutArg),
    /// Leave one target out
    Skip(RolloutSkipArgs),
}

#[derive(Debug, Args)]
pub struct RolloutArg {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
}

#[derive(Debug, Args)]
pub struct RolloutListArgs {
    #[command(flatten)]
    pub list: FilteredListArgs,
    #[command(flatten)]
    pub sort: SortArg,
}

#[derive(Debug, Args)]
pub struct RolloutTargetsArgs {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
    /// Only targets in this state
    #[arg(long, value_name = "STATE", value_parser = target_states())]
    pub state: Option<String>,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RolloutWatchArgs {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
    /// Maximum time to wait, e.g. 8h; the rollout continues (default: no limit)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct RolloutReasonArgs {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
    /// Reason, for the record
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct RolloutAbortArgs {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
    /// Cancel the operations that run; their machines stay in maintenance
    #[arg(long)]
    pub cancel_running: bool,
    /// Reason, for the record
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct RolloutSkipArgs {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
    /// ID of the machine, from `farrier rollout targets`
    pub machine_id: String,
    /// Reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct RolloutUpdateArgs {
    /// ID of the rollout, from `farrier rollout list`
    pub rollout_id: String,
    #[command(flatten)]
    pub pace: RolloutPaceArgs,
    /// Whether a person lets each further wave begin
    #[arg(long, value_name = "BOOL")]
    pub wave_approval: Option<bool>,
    #[command(flatten)]
    pub version: VersionArgs,
}

/// The pace of a rollout, which can change while it runs.
#[derive(Debug, Clone, Default, Args)]
pub struct RolloutPaceArgs {
    /// Sizes of the waves: 10, 5%, linear:1+2 or exponential:1x2 (default: 1)
    #[arg(long, value_name = "SIZE")]
    pub batch: Option<String>,
    /// Most machines at work at once; 0: all of the wave
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<i32>,
    /// Pause after this many failed machines, e.g. 3 or 2% (default: 1)
    #[arg(long, value_name = "N|N%")]
    pub stop_after: Option<String>,
    /// Pause between two waves, e.g. 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub soak: Option<Duration>,
    /// How long a machine may wait for its start and for the gate (default: 1h)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub target_deadline: Option<Duration>,
    /// Begin machines only at these times, e.g. 'Mon-Fri 02:00-05:00 Europe/Berlin'; empty: always
    #[arg(long, value_name = "TIMES")]
    pub window: Option<String>,
}

#[derive(Debug, Args)]
pub struct RolloutCreateArgs {
    /// Operation to carry out
    #[arg(value_name = "OPERATION", value_parser = OPERATIONS, required_unless_present = "file")]
    pub operation: Option<String>,
    /// File with the rollout, .yaml or .json
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Filter expression that selects the machines, as in `farrier list`
    #[arg(long, value_name = "EXPR", required_unless_present = "file")]
    pub filter: Option<String>,
    /// Image to install
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Plan to run instead of the default plan of the operation
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// Parameter of the operation; can be repeated
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub params: Vec<(String, String)>,
    /// Size of the first wave
    #[arg(long, value_name = "N")]
    pub canary: Option<i32>,
    #[command(flatten)]
    pub pace: RolloutPaceArgs,
    /// A person lets each further wave begin, with `farrier rollout promote`
    #[arg(long)]
    pub wave_approval: bool,
    /// Condition that a machine has to have to be done: 'condition.NAME=true for 5m'
    #[arg(long, value_name = "GATE", value_parser = parse_gate)]
    pub gate: Option<GateArg>,
    /// Begin at this time in UTC, e.g. 2026-01-31T02:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub start_at: Option<Timestamp>,
    /// Order the machines by a label, e.g. labels.zone (default: by ID)
    #[arg(long, value_name = "labels.KEY", value_parser = parse_label)]
    pub order: Option<String>,
    /// A machine in another rollout: wait for it, or refuse the new rollout
    #[arg(long, value_name = "wait|refuse", value_parser = ["wait", "refuse"])]
    pub on_conflict: Option<String>,
    /// Idempotency key: a repeated request creates nothing twice (default: generated)
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

/// `condition.NAME=true for 5m`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateArg {
    pub condition: String,
    pub status: bool,
    pub hold: Duration,
}

/// The words of the operations, as on the command line.
const OPERATIONS: [&str; 5] = ["reboot", "reimage", "upgrade", "net-reconfig", "join"];

fn target_states() -> PossibleValuesParser {
    PossibleValuesParser::new(TargetState::ALL.map(TargetState::as_str))
}

pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text)
        .ok_or_else(|| format!("{text:?} is not a time; write it in UTC: 2026-01-31T02:00:00Z"))
}

fn parse_label(text: &str) -> Result<String, String> {
    match text.strip_prefix("labels.").filter(|key| !key.is_empty()) {
        Some(key) => Ok(key.to_string()),
        None => Err(format!("{text:?} is not a label; write labels.KEY")),
    }
}

fn parse_gate(text: &str) -> Result<GateArg, String> {
    let wrong = || format!("{text:?} is not a gate; write 'condition.NAME=true for 5m'");
    let (condition, hold) = match text.split_once(" for ") {
        Some((condition, hold)) => (condition, parse_duration(hold)?),
        None => (text, Duration::ZERO),
    };
    let (name, status) = condition.trim().split_once('=').ok_or_else(wrong)?;
    let name = name.trim().strip_prefix("condition.").filter(|name| !name.is_empty());
    let status = status.trim().parse().map_err(|_| wrong())?;
    Ok(GateArg { condition: name.ok_or_else(wrong)?.to_string(), status, hold })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_are_those_of_the_model() {
        let words = model::rollout::RUN_TYPES.map(|kind| kind.as_str().to_lowercase());
        assert_eq!(words.map(|word| word.replace('_', "-")), OPERATIONS);
    }

    #[test]
    fn gates_times_and_labels_are_parsed_here() {
        let gate = |condition: &str, status, seconds| GateArg {
            condition: condition.into(),
            status,
            hold: Duration::from_secs(seconds),
        };
        for (text, expected) in [
            ("condition.InCustomerCluster=true for 5m", gate("InCustomerCluster", true, 300)),
            ("condition.Degraded=false", gate("Degraded", false, 0)),
        ] {
            assert_eq!(parse_gate(text).unwrap(), expected);
        }
        for wrong in ["", "Degraded=false", "condition.=true", "condition.A=yes", "condition.A"] {
            assert!(parse_gate(wrong).unwrap_err().contains("condition.NAME=true"), "{wrong}");
        }
        assert!(parse_gate("condition.A=true for ever").unwrap_err().contains("duration"));
        assert_eq!(parse_label("labels.zone").unwrap(), "zone");
        assert!(parse_label("zone").is_err() && parse_label("labels.").is_err());
        assert!(parse_time("2026-01-31T02:00:00Z").is_ok() && parse_time("tonight").is_err());
    }
}
