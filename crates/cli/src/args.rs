//! The command line: the whole tree of commands, their arguments and their help.
//!
//! What people type every day stands at the top level, as the documents have it; everything else is
//! in a group named after its noun. A command that stands in both places has one set of arguments.
//! Values are parsed here, so that no command sees a duration or a pair as text.

use crate::output::Format;
use crate::time::parse_duration;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod agent;
mod component;
mod device;
mod documents;
mod firmware;
mod group;
mod hardware;
mod health;
mod host;
mod image;
mod node;
mod power;
pub use agent::*;
pub use component::*;
pub use device::*;
pub use firmware::*;
mod rack;
mod reference;
mod site;
mod workflow;
pub use group::*;
pub use hardware::*;
pub use health::*;
pub use host::*;
pub use image::*;
pub use node::*;
pub use power::*;
pub use rack::*;
pub use site::*;
pub use workflow::*;

const AFTER_HELP: &str = "\
Examples:
  farrier serve --demo                             start a simulated datacenter to play with
  farrier list --filter 'phase=READY AND labels.env=prod'
  farrier enter-maintenance machine-1              the safety gate before a reimage
  farrier reimage machine-1 --image ubuntu-2204    and watch it, step by step
  farrier why machine-3                            why it is not ready, and what to type next
  farrier logs -f op-…                             what the devices said

Exit codes:
  0    done; the operation succeeded
  1    the operation ended FAILED or CANCELED
  2    refused by the server, or a command line that makes no sense; --dry-run: it would be refused
  3    --timeout passed before the operation ended; it goes on
  4    no server can be reached, or it cannot work at the moment
  5    a bug in Farrier
  130  interrupted by Ctrl-C; the operation goes on

Environment:
  FARRIER_SERVER   the server's address, when --server is not given
  NO_COLOR         no colours, even on a terminal";

const MACHINE_FILTERS: &str = "\
Filters, joined with AND:
  phase=READY                      FACTORY_READY, READY, MAINTENANCE
  effective_state in (BUSY, ATTENTION)
                                   NEW, IDLE, BUSY, MAINTENANCE, ATTENTION, BLOCKED
  lifecycle_state!=IN_SERVICE      FACTORY_READY, READY, PROVISIONING, IN_SERVICE, MAINTENANCE, RMA, RETIRED
  labels.env=prod                  labels by key
  condition.Reachable=false        conditions by type
  machine_id, provider, rack       and `not in (…)`";

const RUN_FILTERS: &str = "\
Filters, joined with AND:
  phase in (PENDING, RUNNING)      PENDING, RUNNING, SUCCEEDED, FAILED, CANCELED
  type=REIMAGE                     REBOOT, REIMAGE, ENTER_MAINTENANCE, EXIT_MAINTENANCE, UPGRADE,
                                   NET_RECONFIG, RMA, POWER, EXIT_RMA; by racks and their devices:
                                   RACK_MAINTENANCE, FIRMWARE, FABRIC, INTAKE, CHECK; for nodes:
                                   ONBOARD, DECOMMISSION, NODE_DRAIN
  workflow_state=failed_retryable  the eight workflow states
  machine_id, run_id, operation_id, plan_id, request_id
  machine_id=rack:rack-7           on a rack; switch:sw-1 and power_shelf:ps-1 likewise
  labels.env=prod                  and the other fields of the machine: machine_phase,
                                   effective_state, lifecycle_state, condition.TYPE, provider, rack";

const PLAN_FILTERS: &str = "Filters, joined with AND:\n  type=REBOOT    plan_id=plan-repave-v1";

/// Farrier, a control plane for bare-metal fleets.
///
/// Kill it at any instant: no operation is lost, none runs twice.
#[derive(Debug, Parser)]
#[command(name = "farrier", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// The server to talk to
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "URL",
        env = "FARRIER_SERVER",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7411"
    )]
    pub server: String,
    /// How results are printed
    #[arg(
        short,
        long,
        global = true,
        help_heading = "Global options",
        value_enum,
        value_name = "FORMAT",
        default_value_t
    )]
    pub output: Format,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// The agent of a GPU node: run on the node itself, it speaks to the server by itself
    #[command(subcommand)]
    Agent(AgentCommand),
    #[command(flatten)]
    Client(ClientCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  farrier completions bash > /etc/bash_completion.d/farrier")]
    Completions(CompletionsArgs),
}

