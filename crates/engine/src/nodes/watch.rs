//! Watching nodes: who is heard, and what MAAS says of their machines.
//!
//! A sweep looks every few seconds who has fallen silent and who is back. A pass asks each site once in a while, one question for all of
//! its machines, and writes only what has changed. Both decide nothing: [`model::node::silence`] and [`model::node::drift`] do. Replicas
//! share the sites by their ids.

use super::waiting::Waiting;
use crate::Engine;
use crate::submit::event;
use futures_util::FutureExt;
use model::here;
use model::id::{MachineId, NodeId, SiteId};
use model::node::drift::{self, Act, Case};
use model::node::silence::{self, Flood, Heard, Limits, Moved, When};
use model::node::{Node, NodeState, Owner, Quarantine, Upstream, UpstreamSeen};
use model::retry::hash;
use model::run::Run;
use model::run::act::{Action, Who};
use model::site::{Report, Site};
use model::time::Timestamp;
use providers::Sighting;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::{Cause, NewEvent, RecordFilter, Result, StoreError, Tx, Work};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// How many sites, and how many nodes, are read at once.
const PAGE: usize = 1_000;
/// How many nodes one write moves.
const MOVES_AT_ONCE: usize = 200;
/// How long one site may take to answer.
const SITE_PATIENCE: Duration = Duration::from_secs(120);

/// What the watch keeps in memory.
#[derive(Default)]
pub(crate) struct NodeWatch {
    pub waiting: Waiting,
    came: Notify,
    /// The sites that are being asked.
    asked: Mutex<HashSet<SiteId>>,
    /// Since when the nodes of no site have fallen silent together.
    flooded_since: Mutex<Option<Timestamp>>,
}

impl Engine {
    pub(crate) fn waiting_agents(&self) -> &Waiting {
        &self.node_watch().waiting
    }

    /// The sites are looked at now, not only when their time comes.
    pub(crate) fn look_at_sites(&self) {
        self.node_watch().came.notify_one();
    }

