//! Starts the operations of a rack: on demand, as a reprovision, or as a restart. A dry run is the
//! same transaction, rolled back. It lists every refusal; a real request fails with the first.

use super::{load_devices, no_rack, resolve_firmware};
use crate::admission::{
    Admission, Created, Holds, RestartRequest, approval_sentence, event, foresee_budgets,
    not_before, replay, time_after_runs,
};
use crate::holds::hold_devices;
use crate::rack::Racks;
use crate::run::previewed_steps;
use model::fault::{Fault, FaultCode};
use model::gate::{Gate, Overrides, answer, gates_of};
use model::here;
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::lifecycle::Lifecycle;
use model::power_shelf::PowerShelf;
use model::rack::maintenance::{
    FIRMWARE_USED, MaintenanceTrigger, PlannedMaintenance, REFERENCE, RackLimits,
    RackMaintenanceRequest, RackStep, add_request_metadata, admit, admit_resume, gates, initiator,
    notes_from_params, plan, refusing_gates, request_from_params, resume_gate,
};
use model::rack::{Rack, RackDevice};
use model::refusal::{Reason, Refusal};
use model::run::actions::{Requester, RestartMode, restart};
use model::run::{Failure, PreviewedStep, Run};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::text;
use model::time::Timestamp;
use store::{Cause, Enqueue, NewEvent, NewLog, Result, StoreError, Tx};

/// A request for an operation on a rack.
#[derive(Debug, Clone)]
pub struct MaintenanceStart {
    pub rack_id: RackId,
    pub request: RackMaintenanceRequest,
    pub trigger: MaintenanceTrigger,
    /// The idempotency key of the request. Empty: the operation's own id.
    pub request_id: String,
    pub by: String,
    /// The ticket in an external tracker; may be empty.
    pub reference: String,
    pub overrides: Overrides,
    pub dry_run: bool,
}

/// The planned operation, and every refusal of it.
#[derive(Debug, Clone)]
pub struct MaintenancePreview {
    pub planned: PlannedMaintenance,
    pub refusals: Vec<Refusal>,
    pub overrides: Overrides,
    /// The gates that refuse without the override.
    pub refusing: Vec<Gate>,
    /// Dry run only: the time of each step.
    pub steps: Vec<PreviewedStep>,
    /// Dry run only: what the gates `budget` and `approval` say.
    pub later_gates: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct MaintenanceStartResult {
    /// None for a dry run.
    pub run: Option<Run>,
    /// False when the run was created by an earlier request with the same key.
    pub new: bool,
    /// None when the run was created by an earlier request.
    pub preview: Option<MaintenancePreview>,
}

impl Racks {
    pub async fn maintain(&self, start: MaintenanceStart) -> Result<MaintenanceStartResult> {
        self.begin(start, None).await
    }

    /// Starts the same operation again, planned for the devices that are in the rack now. An
    /// earlier override is not repeated.
    pub(crate) async fn restart(
        &self,
        rack_id: RackId,
        parent: &Run,
        request: RestartRequest,
        who: Requester,
    ) -> Result<MaintenanceStartResult> {
        let RestartRequest { mode, request_id, overrides, .. } = request;
        // The new operation plans its own steps, and adopts none of the old ones.
        restart(parent, mode, true)?;
        let params = &parent.spec.params;
        let start = MaintenanceStart {
            rack_id,
            request: request_from_params(params),
            trigger: MaintenanceTrigger::OnDemand,
            request_id,
            by: who.by.clone(),
            reference: params.get(REFERENCE).cloned().unwrap_or_default(),
            overrides,
            dry_run: false,
        };
        let note = mode.describe(&parent.spec.id, &who);
        self.begin(start, Some(Restart { of: parent.spec.id.clone(), mode, note })).await
    }

