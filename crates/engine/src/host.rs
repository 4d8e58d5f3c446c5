//! Hosts: the firmware upgrades of machines, requested by an operator or by their rack. The model
//! decides the transitions; this module writes requests and loads the context of a turn.

use crate::Engine;
use crate::admission::{
    ApprovalGate, current_run, event, lock_machine, missing_machine, no_machine, sealed, step_lines,
};
use crate::component::desired_firmware;
use crate::firmware::no_firmware;
use model::access::Permission;
use model::approval::Proposal;
use model::blast_radius::ServingNode;
use model::firmware::FirmwareResolution;
use model::gate::Overrides;
use model::health::{Alert, AlertClass, Alerts};
use model::here;
use model::host::{
    FirmwareCheck, Host, HostTurnInput, RETRY_INTERVAL, ReprovisionOwner, ReprovisionRequest,
    check_firmware,
};
use model::id::{FirmwareId, MachineId, RunId};
use model::lifecycle::Lifecycle;
use model::machine::Machine;
use model::machine::admit::RunCase;
use model::plan::RunType;
use model::refusal::Refusal;
use model::run::Run;
use model::run::actions::Requester;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use model::why::Explanation;
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx};

/// The source and the id of the alert that a machine's firmware is being upgraded.
const SOURCE: &str = "host-reprovision";
const ALERT: &str = "host-fw-update";
/// The number of a machine's newest runs that are searched for the child of a rack operation.
const MAX_RUNS_SEARCHED: i64 = 20;

/// A request to check and upgrade the firmware of a machine.
#[derive(Debug, Clone)]
pub struct Reprovision {
    pub machine: MachineId,
    /// None: the default of the rack's hardware type.
    pub firmware: Option<FirmwareId>,
    /// Empty in a dry run, which is never a repeated request.
    pub request_id: String,
    pub by: String,
}

/// A host and what remains to be done.
#[derive(Debug, Clone)]
pub struct HostView {
    pub host: Host,
    /// The comparison of installed and desired firmware.
    pub check: FirmwareCheck,
    /// The reason why the machine would refuse an upgrade now.
    pub gate: Option<Refusal>,
    pub explanation: Option<Explanation>,
    /// The time of the next automatic retry after a failure.
    pub next_attempt: Option<Timestamp>,
}

#[derive(Clone)]
pub struct Hosts(pub(crate) Engine);

impl Hosts {
    /// Checks a machine's firmware and upgrades it where it differs.
    pub async fn reprovision(&self, request: Reprovision) -> Result<HostView> {
        let (machine, by) = (request.machine.clone(), request.by.clone());
        let gate = ApprovalGate::new(&self.0);
        let request = Request { request, gate: gate.clone(), at: self.moment() };
        let done = self
            .0
            .store()
            .retry_write("request_reprovision", request, |request, tx| Box::pin(request.run(tx)));
        let done = gate.settle(&self.0, done.await).await;
        self.0.trace_refusal(machine.as_str(), (&by, "reprovision"), done).await
    }

    /// Withdraws the request to a host. An active run is stopped first.
    pub async fn cancel(&self, machine: &MachineId, who: Requester) -> Result<HostView> {
        let by = who.by.clone();
        let input = (machine.clone(), who, self.moment());
        let done =
            self.0.store().retry_write("cancel_reprovision", input, |(machine, who, at), tx| {
                Box::pin(cancel(tx, machine, who, at))
            });
        self.0.trace_refusal(machine.as_str(), (&by, "reprovision cancel"), done.await).await
    }

    /// The host of a machine; Ready if nothing was ever requested.
    pub async fn get(&self, machine: &MachineId) -> Result<HostView> {
        let input = (machine.clone(), self.moment());
        self.0.store().read(input, |(machine, at), tx| Box::pin(show(tx, machine, at))).await
    }

