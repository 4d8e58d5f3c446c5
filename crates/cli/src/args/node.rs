//! `farrier node`.

use super::gate_override::override_help;
use super::*;
use model::node::DecommissionMode;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes with their coarse states; deleted nodes only with --state deleted
    #[command(after_help = LIST_HELP)]
    List(NodeListArgs),
    /// Show one node: its state, operation and MAAS status, and the next command
    Get(NodeArg),
    /// Stream the nodes and every change of one, until interrupted
    Watch(ObjectWatchArgs),
    /// Onboard a machine as a node of a site; an existing MAAS machine is adopted
    #[command(after_help = ONBOARD_HELP)]
    Onboard(NodeOnboardArgs),
    /// Decommission a node: clean it, reinstall it, or remove it
    #[command(after_help = DECOMMISSION_HELP)]
    Decommission(NodeDecommissionArgs),
    /// Drain a node, then keep it out of scheduling
    #[command(after_help = DRAIN_HELP)]
    Drain(NodeDrainArgs),
    /// Retire a node at once, without waiting for its workloads
    #[command(after_help = DRAIN_HELP)]
    Retire(NodeDrainArgs),
    /// Return a retired node to service under the same identity
    #[command(after_help = REACTIVATE_HELP)]
    Reactivate(NodeReactivateArgs),
    /// Resume unfinished work on a node: its operation and its agent task
    Resume(NodeArg),
    /// Keep a node out of scheduling until an operator releases it
    #[command(
        after_help = "Example:\n  farrier node quarantine node-… --reason 'ECC errors on GPU 3'"
    )]
    Quarantine(NodeQuarantineArgs),
    /// Return a quarantined node to service
    #[command(after_help = RELEASE_HELP)]
    Release(NodeReleaseArgs),
    /// Create a node without MAAS, and print the configuration of its agent
    #[command(after_help = BOOTSTRAP_HELP)]
    Bootstrap(NodeBootstrapArgs),
}

const LIST_HELP: &str = "\
States:
  bootstrap_issued  enrolling  active  offline  quarantined  draining  retired  removing  deleted

Examples:
  farrier node list --site site-a --state offline --state quarantined
  farrier node list --machine machine-7 --state deleted      the earlier nodes on it";

const ONBOARD_HELP: &str = "\
Examples:
  farrier node onboard machine-7 --site site-a --dry-run     the steps, run or adopted
  farrier node onboard machine-7 --site site-a
  farrier operation retry-step node-…                        after the cause is fixed";

const DECOMMISSION_HELP: &str = "\
Modes:
  soft_reset         drained and cleaned; the installation stays; the node returns to service
  reimage            the same, and reinstalled through MAAS
  storage_cleanup    drained, and the data of its users removed
  full_decommission  removed: MAAS releases the machine, and this node is deleted for good

Examples:
  farrier node decommission node-… --mode reimage --dry-run
  farrier node decommission node-… --mode full_decommission --override agent --reason 'its disk is dead'";

const DRAIN_HELP: &str = "\
Examples:
  farrier node drain node-… --dry-run
  farrier node retire node-… --override agent --reason 'it does not boot'
  farrier node reactivate node-…                             back into service";

const REACTIVATE_HELP: &str = "\
The node becomes active when it is healthy.
Refused if a cleanup of the node did not finish: retry it, or pass the gate cleanup.

Examples:
  farrier node reactivate node-…
  farrier node reactivate node-… --override cleanup --reason 'its disks were changed'";

const RELEASE_HELP: &str = "\
A node is released if its agent sends healthy heartbeats and its machine is Deployed in MAAS.
Otherwise the gate node-health refuses.

Examples:
  farrier node release node-… --reason 'GPU 3 was changed'
  farrier node release node-… --override node-health --reason 'MAAS is being moved'";

const BOOTSTRAP_HELP: &str = "\
The configuration contains a token that works once, for one agent, and is shown only once. No
MAAS is needed.

Examples:
  farrier node bootstrap machine-7 --to agent.toml           then, on the machine: /etc/farrier/agent.toml
  farrier node bootstrap machine-7 --expires-in 2h | ssh machine-7 'umask 077; cat > /etc/farrier/agent.toml'
  farrier node bootstrap --reissue node-…                    a new token replaces the old one";

#[derive(Debug, Args)]
pub struct NodeArg {
    /// ID of the node, from `farrier node list`
    pub node_id: String,
}

#[derive(Debug, Args)]
pub struct NodeListArgs {
    /// Only nodes in this state; can be repeated (default: all but deleted)
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only nodes of this site
    #[arg(long, value_name = "SITE", default_value = "", hide_default_value = true)]
    pub site: String,
    /// Only nodes on this machine
    #[arg(long, value_name = "MACHINE", default_value = "", hide_default_value = true)]
    pub machine: String,
    /// Filter expression, e.g. `state=offline AND labels.env=prod`
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub sort: SortArg,
}

#[derive(Debug, Args)]
pub struct NodeOnboardArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// ID of the site whose MAAS manages the machine, from `farrier site list`
    #[arg(long, value_name = "SITE")]
    pub site: String,
    #[command(flatten)]
    pub overrides: OnboardOverrideArgs,
    #[command(flatten)]
    pub options: NodeOperationArgs,
}

