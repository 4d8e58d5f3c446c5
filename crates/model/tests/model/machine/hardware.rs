//! The recorded hardware of a machine.

use model::machine::MachineSpec;
use model::machine::hardware::{HardwareSummary, PartSummary, RecordedHardware};
use model::text::MAX_SHORT;
use model::time::Timestamp;

#[test]
fn parts_are_counted_and_their_models_named_once() {
    for (models, count, model) in [
        (&[][..], 0, ""),
        (&[""], 1, ""),
        (&["H100", "H100", ""], 3, "H100"),
        (&["a", "b", "a", "c", "d", "e"], 6, "a, b, c, and 2 more"),
    ] {
        let found = PartSummary::of(models.iter().copied());
        assert_eq!((found.count, found.model.as_str()), (count, model), "{models:?}");
    }
}

#[test]
fn a_device_cannot_fill_the_record() {
    let summary = HardwareSummary {
        vendor: "é".repeat(1_000),
        serial: " A\u{1b}[2J\n".into(),
        ..HardwareSummary::default()
    };
    let bounded = summary.bounded();
    assert_eq!(bounded.vendor.len(), MAX_SHORT);
    assert_eq!(bounded.serial, "A [2J");
}

#[test]
fn a_serial_number_differs_only_if_both_are_known() {
    for (found, spec, differs) in
        [("", "", false), ("A", "", false), ("", "B", false), ("A", "a ", false), ("A", "B", true)]
    {
        let summary = HardwareSummary { serial: found.into(), ..HardwareSummary::default() };
        let recorded = RecordedHardware { summary, inspected_at: Timestamp::from_millis(1) };
        let spec = MachineSpec { serial: spec.into(), ..MachineSpec::default() };
        assert_eq!(recorded.serial_differs(&spec), differs, "{found:?} {spec:?}");
        let note = recorded.serial_note(&spec);
        assert_eq!(note.is_some(), differs);
        assert!(note.is_none_or(|note| note.contains("A; the spec says B")));
    }
}
