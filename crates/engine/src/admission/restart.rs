//! Restarts an ended run as a new one. Runs on racks and nodes are restarted by their own modules;
//! this one restarts runs on machines, switches and power shelves. The new run has the same steps,
//! and the lifecycle of the device follows it as it followed the first.

use super::start::Origin;
use super::{
    Admission, Created, Holds, StartRequest, StartedRun, event, missing_machine, no_run, replay,
};
use crate::power_shelf;
use crate::rack::load_devices;
use crate::run::{Runs, superseding_run};
use model::blast_radius::{AffectedMachine, Impact, check_impact};
use model::gate::{Gate, Overrides, gate_of, without_overrides};
use model::health::HealthImpact;
use model::here;
use model::id::{MachineId, RunId};
use model::machine::admit::impact_of;
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::refusal::Refusal;
use model::run::actions::{Requester, RestartMode, restart};
use model::run::{ENGINE_VERSION, Run, RunSpec};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Cause, Enqueue, Result, Tx};

/// The number of a device's newest runs that are searched for the restart of a run.
const MAX_BACK: i64 = 20;

/// A request to create a new run from an ended one.
#[derive(Debug, Clone)]
pub struct RestartRequest {
    pub original: RunId,
    pub mode: RestartMode,
    pub request_id: String,
    pub overrides: Overrides,
}

impl Runs {
    /// Creates a new run from an ended one, without an override.
    pub async fn restart(
        &self,
        original: RunId,
        mode: RestartMode,
        request_id: String,
        who: Requester,
    ) -> Result<StartedRun> {
        let overrides = Overrides::default();
        self.restart_with(RestartRequest { original, mode, request_id, overrides }, who).await
    }

    /// Creates a new run from an ended one: rerun or restart clean.
    pub async fn restart_with(
        &self,
        request: RestartRequest,
        who: Requester,
    ) -> Result<StartedRun> {
        let (id, by, mode) = (request.original.clone(), who.by.clone(), request.mode);
        let done = self.restart_any(request, who).await;
        self.trace_action(&id, (&by, mode.as_str()), done).await
    }

    async fn restart_any(&self, request: RestartRequest, who: Requester) -> Result<StartedRun> {
        let original = self.get(&request.original).await?;
        if let Some(rack) = original.spec.target.rack() {
            let started = self.0.racks().restart(rack, &original, request, who).await?;
            let run = started.run.ok_or_else(|| no_run(&original.spec.id))?;
            return Ok(StartedRun { run, new: started.new });
        }
        let RestartRequest { mode, request_id, overrides, .. } = request;
        if RunType::NODES.contains(&original.spec.run_type) {
            if !overrides.is_empty() {
                let problem = "names a gate, and an operation on a node is repeated with its own";
                let instead = "leave it out";
                return Err(Refusal::invalid("gate_override.gates", problem, instead).into());
            }
            return self.0.nodes().restart(&original.spec.id, mode, request_id, who).await;
        }
        // A child run was admitted by its parent, not by the gates of its machine.
        let on_machine =
            original.spec.target.machine().filter(|_| original.spec.parent_run.is_none());
        let Some(machine_id) = on_machine else {
            let request = RestartRequest { mode, request_id, overrides, ..request };
            return self.restart_on_device(request, who).await;
        };
        // The gates of service and of the disk are checked again: only `health` is inherited.
        let kept = Overrides::of_params(&original.spec.params).only(&[Gate::Health]);
        let inherited = overrides.is_empty();
        let start = StartRequest {
            machine_id,
            request_id,
            run_type: original.spec.run_type,
            plan_id: Some(original.spec.plan_id),
            overrides: if inherited { kept } else { overrides },
            params: without_overrides(original.spec.params),
            initiator: who.by.clone(),
        };
        let note = mode.describe(&original.spec.id, &who);
        let origin = Origin::Restart { original: original.spec.id, mode, note, inherited };
        self.start_on_machine(start, origin).await
    }

    async fn restart_on_device(
        &self,
        request: RestartRequest,
        who: Requester,
    ) -> Result<StartedRun> {
        let id = RunId::new(self.0.now(), self.0.random());
        let restart = RestartOnDevice { request, who, id, now: self.0.now() };
        self.0
            .admit("restart_on_device", None, restart, |restart, tx| Box::pin(restart.run(tx)))
            .await
    }
}

struct RestartOnDevice {
    request: RestartRequest,
    who: Requester,
    id: RunId,
    now: Timestamp,
}

impl RestartOnDevice {
    async fn run(&self, tx: &mut Tx) -> Result<(StartedRun, Created)> {
        let RestartRequest { original: of, mode, request_id, overrides } = &self.request;
        let mut created = Created::default();
        let original = tx.run(of).await?.ok_or_else(|| no_run(of))?;
        if let Some(run) = tx.run_of_request(&original.spec.target, request_id).await? {
            let same = (run.spec.rerun_of.as_ref(), run.spec.restart) == (Some(of), Some(*mode))
                && Overrides::of_params(&run.spec.params) == *overrides;
            return Ok((StartedRun { run: replay(run, same)?, new: false }, created));
        }
        let superseded = superseding_run(tx, &original).await?.is_some();
        let progress = restart(&original, *mode, superseded)?;
        let mut spec = RunSpec {
            id: self.id.clone(),
            request_id: request_id.clone(),
            initiator: self.who.by.clone(),
            rerun_of: Some(of.clone()),
            restart: Some(*mode),
            parent_run: None,
            engine_version: ENGINE_VERSION,
            created_at: self.now,
            ..original.spec
        };
        // The override of the earlier request does not apply to the restart.
        overrides.store_in(&mut spec.params);
        let run = Run { spec, progress, version: 1 };
        let refusing = may_continue_alone(tx, &run, self.now).await?;
        let again = mode.describe(of, &self.who);
        let note = overrides.history_note(&self.who.by, &refusing);
        let message = format!("{} accepted, {again}{note}", run.spec.run_type.as_str());
        let event = &event(Cause::Request, &self.who.by, message, here!(), self.now);
        let (enqueue, holds) = (Enqueue::Now, Holds::Targets { own: None });
        let run = created.add(tx, Admission { run, enqueue, holds, event }).await?;
        Ok((StartedRun { run, new: true }, created))
    }
}

