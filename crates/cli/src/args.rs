//! The tree of commands, their arguments and their help texts.
//!
//! Daily commands are at the top level; all others are in a group per resource. A command that is
//! in both places has one set of arguments. Values such as durations and pairs are parsed here, so
//! that no command handles them as text.

use crate::output::Format;
use crate::time::parse_duration;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod access;
mod admin;
mod agent;
mod approval;
mod audit;
mod bmc;
mod cluster;
mod component;
mod credential;
mod db;
mod device;
mod discover;
mod documents;
mod firmware;
mod gate_override;
mod health;
mod host;
mod image;
mod import;
mod machine;
mod node;
mod notify;
mod operation;
mod plan;
mod power;
mod power_shelf;
mod rack;
mod reference;
mod secret;
mod serve;
mod sim;
mod site;
mod switch;
mod tls;
mod version;
pub use access::*;
pub use admin::*;
pub use agent::*;
pub use approval::*;
pub use audit::*;
pub use bmc::*;
pub use cluster::*;
pub use component::*;
pub use credential::*;
pub use db::*;
pub use device::*;
pub use discover::*;
pub use firmware::*;
pub use gate_override::*;
pub use health::*;
pub use host::*;
pub use image::*;
pub use import::*;
pub use machine::*;
pub use node::*;
pub use notify::*;
pub use operation::*;
pub use plan::*;
pub use power::*;
pub use power_shelf::*;
pub use rack::*;
pub use secret::*;
pub use serve::*;
pub use sim::*;
pub use site::*;
pub use switch::*;
pub use tls::*;
pub use version::*;

const AFTER_HELP: &str = "\
Examples:
  farrier serve --demo                             start a simulated datacenter
  farrier list --filter 'phase=READY AND labels.env=prod'
  farrier enter-maintenance machine-1              the safety gate before a reimage
  farrier reimage machine-1 --image ubuntu-2204    and watch it, step by step
  farrier why machine-3                            why it is not ready, and the next command
  farrier operation list --filter phase=FAILED     failed operations, newest first
  farrier logs op-…                                follow the log of an operation

Exit codes:
  0    done; the operation succeeded
  1    the operation ended FAILED or CANCELED
  2    refused by the server, or an invalid command line; --dry-run: it would be refused
  3    --timeout passed before the operation ended; the operation continues
  4    no server can be reached, or the server is unavailable
  5    a bug in Farrier
  130  interrupted by Ctrl-C; the operation continues

Environment:
  FARRIER_SERVER      the server's address, when --server is not given
  FARRIER_CONTEXT     the context, when --context is not given
  FARRIER_TOKEN_FILE  the file with the API token, when --token-file is not given
  FARRIER_TOKEN       the API token itself
  FARRIER_CONTEXTS    the file of the contexts, in place of ~/.config/farrier/contexts.toml
  FARRIER_SERVER_CA, FARRIER_CLIENT_CERTIFICATE, FARRIER_CLIENT_KEY
                      the files of --server-ca, --client-certificate and --client-key
  NO_COLOR            no colours, even on a terminal";

const MACHINE_FILTERS: &str = "\
Filters, joined with AND:
  phase=READY                      FACTORY_READY, READY, MAINTENANCE; and by lifecycle state:
                                   PROVISIONING, IN_SERVICE, RMA, RETIRED
  effective_state in (BUSY, ATTENTION)
                                   NEW, IDLE, BUSY, MAINTENANCE, ATTENTION, BLOCKED
  lifecycle_state!=IN_SERVICE      FACTORY_READY, READY, PROVISIONING, IN_SERVICE, MAINTENANCE, RMA, RETIRED
  labels.env=prod                  labels by key
  condition.Reachable=false        conditions by type
  machine_id, provider, rack_id    and `not in (…)`

Orders of a list: machine_id, created_at, updated_at";

