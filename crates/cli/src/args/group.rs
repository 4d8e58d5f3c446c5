//! The groups of commands, one for each noun, and their arguments.

use super::*;
use clap::builder::{PossibleValue, PossibleValuesParser};
use model::effect::Effect;
use model::node::Stage;

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Register a machine, or update the one with this id
    Register(RegisterArgs),
    /// Show one machine in full
    Get(MachineArg),
    /// Show machines with phase, effective state and conditions
    #[command(after_help = MACHINE_FILTERS)]
    List(ListArgs),
    /// Change spec and labels; what is not given stays
    Update(UpdateArgs),
    /// Reboot a machine (READY or MAINTENANCE)
    Reboot(VerbArgs),
    /// Install an OS image; destroys what is on the disks (MAINTENANCE only)
    Reimage(ReimageArgs),
    /// Take a machine out of service
    EnterMaintenance(EnterArgs),
    /// Put a machine back into service
    ExitMaintenance(ExitArgs),
    /// Show what the machine is made of and how it is, as its BMC says now
    Inspect(MachineArg),
    /// Show the event log of the machine's BMC, newest last
    ConsoleLog(ConsoleLogArgs),
    /// Show whether the machine is on; or switch it on, off, or off and on again
    Power(PowerArgs),
    /// Have the machine's firmware checked, and upgraded where it differs (FACTORY_READY or MAINTENANCE)
    Reprovision(ReprovisionArgs),
    /// Drain, record, switch off and flag a machine for return to its vendor (MAINTENANCE only)
    Rma(VerbArgs),
    /// Take a machine back from RMA: switch it on, see that it answers, clear the flag; it is in MAINTENANCE then
    ExitRma(VerbArgs),
}

#[derive(Debug, Args)]
pub struct MachineArg {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier machine register web-7 --ssh-endpoint 10.20.30.40:22 --label env=prod"
)]
pub struct RegisterArgs {
    /// One is made up when not given
    pub machine_id: Option<String>,
    #[command(flatten)]
    pub spec: SpecArgs,
}

#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
}

/// What a client says about a machine.
#[derive(Debug, Clone, Args, Default)]
pub struct SpecArgs {
    /// host, host:port or [v6]:port
    #[arg(long, value_name = "ENDPOINT")]
    pub ssh_endpoint: Option<String>,
    /// host, host:port, or a URL
    #[arg(long, value_name = "ENDPOINT")]
    pub bmc_endpoint: Option<String>,
    /// The cluster that the machine joins
    #[arg(long = "cluster", value_name = "REF")]
    pub target_cluster_ref: Option<String>,
    /// A MAC address; may be given several times
    #[arg(long = "mac", value_name = "MAC")]
    pub mac_addresses: Vec<String>,
    /// Who is asked to act on the machine; the server's default when not given
    #[arg(long)]
    pub provider: Option<String>,
    /// The serial number
    #[arg(long)]
    pub serial: Option<String>,
    /// Whose machine it is
    #[arg(long = "customer", value_name = "ID")]
    pub customer_id: Option<String>,
    /// The credential for its BMC, as `farrier credential list` names it
    #[arg(long, value_name = "NAME")]
    pub bmc_credential: Option<String>,
    /// The credential for its host
    #[arg(long, value_name = "NAME")]
    pub ssh_credential: Option<String>,
    /// The disk that images are written to: serial:…, wwn:… or path:/dev/…; the only one when not given
    #[arg(long, value_name = "DISK")]
    pub root_disk: Option<String>,
    /// The rack that it stands in; '' takes it out of its rack
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Its place in the rack, counted from the bottom
    #[arg(long, value_name = "N")]
    pub slot: Option<i32>,
    /// A label; may be given several times
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
    /// Follow one run, steps and log, until it ends; or stream the events of all
    #[command(after_help = RUN_FILTERS)]
    Watch(RunWatchArgs),
    /// Show the log of a run
    Logs(LogsArgs),
    /// Cancel an active run: stop what is in progress, undo what has an undo
    Cancel(CancelArgs),
    /// Try the failed step again, as a new attempt
    RetryStep(ActionArgs),
    /// Look what became of the last step, then go on from there
    Resume(ActionArgs),
    /// A new run of the same plan that adopts what already holds
    Rerun(RemakeArgs),
    /// A new run that first undoes what this one did
    RestartClean(RemakeArgs),
    /// Accept the failed step as done if the device says so, and go on
    Adopt(ActionArgs),
    /// Freeze the run until a person decides
    MarkManual(MarkManualArgs),
}

const START_HELP: &str = "\
Examples:
  farrier run start machine-1 --type REPAVE --param image_ref=ubuntu-2204
  farrier run start machine-1 --type NET_RECONFIG --param network=\"$(cat net.json)\"";

#[derive(Debug, Args)]
#[command(after_help = START_HELP)]
pub struct StartArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// What is to be done
    #[arg(long = "type", value_enum, ignore_case = true, value_name = "TYPE")]
    pub kind: RunType,
    /// The plan; the default plan of the type when not given
    #[arg(long = "plan", value_name = "PLAN", default_value = "", hide_default_value = true)]
    pub plan_id: String,
    /// A parameter; may be given several times
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub params: Vec<(String, String)>,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

/// The run types, with the documents' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RunType {
    Reboot,
    /// The same as REIMAGE
    Repave,
    Reimage,
    EnterMaintenance,
    ExitMaintenance,
    Upgrade,
    NetReconfig,
    Rma,
    /// On, unless --plan says plan-power-off-v1 or plan-power-cycle-v1
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
    /// The run, as `farrier runs` names it
    pub run_id: String,
}

