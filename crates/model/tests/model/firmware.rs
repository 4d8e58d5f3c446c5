//! Firmware: which one is used, which one is refused, what a device lacks.

use model::effect::Effect;
use model::firmware::update::FirmwareUpdate;
use model::firmware::{Firmware, FirmwareComponent, FirmwareResolution, MAX_COMPONENTS, resolve};
use model::id::FirmwareId;
use model::lifecycle::run_step;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;

fn component(name: &str) -> FirmwareComponent {
    FirmwareComponent {
        name: name.into(),
        version: "2.1".into(),
        url: "https://files.example/bmc.bin".into(),
        sha256: "a".repeat(64),
    }
}

fn firmware(id: &str, available: bool) -> Firmware {
    Firmware {
        id: FirmwareId::trusted(id),
        hardware_type: "nvl72".into(),
        description: String::new(),
        components: BTreeMap::from([(TargetKind::Machine, vec![component("BMC")])]),
        is_default: false,
        available,
        created_at: Timestamp::default(),
        version: 1,
    }
}

/// The table of the document, and the rules below it.
#[test]
fn which_firmware_is_used() {
    let named = FirmwareId::trusted("fw-v2.1");
    let one = |id: &str, available| Some(firmware(id, available));
    let uses = |id: &str| format!("use {id}");
    let table = [
        // Ingestion, reprovision and on demand without a version: the default.
        (None, None, one("default", true), "nvl72", uses("default")),
        (None, None, one("default", false), "nvl72", "skip: default firmware default".into()),
        (None, None, None, "nvl72", "skip: no default firmware for hardware type nvl72".into()),
        (None, None, None, "", "skip: no hardware type".into()),
        // On demand with a version: looked up by id, whatever the default is.
        (Some(&named), one("fw-v2.1", true), None, "nvl72", uses("fw-v2.1")),
        (Some(&named), one("fw-v2.1", true), one("default", true), "nvl72", uses("fw-v2.1")),
        (Some(&named), one("fw-v2.1", true), one("default", true), "", uses("fw-v2.1")),
        (Some(&named), one("fw-v2.1", false), one("default", true), "nvl72", {
            "skip: firmware fw-v2.1 is not available".into()
        }),
        // Firmware for other hardware is not installed.
        (Some(&named), one("fw-v2.1", true), one("default", true), "nvl36", {
            "skip: firmware fw-v2.1 is for hardware type nvl72, not for nvl36".into()
        }),
        (Some(&named), None, one("default", true), "nvl72", "unknown fw-v2.1".into()),
        (Some(&named), None, None, "nvl72", "unknown fw-v2.1".into()),
    ];
    for (named, found, default, hardware_type, expected) in table {
        let shown = match resolve(named, found, default, hardware_type) {
            FirmwareResolution::Use(one) => format!("use {}", one.id),
            FirmwareResolution::Unknown(id) => format!("unknown {id}"),
            FirmwareResolution::Skip(why) => format!("skip: {why}"),
        };
        let (how, words) = expected.split_once(": ").unwrap_or((&expected, ""));
        assert!(shown.starts_with(how) && shown.contains(words), "{shown:?}, not {expected:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let sound = || firmware("f", true);
    let with = |components: Vec<FirmwareComponent>| Firmware {
        components: BTreeMap::from([(TargetKind::Switch, components)]),
        ..sound()
    };
    let field = |name: &str| format!("firmware.components[switch][0].{name}");
    let many = (0..=MAX_COMPONENTS).map(|n| component(&n.to_string())).collect();
    let table = [
        (sound(), None),
        (with(vec![component("BMC"), component("EROT_0")]), None),
        (
            Firmware { hardware_type: String::new(), ..sound() },
            Some("firmware.hardware_type".into()),
        ),
        (Firmware { description: "a\nb".into(), ..sound() }, Some("firmware.description".into())),
        (Firmware { components: BTreeMap::new(), ..sound() }, Some("firmware.components".into())),
        (with(Vec::new()), Some("firmware.components".into())),
        (with(many), Some("firmware.components[switch]".into())),
        (with(vec![component("")]), Some(field("name"))),
        (with(vec![component("a/b")]), Some(field("name"))),
        (
            with(vec![component("BMC"), component("bmc")]),
            Some("firmware.components[switch][1].name".into()),
        ),
        (
            with(vec![FirmwareComponent { version: " ".into(), ..component("BMC") }]),
            Some(field("version")),
        ),
        (
            with(vec![FirmwareComponent { url: String::new(), ..component("BMC") }]),
            Some(field("url")),
        ),
        (
            with(vec![FirmwareComponent { url: "ftp://h/x".into(), ..component("BMC") }]),
            Some(field("url")),
        ),
        (
            with(vec![FirmwareComponent { url: "https://u:p@h/x".into(), ..component("BMC") }]),
            Some(field("url")),
        ),
        (
            with(vec![FirmwareComponent { url: "http:///x".into(), ..component("BMC") }]),
            Some(field("url")),
        ),
        (
            with(vec![FirmwareComponent { sha256: "AB".repeat(32), ..component("BMC") }]),
            Some(field("sha256")),
        ),
        (
            Firmware {
                components: BTreeMap::from([(TargetKind::Rack, vec![component("BMC")])]),
                ..sound()
            },
            Some("firmware.components[rack]".into()),
        ),
    ];
    for (firmware, wrong) in table {
        let shown = format!("{firmware:?}");
        let field = firmware.checked().err().and_then(|refusal| refusal.field);
        assert_eq!(field, wrong, "{shown}");
    }
}

#[test]
fn a_record_is_in_use_while_one_of_its_files_is_installed() {
    use model::effect::{ChildRunGroup, ChildRunSpec};
    use model::plan::RunType;
    let one = firmware("f", true);
    let steps = one.steps(TargetKind::Machine);
    assert_eq!(steps[0].name, "firmware-bmc");
    let part = ChildRunSpec {
        target: TargetId::from_key("m-1"),
        run_type: RunType::Firmware,
        steps: steps.clone(),
    };
    let group = Effect::ChildRuns {
        group: ChildRunGroup {
            child_runs: vec![part],
            max_concurrent: 1,
            skip_if_all_hold: Vec::new(),
        },
    };
    assert!(one.installed_by(&steps));
    assert!(one.installed_by(&[run_step("all", 1, 0, group)]));
    let other = FirmwareComponent { version: "3.0".into(), ..component("BMC") };
    let other = Firmware {
        components: BTreeMap::from([(TargetKind::Machine, vec![other])]),
        ..one.clone()
    };
    assert!(!other.installed_by(&steps));
    assert!(one.steps(TargetKind::Switch).is_empty());
}

#[test]
fn what_a_device_has_already_is_not_missing() {
    let one = firmware("f", true);
    let has = |version: &str| BTreeMap::from([("BMC".to_string(), version.to_string())]);
    let machine = TargetKind::Machine;
    assert!(one.missing_on(machine, &has("2.1")).is_empty());
    assert_eq!(one.missing_on(machine, &has("1.0")), ["BMC is at 1.0, not 2.1"]);
    assert_eq!(one.missing_on(machine, &BTreeMap::new()), ["BMC is not known to be at 2.1"]);
    assert!(one.missing_on(TargetKind::Switch, &BTreeMap::new()).is_empty());
}

/// Updates that are refused, and the flags (default, available) that the others write.
#[test]
fn only_the_flags_of_a_record_change() {
    let stored = firmware("f", true);
    let given = |is_default, available| FirmwareUpdate {
        is_default,
        available,
        hardware_type: "nvl72".into(),
        components: firmware("f", true).components,
        ..FirmwareUpdate::default()
    };
    let masked = |mask: &[&str], update: FirmwareUpdate| FirmwareUpdate {
        mask: mask.iter().map(|name| name.to_string()).collect(),
        ..update
    };
    let other = BTreeMap::from([(TargetKind::Switch, vec![component("BMC")])]);
    let table = [
        // Without a mask, what is set is written.
        (given(true, None), Ok((true, true))),
        (given(false, Some(false)), Ok((false, false))),
        (given(true, Some(false)), Ok((true, false))),
        (FirmwareUpdate { available: Some(true), ..FirmwareUpdate::default() }, Ok((false, true))),
        (given(false, None), Err("firmware")),
        (
            FirmwareUpdate { hardware_type: "nvl36".into(), ..given(true, None) },
            Err("firmware.hardware_type"),
        ),
        (
            FirmwareUpdate { description: "new".into(), ..given(true, None) },
            Err("firmware.description"),
        ),
        (FirmwareUpdate { components: other, ..given(true, None) }, Err("firmware.components")),
        // With a mask, only what it names.
        (masked(&["is_default"], given(true, Some(false))), Ok((true, true))),
        (masked(&["available"], given(true, Some(false))), Ok((false, false))),
        (masked(&["available", "is_default"], given(true, Some(false))), Ok((true, false))),
        (masked(&["is_default"], given(false, None)), Err("firmware.is_default")),
        (masked(&["available"], given(true, None)), Err("firmware.available")),
        (masked(&["available", "description"], given(true, Some(true))), Err("update_mask")),
        (masked(&["*"], given(true, Some(true))), Err("update_mask")),
        (masked(&["firmware.available"], given(true, Some(true))), Err("update_mask")),
    ];
    for (update, expected) in table {
        let shown = format!("{update:?}");
        let after = update.checked().and_then(|update| update.apply(&stored));
        match (after, expected) {
            (Ok(after), Ok(flags)) => {
                assert_eq!((after.is_default, after.available), flags, "{shown}");
                assert!(after.same_as(&stored), "{shown}");
            }
            (Err(refusal), Err(field)) => {
                assert_eq!(refusal.field.as_deref(), Some(field), "{shown}");
            }
            (after, _) => panic!("{shown}: {after:?}"),
        }
    }
    let default = Firmware { is_default: true, ..stored };
    let kept = given(false, Some(true)).apply(&default).unwrap();
    assert!(kept.is_default, "a default stays one");
}

#[test]
fn a_refused_update_says_what_to_type() {
    let named =
        |mask: &str| FirmwareUpdate { mask: vec![mask.into()], ..FirmwareUpdate::default() };
    for (mask, words) in [
        ("sha256", "names \"sha256\"; a record is immutable apart from is_default and available"),
        ("sha256", "farrier firmware create NEW_ID"),
        ("is_default", "farrier firmware set-default ANOTHER"),
    ] {
        let refusal = named(mask).checked().unwrap_err();
        assert!(refusal.message.contains(words), "{refusal}");
    }
}
