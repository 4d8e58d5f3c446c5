//! Machines: list, show, register and update them, and start a customer's operations on them.

use crate::args::{
    DrainArgs, EnterMaintenanceArgs, ExitMaintenanceArgs, MachineCommand, MachineDeleteArgs,
    MachineListArgs, MachineOperationArgs, MachineRegisterArgs, MachineSpecArgs, MachineUpdateArgs,
    ReimageArgs, SubmitArgs,
};
use crate::client::{Client, build_id_filter, fetch_pages};
use crate::cluster;
use crate::device;
use crate::exit::{Exit, Result};
use crate::hardware;
use crate::health;
use crate::host;
use crate::operation::{
    AcceptedOperation, ExpectedEnd, RunOrigin, follow_or_report, operation_to_run,
    request_id_unless_dry_run,
};
use crate::output::Screen;
use crate::power;
use crate::table::{Cell, Table, Tone, format_pairs};
use crate::text::{join_pairs, one_line};
use crate::time::Clock;
use crate::update::{Updated, WRITABLE, changes};
use crate::watch;
use proto::field_mask::differences;
use proto::v1::{
    Condition, DeleteMachineRequest, DrainOptions, EffectiveState, EnterMaintenanceRequest,
    ExitMaintenanceRequest, GetMachineRequest, LifecycleState, ListMachinesRequest, Machine,
    MachineSpec, Operation, RebootMachineRequest, RegisterMachineRequest, ReimageMachineRequest,
    Run, UpdateMachineRequest, machine_status::Phase,
};
use tonic::Response;

pub async fn run(client: &Client, screen: &mut Screen, command: MachineCommand) -> Result<Exit> {
    match command {
        MachineCommand::Register(args) => register(client, screen, *args).await,
        MachineCommand::Get(args) => get(client, screen, &args.machine_id).await,
        MachineCommand::List(args) => list(client, screen, &args).await,
        MachineCommand::Update(args) => update(client, screen, *args).await,
        MachineCommand::Delete(args) => delete(client, screen, args).await,
        MachineCommand::Watch(args) => {
            let filter = match &args.machine_id {
                Some(id) => build_id_filter("machine_id", id, &args.filter)?,
                None => args.filter,
            };
            watch::watch_machines(client, screen, filter).await
        }
        MachineCommand::Reboot(args) => reboot(client, screen, &args).await,
        MachineCommand::Reimage(args) => reimage(client, screen, &args).await,
        MachineCommand::EnterMaintenance(args) => enter_maintenance(client, screen, &args).await,
        MachineCommand::ExitMaintenance(args) => exit_maintenance(client, screen, &args).await,
        MachineCommand::Inspect(args) => hardware::inspect(client, screen, &args.machine_id).await,
        MachineCommand::ConsoleLog(args) => hardware::print_event_log(client, screen, &args).await,
        MachineCommand::Power(args) => power::run(client, screen, args).await,
        MachineCommand::Reprovision(args) => host::reprovision(client, screen, args).await,
        MachineCommand::Rma(args) => power::start_rma(client, screen, args).await,
        MachineCommand::ExitRma(args) => power::start_exit_rma(client, screen, args).await,
    }
}

pub async fn fetch(client: &Client, machine_id: &str) -> Result<Machine> {
    let request = GetMachineRequest { machine_id: machine_id.to_string(), any_name: false };
    client.call(client.machines().get_machine(request)).await
}

/// Fetches the machine of a run; none if the run's target is not a machine, or was deleted.
pub async fn fetch_run_machine(client: &Client, run: &Run) -> Result<Option<Machine>> {
    if run.machine_id.is_empty() {
        return Ok(None);
    }
    let request = GetMachineRequest { machine_id: run.machine_id.clone(), any_name: false };
    let answer = async {
        match client.machines().get_machine(request).await {
            Err(status) if status.code() == tonic::Code::NotFound => Ok(Response::new(None)),
            answer => answer.map(|answer| answer.map(Some)),
        }
    };
    client.call(answer).await
}

