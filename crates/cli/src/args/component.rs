//! `farrier component firmware`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum ComponentCommand {
    /// Update, compare and list the firmware of several devices
    #[command(subcommand)]
    Firmware(ComponentFirmwareCommand),
}

#[derive(Debug, Subcommand)]
pub enum ComponentFirmwareCommand {
    /// Update the firmware of compute trays, switches and power shelves
    Update(ComponentUpdateArgs),
    /// Show installed version, target version and active operation of each device
    Status(ComponentStatusArgs),
    /// Show the versions that the firmware catalogue has for each device
    Versions(ComponentVersionsArgs),
}

/// The devices that a component command is about; at least one.
#[derive(Debug, Clone, Args)]
#[group(id = "devices", required = true, multiple = true)]
pub struct ComponentArgs {
    /// Machines, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub compute_trays: Vec<String>,
    /// Switches, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub switches: Vec<String>,
    /// Power shelves, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub power_shelves: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Filters:\n  device_type=switch    machine, switch, power_shelf\n  device_id, hardware_type"
)]
pub struct ComponentVersionsArgs {
    #[command(flatten)]
    pub devices: ComponentArgs,
    #[command(flatten)]
    pub list: FilteredListArgs,
}

#[derive(Debug, Args)]
pub struct ComponentStatusArgs {
    #[command(flatten)]
    pub devices: ComponentArgs,
    /// ID of the firmware record to compare with (default: that of each device's rack)
    #[arg(long, value_name = "FIRMWARE", default_value = "", hide_default_value = true)]
    pub target_version: String,
}

const UPDATE_HELP: &str = "\
Examples:
  farrier component firmware update --compute-trays machine-1,machine-2 --target-version fw-v2.1
  farrier component firmware update --power-shelves ps-1,ps-2 --dry-run

All devices of one rack are upgraded by one operation on the rack; power shelves directly, all
of them or none. A device that has the version is left alone.";

#[derive(Debug, Args)]
#[command(after_help = UPDATE_HELP)]
pub struct ComponentUpdateArgs {
    #[command(flatten)]
    pub devices: ComponentArgs,
    /// ID of the firmware record to apply (default: that of each device's rack)
    #[arg(long, value_name = "FIRMWARE", default_value = "", hide_default_value = true)]
    pub target_version: String,
    #[command(flatten)]
    pub overrides: ComponentOverrideArgs,
    /// Ticket that tracks this change
    #[arg(
        long,
        visible_alias = "ref",
        value_name = "TICKET",
        default_value = "",
        hide_default_value = true
    )]
    pub reference: String,
    /// Idempotency key: a repeated request starts nothing twice (default: generated)
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn typed(words: &str) -> Result<ComponentUpdateArgs, clap::Error> {
        let line = format!("farrier component firmware update --compute-trays m-1 {words}");
        let command = Cli::try_parse_from(line.split(' '))?.command;
        let Command::Client(ClientCommand::Component(ComponentCommand::Firmware(
            ComponentFirmwareCommand::Update(args),
        ))) = command
        else {
            panic!("{line}")
        };
        Ok(args)
    }

    #[test]
    fn a_reference_has_two_names() {
        for words in ["--ref T-1", "--reference T-1"] {
            assert_eq!(typed(words).unwrap().reference, "T-1");
        }
    }
}
