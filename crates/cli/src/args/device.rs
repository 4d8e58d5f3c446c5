//! `farrier switch` and `farrier power-shelf`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum SwitchCommand {
    /// List switches
    List(DeviceListArgs),
    /// Show one switch in full
    Get(SwitchArg),
    /// Register a switch, or update the one with this id; a new one is read, configured and validated
    #[command(
        after_help = "Example:\n  farrier switch register sw-r1-1 --bmc-endpoint 10.0.1.1 --rack rack-1 --slot 21"
    )]
    Register(SwitchRegisterArgs),
    /// Change spec, place and labels; what is not given stays
    Update(SwitchUpdateArgs),
    /// Mark a switch for deletion; it goes when nobody holds it any more
    Delete(SwitchActArgs),
    /// Try again what failed: read it, configure it, validate it
    Retry(SwitchActArgs),
}

#[derive(Debug, Subcommand)]
pub enum PowerShelfCommand {
    /// List power shelves
    List(DeviceListArgs),
    /// Show one power shelf in full
    Get(PowerShelfArg),
    /// Register a power shelf, or update the one with this id; a new one is read and configured
    #[command(
        after_help = "Example:\n  farrier power-shelf register ps-r1-1 --bmc-endpoint 10.0.1.2 --rack rack-1 --slot 1"
    )]
    Register(PowerShelfRegisterArgs),
    /// Change spec, place and labels; what is not given stays
    Update(PowerShelfUpdateArgs),
    /// Mark a power shelf for deletion; it goes when nobody holds it any more
    Delete(PowerShelfActArgs),
    /// Try again what failed: read it and configure it
    Retry(PowerShelfActArgs),
    /// Switch one or more power shelves on or off, all or none
    #[command(subcommand, visible_alias = "fix")]
    Maintenance(ShelfMaintenanceCommand),
}

const MAINTENANCE_HELP: &str = "\
Examples:
  farrier power-shelf maintenance power-off --power-shelf-id ps-1 --dry-run
  farrier power-shelf maintenance power-off --power-shelf-id ps-1 ps-2 --reference https://tracker/MAINT-123
  farrier power-shelf fix power-on --id ps-1 --id ps-2

Machines that are in service, or that an operation works on, keep their power: the request is refused with their names,
unless --force with a --reason, which is recorded.";

#[derive(Debug, Subcommand)]
pub enum ShelfMaintenanceCommand {
    /// Switch them on
    #[command(after_help = MAINTENANCE_HELP)]
    PowerOn(ShelfMaintenanceArgs),
    /// Switch them off
    #[command(after_help = MAINTENANCE_HELP)]
    PowerOff(ShelfMaintenanceArgs),
}

#[derive(Debug, Args)]
pub struct ShelfMaintenanceArgs {
    /// One or more power shelves; repeat it, or give several
    #[arg(
        long = "power-shelf-id",
        visible_alias = "id",
        value_name = "ID",
        num_args = 1..,
        required = true
    )]
    pub power_shelf_ids: Vec<String>,
    /// The ticket that tracks this; recorded as a part of who asked
    #[arg(long, visible_alias = "ref", value_name = "URL")]
    pub reference: Option<String>,
    /// Do it although machines in service go dark
    #[arg(long, requires = "reason")]
    pub force: bool,
    /// Why it must be; recorded
    #[arg(long, value_name = "WORDS", requires = "force")]
    pub reason: Option<String>,
    /// Show what would happen, what would refuse it and what would go dark; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Names this request, so that repeating it asks for nothing twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

#[derive(Debug, Args)]
pub struct SwitchArg {
    /// The switch, as `farrier switch list` names it
    pub switch_id: String,
}

#[derive(Debug, Args)]
pub struct PowerShelfArg {
    /// The power shelf, as `farrier power-shelf list` names it
    pub power_shelf_id: String,
}

