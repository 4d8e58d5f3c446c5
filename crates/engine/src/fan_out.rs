//! Fan-out: a rack step starts and follows child runs, one for each device.
//!
//! The request id of a child is the effect key of the attempt that starts it, so after a crash the
//! next worker finds the started children and starts the rest. A child is created in a transaction
//! that locks the parent and checks its claim and its halt flag: a worker that has lost the claim,
//! or whose parent is to stop, starts nothing. A child that an earlier attempt has completed is not
//! started again. The step ends when no child is active.

mod standing;

pub(crate) use standing::{failed_part, has_parts_at_work, part_runs};

use crate::Engine;
use crate::admission::{Admission, Created, Holds, time_after_runs};
use crate::claims::halt_run;
use crate::rack::power_of;
use futures_util::stream::{self, StreamExt};
use model::effect::{Answer, Group, Key, Order, Outcome, Verb};
use model::fault::{Code, Fault};
use model::here;
use model::id::RunId;
use model::lifecycle::NewRun;
use model::rack::power_said;
use model::run::act::Action;
use model::run::{HaltKind, Run};
use model::target::TargetId;
use model::time::Timestamp;
use providers::{Journal, Target};
use standing::{
    Standing, Standings, Told, all_done, counted, failure, read_parts, some_of, to_begin,
};
use std::sync::Arc;
use std::time::Duration;
use store::{Cause, Enqueue, NewEvent, Result, StoreError, Tx};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The wait for a wake-up signal before the children are read again.
const POLL: Duration = Duration::from_secs(2);
/// The delay after a conflict or a database failure. The step's deadline bounds the retries.
const RETRY: Duration = Duration::from_millis(100);
/// How long a stop waits for its children before it answers that some are still active. Shorter
/// than the timeout of a read-only call.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// The most devices observed concurrently.
const LOOKS_AT_ONCE: usize = 16;

/// The parent run as claimed by this worker.
pub(crate) struct Parent {
    pub run: Run,
    pub epoch: i64,
    pub group: Group,
    /// Signaled when the parent is woken, usually because a child has ended.
    pub woken_up: Notify,
}

/// Fans a parent run out into child runs.
#[derive(Clone)]
pub(crate) struct FanOut(pub(crate) Engine);

impl FanOut {
    pub(crate) async fn execute(
        &self,
        parent: &Arc<Parent>,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        match order.verb {
            Verb::Perform if !parent.group.unless.is_empty() => {
                match self.already(parent, order, journal).await {
                    Some(outcome) => Ok(Answer::Done(outcome)),
                    None => self.see_through(parent, order, journal).await,
                }
            }
            Verb::Perform | Verb::Follow => self.see_through(parent, order, journal).await,
            Verb::GetStatus => {
                let parts = self.standings(parent, &order.key).await.map_err(unread)?;
                let begun = parts.iter().any(|(_, one)| *one != Standing::NotBegun);
                Ok(match (begun, all_done(&parts)) {
                    (_, Some(outcome)) => Answer::Done(outcome),
                    (true, None) => Answer::UnderWay,
                    (false, None) => Answer::NeverStarted,
                })
            }
            Verb::Observe => self.observe_children(order, &parent.group, journal).await,
            Verb::Stop => self.stop_children(parent, &order.key).await,
        }
    }

    /// Starts children and waits until all have ended, or after a failure until the started ones
    /// have ended. The step's deadline ends it.
    async fn see_through(
        &self,
        parent: &Arc<Parent>,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        // A turn that waits for children must not use up a slot that they need.
        let _waits = self.0.scheduler().waits_for_others();
        let mut told = Told::default();
        loop {
            let parts = match self.begin_children(parent, &order.key).await {
                Ok(Some(parts)) => parts,
                Ok(None) => {
                    let said = "the operation is in other hands, or is to stop";
                    return Err(Fault::new(Code::AnswerLost, said));
                }
                Err(StoreError::Conflict | StoreError::Unavailable(_)) => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                // Started children continue even if they cannot be read here.
                Err(error @ (StoreError::Refused(_) | StoreError::Corrupt(_))) => {
                    return Err(Fault::new(Code::AnswerLost, error.to_string()));
                }
            };
            told.tell(&parts, journal).await;
            if let Some(outcome) = all_done(&parts) {
                return Ok(Answer::Done(outcome));
            }
            let going = parts.iter().any(|(_, one)| matches!(one, Standing::Going(_)));
            if let (false, Some(fault)) = (going, failure(&parts)) {
                return Err(self.with_power(parent, fault).await);
            }
            // A lost signal costs time, never work.
            let _ = tokio::time::timeout(POLL, parent.woken_up.notified()).await;
        }
    }

