//! Watches the heartbeats of nodes, by site, and of those without a site.
//!
//! A sweep runs every `silence_check_interval` and moves nodes that became silent or returned;
//! [`model::node::heartbeat`] decides. Each site is reconciled every `reconcile_interval`. Replicas
//! share the sites by id.

use super::reconcile::ReconcileMode;
use super::waiting_agents::WaitingAgents;
use crate::admission::event;
use crate::node::{Nodes, lock_free_machine, write_serving};
use futures_util::FutureExt;
use model::here;
use model::id::{NodeId, RunId, SiteId};
use model::node::follow::empties;
use model::node::heartbeat::{
    self, AgentHeartbeat, HeartbeatClassification, HeartbeatTimes, HeartbeatTransition, MassOutage,
};
use model::node::{Node, NodeState, TransitionOwner};
use model::retry::fnv1a;
use model::run::Run;
use model::site::{Site, SiteReport};
use model::time::Timestamp;
use std::collections::HashSet;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use store::{Cause, Result, StoreError, Tx};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Sites, nodes or runs per page.
pub(super) const PAGE: usize = 1_000;
/// The most nodes moved in one transaction.
pub(super) const MOVES_AT_ONCE: usize = 200;

/// After a pass its site rests this many times as long as the pass took, so that a slow MAAS is
/// read at most a quarter of the time.
const REST_FACTOR: u32 = 3;

/// The in-memory state of the watch.
#[derive(Default)]
pub(crate) struct NodeWatch {
    pub waiting: WaitingAgents,
    came: Notify,
    /// The sites with a reconcile pass in progress.
    reconciling: Mutex<HashSet<SiteId>>,
    /// The start of a mass outage among the nodes without a site.
    outage_since: Mutex<Option<Timestamp>>,
    /// All sites are silent.
    cut_off: AtomicBool,
}

/// The silence assessment of one site, or of the nodes without a site.
struct SilenceAssessment {
    site: Option<Site>,
    classification: HeartbeatClassification,
    when: HeartbeatTimes,
}

/// Skips unreadable rows; each is logged and counted.
pub(super) fn readable<I: Display, T>(rows: Vec<(I, Result<T>)>) -> impl Iterator<Item = T> {
    rows.into_iter().filter_map(|(id, row)| row.inspect_err(|error| unreadable(&id, error)).ok())
}

fn unreadable(id: &impl Display, error: &StoreError) {
    tracing::warn!(%id, %error, "skipping an unreadable record");
    metrics::counter!("farrier_unreadable_records_total").increment(1);
}

/// Locks a node for writing; none if it is gone or unreadable.
pub(super) async fn locked(tx: &mut Tx, id: &NodeId) -> Result<Option<Node>> {
    match tx.record_locked::<Node>(id.as_str()).await {
        Err(error @ StoreError::Corrupt(_)) => {
            unreadable(id, &error);
            Ok(None)
        }
        other => other,
    }
}

impl Nodes {
    pub(crate) fn waiting_agents(&self) -> &WaitingAgents {
        &self.0.node_watch().waiting
    }

    /// Observes the sites now, before their next pass.
    pub(crate) fn probe_sites_soon(&self) {
        self.0.node_watch().came.notify_one();
    }