#[derive(Debug, Args)]
pub struct SwitchActArgs {
    /// The switch, as `farrier switch list` names it
    pub switch_id: String,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct PowerShelfActArgs {
    /// The power shelf, as `farrier power-shelf list` names it
    pub power_shelf_id: String,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct DeviceListArgs {
    /// Only those that stand in this rack
    #[arg(long, value_name = "RACK", default_value = "", hide_default_value = true)]
    pub rack: String,
    /// Only those in this state, e.g. Ready or Error; may be given several times
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only those with this label; KEY alone takes any value; may be given several times
    #[arg(long = "label", value_name = "KEY[=VALUE]", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// At most this many; all when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Ok((text.into(), String::new())),
    }
}

#[derive(Debug, Args)]
pub struct SwitchRegisterArgs {
    /// sw-…; one is made up when not given
    pub switch_id: Option<String>,
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct PowerShelfRegisterArgs {
    /// ps-…; one is made up when not given
    pub power_shelf_id: Option<String>,
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct SwitchUpdateArgs {
    /// The switch, as `farrier switch list` names it
    pub switch_id: String,
    #[command(flatten)]
    pub change: DeviceChangeArgs,
}

#[derive(Debug, Args)]
pub struct PowerShelfUpdateArgs {
    /// The power shelf, as `farrier power-shelf list` names it
    pub power_shelf_id: String,
    #[command(flatten)]
    pub change: DeviceChangeArgs,
}

#[derive(Debug, Clone, Args)]
pub struct DeviceChangeArgs {
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Take it out of its rack
    #[arg(long, conflicts_with_all = ["rack", "slot"])]
    pub no_rack: bool,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What a client says about a device.
#[derive(Debug, Clone, Args, Default)]
pub struct DeviceSpecArgs {
    /// host, host:port, or a URL
    #[arg(long, value_name = "ENDPOINT")]
    pub bmc_endpoint: Option<String>,
    /// The credential for its BMC, as `farrier credential list` names it
    #[arg(long, value_name = "NAME")]
    pub bmc_credential: Option<String>,
    /// Where its own system answers: host, host:port or [v6]:port
    #[arg(long, value_name = "ENDPOINT")]
    pub ssh_endpoint: Option<String>,
    /// The credential for its own system
    #[arg(long, value_name = "NAME")]
    pub ssh_credential: Option<String>,
    /// Who is asked to act on it; the server's default when not given
    #[arg(long)]
    pub provider: Option<String>,
    /// The serial number
    #[arg(long)]
    pub serial: Option<String>,
    /// The rack it stands in
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Its place in the rack, counted from the bottom
    #[arg(long, value_name = "N")]
    pub slot: Option<i32>,
    /// A label; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, ClientCommand, Command, PowerShelfCommand, ShelfMaintenanceCommand};
    use clap::Parser;

    #[test]
    fn shelves_are_named_in_every_way_of_the_document() {
        for (line, ids) in [
            ("maintenance power-off --power-shelf-id ps-1", vec!["ps-1"]),
            (
                "maintenance power-off --power-shelf-id ps-1 --power-shelf-id ps-2 --reference t",
                vec!["ps-1", "ps-2"],
            ),
            ("maintenance power-off --power-shelf-id ps-1 ps-2 ps-3", vec!["ps-1", "ps-2", "ps-3"]),
            ("fix power-off --id ps-1 ps-2 --ref t", vec!["ps-1", "ps-2"]),
            ("fix power-off --id ps-1 --force --reason because", vec!["ps-1"]),
        ] {
            let words = format!("farrier power-shelf {line}");
            let command = Cli::try_parse_from(words.split(' ')).unwrap().command;
            let Command::Client(ClientCommand::PowerShelf(PowerShelfCommand::Maintenance(
                ShelfMaintenanceCommand::PowerOff(args),
            ))) = command
            else {
                panic!("{line}")
            };
            assert_eq!(args.power_shelf_ids, ids, "{line}");
            assert_eq!(args.reference.is_some(), line.contains("--ref"), "{line}");
        }
        for bad in ["power-off", "power-off --id", "power-on --id a --force", "sideways --id a"] {
            let words = format!("farrier power-shelf maintenance {bad}");
            let error = Cli::try_parse_from(words.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{bad}");
        }
    }
}
