//! `farrier switch` and `farrier power-shelf`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum SwitchCommand {
    /// List switches
    List(DeviceListArgs),
    /// Show one switch with all details
    Get(SwitchArg),
    /// Register a switch, or update the one with this ID; a new switch is read, configured and
    /// validated
    #[command(
        after_help = "Example:\n  farrier switch register sw-r1-1 --bmc-endpoint 10.0.1.1 --rack rack-1 --slot 21"
    )]
    Register(SwitchRegisterArgs),
    /// Change spec, rack position and labels; values that are not given stay
    Update(SwitchUpdateArgs),
    /// Mark a switch for deletion; it is deleted when no operation holds it
    Delete(SwitchActArgs),
    /// Retry a failed bring-up: read, configure and validate the switch
    Retry(SwitchActArgs),
}

#[derive(Debug, Subcommand)]
pub enum PowerShelfCommand {
    /// List power shelves
    List(DeviceListArgs),
    /// Show one power shelf with all details
    Get(PowerShelfArg),
    /// Register a power shelf, or update the one with this ID; a new shelf is read and configured
    #[command(
        after_help = "Example:\n  farrier power-shelf register ps-r1-1 --bmc-endpoint 10.0.1.2 --rack rack-1 --slot 1"
    )]
    Register(PowerShelfRegisterArgs),
    /// Change spec, rack position and labels; values that are not given stay
    Update(PowerShelfUpdateArgs),
    /// Mark a power shelf for deletion; it is deleted when no operation holds it
    Delete(PowerShelfActArgs),
    /// Retry a failed bring-up: read and configure the power shelf
    Retry(PowerShelfActArgs),
    /// Switch one or more power shelves on or off, all of them or none
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
    /// Switch the power shelves on
    #[command(after_help = MAINTENANCE_HELP)]
    PowerOn(ShelfMaintenanceArgs),
    /// Switch the power shelves off
    #[command(after_help = MAINTENANCE_HELP)]
    PowerOff(ShelfMaintenanceArgs),
}

#[derive(Debug, Args)]
pub struct ShelfMaintenanceArgs {
    /// IDs of one or more power shelves; can be repeated
    #[arg(
        long = "power-shelf-id",
        visible_alias = "id",
        value_name = "ID",
        num_args = 1..,
        required = true
    )]
    pub power_shelf_ids: Vec<String>,
    /// The ticket that tracks this change; recorded with the requester
    #[arg(long, visible_alias = "ref", value_name = "URL")]
    pub reference: Option<String>,
    /// Proceed although machines in service lose power
    #[arg(long, requires = "reason")]
    pub force: bool,
    /// The reason for --force; recorded
    #[arg(long, value_name = "WORDS", requires = "force")]
    pub reason: Option<String>,
    /// Show the impact, the refusals and the machines that would lose power; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Idempotency key: a repeated request changes nothing twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

#[derive(Debug, Args)]
pub struct SwitchArg {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
}

#[derive(Debug, Args)]
pub struct PowerShelfArg {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
}

#[derive(Debug, Args)]
pub struct SwitchActArgs {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct PowerShelfActArgs {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct DeviceListArgs {
    /// Only devices in this rack
    #[arg(long, value_name = "RACK", default_value = "", hide_default_value = true)]
    pub rack: String,
    /// Only devices in this state, e.g. Ready or Error; can be repeated
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only devices with this label; KEY alone matches any value; can be repeated
    #[arg(long = "label", value_name = "KEY[=VALUE]", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Maximum number of results (default: all)
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
    /// ID of the new switch, sw-… (default: generated)
    pub switch_id: Option<String>,
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct PowerShelfRegisterArgs {
    /// ID of the new power shelf, ps-… (default: generated)
    pub power_shelf_id: Option<String>,
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct SwitchUpdateArgs {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
    #[command(flatten)]
    pub change: DeviceChangeArgs,
}

#[derive(Debug, Args)]
pub struct PowerShelfUpdateArgs {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
    #[command(flatten)]
    pub change: DeviceChangeArgs,
}

#[derive(Debug, Clone, Args)]
pub struct DeviceChangeArgs {
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Remove the device from its rack
    #[arg(long, conflicts_with_all = ["rack", "slot"])]
    pub no_rack: bool,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    /// Show what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The spec fields of a device that a client can set.
#[derive(Debug, Clone, Args, Default)]
pub struct DeviceSpecArgs {
    /// Address of the BMC: host, host:port, or a URL
    #[arg(long, value_name = "ENDPOINT")]
    pub bmc_endpoint: Option<String>,
    /// Credential for the BMC, from `farrier credential list`
    #[arg(long, value_name = "NAME")]
    pub bmc_credential: Option<String>,
    /// SSH address of the device's operating system: host, host:port or [v6]:port
    #[arg(long, value_name = "ENDPOINT")]
    pub ssh_endpoint: Option<String>,
    /// Credential for SSH
    #[arg(long, value_name = "NAME")]
    pub ssh_credential: Option<String>,
    /// Provider that acts on the device (default: the server's)
    #[arg(long)]
    pub provider: Option<String>,
    /// Serial number
    #[arg(long)]
    pub serial: Option<String>,
    /// ID of the rack
    #[arg(long, value_name = "RACK")]
    pub rack: Option<String>,
    /// Rack position, counted from the bottom
    #[arg(long, value_name = "N")]
    pub slot: Option<i32>,
    /// Label; can be repeated
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
