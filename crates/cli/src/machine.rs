//! Machines: listing, showing and registering them, and what a customer may ask of one.

use crate::args::{
    EnterArgs, ExitArgs, ListArgs, MachineCommand, RegisterArgs, ReimageArgs, SpecArgs, SubmitArgs,
    UpdateArgs, VerbArgs,
};
use crate::client::{Client, pages};
use crate::exit::{Exit, Failure};
use crate::hardware;
use crate::health;
use crate::host;
use crate::operation::{Errand, Goal, Origin, View, as_run, request_id, see_through};
use crate::output::Screen;
use crate::power;
use crate::table::{Cell, Table, Tone, pairs};
use crate::text::{listed, one_line};
use crate::time::Clock;
use proto::v1::{
    Condition, EffectiveState, EnterMaintenanceRequest, ExitMaintenanceRequest, GetMachineRequest,
    LifecycleState, ListMachinesRequest, Machine, MachineSpec, Operation, RebootMachineRequest,
    RegisterMachineRequest, ReimageMachineRequest, Run, UpdateMachineRequest,
    machine_status::Phase,
};
use tonic_types::StatusExt;

pub async fn run(
    client: &Client,
    screen: &mut Screen,
    command: MachineCommand,
) -> Result<Exit, Failure> {
    match command {
        MachineCommand::Register(args) => register(client, screen, args).await,
        MachineCommand::Get(args) => get(client, screen, &args.machine_id).await,
        MachineCommand::List(args) => list(client, screen, &args).await,
        MachineCommand::Update(args) => update(client, screen, args).await,
        MachineCommand::Reboot(args) => reboot(client, screen, &args).await,
        MachineCommand::Reimage(args) => reimage(client, screen, &args).await,
        MachineCommand::EnterMaintenance(args) => enter_maintenance(client, screen, &args).await,
        MachineCommand::ExitMaintenance(args) => exit_maintenance(client, screen, &args).await,
        MachineCommand::Inspect(args) => hardware::inspect(client, screen, &args.machine_id).await,
        MachineCommand::ConsoleLog(args) => hardware::console_log(client, screen, &args).await,
        MachineCommand::Power(args) => power::run(client, screen, args).await,
        MachineCommand::Reprovision(args) => host::reprovision(client, screen, args).await,
        MachineCommand::Rma(args) => power::rma(client, screen, args).await,
        MachineCommand::ExitRma(args) => power::exit_rma(client, screen, args).await,
    }
}

pub async fn fetch(client: &Client, machine_id: &str) -> Result<Machine, Failure> {
    let request = GetMachineRequest { machine_id: machine_id.to_string() };
    client.call(client.machines().get_machine(request)).await
}

/// The machine that a run acts on; none when it acts on something else.
pub async fn fetch_of(client: &Client, run: &Run) -> Result<Option<Machine>, Failure> {
    match run.machine_id.as_str() {
        "" => Ok(None),
        id => fetch(client, id).await.map(Some),
    }
}

pub async fn get(client: &Client, screen: &mut Screen, machine_id: &str) -> Result<Exit, Failure> {
    let machine = fetch(client, machine_id).await?;
    let firmware = match screen.is_human() {
        true => host::section(client, machine_id).await,
        false => String::new(),
    };
    let words = |machine: &Machine| format!("{}{firmware}", describe(machine, &Clock::system()));
    screen.one(&machine, words)?;
    Ok(Exit::Done)
}

pub async fn list(client: &Client, screen: &mut Screen, args: &ListArgs) -> Result<Exit, Failure> {
    let machines = pages(args.limit, async |page_size, page_token| {
        let request = ListMachinesRequest { filter: args.filter.clone(), page_size, page_token };
        let answer = client.call(client.machines().list_machines(request)).await?;
        Ok((answer.machines, answer.next_page_token))
    })
    .await?;
    let none = match args.filter.as_str() {
        "" => "no machines yet; register some with `farrier import 10`",
        _ => "no machines match the filter",
    };
    screen.many(&machines, table, none)?;
    Ok(Exit::Done)
}

