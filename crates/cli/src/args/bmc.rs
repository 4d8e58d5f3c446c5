//! `farrier bmc`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum BmcCommand {
    /// Test a BMC step by step, without changing anything on it
    Test(BmcTestArgs),
    /// Allow a login that a BMC refused to be tried again
    Unlock(BmcUnlockArgs),
}

const BMC_TEST_HELP: &str = "\
The server calls the BMC, not this computer. A refused login is not tried again until the
credential is set again or `farrier bmc unlock` is run. Exits with 1 if no machine can be
managed through the BMC. The test pins no identity.

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
