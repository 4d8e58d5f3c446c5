//! `farrier admin`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Flag a machine for return or replacement; blocks every operation
    SetRma(FlagArgs),
    /// Clear the RMA flag
    ClearRma(FlagArgs),
    /// Retire a machine permanently; blocks every operation
    SetRetired(FlagArgs),
    /// Clear the Retired flag
    ClearRetired(FlagArgs),
    /// Confirm that an operator has checked the machine and it is fine
    ClearNeedsIntervention(FlagArgs),
}

#[derive(Debug, Args)]
pub struct FlagArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// The reason, for the record
    #[arg(long)]
    pub reason: String,
}
