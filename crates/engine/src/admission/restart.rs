//! Restarts an ended run as a new one. Runs on racks and nodes are restarted by their own modules;
//! this one restarts runs on machines, switches and power shelves. The new run has the same steps,
//! and the lifecycle of the device follows it as it followed the first.

use super::start::Origin;
use super::{
    Admission, Created, Holds, StartRequest, StartedRun, event, missing_machine, no_run, replay,
};
use crate::power_shelf;
use crate::rack::load_devices;
use crate::run::Runs;
use model::blast_radius::{AffectedMachine, Impact, check_impact};
use model::gate::{Gate, Overrides, gate_of, remove_from, without_overrides};
use model::health::HealthImpact;
use model::here;
use model::id::{MachineId, RunId};
use model::machine::admit::impact_of;
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::run::actions::{Requester, RestartMode, restart};
use model::run::{ENGINE_VERSION, Run, RunSpec};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Cause, Enqueue, Result, Tx};

/// How many of a device's newest runs are searched for the restart of a run.
const MAX_BACK: i64 = 20;

impl Runs {
    /// Creates a new run from an ended one: rerun or restart clean.
    pub async fn restart(
        &self,
        original: RunId,
        mode: RestartMode,
        request_id: String,
        who: Requester,
    ) -> Result<StartedRun> {
        let (id, by) = (original.clone(), who.by.clone());
        let done = self.restart_any(original, mode, request_id, who).await;
        self.trace_action(&id, (&by, mode.as_str()), done).await
    }

    async fn restart_any(
        &self,
        original: RunId,
        mode: RestartMode,
        request_id: String,
        who: Requester,
    ) -> Result<StartedRun> {
        let original = self.get(&original).await?;
        if let Some(rack) = original.spec.target.rack() {
            let started = self.0.racks().restart(rack, &original, (mode, request_id), who).await?;
            let run = started.run.ok_or_else(|| no_run(&original.spec.id))?;
            return Ok(StartedRun { run, new: started.new });
        }
        if RunType::NODES.contains(&original.spec.run_type) {
            return self.0.nodes().restart(&original.spec.id, mode, request_id, who).await;
        }
        // A child run was admitted by its parent, not by the gates of its machine.
        let on_machine =
            original.spec.target.machine().filter(|_| original.spec.parent_run.is_none());
        let Some(machine_id) = on_machine else {
            return self.restart_on_device(&original.spec.id, mode, request_id, who).await;
        };
        let start = StartRequest {
            machine_id,
            request_id,
            run_type: original.spec.run_type,
            plan_id: Some(original.spec.plan_id),
            // Whether the machine is in service, and what is on its disk, is asked anew.
            overrides: Overrides::of_params(&original.spec.params).only(&[Gate::Health]),
            params: without_overrides(original.spec.params),
            initiator: who.by.clone(),
        };
        let note = mode.describe(&original.spec.id, &who);
        let origin = Origin::Restart { original: original.spec.id, mode, note };
        self.start_on_machine(start, origin).await
    }

    async fn restart_on_device(
        &self,
        original: &RunId,
        mode: RestartMode,
        request_id: String,
        who: Requester,
    ) -> Result<StartedRun> {
        let id = RunId::new(self.0.now(), self.0.random());
        let original = original.clone();
        let restart = RestartOnDevice { original, mode, request_id, who, id, now: self.0.now() };
        self.0
            .admit("restart_on_device", None, restart, |restart, tx| Box::pin(restart.run(tx)))
            .await
    }
}

struct RestartOnDevice {
    original: RunId,
    mode: RestartMode,
    request_id: String,
    who: Requester,
    id: RunId,
    now: Timestamp,
}

impl RestartOnDevice {
    async fn run(&self, tx: &mut Tx) -> Result<(StartedRun, Created)> {
        let mut created = Created::default();
        let original = tx.run(&self.original).await?.ok_or_else(|| no_run(&self.original))?;
        if let Some(run) = tx.run_of_request(&original.spec.target, &self.request_id).await? {
            let same = (run.spec.rerun_of.as_ref(), run.spec.restart)
                == (Some(&self.original), Some(self.mode));
            return Ok((StartedRun { run: replay(run, same)?, new: false }, created));
        }
        let progress = restart(&original, self.mode)?;
        let mut spec = RunSpec {
            id: self.id.clone(),
            request_id: self.request_id.clone(),
            initiator: self.who.by.clone(),
            rerun_of: Some(self.original.clone()),
            restart: Some(self.mode),
            parent_run: None,
            engine_version: ENGINE_VERSION,
            created_at: self.now,
            ..original.spec
        };
        // The override of the earlier request does not apply to the restart.
        remove_from(&mut spec.params);
        let run = Run { spec, progress, version: 1 };
        may_continue_alone(tx, &run, self.now).await?;
        let again = self.mode.describe(&self.original, &self.who);
        let message = format!("{} accepted, {again}", run.spec.run_type.as_str());
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