    async fn begin(
        &self,
        start: MaintenanceStart,
        restarts: Option<Restart>,
    ) -> Result<MaintenanceStartResult> {
        text::check_short("reference", &start.reference)?;
        let desired = start.request.clone().checked()?;
        let engine = self.0.with_dry_run(start.dry_run);
        let begin = MaintenanceAdmission {
            start: MaintenanceStart { request: desired, ..start },
            restart_of: restarts,
            id: RunId::new(self.0.now(), self.0.random()),
            limits: self.0.settings().rack_limits,
            now: self.0.now(),
        };
        let (rack, by) = (begin.start.rack_id.clone(), begin.start.by.clone());
        let request = begin.start.trigger.as_str();
        let done =
            engine.admit("begin_maintenance", None, begin, |begin, tx| Box::pin(begin.run(tx)));
        engine.trace_refusal(rack.as_str(), (&by, request), done.await)
    }
}

/// The run that a new one restarts, and how. `note` is the reason, for the history.
struct Restart {
    of: RunId,
    mode: RestartMode,
    note: String,
}

struct MaintenanceAdmission {
    start: MaintenanceStart,
    restart_of: Option<Restart>,
    id: RunId,
    limits: RackLimits,
    now: Timestamp,
}

impl MaintenanceAdmission {
    async fn run(&self, tx: &mut Tx) -> Result<(MaintenanceStartResult, Created)> {
        let mut created = Created::default();
        let start = &self.start;
        let found = tx.record_locked::<Rack>(start.rack_id.as_str()).await?;
        let mut rack = found.ok_or_else(|| no_rack(&start.rack_id))?;
        if !start.request_id.is_empty()
            && let Some(run) = tx.run_of_request(&rack.target(), &start.request_id).await?
        {
            let same = self.is_request_of(&run);
            let run = Some(replay(run, same)?);
            return Ok((MaintenanceStartResult { run, new: false, preview: None }, created));
        }
        let preview = self.preview(tx, &rack).await?;
        match (answer(&preview.refusals), start.dry_run) {
            (Some(refusal), false) => return Err(refusal.into()),
            (Some(_), true) => {
                let preview = Some(preview);
                return Ok((MaintenanceStartResult { run: None, new: false, preview }, created));
            }
            (None, _) => {}
        }
        let run = self.accept(tx, &mut rack, &preview, &mut created).await?;
        // The operation of a dry run is rolled back.
        let run = (!start.dry_run).then_some(run);
        let preview = Some(preview);
        Ok((MaintenanceStartResult { new: run.is_some(), run, preview }, created))
    }
}

impl MaintenanceAdmission {
    async fn preview(&self, tx: &mut Tx, rack: &Rack) -> Result<MaintenancePreview> {
        let MaintenanceStart { request: desired, trigger, overrides, .. } = &self.start;
        let devices = load_devices(tx, &rack.id()).await?;
        check_named_devices(tx, rack, &devices, desired).await?;
        let firmware = resolve_firmware(tx, rack, desired.firmware()).await?;
        let given = (firmware, &self.limits);
        let planned = plan(rack, &devices, desired.clone(), *trigger, given)?;
        let mut refusals = gates(rack, &planned, overrides);
        let refusing = gates_of(&gates(rack, &planned, &Overrides::default()));
        let (mut steps, mut later_gates) = (Vec::new(), Vec::new());
        if self.start.dry_run {
            let run = self.new_run(rack, &planned, self.start.by.clone(), self.now);
            let (budgets, later) = foresee_budgets(tx, &run, overrides, self.now).await?;
            refusals.extend(later);
            let approval = approval_sentence(tx, run.spec.permissions(), overrides).await?;
            later_gates.extend(budgets.into_iter().chain(approval));
            steps = previewed_steps(tx, &run).await?;
        }
        let overrides = overrides.clone();
        Ok(MaintenancePreview { planned, refusals, overrides, refusing, steps, later_gates })
    }

