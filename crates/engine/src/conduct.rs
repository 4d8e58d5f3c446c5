//! Conducting: the step of a run on a rack that sends its devices to work, each in a run of its own.
//!
//! The parts are named by the key of the attempt that sends them, so who comes after a crash finds what was begun and begins the rest.
//! A part begins in a transaction that looks whether the whole still wants it: who has lost the claim, or was told to stop, begins
//! nothing. What an earlier attempt has brought to its end is not done again.

use crate::Engine;
use crate::claims::{cancel_run, start_run};
use futures_util::stream::{self, StreamExt};
use model::effect::{Answer, Group, Key, Order, Outcome, Part, Verb};
use model::fault::{Code, Fault};
use model::here;
use model::id::RunId;
use model::lifecycle::{NewRun, Waited, waited};
use model::run::Run;
use model::time::Timestamp;
use providers::{Journal, Target};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{Birth, Cause, NewEvent, Result, Signal, StoreError, Tx, Work};
use tokio::sync::broadcast::error::RecvError;

/// How long to trust that a signal would have come.
const POLL: Duration = Duration::from_secs(2);
/// How many devices are looked at at once.
const LOOKS_AT_ONCE: usize = 16;
/// How many devices a sentence names; the others are counted.
const MAX_NAMED: usize = 4;

/// The whole, as the worker that conducts it holds it.
#[derive(Clone)]
pub(crate) struct Whole {
    pub run: Run,
    pub epoch: i64,
}

/// How one part stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    NotBegun,
    Going(RunId),
    Done(String),
    Failed { run: RunId, said: String },
}

type Standings = Vec<(Part, Standing)>;

impl Engine {
    pub(crate) async fn conduct(
        &self,
        whole: &Whole,
        order: &Order,
        group: &Group,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        match order.verb {
            Verb::Perform | Verb::Follow => self.see_through(whole, order, group, journal).await,
            Verb::Inquire => {
                let parts = self.standings(whole, order, group).await?;
                let begun = parts.iter().any(|(_, one)| *one != Standing::NotBegun);
                Ok(match (begun, all_done(&parts)) {
                    (_, Some(outcome)) => Answer::Done(outcome),
                    (true, None) => Answer::UnderWay,
                    (false, None) => Answer::NeverStarted,
                })
            }
            Verb::Observe => self.observe_parts(order, group, journal).await,
            Verb::Stop => {
                let work = StopParts {
                    whole: whole.clone(),
                    key: order.key.clone(),
                    group: group.clone(),
                    now: self.now(),
                };
                let parts = self.store().write(work).await.map_err(lost)?;
                Ok(all_done(&parts).map_or(Answer::Stopped, Answer::Done))
            }
        }
    }

    /// Begins what is to begin, and waits until all parts have ended, or those that were begun when one failed.
    async fn see_through(
        &self,
        whole: &Whole,
        order: &Order,
        group: &Group,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        let mut signals = self.store().bus().listen();
        let mut told: BTreeMap<String, Standing> = BTreeMap::new();
        loop {
            let work = BeginParts {
                whole: whole.clone(),
                key: order.key.clone(),
                group: group.clone(),
                chance: self.chance(),
                now: self.now(),
            };
            let parts = match self.store().write(work).await {
                Ok(parts) => parts,
                // Somebody else wrote first: look again.
                Err(StoreError::Conflict) => continue,
                Err(error) => return Err(lost(error)),
            };
            tell(&parts, &mut told, journal).await;
            if let Some(outcome) = all_done(&parts) {
                return Ok(Answer::Done(outcome));
            }
            let going = parts.iter().any(|(_, one)| matches!(one, Standing::Going(_)));
            if let (false, Some(fault)) = (going, failure(&parts)) {
                return Err(fault);
            }
            let mine = whole.run.spec.id.object();
            let heard = async {
                loop {
                    match signals.recv().await {
                        Ok(Signal::Wake(id)) if id == mine => return,
                        Ok(_) => {}
                        Err(RecvError::Lagged(_) | RecvError::Closed) => return,
                    }
                }
            };
            // A lost signal costs a little time, never the work.
            let _ = tokio::time::timeout(POLL, heard).await;
        }
    }

