//! The code that switches and power shelves share: how they are shown, and how they are changed.

use crate::args::{DeviceListArgs, DeviceSpecArgs, DeviceUpdateArgs};
use crate::filter::FilterText;
use crate::health;
use crate::table::{Cell, Table, Tone, format_pairs};
use crate::text::{join_pairs, one_line};
use crate::time::Clock;
use crate::update::Updated;
use proto::v1::{DeviceSpec, DeviceState, DeviceStatus, PowerState};
use proto::words::WireEnum;
use std::collections::HashMap;

/// The parts of a switch or power shelf that are shown.
pub struct DeviceView<'a> {
    pub id: &'a str,
    pub labels: &'a HashMap<String, String>,
    pub spec: Option<&'a DeviceSpec>,
    pub status: Option<&'a DeviceStatus>,
}

pub fn filter(args: &DeviceListArgs) -> String {
    let filter =
        FilterText::typed(&args.filter).equal("rack_id", &args.rack).any_of("state", &args.states);
    let labelled = args.labels.iter();
    labelled.fold(filter, |filter, (key, value)| filter.label(key, value)).build()
}

/// Overwrites the spec fields and labels that are given.
pub fn apply_spec(
    spec: &mut DeviceSpec,
    labels: &mut HashMap<String, String>,
    given: DeviceSpecArgs,
) {
    let fields = [
        (&mut spec.bmc_endpoint, given.bmc_endpoint),
        (&mut spec.bmc_credential, given.bmc_credential),
        (&mut spec.ssh_endpoint, given.ssh_endpoint),
        (&mut spec.ssh_credential, given.ssh_credential),
        (&mut spec.provider, given.provider),
        (&mut spec.serial, given.serial),
    ];
    for (field, value) in fields {
        if let Some(value) = value {
            *field = value;
        }
    }
    if let Some(rack) = given.rack {
        // A slot and feeds are only valid within their rack.
        if rack != spec.rack_id {
            spec.slot = None;
            spec.feeds.clear();
        }
        spec.rack_id = rack;
    }
    spec.slot = given.slot.or(spec.slot);
    spec.height_u = given.height_u.or(spec.height_u);
    if let Some(feeds) = given.feeds {
        spec.feeds = non_empty(feeds);
    }
    labels.extend(given.labels);
}

pub fn apply_update(
    spec: &mut Option<DeviceSpec>,
    labels: &mut HashMap<String, String>,
    given: DeviceUpdateArgs,
) {
    let spec = spec.get_or_insert_with(DeviceSpec::default);
    if given.no_rack {
        spec.rack_id.clear();
        spec.slot = None;
        spec.feeds.clear();
    }
    apply_spec(spec, labels, given.spec);
    for key in &given.remove_labels {
        labels.remove(key);
    }
}

/// The action of a command on a device, done or (in a dry run) planned.
#[derive(Debug, Clone)]
pub enum DeviceChange {
    Registered,
    /// With a line for each field that changes.
    Updated(String),
    /// The update changes nothing.
    Unchanged,
    MarkedForDeletion,
    Retried,
}

impl DeviceChange {
    pub fn of_update<M>(updated: &Updated<M>) -> Self {
        match updated.is_changed() {
            true => Self::Updated(updated.fields()),
            false => Self::Unchanged,
        }
    }

    fn done_text(&self, id: &str) -> String {
        match self {
            Self::Registered => format!("{id} registered"),
            Self::Updated(_) => format!("{id} updated"),
            Self::Unchanged => format!("{id} has these values already; nothing was changed"),
            Self::MarkedForDeletion => format!("{id} marked for deletion"),
            Self::Retried => format!("{id} is tried again"),
        }
    }

    fn would_text(&self, id: &str) -> String {
        match self {
            Self::Registered => format!("would register {id}"),
            Self::Updated(fields) => format!("would update {id}\n{fields}"),
            Self::Unchanged => format!("{id} has these values already"),
            Self::MarkedForDeletion => format!("would mark {id} for deletion"),
            Self::Retried => format!("would try {id} again"),
        }
    }
}

/// The result as one sentence; a dry run also lists the automatic steps that would follow.
pub fn format_change(device: &DeviceView<'_>, change: &DeviceChange, dry_run: bool) -> String {
    let id = one_line(device.id);
    if !dry_run {
        return format!("{}\n", change.done_text(&id));
    }
    let follows = device.status.map(|status| status.would_follow.as_slice()).unwrap_or_default();
    format!("{}\n{}", change.would_text(&id), format_follow_ups(follows))
}

/// The changes that a dry run predicts to follow without a further request. Empty: none.
pub fn format_follow_ups(follows: &[String]) -> String {
    let lines: String = follows.iter().map(|line| format!("  {}\n", one_line(line))).collect();
    match follows.is_empty() {
        true => lines,
        false => format!("\nThen, if all goes well:\n{lines}"),
    }
}

