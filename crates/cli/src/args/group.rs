//! The command groups, one per resource, and their arguments.

use super::*;
use clap::builder::{PossibleValue, PossibleValuesParser};
use model::effect::Effect;
use model::node::Stage;

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Register a machine, or update the one with this ID
    Register(RegisterArgs),
    /// Show one machine with all details
    Get(MachineArg),
    /// List machines with phase, effective state and conditions
    #[command(after_help = MACHINE_FILTERS)]
    List(ListArgs),
    /// Change spec and labels; values that are not given stay
    Update(UpdateArgs),
    /// Reboot a machine (READY or MAINTENANCE)
    Reboot(VerbArgs),
    /// Install an OS image; destroys the data on the disks (MAINTENANCE only)
    Reimage(ReimageArgs),
    /// Take a machine out of service
    EnterMaintenance(EnterArgs),
    /// Put a machine back into service
    ExitMaintenance(ExitArgs),
    /// Show the hardware inventory and health that the machine's BMC reports now
    Inspect(MachineArg),
    /// Show the event log of the machine's BMC, newest last
    ConsoleLog(ConsoleLogArgs),
    /// Show the power state of a machine; or switch it on, off, or off and on again
    Power(PowerArgs),
    /// Check the machine's firmware and upgrade what differs (FACTORY_READY or MAINTENANCE)
    Reprovision(ReprovisionArgs),
    /// Drain, record, switch off and flag a machine for return to its vendor (MAINTENANCE only)
    Rma(VerbArgs),
    /// Return a machine from RMA to MAINTENANCE: switch it on, check that it responds, clear the
    /// flag
    ExitRma(VerbArgs),
}

#[derive(Debug, Args)]
pub struct MachineArg {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier machine register web-7 --ssh-endpoint 10.20.30.40:22 --label env=prod"
)]
pub struct RegisterArgs {
    /// ID of the new machine (default: generated)
    pub machine_id: Option<String>,
    #[command(flatten)]
    pub spec: SpecArgs,
}

#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
}

/// The spec fields of a machine that a client can set.
#[derive(Debug, Clone, Args, Default)]
pub struct SpecArgs {
    /// SSH address of the host: host, host:port or [v6]:port
    #[arg(long, value_name = "ENDPOINT")]
    pub ssh_endpoint: Option<String>,
    /// Address of the BMC: host, host:port, or a URL
    #[arg(long, value_name = "ENDPOINT")]
    pub bmc_endpoint: Option<String>,
    /// Cluster that the machine joins
    #[arg(long = "cluster", value_name = "REF")]
    pub target_cluster_ref: Option<String>,
    /// MAC address; can be repeated
    #[arg(long = "mac", value_name = "MAC")]
    pub mac_addresses: Vec<String>,
    /// Provider that acts on the machine (default: the server's)
    #[arg(long)]
    pub provider: Option<String>,
    /// Serial number
    #[arg(long)]
    pub serial: Option<String>,
    /// Customer that owns the machine
    #[arg(long = "customer", value_name = "ID")]
    pub customer_id: Option<String>,
    /// Credential for the BMC, from `farrier credential list`
    #[arg(long, value_name = "NAME")]
    pub bmc_credential: Option<String>,
    /// Credential for the host
    #[arg(long, value_name = "NAME")]
    pub ssh_credential: Option<String>,
    /// Disk for images: serial:…, wwn:… or path:/dev/… (default: the only disk)
    #[arg(long, value_name = "DISK")]
    pub root_disk: Option<String>,
    /// ID of the rack; '' removes the machine from its rack
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Rack position, counted from the bottom
    #[arg(long, value_name = "N")]
    pub slot: Option<i32>,
    /// Label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Start a run
    Start(StartArgs),
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
    RetryStep(ActionArgs),
    /// Check the result of the last step, then continue from there
    Resume(ActionArgs),
    /// Start a new run of the same plan; steps whose result already holds are adopted
    Rerun(RemakeArgs),
    /// Start a new run that first undoes the steps of this one
    RestartClean(RemakeArgs),
    /// Accept the failed step as done if the device confirms it, and continue
    Adopt(ActionArgs),
    /// Freeze the run until an operator decides
    MarkManual(MarkManualArgs),
}

const START_HELP: &str = "\
Examples:
  farrier run start machine-1 --type REPAVE --param image_ref=ubuntu-2204
  farrier run start machine-1 --type NET_RECONFIG --param network=\"$(cat net.json)\"";

