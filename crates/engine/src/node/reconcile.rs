//! Observes a site: reads all its machines from MAAS in one call, stores changes, and in a
//! reconcile pass acts on drift.
//!
//! Passes are periodic and counted: drift is acted on after two in a row. A probe on request stores
//! the observation only, so that repeated probes cannot quarantine a node. [`model::node::drift`]
//! decides.

use super::watch::{MOVES_AT_ONCE, PAGE, locked, readable};
use crate::admission::event;
use crate::node::{Nodes, lock_free_machine, write_serving};
use model::fault::{Fault, FaultCode};
use model::here;
use model::id::{NodeId, RunId, SiteId};
use model::node::drift::{self, DriftAction, DriftCase};
use model::node::heartbeat::{AgentHeartbeat, HeartbeatLimits, MassOutage};
use model::node::{MaasObservation, MaasState, Node, NodeState, Quarantine, TransitionOwner};
use model::run::Run;
use model::run::actions::{Action, Requester};
use model::site::{Site, SiteReport};
use model::time::Timestamp;
use providers::{SiteNode, SiteObservation, UpstreamMachine};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{Cause, NewEvent, Result, StoreError, Tx};
use tokio::time::{Instant, timeout};

const SITE_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconcileMode {
    /// Store the observation; take no action.
    ObserveOnly,
    /// Count the pass and act on drift.
    Pass,
}

impl Nodes {
    /// Observes a site now, on an operator's request.
    pub async fn probe_site(&self, id: &SiteId) -> Result<()> {
        self.reconcile(id, ReconcileMode::ObserveOnly).await
    }

    pub(super) async fn reconcile(&self, id: &SiteId, probe: ReconcileMode) -> Result<()> {
        let started = Instant::now();
        let site = self.0.sites().get(id).await?;
        let nodes = self.nodes_of(id).await?;
        let observed = match self.observe_site(&site, &nodes).await {
            Ok(observed) => observed,
            // Farrier could not ask: nothing is known about the site.
            Err(fault) if fault.code.is_local() => {
                tracing::warn!(site = %site.id(), %fault, "this host could not call the MAAS of a site");
                return Ok(());
            }
            Err(fault) => {
                let report = SiteReport::Unreachable(fault.message);
                return self.report_site(&site, report, true).await;
            }
        };
        let SiteObservation { machines, total } = observed;
        self.report_site(&site, SiteReport::Answered(total), true).await?;
        self.record_heartbeats(&machines).await?;
        self.take_in(&site, nodes, machines, probe).await?;
        metrics::histogram!("farrier_reconcile_seconds").record(started.elapsed().as_secs_f64());
        Ok(())
    }