/// Checks whether a run on a device, or a child run without its parent, may continue: machines may
/// have come into service since it was accepted, and its target may have become unhealthy. Returns
/// the gates that would refuse without the override of the run.
pub(crate) async fn may_continue_alone(
    tx: &mut Tx,
    run: &Run,
    now: Timestamp,
) -> Result<Vec<Gate>> {
    let target = &run.spec.target;
    let overrides = overrides_of(tx, run).await?;
    let what = format!("what is left of {}", run.spec.id);
    let health = match target.kind {
        TargetKind::Machine => {
            tx.machine(&MachineId::trusted(&target.id)).await?.map(|one| one.health)
        }
        TargetKind::Switch => tx.record::<Switch>(&target.id).await?.map(|one| one.head.health),
        TargetKind::PowerShelf => {
            tx.record::<PowerShelf>(&target.id).await?.map(|one| one.head.health)
        }
        TargetKind::Rack => None,
    };
    let mut refusing = Vec::new();
    if let Some(health) = health {
        let check = |overrides: &Overrides| {
            health.check_permitted(target, &what, HealthImpact::Change, overrides)
        };
        check(&overrides)
            .map_err(|refusal| refusal.next(format!("farrier health get {target}")))?;
        refusing.extend(gate_of(&check(&Overrides::default())));
    }
    refusing.extend(power_shelf::recheck_power_off(tx, run).await?);
    let Some(impact) = impact_of(run.spec.run_type, &run.spec.steps) else { return Ok(refusing) };
    match target.kind {
        TargetKind::Machine => {
            let id = MachineId::trusted(&target.id);
            let Some(machine) = tx.machine(&id).await? else {
                return Err(missing_machine(tx, &id, now).await?.into());
            };
            let node = tx.node_in_service(&id).await?;
            let affected = [AffectedMachine::of(&machine, node.as_ref())];
            let check = |overrides: &Overrides| check_impact(&what, impact, &affected, overrides);
            check(&overrides)
                .map_err(|refusal| refusal.next(format!("farrier enter-maintenance {id}")))?;
            refusing.extend(gate_of(&check(&Overrides::default())));
        }
        TargetKind::Switch => {
            refusing.extend(check_fabric_users(tx, target, &what, &overrides).await?);
        }
        TargetKind::PowerShelf | TargetKind::Rack => {}
    }
    Ok(refusing)
}

/// The machines in the rack of a switch lose the fabric while it is flashed or off: the same gate
/// as that of a maintenance of the rack. Returns the gate that would refuse without the override.
async fn check_fabric_users(
    tx: &mut Tx,
    switch: &TargetId,
    what: &str,
    overrides: &Overrides,
) -> Result<Option<Gate>> {
    let rack = tx.record::<Switch>(switch.as_str()).await?.and_then(|switch| switch.head.rack);
    let Some(rack) = rack else { return Ok(None) };
    let devices = load_devices(tx, &rack).await?;
    let affected: Vec<_> = devices.into_iter().filter_map(|device| device.affected).collect();
    let check =
        |overrides: &Overrides| check_impact(what, Impact::FabricLoss, &affected, overrides);
    check(overrides).map_err(|refusal| {
        let flags = overrides.flags_with(Gate::InService);
        let again = format!("farrier rack maintenance start {rack} --switch {switch} {flags}");
        refusal.next(format!("{again}   # or move their work away first"))
    })?;
    Ok(gate_of(&check(&Overrides::default())))
}

/// The override of a run. A child run inherits that of its parent.
pub(crate) async fn overrides_of(tx: &mut Tx, run: &Run) -> Result<Overrides> {
    let own = Overrides::of_params(&run.spec.params);
    match &run.spec.parent_run {
        Some(parent) if own.is_empty() => {
            let parent = tx.run(parent).await?;
            Ok(parent.map(|run| Overrides::of_params(&run.spec.params)).unwrap_or_default())
        }
        Some(_) | None => Ok(own),
    }
}

/// The run with this id, or the run that has restarted it.
pub(crate) async fn current_run(tx: &mut Tx, target: &TargetId, id: &RunId) -> Result<Option<Run>> {
    let Some(run) = tx.run(id).await? else { return Ok(None) };
    if !run.ended() {
        return Ok(Some(run));
    }
    let latest = tx.latest_runs(target, MAX_BACK).await?;
    let restarted = latest.into_iter().find(|one| one.spec.rerun_of.as_ref() == Some(id));
    Ok(restarted.or(Some(run)))
}