const OPERATION_FILTERS: &str = "\
Filters, joined with AND:
  phase in (PENDING, RUNNING)      PENDING, RUNNING, SUCCEEDED, FAILED, CANCELED
  type=REIMAGE                     REBOOT, REIMAGE, ENTER_MAINTENANCE, EXIT_MAINTENANCE, UPGRADE,
                                   NET_RECONFIG, RMA, POWER, EXIT_RMA, JOIN; on racks and their
                                   devices: RACK_MAINTENANCE, FIRMWARE, FABRIC, INTAKE, CHECK; for nodes:
                                   ONBOARD, DECOMMISSION, NODE_DRAIN
  workflow_state=failed_retryable  the eight workflow states
  target_id=rack-7                 a machine, rack, switch or power shelf
  target_kind=rack                 machine, switch, power_shelf, rack
  created_at>=2026-01-31T12:00:00Z also <; a date alone is its midnight, UTC
  operation_id, plan_id, request_id, initiator, part_of
  labels.env=prod                  and the other fields of the machine: machine_id, machine_phase,
                                   effective_state, lifecycle_state, condition.TYPE, provider,
                                   rack_id

Orders of a list: created_at (newest first by default), finished_at (only ended operations)";

const PLAN_FILTERS: &str = "Filters, joined with AND:\n  type=REBOOT    plan_id=plan-repave-v1";

/// Farrier, a control plane for bare-metal fleets.
///
/// Kill it at any instant: no operation is lost and none runs twice.
#[derive(Debug, Parser)]
#[command(name = "farrier", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// URL of the server (default: that of the context, or http://127.0.0.1:7411)
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "URL",
        env = "FARRIER_SERVER",
        hide_env_values = true
    )]
    pub server: Option<String>,
    /// Server and token of this context, from `farrier context list`
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "NAME",
        env = "FARRIER_CONTEXT",
        hide_env_values = true
    )]
    pub context: Option<String>,
    /// File with the API token; - reads it from stdin
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "FILE",
        env = "FARRIER_TOKEN_FILE",
        hide_env_values = true
    )]
    pub token_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: ClientTlsArgs,
    /// Send the token to another host without TLS: others can read it
    #[arg(long, global = true, help_heading = "Global options")]
    pub insecure: bool,
    /// Output format
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
    /// Check the request and show what it would do; change nothing
    #[arg(long, global = true, help_heading = "Global options")]
    pub dry_run: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// Run the agent of a GPU node, on the node itself
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Check a token at a server, and remember both
    Login(LoginArgs),
    /// Choose between the servers that you know
    #[command(subcommand)]
    Context(ContextCommand),
    /// Make certificates for a first set-up with TLS
    #[command(subcommand)]
    Tls(TlsCommand),
    #[command(flatten)]
    Client(ClientCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  farrier completions bash > /etc/bash_completion.d/farrier")]
    Completions(CompletionsArgs),
}