    async fn standings(
        &self,
        whole: &Whole,
        order: &Order,
        group: &Group,
    ) -> std::result::Result<Standings, Fault> {
        let (whole, key, group) = (whole.clone(), order.key.clone(), group.clone());
        self.store().read(ReadParts { whole, key, group }).await.map_err(lost)
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
                let order = Order { effect: step.effect.clone(), ..order.clone() };
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
                Ok(_) => wrong.push(format!("{target}: it cannot be seen")),
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

fn lost(error: StoreError) -> Fault {
    match error {
        StoreError::Refused(refusal) => Fault::new(Code::EffectFailed, refusal.said),
        error => Fault::new(Code::DatabaseUnreachable, format!("Farrier's own database: {error}")),
    }
}

/// Writes into the log what has changed since the last look.
async fn tell(parts: &Standings, told: &mut BTreeMap<String, Standing>, journal: &Journal) {
    for (part, standing) in parts {
        let key = part.target.key();
        if told.get(&key) == Some(standing) {
            continue;
        }
        let device = &part.target;
        match standing {
            Standing::NotBegun => {}
            Standing::Going(run) => journal.line(format!("{device}: {run} begun")).await,
            Standing::Done(said) => journal.line(format!("{device}: {said}")).await,
            Standing::Failed { run, said } => {
                journal.line(format!("{device}: {run} failed: {said}")).await;
            }
        }
        told.insert(key, standing.clone());
    }
}

/// The outcome, once every part has reached its end.
fn all_done(parts: &Standings) -> Option<Outcome> {
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

/// What failed: the device, what was said, and what was left alone.
fn failure(parts: &Standings) -> Option<Fault> {
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

fn some_of(all: &[String]) -> String {
    let named = all.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join("; ");
    match all.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

fn counted(count: usize) -> String {
    if count == 1 { "1 device".into() } else { format!("{count} devices") }
}

/// How the parts of a group stand: the newest run of each, whichever attempt began it. What failed under an earlier attempt is to
/// begin anew under this one.
async fn read_parts(tx: &mut Tx, key: &Key, group: &Group) -> Result<Standings> {
    let targets: Vec<String> = group.parts.iter().map(|part| part.target.key()).collect();
    let mut known: BTreeMap<String, Standing> = BTreeMap::new();
    for (index, key) in key.attempts().iter().enumerate() {
        let earlier = index > 0;
        for run in tx.runs_of_request(&targets, key.as_str()).await? {
            let standing = standing(&run);
            let stale = earlier && matches!(standing, Standing::Failed { .. });
            if !stale {
                known.entry(run.spec.target.key()).or_insert(standing);
            }
        }
    }
    let of = |part: &Part| known.remove(&part.target.key()).unwrap_or(Standing::NotBegun);
    let standings = group.parts.iter().map(of).collect::<Vec<_>>();
    Ok(group.parts.iter().cloned().zip(standings).collect())
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

struct ReadParts {
    whole: Whole,
    key: Key,
    group: Group,
}

impl Work for ReadParts {
    type Out = Standings;

    async fn run(&self, tx: &mut Tx) -> Result<Standings> {
        // A part that was begun under a claim that is lost since is seen all the same.
        let _ = &self.whole;
        read_parts(tx, &self.key, &self.group).await
    }
}

/// Begins as many parts as may be at work, unless one has failed or the whole is to stop.
struct BeginParts {
    whole: Whole,
    key: Key,
    group: Group,
    chance: u64,
    now: Timestamp,
}

impl Work for BeginParts {
    type Out = Standings;

    async fn run(&self, tx: &mut Tx) -> Result<Standings> {
        let mut parts = read_parts(tx, &self.key, &self.group).await?;
        if parts.iter().any(|(_, one)| matches!(one, Standing::Failed { .. })) {
            return Ok(parts);
        }
        self.check_wanted(tx).await?;
        let spec = &self.whole.run.spec;
        let going = parts.iter().filter(|(_, one)| matches!(one, Standing::Going(_))).count();
        let room = (self.group.at_once.max(1) as usize).saturating_sub(going);
        let event = event(self.now, format!("a part of {}", spec.id), &spec.initiator);
        let to_begin = parts.iter_mut().filter(|(_, one)| *one == Standing::NotBegun).take(room);
        for (count, (part, standing)) in to_begin.enumerate() {
            let id = RunId::new(self.now, self.chance.wrapping_add((count as u64) << 32));
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
            start_run(tx, new, Birth::Due, None, &event).await?;
            *standing = Standing::Going(id);
        }
        Ok(parts)
    }
}

impl BeginParts {
    /// Nothing begins for a worker that has lost its claim, nor for a whole that is to stop.
    async fn check_wanted(&self, tx: &mut Tx) -> Result<()> {
        let held = tx.held(&self.whole.run.spec.id).await?;
        let wanted = held.is_some_and(|held| {
            let asked = held.run.open_order().is_some_and(|(key, _)| key == self.key);
            held.epoch == self.whole.epoch && asked && !held.run.progress.halting()
        });
        match wanted {
            true => Ok(()),
            false => Err(StoreError::Unavailable("the operation is in other hands".into())),
        }
    }
}

/// Asks every part that is at work to stop. They end by themselves, and hold their devices until they have.
struct StopParts {
    whole: Whole,
    key: Key,
    group: Group,
    now: Timestamp,
}

impl Work for StopParts {
    type Out = Standings;

    async fn run(&self, tx: &mut Tx) -> Result<Standings> {
        let parts = read_parts(tx, &self.key, &self.group).await?;
        let spec = &self.whole.run.spec;
        let event = event(self.now, String::new(), "engine");
        for (_, standing) in &parts {
            if let Standing::Going(run) = standing {
                cancel_run(tx, run, &format!("{} is to stop", spec.id), &event).await?;
            }
        }
        Ok(parts)
    }
}

fn event(at: Timestamp, message: String, actor: &str) -> NewEvent {
    let decided_by = here!().into();
    NewEvent { cause: Cause::Engine, actor: actor.into(), message, decided_by, at }
}