pub async fn get(client: &Client, screen: &mut Screen, machine_id: &str) -> Result<Exit> {
    let request = GetMachineRequest { machine_id: machine_id.to_string(), any_name: true };
    let machine = client.call(client.machines().get_machine(request)).await?;
    let firmware = match screen.is_human() {
        true => host::firmware_section(client, &machine.machine_id).await,
        false => String::new(),
    };
    let words = |machine: &Machine| format!("{}{firmware}", describe(machine, &Clock::system()));
    screen.print_record(&machine, words)?;
    Ok(Exit::Success)
}

pub async fn list(client: &Client, screen: &mut Screen, args: &MachineListArgs) -> Result<Exit> {
    let MachineListArgs { list, sort } = args;
    let machines = fetch_pages(list.limit, async |page_size, page_token| {
        let (filter, order_by) = (list.filter.clone(), sort.order_by.clone());
        let request = ListMachinesRequest { filter, page_size, page_token, order_by };
        let answer = client.call(client.machines().list_machines(request)).await?;
        Ok((answer.machines, answer.next_page_token, answer.unreadable_rows))
    })
    .await?;
    let none = match list.filter.as_str() {
        "" => "no machines yet; register some with `farrier import 10`",
        _ => "no machines match the filter",
    };
    screen.print_list(&machines, table, none)?;
    Ok(Exit::Success)
}

async fn register(client: &Client, screen: &mut Screen, args: MachineRegisterArgs) -> Result<Exit> {
    let mut machine =
        Machine { machine_id: args.machine_id.unwrap_or_default(), ..Default::default() };
    apply_spec(&mut machine, args.spec);
    let request = RegisterMachineRequest { machine: Some(machine), dry_run: client.is_dry_run() };
    let machine = client.call(client.machines().register_machine(request)).await?;
    screen.print_record(&machine, |machine| {
        let id = one_line(&machine.machine_id);
        format!("{id} {}\n{}", client.outcome("registered"), format_follow_ups(machine))
    })?;
    Ok(Exit::Success)
}

async fn update(client: &Client, screen: &mut Screen, args: MachineUpdateArgs) -> Result<Exit> {
    let updated = update_machine(client, args).await?;
    let words = |machine: &Machine| {
        let done = updated.describe(client, &machine.machine_id);
        format!("{done}\n{}", format_follow_ups(machine))
    };
    screen.print_record(&updated.object, words)?;
    Ok(Exit::Success)
}

/// The predictions of a dry run for the racks of the machine.
fn format_follow_ups(machine: &Machine) -> String {
    let follows = machine.status.as_ref().map(|status| status.would_follow.as_slice());
    device::format_follow_ups(follows.unwrap_or_default())
}

/// Sends only what the arguments change.
async fn update_machine(client: &Client, args: MachineUpdateArgs) -> Result<Updated<Machine>> {
    let before = fetch(client, &args.machine_id).await?;
    let mut machine = before.clone();
    apply_spec(&mut machine, args.spec);
    for key in &args.remove_labels {
        machine.labels.remove(key);
    }
    let differences = differences(&before, &machine, WRITABLE);
    let update_mask = changes(&before, &machine, WRITABLE, args.version);
    if update_mask.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdateMachineRequest {
        machine: Some(machine),
        expected_version: args.version.or_any(),
        update_mask,
        dry_run: client.is_dry_run(),
    };
    let object = client.call(client.machines().update_machine(request)).await?;
    Ok(Updated { object, differences })
}

async fn delete(client: &Client, screen: &mut Screen, args: MachineDeleteArgs) -> Result<Exit> {
    let MachineDeleteArgs { machine_id, version, overrides } = args;
    let dry_run = client.is_dry_run();
    let (expected_version, gate_override) = (version.or_any(), overrides.to_message());
    let request = DeleteMachineRequest { machine_id, dry_run, expected_version, gate_override };
    let machine = client.call(client.machines().delete_machine(request)).await?;
    screen.print_record(&machine, |machine| {
        let id = one_line(&machine.machine_id);
        match dry_run {
            true => format!("{id} would be deleted; its history stays\n"),
            false => format!("{id} deleted; its history stays: farrier history {id}\n"),
        }
    })?;
    Ok(Exit::Success)
}

