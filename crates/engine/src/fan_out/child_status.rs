//! The statuses of the children of a group, their outcome, and its text.

use model::effect::{CallOutcome, ChildRunGroup, ChildRunSpec, EffectKey};
use model::fault::{Fault, FaultCode};
use model::id::RunId;
use model::lifecycle::{AwaitedRunStatus, awaited_run_status};
use model::list_format::join_limited;
use model::run::Run;
use model::target::TargetId;
use providers::Journal;
use std::collections::BTreeMap;
use store::{Result, Tx};

/// The most devices named in a message; the others are counted.
const MAX_NAMED: usize = 4;

/// The status of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChildStatus {
    NotBegun,
    Going(RunId),
    Done(String),
    /// `run` is the child that failed, or the run that holds its device.
    Failed {
        run: RunId,
        message: String,
    },
}

pub(super) type ChildStatuses = Vec<(ChildRunSpec, ChildStatus)>;

/// The statuses already written to the log.
#[derive(Default)]
pub(super) struct LoggedStatuses(BTreeMap<TargetId, ChildStatus>);

impl LoggedStatuses {
    /// Logs the statuses that have changed since the last call.
    pub async fn log_changes(&mut self, parts: &ChildStatuses, journal: &Journal) {
        for (part, status) in parts {
            let device = &part.target;
            if self.0.get(device) == Some(status) {
                continue;
            }
            match status {
                ChildStatus::NotBegun => {}
                ChildStatus::Going(run) => {
                    journal.write_line(format!("{device}: {run} begun")).await
                }
                ChildStatus::Done(text) => journal.write_line(format!("{device}: {text}")).await,
                ChildStatus::Failed { run, message: text } => {
                    journal.write_line(format!("{device}: {run} failed: {text}")).await;
                }
            }
            self.0.insert(device.clone(), status.clone());
        }
    }
}

/// The number of children that may be started now: none after a failure.
pub(super) fn to_begin(parts: &ChildStatuses, group: &ChildRunGroup) -> usize {
    let count =
        |desired: fn(&ChildStatus) -> bool| parts.iter().filter(|(_, one)| desired(one)).count();
    if count(|one| matches!(one, ChildStatus::Failed { .. })) > 0 {
        return 0;
    }
    let going = count(|one| matches!(one, ChildStatus::Going(_)));
    let room = (group.max_concurrent.max(1) as usize).saturating_sub(going);
    count(|one| *one == ChildStatus::NotBegun).min(room)
}

/// The outcome once every child is done.
pub(super) fn all_done(parts: &ChildStatuses) -> Option<CallOutcome> {
    let done = |(_, status): &(ChildRunSpec, ChildStatus)| match status {
        ChildStatus::Done(text) => Some(text.clone()),
        ChildStatus::NotBegun | ChildStatus::Going(_) | ChildStatus::Failed { .. } => None,
    };
    let text: Vec<String> = parts.iter().map(done).collect::<Option<_>>()?;
    let already = text.iter().filter(|one| one.contains("already")).count();
    let how = match already {
        0 => String::new(),
        count => format!(", {count} of them already were as wanted"),
    };
    Some(CallOutcome {
        message: format!("{} done{how}", counted(parts.len())),
        ..CallOutcome::default()
    })
}

/// The fault: which devices failed and why, and how many were not started.
pub(super) fn failure(parts: &ChildStatuses) -> Option<Fault> {
    let failed: Vec<String> = parts
        .iter()
        .filter_map(|(part, status)| match status {
            ChildStatus::Failed { run, message: text } => {
                Some(format!("{} ({run}): {text}", part.target))
            }
            ChildStatus::NotBegun | ChildStatus::Going(_) | ChildStatus::Done(_) => None,
        })
        .collect();
    let left = parts.iter().filter(|(_, one)| *one == ChildStatus::NotBegun).count();
    let done = parts.iter().filter(|(_, one)| matches!(one, ChildStatus::Done(_))).count();
    let rest = match left {
        0 => String::new(),
        left => format!("; {} left alone", counted(left)),
    };
    let first = parts.iter().find_map(|(_, status)| match status {
        ChildStatus::Failed { run, .. } => Some(run.clone()),
        ChildStatus::NotBegun | ChildStatus::Going(_) | ChildStatus::Done(_) => None,
    });
    (!failed.is_empty()).then(|| {
        let text = format!("{}; {} done{rest}", some_of(&failed), counted(done));
        Fault::new(FaultCode::PartFailed, text).with(|facts| facts.operation = first)
    })
}