/// The arguments of every request that starts a workflow on a node.
#[derive(Debug, Args)]
pub struct NodeOperationArgs {
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct NodeDrainArgs {
    /// ID of the node, from `farrier node list`
    pub node_id: String,
    #[command(flatten)]
    pub overrides: DrainOverrideArgs,
    #[command(flatten)]
    pub options: NodeOperationArgs,
}

#[derive(Debug, Args)]
pub struct NodeDecommissionArgs {
    /// ID of the node, from `farrier node list`
    pub node_id: String,
    /// Extent of the decommission
    #[arg(long, value_enum, value_name = "MODE")]
    pub mode: DecommissionModeArg,
    #[command(flatten)]
    pub overrides: DecommissionOverrideArgs,
    #[command(flatten)]
    pub options: NodeOperationArgs,
}

/// The decommission modes, with the names of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum DecommissionModeArg {
    SoftReset,
    Reimage,
    FullDecommission,
    StorageCleanup,
}

impl DecommissionModeArg {
    pub fn wire_name(self) -> &'static str {
        let mode = match self {
            DecommissionModeArg::SoftReset => DecommissionMode::SoftReset,
            DecommissionModeArg::Reimage => DecommissionMode::Reimage,
            DecommissionModeArg::FullDecommission => DecommissionMode::FullDecommission,
            DecommissionModeArg::StorageCleanup => DecommissionMode::StorageCleanup,
        };
        mode.as_str()
    }
}

#[derive(Debug, Args)]
pub struct NodeQuarantineArgs {
    /// ID of the node, from `farrier node list`
    pub node_id: String,
    /// Reason, shown to everyone who finds the node quarantined
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct NodeReactivateArgs {
    /// ID of the node, from `farrier node list`
    pub node_id: String,
    /// Reason to return it to service, for the record
    #[arg(long, default_value = "")]
    pub reason: String,
    #[arg(
        long = "override",
        value_name = "GATE",
        value_delimiter = ',',
        requires = "reason",
        help = override_help!("health, cleanup, approval")
    )]
    pub gates: Vec<String>,
    /// Idempotency key: a repeated request changes nothing twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

#[derive(Debug, Args)]
pub struct NodeReleaseArgs {
    /// ID of the node, from `farrier node list`
    pub node_id: String,
    /// Reason to release it, for the record
    #[arg(long)]
    pub reason: String,
    #[arg(
        long = "override",
        value_name = "GATE",
        value_delimiter = ',',
        help = override_help!("health, node-health, approval")
    )]
    pub gates: Vec<String>,
    /// Idempotency key: a repeated request changes nothing twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

#[derive(Debug, Args)]
pub struct NodeBootstrapArgs {
    /// ID of the machine that becomes the node, from `farrier list`
    #[arg(required_unless_present = "reissue")]
    pub machine_id: Option<String>,
    /// Issue a new token for an existing bootstrapped node; its agent must enroll again
    #[arg(long, value_name = "NODE", conflicts_with = "machine_id")]
    pub reissue: Option<String>,
    /// Keep the session of the enrolled agent valid until the new token is used
    #[arg(long, requires = "reissue", conflicts_with = "machine_id")]
    pub keep_session: bool,
    /// Lifetime of the token: 30m, 24h, 7d (default: one day)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
    /// New file for the configuration, readable only by its owner (default: stdout)
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_modes_are_those_of_the_documents() {
        let typed: Vec<String> = DecommissionModeArg::value_variants()
            .iter()
            .filter_map(|mode| mode.to_possible_value())
            .map(|value| value.get_name().to_string())
            .collect();
        let wire: Vec<&str> =
            DecommissionModeArg::value_variants().iter().map(|one| one.wire_name()).collect();
        assert_eq!(typed, wire);
        let mut known: Vec<&str> =
            DecommissionMode::DECOMMISSION.iter().map(|mode| mode.as_str()).collect();
        let mut typed: Vec<&str> = typed.iter().map(String::as_str).collect();
        known.sort_unstable();
        typed.sort_unstable();
        assert_eq!(typed, known);
        for mode in known {
            assert!(DECOMMISSION_HELP.contains(&format!("  {mode}  ")), "{mode}");
        }
    }

    #[test]
    fn the_help_names_every_state() {
        for state in model::node::NodeState::NAMES {
            assert!(LIST_HELP.split([' ', '\n']).any(|name| name == state), "{state}");
        }
    }

    #[test]
    fn commands_parse() {
        for line in [
            "farrier node list --state active --state offline --site site-a --machine m-1",
            "farrier node onboard m-1 --site site-a --request-id r --no-wait",
            "farrier node decommission node-1 --mode reimage --override agent --reason dead --dry-run",
            "farrier node decommission node-1 --mode full_decommission --override agent,maas --reason gone",
            "farrier node drain node-1 --timeout 10m",
            "farrier node bootstrap m-1 --expires-in 24h --to agent.toml",
            "farrier node bootstrap --reissue node-1",
            "farrier node bootstrap --reissue node-1 --keep-session",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "farrier node onboard m-1",
            "farrier node decommission node-1",
            "farrier node decommission node-1 --mode drain",
            "farrier node quarantine node-1",
            "farrier node release node-1 --override node-health",
            "farrier node bootstrap",
            "farrier node bootstrap m-1 --reissue node-1",
            "farrier node bootstrap m-1 --keep-session",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
