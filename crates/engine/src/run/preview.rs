//! Previews of runs, for dry runs: what a run would do after a request.

use super::Runs;
use super::durations::previewed_steps;
use crate::admission::{approval_sentence, foresee_budgets, may_continue_alone, overrides_of};
use crate::fan_out::child_runs;
use crate::node::gates_of_node_run;
use crate::rack::{load_device_power, load_refusing_gates};
use model::effect::{CallVerb, ProviderCall};
use model::gate::{Gate, Overrides, gates_of};
use model::machine::admit::RunCase;
use model::machine::{DiskReport, DiskWrite, MachineProblem, NetworkBoot};
use model::plan::{RunType, boot_from_disk_plan};
use model::rack::describe_left_off;
use model::run::{
    AfterCommit, CallResult, PreviewedStep, Run, RunSpec, StepPhase, decide, describe_inquiry,
    describe_stop,
};
use model::target::TargetKind;
use model::time::Timestamp;
use model::why::install_command;
use std::time::Duration;
use store::{Result, Tx};

/// A dry run of a stop does not wait longer for the provider's word on the disk.
const DISK_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The steps that a run would execute, and notes about it.
#[derive(Debug, Clone)]
pub struct RunPreview {
    pub steps: Vec<PreviewedStep>,
    /// Sentences about the gates that are passed, the effect in progress and the adopted steps.
    pub notes: Vec<String>,
    /// The reason why the run would fail at once.
    pub would_fail: Option<String>,
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
        let input = (after.clone(), self.read_disk(&after).await, self.0.now());
        let loaded = self
            .0
            .store()
            .read(input, |(run, report, now), tx| Box::pin(load_preview(tx, run, *report, *now)));
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

    /// The part of the disk that is written, if a run that would stop writes it and the provider
    /// knows.
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

async fn load_preview(
    tx: &mut Tx,
    run: &Run,
    report: Option<DiskReport>,
    now: Timestamp,
) -> Result<RunPreview> {
    let steps = previewed_steps(tx, run).await?;
    let mut notes = describe_machine(tx, run).await?;
    match stops(run) {
        true => notes.extend(describe_stops(tx, run, report).await?),
        // A stop passes no gate.
        false => {
            notes.extend(describe_overrides(tx, run, now).await?);
            // A run that exists continues under the approval that it started with.
            if tx.run(&run.spec.id).await?.is_none() {
                let overrides = Overrides::of_params(&run.spec.params);
                notes.extend(foresee_budgets(tx, run, &overrides, now).await?.0);
                notes.extend(approval_sentence(tx, run.spec.permissions(), &overrides).await?);
            }
        }
    }
    notes.extend(describe_inquiry(run));
    Ok(RunPreview { steps, notes, would_fail: None })
}

/// Warnings about a machine that would boot or leave maintenance: a boot from the network that is
/// armed, and that it would go back into service without a system.
async fn describe_machine(tx: &mut Tx, run: &Run) -> Result<Vec<String>> {
    let RunSpec { run_type, plan_id, .. } = &run.spec;
    let leaves = *run_type == RunType::ExitMaintenance;
    let boots = matches!(run_type, RunType::Reboot | RunType::Power);
    let matters = (leaves || boots) && *plan_id != boot_from_disk_plan().id;
    let Some(id) = run.spec.target.machine().filter(|_| matters) else { return Ok(Vec::new()) };
    let Some(machine) = tx.machine(&id).await? else { return Ok(Vec::new()) };
    let boot = machine.network_boot.as_ref();
    let boot =
        boot.map(|boot| format!("{}; {}", boot.describe(), NetworkBoot::disarm_command(&id)));
    let removed = machine.removed_system().filter(|_| leaves).map(|known| {
        let what = MachineProblem::NoSystem(known).describe();
        format!("{what}; {}", install_command(&id, None))
    });
    Ok(removed.into_iter().chain(boot).collect())
}

/// The gates that the override of a run names, and whether each refuses it.
async fn describe_overrides(tx: &mut Tx, run: &Run, now: Timestamp) -> Result<Vec<String>> {
    let overrides = overrides_of(tx, run).await?;
    match overrides.is_empty() {
        true => Ok(Vec::new()),
        false => Ok(overrides.describe(&refusing_gates(tx, run, now).await?)),
    }
}

/// The gates that refuse a run without its override.
async fn refusing_gates(tx: &mut Tx, run: &Run, now: Timestamp) -> Result<Vec<Gate>> {
    if let Some(id) = run.spec.target.rack() {
        return load_refusing_gates(tx, &id, run).await;
    }
    let Some(id) = run.spec.target.machine().filter(|_| run.spec.parent_run.is_none()) else {
        return may_continue_alone(tx, run, now).await;
    };
    let Some(machine) = tx.machine(&id).await? else { return Ok(Vec::new()) };
    if run.works_on_node() {
        return Ok(gates_of_node_run(&machine, run));
    }
    let node = tx.node_in_service(&id).await?;
    let RunSpec { run_type, steps, .. } = &run.spec;
    let case = RunCase { machine: &machine, node: node.as_ref(), run_type: *run_type, steps };
    Ok(gates_of(&case.refusals(&Overrides::default())))
}

/// Describes how a stop ends the effects in progress: that of the run, and those of its child runs.
/// `report` is the provider's word on the disk that the run writes.
async fn describe_stops(tx: &mut Tx, run: &Run, report: Option<DiskReport>) -> Result<Vec<String>> {
    let mut notes: Vec<String> = describe_stop(run, report).into_iter().collect();
    let group = run.progress.current().and_then(|step| Some((step, run.effect(step)?)));
    if let Some((step, group)) = group.as_ref().and_then(|(step, one)| Some((step, one.group()?))) {
        for child in child_runs(tx, &run.key(step), group).await?.into_values() {
            notes.extend(describe_stop(&child, None));
        }
    }
    // Devices that the run has switched off, and has not switched on again, stay off.
    if run.spec.target.kind == TargetKind::Rack && run.progress.started_at.is_some() {
        let power = load_device_power(tx, &run.spec.held_targets).await?;
        notes.extend(describe_left_off(&power));
    }
    Ok(notes)
}
