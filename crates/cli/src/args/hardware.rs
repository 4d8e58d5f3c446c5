//! Arguments of the commands that probe hardware: event logs, BMC tests and discovery.

use super::*;

const CONSOLE_LOG_HELP: &str = "\
It shows what the hardware noticed and its BMC wrote down: power, fans, memory errors, starts (the
system event log, or Redfish's event logs), newest last, with the BMC's own clock. It is not what the
machine prints on its serial console.

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

#[derive(Debug, Subcommand)]
pub enum BmcCommand {
    /// Test step by step what a BMC supports; changes nothing on it and pins no identity
    Test(BmcTestArgs),
    /// Allow a login that a BMC refused to be tried again
    Unlock(BmcUnlockArgs),
}

const BMC_TEST_HELP: &str = "\
The server asks, not this computer. A login that is refused counts: it is not tried again until the
credential is set anew, or `farrier bmc unlock` says so. It ends with 1 when no machine can be worked
with through the BMC.

Examples:
  farrier bmc test 10.1.0.7 --credential bmc
  farrier bmc test https://bmc-7.lan --ca ca.pem
  farrier bmc test ipmi://10.1.0.7";

#[derive(Debug, Args)]
#[command(after_help = BMC_TEST_HELP)]
pub struct BmcTestArgs {
    /// Address of the BMC: HOST, https://HOST, or ipmi://HOST
    pub endpoint: String,
    /// Credential to log in with (default: the configured one)
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub credential: String,
    /// File with CA certificates to trust, instead of the configured trust
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Serial number that selects the machine, if the BMC has several
    #[arg(long, default_value = "", hide_default_value = true)]
    pub serial: String,
    /// MAC address that selects the machine; can be repeated
    #[arg(long = "mac", value_name = "MAC")]
    pub mac_addresses: Vec<String>,
}

#[derive(Debug, Args)]
pub struct BmcUnlockArgs {
    /// Address of the BMC as in the machine's spec: HOST, https://HOST, or ipmi://HOST
    pub endpoint: String,
}

const DISCOVER_HELP: &str = "\
Only the addresses that are given are asked, by the server, each once. The login is tried once at each
BMC; what answers there as a BMC is sent the credential.

Examples:
  farrier discover 10.1.0.0/24 --credential bmc
  farrier discover 10.1.0.7,10.1.0.9 fe80::1 ipmi://10.1.0.11 --credential bmc
  farrier discover bmcs.txt --credential bmc --import --label rack=r1

A file has addresses separated by blanks, commas or lines; what follows a # is not read.
Importing again registers nothing twice: a machine is known by its serial number, a MAC address or its BMC.";

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
