//! The preview of an operation, in the answer to a dry run.

use super::{operation, run, run_step};
use crate::grpc::status::OrStatus;
use crate::grpc::{Answer, Call};
use engine::run::RunPreview;
use model::effect::Effect;
use model::id::MachineId;
use model::machine::admit::impact_of;
use model::run::{PreviewedStep, Run, TimeEstimate, UsualTime};
use proto::v1;
use std::time::Duration;
use tonic::{Response, Status};

/// The relation of a request to the run in its answer.
#[derive(Debug, Clone, Copy)]
pub(in crate::grpc) struct AnsweredRun {
    /// The request has created the run.
    pub new: bool,
    pub dry_run: bool,
}

impl AnsweredRun {
    /// A run that a dry run would create has no id and no phase: no later request finds it.
    const fn exists(self) -> bool {
        !(self.new && self.dry_run)
    }
}

impl Call {
    /// An operation that a request has started or acted on, or would.
    pub(in crate::grpc) async fn operation_answer(
        &self,
        done: &Run,
        answered: AnsweredRun,
    ) -> Answer<v1::Operation> {
        let preview = self.run_preview(done, answered.dry_run).await?;
        let answer = v1::Operation { preview, ..operation(done) };
        Ok(Response::new(match answered.exists() {
            true => answer,
            false => v1::Operation {
                operation_id: String::new(),
                phase: v1::operation::Phase::Unspecified.into(),
                created_at: None,
                version: 0,
                ..answer
            },
        }))
    }

    /// Like [`Self::operation_answer`], for calls that return a run.
    pub(in crate::grpc) async fn run_answer(
        &self,
        done: &Run,
        answered: AnsweredRun,
    ) -> Answer<v1::Run> {
        let preview = self.run_preview(done, answered.dry_run).await?;
        Ok(Response::new(match answered.exists() {
            true => v1::Run { preview, ..run(done) },
            false => planned_run(done, preview),
        }))
    }

    pub(in crate::grpc) async fn run_preview(
        &self,
        done: &Run,
        dry_run: bool,
    ) -> Result<Option<v1::OperationPreview>, Status> {
        if !dry_run {
            return Ok(None);
        }
        let found = self.engine.with_dry_run(true).runs().preview(done).await;
        Ok(Some(preview(done, &found.or_status()?)))
    }
}

/// A run that would be created. It has no id and no phase: no later request finds it.
pub(in crate::grpc) fn planned_run(would: &Run, preview: Option<v1::OperationPreview>) -> v1::Run {
    let shown = run(would);
    let generated = shown.request_id == shown.run_id;
    v1::Run {
        run_id: String::new(),
        request_id: if generated { String::new() } else { shown.request_id },
        phase: v1::run::Phase::Unspecified.into(),
        workflow_state: v1::WorkflowState::Unspecified.into(),
        created_at: None,
        version: 0,
        preview,
        ..shown
    }
}

pub(in crate::grpc) fn preview(run: &Run, found: &RunPreview) -> v1::OperationPreview {
    let RunPreview { steps, notes, would_fail } = found;
    let (limit_seconds, usual_ms, usual_p95_ms) = time_fields(TimeEstimate::of(steps));
    let asked = steps.iter().find(|one| !one.is_certain());
    v1::OperationPreview {
        steps: steps.iter().filter(|one| one.is_certain()).map(previewed_step).collect(),
        affected: affected(run, steps),
        limit_seconds,
        usual_ms,
        usual_p95_ms,
        notes: notes.clone(),
        would_fail: would_fail.clone().unwrap_or_default(),
        asked_step: asked.map(|one| one.left.step.name.clone()).unwrap_or_default(),
    }
}

/// The sum of the deadlines in seconds; the median of the usual time and its 95th percentile in
/// milliseconds.
pub(in crate::grpc) fn time_fields(time: TimeEstimate) -> (i64, i64, i64) {
    let limit = i64::try_from(time.limit.as_secs()).unwrap_or(i64::MAX);
    let usual = |of: fn(UsualTime) -> Duration| milliseconds(time.usual.map(of));
    (limit, usual(|usual| usual.median), usual(|usual| usual.p95))
}

/// 0 means that none is recorded, so a recorded duration is at least 1.
pub(in crate::grpc) fn milliseconds(duration: Option<Duration>) -> i64 {
    let millis = duration.map_or(0, |one| one.as_millis().max(1));
    i64::try_from(millis).unwrap_or(i64::MAX)
}

/// The machine of the run, if a step that is left takes something from it: its work, too.
fn affected(run: &Run, left: &[PreviewedStep]) -> Vec<v1::AffectedMachine> {
    let steps: Vec<_> = left.iter().map(|one| one.left.step.clone()).collect();
    let machine = run.spec.target.machine();
    let drains = steps.iter().any(|step| matches!(step.effect, Effect::Drain { .. }));
    let machine = machine.filter(|_| drains || impact_of(run.spec.run_type, &steps).is_some());
    let affected =
        |id: MachineId| v1::AffectedMachine { machine_id: id.to_string(), ..Default::default() };
    machine.map(affected).into_iter().collect()
}

fn previewed_step(previewed: &PreviewedStep) -> v1::PreviewedStep {
    let PreviewedStep { left, usual } = previewed;
    v1::PreviewedStep {
        step: Some(run_step(&left.step)),
        undo: left.undo,
        destructive: left.step.effect.erases(),
        usual_ms: milliseconds(usual.as_ref().map(|usual| usual.median)),
        usual_p95_ms: milliseconds(usual.as_ref().map(|usual| usual.p95)),
    }
}
