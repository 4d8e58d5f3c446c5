//! The text for a dry run of an operation: its steps, the machines that it affects, and its time.

use super::{target_name, type_label};
use crate::plan::add_previewed_step;
use crate::table::{ColorMode, Table};
use crate::text::one_line;
use model::run::{TimeEstimate, UsualTime};
use model::time::format_duration;
use proto::v1::{AffectedMachine, OperationPreview, PreviewedStep, Run};
use std::time::Duration;

/// The effect of a previewed request on its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewedRequest {
    /// It starts or continues it.
    Execute,
    Cancel,
    MarkManual,
}

impl PreviewedRequest {
    /// The first line, for an operation with or without steps to execute. `asked` is the step
    /// whose outcome is asked for before any other is executed.
    fn headline(self, has_steps: bool, asked: &str) -> String {
        let fixed = match (self, has_steps) {
            (Self::Execute, true) if !asked.is_empty() => {
                return format!("would ask what became of {asked}; then execute these steps:");
            }
            (Self::Execute, false) if !asked.is_empty() => {
                return format!("would ask what became of {asked}; then execute no other step");
            }
            (Self::Execute, true) => "would execute these steps:",
            (Self::Execute, false) => "would execute no step",
            (Self::Cancel, true) => "would be canceled, and these steps would undo its work:",
            (Self::Cancel, false) => "would be canceled; no step would be executed",
            (Self::MarkManual, _) => {
                "would stop and wait for an operator; no step would be executed"
            }
        };
        fixed.into()
    }
}

