//! `farrier admin`: flags that only an administrator sets, each with a reason; and the replicas.

use crate::args::{AdminCommand, MachineFlagArgs, MachineSetFlagArgs, ReplicasArgs, gate_override};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::machine::effective_name;
use crate::output::Screen;
use crate::table::Table;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    ClearNeedsInterventionRequest, ClearRetiredRequest, ClearRmaRequest, ListReplicasRequest,
    Replica, SetRetiredRequest, SetRmaRequest,
};

pub async fn run(client: &Client, screen: &mut Screen, command: AdminCommand) -> Result<Exit> {
    let (mut admin, dry_run) = (client.admin(), client.is_dry_run());
    let (machine, flag, done) = match command {
        AdminCommand::SetRma(args) => {
            let gate_override = gate_override(&args.gates, &args.reason);
            let MachineSetFlagArgs { machine_id, reason, .. } = args;
            let request = SetRmaRequest { machine_id, reason, dry_run, gate_override };
            (client.call(admin.set_rma(request)).await?, "RMA", "set")
        }
        AdminCommand::ClearRma(MachineFlagArgs { machine_id, reason }) => {
            let request = ClearRmaRequest { machine_id, reason, dry_run };
            (client.call(admin.clear_rma(request)).await?, "RMA", "cleared")
        }
        AdminCommand::SetRetired(args) => {
            let gate_override = gate_override(&args.gates, &args.reason);
            let MachineSetFlagArgs { machine_id, reason, .. } = args;
            let request = SetRetiredRequest { machine_id, reason, dry_run, gate_override };
            (client.call(admin.set_retired(request)).await?, "Retired", "set")
        }
        AdminCommand::ClearRetired(MachineFlagArgs { machine_id, reason }) => {
            let request = ClearRetiredRequest { machine_id, reason, dry_run };
            (client.call(admin.clear_retired(request)).await?, "Retired", "cleared")
        }
        AdminCommand::ClearNeedsIntervention(MachineFlagArgs { machine_id, reason }) => {
            let request = ClearNeedsInterventionRequest { machine_id, reason, dry_run };
            let machine = client.call(admin.clear_needs_intervention(request)).await?;
            (machine, "NeedsIntervention", "cleared")
        }
        AdminCommand::Replicas(args) => return list_replicas(client, screen, &args).await,
    };
    let done = client.outcome(done);
    screen.print_record(&machine, |machine| {
        let id = one_line(&machine.machine_id);
        format!("{id}: {flag} {done}; EffectiveState: {}\n", effective_name(machine))
    })?;
    Ok(Exit::Success)
}

async fn list_replicas(client: &Client, screen: &mut Screen, args: &ReplicasArgs) -> Result<Exit> {
    let replicas = fetch_pages(args.list.limit, async |page_size, page_token| {
        let filter = args.list.filter.clone();
        let request = ListReplicasRequest { page_size, page_token, filter };
        let answer = client.call(client.admin().list_replicas(request)).await?;
        Ok((answer.replicas, answer.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    screen.print_list(
        &replicas,
        |replicas, wide| replica_table(replicas, wide, &clock),
        "no replica is registered",
    )?;
    Ok(Exit::Success)
}

fn replica_table(replicas: &[Replica], wide: bool, clock: &Clock) -> Table {
    let names = ["REPLICA", "VERSION", "STARTED", "HEARTBEAT", "CLAIMS"];
    let more = ["LEASE_UNTIL", "INCARNATION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for replica in replicas {
        let version = if replica.version.is_empty() { "-" } else { replica.version.as_str() };
        let mut row = vec![
            (&replica.name).into(),
            version.into(),
            clock.absolute(replica.started_at.as_ref()).into(),
            clock.ago(replica.last_heartbeat_at.as_ref()).into(),
            replica.claims.to_string().into(),
        ];
        if wide {
            row.extend([
                clock.absolute(replica.lease_expires_at.as_ref()).into(),
                (&replica.incarnation).into(),
            ]);
        }
        table.add_row(row);
    }
    table
}