async fn register(
    client: &Client,
    screen: &mut Screen,
    args: RegisterArgs,
) -> Result<Exit, Failure> {
    let mut machine =
        Machine { machine_id: args.machine_id.unwrap_or_default(), ..Default::default() };
    apply(&mut machine, args.spec);
    let request = RegisterMachineRequest { machine: Some(machine) };
    let machine = client.call(client.machines().register_machine(request)).await?;
    screen.one(&machine, |machine| format!("{} registered\n", one_line(&machine.machine_id)))?;
    Ok(Exit::Done)
}

/// The server replaces spec and labels, so what was not given is taken from what is there.
async fn update(client: &Client, screen: &mut Screen, args: UpdateArgs) -> Result<Exit, Failure> {
    let mut tries = 0;
    let machine = loop {
        tries += 1;
        let mut machine = fetch(client, &args.machine_id).await?;
        let expected_version = machine.status.take().map_or(0, |status| status.version);
        apply(&mut machine, args.spec.clone());
        for key in &args.remove_labels {
            machine.labels.remove(key);
        }
        let request = UpdateMachineRequest { machine: Some(machine), expected_version };
        let answer = client.machines().update_machine(request).await;
        match answer {
            // Somebody changed the machine between the reading and the writing: read it again.
            Err(status) if has_moved(&status) && tries < MAX_UPDATES => {}
            answer => break client.call(std::future::ready(answer)).await?,
        }
    };
    screen.one(&machine, |machine| format!("{} updated\n", one_line(&machine.machine_id)))?;
    Ok(Exit::Done)
}

/// How often an update is made anew because somebody else changed the machine first.
const MAX_UPDATES: u32 = 50;

pub fn has_moved(status: &tonic::Status) -> bool {
    let details = status.get_error_details();
    details.error_info().is_some_and(|info| info.reason == "VERSION_MOVED")
}

/// Lays what was given over the machine.
fn apply(machine: &mut Machine, given: SpecArgs) {
    let spec = machine.spec.get_or_insert_with(MachineSpec::default);
    let fields = [
        (&mut spec.ssh_endpoint, given.ssh_endpoint),
        (&mut spec.bmc_endpoint, given.bmc_endpoint),
        (&mut spec.target_cluster_ref, given.target_cluster_ref),
        (&mut spec.provider, given.provider),
        (&mut spec.serial, given.serial),
        (&mut spec.customer_id, given.customer_id),
        (&mut spec.bmc_credential, given.bmc_credential),
        (&mut spec.ssh_credential, given.ssh_credential),
        (&mut spec.root_disk, given.root_disk),
    ];
    for (field, value) in fields {
        if let Some(value) = value {
            *field = value;
        }
    }
    if let Some(rack) = given.rack.filter(|rack| *rack != spec.rack_id) {
        // A place belongs to its rack.
        spec.slot = None;
        spec.rack_id = rack;
    }
    spec.slot = given.slot.or(spec.slot);
    if !given.mac_addresses.is_empty() {
        spec.mac_addresses = given.mac_addresses;
    }
    machine.labels.extend(given.labels);
}

pub async fn reboot(
    client: &Client,
    screen: &mut Screen,
    args: &VerbArgs,
) -> Result<Exit, Failure> {
    let ask = async |machine_id, request_id| {
        let request = RebootMachineRequest { machine_id, request_id };
        client.call(client.machines().reboot_machine(request)).await
    };
    operate(client, screen, &args.machine_id, &args.submit, ask).await
}