    /// The machines in MAAS, or why it cannot be read.
    async fn observe_site(
        &self,
        site: &Site,
        nodes: &[Node],
    ) -> model::fault::Result<SiteObservation> {
        let Some(provider) = self.0.providers().get(&site.spec.provider) else {
            let message = format!("the provider {:?} is not served here", site.spec.provider);
            return Err(Fault::new(FaultCode::ProviderMissing, message));
        };
        let named = |node: &Node| SiteNode {
            id: node.id(),
            machine: node.machine.clone(),
            system_id: node.system_id.clone(),
        };
        let named: Vec<SiteNode> = nodes.iter().map(named).collect();
        match timeout(SITE_TIMEOUT, provider.observe_site(site, &named)).await {
            Ok(observed) => observed,
            Err(_) => {
                let limit = model::time::format_duration(SITE_TIMEOUT);
                let message = format!("its MAAS did not answer in {limit}");
                Err(Fault::new(FaultCode::MaasUnreachable, message))
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
    async fn record_heartbeats(&self, observed: &[UpstreamMachine]) -> Result<()> {
        let heartbeat: Vec<NodeId> = observed
            .iter()
            .filter(|one| one.agent_online == Some(true))
            .filter_map(|one| one.node.clone())
            .collect();
        for nodes in heartbeat.chunks(MOVES_AT_ONCE) {
            let input = (nodes.to_vec(), self.0.now());
            let heartbeat =
                self.0.store().retry_write("record_heartbeats", input, |(nodes, now), tx| {
                    Box::pin(record_heartbeats(tx, nodes, *now))
                });
            heartbeat.await?;
        }
        Ok(())
    }

    async fn take_in(
        &self,
        site: &Site,
        nodes: Vec<Node>,
        observed: Vec<UpstreamMachine>,
        probe: ReconcileMode,
    ) -> Result<()> {
        let now = self.0.now();
        let limits = self.0.settings().nodes.heartbeat_limits;
        let apart = self.0.settings().nodes.reconcile_interval / 2;
        let heartbeat = self.heard_in(Some(site.id())).await?;
        let healthy: HashMap<&NodeId, bool> =
            heartbeat.iter().map(|one| (&one.node, is_well(one, &limits, now))).collect();
        let by_system: HashMap<&str, &UpstreamMachine> =
            observed.iter().map(|one| (one.system_id.as_str(), one)).collect();
        let mut looked: Vec<(&Node, MaasObservation)> = nodes
            .iter()
            .filter_map(|node| Some((node, upstream_of(node, &by_system, now)?)))
            .collect();
        let (runs, unreadable) = self.runs_in_question(&looked).await?;
        // Without its run it is unknown whether the node is being worked on.
        looked
            .retain(|(node, _)| !node.workflow.as_ref().is_some_and(|id| unreadable.contains(id)));
        let cases: Vec<DriftCase<'_>> = looked
            .iter()
            .map(|(node, upstream)| DriftCase {
                node,
                observed: upstream,
                run: node.workflow.as_ref().and_then(|id| runs.get(id)),
                healthy: healthy.get(&node.id()).copied().unwrap_or_default(),
                first_seen_recently: is_recent_observation(node, upstream, now, apart),
            })
            .collect();
        let outage = drift::detect_mass_outage(&cases, &limits);
        let message = outage.map(|MassOutage { count, of }| {
            format!(
                "MAAS has {count} of {of} nodes in service otherwise than expected, all at once"
            )
        });
        self.report_site(site, SiteReport::Drift(message), true).await?;
        let changes = cases.iter().filter_map(|case| Change::of(case, probe, outage.is_some()));
        self.write_changes(changes.collect(), now).await
    }

    /// The newest runs of the nodes that are not both active and deployed, usually few; and the ids
    /// of those that cannot be read.
    async fn runs_in_question(
        &self,
        looked: &[(&Node, MaasObservation)],
    ) -> Result<(HashMap<RunId, Run>, HashSet<RunId>)> {
        let settled = |node: &Node, upstream: &MaasObservation| {
            node.state == NodeState::Active && upstream.state == MaasState::Deployed
        };
        let in_question = looked.iter().filter(|(node, observed)| !settled(node, observed));
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
        let (by, reason) =
            ("reconciler".into(), format!("MAAS has it as {}", change.observed.state));
        match &change.act {
            DriftAction::Adopt(run) => {
                self.try_act(run, Action::Adopt, Requester { by, reason }).await
            }
            DriftAction::MarkManual(run, why) => {
                let who = Requester { by, reason: why.clone() };
                self.try_act(run, Action::MarkManual, who).await
            }
            DriftAction::Nothing
            | DriftAction::Count(_)
            | DriftAction::Quarantine(_)
            | DriftAction::Heal => Ok(()),
        }
    }

    /// A refused action is decided again in the next pass.
    async fn try_act(&self, run: &RunId, action: Action, who: Requester) -> Result<()> {
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

fn is_well(one: &AgentHeartbeat, limits: &HeartbeatLimits, now: Timestamp) -> bool {
    one.problems.is_empty() && one.at.is_some_and(|at| now.since(at) <= limits.silence)
}

/// The observed state of a node's machine; none if it was never found in MAAS.
fn upstream_of(
    node: &Node,
    observed: &HashMap<&str, &UpstreamMachine>,
    now: Timestamp,
) -> Option<MaasObservation> {
    if node.system_id.is_empty() {
        return None;
    }
    let absent = || MaasObservation {
        state: MaasState::Absent,
        message: String::new(),
        powered_on: None,
        at: now,
    };
    Some(observed.get(node.system_id.as_str()).map_or_else(absent, |one| one.upstream.clone()))
}

/// True if this state was first observed less than `apart` ago.
fn is_recent_observation(
    node: &Node,
    now_seen: &MaasObservation,
    now: Timestamp,
    apart: Duration,
) -> bool {
    node.maas.as_ref().is_some_and(|old| old.same(now_seen) && now.since(old.at) < apart)
}

async fn read_runs(tx: &mut Tx, ids: &[RunId]) -> Result<Vec<(RunId, Result<Run>)>> {
    let ids: Vec<&str> = ids.iter().map(RunId::as_str).collect();
    let found = tx.runs_with_claims(&ids).await?;
    Ok(found.into_iter().map(|(id, claimed)| (id, claimed.map(|claimed| claimed.run))).collect())
}

async fn record_heartbeats(tx: &mut Tx, nodes: &[NodeId], now: Timestamp) -> Result<()> {
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
    observed: MaasObservation,
    act: DriftAction,
}

impl Change {
    /// None: nothing to write.
    fn of(case: &DriftCase<'_>, probe: ReconcileMode, in_outage: bool) -> Option<Self> {
        let act = match probe {
            ReconcileMode::ObserveOnly => DriftAction::Nothing,
            ReconcileMode::Pass => case.decide(in_outage),
        };
        let change = case.node.maas.as_ref().is_none_or(|old| !old.same(case.observed));
        (act != DriftAction::Nothing || change).then(|| Self {
            id: case.node.id(),
            version: case.node.head.version,
            observed: case.observed.clone(),
            act,
        })
    }

    /// Returns false if the record's version had moved.
    async fn write(&self, tx: &mut Tx, now: Timestamp) -> Result<bool> {
        let found = locked(tx, &self.id).await?;
        let Some(mut node) = found.filter(|node| node.head.version == self.version) else {
            return Ok(false);
        };
        let text = format!("MAAS has its machine as {}", self.observed.state);
        let event = event(Cause::Probe, "reconciler", text, here!(), now);
        if node.maas.as_ref().is_none_or(|old| !old.same(&self.observed)) {
            node.maas = Some(self.observed.clone());
            tx.update_record(&mut node, &event)?;
        }
        let moved = match &self.act {
            DriftAction::Nothing | DriftAction::Adopt(_) | DriftAction::MarkManual(..) => {
                return Ok(true);
            }
            DriftAction::Count(passes) => Some(Node { drift_passes: *passes, ..node.clone() }),
            DriftAction::Quarantine(why) => {
                node.quarantined(Quarantine::Drift, TransitionOwner::Reconciler, why).ok()
            }
            DriftAction::Heal => {
                let Some(mut machine) = lock_free_machine(tx, &node).await? else {
                    return Ok(true);
                };
                let why = "proven healthy again";
                let healed = node.become_(NodeState::Active, TransitionOwner::Reconciler, why).ok();
                if healed.is_some() {
                    write_serving(tx, &mut machine, &event)?;
                }
                healed
            }
        };
        let Some(mut moved) = moved else { return Ok(true) };
        let message = match moved.state == node.state {
            true => format!("passes in a row that saw this: {}", moved.drift_passes),
            false => {
                moved.head.since = now;
                moved.reason.clone()
            }
        };
        tx.update_record(&mut moved, &NewEvent { message, ..event })?;
        Ok(true)
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