/// The commands that call a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Register machines from a file, or a number of simulated machines
    Import(ImportArgs),
    /// List machines with phase, effective state and conditions
    #[command(after_help = MACHINE_FILTERS)]
    List(MachineListArgs),
    /// Show one machine, or one operation (op-…), with all details
    #[command(mut_arg("id", |arg| arg.help("ID of a machine or an operation (op-…)")))]
    Get(IdArg),
    /// Reboot a machine (READY or MAINTENANCE)
    Reboot(MachineOperationArgs),
    /// Install an OS image and destroy the data on the disks (MAINTENANCE only)
    Reimage(ReimageArgs),
    /// Take a machine out of service
    EnterMaintenance(EnterMaintenanceArgs),
    /// Put a machine back into service
    ExitMaintenance(ExitMaintenanceArgs),
    /// Stream the events of operations, on one machine or on all machines
    #[command(after_help = OPERATION_FILTERS)]
    Watch(WatchArgs),
    /// Show the log of an operation
    Logs(LogsArgs),
    /// Cancel an active operation and undo the steps that have an undo
    Cancel(OperationActionArgs),
    /// List plans
    #[command(after_help = PLAN_FILTERS)]
    Plans(ListArgs),
    /// Show why an object is not ready and what to type; all of them without an ID
    Why(WhyArgs),
    /// Show every transition of an object, oldest first
    History(HistoryArgs),
    /// Show the documentation of a fault code
    Fault(FaultArg),
    /// Register, update, inspect and operate machines
    #[command(subcommand)]
    Machine(MachineCommand),
    /// List, follow and repair operations on machines, racks and nodes
    #[command(subcommand, visible_alias = "op", aliases = ["run", "workflow"])]
    Operation(OperationCommand),
    /// List operations, newest first
    #[command(hide = true, alias = "runs", after_help = OPERATION_FILTERS)]
    Ops(OperationListArgs),
    /// Show and create plans, which are the ordered steps of operations
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Manage the logins that Farrier uses; a secret can be set but never read
    #[command(subcommand)]
    Credential(CredentialCommand),
    /// Manage the pinned certificates and host keys of peers
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Test a BMC, or allow a refused login to be tried again
    #[command(subcommand)]
    Bmc(BmcCommand),
    /// Check the access to a Kubernetes cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Find machines by probing BMCs at the given addresses
    Discover(DiscoverArgs),
    /// Show and report health alerts of machines, racks, switches and power shelves
    #[command(subcommand)]
    Health(HealthCommand),
    /// Manage the OS images that machines can be installed with
    #[command(subcommand)]
    Image(ImageCommand),
    /// Update the firmware of several devices at once
    #[command(subcommand)]
    Component(ComponentCommand),
    /// Manage the firmware catalogue, and show the firmware that was applied
    #[command(subcommand)]
    Firmware(FirmwareCommand),
    /// Print the DHCP and TFTP configuration for machines that boot over the network
    #[command(subcommand)]
    Netboot(NetbootCommand),
    /// Manage switches, which are the scale-up fabric of a rack
    #[command(subcommand)]
    Switch(SwitchCommand),
    /// Manage power shelves, and switch them on and off
    #[command(subcommand)]
    PowerShelf(PowerShelfCommand),
    /// Manage racks, and start the maintenance of a rack
    #[command(subcommand)]
    Rack(RackCommand),
    /// Onboard, drain, quarantine and decommission nodes
    #[command(subcommand)]
    Node(NodeCommand),
    /// Manage sites, each with one MAAS and the settings of its nodes
    #[command(subcommand)]
    Site(SiteCommand),
    /// Send notices of failures to other systems: webhooks, Slack, PagerDuty
    #[command(subcommand)]
    Notify(NotifyCommand),
    /// Change the flags of machines, and list the replicas of the server
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Show who you are to the server, and what you may do
    Whoami,
    /// Print a link that signs your browser in to the console
    Console,
    /// Create, list and revoke API tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Manage roles, and who has them
    #[command(subcommand)]
    Role(RoleCommand),
    /// Approve a request of another person
    #[command(after_help = "See first what it would do:\n  farrier approval get apr-01m7…")]
    Approve(ApprovalDecisionArgs),
    /// Show and decide requests that need a second person
    #[command(subcommand)]
    Approval(ApprovalCommand),
    /// Show who asked for what, and check that the log is whole
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  farrier audit --since 24h --who ada\n  \
                      farrier audit --object machine-1 -o jsonl\n  \
                      farrier audit --follow"
    )]
    Audit(AuditArgs),
    /// Check the database, and set rows aside that cannot be read
    #[command(subcommand)]
    Db(DbCommand),
    /// Manage the keys that protect the stored secrets
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Inject faults into the simulated fleet, and count every effect
    #[command(subcommand)]
    Sim(SimCommand),
}

impl ClientCommand {
    /// True if the command calls no server.
    pub fn is_offline(&self) -> bool {
        matches!(self, Self::Db(command) if command.is_offline())
            || matches!(self, Self::Token(command) if command.is_offline())
    }
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Filter expression, e.g. 'phase=READY AND labels.env=prod'
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct MachineListArgs {
    #[command(flatten)]
    pub list: ListArgs,
    #[command(flatten)]
    pub sort: SortArg,
}

/// The order of a list.
#[derive(Debug, Clone, Default, Args)]
pub struct SortArg {
    /// Order by a field such as created_at; append :desc for the reverse order
    #[arg(
        long = "sort",
        value_name = "FIELD[:desc]",
        default_value = "",
        hide_default_value = true,
        value_parser = parse_sort
    )]
    pub order_by: String,
}