#[derive(Debug, Args)]
#[command(after_help = START_HELP)]
pub struct StartArgs {
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
pub struct ActionArgs {
    /// ID of the run, from `farrier runs`
    pub run_id: String,
    /// The reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct RemakeArgs {
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

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Show one plan with its steps
    Get(PlanArg),
    /// List plans
    #[command(after_help = PLAN_FILTERS)]
    List(ListArgs),
    /// Create a plan from a file; a plan is immutable, so a change needs a new plan_id
    Create(CreateArgs),
}

#[derive(Debug, Args)]
pub struct PlanArg {
    /// ID of the plan, from `farrier plans`
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
pub struct CreateArgs {
    /// .yaml or .json file with one plan
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum CredentialCommand {
    /// Create a credential, or replace its secret
    Set(CredentialSetArgs),
    /// List credentials, without their secrets
    List,
    /// Delete a credential
    Delete(CredentialArg),
}

#[derive(Debug, Args)]
pub struct CredentialArg {
    /// Name of the credential, from `farrier credential list`
    pub name: String,
}

const CREDENTIAL_HELP: &str = "\
A password is read from a file or from standard input, never from the command line.

Examples:
  farrier credential set bmc --user root --password-file bmc.txt
  pass show bmc | farrier credential set bmc --user root
  farrier credential set hosts --user ubuntu --ssh-key ~/.ssh/id_ed25519
  farrier credential set cluster-a --kubeconfig admin.conf
  farrier credential set maas --maas-key maas.key";

#[derive(Debug, Args)]
#[command(after_help = CREDENTIAL_HELP)]
pub struct CredentialSetArgs {
    /// Name of the credential, used by machines and by the configuration
    pub name: String,
    /// User name to log in with
    #[arg(long, required_unless_present_any = ["kubeconfig", "maas_key"], conflicts_with_all = ["kubeconfig", "maas_key"])]
    pub user: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ssh_key", "kubeconfig", "maas_key"])]
    pub password_file: Option<PathBuf>,
    /// File with an SSH private key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "maas_key"])]
    pub ssh_key: Option<PathBuf>,
    /// File whose first line is the passphrase of the private key
    #[arg(long, value_name = "FILE", requires = "ssh_key")]
    pub passphrase_file: Option<PathBuf>,
    /// Kubeconfig file of a Kubernetes cluster
    #[arg(long, value_name = "FILE", conflicts_with = "maas_key")]
    pub kubeconfig: Option<PathBuf>,
    /// File whose first line is the API key of a MAAS, consumer:token:secret
    #[arg(long, value_name = "FILE")]
    pub maas_key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum TrustCommand {
    /// List the pinned peer identities
    List,
    /// Pin the identity of a peer; no other identity is trusted at that address
    Set(TrustSetArgs),
    /// Remove a pin; the next identity seen at that address is trusted
    Forget(PeerArg),
}

#[derive(Debug, Args)]
pub struct TrustSetArgs {
    /// Address: https://HOST[:PORT] of a BMC, or ssh://HOST[:PORT] of a host
    pub peer: String,
    /// SHA-256 fingerprint of the BMC's certificate, or the host key as in a .pub file
    pub identity: String,
}

#[derive(Debug, Args)]
pub struct PeerArg {
    /// Address, from `farrier trust list`
    pub peer: String,
}

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Flag a machine for return or replacement; blocks every operation
    SetRma(FlagArgs),
    /// Clear the RMA flag
    ClearRma(FlagArgs),
    /// Retire a machine permanently; blocks every operation
    SetRetired(FlagArgs),
    /// Clear the Retired flag
    ClearRetired(FlagArgs),
    /// Confirm that an operator has checked the machine and it is fine
    ClearNeedsIntervention(FlagArgs),
}

#[derive(Debug, Args)]
pub struct FlagArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// The reason, for the record
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Faults of the simulated hardware
    #[command(subcommand)]
    Fault(SimFaultCommand),
    /// Show how often each effect was requested, and how often it was executed
    Effects(EffectsArgs),
}

#[derive(Debug, Subcommand)]
pub enum SimFaultCommand {
    /// Add a fault rule
    Add(SimFaultArgs),
    /// List the fault rules
    List,
    /// Remove one fault rule, or all
    Clear(SimClearArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier sim fault add --machine 'machine-*' --effect repave --action fail --times 1"
)]
pub struct SimFaultArgs {
    /// Machine ID; * matches any characters (default: every machine)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub machine: String,
    /// Effect, or stage of a node such as wait_for_ready (default: every one)
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
}

/// The names that a fault rule can match: effects, node stages, and `probe`, which is no effect.
/// `parts` is left out: starting child runs calls no provider.
fn sim_effects() -> PossibleValuesParser {
    let effects = Effect::WORDS.into_iter().filter(|word| *word != "parts").chain(["probe"]);
    let stages = Stage::WORDS.iter().map(|word| PossibleValue::new(*word).hide(true));
    PossibleValuesParser::new(effects.map(PossibleValue::new).chain(stages))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimVerb {
    Perform,
    Follow,
    Inquire,
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
pub struct SimClearArgs {
    /// ID of the rule, from `farrier sim fault list`
    pub fault_id: Option<String>,
    /// Remove all rules
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct EffectsArgs {
    /// Only effect keys with this prefix; an operation ID selects one operation
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
}
