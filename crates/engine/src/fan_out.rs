//! Fan-out: the step of a run on a rack that starts and follows child runs, one for each device.
//!
//! The children carry the key of the attempt that starts them as their request id, so the worker
//! that comes after a crash finds what was started and starts the rest. A child is created in a
//! transaction that locks the parent and checks that the parent still wants it: a worker that has
//! lost the claim, or whose parent is to stop, starts nothing. A child that an earlier attempt has
//! completed is not started again. The step ends when no child is at work.

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

/// How long to trust that a signal would have come.
const POLL: Duration = Duration::from_secs(2);
/// How long to wait when somebody else wrote first, or the database does not answer. Whoever waits
/// for it has a deadline.
const RETRY: Duration = Duration::from_millis(100);
/// How long a stop waits for its parts to end before it says that some are still at work. Less than
/// a look may take.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// How many devices are looked at at once.
const LOOKS_AT_ONCE: usize = 16;

/// The parent run, as the worker has claimed it.
pub(crate) struct Parent {
    pub run: Run,
    pub epoch: i64,
    pub group: Group,
    /// Somebody woke the parent: a part has ended, most likely.
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

    /// Begins what is to begin, and waits until all parts have ended, or those that were begun when
    /// one failed. The step's own deadline ends it.
    async fn see_through(
        &self,
        parent: &Arc<Parent>,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        // Who only waits for others must not keep them from being taken up.
        let _waits = self.0.scheduler().waits_for_others();
        let mut told = Told::default();
        loop {
            let parts = match self.begin_children(parent, &order.key).await {
                Ok(Some(parts)) => parts,
                Ok(None) => {
                    let said = "the operation is in other hands, or is to stop";
                    return Err(Fault::new(Code::AnswerLost, said));
                }
                // Somebody else wrote first, or nobody can write now: look again.
                Err(StoreError::Conflict | StoreError::Unavailable(_)) => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                // What was begun goes on whatever cannot be read here.
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
            // A lost signal costs a little time, never the work.
            let _ = tokio::time::timeout(POLL, parent.woken_up.notified()).await;
        }
    }

    /// A power sequence that stops says what is on and what is off. That this cannot be read keeps
    /// no failure from being told.
    async fn with_power(&self, parent: &Parent, fault: Fault) -> Fault {
        if !parent.group.switches_power() {
            return fault;
        }
        let devices = parent.run.spec.claims.clone();
        match self.0.store().read(devices, |devices, tx| Box::pin(power_of(tx, devices))).await {
            Ok(known) => Fault { said: format!("{}; {}", fault.said, power_said(&known)), ..fault },
            Err(error) => {
                tracing::warn!(run = %parent.run.spec.id, %error, "what is on cannot be read");
                fault
            }
        }
    }

    /// What was seen, where all that the group is for holds already and nothing of it was begun.
    /// Who cannot see that does it.
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

    /// How the parts stand, after as many have been begun as may be at work. None: the parent does
    /// not want them any more.
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

    /// Asks every part that is at work to stop, and waits until they have: what has stopped may be
    /// taken by others.
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

    /// Asks every device whether what is wanted of it holds already.
    async fn observe_children(
        &self,
        order: &Order,
        group: &Group,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        let mut wanted = Vec::new();
        for part in &group.parts {
            for step in &part.steps {
                // Whatever the parent was asked for: a device is only looked at here.
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

/// A look that failed says nothing about the parts.
fn unread(error: StoreError) -> Fault {
    Fault::new(Code::DatabaseUnreachable, format!("Farrier's own database: {error}"))
}

/// Begins as many parts as may be at work, unless one has failed or the parent is to stop.
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
    /// Nothing begins for a worker that has lost its claim, nor for a parent that is to stop. Until
    /// the parts are written nobody else may claim the parent or tell it anything.
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

/// Asks every part that is at work to stop: frozen when the parent is frozen, canceled otherwise.
/// They end by themselves, and hold their devices until they have.
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