/// Overwrites the fields of the machine that are given.
fn apply_spec(machine: &mut Machine, given: MachineSpecArgs) {
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
        (&mut spec.node_name, given.node_name),
    ];
    for (field, value) in fields {
        if let Some(value) = value {
            *field = value;
        }
    }
    if let Some(rack) = given.rack.filter(|rack| *rack != spec.rack_id) {
        // A slot and feeds are only valid within their rack.
        spec.slot = None;
        spec.feeds.clear();
        spec.rack_id = rack;
    }
    spec.slot = given.slot.or(spec.slot);
    spec.height_u = given.height_u.or(spec.height_u);
    if let Some(feeds) = given.feeds {
        spec.feeds = device::non_empty(feeds);
    }
    if !given.mac_addresses.is_empty() {
        spec.mac_addresses = given.mac_addresses;
    }
    machine.labels.extend(given.labels);
}

pub async fn reboot(
    client: &Client,
    screen: &mut Screen,
    args: &MachineOperationArgs,
) -> Result<Exit> {
    let call = async |machine_id, request_id| {
        let gate_override = args.overrides.to_message();
        let dry_run = client.is_dry_run();
        let request = RebootMachineRequest { machine_id, request_id, gate_override, dry_run };
        client.call(client.machines().reboot_machine(request)).await
    };
    start_operation(client, screen, &args.machine_id, &args.submit, call).await
}

pub async fn reimage(client: &Client, screen: &mut Screen, args: &ReimageArgs) -> Result<Exit> {
    let call = async |machine_id, request_id| {
        let (image_ref, gate_override) = (args.image.clone(), args.overrides.to_message());
        let dry_run = client.is_dry_run();
        let request =
            ReimageMachineRequest { machine_id, request_id, image_ref, gate_override, dry_run };
        client.call(client.machines().reimage_machine(request)).await
    };
    start_operation(client, screen, &args.machine_id, &args.submit, call).await
}

pub async fn enter_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: &EnterMaintenanceArgs,
) -> Result<Exit> {
    let call = async |machine_id, request_id| {
        let request = EnterMaintenanceRequest {
            machine_id,
            request_id,
            drain: args.drain,
            drain_options: drain_options(&args.drain_options),
            gate_override: args.overrides.to_message(),
            dry_run: client.is_dry_run(),
        };
        client.call(client.machines().enter_maintenance(request)).await
    };
    let exit = start_operation(client, screen, &args.machine_id, &args.submit, call).await?;
    if args.drain && client.is_dry_run() {
        let options = drain_options(&args.drain_options);
        cluster::preview_drain(client, screen, &args.machine_id, options).await?;
    }
    Ok(exit)
}

/// None where every option has its default.
fn drain_options(args: &DrainArgs) -> Option<DrainOptions> {
    let grace_seconds =
        args.drain_grace.map(|grace| grace.as_secs().try_into().unwrap_or(i32::MAX));
    let options = DrainOptions {
        unmanaged_pods: args.drain_unmanaged_pods,
        emptydir: args.drain_emptydir,
        grace_seconds,
        selector: args.drain_selector.clone(),
    };
    (options != DrainOptions::default()).then_some(options)
}

pub async fn exit_maintenance(
    client: &Client,
    screen: &mut Screen,
    args: &ExitMaintenanceArgs,
) -> Result<Exit> {
    let call = async |machine_id, request_id| {
        let (uncordon, gate_override) = (args.uncordon, args.overrides.to_message());
        let dry_run = client.is_dry_run();
        let request =
            ExitMaintenanceRequest { machine_id, request_id, uncordon, gate_override, dry_run };
        client.call(client.machines().exit_maintenance(request)).await
    };
    start_operation(client, screen, &args.machine_id, &args.submit, call).await
}

/// Requests an operation and follows it.
async fn start_operation(
    client: &Client,
    screen: &mut Screen,
    machine_id: &str,
    submit: &SubmitArgs,
    call: impl AsyncFnOnce(String, String) -> Result<Operation>,
) -> Result<Exit> {
    let before = if submit.wait.waits() { Some(fetch(client, machine_id).await?) } else { None };
    let request_id = request_id_unless_dry_run(client, screen, submit)?;
    let operation = call(machine_id.to_string(), request_id).await?;
    let accepted = AcceptedOperation {
        run: operation_to_run(operation),
        expected_end: ExpectedEnd::Succeeded,
        origin: RunOrigin::Submitted { replayed: submit.request_id.is_some() },
        before,
    };
    follow_or_report(client, screen, accepted, &submit.wait).await
}

