//! `farrier serve`.

use super::*;

const SERVE_HELP: &str = "\
Examples:
  farrier serve --demo
  farrier serve --listen 127.0.0.1:7411 --data-dir /var/lib/farrier
  farrier serve --database-url postgres://farrier@db/farrier --replica-name a
  farrier tls init tls && farrier serve --listen 10.0.0.7:7411 --config farrier.toml

Options override the settings of the config file.";

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub struct ServeArgs {
    /// Start a simulated datacenter of 2 racks and 36 machines, in ./farrier-data
    #[arg(long)]
    pub demo: bool,
    /// Address to listen on, for gRPC and HTTP
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Serve other hosts without TLS: others can read and change what is sent
    #[arg(long)]
    pub insecure: bool,
    /// Directory for the files of SQLite and of the simulated fleet
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Store the state in PostgreSQL, which several replicas can share
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// Config file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Simulate a fleet of this many machines; 0: only allow the provider `sim`
    #[arg(long, value_name = "N")]
    pub simulate: Option<u32>,
    /// Speed of the simulated hardware
    #[arg(long, value_enum, value_name = "SPEED")]
    pub sim_speed: Option<SimSpeed>,
    /// Name of this replica, shown in leases and in `farrier why`
    #[arg(long, value_name = "NAME")]
    pub replica_name: Option<String>,
    /// Print the config that results from file and arguments, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// Speed of the simulated hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimSpeed {
    /// No delays, for tests
    Zero,
    /// Delays of fractions of a second
    Fast,
    /// Delays that a person can follow
    Human,
}
