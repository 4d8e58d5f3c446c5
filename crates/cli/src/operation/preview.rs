//! The text for a dry run of an operation: its steps, the machines that it affects, and its time.

use super::{target_name, type_label};
use crate::plan::add_step;
use crate::table::{ColorMode, Table};
use crate::text::one_line;
use model::time::format_duration;
use proto::v1::{AffectedMachine, OperationPreview, PreviewedStep, Run};
use std::time::Duration;

pub fn format_preview(run: &Run) -> String {
    let target = one_line(target_name(&run.machine_id, &run.target_id));
    let kind = type_label(&run.r#type);
    let Some(preview) = &run.preview else {
        return format!("{kind} on {target}: nothing would be started\n");
    };
    if preview.steps.is_empty() {
        return format!("{kind} on {target} would execute no step\n");
    }
    let mut text = format!("{kind} on {target} would execute these steps:\n\n");
    text.push_str(&step_table(&preview.steps).render(ColorMode { enabled: false }));
    text.push_str(&closing_lines(preview));
    text
}

fn step_table(steps: &[PreviewedStep]) -> Table {
    let mut table = Table::new(&["STEP", "KIND", "TIMEOUT", "RETRIES", "DESTRUCTIVE", "WHAT"]);
    for previewed in steps {
        let step = previewed.step.clone().unwrap_or_default();
        add_step(&mut table, &step, Some(previewed.destructive));
    }
    table
}

fn closing_lines(preview: &OperationPreview) -> String {
    let mut text = String::from("\n");
    for AffectedMachine { machine_id, against } in &preview.affected {
        let against = match against.as_str() {
            "" => String::new(),
            against => format!(" ({})", one_line(against)),
        };
        text.push_str(&format!("affected: {}{against}\n", one_line(machine_id)));
    }
    let limit = Duration::from_secs(u64::try_from(preview.limit_seconds).unwrap_or_default());
    text.push_str(&format!("time: at most {}\n", format_duration(limit)));
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
        let previewed = PreviewedStep { step: Some(step), undo: false, destructive: true };
        let against = "m-1 is READY and in service".to_string();
        let preview = OperationPreview {
            steps: vec![previewed],
            affected: vec![AffectedMachine { machine_id: "m-1".into(), against }],
            limit_seconds: 7_200,
        };
        let run = Run {
            machine_id: "m-1".into(),
            r#type: "REPAVE".into(),
            preview: Some(preview),
            ..Default::default()
        };
        let text = format_preview(&run);
        for expected in [
            "REIMAGE on m-1 would execute these steps:",
            "repave-os",
            "ubuntu-2204",
            "affected: m-1 (m-1 is READY and in service)",
            "time: at most 2h",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(format_preview(&Run::default()).contains("nothing would be started"));
    }
}