pub fn phase_name(machine: &Machine) -> &'static str {
    let phase = machine.status.as_ref().map_or(Phase::Unspecified, |status| status.phase());
    if phase == Phase::Unspecified { "-" } else { phase.as_str_name() }
}

fn effective(machine: &Machine) -> EffectiveState {
    machine.status.as_ref().map_or(EffectiveState::Unspecified, |status| status.effective_state())
}

pub fn effective_name(machine: &Machine) -> &'static str {
    effective_word(effective(machine))
}

pub fn effective_word(state: EffectiveState) -> &'static str {
    match state {
        EffectiveState::Unspecified => "-",
        EffectiveState::New => "NEW",
        EffectiveState::Idle => "IDLE",
        EffectiveState::Busy => "BUSY",
        EffectiveState::Maintenance => "MAINTENANCE",
        EffectiveState::Attention => "ATTENTION",
        EffectiveState::Blocked => "BLOCKED",
    }
}

/// The effective state in a list: short, and marked if an operator must act. IDLE says what is
/// intended: a machine with a problem is marked too.
fn effective_cell(machine: &Machine) -> Cell {
    let marked = !problem(machine).is_empty();
    match effective(machine) {
        EffectiveState::New if marked => Cell::with_tone("⚠NEW", Tone::Warn),
        EffectiveState::Unspecified | EffectiveState::New => effective_name(machine).into(),
        EffectiveState::Idle if marked => Cell::with_tone("⚠IDLE", Tone::Warn),
        EffectiveState::Idle => Cell::with_tone("IDLE", Tone::Good),
        EffectiveState::Busy => Cell::with_tone("BUSY", Tone::Busy),
        EffectiveState::Maintenance if marked => Cell::with_tone("⚠MAINT", Tone::Warn),
        EffectiveState::Maintenance => Cell::with_tone("MAINT", Tone::Warn),
        EffectiveState::Attention => Cell::with_tone("⚠ATTENTION", Tone::Warn),
        EffectiveState::Blocked => Cell::with_tone("⛔BLOCKED", Tone::Bad),
    }
}

