//! The text for a dry run of an operation: its steps, the machines that it affects, and its time.

use super::{target_name, type_label};
use crate::plan::add_previewed_step;
use crate::table::{ColorMode, Table};
use crate::text::one_line;
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
    /// The first line, for an operation with or without steps to execute.
    fn headline(self, has_steps: bool) -> &'static str {
        match (self, has_steps) {
            (Self::Execute, true) => "would execute these steps:",
            (Self::Execute, false) => "would execute no step",
            (Self::Cancel, true) => "would be canceled, and these steps would undo its work:",
            (Self::Cancel, false) => "would be canceled; no step would be executed",
            (Self::MarkManual, _) => {
                "would stop and wait for an operator; no step would be executed"
            }
        }
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
    let headline = request.headline(!preview.steps.is_empty());
    if preview.steps.is_empty() {
        return format!("{kind} on {target} {headline}\n{}", note_lines(preview));
    }
    let mut text = format!("{kind} on {target} {headline}\n\n");
    text.push_str(&step_table(&preview.steps).render(ColorMode { enabled: false }));
    text.push_str(&closing_lines(preview));
    text
}

fn step_table(steps: &[PreviewedStep]) -> Table {
    let mut table =
        Table::new(&["STEP", "KIND", "TIMEOUT", "RETRIES", "USUAL", "DESTRUCTIVE", "WHAT"]);
    for previewed in steps {
        let step = previewed.step.clone().unwrap_or_default();
        let (usual, p95) = (previewed.usual_ms, previewed.usual_p95_ms);
        let usual = match p95 {
            0 => String::new(),
            _ => format!("{}, up to {}", duration_of(usual), duration_of(p95)),
        };
        add_previewed_step(&mut table, &step, usual, previewed.destructive);
    }
    table
}

fn duration_of(ms: i64) -> String {
    format_duration(Duration::from_millis(u64::try_from(ms).unwrap_or_default()))
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
    let limit = Duration::from_secs(u64::try_from(preview.limit_seconds).unwrap_or_default());
    let usual = match preview.usual_ms {
        0 => String::new(),
        ms => format!("usually {}, ", duration_of(ms)),
    };
    text.push_str(&format!("time: {usual}at most {}\n", format_duration(limit)));
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
            notes: vec!["repave-os would be stopped at 60 %".into()],
            would_fail: String::new(),
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
            "time: usually 5m 0s, at most 2h",
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