fn state_cell(status: &DeviceStatus) -> Cell {
    let tone = match status.state() {
        DeviceState::Ready => Tone::Good,
        DeviceState::Error => Tone::Bad,
        DeviceState::Deleting => Tone::Dim,
        DeviceState::Unspecified
        | DeviceState::Created
        | DeviceState::Initializing
        | DeviceState::FetchingData
        | DeviceState::Configuring
        | DeviceState::Validating
        | DeviceState::ReProvisioning
        | DeviceState::Maintenance => Tone::Busy,
    };
    let state = status.state().word();
    match power_change_name(status) {
        "" => Cell::with_tone(state, tone),
        change => Cell::with_tone(format!("{state}({change})"), tone),
    }
}

/// The power change in progress, as the specification names it.
fn power_change_name(status: &DeviceStatus) -> &'static str {
    match status.power_change() {
        PowerState::On => "PowerOn",
        PowerState::Off => "PowerOff",
        PowerState::Unspecified | PowerState::Changing => "",
    }
}

fn power_state(status: &DeviceStatus) -> &'static str {
    status.facts.as_ref().map_or("", |facts| facts.power().word())
}

/// ✓ reachable, ✗ unreachable, - not probed yet.
fn reachable_cell(status: &DeviceStatus) -> Cell {
    match &status.observed {
        Some(observed) if observed.reachable => Cell::with_tone("✓", Tone::Good),
        Some(_) => Cell::with_tone("✗", Tone::Bad),
        None => "-".into(),
    }
}

fn format_slot(spec: &DeviceSpec) -> String {
    spec.slot.map(|slot| slot.to_string()).unwrap_or_default()
}

/// The height in words; empty if it is unknown.
pub fn format_height(height_u: Option<i32>) -> String {
    height_u.map(|height| format!("{height}U")).unwrap_or_default()
}

/// The texts that are not empty: `--feeds ''` is a list of one empty text.
pub fn non_empty(texts: Vec<String>) -> Vec<String> {
    let trimmed = texts.iter().map(|text| text.trim());
    trimmed.filter(|text| !text.is_empty()).map(String::from).collect()
}

