//! The elevation of a rack: its slots from top to bottom.

use super::state_tone;
use crate::machine::effective_word;
use crate::table::{Cell, ColorMode, Table, Tone};
use crate::text::one_line;
use proto::v1::{EffectiveState, PowerState, RackDevice};
use proto::words::WireEnum;
use std::collections::BTreeMap;

const WIDTH: usize = 72;

pub fn format_elevation(rack_id: &str, devices: &[RackDevice], colors: ColorMode) -> String {
    let mut table = Table::new(&["SLOT", "KIND", "DEVICE", "STATE", "POWER", "OPERATION"]);
    let mut placed: BTreeMap<i32, Vec<&RackDevice>> = BTreeMap::new();
    for device in devices {
        if let Some(slot) = device.slot {
            placed.entry(slot).or_default().push(device);
        }
    }
    let mut above: Option<i32> = None;
    for (slot, here) in placed.iter().rev() {
        let top = here.iter().map(|device| top_slot(*slot, device)).max().unwrap_or(*slot);
        if let Some(above) = above {
            add_empty_slots(&mut table, top + 1, above - 1);
        }
        above = Some(*slot);
        for device in here {
            table.add_row(device_row(format_slots(*slot, top_slot(*slot, device)), device));
        }
    }
    if let Some(lowest) = above {
        add_empty_slots(&mut table, 1, lowest - 1);
    }
    for device in devices.iter().filter(|device| device.slot.is_none()) {
        table.add_row(device_row("-".into(), device));
    }
    add_frame(rack_id, &table.render(colors), devices.is_empty())
}

/// The highest slot that a device takes.
fn top_slot(slot: i32, device: &RackDevice) -> i32 {
    slot.saturating_add(device.height_u.unwrap_or(1).max(1) - 1)
}

/// One slot, or a range from top to bottom.
fn format_slots(from: i32, to: i32) -> String {
    if from == to { from.to_string() } else { format!("{to}-{from}") }
}

fn device_row(slot: String, device: &RackDevice) -> Vec<Cell> {
    let kind = device.kind().word().replace('_', " ");
    let power = match device.power() {
        PowerState::On => Cell::with_tone("on", Tone::Good),
        PowerState::Off => Cell::with_tone("off", Tone::Dim),
        PowerState::Changing => Cell::with_tone("changing", Tone::Busy),
        PowerState::Unspecified => "".into(),
    };
    let state = match (device.unreadable, device.effective_state()) {
        (true, _) => "Unreadable",
        (false, EffectiveState::Unspecified) => device.device_state().word(),
        (false, state) => effective_word(state),
    };
    vec![
        slot.into(),
        kind.into(),
        (&device.id).into(),
        Cell::with_tone(state, state_tone(state)),
        power,
        Cell::with_tone(&device.active_operation_id, Tone::Busy),
    ]
}

/// Adds one line for a range of empty slots.
fn add_empty_slots(table: &mut Table, from: i32, to: i32) {
    if to < from {
        return;
    }
    let slots = format_slots(from, to);
    table.add_row(vec![Cell::with_tone(slots, Tone::Dim), Cell::with_tone("(empty)", Tone::Dim)]);
}

fn add_frame(rack_id: &str, table: &str, empty: bool) -> String {
    let rule = "─".repeat(WIDTH);
    let mut text = format!("┌─ {} {}\n", one_line(rack_id), "─".repeat(WIDTH - 3));
    let mut lines = table.lines();
    if let Some(header) = lines.next() {
        text.push_str(&format!("│ {}\n├{rule}\n", header.trim_end()));
    }
    for line in lines {
        text.push_str(&format!("│ {}\n", line.trim_end()));
    }
    if empty {
        text.push_str("│ nothing stands in it\n");
    }
    text.push_str(&format!("└{rule}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::{DeviceState, TargetKind};
    use proto::words;

    fn device(kind: &str, id: &str, slot: Option<i32>, power: &str) -> RackDevice {
        RackDevice {
            kind: words::value::<TargetKind>(kind),
            id: id.into(),
            slot,
            device_state: DeviceState::Ready.into(),
            power: words::value::<PowerState>(power),
            ..Default::default()
        }
    }

    #[test]
    fn the_highest_slot_is_on_top() {
        let mut machine = device("machine", "m-1", Some(7), "");
        machine.device_state = 0;
        machine.effective_state = EffectiveState::Busy.into();
        machine.active_operation_id = "op-1".into();
        let devices = [
            machine,
            device("power_shelf", "ps-1", Some(1), "ON"),
            device("switch", "sw-1", Some(6), "OFF"),
            device("machine", "m-2", None, ""),
        ];
        let text = format_elevation("rack-1", &devices, ColorMode { enabled: false });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("┌─ rack-1 ─"), "{text}");
        assert_eq!(
            lines[1..lines.len() - 1]
                .iter()
                .filter(|line| !line.starts_with('├'))
                .copied()
                .collect::<Vec<_>>(),
            [
                "│ SLOT  KIND         DEVICE  STATE  POWER  OPERATION",
                "│ 7     machine      m-1     BUSY   -      op-1",
                "│ 6     switch       sw-1    Ready  off    -",
                "│ 5-2   (empty)",
                "│ 1     power shelf  ps-1    Ready  on     -",
                "│ -     machine      m-2     Ready  -      -",
            ]
        );
    }
}
