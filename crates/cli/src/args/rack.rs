//! `farrier rack`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum RackCommand {
    /// Create a rack; it enters service when all expected devices are present
    Create(RackCreateArgs),
    /// List racks
    List(RackListArgs),
    /// Show a rack with its devices, their states and the active operations
    Get(RackArg),
    /// Change labels, hardware type, counts and location; values not given stay
    Update(RackUpdateArgs),
    /// Delete an empty rack
    Delete(RackDeleteArgs),
    /// Stream the racks and every change of one, until interrupted
    Watch(ObjectWatchArgs),
    /// Run all maintenance activities on all devices, before other requests
    Reprovision(RackReprovisionArgs),
    /// Start, follow and cancel the maintenance of a rack or of some of its devices
    #[command(subcommand)]
    Maintenance(RackMaintenanceCommand),
}

#[derive(Debug, Args)]
pub struct RackArg {
    /// ID of the rack, from `farrier rack list`
    pub rack_id: String,
}

/// The spec fields of a rack that a client can set.
#[derive(Debug, Clone, Args, Default)]
pub struct RackSpecArgs {
    /// Hardware type of the rack; selects its default firmware
    #[arg(long, value_name = "TYPE")]
    pub hardware_type: Option<String>,
    /// Expected number of machines
    #[arg(long, value_name = "N")]
    pub expect_machines: Option<u32>,
    /// Expected number of switches
    #[arg(long, value_name = "N")]
    pub expect_switches: Option<u32>,
    /// Expected number of power shelves
    #[arg(long, value_name = "N")]
    pub expect_power_shelves: Option<u32>,
    /// Room in which the rack stands
    #[arg(long)]
    pub room: Option<String>,
    /// Row in the room
    #[arg(long)]
    pub row: Option<String>,
    /// Position in the row
    #[arg(long)]
    pub position: Option<String>,
    /// Label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier rack create rack-7 --hardware-type gb200 --expect-machines 18 --expect-switches 9 \\\n    --expect-power-shelves 8 --room hall-2 --row B --position 7"
)]
pub struct RackCreateArgs {
    /// ID of the new rack, rack-…
    pub rack_id: String,
    #[command(flatten)]
    pub spec: RackSpecArgs,
}

#[derive(Debug, Args)]
pub struct RackListArgs {
    /// Only racks in this state; can be repeated
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only racks with this label; KEY alone matches any value
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    pub labels: Vec<String>,
    /// Only racks of this hardware type; can be repeated
    #[arg(long = "hardware-type", value_name = "TYPE")]
    pub hardware_types: Vec<String>,
    /// Filter expression, e.g. `state!=Ready AND labels.env=prod`
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub sort: SortArg,
}

#[derive(Debug, Args)]
pub struct RackUpdateArgs {
    /// ID of the rack, from `farrier rack list`
    pub rack_id: String,
    #[command(flatten)]
    pub spec: RackSpecArgs,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct RackDeleteArgs {
    /// ID of the rack, from `farrier rack list`
    pub rack_id: String,
    #[command(flatten)]
    pub overrides: RackDeleteOverrideArgs,
    #[command(flatten)]
    pub version: VersionArgs,
}

/// The arguments of every command that starts an operation on a rack.
#[derive(Debug, Args)]
pub struct RackSubmitArgs {
    #[command(flatten)]
    pub overrides: RackOverrideArgs,
    /// Ticket that tracks this change, for the record
    #[arg(
        long,
        visible_alias = "ref",
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    pub reference: String,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct RackReprovisionArgs {
    /// ID of the rack, from `farrier rack list`
    pub rack_id: String,
    #[command(flatten)]
    pub options: RackSubmitArgs,
}

#[derive(Debug, Subcommand)]
pub enum RackMaintenanceCommand {
    /// Start a maintenance of the whole rack, or of the named devices
    Start(RackMaintenanceStartArgs),
    /// Show the progress of the maintenance by activity and by device
    Status(RackMaintenanceArg),
    /// Follow the maintenance until it ends
    Watch(RackMaintenanceWatchArgs),
    /// Cancel the maintenance; the rack then waits in Error for an operator
    Cancel(RackMaintenanceCancelArgs),
}

#[derive(Debug, Args)]
pub struct RackMaintenanceArg {
    /// ID of the operation (op-…) or of the rack (rack-…)
    pub id: String,
}

#[derive(Debug, Args)]
pub struct RackMaintenanceWatchArgs {
    /// ID of the operation (op-…) or of the rack (rack-…)
    pub id: String,
    /// Maximum time to wait: 30s, 5m, 1h; the operation continues after it
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct RackMaintenanceCancelArgs {
    /// ID of the operation (op-…), or of a rack (rack-…) with one operation
    pub id: String,
    /// Reason, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RackActivityArg {
    /// Firmware of every device in scope
    #[value(name = "firmware", alias = "firmware-upgrade")]
    Firmware,
    /// NMX cluster: the fabric between the switches
    #[value(name = "nmx-cluster", alias = "configure-nmx-cluster")]
    NmxCluster,
    /// Power sequence
    #[value(name = "power", alias = "power-sequence")]
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PowerSequenceArg {
    /// Shelves, then switches, then machines
    On,
    /// Machines, then switches, then shelves
    Off,
    /// Off, then on
    Reset,
}

const MAINTENANCE_HELP: &str = "\
Examples:
  farrier rack maintenance start rack-7 --dry-run
  farrier rack maintenance start rack-7 --activity firmware --firmware-version fw-v2.1
  farrier rack maintenance start rack-7 --machine m-1,m-2 --activity power --power reset --reference https://tracker/M-1
  farrier rack maintenance start rack-7 --activity power --power off --override in-service --reason 'water in the hall'

Default devices: the whole rack. Default activities: all, or those that --power or
--firmware-version imply. Default power sequence: on.";

#[derive(Debug, Args)]
#[command(after_help = MAINTENANCE_HELP)]
pub struct RackMaintenanceStartArgs {
    /// ID of the rack, from `farrier rack list`
    pub rack_id: String,
    /// Only these machines; can be repeated or separated by commas
    #[arg(long = "machine", value_name = "ID", value_delimiter = ',')]
    pub machines: Vec<String>,
    /// Only these switches; can be repeated or separated by commas
    #[arg(long = "switch", value_name = "ID", value_delimiter = ',')]
    pub switches: Vec<String>,
    /// Only these power shelves; can be repeated or separated by commas
    #[arg(long = "power-shelf", value_name = "ID", value_delimiter = ',')]
    pub power_shelves: Vec<String>,
    /// Only these activities; can be repeated or separated by commas
    #[arg(long = "activity", value_enum, value_name = "ACTIVITY", value_delimiter = ',')]
    pub activities: Vec<RackActivityArg>,
    /// ID of the firmware record (default: that of the hardware type)
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub firmware_version: String,
    /// Power sequence (default: on)
    #[arg(long, value_enum, value_name = "SEQUENCE")]
    pub power: Option<PowerSequenceArg>,
    #[command(flatten)]
    pub options: RackSubmitArgs,
}
