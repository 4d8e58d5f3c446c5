//! Observes a site: reads all its machines from MAAS in one call, stores changes, and in a
//! reconcile pass acts on drift.
//!
//! Passes are periodic and counted: drift is acted on after two in a row. A probe on request stores
//! the observation only, so that repeated probes cannot quarantine a node. [`model::node::drift`]
//! decides.

use super::watch::{MOVES_AT_ONCE, PAGE, locked, readable};
use crate::admission::event;
use crate::node::Nodes;
use model::here;
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::node::drift::{self, Act, Case};
use model::node::silence::{Flood, Heard, Limits};
use model::node::{Node, NodeState, Owner, Quarantine, Upstream, UpstreamSeen};
use model::run::Run;
use model::run::act::{Action, Who};
use model::site::{Report, Site};
use model::time::Timestamp;
use providers::Sighting;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{Cause, NewEvent, Result, StoreError, Tx};
use tokio::time::{Instant, timeout};

const SITE_PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Store the observation; take no action.
    Only,
    /// Count the pass and act on drift.
    Pass,
}

impl Nodes {
    /// Observes a site now, on an operator's request.
    pub async fn probe_site(&self, id: &SiteId) -> Result<()> {
        self.reconcile(id, Look::Only).await
    }

    pub(super) async fn reconcile(&self, id: &SiteId, look: Look) -> Result<()> {
        let started = Instant::now();
        let site = self.0.sites().get(id).await?;
        let nodes = self.nodes_of(id).await?;
        let seen = match self.observe_site(&site, &nodes).await {
            Ok(seen) => seen,
            Err(said) => return self.report_site(&site, Report::Unreachable(said), true).await,
        };
        self.report_site(&site, Report::Answered(seen.len()), true).await?;
        self.record_heartbeats(&seen).await?;
        self.take_in(&site, nodes, seen, look).await?;
        metrics::histogram!("farrier_reconcile_seconds").record(started.elapsed().as_secs_f64());
        Ok(())
    }