pub async fn reimage(
    client: &Client,
    screen: &mut Screen,
    args: &ReimageArgs,
) -> Result<Exit, Failure> {
    let ask = async |machine_id, request_id| {
        let request =
            ReimageMachineRequest { machine_id, request_id, image_ref: args.image.clone() };
        client.call(client.machines().reimage_machine(request)).await
    };
    operate(client, screen, &args.machine_id, &args.submit, ask).await
}

pub async fn enter_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: &EnterArgs,
) -> Result<Exit, Failure> {
    let ask = async |machine_id, request_id| {
        let request = EnterMaintenanceRequest { machine_id, request_id, drain: args.drain };
        client.call(client.machines().enter_maintenance(request)).await
    };
    operate(client, screen, &args.machine_id, &args.submit, ask).await
}

pub async fn exit_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: &ExitArgs,
) -> Result<Exit, Failure> {
    let ask = async |machine_id, request_id| {
        let request = ExitMaintenanceRequest { machine_id, request_id, uncordon: args.uncordon };
        client.call(client.machines().exit_maintenance(request)).await
    };
    operate(client, screen, &args.machine_id, &args.submit, ask).await
}

/// Asks for an operation and sees it through.
async fn operate(
    client: &Client,
    screen: &mut Screen,
    machine_id: &str,
    submit: &SubmitArgs,
    ask: impl AsyncFnOnce(String, String) -> Result<Operation, Failure>,
) -> Result<Exit, Failure> {
    let before = if submit.wait.waits() { Some(fetch(client, machine_id).await?) } else { None };
    let request_id = request_id(screen, submit.request_id.as_ref())?;
    let operation = ask(machine_id.to_string(), request_id).await?;
    let errand = Errand {
        run: as_run(operation),
        view: View::Operation,
        goal: Goal::Succeed,
        origin: Origin::Submitted,
        before,
    };
    see_through(client, screen, errand, &submit.wait).await
}

pub fn phase_name(machine: &Machine) -> &'static str {
    let phase = machine.status.as_ref().map_or(Phase::Unspecified, |status| status.phase());
    if phase == Phase::Unspecified { "-" } else { phase.as_str_name() }
}

fn effective(machine: &Machine) -> EffectiveState {
    machine.status.as_ref().map_or(EffectiveState::Unspecified, |status| status.effective_state())
}

pub fn effective_name(machine: &Machine) -> &'static str {
    match effective(machine) {
        EffectiveState::Unspecified => "-",
        EffectiveState::New => "NEW",
        EffectiveState::Idle => "IDLE",
        EffectiveState::Busy => "BUSY",
        EffectiveState::Maintenance => "MAINTENANCE",
        EffectiveState::Attention => "ATTENTION",
        EffectiveState::Blocked => "BLOCKED",
    }
}

/// The effective state as lists show it: short, and marked where somebody must look.
fn effective_cell(machine: &Machine) -> Cell {
    match effective(machine) {
        EffectiveState::Unspecified | EffectiveState::New => effective_name(machine).into(),
        EffectiveState::Idle => Cell::toned("IDLE", Tone::Good),
        EffectiveState::Busy => Cell::toned("BUSY", Tone::Busy),
        EffectiveState::Maintenance => Cell::toned("MAINT", Tone::Warn),
        EffectiveState::Attention => Cell::toned("⚠ATTENTION", Tone::Warn),
        EffectiveState::Blocked => Cell::toned("⛔BLOCKED", Tone::Bad),
    }
}

fn lifecycle_name(machine: &Machine) -> &'static str {
    match machine
        .status
        .as_ref()
        .map_or(LifecycleState::Unspecified, |status| status.lifecycle_state())
    {
        LifecycleState::Unspecified => "-",
        LifecycleState::FactoryReady => "FACTORY_READY",
        LifecycleState::Ready => "READY",
        LifecycleState::Provisioning => "PROVISIONING",
        LifecycleState::InService => "IN_SERVICE",
        LifecycleState::Maintenance => "MAINTENANCE",
        LifecycleState::Rma => "RMA",
        LifecycleState::Retired => "RETIRED",
    }
}

