//! The status of a rack's operations: each step, and each device in it.

use super::no_rack;
use crate::admission::no_run;
use crate::fan_out::child_runs;
use crate::rack::Racks;
use model::id::{RackId, RunId};
use model::rack::Rack;
use model::rack::maintenance::RackStep;
use model::refusal::{Reason, Refusal};
use model::run::{Run, StepState};
use model::target::{TargetId, TargetKind};
use store::{Result, Tx};

/// An operation of a rack.
#[derive(Debug, Clone)]
pub struct MaintenanceStatus {
    pub run: Run,
    pub steps: Vec<RackStepStatus>,
}

#[derive(Debug, Clone)]
pub struct RackStepStatus {
    pub name: String,
    pub step: Option<RackStep>,
    pub state: StepState,
    pub child_runs: Vec<ChildRunStatus>,
}

/// A device in a step; it has no run before its child run has started.
#[derive(Debug, Clone)]
pub struct ChildRunStatus {
    pub target: TargetId,
    pub run: Option<Run>,
}

impl Racks {
    /// The operation with this id.
    pub async fn status(&self, id: &RunId) -> Result<MaintenanceStatus> {
        self.0.store().read(id.clone(), |id, tx| Box::pin(load_status(tx, id))).await
    }

    /// The pending and active operations of a rack, or its last one when there are none.
    pub async fn operations(&self, rack: &RackId) -> Result<Vec<MaintenanceStatus>> {
        self.0.store().read(rack.clone(), |rack, tx| Box::pin(load_rack_statuses(tx, rack))).await
    }
}

async fn load_status(tx: &mut Tx, id: &RunId) -> Result<MaintenanceStatus> {
    let run = tx.run(id).await?.ok_or_else(|| no_run(id))?;
    if run.spec.target.kind != TargetKind::Rack {
        let message = format!("{} acts on {}, not on a rack", id, run.spec.target);
        let refusal = Refusal::new(Reason::NotOnARack, message);
        return Err(refusal.next(format!("farrier operation get {}", id)).into());
    }
    build_status(tx, run).await
}

async fn load_rack_statuses(tx: &mut Tx, id: &RackId) -> Result<Vec<MaintenanceStatus>> {
    let found = tx.record::<Rack>(id.as_str()).await?;
    let rack = found.ok_or_else(|| no_rack(id))?;
    let waiting = rack.maintenance_requested.iter().chain(&rack.reprovision_requested);
    let mut runs = Vec::new();
    for id in rack.active.iter().chain(waiting) {
        runs.extend(tx.run(id).await?);
    }
    if runs.is_empty() {
        runs.extend(tx.latest_run(&rack.target()).await?);
    }
    let mut all = Vec::new();
    for run in runs {
        all.push(build_status(tx, run).await?);
    }
    Ok(all)
}

async fn build_status(tx: &mut Tx, run: Run) -> Result<MaintenanceStatus> {
    let mut rack_steps = Vec::new();
    for state in &run.progress.steps {
        let Some(step) = run.plan_step(state) else { continue };
        let mut parts = Vec::new();
        if let Some(group) = step.effect.group() {
            let mut known = child_runs(tx, &run.key(state), group).await?;
            for part in &group.child_runs {
                let run = known.remove(&part.target);
                parts.push(ChildRunStatus { target: part.target.clone(), run });
            }
        }
        let rack_step = RackStep::parse(&step.name);
        rack_steps.push(RackStepStatus {
            name: run.step_name(state),
            step: rack_step,
            state: state.clone(),
            child_runs: parts,
        });
    }
    Ok(MaintenanceStatus { run, steps: rack_steps })
}
