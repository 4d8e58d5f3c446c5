//! `farrier admin`: flags that only an administrator sets, each with a reason.

use crate::args::{AdminCommand, MachineFlagArgs};
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::machine::effective_name;
use crate::output::Screen;
use crate::text::one_line;
use proto::v1::{
    ClearNeedsInterventionRequest, ClearRetiredRequest, ClearRmaRequest, Machine,
    SetRetiredRequest, SetRmaRequest,
};

pub async fn run(client: &Client, screen: &mut Screen, command: AdminCommand) -> Result<Exit> {
    let mut admin = client.admin();
    let (machine, done) = match command {
        AdminCommand::SetRma(MachineFlagArgs { machine_id, reason }) => {
            (client.call(admin.set_rma(SetRmaRequest { machine_id, reason })).await?, "RMA set")
        }
        AdminCommand::ClearRma(MachineFlagArgs { machine_id, reason }) => (
            client.call(admin.clear_rma(ClearRmaRequest { machine_id, reason })).await?,
            "RMA cleared",
        ),
        AdminCommand::SetRetired(MachineFlagArgs { machine_id, reason }) => (
            client.call(admin.set_retired(SetRetiredRequest { machine_id, reason })).await?,
            "Retired set",
        ),
        AdminCommand::ClearRetired(MachineFlagArgs { machine_id, reason }) => (
            client.call(admin.clear_retired(ClearRetiredRequest { machine_id, reason })).await?,
            "Retired cleared",
        ),
        AdminCommand::ClearNeedsIntervention(MachineFlagArgs { machine_id, reason }) => {
            let request = ClearNeedsInterventionRequest { machine_id, reason };
            (
                client.call(admin.clear_needs_intervention(request)).await?,
                "NeedsIntervention cleared",
            )
        }
    };
    screen.print_record(&machine, |machine| format_flag_change(machine, done))?;
    Ok(Exit::Success)
}

fn format_flag_change(machine: &Machine, done: &str) -> String {
    format!(
        "{}: {done}; EffectiveState: {}\n",
        one_line(&machine.machine_id),
        effective_name(machine)
    )
}
