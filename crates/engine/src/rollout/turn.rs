//! The work of a rollout's turn on its targets.
//!
//! All of it is in the transaction of the turn: the row of a target, the run that it starts, and
//! the counts of the rollout. A crash before the commit leaves the target as it was; after it, the
//! run exists, and its end wakes the rollout. A turn works on at most [`MAX_TARGETS_PER_TURN`].

use crate::Engine;
use crate::access::Caller;
use crate::admission::{Created, RecordStart, StartRequest, StartRun, event};
use crate::holds::halt_run;
use model::access::{TokenKind, TokenState, unauthenticated};
use model::gate::Overrides;
use model::here;
use model::id::{RolloutId, RunId};
use model::lifecycle::{SubjectId, SubjectKind};
use model::machine::Machine;
use model::plan::{Defaults, Maintenance, Params};
use model::refusal::{Reason, Refusal};
use model::rollout::{
    RefusedStart, Rollout, RolloutEditor, RolloutOperation, RolloutTarget, TargetContext,
    TargetStage, TargetState, TargetStep,
};
use model::run::actions::Action;
use model::run::{HistoryNote, Run};
use model::time::Timestamp;
use providers::Providers;
use store::{Cause, Result, StoreError, Tx};

/// The most targets that one turn works on; the rest have their own turns.
const MAX_TARGETS_PER_TURN: i64 = 32;
/// Runs that a lifecycle starts itself have the lower numbers.
const FIRST_RUN: u64 = 1 << 10;

/// What a turn needs beside the database.
#[derive(Clone)]
pub(crate) struct TurnResources {
    pub providers: Providers,
    pub defaults: Defaults,
    pub now: Timestamp,
    random: u64,
}

impl TurnResources {
    pub fn new(engine: &Engine) -> Self {
        Self {
            providers: engine.providers().clone(),
            defaults: engine.defaults().clone(),
            now: engine.now(),
            random: engine.random(),
        }
    }

    /// The id of a run of this turn; each number makes another one.
    pub fn run_id(&self, number: u64) -> RunId {
        RunId::new(self.now, self.random.wrapping_add(number << 32))
    }
}

/// The run of one stage of a target.
pub(super) struct StageRun<'a> {
    pub rollout: &'a RolloutId,
    pub operation: &'a RolloutOperation,
    pub machine: &'a Machine,
    pub stage: TargetStage,
    /// True for the first stage of the machine.
    pub begins: bool,
    pub request_id: String,
}

impl StageRun<'_> {
    /// The start of the run. A stage without a run of its own starts the operation.
    pub fn start(self, resources: &TurnResources, number: u64, caller: Caller) -> StartRun {
        let Self { rollout, operation, machine, stage, begins, request_id } = self;
        let (run_type, plan_id, params) = match stage.maintenance_run(machine) {
            Some((run_type, plan)) => (run_type, plan.map(Maintenance::plan_id), Params::new()),
            None => {
                let RolloutOperation { run_type, plan_id, params } = operation.clone();
                (run_type, plan_id, params)
            }
        };
        let start = StartRequest {
            machine_id: machine.id.clone(),
            request_id,
            run_type,
            plan_id,
            params,
            overrides: Overrides::default(),
            initiator: rollout.to_string(),
        };
        let by = RecordStart {
            id: resources.run_id(FIRST_RUN + number),
            record: SubjectId::new(SubjectKind::Rollout, rollout.as_str()),
            caller,
            begins,
            defaults: resources.defaults.clone(),
            providers: resources.providers.clone(),
            now: resources.now,
        };
        StartRun::by_record(start, by)
    }
}

/// The targets that a turn has moved, and what it still may do.
struct TargetWork<'a> {
    resources: &'a TurnResources,
    id: RolloutId,
    /// The rollout with its counts after the work.
    rollout: Rollout,
    /// The rights of the editor, read before the first start.
    rights: Option<std::result::Result<Caller, Refusal>>,
    started: u64,
    settled: Vec<TargetState>,
}

