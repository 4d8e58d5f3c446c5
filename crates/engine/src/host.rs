//! Hosts: the firmware of machines, seen to for an operator or for their rack. What becomes of a
//! request is the model's; here it is written down, and what a turn must know is read.

use crate::Engine;
use crate::admission::current_run;
use crate::admission::{event, no_machine};
use crate::components::wanted;
use crate::firmware::no_firmware;
use model::firmware::Resolution;
use model::health::{Alert, Alerts, Class};
use model::here;
use model::host::{Check, Host, Owner, RETRY_INTERVAL, ReprovisionRequest, Seen, check};
use model::id::{FirmwareId, MachineId, RunId};
use model::lifecycle::Lifecycle;
use model::machine::Machine;
use model::machine::admit::admit;
use model::plan::RunType;
use model::refusal::Refusal;
use model::run::Run;
use model::run::act::Who;
use model::target::TargetId;
use model::time::Timestamp;
use model::why::Explanation;
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx};

/// Who says that a machine's firmware is being upgraded, and what the alert is called.
const SOURCE: &str = "host-reprovision";
const ALERT: &str = "host-fw-update";
/// How far back the part of a rack's operation is searched among the runs of a machine.
const MAX_PARTS_BACK: i64 = 20;

/// A request to see to the firmware of a machine.
#[derive(Debug, Clone)]
pub struct Reprovision {
    pub machine: MachineId,
    /// None: the default of its rack's hardware type.
    pub firmware: Option<FirmwareId>,
    /// Empty in a dry run: it is no request that could be repeated.
    pub request_id: String,
    pub by: String,
}

/// A host as it is, and what is to be done about it.
#[derive(Debug, Clone)]
pub struct HostView {
    pub host: Host,
    /// What it is to have comes to this.
    pub check: Check,
    /// Why its machine would not let an upgrade begin now.
    pub gate: Option<Refusal>,
    pub told: Option<Explanation>,
    /// When a failure is tried again by itself.
    pub next_attempt: Option<Timestamp>,
}

/// Hosts: the firmware of machines.
#[derive(Clone)]
pub struct Hosts(pub(crate) Engine);

impl Hosts {
    /// Has a machine's firmware checked, and upgraded where it differs.
    pub async fn reprovision(&self, request: Reprovision) -> Result<HostView> {
        let request = Request { asked: request, at: self.moment() };
        self.0
            .store()
            .retry_write("request_reprovision", request, |request, tx| Box::pin(request.run(tx)))
            .await
    }

    /// Gives up what was asked of a host. What runs is stopped first.
    pub async fn cancel(&self, machine: &MachineId, who: Who) -> Result<HostView> {
        let input = (machine.clone(), who, self.moment());
        self.0
            .store()
            .retry_write("cancel_reprovision", input, |(machine, who, at), tx| {
                Box::pin(cancel(tx, machine, who, at))
            })
            .await
    }

    /// The host of a machine, Ready where nothing was ever asked of it.
    pub async fn get(&self, machine: &MachineId) -> Result<HostView> {
        let input = (machine.clone(), self.moment());
        self.0.store().read(input, |(machine, at), tx| Box::pin(show(tx, machine, at))).await
    }

    fn moment(&self) -> Moment {
        let interval = self.0.settings().host_firmware_upgrade_retry_interval;
        Moment { fresh: RunId::new(self.0.now(), self.0.random()), interval, now: self.0.now() }
    }
}