    /// Adds to the fault of a power sequence which devices are on and off. If that cannot be read,
    /// the fault is returned unchanged.
    async fn with_power(&self, parent: &Parent, fault: Fault) -> Fault {
        if !parent.group.switches_power() {
            return fault;
        }
        let devices = parent.run.spec.claims.clone();
        match self.0.store().read(devices, |devices, tx| Box::pin(power_of(tx, devices))).await {
            Ok(known) => Fault { said: format!("{}; {}", fault.said, power_said(&known)), ..fault },
            Err(error) => {
                tracing::warn!(run = %parent.run.spec.id, %error, "reading power states failed");
                fault
            }
        }
    }

    /// The outcome if the goal of the group already holds and no child was started. If the goal
    /// cannot be observed, the step is executed.
    async fn already(
        &self,
        parent: &Arc<Parent>,
        order: &Order,
        journal: &Journal,
    ) -> Option<Outcome> {
        let parts = self.standings(parent, &order.key).await.ok()?;
        if parts.iter().any(|(_, one)| *one != Standing::NotBegun) {
            return None;
        }
        let group = &parent.group;
        let wanted = Group { parts: group.unless.clone(), ..group.clone() };
        match self.observe_children(order, &wanted, journal).await {
            Ok(Answer::Done(outcome)) => {
                let said = format!("already so, and nothing was touched: {}", outcome.said);
                journal.line(said.clone()).await;
                Some(Outcome { said, ..outcome })
            }
            Ok(Answer::Differs(seen)) => {
                journal.line(format!("to be done: {seen}")).await;
                None
            }
            Ok(Answer::UnderWay | Answer::NeverStarted | Answer::Unknown(_) | Answer::Stopped) => {
                None
            }
            Err(fault) => {
                journal.line(format!("to be done, as it cannot be seen: {}", fault.said)).await;
                None
            }
        }
    }

    /// Starts as many children as may be active and returns the statuses. None: the worker has lost
    /// its claim, or the parent is to stop.
    async fn begin_children(&self, parent: &Arc<Parent>, key: &Key) -> Result<Option<Standings>> {
        let parts = self.standings(parent, key).await?;
        if to_begin(&parts, &parent.group) == 0 {
            return Ok(Some(parts));
        }
        let (parent, key) = (Arc::clone(parent), key.clone());
        let begin = BeginParts { parent, key, random: self.0.random(), now: self.0.now() };
        let begun = self.0.store().write("begin_parts", begin, |begin, tx| Box::pin(begin.run(tx)));
        let (parts, created) = begun.await?;
        self.0.after_commit(created);
        Ok(parts)
    }

    async fn standings(&self, parent: &Arc<Parent>, key: &Key) -> Result<Standings> {
        let input = (Arc::clone(parent), key.clone());
        self.0
            .store()
            .scan(input, |(parent, key), tx| Box::pin(read_parts(tx, key, &parent.group)))
            .await
    }

    /// Requests that every active child stops and waits until all have: other runs may take a
    /// stopped child's device.
    async fn stop_children(
        &self,
        parent: &Arc<Parent>,
        key: &Key,
    ) -> std::result::Result<Answer, Fault> {
        let patience = Instant::now() + STOP_PATIENCE;
        loop {
            let input = (Arc::clone(parent), key.clone(), self.0.now());
            let parts =
                self.0.store().retry_write("stop_parts", input, |(parent, key, now), tx| {
                    Box::pin(stop_parts(tx, parent, key, *now))
                });
            let parts = parts.await.map_err(unread)?;
            let going = parts.iter().any(|(_, one)| matches!(one, Standing::Going(_)));
            if !going {
                return Ok(all_done(&parts).map_or(Answer::Stopped, Answer::Done));
            }
            let woken = tokio::time::timeout(POLL, parent.woken_up.notified()).await;
            if woken.is_err() && Instant::now() > patience {
                return Ok(Answer::UnderWay);
            }
        }
    }

    /// Observes on every device whether the goal of its steps holds.
    async fn observe_children(
        &self,
        order: &Order,
        group: &Group,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        let mut wanted = Vec::new();
        for part in &group.parts {
            for step in &part.steps {
                // Devices are only observed here, whatever the verb of the parent's call.
                let (effect, verb) = (step.effect.clone(), Verb::Observe);
                let order = Order { effect, verb, ..order.clone() };
                wanted.push((self.0.clone(), part.target.clone(), order, journal.clone()));
            }
        }
        let looks = stream::iter(wanted).map(|(engine, id, order, journal)| async move {
            let seen = match engine.target_of(&id).await {
                Ok(target) => engine.fan_out().ask_provider(&target, &order, &journal).await,
                Err(fault) => Err(fault),
            };
            (id, seen)
        });
        let mut looks = looks.buffer_unordered(LOOKS_AT_ONCE).boxed();
        let mut wrong = Vec::new();
        while let Some((target, seen)) = looks.next().await {
            match seen {
                Ok(Answer::Done(_)) => {}
                Ok(Answer::Differs(said)) => wrong.push(format!("{target}: {said}")),
                Ok(
                    Answer::UnderWay | Answer::NeverStarted | Answer::Unknown(_) | Answer::Stopped,
                ) => wrong.push(format!("{target}: it cannot be seen")),
                Err(fault) => return Err(fault),
            }
        }
        Ok(match wrong.is_empty() {
            true => Answer::Done(Outcome {
                said: format!("{} as wanted", counted(group.parts.len())),
                ..Outcome::default()
            }),
            false => Answer::Differs(some_of(&wrong)),
        })
    }