    pub(crate) async fn run_watch(self) {
        let listening_since = self.0.now();
        let settings = self.0.settings().nodes;
        let mut next_pass = Instant::now();
        let mut probe = None;
        loop {
            if Instant::now() >= next_pass {
                next_pass = Instant::now() + settings.reconcile_interval;
                probe = Some(ReconcileMode::Pass);
            }
            let watch = AssertUnwindSafe(self.watch_once(probe, listening_since)).catch_unwind();
            match watch.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "watching the nodes failed; retried"),
                Err(_) => tracing::error!("watching the nodes panicked; retried"),
            }
            tokio::select! {
                () = self.0.stopped() => return,
                () = self.0.node_watch().came.notified() => probe = Some(ReconcileMode::ObserveOnly),
                () = tokio::time::sleep(settings.silence_check_interval) => probe = None,
            }
        }
    }

    async fn watch_once(&self, probe: Option<ReconcileMode>, since: Timestamp) -> Result<()> {
        let (index, count) = self.0.scheduler().shard().await;
        let ours = |id: &str| fnv1a(id, 0) % count == index;
        let sites: Vec<Site> =
            self.all_sites().await?.into_iter().filter(|site| ours(&site.head.id)).collect();
        if let Some(probe) = probe {
            sites.iter().for_each(|site| self.reconcile_apart(site.id(), probe));
        }
        let alone = ours("").then_some(None);
        let mut judged = Vec::new();
        for site in sites.into_iter().map(Some).chain(alone) {
            // A failure of one site does not affect the others.
            let id = site.as_ref().map(Site::id);
            match self.judge_silence(site, since).await {
                Ok(one) => judged.push(one),
                Err(error) => tracing::warn!(?id, %error, "assessing heartbeats failed"),
            }
        }
        let cut_off = heartbeat::all_sites_silent(judged.iter().map(|one| &one.classification));
        let known = self.0.node_watch().cut_off.swap(cut_off, Ordering::Relaxed);
        if cut_off && !known {
            tracing::error!("all sites are silent: Farrier or its network is cut off");
        }
        for one in judged {
            let id = one.site.as_ref().map(Site::id);
            if let Err(error) = self.sweep(one, cut_off).await {
                tracing::warn!(?id, %error, "moving the nodes of a site failed");
            }
        }
        Ok(())
    }

    async fn all_sites(&self) -> Result<Vec<Site>> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let page = self
                .0
                .store()
                .scan(after.clone(), |after, tx| Box::pin(tx.records_of_kind(after, PAGE)));
            let page = page.await?;
            let Some((last, _)) = page.last() else { return Ok(all) };
            after.clone_from(last);
            all.extend(readable(page));
        }
    }

    pub(super) async fn heard_in(&self, site: Option<SiteId>) -> Result<Vec<AgentHeartbeat>> {
        let heartbeat =
            self.0.store().scan(site, |site, tx| Box::pin(tx.agent_heartbeats(site.as_ref())));
        Ok(readable(heartbeat.await?).collect())
    }

    /// Reconciles a site in its own task, unless a pass is in progress: a MAAS that hangs delays no
    /// other site.
    fn reconcile_apart(&self, id: SiteId, probe: ReconcileMode) {
        let requested =
            || self.0.node_watch().reconciling.lock().unwrap_or_else(PoisonError::into_inner);
        if !requested().insert(id.clone()) {
            return;
        }
        let nodes = self.clone();
        tokio::spawn(async move {
            let started = Instant::now();
            let pass = AssertUnwindSafe(nodes.reconcile(&id, probe)).catch_unwind().await;
            match pass {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(site = %id, %error, "reconciling a site failed"),
                Err(_) => tracing::error!(site = %id, "reconciling panicked; retried"),
            }
            // Meanwhile the site is left out of the passes.
            tokio::time::sleep(started.elapsed() * REST_FACTOR).await;
            let mut requested =
                nodes.0.node_watch().reconciling.lock().unwrap_or_else(PoisonError::into_inner);
            requested.remove(&id);
        });
    }

    fn siteless_outage_since(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        self.0.node_watch().outage_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn judge_silence(
        &self,
        site: Option<Site>,
        listening_since: Timestamp,
    ) -> Result<SilenceAssessment> {
        let received = self.heard_in(site.as_ref().map(Site::id)).await?;
        let outage_since = match &site {
            Some(site) => site.silence.as_ref().map(|alarm| alarm.since),
            None => *self.siteless_outage_since(),
        };
        let when = HeartbeatTimes { now: self.0.now(), listening_since, outage_since };
        let classification = heartbeat::classify_heartbeats(
            &received,
            &self.0.settings().nodes.heartbeat_limits,
            when,
        );
        Ok(SilenceAssessment { site, classification, when })
    }

    /// Moves nodes that became silent or returned. `cut_off`: all sites are silent, which raises
    /// one alert instead of one for each site.
    async fn sweep(&self, judged: SilenceAssessment, cut_off: bool) -> Result<()> {
        let SilenceAssessment { site, classification, when } = judged;
        match &site {
            Some(site) => {
                let id = &site.head.id;
                let message = classification.outage.map(|MassOutage { count, of }| match cut_off {
                    true => format!("{count} of {of} nodes send no heartbeat, at this site as at all others"),
                    false => format!(
                        "{count} of {of} nodes send no heartbeat: {id} or the network path to it is down"
                    ),
                });
                self.report_site(site, SiteReport::Silence(message), !cut_off).await?;
            }
            None => {
                let begins = when.outage_since.is_none() && !cut_off;
                if let (Some(MassOutage { count, of }), true) = (classification.outage, begins) {
                    tracing::error!(count, of, "mass outage among the nodes without a site");
                }
                *self.siteless_outage_since() =
                    classification.outage.and(when.outage_since.or(Some(when.now)));
            }
        }
        for moves in classification.transitions.chunks(MOVES_AT_ONCE) {
            let input = (moves.to_vec(), when.now);
            let moved = self.0.store().retry_write("move_nodes", input, |(moves, now), tx| {
                Box::pin(move_nodes(tx, moves, *now))
            });
            moved.await?;
        }
        Ok(())
    }

    /// Stores a change of a site's alarms. `aloud`: also log it as an error.
    pub(super) async fn report_site(
        &self,
        site: &Site,
        report: SiteReport,
        aloud: bool,
    ) -> Result<()> {
        let now = self.0.now();
        let answered = match &report {
            SiteReport::Answered(_) => true,
            SiteReport::Unreachable(_) | SiteReport::Silence(_) | SiteReport::Drift(_) => false,
        };
        // The time of an answer is always stored.
        if !answered && site.apply_report(&report, now) == *site {
            return Ok(());
        }
        let input = ReportSite { id: site.id(), report, answered, aloud, now: self.0.now() };
        self.0.store().retry_write("report_site", input, |input, tx| Box::pin(input.run(tx))).await
    }
}

