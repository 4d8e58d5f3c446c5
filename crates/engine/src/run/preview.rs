//! Previews of runs, for dry runs: what a run would do after a request.

use super::Runs;
use crate::fan_out::child_runs;
use model::effect::{CallVerb, Effect, ProviderCall};
use model::gate::{Gate, Overrides, gates_of};
use model::machine::admit::RunCase;
use model::machine::{DiskReport, DiskWrite};
use model::run::{
    AfterCommit, CallResult, RemainingStep, Run, RunSpec, StepPhase, decide, describe_stop,
    remaining_steps,
};
use model::why::{UsualDuration, named_duration_key};
use std::time::Duration;
use store::{Result, Tx};

/// A dry run of a stop does not wait longer for the provider's word on the disk.
const DISK_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// What a run would do.
#[derive(Debug, Clone)]
pub struct RunPreview {
    pub steps: Vec<PreviewedStep>,
    /// Sentences about the effect in progress and the adopted steps: how the request ends each.
    pub notes: Vec<String>,
    /// Why the run would fail at once.
    pub would_fail: Option<String>,
}

/// A step that would be executed, and the time that it usually takes on this hardware model.
#[derive(Debug, Clone)]
pub struct PreviewedStep {
    pub left: RemainingStep,
    pub usual: Option<UsualDuration>,
}

impl Runs {
    /// Previews a run as a dry run of a request has left it. A run that would adopt what holds asks
    /// the device, as the run would.
    pub async fn preview(&self, run: &Run) -> Result<RunPreview> {
        let after = self.observe_goals(run).await;
        let ended = after.progress.failure.as_ref().filter(|_| after.ended() && !run.ended());
        let would_fail = ended.map(|failure| failure.fault.message.clone());
        let adopted = match would_fail {
            Some(_) => Vec::new(),
            None => describe_adoption(run, &after),
        };
        let input = (after.clone(), self.read_disk(&after).await);
        let loaded = self
            .0
            .store()
            .read(input, |(run, report), tx| Box::pin(load_preview(tx, run, *report)));
        let mut preview = loaded.await?;
        preview.notes.extend(adopted);
        Ok(RunPreview { would_fail, ..preview })
    }

    /// The run after the calls that only observe whether the goals of its steps hold.
    async fn observe_goals(&self, run: &Run) -> Run {
        let (policy, now) = (self.0.policy(), self.0.now());
        let (mut after, mut given) = (run.clone(), None);
        // The scan observes each step once at most.
        for _ in 0..=run.progress.steps.len() {
            let observes = |run: &Run| {
                run.progress.current().is_some_and(|step| step.next_verb == CallVerb::Observe)
            };
            if given.is_none() && (after.ended() || !observes(&after)) {
                return after;
            }
            let decision = decide(&after, 0, given.as_ref(), policy, now);
            after = decision.run;
            match decision.then {
                AfterCommit::CallProvider(call, limit) if call.verb == CallVerb::Observe => {
                    let (answer, _) = self.0.observe(&after, &call, limit).await;
                    given = Some(CallResult::Answered(call.verb, answer));
                }
                AfterCommit::CallProvider(..) | AfterCommit::IdleUntil(_) | AfterCommit::Idle => {
                    return after;
                }
            }
        }
        after
    }

    /// How much of the disk is written, if a run that would stop writes it and the provider knows.
    async fn read_disk(&self, run: &Run) -> Option<DiskReport> {
        DiskWrite::of(run).filter(|_| stops(run))?;
        let step = run.progress.current()?;
        let (key, effect) = (run.key(step), run.effect(step)?);
        let call = ProviderCall { key, verb: CallVerb::GetStatus, effect, log_offset_bytes: 0 };
        self.0.observe(run, &call, DISK_READ_TIMEOUT).await.1
    }
}

/// A stop is requested, and no undo step has begun.
fn stops(run: &Run) -> bool {
    run.progress.stop_request.as_ref().is_some_and(|stop| !stop.undoing)
}

/// The steps that would be adopted, and the one of which that is not known now.
fn describe_adoption(before: &Run, after: &Run) -> Vec<String> {
    let steps = before.progress.steps.iter().zip(&after.progress.steps);
    let adopted = steps.filter(|(before, after)| {
        before.state != StepPhase::Succeeded && after.state == StepPhase::Succeeded
    });
    let mut notes: Vec<String> = adopted
        .map(|(_, step)| format!("{} would be {}", after.step_name(step), step.message))
        .collect();
    let asks = after.progress.current().filter(|step| step.next_verb == CallVerb::Observe);
    if let Some(step) = asks.filter(|_| !after.ended()) {
        let name = after.step_name(step);
        notes.push(format!("whether {name} holds cannot be read now: {}", step.message));
    }
    notes
}

async fn load_preview(tx: &mut Tx, run: &Run, report: Option<DiskReport>) -> Result<RunPreview> {
    let left = remaining_steps(run);
    let keys: Vec<String> =
        left.iter().map(|one| named_duration_key(run, &one.step.name)).collect();
    let model = match run.spec.target.machine() {
        Some(id) => tx.hardware_model(&id).await?,
        None => String::new(),
    };
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut recorded = tx.step_durations(&names).await?;
    let steps = left.into_iter().zip(keys).map(|(left, key)| {
        let durations = recorded.remove(&(key, model.clone())).unwrap_or_default();
        PreviewedStep { left, usual: UsualDuration::of(durations, &model) }
    });
    let steps = steps.collect();
    let mut notes = describe_overrides(tx, run).await?;
    if stops(run) {
        notes.extend(describe_stops(tx, run, report).await?);
    }
    Ok(RunPreview { steps, notes, would_fail: None })
}

/// The gates that the override of a run on a machine passes.
async fn describe_overrides(tx: &mut Tx, run: &Run) -> Result<Vec<String>> {
    let overrides = Overrides::of_params(&run.spec.params);
    let Some(id) = run.spec.target.machine().filter(|_| !overrides.is_empty()) else {
        return Ok(Vec::new());
    };
    let Some(machine) = tx.machine(&id).await? else { return Ok(Vec::new()) };
    let node = tx.node_in_service(&id).await?;
    let RunSpec { run_type, steps, .. } = &run.spec;
    let case = RunCase { machine: &machine, node: node.as_ref(), run_type: *run_type, steps };
    let refusing = gates_of(&case.refusals(&Overrides::default()));
    let note = |gate: Gate| match refusing.contains(&gate) {
        true => format!("gate {gate} refuses it, and the override would pass it"),
        false => format!("gate {gate} is named by the override, and does not refuse it"),
    };
    Ok(overrides.gates().map(note).collect())
}

/// What a stop does to the effects in progress: that of the run, and those of its child runs.
/// `report` is the provider's word on the disk that the run writes.
async fn describe_stops(tx: &mut Tx, run: &Run, report: Option<DiskReport>) -> Result<Vec<String>> {
    let mut notes: Vec<String> = describe_stop(run, report).into_iter().collect();
    let Some(step) = run.progress.current() else { return Ok(notes) };
    if let Some(group) = run.effect(step).as_ref().and_then(Effect::group) {
        for child in child_runs(tx, &run.key(step), group).await?.into_values() {
            notes.extend(describe_stop(&child, None));
        }
    }
    Ok(notes)
}
