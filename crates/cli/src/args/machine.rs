//! `farrier machine`, and the machine commands of the top level.

use super::*;

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Register a machine, or update the one with this ID
    Register(Box<MachineRegisterArgs>),
    /// Show one machine with all details
    Get(MachineArg),
    /// List machines with phase, effective state and conditions
    #[command(after_help = MACHINE_FILTERS)]
    List(MachineListArgs),
    /// Change the spec and labels of a machine; values not given stay
    Update(Box<MachineUpdateArgs>),
    /// Delete a machine that nothing uses; its history stays
    Delete(MachineDeleteArgs),
    /// Stream the machines and every change of one, until interrupted
    #[command(after_help = MACHINE_FILTERS)]
    Watch(MachineWatchArgs),
    /// Reboot a machine (READY or MAINTENANCE)
    Reboot(MachineOperationArgs),
    /// Install an OS image and destroy the data on the disks (MAINTENANCE only)
    Reimage(ReimageArgs),
    /// Take a machine out of service
    EnterMaintenance(EnterMaintenanceArgs),
    /// Put a machine back into service
    ExitMaintenance(ExitMaintenanceArgs),
    /// Show the hardware inventory and health that the machine's BMC reports now
    Inspect(MachineArg),
    /// Show the event log of the machine's BMC, newest last
    ConsoleLog(ConsoleLogArgs),
    /// Show the power state of a machine, or switch it on, off, or off and on again
    Power(PowerArgs),
    /// Check the firmware of a machine, and upgrade the components that differ
    Reprovision(ReprovisionArgs),
    /// Drain a machine, switch it off, and flag it for return (MAINTENANCE only)
    Rma(MachineOperationArgs),
    /// Return a machine from RMA to MAINTENANCE after switching it on and checking it
    ExitRma(MachineOperationArgs),
}

#[derive(Debug, Args)]
pub struct MachineArg {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier machine register web-7 --bmc-endpoint 10.20.30.41 --ssh-endpoint 10.20.30.40:22 --label env=prod"
)]
pub struct MachineRegisterArgs {
    /// ID of the new machine (default: generated)
    pub machine_id: Option<String>,
    #[command(flatten)]
    pub spec: MachineSpecArgs,
}

#[derive(Debug, Args)]
pub struct MachineUpdateArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    #[command(flatten)]
    pub spec: MachineSpecArgs,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct MachineWatchArgs {
    /// Only this machine
    pub machine_id: Option<String>,
    /// Filter expression, e.g. 'phase=READY AND labels.env=prod'
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
}

const DELETE_HELP: &str = "\
A machine can be deleted in the phases FACTORY_READY and MAINTENANCE, when no operation holds it,
no node exists on it and it stands in no rack. Registering the same ID again continues its history.
If its last disk write did not finish, the gate unfinished-disk refuses.

Example:
  farrier machine delete web-7 --dry-run     check whether it can be deleted";

#[derive(Debug, Args)]
#[command(after_help = DELETE_HELP)]
pub struct MachineDeleteArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
    #[command(flatten)]
    pub overrides: MachineDeleteOverrideArgs,
}

/// The spec fields of a machine that a client can set.
#[derive(Debug, Clone, Args, Default)]
pub struct MachineSpecArgs {
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
    /// Provider that acts on the machine (default: datacenter, with a BMC)
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
    /// Height in rack units, 1 to 60
    #[arg(long, value_name = "N")]
    pub height_u: Option<i32>,
    /// Power shelves that feed the machine, separated by commas; '' for unknown
    #[arg(long, value_name = "PS,PS", value_delimiter = ',', num_args = 1)]
    pub feeds: Option<Vec<String>>,
    /// Name of its node in the cluster (default: the ID of the machine)
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct MachineOperationArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    #[command(flatten)]
    pub overrides: MachineOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier reimage machine-1 --image ubuntu-2204 --request-id deploy-v2.1"
)]
pub struct ReimageArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// OS image, e.g. ubuntu-2204 (default: the server's default image)
    #[arg(long, value_name = "IMAGE", default_value = "", hide_default_value = true)]
    pub image: String,
    #[command(flatten)]
    pub overrides: MachineOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

/// Which pods a drain takes.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Evict pods that no controller replaces; otherwise one of them stops the drain
    #[arg(long, requires = "drain")]
    pub drain_unmanaged_pods: bool,
    /// Evict pods whose emptyDir data is lost; otherwise one of them stops the drain
    #[arg(long, requires = "drain")]
    pub drain_emptydir: bool,
    /// Grace period of evicted pods: 30s, 5m (default: their own)
    #[arg(long, requires = "drain", value_name = "DURATION", value_parser = parse_duration)]
    pub drain_grace: Option<Duration>,
    /// Evict only pods with these labels, e.g. app=web
    #[arg(
        long,
        requires = "drain",
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    pub drain_selector: String,
}

#[derive(Debug, Args)]
pub struct EnterMaintenanceArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Drain the Kubernetes node first; without this flag the owner must drain it
    #[arg(long)]
    pub drain: bool,
    #[command(flatten)]
    pub drain_options: DrainArgs,
    #[command(flatten)]
    pub overrides: MachineOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct ExitMaintenanceArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Uncordon the Kubernetes node, even if Farrier did not cordon it
    #[arg(long)]
    pub uncordon: bool,
    #[command(flatten)]
    pub overrides: ExitMaintenanceOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

const CONSOLE_LOG_HELP: &str = "\
It shows the event log of the BMC (the IPMI system event log, or the Redfish event logs): power,
fans, memory errors and boots, newest last, with the times of the BMC's clock. It does not show
the serial console of the machine.

Example:
  farrier machine console-log web-7 --since 2h";

#[derive(Debug, Args)]
#[command(after_help = CONSOLE_LOG_HELP)]
pub struct ConsoleLogArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Only entries of this period: 30m, 2h, 7d; leaves out entries without a time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Maximum number of entries; the newest are shown
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}