    fn moment(&self) -> Moment {
        let interval = self.0.settings().host_firmware_upgrade_retry_interval;
        Moment { fresh: RunId::new(self.0.now(), self.0.random()), interval, now: self.0.now() }
    }
}

/// Records on each host that an operation on its rack is about to upgrade its firmware.
pub(crate) async fn request_for_rack(
    tx: &mut Tx,
    machines: &[MachineId],
    operation: &RunId,
    firmware: Option<&FirmwareId>,
    event: &NewEvent,
) -> Result<()> {
    let mut machines: Vec<&MachineId> = machines.iter().collect();
    // The same lock order everywhere, so no deadlock.
    machines.sort();
    for machine in machines {
        let found = tx.record_locked::<Host>(machine.as_str()).await?;
        let known = found.is_some();
        let mut host = found.unwrap_or_else(|| Host::new(machine, event.at));
        host.request = Some(ReprovisionRequest {
            owner: ReprovisionOwner::Rack { operation: operation.clone() },
            firmware: firmware.cloned(),
            requested_at: event.at,
            started_at: None,
        });
        let message = format!("{operation} is to upgrade its firmware");
        write(tx, &mut host, known, &NewEvent { message, ..event.clone() }).await?;
    }
    Ok(())
}

/// Writes a host and enqueues its turn.
async fn write(tx: &mut Tx, host: &mut Host, known: bool, event: &NewEvent) -> Result<()> {
    match known {
        true => tx.update_and_enqueue(host, event),
        false => tx.insert_record(host, event).await,
    }
}

/// Stores the facts that a run has read of a machine. `host` was locked before the machine.
pub(crate) async fn learn(
    tx: &mut Tx,
    machine: &MachineId,
    host: Option<Host>,
    facts: &model::effect::DeviceFacts,
    event: &NewEvent,
) -> Result<()> {
    match host {
        Some(mut host) => {
            let before = host.facts.clone();
            host.merge_facts(facts);
            if host.facts == before { Ok(()) } else { tx.update_record(&mut host, event) }
        }
        None => {
            let mut host = Host::new(machine, event.at);
            host.merge_facts(facts);
            tx.insert_record(&mut host, event).await
        }
    }
}

/// The context of a host's turn. The caller has locked the machine, so that its gate is still open
/// when a run begins.
pub(crate) async fn load_context(
    tx: &mut Tx,
    host: &Host,
    fresh: RunId,
    machine: Option<&Machine>,
) -> Result<HostTurnInput> {
    let run = match host.waits_for() {
        Some(id) => current_run(tx, &TargetId::from(&host.machine()), id).await?,
        None => None,
    };
    let named = host.request.as_ref().and_then(|request| request.firmware.as_ref());
    let rack = machine.and_then(|machine| machine.spec.rack.as_ref());
    let firmware = desired_firmware(tx, rack, named).await?;
    let node = tx.node_in_service(&host.machine()).await?;
    let gate = gate(machine, node.as_ref(), host, &firmware);
    let (operation, part) = match host.rack_operation() {
        Some(id) => (tx.run(id).await?, find_child_run(tx, host, id).await?),
        None => (None, None),
    };
    Ok(HostTurnInput {
        fresh,
        run,
        firmware,
        gate,
        operation,
        child_run: part,
        retry_interval: RETRY_INTERVAL,
    })
}

/// The newest firmware run on the machine that is a child of the operation.
async fn find_child_run(tx: &mut Tx, host: &Host, operation: &RunId) -> Result<Option<Run>> {
    let target = TargetId::from(&host.machine());
    let latest = tx.latest_runs(&target, MAX_RUNS_SEARCHED).await?;
    let is_part = |run: &Run| {
        run.spec.run_type == RunType::Firmware && run.spec.parent_run.as_ref() == Some(operation)
    };
    Ok(latest.into_iter().find(is_part))
}

