//! Reads the last signs of life of the peers that a run waits for.

use crate::fan_out::child_runs;
use model::effect::Effect;
use model::id::MachineId;
use model::node::Node;
use model::run::{Run, StepState};
use model::why::{
    AgentContact, ChildProgress, LastLine, PeerContacts, UsualDuration, duration_key,
};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{DeploymentLookup, Result, Tx};

/// The most characters of a log line that an explanation shows.
const MAX_LINE: usize = 240;

/// `silence` is the time without a heartbeat after which the lease of an agent is over.
pub(crate) async fn peer_contacts(
    tx: &mut Tx,
    run: Option<&Run>,
    node: Option<&Node>,
    silence: Duration,
) -> Result<PeerContacts> {
    let mut contacts = PeerContacts::default();
    if let Some(node) = node {
        contacts.agent = Some(agent_contact(tx, node, silence).await?);
    }
    let Some(run) = run.filter(|run| !run.ended()) else { return Ok(contacts) };
    contacts.replica = tx.replica_contact(&run.spec.id).await?;
    let Some(step) = run.progress.current() else { return Ok(contacts) };
    let effect = run.effect(step);
    if let Some(Effect::Repave { .. }) = &effect {
        let found = tx.deployment(&DeploymentLookup::Key(run.key(step))).await?;
        contacts.deployment = found.map(|row| Box::new(row.deployment));
    }
    if let Some(group) = effect.as_ref().and_then(Effect::group) {
        let children = child_runs(tx, &run.key(step), group).await?;
        contacts.children = children.values().filter_map(child_progress).collect();
    }
    contacts.last_line = last_line(tx, run, step).await?;
    contacts.usual = usual_durations(tx, &[run]).await?.pop().flatten();
    Ok(contacts)
}

/// The last sign of life of a node's agent.
pub(super) async fn agent_contact(
    tx: &mut Tx,
    node: &Node,
    silence: Duration,
) -> Result<AgentContact> {
    let heartbeat_at = tx.last_heartbeat(&node.id()).await?.at;
    let revoked_at = node.agent.as_ref().and_then(|agent| agent.session_revoked_at);
    Ok(AgentContact { heartbeat_at, silence, revoked_at })
}

fn child_progress(child: &Run) -> Option<ChildProgress> {
    let step = child.progress.current().filter(|_| !child.ended())?;
    let since = child.progress.started_at.unwrap_or(child.spec.created_at);
    let (target, run) = (child.spec.target.clone(), child.spec.id.clone());
    Some(ChildProgress { target, run, step: child.step_name(step), since })
}

async fn last_line(tx: &mut Tx, run: &Run, step: &StepState) -> Result<Option<LastLine>> {
    let line = tx.last_log_line(&run.spec.id, &run.step_name(step)).await?;
    Ok(line.and_then(|line| {
        let text = String::from_utf8_lossy(&line.data);
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(LastLine { at: line.ts, text: last.trim().chars().take(MAX_LINE).collect() })
    }))
}

/// The usual duration of the current step of each run, in the order of the runs.
pub(crate) async fn usual_durations(
    tx: &mut Tx,
    runs: &[&Run],
) -> Result<Vec<Option<UsualDuration>>> {
    let key = |run: &Run| run.progress.current().map(|step| duration_key(run, step));
    let keys: Vec<Option<String>> = runs.iter().map(|run| key(run)).collect();
    let mut steps: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
    steps.sort_unstable();
    steps.dedup();
    let recorded = tx.step_durations(&steps).await?;
    if recorded.is_empty() {
        return Ok(vec![None; runs.len()]);
    }
    let machines: Vec<MachineId> =
        runs.iter().filter_map(|run| run.spec.target.machine()).collect();
    let ids: Vec<&str> = machines.iter().map(|id| id.as_str()).collect();
    let hardware = tx.hardware_of(&ids).await?;
    let mut known: BTreeMap<(String, String), Option<UsualDuration>> = BTreeMap::new();
    Ok(runs
        .iter()
        .zip(keys)
        .map(|(run, key)| {
            let found = run.spec.target.machine().and_then(|id| hardware.get(&id));
            let model = found.map(|found| found.summary.model.clone()).unwrap_or_default();
            let key = (key?, model);
            let usual = known.entry(key).or_insert_with_key(|key| {
                UsualDuration::of(recorded.get(key).cloned().unwrap_or_default(), &key.1)
            });
            usual.clone()
        })
        .collect())
}
