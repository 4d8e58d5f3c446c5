//! `farrier switch`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum SwitchCommand {
    /// List switches
    List(DeviceListArgs),
    /// Show one switch with all details
    Get(SwitchArg),
    /// Register a switch, or update the one with this ID
    #[command(
        after_help = "A new switch is read, configured and validated.\n\nExample:\n  farrier switch register sw-r1-1 --bmc-endpoint 10.0.1.1 --rack rack-1 --slot 21"
    )]
    Register(SwitchRegisterArgs),
    /// Change spec, rack position and labels of a switch; values not given stay
    Update(SwitchUpdateArgs),
    /// Mark a switch for deletion; it is deleted when no operation holds it
    Delete(SwitchDeleteArgs),
    /// Retry a failed bring-up: read, configure and validate the switch
    Retry(SwitchActionArgs),
}

#[derive(Debug, Args)]
pub struct SwitchArg {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
}

#[derive(Debug, Args)]
pub struct SwitchActionArgs {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
}

#[derive(Debug, Args)]
pub struct SwitchDeleteArgs {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct SwitchRegisterArgs {
    /// ID of the new switch, sw-… (default: generated)
    pub switch_id: Option<String>,
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
}

#[derive(Debug, Args)]
pub struct SwitchUpdateArgs {
    /// ID of the switch, from `farrier switch list`
    pub switch_id: String,
    #[command(flatten)]
    pub update: DeviceUpdateArgs,
}
