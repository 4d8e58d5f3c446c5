//! `farrier power-shelf`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum PowerShelfCommand {
    /// List power shelves
    List(DeviceListArgs),
    /// Show one power shelf with all details
    Get(PowerShelfArg),
    /// Register a power shelf, or update the one with this ID
    #[command(
        after_help = "A new power shelf is read and configured.\n\nExample:\n  farrier power-shelf register ps-r1-1 --bmc-endpoint 10.0.1.2 --rack rack-1 --slot 1"
    )]
    Register(PowerShelfRegisterArgs),
    /// Change spec, rack position and labels of a power shelf; values not given stay
    Update(PowerShelfUpdateArgs),
    /// Mark a power shelf for deletion; it is deleted when no operation holds it
    Delete(PowerShelfDeleteArgs),
    /// Retry a failed bring-up: read and configure the power shelf
    Retry(PowerShelfActionArgs),
    /// Switch one or more power shelves on or off, all of them or none
    #[command(subcommand, visible_alias = "fix")]
    Maintenance(PowerShelfMaintenanceCommand),
}

const MAINTENANCE_HELP: &str = "\
Examples:
  farrier power-shelf maintenance power-off --power-shelf-id ps-1 --dry-run
  farrier power-shelf maintenance power-off --power-shelf-id ps-1 ps-2 --reference https://tracker/MAINT-123
  farrier power-shelf fix power-on --id ps-1 --id ps-2

The request is refused if a machine that is in service, or that has an active operation, would
lose its power. --override in-service with --reason passes this gate; the reason is recorded.";

#[derive(Debug, Subcommand)]
pub enum PowerShelfMaintenanceCommand {
    /// Switch the power shelves on
    #[command(after_help = MAINTENANCE_HELP)]
    PowerOn(PowerShelfMaintenanceArgs),
    /// Switch the power shelves off
    #[command(after_help = MAINTENANCE_HELP)]
    PowerOff(PowerShelfMaintenanceArgs),
}

#[derive(Debug, Args)]
pub struct PowerShelfMaintenanceArgs {
    /// IDs of one or more power shelves; can be repeated
    #[arg(
        long = "power-shelf-id",
        visible_alias = "id",
        value_name = "ID",
        num_args = 1..,
        required = true
    )]
    pub power_shelf_ids: Vec<String>,
    /// Ticket that tracks this change, for the record
    #[arg(long, visible_alias = "ref", value_name = "URL")]
    pub reference: Option<String>,
    #[command(flatten)]
    pub overrides: PowerShelfOverrideArgs,
    /// Idempotency key: a repeated request changes nothing twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

#[derive(Debug, Args)]
pub struct PowerShelfArg {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
}

#[derive(Debug, Args)]
pub struct PowerShelfActionArgs {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
}

#[derive(Debug, Args)]
pub struct PowerShelfDeleteArgs {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct PowerShelfRegisterArgs {
    /// ID of the new power shelf, ps-… (default: generated)
    pub power_shelf_id: Option<String>,
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
}

#[derive(Debug, Args)]
pub struct PowerShelfUpdateArgs {
    /// ID of the power shelf, from `farrier power-shelf list`
    pub power_shelf_id: String,
    #[command(flatten)]
    pub update: DeviceUpdateArgs,
}

#[cfg(test)]
mod tests {
    use crate::args::{
        Cli, ClientCommand, Command, PowerShelfCommand, PowerShelfMaintenanceCommand,
    };
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
            ("fix power-off --id ps-1 --override in-service --reason because", vec!["ps-1"]),
        ] {
            let words = format!("farrier power-shelf {line}");
            let command = Cli::try_parse_from(words.split(' ')).unwrap().command;
            let Command::Client(ClientCommand::PowerShelf(PowerShelfCommand::Maintenance(
                PowerShelfMaintenanceCommand::PowerOff(args),
            ))) = command
            else {
                panic!("{line}")
            };
            assert_eq!(args.power_shelf_ids, ids, "{line}");
            assert_eq!(args.reference.is_some(), line.contains("--ref"), "{line}");
        }
        for bad in
            ["power-off", "power-off --id", "power-on --id a --override health", "sideways --id a"]
        {
            let words = format!("farrier power-shelf maintenance {bad}");
            let error = Cli::try_parse_from(words.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{bad}");
        }
    }
}
