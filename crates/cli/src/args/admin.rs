//! `farrier admin`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Flag a machine for return or replacement, which blocks every operation
    SetRma(MachineFlagArgs),
    /// Clear the RMA flag of a machine
    ClearRma(MachineFlagArgs),
    /// Retire a machine permanently, which blocks every operation
    SetRetired(MachineFlagArgs),
    /// Clear the Retired flag of a machine
    ClearRetired(MachineFlagArgs),
    /// Confirm that an operator has checked the machine, and clear its flag
    ClearNeedsIntervention(MachineFlagArgs),
    /// List the replicas of the server, with their leases and claims
    Replicas(ReplicasArgs),
}

#[derive(Debug, Args)]
pub struct MachineFlagArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Reason, for the record
    #[arg(long)]
    pub reason: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Filters:\n  version!=0.5.0\n  name, incarnation")]
pub struct ReplicasArgs {
    #[command(flatten)]
    pub list: FilteredListArgs,
}