fn condition<'a>(machine: &'a Machine, name: &str) -> Option<&'a Condition> {
    machine.status.as_ref()?.conditions.iter().find(|condition| condition.r#type == name)
}

/// ✓ it holds, ✗ it was seen not to hold, - nobody knows.
fn mark(condition: Option<&Condition>) -> Cell {
    match condition {
        Some(condition) if condition.status => Cell::toned("✓", Tone::Good),
        Some(condition) if condition.last_transition.is_some() => Cell::toned("✗", Tone::Bad),
        Some(_) | None => "-".into(),
    }
}

/// Why the machine is out of use, if it is.
fn trouble(machine: &Machine) -> String {
    let flags = ["Retired", "RMA", "NeedsIntervention"];
    let set =
        flags.iter().find_map(|name| condition(machine, name).filter(|condition| condition.status));
    set.map_or_else(String::new, |condition| format!("{}: {}", condition.r#type, condition.reason))
}

pub fn table(machines: &[Machine], wide: bool) -> Table {
    let names = ["MACHINE_ID", "PHASE", "EFFECTIVE", "REACHABLE", "PROVISIONED", "ACTIVE_OP"];
    let more = ["LIFECYCLE", "BMC", "CLUSTER", "LABELS", "PROVIDER", "REASON"];
    let names = if wide { [&names[..], &more[..]].concat() } else { names.to_vec() };
    let mut table = Table::new(&names)
        .at_least("MACHINE_ID", 11)
        .at_least("PHASE", 11)
        .at_least("EFFECTIVE", 10);
    for machine in machines {
        let active =
            machine.status.as_ref().map_or("", |status| status.active_operation_id.as_str());
        let mut row: Vec<Cell> = vec![
            (&machine.machine_id).into(),
            phase_name(machine).into(),
            effective_cell(machine),
            mark(condition(machine, "Reachable")),
            mark(condition(machine, "Provisioned")),
            active.into(),
        ];
        if wide {
            let spec = machine.spec.clone().unwrap_or_default();
            row.extend([
                lifecycle_name(machine).into(),
                mark(condition(machine, "BMCReachable")),
                spec.target_cluster_ref.into(),
                listed(&machine.labels, ",").into(),
                spec.provider.into(),
                trouble(machine).into(),
            ]);
        }
        table.row(row);
    }
    table
}

/// Everything about one machine.
fn describe(machine: &Machine, clock: &Clock) -> String {
    let spec = machine.spec.clone().unwrap_or_default();
    let status = machine.status.clone().unwrap_or_default();
    let or_dash = |text: String| if text.is_empty() { "-".to_string() } else { text };
    let mut text = pairs(&[
        ("Machine:", machine.machine_id.clone()),
        ("Phase:", phase_name(machine).into()),
        ("EffectiveState:", effective_name(machine).into()),
        ("LifecycleState:", lifecycle_name(machine).into()),
        ("ActiveOperationId:", or_dash(status.active_operation_id)),
        ("Labels:", or_dash(listed(&machine.labels, ","))),
        ("SSH:", or_dash(spec.ssh_endpoint)),
        ("BMC:", or_dash(spec.bmc_endpoint)),
        ("Cluster:", or_dash(spec.target_cluster_ref)),
        ("MACs:", or_dash(spec.mac_addresses.join(", "))),
        ("Provider:", or_dash(spec.provider)),
        ("Serial:", or_dash(spec.serial)),
        ("Customer:", or_dash(spec.customer_id)),
        ("BMC credential:", or_dash(spec.bmc_credential)),
        ("SSH credential:", or_dash(spec.ssh_credential)),
        ("Root disk:", or_dash(spec.root_disk)),
        ("Rack:", or_dash(spec.rack_id)),
        ("Slot:", or_dash(spec.slot.map(|slot| slot.to_string()).unwrap_or_default())),
        ("Created:", clock.absolute(status.created_at.as_ref())),
        ("Updated:", clock.absolute(status.updated_at.as_ref())),
    ]);
    if !status.conditions.is_empty() {
        let mut table = Table::new(&["CONDITION", "STATUS", "SINCE", "REASON"]);
        for condition in &status.conditions {
            let since = clock.ago(condition.last_transition.as_ref());
            table.row(vec![
                (&condition.r#type).into(),
                mark(Some(condition)),
                since.into(),
                (&condition.reason).into(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render(crate::table::Paint { colour: false }));
    }
    text.push_str(&health::of(status.health.as_ref(), clock));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Paint;
    use proto::v1::MachineStatus;

    fn machine(
        id: &str,
        phase: Phase,
        effective: EffectiveState,
        seen: &[(&str, bool)],
        active: &str,
    ) -> Machine {
        let conditions = seen.iter().map(|(name, status)| Condition {
            r#type: (*name).into(),
            status: *status,
            reason: "disk".into(),
            last_transition: Some(proto::Timestamp::default()),
        });
        let status = MachineStatus {
            phase: phase.into(),
            effective_state: effective.into(),
            conditions: conditions.collect(),
            active_operation_id: active.into(),
            ..Default::default()
        };
        Machine { machine_id: id.into(), status: Some(status), ..Default::default() }
    }

    #[test]
    fn the_list_is_that_of_the_document() {
        let both = [("Reachable", true), ("Provisioned", true)];
        let machines = [
            machine("machine-1", Phase::Ready, EffectiveState::Idle, &both, ""),
            machine("machine-2", Phase::Maintenance, EffectiveState::Busy, &both, "op-abc123"),
            machine("machine-3", Phase::Ready, EffectiveState::Attention, &both, ""),
            machine("machine-4", Phase::Ready, EffectiveState::Blocked, &[], ""),
            machine(
                "machine-5",
                Phase::Maintenance,
                EffectiveState::Maintenance,
                &[("Reachable", false)],
                "",
            ),
        ];
        assert_eq!(
            table(&machines, false).render(Paint { colour: false }),
            "\
MACHINE_ID   PHASE        EFFECTIVE   REACHABLE  PROVISIONED  ACTIVE_OP
machine-1    READY        IDLE        ✓          ✓            -
machine-2    MAINTENANCE  BUSY        ✓          ✓            op-abc123
machine-3    READY        ⚠ATTENTION  ✓          ✓            -
machine-4    READY        ⛔BLOCKED   -          -            -
machine-5    MAINTENANCE  MAINT       ✗          -            -
"
        );
    }

    #[test]
    fn wide_says_why() {
        let rma = machine("m", Phase::Ready, EffectiveState::Blocked, &[("RMA", true)], "");
        let text = table(&[rma], true).render(Paint { colour: false });
        assert!(
            text.lines()
                .next()
                .unwrap()
                .ends_with("LIFECYCLE  BMC  CLUSTER  LABELS  PROVIDER  REASON"),
            "{text}"
        );
        assert!(text.ends_with("RMA: disk\n"), "{text}");
    }

    #[test]
    fn an_update_keeps_what_was_not_given() {
        let spec =
            MachineSpec { serial: "S1".into(), ssh_endpoint: "old".into(), ..Default::default() };
        let mut machine = Machine { spec: Some(spec), ..Default::default() };
        machine.labels.insert("a".into(), "1".into());
        let labels = vec![("b".to_string(), "2".to_string())];
        apply(
            &mut machine,
            SpecArgs { ssh_endpoint: Some("new".into()), labels, ..Default::default() },
        );
        let spec = machine.spec.clone().unwrap();
        assert_eq!((spec.serial.as_str(), spec.ssh_endpoint.as_str()), ("S1", "new"));
        assert_eq!(listed(&machine.labels, ","), "a=1,b=2");
    }
}