/// Parses `FIELD`, `FIELD:asc` or `FIELD:desc` to the form of the API. The server knows the fields.
fn parse_sort(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        None => Ok(text.into()),
        Some((field, direction @ ("asc" | "desc"))) => Ok(format!("{field} {direction}")),
        Some((field, _)) => Err(format!("use {field} or {field}:desc")),
    }
}

/// The arguments of a list that has no options of its own. Its fields are in the after-help.
#[derive(Debug, Args)]
pub struct FilteredListArgs {
    /// Filter expression: terms of the fields below, joined with AND
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The ID may also be a serial number, a MAC address, the address of a BMC, a host \
                  name or the\nlabel `name`, in any case. Without an ID, exits with 1 if something \
                  needs a person.\n\nExamples:\n  farrier why\n  farrier why machine-3\n  farrier why \
                  aa:bb:cc:dd:ee:ff"
)]
pub struct WhyArgs {
    /// ID of a machine, operation (op-…), rack-…, sw-…, ps-…, node-… or site-…
    pub id: Option<String>,
}

#[derive(Debug, Args)]
pub struct IdArg {
    /// ID of a machine, operation (op-…), rack-…, sw-…, ps-…, node-… or site-…
    pub id: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Filters:\n  cause=request    request, engine, probe, admin\n  actor, state\n\nOrders: ts, ts:desc"
)]
pub struct HistoryArgs {
    /// ID of a machine, op-…, rack-…, sw-…, ps-…, node-…, site-…, or identity/PEER
    pub id: String,
    #[command(flatten)]
    pub list: FilteredListArgs,
    #[command(flatten)]
    pub sort: SortArg,
}

#[derive(Debug, Args)]
pub struct FaultArg {
    /// Fault code, from `farrier why`
    pub code: String,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to generate the script for
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
    /// Maximum time to wait, e.g. 30s, 5m, 1h; the operation continues after it
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub timeout: Duration,
}

impl WaitArgs {
    pub fn waits(&self) -> bool {
        self.wait || !self.no_wait
    }
}

/// The arguments of every command that starts an operation.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Idempotency key: a repeated request starts nothing twice (default: generated)
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Only this machine
    pub machine_id: Option<String>,
    /// Filter expression, e.g. 'type=REIMAGE'
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Start with all stored events, not only with those of active operations
    #[arg(long)]
    pub all: bool,
}

/// The arguments of a watch of racks or nodes.
#[derive(Debug, Args)]
pub struct ObjectWatchArgs {
    /// Filter expression
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
}

/// Parses `key=value`, the form of labels and parameters. The value may be empty, the key not.
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
            let named =
                OPERATION_FILTERS.split([' ', ',', ';', '\n']).any(|name| name == kind.as_str());
            assert!(named, "{} is not in OPERATION_FILTERS", kind.as_str());
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
            "farrier operation start m-1 --type repave --param image_ref=x --param a=b=c",
            "farrier operation start m-1 --type NET_RECONFIG --plan p",
            "farrier operation mark-manual op-1 --reason look",
            "farrier operation start m-1 --type power --plan plan-power-off-v1 --param force=false",
            "farrier machine power m-1 cycle --graceful 0 --no-wait",
            "farrier enter-maintenance m-1 --drain",
            "farrier machine exit-maintenance m-1 --uncordon",
            "farrier machine exit-rma m-1 --timeout 20m",
            "farrier sim fault create --effect drain --action fail",
            "farrier admin set-rma m-1 --reason disk",
            "farrier sim fault create --machine m-* --effect repave --action fail --times 1",
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
            "farrier operation start m-1 --type DANCE",
            "farrier operation start m-1 --type REBOOT --param x",
            "farrier admin set-rma m-1",
            "farrier list --limit 0",
            "farrier list -o xml",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