async fn move_nodes(tx: &mut Tx, moves: &[HeartbeatTransition], now: Timestamp) -> Result<()> {
    for HeartbeatTransition { node: id, to, why, lost } in moves {
        let Some(node) = locked(tx, id).await? else { continue };
        // The node may have changed since the assessment.
        let Ok(mut moved) = node.become_(*to, TransitionOwner::Heartbeat, why) else { continue };
        moved.head.since = now;
        let event = event(Cause::Probe, "heartbeat", why.clone(), here!(), now);
        if *to == NodeState::Active {
            if !is_back(tx, &node).await? {
                continue;
            }
            let Some(mut machine) = lock_free_machine(tx, &node).await? else { continue };
            write_serving(tx, &mut machine, &event)?;
        }
        tx.update_record(&mut moved, &event)?;
        if *lost {
            tx.mark_offline(id, now)?;
        }
    }
    Ok(())
}

/// True if the last heartbeat of a node counts: the operations that have taken its machine down, or
/// that empty the node, must have ended before it.
async fn is_back(tx: &mut Tx, node: &Node) -> Result<bool> {
    let heard = tx.last_heartbeat(&node.id()).await?;
    let ended_before = |run: Option<&Run>| heartbeat::proves_return(heard.at, run);
    if let Some(id) = &node.down_by {
        let taken = match whole_operation(tx, id).await {
            // The end of the operation is unknown; the other nodes do not wait for it.
            Err(StoreError::Corrupt(_)) => return Ok(false),
            taken => taken?,
        };
        if !ended_before(taken.as_ref()) {
            return Ok(false);
        }
    }
    let Some(id) = &node.workflow else { return Ok(true) };
    match tx.run(id).await {
        // It is known to be at work if it holds the machine.
        Err(StoreError::Corrupt(_)) => {
            let machine = tx.machine(&node.machine).await?;
            Ok(machine.is_none_or(|machine| machine.active_run != node.workflow))
        }
        run => Ok(ended_before(run?.filter(empties).as_ref())),
    }
}

/// The operation of a run: that of a child run is its parent, if it still exists.
async fn whole_operation(tx: &mut Tx, id: &RunId) -> Result<Option<Run>> {
    let Some(run) = tx.run(id).await? else { return Ok(None) };
    let parent = match &run.spec.parent_run {
        Some(parent) => tx.run(parent).await?,
        None => None,
    };
    Ok(parent.or(Some(run)))
}

struct ReportSite {
    id: SiteId,
    report: SiteReport,
    answered: bool,
    aloud: bool,
    now: Timestamp,
}

impl ReportSite {
    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let Some(site) = tx.record_locked::<Site>(self.id.as_str()).await? else {
            return Ok(());
        };
        if self.answered {
            tx.record_site_answer(&self.id, self.now)?;
        }
        let mut after = site.apply_report(&self.report, self.now);
        if after == site {
            return Ok(());
        }
        let text: Vec<String> = after.alarms().iter().map(|alarm| alarm.message.clone()).collect();
        let message = match text.is_empty() {
            true => "its MAAS answers".to_string(),
            false => text.join("; "),
        };
        if after.state() != site.state() {
            after.head.since = self.now;
            if !text.is_empty() && self.aloud {
                tracing::error!(site = %self.id, said = message, "site alarm");
            }
        }
        let event = event(Cause::Probe, "reconciler", message, here!(), self.now);
        tx.update_record(&mut after, &event)
    }
}