    pub(crate) async fn run_nodes(self) {
        let listening_since = self.now();
        let settings = self.settings().nodes;
        let mut next_pass = Instant::now();
        loop {
            let pass = Instant::now() >= next_pass;
            if pass {
                next_pass = Instant::now() + settings.reconcile_interval;
            }
            let watch = AssertUnwindSafe(self.watch_once(pass, listening_since)).catch_unwind();
            match watch.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the nodes cannot be looked at now"),
                Err(_) => tracing::error!("looking at the nodes panicked; it is tried again"),
            }
            tokio::select! {
                () = self.stopped() => return,
                () = self.node_watch().came.notified() => next_pass = Instant::now(),
                () = tokio::time::sleep(settings.sweep_interval) => {}
            }
        }
    }

    async fn watch_once(&self, pass: bool, listening_since: Timestamp) -> Result<()> {
        let (index, count) = self.share().await;
        let ours = |id: &str| hash(id, 0) % count == index;
        let mut after = None;
        loop {
            let page = self.sites(after, PAGE).await?;
            for site in page.records.into_iter().filter(|site| ours(&site.head.id)) {
                if pass {
                    self.reconcile_apart(site.id());
                }
                // One site that cannot be looked at is its own trouble.
                let id = site.id();
                if let Err(error) = self.sweep(Some(site), listening_since).await {
                    tracing::warn!(site = %id, %error, "its nodes cannot be looked at now");
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        if ours("") {
            self.sweep(None, listening_since).await?;
        }
        Ok(())
    }

    /// Asks a site in a task of its own, unless it is being asked: a MAAS that hangs holds nobody else up.
    fn reconcile_apart(&self, id: SiteId) {
        let asked = || self.node_watch().asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked().insert(id.clone()) {
            return;
        }
        let engine = self.clone();
        tokio::spawn(async move {
            let pass = AssertUnwindSafe(engine.reconcile_site(&id)).catch_unwind().await;
            match pass {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(site = %id, %error, "it cannot be asked now"),
                Err(_) => tracing::error!(site = %id, "asking it panicked; it is asked again"),
            }
            let mut asked =
                engine.node_watch().asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.remove(&id);
        });
    }

    /// Moves who has fallen silent, and who is back.
    async fn sweep(&self, site: Option<Site>, listening_since: Timestamp) -> Result<()> {
        let id = site.as_ref().map(Site::id);
        let heard = self.store().scan(HeardIn { site: id.clone() }).await?;
        let now = self.now();
        let alarm = site.as_ref().and_then(|site| site.silence.as_ref());
        let alone =
            || self.node_watch().flooded_since.lock().unwrap_or_else(PoisonError::into_inner);
        let flooded_since = match &site {
            Some(_) => alarm.map(|alarm| alarm.since),
            None => *alone(),
        };
        let when = When { now, listening_since, flooded_since };
        let verdict = silence::judge(&heard, &self.settings().nodes.silence, when);
        if let Some(id) = &id {
            let said = verdict.flood.map(|flood| {
                let Flood { count, of } = flood;
                format!(
                    "{count} of {of} active nodes are not heard: {id} or the way to it is cut off"
                )
            });
            self.tell_site(id, Report::Silence(said)).await?;
        }
        if id.is_none() {
            if let (Some(Flood { count, of }), None) = (verdict.flood, flooded_since) {
                tracing::error!(count, of, "many nodes of no site are not heard all at once");
            }
            *alone() = verdict.flood.and(flooded_since.or(Some(now)));
        }
        for moves in verdict.moves.chunks(MOVES_AT_ONCE) {
            let work = || MoveNodes { moves: moves.to_vec(), now };
            self.racing(|| self.store().write(work())).await?;
        }
        Ok(())
    }

    /// One pass over a site: what its MAAS says, and what follows.
    pub async fn reconcile_site(&self, id: &SiteId) -> Result<()> {
        let started = Instant::now();
        let site = self.site(id).await?;
        let nodes = self.nodes_of(id).await?;
        let Some(provider) = self.providers().get(&site.spec.provider) else {
            let said = format!("the provider {:?} is not served here", site.spec.provider);
            return self.tell_site(id, Report::Unreachable(said)).await;
        };
        let named: Vec<(NodeId, MachineId)> =
            nodes.iter().map(|node| (node.id(), node.machine.clone())).collect();
        let seen = match timeout(SITE_PATIENCE, provider.observe_site(&site, &named)).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(fault)) => return self.tell_site(id, Report::Unreachable(fault.said)).await,
            Err(_) => {
                let said =
                    format!("its MAAS did not answer in {}", model::time::spoken(SITE_PATIENCE));
                return self.tell_site(id, Report::Unreachable(said)).await;
            }
        };
        self.tell_site(id, Report::Answered(seen.len())).await?;
        self.hear_all(&seen).await?;
        self.take_in(id, nodes, seen).await?;
        metrics::histogram!("farrier_reconcile_seconds").record(started.elapsed().as_secs_f64());
        Ok(())
    }

    async fn nodes_of(&self, site: &SiteId) -> Result<Vec<Node>> {
        let labels = vec![("site".to_string(), site.to_string())];
        let states = NodeState::ALL.iter().filter(|state| **state != NodeState::Deleted);
        let states = states.map(|state| state.as_str().to_string()).collect();
        let filter = RecordFilter { labels, states, ..RecordFilter::default() };
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self.nodes(filter.clone(), after, PAGE).await?;
            all.extend(page.records);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Agents that the provider itself has seen are heard by that.
    async fn hear_all(&self, seen: &[Sighting]) -> Result<()> {
        let heard: Vec<NodeId> = seen
            .iter()
            .filter(|one| one.heard == Some(true))
            .filter_map(|one| one.node.clone())
            .collect();
        for nodes in heard.chunks(MOVES_AT_ONCE) {
            let work = || HearAll { nodes: nodes.to_vec(), now: self.now() };
            self.racing(|| self.store().write(work())).await?;
        }
        Ok(())
    }

    async fn take_in(&self, site: &SiteId, nodes: Vec<Node>, seen: Vec<Sighting>) -> Result<()> {
        let now = self.now();
        let limits = self.settings().nodes.silence;
        let heard = self.store().scan(HeardIn { site: Some(site.clone()) }).await?;
        let healthy: HashMap<&NodeId, bool> =
            heard.iter().map(|one| (&one.node, is_well(one, &limits, now))).collect();
        let by_system: HashMap<&str, &Sighting> =
            seen.iter().map(|one| (one.system_id.as_str(), one)).collect();
        let mut looked = Vec::new();
        for node in &nodes {
            let Some(upstream) = upstream_of(node, &by_system, now) else { continue };
            looked.push((node, upstream));
        }
        let runs = self.runs_in_question(&looked).await?;
        let cases: Vec<Case<'_>> = looked
            .iter()
            .map(|(node, upstream)| Case {
                node,
                seen: upstream,
                run: node.workflow.as_ref().and_then(|id| runs.get(id.as_str())),
                healthy: healthy.get(&node.id()).copied().unwrap_or_default(),
            })
            .collect();
        let flood = drift::flood(&cases, &limits);
        let said = flood.map(|Flood { count, of }| {
            format!(
                "MAAS has {count} of {of} nodes in service otherwise than expected, all at once"
            )
        });
        self.tell_site(site, Report::Drift(said)).await?;
        for case in &cases {
            let act = case.decide(flood.is_some());
            let news = case.node.upstream.as_ref().is_none_or(|old| !old.same(case.seen));
            if act != Act::Nothing || news {
                self.act_on(case, act, now).await?;
            }
        }
        Ok(())
    }

    /// The newest runs of nodes that are not simply as they should be: few, as a rule.
    async fn runs_in_question(
        &self,
        looked: &[(&Node, UpstreamSeen)],
    ) -> Result<HashMap<String, Run>> {
        let mut runs = HashMap::new();
        for (node, upstream) in looked {
            let settled = node.state == NodeState::Active && upstream.state == Upstream::Deployed;
            if let (false, Some(id)) = (settled, &node.workflow) {
                match self.run(id).await {
                    Ok(run) => drop(runs.insert(id.to_string(), run)),
                    // It has been cleared away: nobody waits for it.
                    Err(StoreError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(runs)
    }

    async fn act_on(&self, case: &Case<'_>, act: Act, now: Timestamp) -> Result<()> {
        let work = || Reconcile {
            id: case.node.id(),
            version: case.node.head.version,
            seen: case.seen.clone(),
            act: act.clone(),
            now,
        };
        // What was decided on another record is decided anew in the next pass.
        if !self.racing(|| self.store().write(work())).await? {
            return Ok(());
        }
        let who = || Who {
            by: "reconciler".into(),
            reason: format!("MAAS has it as {}", case.seen.state),
        };
        match act {
            // What a person may do with a run, under the same gates.
            Act::Adopt(run) => self.try_act(run, Action::Adopt, who()).await,
            Act::MarkManual(run, why) => {
                let who = Who { reason: why, ..who() };
                self.try_act(run, Action::MarkManual, who).await
            }
            Act::Nothing | Act::Count(_) | Act::Quarantine(_) | Act::Heal => Ok(()),
        }
    }

    /// What is refused now is seen again in the next pass.
    async fn try_act(&self, run: model::id::RunId, action: Action, who: Who) -> Result<()> {
        match self.act(run.clone(), action, who).await {
            Ok(_) => Ok(()),
            Err(StoreError::Refused(refusal)) => {
                tracing::debug!(%run, %refusal, "the reconciler may not");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps how a site is, where that is news.
    async fn tell_site(&self, id: &SiteId, report: Report) -> Result<()> {
        let work = || TellSite { id: id.clone(), report: report.clone(), now: self.now() };
        self.racing(|| self.store().write(work())).await
    }
}

fn is_well(one: &Heard, limits: &Limits, now: Timestamp) -> bool {
    one.problems.is_empty() && one.at.is_some_and(|at| now.since(at) <= limits.silence)
}

/// What MAAS says of a node's machine; none where it was never found there.
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

struct HeardIn {
    site: Option<SiteId>,
}

impl Work for HeardIn {
    type Out = Vec<Heard>;

    async fn run(&self, tx: &mut Tx) -> Result<Vec<Heard>> {
        tx.heard_in(self.site.as_ref()).await
    }
}

struct HearAll {
    nodes: Vec<NodeId>,
    now: Timestamp,
}

impl Work for HearAll {
    type Out = ();

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        for node in &self.nodes {
            tx.hear(node, self.now, "").await?;
        }
        Ok(())
    }
}

struct MoveNodes {
    moves: Vec<Moved>,
    now: Timestamp,
}

impl Work for MoveNodes {
    type Out = ();

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        for Moved { node: id, to, why } in &self.moves {
            let Some(node) = tx.record_locked::<Node>(id.as_str()).await? else { continue };
            // It may have moved since it was looked at.
            let Ok(mut moved) = node.become_(*to, Owner::Heartbeat, why) else { continue };
            moved.head.since = self.now;
            let event = event(Cause::Probe, "heartbeat", why.clone(), here!(), self.now);
            tx.update_record(&mut moved, &event)?;
        }
        Ok(())
    }
}

struct Reconcile {
    id: NodeId,
    version: i64,
    seen: UpstreamSeen,
    act: Act,
    now: Timestamp,
}

impl Work for Reconcile {
    /// Whether the record was still the one that was decided on.
    type Out = bool;

    async fn run(&self, tx: &mut Tx) -> Result<bool> {
        let found = tx.record_locked::<Node>(self.id.as_str()).await?;
        let Some(mut node) = found.filter(|node| node.head.version == self.version) else {
            return Ok(false);
        };
        let said = format!("MAAS has its machine as {}", self.seen.state);
        let event = event(Cause::Probe, "reconciler", said, here!(), self.now);
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
            Act::Heal => {
                let why = "proven healthy again";
                node.become_(NodeState::Active, Owner::Reconciler, why).ok()
            }
        };
        let Some(mut moved) = moved else { return Ok(true) };
        let message = match moved.state == node.state {
            true => format!("seen {} times so", moved.passes),
            false => {
                moved.head.since = self.now;
                moved.reason.clone()
            }
        };
        tx.update_record(&mut moved, &NewEvent { message, ..event })?;
        Ok(true)
    }
}

struct TellSite {
    id: SiteId,
    report: Report,
    now: Timestamp,
}

impl Work for TellSite {
    type Out = ();

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let Some(site) = tx.record_locked::<Site>(self.id.as_str()).await? else {
            return Ok(());
        };
        let mut after = site.told(&self.report, self.now);
        if after == site {
            return Ok(());
        }
        let said: Vec<String> = after.alarms().iter().map(|alarm| alarm.said.clone()).collect();
        let message = match said.is_empty() {
            true => "its MAAS answers".to_string(),
            false => said.join("; "),
        };
        if after.state() != site.state() {
            after.head.since = self.now;
            if !said.is_empty() {
                tracing::error!(site = %self.id, said = message, "a site needs somebody");
            }
        }
        let event = event(Cause::Probe, "reconciler", message, here!(), self.now);
        tx.update_record(&mut after, &event)
    }
}