/// Tells machines that an operation on their rack is about to upgrade their firmware.
pub(crate) async fn request_for_rack(
    tx: &mut Tx,
    machines: &[MachineId],
    operation: &RunId,
    firmware: Option<&FirmwareId>,
    event: &NewEvent,
) -> Result<()> {
    let mut machines: Vec<&MachineId> = machines.iter().collect();
    // The same order everywhere, so that nobody waits in a ring.
    machines.sort();
    for machine in machines {
        let found = tx.record_locked::<Host>(machine.as_str()).await?;
        let known = found.is_some();
        let mut host = found.unwrap_or_else(|| Host::new(machine, event.at));
        host.request = Some(ReprovisionRequest {
            owner: Owner::Rack { operation: operation.clone() },
            firmware: firmware.cloned(),
            requested_at: event.at,
            started_at: None,
        });
        let message = format!("{operation} is to upgrade its firmware");
        write(tx, &mut host, known, &NewEvent { message, ..event.clone() }).await?;
    }
    Ok(())
}

/// Writes a host that has something to do, and has its turn look at it.
async fn write(tx: &mut Tx, host: &mut Host, known: bool, event: &NewEvent) -> Result<()> {
    match known {
        true => tx.update_and_enqueue(host, event),
        false => tx.insert_record(host, event).await,
    }
}

/// Keeps what a run has read of a machine. `host` was locked before the machine.
pub(crate) async fn learn(
    tx: &mut Tx,
    machine: &MachineId,
    host: Option<Host>,
    facts: &model::effect::Facts,
    event: &NewEvent,
) -> Result<()> {
    match host {
        Some(mut host) => {
            let before = host.facts.clone();
            host.learn(facts);
            if host.facts == before { Ok(()) } else { tx.update_record(&mut host, event) }
        }
        None => {
            let mut host = Host::new(machine, event.at);
            host.learn(facts);
            tx.insert_record(&mut host, event).await
        }
    }
}

/// What a host's turn sees; under its own lock the machine is held too, so that its gate is still
/// open when a run begins.
pub(crate) async fn look(
    tx: &mut Tx,
    host: &Host,
    fresh: RunId,
    machine: Option<&Machine>,
) -> Result<Seen> {
    let run = match host.waits_for() {
        Some(id) => current_run(tx, &TargetId::from(&host.machine()), id).await?,
        None => None,
    };
    let named = host.request.as_ref().and_then(|request| request.firmware.as_ref());
    let rack = machine.and_then(|machine| machine.spec.rack.as_ref());
    let firmware = wanted(tx, rack, named).await?;
    let gate = gate(machine, host, &firmware);
    let (operation, part) = match host.rack_operation() {
        Some(id) => (tx.run(id).await?, part_of(tx, host, id).await?),
        None => (None, None),
    };
    Ok(Seen { fresh, run, firmware, gate, operation, part, retry_interval: RETRY_INTERVAL })
}

/// The newest run on the machine's firmware that is a part of the operation.
async fn part_of(tx: &mut Tx, host: &Host, operation: &RunId) -> Result<Option<Run>> {
    let target = TargetId::from(&host.machine());
    let latest = tx.latest_runs(&target, MAX_PARTS_BACK).await?;
    let is_part = |run: &Run| {
        run.spec.run_type == RunType::Firmware && run.spec.part_of.as_ref() == Some(operation)
    };
    Ok(latest.into_iter().find(is_part))
}

fn gate(
    machine: Option<&Machine>,
    host: &Host,
    firmware: &Resolution,
) -> std::result::Result<(), Refusal> {
    let Some(machine) = machine else { return Err(no_machine(&host.machine())) };
    match check(&host.facts, firmware) {
        Check::Install { steps, .. } => admit(machine, RunType::Firmware, &steps),
        Check::Nothing(_) | Check::Unknown(_) => Ok(()),
    }
}