pub(super) fn some_of(all: &[String]) -> String {
    join_limited(all, "; ", MAX_NAMED)
}

pub(super) fn counted(count: usize) -> String {
    if count == 1 { "1 device".into() } else { format!("{count} devices") }
}

/// The statuses of the children: the newest run of each, whichever attempt started it. A failure
/// under an earlier attempt counts as not started, so this attempt starts it again.
pub(super) async fn read_child_statuses(
    tx: &mut Tx,
    key: &EffectKey,
    group: &ChildRunGroup,
) -> Result<ChildStatuses> {
    let mut known: BTreeMap<TargetId, ChildStatus> = BTreeMap::new();
    for (target, run) in child_runs(tx, key, group).await? {
        let status = status_of_run(&run);
        let stale = run.spec.request_id != key.as_str();
        if !(stale && matches!(status, ChildStatus::Failed { .. })) {
            known.insert(target, status);
        }
    }
    let of = |part: &ChildRunSpec| known.remove(&part.target).unwrap_or(ChildStatus::NotBegun);
    let standings = group.child_runs.iter().map(of).collect::<Vec<_>>();
    Ok(group.child_runs.iter().cloned().zip(standings).collect())
}

/// The newest run of each child by its target, whichever attempt started it.
pub(crate) async fn child_runs(
    tx: &mut Tx,
    key: &EffectKey,
    group: &ChildRunGroup,
) -> Result<BTreeMap<TargetId, Run>> {
    let targets: Vec<TargetId> = group.child_runs.iter().map(|part| part.target.clone()).collect();
    let mut known: BTreeMap<TargetId, Run> = BTreeMap::new();
    for key in key.attempts() {
        for run in tx.runs_of_request(&targets, key.as_str()).await? {
            known.entry(run.spec.target.clone()).or_insert(run);
        }
    }
    Ok(known)
}

/// The child run that caused the failure of a parent.
pub(crate) async fn failed_child(tx: &mut Tx, parent: &Run) -> Result<Option<Run>> {
    if parent.progress.failure.is_none() {
        return Ok(None);
    }
    let state = parent.progress.steps.get(parent.progress.step_index);
    let step = state.and_then(|state| Some((state, parent.plan_step(state)?)));
    let Some((state, step)) = step else { return Ok(None) };
    let Some(group) = step.effect.group() else { return Ok(None) };
    let mut known = child_runs(tx, &parent.key(state), group).await?;
    let failed = |run: &Run| matches!(status_of_run(run), ChildStatus::Failed { .. });
    let mut targets = group.child_runs.iter().map(|part| &part.target);
    let first = targets.find(|target| known.get(*target).is_some_and(failed));
    Ok(first.and_then(|target| known.remove(target)))
}

/// True if children of a stopped or failed parent are still active. Any other parent has waited for
/// all of them.
pub(crate) async fn has_active_children(tx: &mut Tx, parent: &Run) -> Result<bool> {
    if parent.progress.stop_request.is_none() && parent.progress.failure.is_none() {
        return Ok(false);
    }
    for id in tx.active_runs_on(&parent.spec.held_targets).await?.into_values() {
        if let Some(part) = tx.run(&id).await?
            && part.spec.parent_run.as_ref() == Some(&parent.spec.id)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn status_of_run(run: &Run) -> ChildStatus {
    match awaited_run_status(run) {
        AwaitedRunStatus::Active => ChildStatus::Going(run.spec.id.clone()),
        AwaitedRunStatus::Succeeded => {
            let last = run.progress.steps.iter().rev().find(|step| !step.undo);
            ChildStatus::Done(last.map(|step| step.message.clone()).unwrap_or_default())
        }
        AwaitedRunStatus::Failed(failure) => {
            ChildStatus::Failed { run: run.spec.id.clone(), message: failure.message }
        }
    }
}
