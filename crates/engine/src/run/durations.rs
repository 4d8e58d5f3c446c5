//! The recorded durations of steps, for the time that a dry run shows.

use model::id::PlanId;
use model::lifecycle::lifecycle_plan_id;
use model::plan::RunStep;
use model::run::{PreviewedStep, Run, remaining_steps, usual_of_group};
use model::target::TargetId;
use model::why::{UsualDuration, named_duration_key};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{Result, Tx};

/// The durations of some steps, and the hardware models of the machines that they run on.
pub(crate) struct RecordedDurations {
    recorded: BTreeMap<(String, String), Vec<Duration>>,
    models: BTreeMap<String, String>,
}

impl RecordedDurations {
    /// Reads the durations of steps: each with its target, its plan and its name.
    pub async fn load<'a>(
        tx: &mut Tx,
        steps: impl IntoIterator<Item = (&'a TargetId, PlanId, &'a str)>,
    ) -> Result<Self> {
        let (mut keys, mut machines) = (BTreeSet::new(), BTreeSet::new());
        for (target, plan, step) in steps {
            keys.insert(named_duration_key(&plan, step));
            machines.extend(target.machine().map(|id| id.to_string()));
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let machines: Vec<&str> = machines.iter().map(String::as_str).collect();
        let found = tx.hardware_of(&machines).await?.into_iter();
        let models = found.map(|(id, found)| (id.to_string(), found.summary.model)).collect();
        Ok(Self { recorded: tx.step_durations(&keys).await?, models })
    }

    /// None: too few durations are recorded.
    pub fn usual(&self, target: &TargetId, plan: &PlanId, step: &str) -> Option<UsualDuration> {
        let model = target.machine().and_then(|id| self.models.get(id.as_str()));
        let model = model.cloned().unwrap_or_default();
        let key = (named_duration_key(plan, step), model);
        UsualDuration::of(self.recorded.get(&key).cloned().unwrap_or_default(), &key.1)
    }
}

/// The steps that a run would still execute, with the time of each. A step that starts child runs
/// takes as long as these take beside each other.
pub(crate) async fn previewed_steps(tx: &mut Tx, run: &Run) -> Result<Vec<PreviewedStep>> {
    let left = remaining_steps(run);
    let (own, plan) = (&run.spec.target, &run.spec.plan_id);
    let mut steps = Vec::new();
    for one in &left {
        match one.step.effect.group() {
            None => steps.push((own, plan.clone(), one.step.name.as_str())),
            Some(group) => steps.extend(group.child_runs.iter().flat_map(|child| {
                let plan = lifecycle_plan_id(child.run_type);
                let named = child.steps.iter().map(|step| step.name.as_str());
                named.map(move |step| (&child.target, plan.clone(), step))
            })),
        }
    }
    let recorded = RecordedDurations::load(tx, steps).await?;
    let usual = |step: &RunStep| match step.effect.group() {
        None => recorded.usual(own, plan, &step.name),
        Some(group) => usual_of_group(group, |child, step| {
            recorded.usual(&child.target, &lifecycle_plan_id(child.run_type), &step.name)
        }),
    };
    Ok(left.into_iter().map(|left| PreviewedStep { usual: usual(&left.step), left }).collect())
}