/// The alert is there while the firmware is seen to, and gone when it is Ready again: written with
/// the state itself.
pub(crate) async fn alert(
    tx: &mut Tx,
    before: &Host,
    after: &Host,
    event: &NewEvent,
) -> Result<()> {
    let machine = TargetId::from(&after.machine());
    match (before.is_ready(), after.is_ready()) {
        (true, false) => {
            let classes = [Class::PreventAllocations, Class::SuppressExternalAlerting];
            let alert = Alert {
                part: String::new(),
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

/// When a host is looked at, and under which settings.
struct Moment {
    /// An id for a run that would begin now.
    fresh: RunId,
    interval: Duration,
    now: Timestamp,
}

async fn view(tx: &mut Tx, host: Host, machine: &Machine, at: &Moment) -> Result<HostView> {
    let seen = look(tx, &host, at.fresh.clone(), Some(machine)).await?;
    let seen = Seen { retry_interval: at.interval, ..seen };
    Ok(HostView {
        check: check(&host.facts, &seen.firmware),
        told: host.explain(&seen, at.now),
        next_attempt: host.next_attempt(seen.retry_interval),
        gate: seen.gate.err(),
        host,
    })
}

/// Why a machine's firmware is as it is; none when nothing is asked of it.
async fn explain(tx: &mut Tx, machine: &Machine, at: &Moment) -> Result<Option<Explanation>> {
    let Some(host) = tx.record::<Host>(machine.id.as_str()).await? else { return Ok(None) };
    Ok(view(tx, host, machine, at).await?.told)
}

impl Hosts {
    /// What is said of a machine, and of its firmware where somebody waits for it.
    pub(crate) async fn with_firmware(
        &self,
        machine: &Machine,
        told: Explanation,
    ) -> Result<Explanation> {
        let input = (machine.clone(), self.moment());
        let found =
            self.0.store().read(input, |(machine, at), tx| Box::pin(explain(tx, machine, at)));
        Ok(match found.await? {
            None => told,
            Some(firmware) => both(told, firmware, machine.active_run.is_some()),
        })
    }
}

/// While an operation works on the machine, that is what is waited for; otherwise it is the
/// firmware.
fn both(machine: Explanation, firmware: Explanation, busy: bool) -> Explanation {
    let headline = format!("{}; {}", machine.headline, firmware.headline);
    let (first, then) = if busy { (machine, firmware) } else { (firmware, machine) };
    let mut next_commands = first.next_commands;
    next_commands.extend(then.next_commands);
    let health = if busy { first.health } else { then.health };
    Explanation { headline, next_commands, health, ..first }
}

struct Request {
    asked: Reprovision,
    at: Moment,
}

impl Request {
    async fn run(&self, tx: &mut Tx) -> Result<HostView> {
        let Reprovision { machine: id, firmware, request_id, by } = &self.asked;
        let found = tx.record_locked::<Host>(id.as_str()).await?;
        let machine = tx.machine(id).await?.ok_or_else(|| no_machine(id))?;
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
                owner: Owner::Operator { name: by.clone() },
                firmware: firmware.clone(),
                requested_at: self.at.now,
                started_at: None,
            });
            let message = "its firmware is to be seen to".to_string();
            let event = event(Cause::Request, by, message, here!(), self.at.now);
            write(tx, &mut host, known, &event).await?;
        }
        view(tx, host, &machine, &self.at).await
    }
}

async fn cancel(tx: &mut Tx, id: &MachineId, who: &Who, at: &Moment) -> Result<HostView> {
    let found = tx.record_locked::<Host>(id.as_str()).await?;
    let machine = tx.machine(id).await?.ok_or_else(|| no_machine(id))?;
    let mut host = found.unwrap_or_else(|| Host::new(id, at.now));
    let operation = match host.rack_operation() {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    host.admit_give_up(operation.as_ref())?;
    if host.request.take().is_some() {
        let message = "nobody wants its firmware upgraded any more".to_string();
        let event = event(Cause::Request, &who.by, message, here!(), at.now);
        tx.update_and_enqueue(&mut host, &event)?;
    }
    view(tx, host, &machine, at).await
}

async fn show(tx: &mut Tx, id: &MachineId, at: &Moment) -> Result<HostView> {
    let machine = tx.machine(id).await?.ok_or_else(|| no_machine(id))?;
    let found = tx.record::<Host>(id.as_str()).await?;
    let host = found.unwrap_or_else(|| Host::new(id, at.now));
    view(tx, host, &machine, at).await
}