    async fn accept(
        &self,
        tx: &mut Tx,
        rack: &mut Rack,
        preview: &MaintenancePreview,
        created: &mut Created,
    ) -> Result<Run> {
        let (start, planned) = (&self.start, &preview.planned);
        let by = initiator(&start.by, &start.reference);
        let mut targets = planned.claims();
        targets.push(rack.target());
        let at = time_after_runs(tx, self.now, &targets).await?;
        let at = not_before(at, rack.head.updated_at);
        let what = format!("{} {}", start.trigger.as_str(), self.id);
        let again = self.restart_of.as_ref().map(|restart| format!(", {}", restart.note));
        let note = start.overrides.history_note(&start.by, &preview.refusing);
        let skipped =
            planned.firmware_skipped.as_ref().map(|why| format!("; no firmware is applied: {why}"));
        let (again, skipped) = (again.unwrap_or_default(), skipped.unwrap_or_default());
        let message = format!("{what} accepted for {by}{again}{note}{skipped}");
        let event = event(Cause::Request, &start.by, message, here!(), at);
        let run = self.new_run(rack, planned, by, at);
        let own = rack.subject();
        let holds = match (&planned.unknown, start.trigger) {
            (Some(_), _) => {
                rack.active.push(self.id.clone());
                Holds::Nothing
            }
            // It holds its devices only when it starts: operations accepted earlier end first.
            (None, MaintenanceTrigger::Reprovision) => {
                rack.reprovision_requested = Some(self.id.clone());
                Holds::Nothing
            }
            (None, MaintenanceTrigger::OnDemand | MaintenanceTrigger::Ingestion) => {
                rack.maintenance_requested.push(self.id.clone());
                Holds::Targets { own: Some(&own) }
            }
        };
        let admission = Admission { run, enqueue: Enqueue::WhenWoken, holds, event: &event };
        let run = created.add(tx, admission).await?;
        log_notes(tx, &run, at)?;
        tx.update_and_enqueue(rack, &event)?;
        Ok(run)
    }

    fn new_run(&self, rack: &Rack, planned: &PlannedMaintenance, by: String, at: Timestamp) -> Run {
        let start = &self.start;
        let mut new = planned.new_run(rack, &self.id, by);
        if !start.request_id.is_empty() {
            new.request_id.clone_from(&start.request_id);
        }
        add_request_metadata(&mut new.params, &start.overrides, &start.reference);
        if planned.unknown.is_some() {
            new.claims.clear();
        }
        let mut run = new.into_run(at);
        if let Some(Restart { of, mode, .. }) = &self.restart_of {
            (run.spec.rerun_of, run.spec.restart) = (Some(of.clone()), Some(*mode));
        }
        if let Some(id) = &planned.unknown {
            mark_failed(&mut run, id, at);
        }
        run
    }

