//! `farrier discover`.

use super::*;

const DISCOVER_HELP: &str = "\
The server probes each given address once, and no others. It tries the login once at each BMC:
every address that answers as a BMC receives the credential.

Examples:
  farrier discover 10.1.0.0/24 --credential bmc
  farrier discover 10.1.0.7,10.1.0.9 fe80::1 ipmi://10.1.0.11 --credential bmc
  farrier discover bmcs.txt --credential bmc --import --label rack=r1

A file has addresses separated by spaces, commas or lines; a # starts a comment.
A repeated import registers nothing twice: a machine is recognized by its serial number, a MAC
address or its BMC.";

#[derive(Debug, Args)]
#[command(after_help = DISCOVER_HELP)]
pub struct DiscoverArgs {
    /// Addresses, ranges such as 10.1.0.0/24, or files that contain them
    #[arg(required = true, value_name = "ADDRESS|CIDR|FILE")]
    pub addresses: Vec<String>,
    /// Credential to log in with (default: the configured one)
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub credential: String,
    /// Register the machines that are unknown
    #[arg(long)]
    pub import: bool,
    /// Provider that acts on the new machines
    #[arg(long, default_value = "", hide_default_value = true)]
    pub provider: String,
    /// With --import: label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair, requires = "import")]
    pub labels: Vec<(String, String)>,
    /// Maximum number of addresses probed at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i32).range(1..=256))]
    pub concurrency: i32,
}
