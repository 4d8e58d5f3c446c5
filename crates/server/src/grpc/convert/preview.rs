//! The preview of an operation, in the answer to a dry run.

use super::{operation, run, run_step};
use model::id::MachineId;
use model::machine::admit::impact_of;
use model::run::{RemainingStep, Run, remaining_steps, time_limit};
use proto::v1;

/// An operation that a request has started, or would start.
pub(in crate::grpc) fn operation_or_preview(done: &Run, dry_run: bool) -> v1::Operation {
    v1::Operation { preview: dry_run.then(|| preview(done)), ..operation(done) }
}

/// Like [`operation_or_preview`], for calls that return a run.
pub(in crate::grpc) fn run_or_preview(done: &Run, dry_run: bool) -> v1::Run {
    v1::Run { preview: dry_run.then(|| preview(done)), ..run(done) }
}

fn preview(run: &Run) -> v1::OperationPreview {
    let left = remaining_steps(run);
    let limit = time_limit(&left).as_secs();
    v1::OperationPreview {
        steps: left.iter().map(previewed_step).collect(),
        affected: affected(run, &left),
        limit_seconds: i64::try_from(limit).unwrap_or(i64::MAX),
    }
}

/// The machine of the run, if a step that is left takes something from it.
fn affected(run: &Run, left: &[RemainingStep]) -> Vec<v1::AffectedMachine> {
    let steps: Vec<_> = left.iter().map(|one| one.step.clone()).collect();
    let machine = run.spec.target.machine();
    let machine = machine.filter(|_| impact_of(run.spec.run_type, &steps).is_some());
    let affected =
        |id: MachineId| v1::AffectedMachine { machine_id: id.to_string(), ..Default::default() };
    machine.map(affected).into_iter().collect()
}

fn previewed_step(left: &RemainingStep) -> v1::PreviewedStep {
    v1::PreviewedStep {
        step: Some(run_step(&left.step)),
        undo: left.undo,
        destructive: left.step.effect.destructive(),
    }
}