pub fn table(name: &'static str, devices: &[DeviceView<'_>], wide: bool) -> Table {
    let names = [name, "STATE", "POWER", "REACHABLE", "RACK", "SLOT", "ACTIVE_OP"];
    let more = ["MODEL", "SERIAL", "BMC", "PROVIDER", "LABELS", "CAUSE"];
    let names = if wide { [&names[..], &more[..]].concat() } else { names.to_vec() };
    let mut table = Table::new(&names);
    for device in devices {
        let spec = device.spec.cloned().unwrap_or_default();
        let status = device.status.cloned().unwrap_or_default();
        let mut row: Vec<Cell> = vec![
            device.id.into(),
            state_cell(&status),
            power_state(&status).into(),
            reachable_cell(&status),
            (&spec.rack_id).into(),
            format_slot(&spec).into(),
            (&status.active_operation_id).into(),
        ];
        if wide {
            let facts = status.facts.unwrap_or_default();
            row.extend([
                facts.model.into(),
                facts.serial.into(),
                spec.bmc_endpoint.into(),
                spec.provider.into(),
                join_pairs(device.labels, ",").into(),
                status.cause.map(|cause| cause.message).unwrap_or_default().into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// The serial number that the device reports, and the registered one if it differs.
pub fn format_serial(read: &str, registered: &str) -> String {
    match (read, registered) {
        ("", registered) => registered.into(),
        (read, "") => read.into(),
        (read, registered) if read == registered => read.into(),
        (read, registered) => format!("{read} (registered as {registered})"),
    }
}

/// Formats all details of one device. `more` follows the state and its cause.
pub fn describe(
    noun: &str,
    device: &DeviceView<'_>,
    more: Vec<(&str, String)>,
    clock: &Clock,
) -> String {
    let spec = device.spec.cloned().unwrap_or_default();
    let status = device.status.cloned().unwrap_or_default();
    let facts = status.facts.clone().unwrap_or_default();
    let or_dash = |text: String| if text.is_empty() { "-".to_string() } else { text };
    let observed = status.observed.as_ref().map_or_else(String::new, |observed| {
        let how = if observed.reachable { "yes" } else { "no" };
        format!("{how}, since {} ({})", clock.ago(observed.at.as_ref()), observed.message)
    });
    let change = match power_change_name(&status) {
        "" => String::new(),
        change => format!(" ({change})"),
    };
    let marked = if status.deleted { ", marked for deletion" } else { "" };
    let state = format!("{}{change}{marked}", status.state().word());
    let mut lines = vec![
        (noun, device.id.to_string()),
        ("State:", format!("{state}, since {}", clock.ago(status.since.as_ref()))),
    ];
    if let Some(cause) = &status.cause {
        let fault =
            if cause.fault.is_empty() { String::new() } else { format!(" ({})", cause.fault) };
        lines.push(("Cause:", format!("{}{fault}", cause.message)));
        lines.push(("Failed operation:", or_dash(cause.operation_id.clone())));
    }
    lines.extend(more);
    lines.extend([
        ("Power:", or_dash(power_state(&status).into())),
        ("Reachable:", or_dash(observed)),
        ("ActiveOperationId:", or_dash(status.active_operation_id.clone())),
        ("Rack:", or_dash(spec.rack_id.clone())),
        ("Slot:", or_dash(format_slot(&spec))),
        ("Height:", or_dash(format_height(spec.height_u))),
        ("Fed by:", or_dash(spec.feeds.join(", "))),
        ("Labels:", or_dash(join_pairs(device.labels, ","))),
        ("Model:", or_dash(format!("{} {}", facts.manufacturer, facts.model).trim().into())),
        ("Serial:", or_dash(format_serial(&facts.serial, &spec.serial))),
        ("Firmware:", or_dash(join_pairs(&facts.firmware, ", "))),
        ("BMC:", or_dash(spec.bmc_endpoint)),
        ("BMC credential:", or_dash(spec.bmc_credential)),
        ("SSH:", or_dash(spec.ssh_endpoint)),
        ("SSH credential:", or_dash(spec.ssh_credential)),
        ("Provider:", or_dash(spec.provider)),
        ("Created:", clock.absolute(status.created_at.as_ref())),
        ("Updated:", clock.absolute(status.updated_at.as_ref())),
    ]);
    let mut text = format_pairs(&lines);
    text.push_str(&health::optional_section(status.health.as_ref(), clock));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ColorMode;
    use proto::v1::{DeviceFacts, DeviceObserved};

    #[test]
    fn a_list_shows_what_a_device_does_and_where_it_stands() {
        let labels = HashMap::new();
        let spec = DeviceSpec { rack_id: "rack-1".into(), slot: Some(3), ..Default::default() };
        let status = DeviceStatus {
            state: DeviceState::Maintenance.into(),
            power_change: PowerState::Off.into(),
            facts: Some(DeviceFacts { power: PowerState::On.into(), ..Default::default() }),
            observed: Some(DeviceObserved { reachable: false, ..Default::default() }),
            active_operation_id: "op-1".into(),
            ..Default::default()
        };
        let shown = [
            DeviceView { id: "ps-1", labels: &labels, spec: Some(&spec), status: Some(&status) },
            DeviceView { id: "ps-2", labels: &labels, spec: None, status: None },
        ];
        assert_eq!(
            table("POWER_SHELF_ID", &shown, false).render(ColorMode { enabled: false }),
            "\
POWER_SHELF_ID  STATE                  POWER  REACHABLE  RACK    SLOT  ACTIVE_OP
ps-1            Maintenance(PowerOff)  ON     ✗          rack-1  3     op-1
ps-2            -                      -      -          -       -     -
"
        );
    }

    #[test]
    fn a_dry_run_says_what_would_be_and_what_would_follow() {
        let labels = HashMap::new();
        let status = DeviceStatus {
            would_follow: vec!["Configuring: step configure".into()],
            ..Default::default()
        };
        let shown = DeviceView { id: "sw-1", labels: &labels, spec: None, status: Some(&status) };
        assert_eq!(format_change(&shown, &DeviceChange::Registered, false), "sw-1 registered\n");
        let expected = "\
would register sw-1

Then, if all goes well:
  Configuring: step configure
";
        assert_eq!(format_change(&shown, &DeviceChange::Registered, true), expected);
    }

    #[test]
    fn a_serial_that_is_another_one_is_shown_as_both() {
        for (read, registered, shown) in
            [("", "", ""), ("A", "", "A"), ("", "B", "B"), ("A", "A", "A")]
        {
            assert_eq!(format_serial(read, registered), shown);
        }
        assert_eq!(format_serial("A", "B"), "A (registered as B)");
    }

    #[test]
    fn a_change_keeps_what_was_not_given_and_a_place_goes_with_its_rack() {
        let spec = DeviceSpec {
            rack_id: "rack-1".into(),
            slot: Some(3),
            serial: "S".into(),
            ..Default::default()
        };
        let mut labels = HashMap::from([("a".to_string(), "1".to_string())]);
        let given = |spec, no_rack| DeviceUpdateArgs {
            spec,
            no_rack,
            remove_labels: vec!["a".into()],
            version: crate::args::VersionArgs::default(),
        };
        for (rack, slot, no_rack, expected) in [
            (None, None, false, ("rack-1", Some(3))),
            (None, Some(4), false, ("rack-1", Some(4))),
            (Some("rack-2"), None, false, ("rack-2", None)),
            (Some("rack-2"), Some(1), false, ("rack-2", Some(1))),
            (None, None, true, ("", None)),
        ] {
            let mut changed = Some(spec.clone());
            let rack = rack.map(String::from);
            let args = DeviceSpecArgs { rack, slot, ..Default::default() };
            apply_update(&mut changed, &mut labels, given(args, no_rack));
            let changed = changed.unwrap();
            assert_eq!((changed.rack_id.as_str(), changed.slot), expected);
            assert_eq!(changed.serial, "S");
        }
        assert!(labels.is_empty());
    }
}