pub fn format_preview(run: &Run, request: PreviewedRequest) -> String {
    let target = one_line(target_name(&run.machine_id, &run.target_id));
    let kind = type_label(&run.r#type);
    let Some(preview) = &run.preview else {
        return format!("{kind} on {target}: nothing would be started\n");
    };
    if !preview.would_fail.is_empty() {
        let reason = one_line(&preview.would_fail);
        return format!("{kind} on {target} would fail: {reason}\n{}", note_lines(preview));
    }
    let headline = request.headline(!preview.steps.is_empty(), &one_line(&preview.asked_step));
    format!("{kind} on {target} {headline}\n{}", format_steps(preview))
}

/// The steps of a preview, its notes, the affected machines and its time.
pub fn format_steps(preview: &OperationPreview) -> String {
    let asks = !preview.asked_step.is_empty();
    match (preview.steps.is_empty(), asks) {
        (true, false) => note_lines(preview),
        (true, true) => closing_lines(preview),
        (false, _) => {
            let steps = step_table(&preview.steps).render(ColorMode { enabled: false });
            format!("\n{steps}{}", closing_lines(preview))
        }
    }
}

fn step_table(steps: &[PreviewedStep]) -> Table {
    let mut table =
        Table::new(&["STEP", "KIND", "TIMEOUT", "RETRIES", "USUAL", "DESTRUCTIVE", "WHAT"]);
    for previewed in steps {
        let step = previewed.step.clone().unwrap_or_default();
        let (usual, p95) = (previewed.usual_ms, previewed.usual_p95_ms);
        let usual = usual_cell(usual, p95);
        add_previewed_step(&mut table, &step, usual, previewed.destructive);
    }
    table
}

/// The usual time of a step, as `5s, up to 8s`; empty if it is not known.
pub fn usual_cell(usual_ms: i64, p95_ms: i64) -> String {
    match p95_ms {
        0 => String::new(),
        _ => format!("{}, up to {}", duration_of(usual_ms), duration_of(p95_ms)),
    }
}

fn duration_of(ms: i64) -> String {
    format_duration(milliseconds(ms))
}

fn milliseconds(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// The time of an operation: the median and the 95th percentile, which are 0 if they are not known,
/// and the sum of the deadlines.
pub fn time_line((usual_ms, p95_ms): (i64, i64), limit_seconds: i64) -> String {
    let limit = Duration::from_secs(u64::try_from(limit_seconds).unwrap_or_default());
    let (median, p95) = (milliseconds(usual_ms), milliseconds(p95_ms));
    let usual = (usual_ms > 0).then_some(UsualTime { median, p95: p95.max(median) });
    format!("time: {}\n", TimeEstimate { usual, limit }.words())
}

/// The notes of a preview: how the request would end a step in progress.
fn note_lines(preview: &OperationPreview) -> String {
    preview.notes.iter().map(|note| format!("{}\n", one_line(note))).collect()
}

fn closing_lines(preview: &OperationPreview) -> String {
    let mut text = format!("\n{}", note_lines(preview));
    for AffectedMachine { machine_id, against } in &preview.affected {
        let against = match against.as_str() {
            "" => String::new(),
            against => format!(" ({})", one_line(against)),
        };
        text.push_str(&format!("affected: {}{against}\n", one_line(machine_id)));
    }
    let usual = (preview.usual_ms, preview.usual_p95_ms);
    text.push_str(&time_line(usual, preview.limit_seconds));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::{RepaveImage, Step, step::Kind};

    #[test]
    fn steps_machines_and_time_are_shown() {
        let step = Step {
            name: "repave-os".into(),
            timeout_seconds: Some(3_600),
            max_retries: Some(1),
            kind: Some(Kind::Repave(RepaveImage { image: "ubuntu-2204".into() })),
        };
        let previewed = PreviewedStep {
            step: Some(step),
            undo: false,
            destructive: true,
            usual_ms: 300_000,
            usual_p95_ms: 420_000,
        };
        let against = "m-1 is READY and in service".to_string();
        let preview = OperationPreview {
            steps: vec![previewed],
            affected: vec![AffectedMachine { machine_id: "m-1".into(), against }],
            limit_seconds: 7_200,
            usual_ms: 300_000,
            usual_p95_ms: 420_000,
            notes: vec!["repave-os would be stopped at 60 %".into()],
            would_fail: String::new(),
            asked_step: String::new(),
        };
        let run = Run {
            machine_id: "m-1".into(),
            r#type: "REPAVE".into(),
            preview: Some(preview),
            ..Default::default()
        };
        let text = format_preview(&run, PreviewedRequest::Execute);
        for expected in [
            "REIMAGE on m-1 would execute these steps:",
            "repave-os",
            "ubuntu-2204",
            "affected: m-1 (m-1 is READY and in service)",
            "5m 0s, up to 7m 0s",
            "repave-os would be stopped at 60 %",
            "time: usually 5m 0s, up to 7m 0s",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let nothing = format_preview(&Run::default(), PreviewedRequest::Execute);
        assert!(nothing.contains("nothing would be started"));
    }

    /// A request that stops an operation executes nothing, except what undoes its work.
    #[test]
    fn the_first_line_says_what_the_request_does() {
        use PreviewedRequest::{Cancel, Execute, MarkManual};
        let asked = OperationPreview {
            steps: vec![PreviewedStep::default()],
            asked_step: "repave-os".into(),
            notes: vec!["m-1 would be asked what became of repave-os".into()],
            limit_seconds: 7_200,
            ..Default::default()
        };
        for (steps, expected) in [
            (1, "would ask what became of repave-os; then execute these steps:"),
            (0, "would ask what became of repave-os; then execute no other step"),
        ] {
            let steps = vec![PreviewedStep::default(); steps];
            let preview = Some(OperationPreview { steps, ..asked.clone() });
            let run = Run { r#type: "REPAVE".into(), preview, ..Default::default() };
            let text = format_preview(&run, Execute);
            assert!(text.lines().next().unwrap().ends_with(expected), "{text}");
            assert!(text.contains("m-1 would be asked") && text.contains("deadlines add up to 2h"));
        }
        for (request, steps, expected) in [
            (Execute, 1, "would execute these steps:"),
            (Execute, 0, "would execute no step"),
            (Cancel, 1, "would be canceled, and these steps would undo its work:"),
            (Cancel, 0, "would be canceled; no step would be executed"),
            (MarkManual, 0, "would stop and wait for an operator; no step would be executed"),
        ] {
            let steps = vec![PreviewedStep::default(); steps];
            let preview = Some(OperationPreview { steps, ..Default::default() });
            let machine_id = "m-1".to_string();
            let run = Run { machine_id, r#type: "REPAVE".into(), preview, ..Default::default() };
            let text = format_preview(&run, request);
            let first = text.lines().next();
            assert_eq!(first, Some(format!("REIMAGE on m-1 {expected}").as_str()));
        }
    }
}
