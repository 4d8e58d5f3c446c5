//! `farrier admin`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Flag a machine for return or replacement; blocks every operation
    SetRma(MachineFlagArgs),
    /// Clear the RMA flag
    ClearRma(MachineFlagArgs),
    /// Retire a machine permanently; blocks every operation
    SetRetired(MachineFlagArgs),
    /// Clear the Retired flag
    ClearRetired(MachineFlagArgs),
    /// Confirm that an operator has checked the machine and it is fine
    ClearNeedsIntervention(MachineFlagArgs),
    /// List the replicas of the server, with their leases and claims
    Replicas(ReplicasArgs),
}

#[derive(Debug, Args)]
pub struct MachineFlagArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// The reason, for the record
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Args)]
pub struct ReplicasArgs {
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}
