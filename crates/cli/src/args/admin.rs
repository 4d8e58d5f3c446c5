//! `farrier admin`.

use super::gate_override::override_help;
use super::*;

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Flag a machine for return or replacement, which blocks every operation
    SetRma(MachineSetFlagArgs),
    /// Clear the RMA flag of a machine
    ClearRma(MachineFlagArgs),
    /// Retire a machine permanently, which blocks every operation
    SetRetired(MachineSetFlagArgs),
    /// Clear the Retired flag of a machine
    ClearRetired(MachineFlagArgs),
    /// Confirm that an operator has checked the machine, and clear its flag
    ClearNeedsIntervention(MachineFlagArgs),
    /// List the replicas of the server, with their leases and claims
    Replicas(ReplicasArgs),
}

const SET_FLAG_HELP: &str = "\
Refused while an operation holds the machine, and while the machine is in service: drain it first,
or pass the gate in-service.

Examples:
  farrier admin set-rma machine-1 --reason 'fan 3 is broken'
  farrier admin set-rma machine-1 --override in-service --reason 'smoke'";

#[derive(Debug, Args)]
#[command(after_help = SET_FLAG_HELP)]
pub struct MachineSetFlagArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Reason, for the record
    #[arg(long)]
    pub reason: String,
    #[arg(
        long = "override",
        value_name = "GATE",
        value_delimiter = ',',
        help = override_help!("in-service")
    )]
    pub gates: Vec<String>,
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
