//! What is stored of a run stays readable: the golden files were written by an earlier Farrier.

use crate::support::{at, join, note, spec, wipe};
use crate::walk::states;
use model::effect::{Effect, NetbootMode, Verb};
use model::fault::{Code, Fault};
use model::id::RunId;
use model::plan::{OnFailure, Params, RunStep};
use model::run::{
    Asked, Failure, Halt, HaltKind, Progress, Run, RunSpec, StepPhase, StepState, Workflow,
};

const SPEC: &str = include_str!("golden/run_spec.json");
const PROGRESS: &str = include_str!("golden/progress.json");

fn golden_spec() -> RunSpec {
    let netboot = Effect::Netboot { mode: NetbootMode::Pxe };
    let netboot =
        RunStep { name: "netboot".into(), timeout_seconds: 60, max_retries: 2, effect: netboot };
    RunSpec {
        params: Params::from([("image_ref".into(), "ubuntu-2204".into())]),
        parent: Some(RunId::trusted("op-0")),
        on_failure: OnFailure::EnterMaintenance,
        engine: 1,
        ..spec(vec![netboot, wipe(1), join(0), note(0)])
    }
}

fn step(of: usize, undo: bool, state: StepPhase, attempt: u32) -> StepState {
    StepState {
        of,
        undo,
        state,
        attempt,
        budget: 3,
        open: false,
        attempt_since: at(2),
        pursuit: Verb::Perform,
        asked: None,
        doubt: None,
        looks: 0,
        not_before: None,
        message: String::new(),
        started_at: None,
        finished_at: None,
    }
}

/// Every field with something in it, somewhere.
fn golden_progress() -> Progress {
    let lost = Fault::new(Code::AnswerLost, "the BMC closed the connection");
    Progress {
        workflow: Workflow::Compensating,
        steps: vec![
            StepState {
                message: "boots from the network".into(),
                started_at: Some(at(1)),
                finished_at: Some(at(2)),
                ..step(0, false, StepPhase::Succeeded, 1)
            },
            step(1, false, StepPhase::Failed, 2),
            step(2, false, StepPhase::Waiting, 0),
            StepState {
                open: true,
                pursuit: Verb::Inquire,
                asked: Some(Asked { verb: Verb::Inquire, epoch: 7, at: at(5) }),
                doubt: Some(lost.clone()),
                looks: 2,
                not_before: Some(at(6)),
                ..step(0, true, StepPhase::Running, 1)
            },
        ],
        at: 3,
        scan: Some(0),
        halt: Some(Halt {
            kind: HaltKind::Cancel,
            reason: "wrong image".into(),
            by: "alice".into(),
            undoing: true,
        }),
        adopted: true,
        started_at: Some(at(1)),
        finished_at: Some(at(9)),
        failure: Some(Failure { fault: lost, step: "undo-netboot".into(), attempts: 1 }),
    }
}

/// When this fails because something was added, give the new field a default and leave the files alone;
/// they stand for the records in other people's databases.
#[test]
fn stored_records_are_read_as_they_were_meant() {
    let spec: RunSpec = serde_json::from_str(SPEC).expect("a stored RunSpec is readable");
    assert_eq!(spec, golden_spec());
    let progress: Progress = serde_json::from_str(PROGRESS).expect("a stored Progress is readable");
    assert_eq!(progress, golden_progress());
}

/// What is written now reads the same to the Farrier that wrote the files: nothing was renamed.
#[test]
fn what_is_written_has_every_golden_field() {
    let written = serde_json::to_value(golden_spec()).unwrap();
    contains(&written, &serde_json::from_str(SPEC).unwrap(), "spec");
    let written = serde_json::to_value(golden_progress()).unwrap();
    contains(&written, &serde_json::from_str(PROGRESS).unwrap(), "progress");
}

fn contains(written: &serde_json::Value, golden: &serde_json::Value, path: &str) {
    use serde_json::Value::{Array, Object};
    match (written, golden) {
        (Object(written), Object(golden)) => {
            for (key, value) in golden {
                let path = format!("{path}.{key}");
                contains(written.get(key).unwrap_or_else(|| panic!("{path}")), value, &path);
            }
        }
        (Array(written), Array(golden)) => {
            assert_eq!(written.len(), golden.len(), "{path}");
            for (index, (one, other)) in written.iter().zip(golden).enumerate() {
                contains(one, other, &format!("{path}[{index}]"));
            }
        }
        (written, golden) => assert_eq!(written, golden, "{path}"),
    }
}

#[test]
fn every_reachable_state_survives_the_store() {
    for (run, _) in states(vec![join(0)]) {
        let text = serde_json::to_string(&run.progress).unwrap();
        let back: Progress = serde_json::from_str(&text).unwrap();
        assert_eq!(back, run.progress);
        let spec: RunSpec =
            serde_json::from_str(&serde_json::to_string(&run.spec).unwrap()).unwrap();
        assert_eq!(Run { spec, progress: back, version: run.version }, run);
    }
}