/// The problem of a machine that its effective state does not show; empty if it has none.
fn problem(machine: &Machine) -> &str {
    machine.status.as_ref().map_or("", |status| status.problem.as_str())
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

/// ✓ the condition holds; ✗ it was observed not to hold; - it is unknown.
fn condition_cell(condition: Option<&Condition>) -> Cell {
    match condition {
        Some(condition) if condition.status => Cell::with_tone("✓", Tone::Good),
        Some(condition) if condition.last_transition.is_some() => Cell::with_tone("✗", Tone::Bad),
        Some(_) | None => "-".into(),
    }
}

/// Like [`condition_cell`]; "never" if the machine was observed, and no image was ever installed
/// on it here: it has the system that it came with.
fn provisioned_cell(machine: &Machine) -> Cell {
    let observed = |one: &Condition| one.last_transition.is_some();
    let status = machine.status.as_ref();
    let known = status.is_some_and(|status| status.conditions.iter().any(observed));
    match condition(machine, "Provisioned").filter(|one| observed(one)) {
        None if known => "never".into(),
        found => condition_cell(found),
    }
}

/// The conditions that deviate and have no column of their own: `NeedsIntervention=✓`.
fn deviations(machine: &Machine) -> String {
    let unwanted = ["NeedsIntervention", "Degraded", "OperationCanceled", "RMA", "Retired"];
    let set = unwanted.iter().filter(|name| condition(machine, name).is_some_and(|one| one.status));
    let set = set.map(|name| format!("{name}=✓"));
    let bmc = condition(machine, "BMCReachable").filter(|one| !one.status);
    set.chain(bmc.map(|_| "BMCReachable=✗".into())).collect::<Vec<_>>().join(",")
}

/// The condition that takes the machine out of use, with its reason, or the problem; empty if there
/// is none.
fn blocking_flag(machine: &Machine) -> String {
    let flags = ["Retired", "RMA", "NeedsIntervention"];
    let set = flags.iter().find_map(|name| condition(machine, name).filter(|one| one.status));
    set.map_or_else(
        || problem(machine).to_string(),
        |condition| format!("{}: {}", condition.r#type, condition.reason),
    )
}

pub fn table(machines: &[Machine], wide: bool) -> Table {
    let names =
        ["MACHINE_ID", "PHASE", "EFFECTIVE", "REACHABLE", "PROVISIONED", "ACTIVE_OP", "CONDITIONS"];
    let more = ["LIFECYCLE", "BMC", "CLUSTER", "LABELS", "PROVIDER", "REASON"];
    let names = if wide { [&names[..], &more[..]].concat() } else { names.to_vec() };
    let mut table = Table::new(&names)
        .min_width("MACHINE_ID", 11)
        .min_width("PHASE", 11)
        .min_width("EFFECTIVE", 10);
    for machine in machines {
        let active =
            machine.status.as_ref().map_or("", |status| status.active_operation_id.as_str());
        let mut row: Vec<Cell> = vec![
            (&machine.machine_id).into(),
            phase_name(machine).into(),
            effective_cell(machine),
            condition_cell(condition(machine, "Reachable")),
            provisioned_cell(machine),
            active.into(),
            deviations(machine).into(),
        ];
        if wide {
            let spec = machine.spec.clone().unwrap_or_default();
            row.extend([
                lifecycle_name(machine).into(),
                condition_cell(condition(machine, "BMCReachable")),
                spec.target_cluster_ref.into(),
                join_pairs(&machine.labels, ",").into(),
                spec.provider.into(),
                blocking_flag(machine).into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// Formats all details of one machine.
fn describe(machine: &Machine, clock: &Clock) -> String {
    let spec = machine.spec.clone().unwrap_or_default();
    let status = machine.status.clone().unwrap_or_default();
    let hardware = status.hardware.clone().unwrap_or_default();
    let or_dash = |text: String| if text.is_empty() { "-".to_string() } else { text };
    let effective = match problem(machine) {
        "" => effective_name(machine).to_string(),
        problem => format!("{} ⚠ {problem}", effective_name(machine)),
    };
    let mut text = format_pairs(&[
        ("Machine:", machine.machine_id.clone()),
        ("Phase:", phase_name(machine).into()),
        ("EffectiveState:", effective),
        ("LifecycleState:", lifecycle_name(machine).into()),
        ("ActiveOperationId:", or_dash(status.active_operation_id)),
        ("Labels:", or_dash(join_pairs(&machine.labels, ","))),
        ("SSH:", or_dash(spec.ssh_endpoint)),
        ("BMC:", or_dash(spec.bmc_endpoint)),
        ("Cluster:", or_dash(spec.target_cluster_ref)),
        ("Node name:", or_dash(spec.node_name)),
        ("MACs:", or_dash(spec.mac_addresses.join(", "))),
        ("Provider:", or_dash(spec.provider)),
        ("Serial:", or_dash(device::format_serial(&hardware.serial, &spec.serial))),
        ("Hardware:", or_dash(hardware::summarize(status.hardware.as_ref(), clock))),
        ("Customer:", or_dash(spec.customer_id)),
        ("BMC credential:", or_dash(spec.bmc_credential)),
        ("SSH credential:", or_dash(spec.ssh_credential)),
        ("Root disk:", or_dash(spec.root_disk)),
        ("Rack:", or_dash(spec.rack_id)),
        ("Slot:", or_dash(spec.slot.map(|slot| slot.to_string()).unwrap_or_default())),
        ("Height:", or_dash(device::format_height(spec.height_u))),
        ("Fed by:", or_dash(spec.feeds.join(", "))),
        ("Created:", clock.absolute(status.created_at.as_ref())),
        ("Updated:", clock.absolute(status.updated_at.as_ref())),
    ]);
    if !status.conditions.is_empty() {
        let mut table = Table::new(&["CONDITION", "STATUS", "SINCE", "REASON"]);
        for condition in &status.conditions {
            let since = clock.ago(condition.last_transition.as_ref());
            table.add_row(vec![
                (&condition.r#type).into(),
                condition_cell(Some(condition)),
                since.into(),
                (&condition.reason).into(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render(crate::table::ColorMode { enabled: false }));
    }
    text.push_str(&health::optional_section(status.health.as_ref(), clock));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ColorMode;
    use proto::v1::MachineStatus;

    fn machine(
        id: &str,
        phase: Phase,
        effective: EffectiveState,
        observed: &[(&str, bool)],
        active: &str,
    ) -> Machine {
        let conditions = observed.iter().map(|(name, status)| Condition {
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

    fn with_problem(mut machine: Machine) -> Machine {
        machine.status.get_or_insert_default().problem = "its disk is half written".into();
        machine
    }

    #[test]
    fn the_list_is_that_of_the_document() {
        let both = [("Reachable", true), ("Provisioned", true)];
        let machines = [
            machine("machine-1", Phase::Ready, EffectiveState::Idle, &both, ""),
            machine("machine-2", Phase::Maintenance, EffectiveState::Busy, &both, "op-abc123"),
            machine(
                "machine-3",
                Phase::Ready,
                EffectiveState::Attention,
                &[&both[..], &[("NeedsIntervention", true), ("BMCReachable", false)]].concat(),
                "",
            ),
            machine("machine-4", Phase::Ready, EffectiveState::Blocked, &[], ""),
            machine(
                "machine-5",
                Phase::Maintenance,
                EffectiveState::Maintenance,
                &[("Reachable", false)],
                "",
            ),
            // READY is the intent, and it is off.
            with_problem(machine(
                "machine-6",
                Phase::Ready,
                EffectiveState::Idle,
                &[("Reachable", false)],
                "",
            )),
            // Only the server knows of the write that did not finish.
            with_problem(machine("machine-7", Phase::Ready, EffectiveState::Idle, &both, "")),
            with_problem(machine(
                "machine-8",
                Phase::Maintenance,
                EffectiveState::Maintenance,
                &both,
                "",
            )),
        ];
        assert_eq!(
            table(&machines, false).render(ColorMode { enabled: false }),
            "\
MACHINE_ID   PHASE        EFFECTIVE   REACHABLE  PROVISIONED  ACTIVE_OP  CONDITIONS
machine-1    READY        IDLE        ✓          ✓            -          -
machine-2    MAINTENANCE  BUSY        ✓          ✓            op-abc123  -
machine-3    READY        ⚠ATTENTION  ✓          ✓            -          NeedsIntervention=✓,BMCReachable=✗
machine-4    READY        ⛔BLOCKED   -          -            -          -
machine-5    MAINTENANCE  MAINT       ✗          never        -          -
machine-6    READY        ⚠IDLE       ✗          never        -          -
machine-7    READY        ⚠IDLE       ✓          ✓            -          -
machine-8    MAINTENANCE  ⚠MAINT      ✓          ✓            -          -
"
        );
    }

    #[test]
    fn wide_says_why() {
        let rma = machine("m", Phase::Ready, EffectiveState::Blocked, &[("RMA", true)], "");
        let text = table(&[rma], true).render(ColorMode { enabled: false });
        assert!(
            text.lines()
                .next()
                .unwrap()
                .ends_with("LIFECYCLE  BMC  CLUSTER  LABELS  PROVIDER  REASON"),
            "{text}"
        );
        assert!(text.ends_with("RMA: disk\n"), "{text}");
        let cut = with_problem(machine("m", Phase::Ready, EffectiveState::Idle, &[], ""));
        let text = table(std::slice::from_ref(&cut), true).render(ColorMode { enabled: false });
        assert!(text.ends_with("its disk is half written\n"), "{text}");
        let text = describe(&cut, &Clock::fixed(0));
        assert!(text.contains("IDLE ⚠ its disk is half written\n"), "{text}");
    }

    #[test]
    fn an_update_keeps_what_was_not_given() {
        let spec =
            MachineSpec { serial: "S1".into(), ssh_endpoint: "old".into(), ..Default::default() };
        let mut machine = Machine { spec: Some(spec), ..Default::default() };
        machine.labels.insert("a".into(), "1".into());
        let labels = vec![("b".to_string(), "2".to_string())];
        apply_spec(
            &mut machine,
            MachineSpecArgs { ssh_endpoint: Some("new".into()), labels, ..Default::default() },
        );
        let spec = machine.spec.clone().unwrap();
        assert_eq!((spec.serial.as_str(), spec.ssh_endpoint.as_str()), ("S1", "new"));
        assert_eq!(join_pairs(&machine.labels, ","), "a=1,b=2");
    }
}