/// A host has no override: its upgrade waits until nothing uses the machine.
fn gate(
    machine: Option<&Machine>,
    node: Option<&ServingNode>,
    host: &Host,
    firmware: &FirmwareResolution,
) -> std::result::Result<(), Refusal> {
    let Some(machine) = machine else { return Err(no_machine(&host.machine())) };
    match check_firmware(&host.facts, firmware) {
        FirmwareCheck::Install { steps, .. } => {
            let case = RunCase { machine, node, run_type: RunType::Firmware, steps: &steps };
            case.admit(&Overrides::default()).map_err(Refusal::without_override)
        }
        FirmwareCheck::Nothing(_) | FirmwareCheck::Unknown(_) => Ok(()),
    }
}

/// Sets the alert when the host leaves Ready and removes it when the host is Ready again, in the
/// commit that changes the state.
pub(crate) async fn alert(tx: &mut Tx, old: &Host, new: &Host, event: &NewEvent) -> Result<()> {
    let machine = TargetId::from(&new.machine());
    match (old.is_ready(), new.is_ready()) {
        (true, false) => {
            let classes = [AlertClass::PreventAllocations, AlertClass::SuppressExternalAlerting];
            let alert = Alert {
                component: String::new(),
                message: "its firmware is being seen to".into(),
                classes: classes.iter().map(|class| class.as_str().to_string()).collect(),
                since: event.at,
            };
            let alerts = Alerts::from([(ALERT.to_string(), alert)]);
            tx.merge_health(&machine, SOURCE, &alerts, event).await.map(|_| ())
        }
        (false, true) => tx.remove_health(&machine, SOURCE, event).await.map(|_| ()),
        (true, true) | (false, false) => Ok(()),
    }
}

/// The time and the settings for a view of a host.
struct Moment {
    /// The id of a run that would begin now.
    fresh: RunId,
    interval: Duration,
    now: Timestamp,
}

async fn view(tx: &mut Tx, host: Host, machine: &Machine, at: &Moment) -> Result<HostView> {
    let observed = load_context(tx, &host, at.fresh.clone(), Some(machine)).await?;
    let observed = HostTurnInput { retry_interval: at.interval, ..observed };
    Ok(HostView {
        check: check_firmware(&host.facts, &observed.firmware),
        explanation: host.explain(&observed, at.now),
        next_attempt: host.next_attempt(observed.retry_interval),
        gate: observed.gate.err(),
        host,
    })
}

/// Explains a machine's firmware; none when nothing is requested.
async fn explain(tx: &mut Tx, machine: &Machine, at: &Moment) -> Result<Option<Explanation>> {
    let Some(host) = tx.record::<Host>(machine.id.as_str()).await? else { return Ok(None) };
    Ok(view(tx, host, machine, at).await?.explanation)
}

impl Hosts {
    /// Adds the explanation of a pending firmware request to that of the machine.
    pub(crate) async fn with_firmware(
        &self,
        machine: &Machine,
        reported: Explanation,
    ) -> Result<Explanation> {
        let input = (machine.clone(), self.moment());
        let found =
            self.0.store().read(input, |(machine, at), tx| Box::pin(explain(tx, machine, at)));
        Ok(match found.await? {
            None => reported,
            Some(firmware) => both(reported, firmware, machine.active_run.is_some()),
        })
    }
}

/// While an operation is active on the machine, its explanation comes first, otherwise the one of
/// the firmware.
fn both(machine: Explanation, firmware: Explanation, busy: bool) -> Explanation {
    let headline = format!("{}; {}", machine.headline, firmware.headline);
    let (first, then) = if busy { (machine, firmware) } else { (firmware, machine) };
    let mut next_commands = first.next_commands;
    next_commands.extend(then.next_commands);
    let health = if busy { first.health } else { then.health };
    Explanation { headline, next_commands, health, ..first }
}

struct Request {
    request: Reprovision,
    gate: ApprovalGate,
    at: Moment,
}

