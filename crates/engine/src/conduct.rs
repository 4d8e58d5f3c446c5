//! Conducting: the step of a run on a rack that sends its devices to work, each in a run of its
//! own.
//!
//! The parts are named by the key of the attempt that sends them, so who comes after a crash finds
//! what was begun and begins the rest. A part begins in a transaction that holds the whole and
//! looks whether it still wants it: who has lost the claim, or was told to stop, begins nothing.
//! What an earlier attempt has brought to its end is not done again. The step ends when no part is
//! at work.

mod standing;

pub(crate) use standing::{failed_part, has_parts_at_work, part_runs};

use crate::Engine;
use crate::admission::{Admission, Created, Holds, time_after_runs};
use crate::claims::halt_run;
use crate::racks::power_of;
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

/// The whole, as the worker that conducts it holds it.
pub(crate) struct Whole {
    pub run: Run,
    pub epoch: i64,
    pub group: Group,
    /// Somebody woke the whole: a part has ended, most likely.
    pub woken_up: Notify,
}

impl Engine {
    pub(crate) async fn conduct(
        &self,
        whole: &Arc<Whole>,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        match order.verb {
            Verb::Perform if !whole.group.unless.is_empty() => {
                match self.already(whole, order, journal).await {
                    Some(outcome) => Ok(Answer::Done(outcome)),
                    None => self.see_through(whole, order, journal).await,
                }
            }
            Verb::Perform | Verb::Follow => self.see_through(whole, order, journal).await,
            Verb::GetStatus => {
                let parts = self.standings(whole, &order.key).await.map_err(unread)?;
                let begun = parts.iter().any(|(_, one)| *one != Standing::NotBegun);
                Ok(match (begun, all_done(&parts)) {
                    (_, Some(outcome)) => Answer::Done(outcome),
                    (true, None) => Answer::UnderWay,
                    (false, None) => Answer::NeverStarted,
                })
            }
            Verb::Observe => self.observe_parts(order, &whole.group, journal).await,
            Verb::Stop => self.stop_parts(whole, &order.key).await,
        }
    }

    /// Begins what is to begin, and waits until all parts have ended, or those that were begun when
    /// one failed. The step's own deadline ends it.
    async fn see_through(
        &self,
        whole: &Arc<Whole>,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        // Who only waits for others must not keep them from being taken up.
        let _waits = self.waits_for_others();
        let mut told = Told::default();
        loop {
            let parts = match self.begin_parts(whole, &order.key).await {
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
                return Err(self.with_power(whole, fault).await);
            }
            // A lost signal costs a little time, never the work.
            let _ = tokio::time::timeout(POLL, whole.woken_up.notified()).await;
        }
    }

    /// A power sequence that stops says what is on and what is off. That this cannot be read keeps
    /// no failure from being told.
    async fn with_power(&self, whole: &Whole, fault: Fault) -> Fault {
        if !whole.group.switches_power() {
            return fault;
        }
        let devices = whole.run.spec.claims.clone();
        match self.store().read(devices, |devices, tx| Box::pin(power_of(tx, devices))).await {
            Ok(known) => Fault { said: format!("{}; {}", fault.said, power_said(&known)), ..fault },
            Err(error) => {
                tracing::warn!(run = %whole.run.spec.id, %error, "what is on cannot be read");
                fault
            }
        }
    }

