//! The statuses of the children of a group, their outcome, and its text.

use model::effect::{Group, Key, Outcome, Part};
use model::fault::{Code, Fault};
use model::id::RunId;
use model::lifecycle::{Waited, waited};
use model::run::Run;
use model::say::few;
use model::target::TargetId;
use providers::Journal;
use std::collections::BTreeMap;
use store::{Result, Tx};

/// The most devices named in a message; the others are counted.
const MAX_NAMED: usize = 4;

/// The status of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    NotBegun,
    Going(RunId),
    Done(String),
    /// `run` is the child that failed, or the run that holds its device.
    Failed {
        run: RunId,
        said: String,
    },
}

pub(super) type Standings = Vec<(Part, Standing)>;

/// The statuses already written to the log.
#[derive(Default)]
pub(super) struct Told(BTreeMap<TargetId, Standing>);

impl Told {
    /// Logs the statuses that have changed since the last call.
    pub async fn tell(&mut self, parts: &Standings, journal: &Journal) {
        for (part, standing) in parts {
            let device = &part.target;
            if self.0.get(device) == Some(standing) {
                continue;
            }
            match standing {
                Standing::NotBegun => {}
                Standing::Going(run) => journal.line(format!("{device}: {run} begun")).await,
                Standing::Done(said) => journal.line(format!("{device}: {said}")).await,
                Standing::Failed { run, said } => {
                    journal.line(format!("{device}: {run} failed: {said}")).await;
                }
            }
            self.0.insert(device.clone(), standing.clone());
        }
    }
}

/// The number of children that may be started now: none after a failure.
pub(super) fn to_begin(parts: &Standings, group: &Group) -> usize {
    let count = |wanted: fn(&Standing) -> bool| parts.iter().filter(|(_, one)| wanted(one)).count();
    if count(|one| matches!(one, Standing::Failed { .. })) > 0 {
        return 0;
    }
    let going = count(|one| matches!(one, Standing::Going(_)));
    let room = (group.at_once.max(1) as usize).saturating_sub(going);
    count(|one| *one == Standing::NotBegun).min(room)
}

/// The outcome once every child is done.
pub(super) fn all_done(parts: &Standings) -> Option<Outcome> {
    let done = |(_, standing): &(Part, Standing)| match standing {
        Standing::Done(said) => Some(said.clone()),
        Standing::NotBegun | Standing::Going(_) | Standing::Failed { .. } => None,
    };
    let said: Vec<String> = parts.iter().map(done).collect::<Option<_>>()?;
    let already = said.iter().filter(|one| one.contains("already")).count();
    let how = match already {
        0 => String::new(),
        count => format!(", {count} of them already were as wanted"),
    };
    Some(Outcome { said: format!("{} done{how}", counted(parts.len())), ..Outcome::default() })
}

/// The fault: which devices failed and why, and how many were not started.
pub(super) fn failure(parts: &Standings) -> Option<Fault> {
    let failed: Vec<String> = parts
        .iter()
        .filter_map(|(part, standing)| match standing {
            Standing::Failed { run, said } => Some(format!("{} ({run}): {said}", part.target)),
            Standing::NotBegun | Standing::Going(_) | Standing::Done(_) => None,
        })
        .collect();
    let left = parts.iter().filter(|(_, one)| *one == Standing::NotBegun).count();
    let done = parts.iter().filter(|(_, one)| matches!(one, Standing::Done(_))).count();
    let rest = match left {
        0 => String::new(),
        left => format!("; {} left alone", counted(left)),
    };
    (!failed.is_empty()).then(|| {
        let said = format!("{}; {} done{rest}", some_of(&failed), counted(done));
        Fault::new(Code::PartFailed, said)
    })
}

pub(super) fn some_of(all: &[String]) -> String {
    few(all, "; ", MAX_NAMED)
}

pub(super) fn counted(count: usize) -> String {
    if count == 1 { "1 device".into() } else { format!("{count} devices") }
}

/// The statuses of the children: the newest run of each, whichever attempt started it. A failure
/// under an earlier attempt counts as not started, so this attempt starts it again.
pub(super) async fn read_parts(tx: &mut Tx, key: &Key, group: &Group) -> Result<Standings> {
    let mut known: BTreeMap<TargetId, Standing> = BTreeMap::new();
    for (target, run) in part_runs(tx, key, group).await? {
        let standing = standing(&run);
        let stale = run.spec.request_id != key.as_str();
        if !(stale && matches!(standing, Standing::Failed { .. })) {
            known.insert(target, standing);
        }
    }
    let of = |part: &Part| known.remove(&part.target).unwrap_or(Standing::NotBegun);
    let standings = group.parts.iter().map(of).collect::<Vec<_>>();
    Ok(group.parts.iter().cloned().zip(standings).collect())
}

/// The newest run of each child by its target, whichever attempt started it.
pub(crate) async fn part_runs(
    tx: &mut Tx,
    key: &Key,
    group: &Group,
) -> Result<BTreeMap<TargetId, Run>> {
    let targets: Vec<TargetId> = group.parts.iter().map(|part| part.target.clone()).collect();
    let mut known: BTreeMap<TargetId, Run> = BTreeMap::new();
    for key in key.attempts() {
        for run in tx.runs_of_request(&targets, key.as_str()).await? {
            known.entry(run.spec.target.clone()).or_insert(run);
        }
    }
    Ok(known)
}

/// The child run that caused the failure of a parent.
pub(crate) async fn failed_part(tx: &mut Tx, parent: &Run) -> Result<Option<Run>> {
    if parent.progress.failure.is_none() {
        return Ok(None);
    }
    let state = parent.progress.steps.get(parent.progress.at);
    let step = state.and_then(|state| Some((state, parent.plan_step(state)?)));
    let Some((state, step)) = step else { return Ok(None) };
    let Some(group) = step.effect.group() else { return Ok(None) };
    let mut known = part_runs(tx, &parent.key(state), group).await?;
    let failed = |run: &Run| matches!(standing(run), Standing::Failed { .. });
    let mut targets = group.parts.iter().map(|part| &part.target);
    let first = targets.find(|target| known.get(*target).is_some_and(failed));
    Ok(first.and_then(|target| known.remove(target)))
}

/// Whether children of a stopped or failed parent are still active. Any other parent has waited for
/// all of them.
pub(crate) async fn has_parts_at_work(tx: &mut Tx, parent: &Run) -> Result<bool> {
    if parent.progress.halt.is_none() && parent.progress.failure.is_none() {
        return Ok(false);
    }
    for id in tx.active_runs_on(&parent.spec.claims).await?.into_values() {
        if let Some(part) = tx.run(&id).await?
            && part.spec.part_of.as_ref() == Some(&parent.spec.id)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn standing(run: &Run) -> Standing {
    match waited(run) {
        Waited::Going => Standing::Going(run.spec.id.clone()),
        Waited::Done => {
            let last = run.progress.steps.iter().rev().find(|step| !step.undo);
            Standing::Done(last.map(|step| step.message.clone()).unwrap_or_default())
        }
        Waited::Failed(trouble) => {
            Standing::Failed { run: run.spec.id.clone(), said: trouble.said }
        }
    }
}
