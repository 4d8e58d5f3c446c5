//! `farrier rack`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum RackCommand {
    /// Make a rack; it comes into service when its devices are there
    Create(RackCreateArgs),
    /// List racks
    List(RackListArgs),
    /// Show a rack as an elevation: what stands in it, how it is, and what works on it
    Get(RackArg),
    /// Change labels, hardware type and expected counts; what is not given stays
    Update(RackUpdateArgs),
    /// Delete a rack that is empty
    Delete(RackDeleteArgs),
    /// Bring all its devices through all activities, before what else was asked of it
    Reprovision(RackReprovisionArgs),
    /// Maintenance: firmware, the NMX cluster and power, of all its devices or some of them
    #[command(subcommand)]
    Maintenance(RackMaintenanceCommand),
}

#[derive(Debug, Args)]
pub struct RackArg {
    /// The rack, as `farrier rack list` names it
    pub rack_id: String,
}

/// What a client says about a rack.
#[derive(Debug, Clone, Args, Default)]
pub struct RackSpecArgs {
    /// What kind of rack it is; decides which firmware is its default
    #[arg(long, value_name = "TYPE")]
    pub hardware_type: Option<String>,
    /// How many machines are to stand in it
    #[arg(long, value_name = "N")]
    pub expect_machines: Option<u32>,
    /// How many switches
    #[arg(long, value_name = "N")]
    pub expect_switches: Option<u32>,
    /// How many power shelves
    #[arg(long, value_name = "N")]
    pub expect_power_shelves: Option<u32>,
    /// A label, such as its location; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farrier rack create rack-7 --hardware-type gb200 --expect-machines 18 --expect-switches 9 \\\n    --expect-power-shelves 8 --label location=hall-2"
)]
pub struct RackCreateArgs {
    /// rack-…
    pub rack_id: String,
    #[command(flatten)]
    pub spec: RackSpecArgs,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct RackListArgs {
    /// Only racks in this state; may be given several times
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only racks with this label; KEY alone takes any value
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    pub labels: Vec<String>,
    /// Only racks of this hardware type; may be given several times
    #[arg(long = "hardware-type", value_name = "TYPE")]
    pub hardware_types: Vec<String>,
    /// At most this many; all when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RackUpdateArgs {
    /// The rack, as `farrier rack list` names it
    pub rack_id: String,
    #[command(flatten)]
    pub spec: RackSpecArgs,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct RackDeleteArgs {
    /// The rack, as `farrier rack list` names it
    pub rack_id: String,
    /// Take out what stands in it
    #[arg(long)]
    pub force: bool,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// What every command that starts an operation on a rack takes.
#[derive(Debug, Args)]
pub struct RackSubmitArgs {
    /// Take down machines that are in service
    #[arg(long, requires = "reason")]
    pub force: bool,
    /// Why they must be taken down, for the record
    #[arg(long, requires = "force", default_value = "", hide_default_value = true)]
    pub reason: String,
    /// The ticket that tracks it, for the record
    #[arg(
        long,
        visible_alias = "ref",
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    pub reference: String,
    /// Only say what would be done, and what speaks against it
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct RackReprovisionArgs {
    /// The rack, as `farrier rack list` names it
    pub rack_id: String,
    #[command(flatten)]
    pub ask: RackSubmitArgs,
}

#[derive(Debug, Subcommand)]
pub enum RackMaintenanceCommand {
    /// Start a maintenance of the whole rack, or of the devices that are named
    Start(RackMaintenanceStartArgs),
    /// Show how it stands, by activity and by device
    Status(RackMaintenanceArg),
    /// Follow it until it ends
    Watch(RackMaintenanceWatchArgs),
    /// Cancel it: what is in progress is stopped, and the rack waits in Error for a person
    Cancel(CancelRackMaintenanceArgs),
}

#[derive(Debug, Args)]
pub struct RackMaintenanceArg {
    /// The operation (op-…), or the rack (rack-…)
    pub id: String,
}

#[derive(Debug, Args)]
pub struct RackMaintenanceWatchArgs {
    /// The operation (op-…), or the rack (rack-…)
    pub id: String,
    /// Stop watching after this long: 30s, 5m, 1h
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct CancelRackMaintenanceArgs {
    /// The operation (op-…), or a rack (rack-…) with one operation
    pub id: String,
    /// Why, for the record
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivityArg {
    /// Firmware of every device in scope
    #[value(name = "firmware", alias = "firmware-upgrade")]
    Firmware,
    /// The fabric between the switches
    #[value(name = "nmx-cluster", alias = "configure-nmx-cluster")]
    NmxCluster,
    /// Switching power in the right order
    #[value(name = "power", alias = "power-sequence")]
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SequenceArg {
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
  farrier rack maintenance start rack-7 --activity power --power off --force --reason 'water in the hall'

Without devices it is the whole rack. Without activities it is all of them, or those that --power or --firmware-version name. Power is
switched on unless --power says otherwise.";

#[derive(Debug, Args)]
#[command(after_help = MAINTENANCE_HELP)]
pub struct RackMaintenanceStartArgs {
    /// The rack, as `farrier rack list` names it
    pub rack_id: String,
    /// Only these machines; may be given several times, or separated by commas
    #[arg(long = "machine", value_name = "ID", value_delimiter = ',')]
    pub machines: Vec<String>,
    /// Only these switches
    #[arg(long = "switch", value_name = "ID", value_delimiter = ',')]
    pub switches: Vec<String>,
    /// Only these power shelves
    #[arg(long = "power-shelf", value_name = "ID", value_delimiter = ',')]
    pub power_shelves: Vec<String>,
    /// Only these activities; may be given several times
    #[arg(long = "activity", value_enum, value_name = "ACTIVITY", value_delimiter = ',')]
    pub activities: Vec<ActivityArg>,
    /// The firmware, as `farrier firmware list` names it; the default of the hardware type when not given
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub firmware_version: String,
    /// How power is switched
    #[arg(long, value_enum, value_name = "SEQUENCE")]
    pub power: Option<SequenceArg>,
    #[command(flatten)]
    pub ask: RackSubmitArgs,
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn force_and_its_reason_come_together() {
        for command in ["maintenance start rack-1", "reprovision rack-1"] {
            for (words, taken) in [
                ("--force --reason fire", true),
                ("--reason fire --force --ref T-1", true),
                ("--force", false),
                ("--reason fire", false),
            ] {
                let line = format!("farrier rack {command} {words}");
                let parsed = Cli::try_parse_from(line.split(' '));
                assert_eq!(parsed.is_ok(), taken, "{line}");
            }
        }
    }
}