impl Request {
    async fn run(&self, tx: &mut Tx) -> Result<HostView> {
        let Reprovision { machine: id, firmware, request_id, by } = &self.request;
        let found = tx.record_locked::<Host>(id.as_str()).await?;
        // Locked, so that the machine is not deleted before its host is written.
        let machine = lock_machine(tx, id, self.at.now).await?;
        if let Some(firmware) = firmware
            && tx.firmware(firmware).await?.is_none()
        {
            return Err(no_firmware(firmware).into());
        }
        let known = found.is_some();
        let mut host = found.unwrap_or_else(|| Host::new(id, self.at.now));
        let repeated = !request_id.is_empty() && host.request_id == *request_id;
        if !repeated {
            host.admit()?;
            host.request_id.clone_from(request_id);
            host.request = Some(ReprovisionRequest {
                owner: ReprovisionOwner::Operator { name: by.clone() },
                firmware: firmware.clone(),
                requested_at: self.at.now,
                started_at: None,
            });
            let proposal = self.proposal(tx, &machine).await?;
            let approval = self.gate.check(tx, proposal).await?;
            let message = match approval.as_str() {
                "" => "its firmware is to be seen to".to_string(),
                approval => format!("its firmware is to be seen to; {approval}"),
            };
            let event = event(Cause::Request, by, message, here!(), self.at.now);
            write(tx, &mut host, known, &event).await?;
        }
        view(tx, host, &machine, &self.at).await
    }
}

impl Request {
    /// The actions of the request, as another person approves them.
    async fn proposal(&self, tx: &mut Tx, machine: &Machine) -> Result<Option<Proposal>> {
        let Reprovision { machine: id, firmware, request_id, .. } = &self.request;
        let desired = desired_firmware(tx, machine.spec.rack.as_ref(), firmware.as_ref()).await?;
        let plan = match desired {
            FirmwareResolution::Use(firmware) => {
                let steps = firmware.steps(TargetKind::Machine);
                steps.iter().flat_map(|step| step_lines(firmware.id.as_str(), step)).collect()
            }
            FirmwareResolution::Skip(reason) => vec![format!("no firmware now: {reason}")],
            FirmwareResolution::Unknown(id) => vec![format!("unknown firmware {id}")],
        };
        Ok(Some(sealed(Proposal {
            request: "reprovision".into(),
            request_id: request_id.clone(),
            targets: vec![id.to_string()],
            permissions: Permission::Firmware.into(),
            plan,
            digest: String::new(),
            overrides: Overrides::default(),
            operations: Vec::new(),
        })))
    }
}

async fn read_machine(tx: &mut Tx, id: &MachineId, now: Timestamp) -> Result<Machine> {
    match tx.machine(id).await? {
        Some(machine) => Ok(machine),
        None => Err(missing_machine(tx, id, now).await?.into()),
    }
}

async fn cancel(tx: &mut Tx, id: &MachineId, who: &Requester, at: &Moment) -> Result<HostView> {
    let found = tx.record_locked::<Host>(id.as_str()).await?;
    let machine = read_machine(tx, id, at.now).await?;
    let mut host = found.unwrap_or_else(|| Host::new(id, at.now));
    let operation = match host.rack_operation() {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    host.admit_withdrawal(operation.as_ref())?;
    if host.request.take().is_some() {
        let message = "the request for a firmware upgrade was withdrawn".to_string();
        let event = event(Cause::Request, &who.by, message, here!(), at.now);
        tx.update_and_enqueue(&mut host, &event)?;
    }
    view(tx, host, &machine, at).await
}

async fn show(tx: &mut Tx, id: &MachineId, at: &Moment) -> Result<HostView> {
    let machine = read_machine(tx, id, at.now).await?;
    let found = tx.record::<Host>(id.as_str()).await?;
    let host = found.unwrap_or_else(|| Host::new(id, at.now));
    view(tx, host, &machine, at).await
}