/// Works on the targets that are due, then on the next ones. Returns the rollout if its counts, or
/// its pause, have changed.
pub(crate) async fn work_on_targets(
    rollout: &Rollout,
    tx: &mut Tx,
    resources: &TurnResources,
    created: &mut Created,
) -> Result<Option<(Rollout, HistoryNote)>> {
    if rollout.stage.has_ended() {
        return Ok(None);
    }
    let mut work = TargetWork {
        resources,
        id: rollout.id(),
        rollout: rollout.clone(),
        rights: None,
        started: 0,
        settled: Vec::new(),
    };
    let due = tx.due_rollout_targets(&work.id, resources.now, MAX_TARGETS_PER_TURN).await?;
    let left = MAX_TARGETS_PER_TURN - i64::try_from(due.len()).unwrap_or(MAX_TARGETS_PER_TURN);
    for target in due {
        work.advance(tx, target, created).await?;
    }
    let left = left.min(i64::from(work.rollout.free_slots(resources.now)));
    let next = match left > 0 {
        true => tx.next_rollout_targets(&work.rollout, resources.now, left).await?,
        false => Vec::new(),
    };
    for target in next {
        // A start without rights has paused the rollout.
        if work.rollout.free_slots(resources.now) > 0 {
            work.advance(tx, target, created).await?;
        }
    }
    work.settled.iter().for_each(|state| created.settle_target(*state));
    let after = work.rollout;
    if after == *rollout {
        return Ok(None);
    }
    let note = HistoryNote::new(change_words(rollout, &after), here!());
    Ok(Some((after, note)))
}

/// Such as `wave 2: 3 active, 10 done`, with the reason of a new pause.
fn change_words(before: &Rollout, after: &Rollout) -> String {
    let changed = |state: &TargetState| before.counts.of(*state) != after.counts.of(*state);
    let states = TargetState::ALL.into_iter().filter(changed);
    let words: Vec<String> =
        states.map(|state| format!("{} {}", after.counts.of(state), state.as_str())).collect();
    let mut text = format!("wave {}: {}", after.wave, words.join(", "));
    if let Some(pause) = after.pause.as_ref().filter(|_| before.pause.is_none()) {
        text = match words.is_empty() {
            true => format!("paused: {}", pause.reason),
            false => format!("{text}; paused: {}", pause.reason),
        };
    }
    text
}

