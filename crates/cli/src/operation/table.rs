//! Operations as people read them: the list, and all details of one.

use super::{target_label, target_name};
use crate::follow::summary::{error_lines, phase_label};
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::{join_pairs, one_line};
use crate::time::Clock;
use model::node::NODE;
use model::plan::RunType;
use proto::v1::{Run, StepStatus, run::Phase, step_status::State};
use proto::words::WireEnum;

pub fn workflow_name(run: &Run) -> &'static str {
    match run.workflow_state().word() {
        "" => "-",
        word => word,
    }
}

/// The type of an operation as people read it. The API calls a reimage REPAVE in runs and plans.
pub fn type_label(name: &str) -> &str {
    match RunType::parse(name) {
        Some(kind) => kind.as_str(),
        None => name,
    }
}

/// A list of operations, one row each.
pub fn operation_table(runs: &[Run], wide: bool, clock: &Clock) -> Table {
    let names = ["OPERATION_ID", "TARGET", "TYPE", "PHASE", "STEP", "CREATED", "DURATION"];
    let more = ["NODE", "PLAN", "WORKFLOW", "REQUEST_ID", "INITIATOR", "PARENT", "ERROR"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for run in runs {
        let (tone, _) = phase_label(run.phase());
        let mut row: Vec<Cell> = vec![
            (&run.run_id).into(),
            target_name(&run.machine_id, &run.target_id).into(),
            type_label(&run.r#type).into(),
            Cell::with_tone(run.phase().as_str_name(), tone),
            (&run.current_step).into(),
            clock.ago(run.created_at.as_ref()).into(),
            clock.elapsed(run.started_at.as_ref(), run.finished_at.as_ref()).into(),
        ];
        if wide {
            let error = run.error.as_ref().map_or("", |error| error.message.as_str());
            row.extend([
                run.params.get(NODE).map_or("", String::as_str).into(),
                (&run.plan_id).into(),
                workflow_name(run).into(),
                (&run.request_id).into(),
                (&run.initiator).into(),
                (&run.parent_run_id).into(),
                error.into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// Formats all details of one run.
pub fn describe(run: &Run, clock: &Clock) -> String {
    let mut facts = vec![
        ("Operation:", run.run_id.clone()),
        (target_label(run.target_kind()), target_name(&run.machine_id, &run.target_id).into()),
        ("Part of:", run.part_of.clone()),
        ("Type:", type_label(&run.r#type).into()),
        ("Plan:", run.plan_id.clone()),
        ("Phase:", run.phase().as_str_name().into()),
        ("Workflow:", workflow_name(run).into()),
        ("Params:", join_pairs(&run.params, ", ")),
        ("RequestId:", run.request_id.clone()),
        ("Initiator:", run.initiator.clone()),
        ("Parent:", run.parent_run_id.clone()),
        ("Created:", clock.absolute(run.created_at.as_ref())),
        ("Duration:", clock.elapsed(run.started_at.as_ref(), run.finished_at.as_ref())),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format_pairs(&facts);
    for line in error_lines(run) {
        text.push_str(&format!("{line}\n"));
    }
    // A canceled operation without a failure may have left work half done.
    if run.phase() == Phase::Canceled && run.error.is_none() {
        text.push_str(&format!("Next: farrier why {}\n", one_line(&run.run_id)));
    }
    if !run.steps.is_empty() {
        text.push('\n');
        text.push_str(&steps_table(&run.steps, clock).render(ColorMode { enabled: false }));
    }
    text
}

fn steps_table(steps: &[StepStatus], clock: &Clock) -> Table {
    let mut table = Table::new(&["STEP", "KIND", "STATE", "RETRIES", "DURATION", "MESSAGE"]);
    for step in steps {
        let kind = if step.undo { format!("undo {}", step.kind) } else { step.kind.clone() };
        let state = match step.state() {
            State::Unspecified => Cell::from("-"),
            State::Waiting => Cell::with_tone("WAITING", Tone::Dim),
            State::Running => Cell::with_tone("RUNNING", Tone::Busy),
            State::Succeeded => Cell::with_tone("SUCCEEDED", Tone::Good),
            State::Failed => Cell::with_tone("FAILED", Tone::Bad),
        };
        table.add_row(vec![
            (&step.name).into(),
            kind.into(),
            state,
            step.retry_count.to_string().into(),
            clock.elapsed(step.started_at.as_ref(), step.finished_at.as_ref()).into(),
            (&step.message).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;

    fn onboarding() -> Run {
        Run {
            run_id: "op-1".into(),
            machine_id: "machine-1".into(),
            r#type: "ONBOARD".into(),
            plan_id: "p".into(),
            phase: Phase::Failed.into(),
            workflow_state: proto::v1::WorkflowState::FailedRetryable.into(),
            current_step: "wait_for_ready".into(),
            params: [(NODE.to_string(), "node-1".to_string())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_list_of_operations() {
        let reimage = Run {
            run_id: "op-2".into(),
            machine_id: "machine-2".into(),
            r#type: "REPAVE".into(),
            phase: Phase::Running.into(),
            current_step: "repave".into(),
            created_at: Some(Timestamp { seconds: 100, nanos: 0 }),
            started_at: Some(Timestamp { seconds: 110, nanos: 0 }),
            ..Default::default()
        };
        let rack = Run {
            run_id: "op-3".into(),
            target_kind: proto::v1::TargetKind::Rack.into(),
            target_id: "rack-1".into(),
            r#type: "RACK_MAINTENANCE".into(),
            phase: Phase::Pending.into(),
            ..Default::default()
        };
        let shown = operation_table(&[onboarding(), reimage, rack], false, &Clock::fixed(200));
        assert_eq!(
            shown.render(ColorMode { enabled: false }),
            "\
OPERATION_ID  TARGET     TYPE              PHASE    STEP            CREATED     DURATION
op-1          machine-1  ONBOARD           FAILED   wait_for_ready  -           -
op-2          machine-2  REIMAGE           RUNNING  repave          1m 40s ago  1m 30s
op-3          rack-1     RACK_MAINTENANCE  PENDING  -               -           -
"
        );
    }

    #[test]
    fn a_wide_list_names_the_node_and_the_workflow_state() {
        let shown = operation_table(&[onboarding()], true, &Clock::fixed(0));
        let text = shown.render(ColorMode { enabled: false });
        let row = text.lines().nth(1).unwrap();
        assert!(row.contains("  node-1  p     failed_retryable  "), "{text}");
    }

    #[test]
    fn a_type_is_shown_by_the_customers_name() {
        for (name, shown) in [("REPAVE", "REIMAGE"), ("REIMAGE", "REIMAGE"), ("NEW", "NEW")] {
            assert_eq!(type_label(name), shown);
        }
    }

    #[test]
    fn a_run_in_full() {
        let step = StepStatus {
            name: "set-netboot".into(),
            kind: "netboot".into(),
            state: State::Running.into(),
            retry_count: 1,
            started_at: Some(Timestamp { seconds: 90, nanos: 0 }),
            message: "no answer".into(),
            ..Default::default()
        };
        let run = Run {
            run_id: "op-1".into(),
            machine_id: "machine-1".into(),
            r#type: "REPAVE".into(),
            phase: Phase::Running.into(),
            workflow_state: proto::v1::WorkflowState::Running.into(),
            steps: vec![step],
            ..Default::default()
        };
        assert_eq!(
            describe(&run, &Clock::fixed(100)),
            "\
Operation:  op-1
Machine:    machine-1
Type:       REIMAGE
Phase:      RUNNING
Workflow:   running
Created:    -
Duration:   -

STEP         KIND     STATE    RETRIES  DURATION  MESSAGE
set-netboot  netboot  RUNNING  1        10s       no answer
"
        );
    }
}