    /// What was seen, where all that the group is for holds already and nothing of it was begun.
    /// Who cannot see that does it.
    async fn already(
        &self,
        whole: &Arc<Whole>,
        order: &Order,
        journal: &Journal,
    ) -> Option<Outcome> {
        let parts = self.standings(whole, &order.key).await.ok()?;
        if parts.iter().any(|(_, one)| *one != Standing::NotBegun) {
            return None;
        }
        let group = &whole.group;
        let wanted = Group { parts: group.unless.clone(), ..group.clone() };
        match self.observe_parts(order, &wanted, journal).await {
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

    /// How the parts stand, after as many have been begun as may be at work. None: the whole does
    /// not want them any more.
    async fn begin_parts(&self, whole: &Arc<Whole>, key: &Key) -> Result<Option<Standings>> {
        let parts = self.standings(whole, key).await?;
        if to_begin(&parts, &whole.group) == 0 {
            return Ok(Some(parts));
        }
        let (whole, key) = (Arc::clone(whole), key.clone());
        let begin = BeginParts { whole, key, random: self.random(), now: self.now() };
        let begun = self.store().write("begin_parts", begin, |begin, tx| Box::pin(begin.run(tx)));
        let (parts, created) = begun.await?;
        self.after_commit(created);
        Ok(parts)
    }

    async fn standings(&self, whole: &Arc<Whole>, key: &Key) -> Result<Standings> {
        let input = (Arc::clone(whole), key.clone());
        self.store()
            .scan(input, |(whole, key), tx| Box::pin(read_parts(tx, key, &whole.group)))
            .await
    }

    /// Asks every part that is at work to stop, and waits until they have: what has stopped may be
    /// taken by others.
    async fn stop_parts(
        &self,
        whole: &Arc<Whole>,
        key: &Key,
    ) -> std::result::Result<Answer, Fault> {
        let patience = Instant::now() + STOP_PATIENCE;
        loop {
            let input = (Arc::clone(whole), key.clone(), self.now());
            let parts = self.store().retry_write("stop_parts", input, |(whole, key, now), tx| {
                Box::pin(stop_parts(tx, whole, key, *now))
            });
            let parts = parts.await.map_err(unread)?;
            let going = parts.iter().any(|(_, one)| matches!(one, Standing::Going(_)));
            if !going {
                return Ok(all_done(&parts).map_or(Answer::Stopped, Answer::Done));
            }
            let woken = tokio::time::timeout(POLL, whole.woken_up.notified()).await;
            if woken.is_err() && Instant::now() > patience {
                return Ok(Answer::UnderWay);
            }
        }
    }

    /// Asks every device whether what is wanted of it holds already.
    async fn observe_parts(
        &self,
        order: &Order,
        group: &Group,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        let mut wanted = Vec::new();
        for part in &group.parts {
            for step in &part.steps {
                // Whatever the whole was asked for: a device is only looked at here.
                let (effect, verb) = (step.effect.clone(), Verb::Observe);
                let order = Order { effect, verb, ..order.clone() };
                wanted.push((self.clone(), part.target.clone(), order, journal.clone()));
            }
        }
        let looks = stream::iter(wanted).map(|(engine, id, order, journal)| async move {
            let seen = match engine.target_of(&id).await {
                Ok(target) => engine.ask_provider(&target, &order, &journal).await,
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
        match self.providers().get(&target.spec.provider) {
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

/// Begins as many parts as may be at work, unless one has failed or the whole is to stop.
struct BeginParts {
    whole: Arc<Whole>,
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
        let mut parts = read_parts(tx, &self.key, &self.whole.group).await?;
        let count = to_begin(&parts, &self.whole.group);
        let next = parts.iter_mut().filter(|(_, one)| *one == Standing::NotBegun).take(count);
        let next: Vec<_> = next.collect();
        let targets: Vec<TargetId> = next.iter().map(|(part, _)| part.target.clone()).collect();
        let taken = tx.active_runs_on(&targets).await?;
        let at = time_after_runs(tx, self.now, &targets).await?;
        let spec = &self.whole.run.spec;
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
    /// Nothing begins for a worker that has lost its claim, nor for a whole that is to stop. Until
    /// the parts are written nobody else may claim the whole or tell it anything.
    async fn is_wanted(&self, tx: &mut Tx) -> Result<bool> {
        let held = tx.claimed_run_locked(&self.whole.run.spec.id).await?;
        Ok(held.is_some_and(|held| {
            let asked = held.run.open_order().is_some_and(|(key, verb)| {
                key == self.key && matches!(verb, Verb::Perform | Verb::Follow)
            });
            let mine = held.epoch == self.whole.epoch && held.owner.is_some();
            mine && asked && !held.run.progress.halting()
        }))
    }
}

/// Asks every part that is at work to stop: frozen when the whole is frozen, canceled otherwise.
/// They end by themselves, and hold their devices until they have.
async fn stop_parts(tx: &mut Tx, whole: &Whole, key: &Key, now: Timestamp) -> Result<Standings> {
    let parts = read_parts(tx, key, &whole.group).await?;
    let Run { spec, progress, .. } = &whole.run;
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
