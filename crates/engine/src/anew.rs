//! Doing anew what was done on a switch or a power shelf, or on a machine as a part: the same steps in a new operation, which the
//! lifecycle of the device follows as it followed the first.

use crate::Engine;
use crate::claims::hold;
use crate::shelves;
use crate::submit::{Started, event, no_machine, no_run, reused};
use model::blast::{Dark, Fate, permit};
use model::device::switches_power;
use model::effect::PowerTo;
use model::health::Wish;
use model::here;
use model::id::{MachineId, RunId};
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::rack::maintenance::FORCED;
use model::run::act::{Again, Who, again};
use model::run::{ENGINE_VERSION, Run, RunSpec};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Birth, Cause, Result, Tx};

/// How far back one that does another anew is searched among the runs of a device.
const MAX_BACK: i64 = 20;

impl Engine {
    pub(crate) async fn device_again(
        &self,
        parent: &RunId,
        how: Again,
        request_id: String,
        who: Who,
    ) -> Result<Started> {
        let restart = DoAnew {
            parent: parent.clone(),
            how,
            request_id,
            by: who.by,
            id: RunId::new(self.now(), self.chance()),
            now: self.now(),
        };
        let started = self
            .store()
            .retry_write("restart_on_device", restart, |restart, tx| Box::pin(restart.run(tx)));
        let started = started.await?;
        if started.new {
            let kind = started.run.spec.run_type.as_str();
            metrics::counter!("farrier_runs_started_total", "type" => kind).increment(1);
        }
        Ok(started)
    }
}

struct DoAnew {
    parent: RunId,
    how: Again,
    request_id: String,
    by: String,
    id: RunId,
    now: Timestamp,
}

impl DoAnew {
    async fn run(&self, tx: &mut Tx) -> Result<Started> {
        let parent = tx.run(&self.parent).await?.ok_or_else(|| no_run(&self.parent))?;
        let target = parent.spec.target.clone();
        if let Some(run) = tx.run_of_request(&target, &self.request_id).await? {
            let same = (run.spec.parent.as_ref(), run.spec.again);
            return match same == (Some(&self.parent), Some(self.how)) {
                true => Ok(Started { run, new: false }),
                false => Err(reused(&run).into()),
            };
        }
        let progress = again(&parent, self.how)?;
        // After everything that was done to the device, whatever the clocks of other replicas said then.
        let newest = tx.newest_run_at(std::slice::from_ref(&target)).await?;
        let created_at = self.now.max(newest + Timestamp::TICK);
        let mut spec = RunSpec {
            id: self.id.clone(),
            request_id: self.request_id.clone(),
            initiator: self.by.clone(),
            parent: Some(self.parent.clone()),
            again: Some(self.how),
            part_of: None,
            engine: ENGINE_VERSION,
            created_at,
            ..parent.spec
        };
        // Nobody is taken down by an earlier force.
        spec.params.remove(FORCED);
        let run = Run { spec, progress, version: 1 };
        may_go_on_alone(tx, &run).await?;
        let message = format!("{} accepted", run.spec.run_type.as_str());
        let event = event(Cause::Request, &self.by, message, here!(), created_at);
        hold(tx, &run, None, &event).await?;
        tx.insert_run(&run, Birth::Due, &event)?;
        Ok(Started { run, new: true })
    }
}

/// Whether a run on a device, or a part without its whole, may go on: machines may have come into service since it was accepted, and
/// what it acts on may have fallen ill.
pub(crate) async fn may_go_on_alone(tx: &mut Tx, run: &Run) -> Result<()> {
    let target = &run.spec.target;
    let forced = forced_by(tx, run).await?;
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
    if let Some(health) = health {
        health.permit(target, &what, Wish::Change, forced.as_deref())?;
    }
    shelves::may_go_on(tx, run).await?;
    let Some(id) = target.machine() else { return Ok(()) };
    let fate = match switches_power(run) {
        Some(PowerTo::Off) => Fate::LosePower,
        None if run.spec.run_type == RunType::Firmware => Fate::Restart,
        Some(PowerTo::On) | None => return Ok(()),
    };
    let Some(machine) = tx.machine(&id).await? else { return Err(no_machine(&id).into()) };
    let serves = tx.serving(&id).await?;
    let dark = Dark::of(&machine, serves.as_ref());
    let missed = permit(&what, fate, &[dark], forced.as_deref());
    Ok(missed.map_err(|refusal| refusal.next(format!("farrier enter-maintenance {id}")))?)
}

/// Why a run was let through by force; a part was with its whole.
pub(crate) async fn forced_by(tx: &mut Tx, run: &Run) -> Result<Option<String>> {
    if let Some(own) = run.spec.params.get(FORCED) {
        return Ok(Some(own.clone()));
    }
    let Some(whole) = &run.spec.part_of else { return Ok(None) };
    let whole = tx.run(whole).await?;
    Ok(whole.and_then(|whole| whole.spec.params.get(FORCED).cloned()))
}

/// The run that is waited for, or the one that does it anew.
pub(crate) async fn latest_of(tx: &mut Tx, target: &TargetId, id: &RunId) -> Result<Option<Run>> {
    let Some(run) = tx.run(id).await? else { return Ok(None) };
    if !run.ended() {
        return Ok(Some(run));
    }
    let latest = tx.latest_runs(target, MAX_BACK).await?;
    let anew = latest.into_iter().find(|one| one.spec.parent.as_ref() == Some(id));
    Ok(anew.or(Some(run)))
}