    /// True if an earlier run was created by an equal request.
    fn is_request_of(&self, run: &Run) -> bool {
        let start = &self.start;
        let parent = self.restart_of.as_ref().map(|restart| &restart.of);
        request_from_params(&run.spec.params) == start.request
            && Overrides::of_params(&run.spec.params) == start.overrides
            && run.spec.rerun_of.as_ref() == parent
    }
}

/// An operation with a firmware that is not in the catalogue is created as failed.
fn mark_failed(run: &mut Run, id: &FirmwareId, at: Timestamp) {
    let message = format!("firmware {id} is not in the catalogue");
    let fault = Fault::new(FaultCode::FirmwareUnknown, message)
        .with(|facts| facts.firmware = Some(id.to_string()));
    let failure = Failure { fault, step: "resolve-firmware".into(), attempts: 0 };
    run.progress.workflow = failure.workflow();
    run.progress.failure = Some(failure);
    run.progress.finished_at = Some(at);
}

/// Refuses a named device that is unknown or not in this rack.
async fn check_named_devices(
    tx: &mut Tx,
    rack: &Rack,
    devices: &[RackDevice],
    desired: &RackMaintenanceRequest,
) -> Result<()> {
    for (field, target) in desired.scope.named() {
        if devices.iter().any(|device| device.target == target) {
            continue;
        }
        let problem = match rack_of_device(tx, &target).await? {
            None => format!("{target} is not known"),
            Some(None) => format!("{target} stands in no rack"),
            Some(Some(other)) => format!("{target} stands in {other}, not in {}", rack.head.id),
        };
        let instead = format!("see `farrier rack get {}`", rack.head.id);
        return Err(Refusal::invalid(&field, problem, instead).into());
    }
    Ok(())
}

/// The rack of a device; none when there is no such device.
async fn rack_of_device(tx: &mut Tx, target: &TargetId) -> Result<Option<Option<RackId>>> {
    let id = target.as_str();
    Ok(match target.kind {
        TargetKind::Machine => {
            tx.machine(&MachineId::trusted(id)).await?.map(|machine| machine.spec.rack)
        }
        TargetKind::Switch => tx.record::<Switch>(id).await?.map(|one| one.head.rack),
        TargetKind::PowerShelf => tx.record::<PowerShelf>(id).await?.map(|one| one.head.rack),
        TargetKind::Rack => None,
    })
}

/// Writes the notes of the plan, such as skipped devices, to the start of the operation's log.
fn log_notes(tx: &mut Tx, run: &Run, at: Timestamp) -> Result<()> {
    let mut start = 0;
    let mut lines = Vec::new();
    for note in notes_from_params(&run.spec.params) {
        let data = format!("{note}\n").into_bytes();
        let length = data.len() as i64;
        lines.push(NewLog {
            start,
            ts: at,
            step: String::new(),
            attempt: 0,
            stream: "stdout",
            data,
        });
        start += length;
    }
    tx.append_log(&run.spec.id, &lines)
}

/// Starts an operation in the transaction of the rack's turn: it holds its devices, and the hosts
/// get their firmware requests. `started`: this turn has created the operation.
pub(crate) async fn start_operation(
    tx: &mut Tx,
    id: &RunId,
    started: bool,
    event: &NewEvent,
) -> Result<()> {
    let Some(run) = tx.run(id).await? else { return Ok(()) };
    if run.ended() {
        return Ok(());
    }
    if started {
        log_notes(tx, &run, event.at)?;
    } else {
        hold_devices(tx, &run, run.spec.reports_to.as_ref(), event).await?;
        // If the operation has ended meanwhile, its devices were released before they were held
        // here, and would never be released again.
        if tx.run_with_claim_locked(id).await?.is_none_or(|claimed| claimed.run.ended()) {
            return Err(StoreError::Conflict);
        }
        tx.wake(&id.object(), event.at)?;
    }
    request_host_upgrades(tx, &run, event).await
}

/// Requests the upgrade from the hosts whose firmware an operation upgrades.
async fn request_host_upgrades(tx: &mut Tx, run: &Run, event: &NewEvent) -> Result<()> {
    let machines = upgraded_machines(run);
    if machines.is_empty() {
        return Ok(());
    }
    let firmware = run.spec.params.get(FIRMWARE_USED).map(FirmwareId::trusted);
    crate::host::request_for_rack(tx, &machines, &run.spec.id, firmware.as_ref(), event).await
}

/// The machines whose firmware an operation upgrades.
fn upgraded_machines(run: &Run) -> Vec<MachineId> {
    let rack_step = RackStep::Firmware(TargetKind::Machine).as_str();
    let steps = run.spec.steps.iter().filter(|step| step.name == rack_step);
    let groups = steps.filter_map(|step| step.effect.group());
    groups.flat_map(|group| &group.child_runs).filter_map(|part| part.target.machine()).collect()
}

/// The gates that refuse an operation of a rack without its override.
pub(crate) async fn load_refusing_gates(tx: &mut Tx, id: &RackId, run: &Run) -> Result<Vec<Gate>> {
    let Some(rack) = tx.record::<Rack>(id.as_str()).await? else { return Ok(Vec::new()) };
    Ok(refusing_gates(&rack, run, &load_devices(tx, id).await?))
}

/// Continues a failed operation: the rack's gate is checked again, and all devices are held again.
/// Returns the note about the override of the run for the history.
pub(crate) async fn reopen_operation(
    tx: &mut Tx,
    id: &RackId,
    run: &Run,
    (by, event): (&str, &NewEvent),
) -> Result<String> {
    let found = tx.record_locked::<Rack>(id.as_str()).await?;
    let mut rack = found.ok_or_else(|| no_rack(id))?;
    let again = format!("farrier operation rerun {}", run.spec.id);
    if run.spec.steps.is_empty() {
        let text = format!("{} was never planned: there is no step to go on with", run.spec.id);
        return Err(Refusal::new(Reason::NothingPlanned, text).next(again).into());
    }
    admit(&rack, MaintenanceTrigger::OnDemand)?;
    let devices = load_devices(tx, id).await?;
    admit_resume(run, &devices)?;
    let refusing = resume_gate(run, &devices);
    let note = Overrides::of_params(&run.spec.params).history_note(by, refusing.as_slice());
    if !rack.active.contains(&run.spec.id) {
        rack.active.push(run.spec.id.clone());
    }
    let message = format!("{} goes on{note}", run.spec.id);
    tx.update_and_enqueue(&mut rack, &NewEvent { message, ..event.clone() })?;
    hold_devices(tx, run, Some(&rack.subject()), event).await?;
    // An operation that was stopped before it started has not notified its hosts yet.
    if run.progress.started_at.is_none() {
        request_host_upgrades(tx, run, event).await?;
    }
    Ok(note)
}