impl TargetWork<'_> {
    async fn advance(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        created: &mut Created,
    ) -> Result<()> {
        let now = self.resources.now;
        let stage = target.stage.unwrap_or(TargetStage::Operation);
        let machine = match readable(tx.machine(&target.machine).await)? {
            Ok(machine) => machine,
            Err(refusal) => return self.refused(tx, target, stage, &refusal),
        };
        let run = match &target.run {
            Some(id) => match readable(tx.run(id).await)? {
                Ok(run) => run,
                Err(refusal) => return self.refused(tx, target, stage, &refusal),
            },
            None => None,
        };
        let other = match target.state == TargetState::Active {
            true => None,
            false => tx.other_rollout_on(&target.machine, &self.id).await?,
        };
        let seen =
            TargetContext { machine: machine.as_ref(), run: run.as_ref(), other: other.as_ref() };
        match target.next(&self.rollout, seen, now) {
            TargetStep::Keep => {
                let kept = RolloutTarget { due_at: None, ..target.clone() };
                self.write(tx, target.state, kept)
            }
            TargetStep::Cancel(run) => self.cancel(tx, target, &run).await,
            TargetStep::Change(after) => self.write(tx, target.state, *after),
            TargetStep::Start(row, stage) => match machine {
                Some(machine) => self.start(tx, *row, (&machine, stage), created).await,
                // A target without its machine starts nothing.
                None => self.write(tx, target.state, *row),
            },
        }
    }

    async fn start(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        (machine, stage): (&Machine, TargetStage),
        created: &mut Created,
    ) -> Result<()> {
        let caller = match self.rights(tx).await? {
            Ok(caller) => caller,
            Err(refusal) => return self.refused(tx, target, stage, &refusal),
        };
        let run = StageRun {
            rollout: &self.id,
            operation: &self.rollout.spec.operation,
            machine,
            stage,
            begins: target.state != TargetState::Active,
            request_id: target.request_id(&self.id, stage),
        };
        let start = run.start(self.resources, self.started, caller);
        self.started += 1;
        match start.run(tx, created).await {
            Ok(started) => {
                let before = target.state;
                let Run { spec, .. } = started.run;
                self.write(tx, before, target.started(stage, spec.id, self.resources.now))
            }
            Err(StoreError::Refused(refusal)) => self.refused(tx, target, stage, &refusal),
            Err(error) => Err(error),
        }
    }

    fn refused(
        &mut self,
        tx: &mut Tx,
        target: RolloutTarget,
        stage: TargetStage,
        refusal: &Refusal,
    ) -> Result<()> {
        let (before, now) = (target.state, self.resources.now);
        let row = match target.refused(&self.rollout, stage, refusal, now) {
            RefusedStart::Target(row) => row,
            RefusedStart::NoRights(row, reason) => {
                self.rollout = self.rollout.paused(&reason, "engine", now);
                row
            }
        };
        self.write(tx, before, *row)
    }

    async fn cancel(&mut self, tx: &mut Tx, target: RolloutTarget, run: &RunId) -> Result<()> {
        let reason = format!("{} was aborted", self.id);
        let event =
            event(Cause::Engine, self.id.as_str(), reason.clone(), here!(), self.resources.now);
        let mut row = RolloutTarget { due_at: None, ..target.clone() };
        match halt_run(tx, run, Action::Cancel, &reason, &event).await {
            Ok(()) => {}
            // It goes on to its end.
            Err(StoreError::Refused(refusal)) => row.reason = refusal.message,
            Err(error) => return Err(error),
        }
        self.write(tx, target.state, row)
    }

    /// Writes a row, and counts it where it has changed its state.
    fn write(&mut self, tx: &mut Tx, before: TargetState, row: RolloutTarget) -> Result<()> {
        self.rollout.counts.shift(before, row.state, 1);
        if before != row.state && !TargetState::OPEN.contains(&row.state) {
            self.settled.push(row.state);
        }
        tx.update_rollout_target(&self.id, &row)
    }

    async fn rights(&mut self, tx: &mut Tx) -> Result<std::result::Result<Caller, Refusal>> {
        if let Some(known) = &self.rights {
            return Ok(known.clone());
        }
        let found = editor_rights(tx, &self.rollout.editor.clone(), self.resources.now).await?;
        self.rights = Some(found.clone());
        Ok(found)
    }
}

/// The rights that the editor has now, or why there are none.
async fn editor_rights(
    tx: &mut Tx,
    editor: &RolloutEditor,
    now: Timestamp,
) -> Result<std::result::Result<Caller, Refusal>> {
    if !editor.is_user {
        return Ok(Ok(Caller::internal()));
    }
    if let Some(id) = &editor.token_id {
        let token = tx.api_token(id).await?.filter(|token| token.kind == TokenKind::Api);
        // The end of a browser's session takes no rights away.
        let ended = match token.map(|token| token.state(now)) {
            Some(TokenState::Revoked) => Some("was revoked"),
            Some(TokenState::Expired) => Some("has expired"),
            Some(TokenState::Valid) | None => None,
        };
        if let Some(ended) = ended {
            let user = &editor.user;
            let problem = format!("the token {id} of {user}, the last editor, {ended}");
            return Ok(Err(unauthenticated(&problem)));
        }
    }
    let principal = editor.principal();
    // An unreadable row grants nothing.
    let policy = tx.access_policy(&mut Vec::new()).await?;
    let grants = policy.grants(&principal);
    Ok(Ok(Caller::of_record(principal, grants)))
}

/// A row that cannot be read holds up its target, not the rollout.
fn readable<T>(found: Result<Option<T>>) -> Result<std::result::Result<Option<T>, Refusal>> {
    match found {
        Err(StoreError::Corrupt(problem)) => Ok(Err(Refusal::new(Reason::MachineBlocked, problem))),
        found => Ok(Ok(found?)),
    }
}
