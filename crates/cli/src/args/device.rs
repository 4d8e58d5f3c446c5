//! The arguments that `farrier switch` and `farrier power-shelf` share.

use super::*;

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
    /// Filter expression, e.g. `state!=Ready AND labels.env=prod`
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    #[command(flatten)]
    pub sort: SortArg,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Ok((text.into(), String::new())),
    }
}

#[derive(Debug, Clone, Args)]
pub struct DeviceUpdateArgs {
    #[command(flatten)]
    pub spec: DeviceSpecArgs,
    /// Remove the device from its rack
    #[arg(long, conflicts_with_all = ["rack", "slot"])]
    pub no_rack: bool,
    /// Remove a label
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove_labels: Vec<String>,
    #[command(flatten)]
    pub version: VersionArgs,
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
    /// Provider that acts on the device (default: datacenter, with a BMC)
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
    /// Height in rack units, 1 to 60
    #[arg(long, value_name = "N")]
    pub height_u: Option<i32>,
    /// Power shelves that feed a switch, separated by commas; '' for unknown
    #[arg(long, value_name = "PS,PS", value_delimiter = ',', num_args = 1)]
    pub feeds: Option<Vec<String>>,
    /// Label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
}