#[derive(Debug, Args)]
pub struct RunWatchArgs {
    /// The run to follow; the events of all when not given
    pub run_id: Option<String>,
    /// Only what matches, e.g. 'type=REPAVE'
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "run_id"
    )]
    pub filter: String,
    /// Begin with everything that is stored, not only with what is in flight
    #[arg(long, conflicts_with = "run_id")]
    pub all: bool,
    /// With a run: stop waiting after this long
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct ActionArgs {
    /// The run, as `farrier runs` names it
    pub run_id: String,
    /// Why, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Args)]
pub struct RemakeArgs {
    /// The run to make a new one from
    pub run_id: String,
    /// Why, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct MarkManualArgs {
    /// The run, as `farrier runs` names it
    pub run_id: String,
    /// Why: the person who finds the run frozen must know
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
    /// Create a plan from a file; a plan never changes, so a change needs a new plan_id
    Create(CreateArgs),
}

#[derive(Debug, Args)]
pub struct PlanArg {
    /// The plan, as `farrier plans` names it
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
    /// A .yaml or .json file with one plan
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum CredentialCommand {
    /// Make a credential, or replace the secret of one
    Set(CredentialSetArgs),
    /// List credentials, without their secrets
    List,
    /// Delete a credential
    Delete(CredentialArg),
}

#[derive(Debug, Args)]
pub struct CredentialArg {
    /// The credential, as `farrier credential list` names it
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
    /// What it is called in machines and in the configuration
    pub name: String,
    /// Who logs in
    #[arg(long, required_unless_present_any = ["kubeconfig", "maas_key"], conflicts_with_all = ["kubeconfig", "maas_key"])]
    pub user: Option<String>,
    /// A file whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ssh_key", "kubeconfig", "maas_key"])]
    pub password_file: Option<PathBuf>,
    /// A file with a private key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "maas_key"])]
    pub ssh_key: Option<PathBuf>,
    /// A file whose first line opens the private key
    #[arg(long, value_name = "FILE", requires = "ssh_key")]
    pub passphrase_file: Option<PathBuf>,
    /// A file that says how to reach a Kubernetes cluster, and as whom
    #[arg(long, value_name = "FILE", conflicts_with = "maas_key")]
    pub kubeconfig: Option<PathBuf>,
    /// A file whose first line is the API key of a MAAS, consumer:token:secret
    #[arg(long, value_name = "FILE")]
    pub maas_key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum TrustCommand {
    /// List who was met where
    List,
    /// Say who is at an address; nobody else is trusted there, not even the first one that is met
    Set(TrustSetArgs),
    /// Forget who was met at an address; whoever is met there next is trusted
    Forget(PeerArg),
}

#[derive(Debug, Args)]
pub struct TrustSetArgs {
    /// https://HOST[:PORT] of a BMC, or ssh://HOST[:PORT] of a host
    pub peer: String,
    /// The SHA-256 fingerprint of the BMC's certificate, or the host's key as in a .pub file
    pub identity: String,
}

#[derive(Debug, Args)]
pub struct PeerArg {
    /// The address, as `farrier trust list` shows it
    pub peer: String,
}

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Flag a machine for return or replacement; blocks every operation
    SetRma(FlagArgs),
    /// Take the RMA flag back
    ClearRma(FlagArgs),
    /// Decommission a machine for good; blocks every operation
    SetRetired(FlagArgs),
    /// Take the Retired flag back
    ClearRetired(FlagArgs),
    /// Say that a person has looked and the machine is fine
    ClearNeedsIntervention(FlagArgs),
}

#[derive(Debug, Args)]
pub struct FlagArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// Why, for the record
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Faults of the simulated hardware
    #[command(subcommand)]
    Fault(SimFaultCommand),
    /// How often each effect was asked for, and how often it acted
    Effects(EffectsArgs),
}

#[derive(Debug, Subcommand)]
pub enum SimFaultCommand {
    /// Add a rule
    Add(SimFaultArgs),
    /// List the rules
    List,
    /// Remove one rule, or all
    Clear(SimClearArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier sim fault add --machine 'machine-*' --effect repave --action fail --times 1"
)]
pub struct SimFaultArgs {
    /// A machine id; * stands for any run of characters; every machine when not given
    #[arg(long, default_value = "", hide_default_value = true)]
    pub machine: String,
    /// Which effect, or which stage of a node, e.g. wait_for_ready; every one when not given
    #[arg(long, value_parser = sim_effects())]
    pub effect: Option<String>,
    /// At which moment of it; perform when not given
    #[arg(long, value_enum)]
    pub verb: Option<SimVerb>,
    /// What goes wrong
    #[arg(long, value_enum)]
    pub action: SimAction,
    /// How often; 0 means without end
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(0..))]
    pub times: i32,
    /// For slow: how long the answer is held back
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub delay: Option<Duration>,
    /// For fail: what the hardware says
    #[arg(long, default_value = "", hide_default_value = true)]
    pub message: String,
}

/// What the simulated hardware can be asked: effects, stages, and the look that is no effect. Sending parts to work asks none.
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
    /// One rule, as `farrier sim fault list` names it
    pub fault_id: Option<String>,
    /// All of them
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct EffectsArgs {
    /// Only keys that begin with this; an operation id selects one operation
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
}