    /// The machines in MAAS, or why it cannot be read.
    async fn observe_site(
        &self,
        site: &Site,
        nodes: &[Node],
    ) -> std::result::Result<Vec<Sighting>, String> {
        let Some(provider) = self.0.providers().get(&site.spec.provider) else {
            return Err(format!("the provider {:?} is not served here", site.spec.provider));
        };
        let named: Vec<(NodeId, MachineId)> =
            nodes.iter().map(|node| (node.id(), node.machine.clone())).collect();
        match timeout(SITE_PATIENCE, provider.observe_site(site, &named)).await {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(fault)) => Err(fault.said),
            Err(_) => {
                Err(format!("its MAAS did not answer in {}", model::time::spoken(SITE_PATIENCE)))
            }
        }
    }

    async fn nodes_of(&self, site: &SiteId) -> Result<Vec<Node>> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let input = (site.clone(), after.clone());
            let page = self
                .0
                .store()
                .scan(input, |(site, after), tx| Box::pin(tx.nodes_at(site, after, PAGE)));
            let page = page.await?;
            let Some((last, _)) = page.last() else { return Ok(all) };
            after = last.to_string();
            all.extend(readable(page));
        }
    }

    /// A provider that has contact with an agent counts as its heartbeat.
    async fn record_heartbeats(&self, seen: &[Sighting]) -> Result<()> {
        let heard: Vec<NodeId> = seen
            .iter()
            .filter(|one| one.heard == Some(true))
            .filter_map(|one| one.node.clone())
            .collect();
        for nodes in heard.chunks(MOVES_AT_ONCE) {
            let input = (nodes.to_vec(), self.0.now());
            let heard =
                self.0.store().retry_write("record_heartbeats", input, |(nodes, now), tx| {
                    Box::pin(hear_all(tx, nodes, *now))
                });
            heard.await?;
        }
        Ok(())
    }

    async fn take_in(
        &self,
        site: &Site,
        nodes: Vec<Node>,
        seen: Vec<Sighting>,
        look: Look,
    ) -> Result<()> {
        let now = self.0.now();
        let limits = self.0.settings().nodes.silence;
        let apart = self.0.settings().nodes.reconcile_interval / 2;
        let heard = self.heard_in(Some(site.id())).await?;
        let healthy: HashMap<&NodeId, bool> =
            heard.iter().map(|one| (&one.node, is_well(one, &limits, now))).collect();
        let by_system: HashMap<&str, &Sighting> =
            seen.iter().map(|one| (one.system_id.as_str(), one)).collect();
        let mut looked: Vec<(&Node, UpstreamSeen)> = nodes
            .iter()
            .filter_map(|node| Some((node, upstream_of(node, &by_system, now)?)))
            .collect();
        let (runs, unreadable) = self.runs_in_question(&looked).await?;
        // Without its run it is unknown whether the node is being worked on.
        looked
            .retain(|(node, _)| !node.workflow.as_ref().is_some_and(|id| unreadable.contains(id)));
        let cases: Vec<Case<'_>> = looked
            .iter()
            .map(|(node, upstream)| Case {
                node,
                seen: upstream,
                run: node.workflow.as_ref().and_then(|id| runs.get(id)),
                healthy: healthy.get(&node.id()).copied().unwrap_or_default(),
                lately: seen_lately(node, upstream, now, apart),
            })
            .collect();
        let flood = drift::flood(&cases, &limits);
        let said = flood.map(|Flood { count, of }| {
            format!(
                "MAAS has {count} of {of} nodes in service otherwise than expected, all at once"
            )
        });
        self.report_site(site, Report::Drift(said), true).await?;
        let changes = cases.iter().filter_map(|case| Change::of(case, look, flood.is_some()));
        self.write_changes(changes.collect(), now).await
    }

    /// The newest runs of the nodes that are not both active and deployed, usually few; and the ids
    /// of those that cannot be read.
    async fn runs_in_question(
        &self,
        looked: &[(&Node, UpstreamSeen)],
    ) -> Result<(HashMap<RunId, Run>, HashSet<RunId>)> {
        let settled = |node: &Node, upstream: &UpstreamSeen| {
            node.state == NodeState::Active && upstream.state == Upstream::Deployed
        };
        let in_question = looked.iter().filter(|(node, seen)| !settled(node, seen));
        let ids: Vec<RunId> = in_question.filter_map(|(node, _)| node.workflow.clone()).collect();
        let (mut runs, mut unreadable) = (HashMap::new(), HashSet::new());
        // Missing runs were deleted by retention.
        for ids in ids.chunks(PAGE) {
            let found = self.0.store().scan(ids.to_vec(), |ids, tx| Box::pin(read_runs(tx, ids)));
            for (id, run) in found.await? {
                match run {
                    Ok(run) => drop(runs.insert(id, run)),
                    Err(error) => {
                        tracing::warn!(run = %id, %error, "reading a run failed; node skipped");
                        unreadable.insert(id);
                    }
                }
            }
        }
        Ok((runs, unreadable))
    }

    async fn write_changes(&self, changes: Vec<Change>, now: Timestamp) -> Result<()> {
        for changes in changes.chunks(MOVES_AT_ONCE) {
            let input = (changes.to_vec(), now);
            // A change decided on an old version is skipped; the next pass decides again.
            let written =
                self.0.store().retry_write("reconcile_nodes", input, |(changes, now), tx| {
                    Box::pin(reconcile(tx, changes, *now))
                });
            let written = written.await?;
            for change in changes.iter().filter(|change| written.contains(&change.id)) {
                if let Err(error) = self.act_on(change).await {
                    tracing::warn!(node = %change.id, %error, "acting on drift failed; retried");
                }
            }
        }
        Ok(())
    }

    /// Acts on the node's run as an operator could, under the same gates.
    async fn act_on(&self, change: &Change) -> Result<()> {
        let (by, reason) = ("reconciler".into(), format!("MAAS has it as {}", change.seen.state));
        match &change.act {
            Act::Adopt(run) => self.try_act(run, Action::Adopt, Who { by, reason }).await,
            Act::MarkManual(run, why) => {
                let who = Who { by, reason: why.clone() };
                self.try_act(run, Action::MarkManual, who).await
            }
            Act::Nothing | Act::Count(_) | Act::Quarantine(_) | Act::Heal => Ok(()),
        }
    }

    /// A refused action is decided again in the next pass.
    async fn try_act(&self, run: &RunId, action: Action, who: Who) -> Result<()> {
        match self.0.runs().act(run.clone(), action, who).await {
            Ok(_) => Ok(()),
            Err(StoreError::Refused(refusal)) => {
                tracing::debug!(%run, %refusal, "an action of the reconciler was refused");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn is_well(one: &Heard, limits: &Limits, now: Timestamp) -> bool {
    one.problems.is_empty() && one.at.is_some_and(|at| now.since(at) <= limits.silence)
}

/// The observed state of a node's machine; none if it was never found in MAAS.
fn upstream_of(
    node: &Node,
    seen: &HashMap<&str, &Sighting>,
    now: Timestamp,
) -> Option<UpstreamSeen> {
    if node.system_id.is_empty() {
        return None;
    }
    let absent =
        || UpstreamSeen { state: Upstream::Absent, said: String::new(), on: None, at: now };
    Some(seen.get(node.system_id.as_str()).map_or_else(absent, |one| one.seen.clone()))
}

/// Whether this state was first observed less than `apart` ago.
fn seen_lately(node: &Node, now_seen: &UpstreamSeen, now: Timestamp, apart: Duration) -> bool {
    node.upstream.as_ref().is_some_and(|old| old.same(now_seen) && now.since(old.at) < apart)
}

async fn read_runs(tx: &mut Tx, ids: &[RunId]) -> Result<Vec<(RunId, Result<Run>)>> {
    let ids: Vec<&str> = ids.iter().map(RunId::as_str).collect();
    let found = tx.claimed_runs(&ids).await?;
    Ok(found.into_iter().map(|(id, held)| (id, held.map(|held| held.run))).collect())
}

async fn hear_all(tx: &mut Tx, nodes: &[NodeId], now: Timestamp) -> Result<()> {
    for node in nodes {
        tx.record_heartbeat(node, now, "").await?;
    }
    Ok(())
}

/// The change of one node after an observation.
#[derive(Debug, Clone)]
struct Change {
    id: NodeId,
    /// The version that it was decided on.
    version: i64,
    seen: UpstreamSeen,
    act: Act,
}

impl Change {
    /// None: nothing to write.
    fn of(case: &Case<'_>, look: Look, flooded: bool) -> Option<Self> {
        let act = match look {
            Look::Only => Act::Nothing,
            Look::Pass => case.decide(flooded),
        };
        let news = case.node.upstream.as_ref().is_none_or(|old| !old.same(case.seen));
        (act != Act::Nothing || news).then(|| Self {
            id: case.node.id(),
            version: case.node.head.version,
            seen: case.seen.clone(),
            act,
        })
    }

    /// Returns false if the record's version had moved.
    async fn write(&self, tx: &mut Tx, now: Timestamp) -> Result<bool> {
        let found = locked(tx, &self.id).await?;
        let Some(mut node) = found.filter(|node| node.head.version == self.version) else {
            return Ok(false);
        };
        let said = format!("MAAS has its machine as {}", self.seen.state);
        let event = event(Cause::Probe, "reconciler", said, here!(), now);
        if node.upstream.as_ref().is_none_or(|old| !old.same(&self.seen)) {
            node.upstream = Some(self.seen.clone());
            tx.update_record(&mut node, &event)?;
        }
        let moved = match &self.act {
            Act::Nothing | Act::Adopt(_) | Act::MarkManual(..) => return Ok(true),
            Act::Count(passes) => Some(Node { passes: *passes, ..node.clone() }),
            Act::Quarantine(why) => {
                node.quarantined(Quarantine::Drift, Owner::Reconciler, why).ok()
            }
            // A run that holds the machine may undo what the node needs for service.
            Act::Heal if is_held(tx, &node.machine).await? => None,
            Act::Heal => {
                let why = "proven healthy again";
                node.become_(NodeState::Active, Owner::Reconciler, why).ok()
            }
        };
        let Some(mut moved) = moved else { return Ok(true) };
        let message = match moved.state == node.state {
            true => format!("passes in a row that saw this: {}", moved.passes),
            false => {
                moved.head.since = now;
                moved.reason.clone()
            }
        };
        tx.update_record(&mut moved, &NewEvent { message, ..event })?;
        Ok(true)
    }
}

/// Whether an operation holds the node's machine, or that is unknown. The machine is locked, so
/// that no run begins while the node returns to service.
async fn is_held(tx: &mut Tx, machine: &MachineId) -> Result<bool> {
    match tx.machine_locked(machine).await {
        Err(StoreError::Corrupt(_)) | Ok(None) => Ok(true),
        Ok(Some(machine)) => Ok(machine.active_run.is_some()),
        Err(error) => Err(error),
    }
}

/// Writes changes, each fenced by its record's version. Returns the nodes whose version had not
/// moved.
async fn reconcile(tx: &mut Tx, changes: &[Change], now: Timestamp) -> Result<HashSet<NodeId>> {
    let mut written = HashSet::new();
    for change in changes {
        if change.write(tx, now).await? {
            written.insert(change.id.clone());
        }
    }
    Ok(written)
}