/// What is asked of a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Register machines: a number of simulated ones, or those of a file
    Import(ImportArgs),
    /// Show machines with phase, effective state and conditions
    #[command(after_help = MACHINE_FILTERS)]
    List(ListArgs),
    /// Show one machine, or one operation (op-…), in full
    Get(IdArg),
    /// Reboot a machine (READY or MAINTENANCE)
    Reboot(VerbArgs),
    /// Install an OS image; destroys what is on the disks (MAINTENANCE only)
    Reimage(ReimageArgs),
    /// Take a machine out of service
    EnterMaintenance(EnterArgs),
    /// Put a machine back into service
    ExitMaintenance(ExitArgs),
    /// List operations, newest first
    #[command(after_help = RUN_FILTERS)]
    Ops(ListArgs),
    /// Stream operation events, of one machine or of all
    #[command(after_help = RUN_FILTERS)]
    Watch(WatchArgs),
    /// Show the log of an operation
    Logs(LogsArgs),
    /// Cancel an active operation: stop what is in progress, undo what has an undo
    Cancel(CancelArgs),
    /// List plans
    #[command(after_help = PLAN_FILTERS)]
    Plans(ListArgs),
    /// List runs: operations as an operator sees them
    #[command(after_help = RUN_FILTERS)]
    Runs(ListArgs),
    /// Why is this machine, operation, rack, switch, power shelf, node or site not ready, and what to type now
    Why(IdArg),
    /// Every transition of a machine, operation, rack, switch, power shelf, node or site, oldest first
    History(HistoryArgs),
    /// The page about a fault code
    Fault(FaultArg),
    /// Machines: register, update, and what the top level has
    #[command(subcommand)]
    Machine(MachineCommand),
    /// Runs: start, look at, and repair them
    #[command(subcommand)]
    Run(RunCommand),
    /// Plans: the steps of a run
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Credentials: what Farrier logs in with; a secret goes in and never comes out
    #[command(subcommand)]
    Credential(CredentialCommand),
    /// Trust: the certificates and host keys that were met
    #[command(subcommand)]
    Trust(TrustCommand),
    /// BMCs: try one out, and let a refused login be tried again
    #[command(subcommand)]
    Bmc(BmcCommand),
    /// Find machines by their BMCs, at the addresses that are given
    Discover(DiscoverArgs),
    /// Health: what others report of machines, racks, switches and power shelves
    #[command(subcommand)]
    Health(HealthCommand),
    /// Images: what machines can be made to run
    #[command(subcommand)]
    Image(ImageCommand),
    /// Components: the firmware of several devices at once
    #[command(subcommand)]
    Component(ComponentCommand),
    /// Firmware: what racks run, and what was applied where
    #[command(subcommand)]
    Firmware(FirmwareCommand),
    /// Netboot: how machines find Farrier when they boot over the network
    #[command(subcommand)]
    Netboot(NetbootCommand),
    /// Switches: the scale-up fabric of a rack
    #[command(subcommand)]
    Switch(SwitchCommand),
    /// Power shelves: what feeds a rack; switch them on and off
    #[command(subcommand)]
    PowerShelf(PowerShelfCommand),
    /// Racks: what stands in them, and the maintenance of all of it
    #[command(subcommand)]
    Rack(RackCommand),
    /// Nodes: machines in service, brought there through MAAS or by hand
    #[command(subcommand)]
    Node(NodeCommand),
    /// Workflows: onboardings, decommissions and drains of nodes, and how they are repaired
    #[command(subcommand)]
    Workflow(WorkflowCommand),
    /// Sites: a MAAS each, and how the nodes behind it are to be
    #[command(subcommand)]
    Site(SiteCommand),
    /// Flags that only an administrator sets
    #[command(subcommand)]
    Admin(AdminCommand),
    /// The simulated fleet: faults, and the count of every effect
    #[command(subcommand)]
    Sim(SimCommand),
}

const SERVE_HELP: &str = "\
Examples:
  farrier serve --demo
  farrier serve --listen 127.0.0.1:7411 --data-dir /var/lib/farrier
  farrier serve --database-url postgres://farrier@db/farrier --replica-name a

What is given here overrules the config file; what is not, does not.";

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub struct ServeArgs {
    /// A simulated datacenter of 2 racks and 36 machines, kept in ./farrier-data
    #[arg(long)]
    pub demo: bool,
    /// Where to listen, for gRPC and HTTP
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Where SQLite and the simulated fleet keep their files
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Keep the state in PostgreSQL, which several replicas may share
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// The config file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Simulate a fleet of this many machines
    #[arg(long, value_name = "N")]
    pub simulate: Option<u32>,
    /// How fast the simulated hardware is
    #[arg(long, value_enum, value_name = "SPEED")]
    pub sim_speed: Option<SimSpeed>,
    /// The name of this replica, in leases and in `farrier why`
    #[arg(long, value_name = "NAME")]
    pub replica_name: Option<String>,
    /// Print the config as it results from file and arguments, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// How fast the simulated hardware is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimSpeed {
    /// No delays, for tests
    Zero,
    /// Fractions of seconds
    Fast,
    /// As long as a person likes to watch
    Human,
}

const IMPORT_HELP: &str = "\
Examples:
  farrier import 36                 machine-1 … machine-36, simulated
  farrier import fleet.csv
  farrier list -o json > fleet.json; farrier import fleet.json