    async fn ask_provider(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        match self.0.providers().get(&target.spec.provider) {
            Some(provider) => provider.ask(target, order, journal).await,
            None => Err(no_provider(&target.spec.provider)),
        }
    }
}

pub(crate) fn no_provider(name: &str) -> Fault {
    Fault::new(Code::ProviderMissing, format!("this server has no provider {name:?}"))
}

/// A failed read is not a failure of the children.
fn unread(error: StoreError) -> Fault {
    Fault::new(Code::DatabaseUnreachable, format!("Farrier's own database: {error}"))
}

/// Starts as many children as may be active, unless one has failed or the parent is to stop.
struct BeginParts {
    parent: Arc<Parent>,
    key: Key,
    random: u64,
    now: Timestamp,
}

impl BeginParts {
    async fn run(&self, tx: &mut Tx) -> Result<(Option<Standings>, Created)> {
        let mut created = Created::default();
        if !self.is_wanted(tx).await? {
            return Ok((None, created));
        }
        let mut parts = read_parts(tx, &self.key, &self.parent.group).await?;
        let count = to_begin(&parts, &self.parent.group);
        let next = parts.iter_mut().filter(|(_, one)| *one == Standing::NotBegun).take(count);
        let next: Vec<_> = next.collect();
        let targets: Vec<TargetId> = next.iter().map(|(part, _)| part.target.clone()).collect();
        let taken = tx.active_runs_on(&targets).await?;
        let at = time_after_runs(tx, self.now, &targets).await?;
        let spec = &self.parent.run.spec;
        let event = event(at, format!("a part of {}", spec.id), &spec.initiator);
        for (count, (part, standing)) in next.into_iter().enumerate() {
            if let Some(holder) = taken.get(&part.target.key()) {
                let said = part.target.held_by(holder).said;
                *standing = Standing::Failed { run: holder.clone(), said };
                continue;
            }
            let id = RunId::new(self.now, self.random.wrapping_add((count as u64) << 32));
            let new = NewRun {
                id: id.clone(),
                target: part.target.clone(),
                run_type: part.run_type,
                steps: part.steps.clone(),
                request_id: self.key.to_string(),
                initiator: spec.initiator.clone(),
                part_of: Some(spec.id.clone()),
                reports_to: spec.reports_to.clone(),
                claims: Vec::new(),
                params: model::plan::Params::new(),
            };
            let (run, enqueue, holds) = (new.run(at), Enqueue::Now, Holds::Nothing);
            created.add(tx, Admission { run, enqueue, holds, event: &event }).await?;
            *standing = Standing::Going(id);
        }
        Ok((Some(parts), created))
    }
}

impl BeginParts {
    /// False if the worker has lost its claim or the parent is to stop. The parent stays locked
    /// until the children are written.
    async fn is_wanted(&self, tx: &mut Tx) -> Result<bool> {
        let held = tx.claimed_run_locked(&self.parent.run.spec.id).await?;
        Ok(held.is_some_and(|held| {
            let asked = held.run.open_order().is_some_and(|(key, verb)| {
                key == self.key && matches!(verb, Verb::Perform | Verb::Follow)
            });
            let mine = held.epoch == self.parent.epoch && held.owner.is_some();
            mine && asked && !held.run.progress.halting()
        }))
    }
}

/// Requests that every active child stops: frozen when the parent is frozen, canceled otherwise.
/// Children hold their devices until they have ended.
async fn stop_parts(tx: &mut Tx, parent: &Parent, key: &Key, now: Timestamp) -> Result<Standings> {
    let parts = read_parts(tx, key, &parent.group).await?;
    let Run { spec, progress, .. } = &parent.run;
    let action = match progress.halt.as_ref().map(|halt| halt.kind) {
        Some(HaltKind::Freeze) => Action::MarkManual,
        Some(HaltKind::Cancel) | None => Action::Cancel,
    };
    let event = event(now, String::new(), "engine");
    for (_, standing) in &parts {
        if let Standing::Going(run) = standing {
            halt_run(tx, run, action, &format!("{} is to stop", spec.id), &event).await?;
        }
    }
    Ok(parts)
}

fn event(at: Timestamp, message: String, actor: &str) -> NewEvent {
    let decided_by = here!().into();
    NewEvent { cause: Cause::Engine, actor: actor.into(), message, decided_by, at }
}