CSV columns, by a header line; only machine_id is required:
  machine_id,ssh_endpoint,bmc_endpoint,target_cluster_ref,mac_addresses,provider,serial,customer_id,
  bmc_credential,ssh_credential,root_disk,rack_id,slot, and labels.KEY for each label; several MAC addresses are
  separated by ';'
JSON and YAML: a list of machines, or {machines: [...]}, with the fields of `farrier get -o json`.

Importing again changes nothing but what the file changed. If any row is malformed, no machine is registered.";

#[derive(Debug, Args)]
#[command(after_help = IMPORT_HELP)]
pub struct ImportArgs {
    /// How many machines, or a .csv, .yaml or .json file
    #[arg(value_name = "N|FILE")]
    pub source: String,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only what matches, e.g. 'phase=READY AND labels.env=prod'
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// At most this many; all when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct IdArg {
    /// A machine id, an operation id (op-…), rack-…, sw-…, ps-…, node-… or site-…
    pub id: String,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// A machine id, an operation id (op-…), rack-…, sw-…, ps-…, node-… or site-…
    pub id: String,
    /// At most this many; all when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct FaultArg {
    /// A fault code, as `farrier why` names it
    pub code: String,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell to complete for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Whether and how long to wait for an operation.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Follow the operation until it ends (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as the operation is accepted
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Stop waiting after this long: 30s, 5m, 1h
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub timeout: Duration,
}

impl WaitArgs {
    pub fn waits(&self) -> bool {
        self.wait || !self.no_wait
    }
}

/// What every command that starts an operation takes.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Names this request, so that repeating it starts nothing twice; made up and printed when not given
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct VerbArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier reimage machine-1 --image ubuntu-2204 --request-id deploy-v2.1"
)]
pub struct ReimageArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// The OS image, e.g. ubuntu-2204; the server's default image when not given
    #[arg(long, value_name = "IMAGE", default_value = "", hide_default_value = true)]
    pub image: String,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Only this machine
    pub machine_id: Option<String>,
    /// Only what matches, e.g. 'type=REIMAGE'
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Begin with everything that is stored, not only with what is in flight
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The operation, as `farrier ops` names it
    pub operation_id: String,
    /// Go on until the operation has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Begin at this byte
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub offset: i64,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The operation, as `farrier ops` names it
    pub operation_id: String,
    /// Why, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// `key=value`, as labels and parameters are typed.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
        _ => Err(format!("{text:?} is not a pair; write key=value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_type_of_operation() {
        for kind in model::plan::RunType::ALL {
            let named = RUN_FILTERS.split([' ', ',', ';', '\n']).any(|word| word == kind.as_str());
            assert!(named, "{} is not in RUN_FILTERS", kind.as_str());
        }
    }

    #[test]
    fn waiting_is_the_default_and_the_last_word_counts() {
        for (line, waits) in [
            ("farrier reboot m-1", true),
            ("farrier reboot m-1 --no-wait", false),
            ("farrier reboot m-1 --no-wait --wait", true),
            ("farrier reboot m-1 --wait --no-wait", false),
        ] {
            let Command::Client(ClientCommand::Reboot(args)) = parse(line).unwrap().command else {
                panic!("{line}")
            };
            assert_eq!(args.submit.wait.waits(), waits, "{line}");
        }
    }

    #[test]
    fn the_documents_commands_parse() {
        for line in [
            "farrier import 10",
            "farrier list -o wide --filter phase=READY --limit 5",
            "farrier -o json machine list",
            "farrier reimage machine-1 --image ubuntu-2204 --timeout 10m",
            "farrier watch",
            "farrier watch machine-1 -o json",
            "farrier logs -f op-1 --offset 10",
            "farrier cancel op-1 --reason spare",
            "farrier run start m-1 --type repave --param image_ref=x --param a=b=c",
            "farrier run start m-1 --type NET_RECONFIG --plan p",
            "farrier run mark-manual op-1 --reason look",
            "farrier run start m-1 --type power --plan plan-power-off-v1 --param force=false",
            "farrier machine power m-1 cycle --graceful 0 --no-wait",
            "farrier enter-maintenance m-1 --drain",
            "farrier machine exit-maintenance m-1 --uncordon",
            "farrier machine exit-rma m-1 --timeout 20m",
            "farrier sim fault add --effect drain --action fail",
            "farrier admin set-rma m-1 --reason disk",
            "farrier sim fault add --machine m-* --effect repave --action fail --times 1",
            "farrier serve --demo --sim-speed zero --listen 127.0.0.1:0",
            "farrier fault bmc-unreachable",
            "farrier agent run --config /etc/farrier/agent.toml",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn nonsense_is_a_usage_error() {
        for line in [
            "farrier reboot m-1 --timeout soon",
            "farrier run start m-1 --type DANCE",
            "farrier run start m-1 --type REBOOT --param x",
            "farrier admin set-rma m-1",
            "farrier list --limit 0",
            "farrier list -o xml",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
