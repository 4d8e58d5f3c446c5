//! The place of a device in its rack: the slots that it takes, and the power shelves that feed it.
//!
//! A slot is one rack unit, counted from the bottom. A device without a height takes one slot, and
//! is compared with the devices of its own kind: switches may be numbered by tray. As soon as one
//! of two devices has a height, their slots are rack units, and they must not overlap.

use crate::id::{PowerShelfId, RackId};
use crate::machine::MAX_SLOT;
use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};
use std::ops::RangeInclusive;

/// The largest height of a device, in rack units.
pub const MAX_HEIGHT_U: u32 = 60;
/// The number of power shelves that may feed one device.
pub const MAX_FEEDS: usize = 16;

/// A device and its place within a rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlacement {
    pub target: TargetId,
    /// The lowest slot that it takes.
    pub slot: Option<u32>,
    /// None: not known.
    pub height_u: Option<u32>,
}

impl DevicePlacement {
    fn slots(&self) -> Option<RangeInclusive<u32>> {
        let slot = self.slot?;
        Some(slot..=top_slot(slot, self.height_u))
    }

    /// True if both are numbered in the same way.
    fn is_comparable(&self, other: &Self) -> bool {
        self.target.kind == other.target.kind || self.height_u.is_some() || other.height_u.is_some()
    }
}

fn top_slot(slot: u32, height_u: Option<u32>) -> u32 {
    slot.saturating_add(height_u.unwrap_or(1).saturating_sub(1))
}

/// Checks a height, and that a device with it ends below the top of the rack. `field` is the prefix
/// of the field names, such as `machine.spec`.
pub fn check_height(
    field: &str,
    height_u: Option<i32>,
    slot: Option<u32>,
) -> Result<Option<u32>, Refusal> {
    let Some(given) = height_u else { return Ok(None) };
    let name = format!("{field}.height_u");
    let height = u32::try_from(given).ok().filter(|height| (1..=MAX_HEIGHT_U).contains(height));
    let height = height.ok_or_else(|| {
        let instead = format!("use 1 to {MAX_HEIGHT_U}, in rack units");
        Refusal::invalid(&name, format!("is {given}"), instead)
    })?;
    match slot.map(|slot| top_slot(slot, Some(height))) {
        Some(top) if top > MAX_SLOT => {
            let problem = format!("is {height}, and would end in slot {top}");
            let instead = format!("the highest slot is {MAX_SLOT}: use a lower slot or height");
            Err(Refusal::invalid(&name, problem, instead))
        }
        Some(_) | None => Ok(Some(height)),
    }
}

/// Refuses a place that overlaps another device of the rack.
pub fn check_overlap(
    field: &str,
    placed: &DevicePlacement,
    rack: &RackId,
    others: &[DevicePlacement],
) -> Result<(), Refusal> {
    let (Some(slot), Some(slots)) = (placed.slot, placed.slots()) else { return Ok(()) };
    let others = others.iter().filter(|one| one.target != placed.target);
    for other in others.filter(|one| placed.is_comparable(one)) {
        let Some(taken) = other.slots() else { continue };
        let there = &other.target;
        if taken.contains(&slot) {
            let problem = format!("is {slot}, where {there} stands in {rack}");
            let instead = format!("choose another slot, or move {there} first");
            return Err(Refusal::invalid(&format!("{field}.slot"), problem, instead));
        }
        if slots.contains(taken.start()) {
            let height = placed.height_u.unwrap_or(1);
            let start = taken.start();
            let problem = format!("is {height}, but {there} stands in slot {start} of {rack}");
            let instead =
                format!("use at most {}, another slot, or move {there} first", start - slot);
            return Err(Refusal::invalid(&format!("{field}.height_u"), problem, instead));
        }
    }
    Ok(())
}

/// Parses the ids of the shelves that feed a device of this kind, and sorts them.
pub fn parse_feeds(
    field: &str,
    kind: TargetKind,
    feeds: &[String],
) -> Result<Vec<PowerShelfId>, Refusal> {
    let name = format!("{field}.feeds");
    if kind == TargetKind::PowerShelf && !feeds.is_empty() {
        let problem = "is given for a power shelf, which feeds others";
        return Err(Refusal::invalid(&name, problem, "leave it empty"));
    }
    if feeds.len() > MAX_FEEDS {
        let problem = format!("has {} entries", feeds.len());
        return Err(Refusal::invalid(&name, problem, format!("give at most {MAX_FEEDS}")));
    }
    let parsed = feeds.iter().enumerate();
    let parsed =
        parsed.map(|(index, id)| PowerShelfId::parse_field(id, &format!("{name}[{index}]")));
    let mut parsed = parsed.collect::<Result<Vec<_>, _>>()?;
    parsed.sort();
    parsed.dedup();
    Ok(parsed)
}

/// Known location of the power shelf that a device names as its feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShelfLocation {
    /// There is no such shelf, or it is marked for deletion.
    Unknown,
    NoRack,
    InRack(RackId),
}

/// Checks that every shelf exists and is in the device's rack or in no rack. A misspelled shelf
/// would otherwise count as one that never goes off.
pub fn check_feeds(
    field: &str,
    rack: Option<&RackId>,
    shelves: &[(PowerShelfId, ShelfLocation)],
) -> Result<(), Refusal> {
    let name = format!("{field}.feeds");
    for (id, location) in shelves {
        match (location, rack) {
            (ShelfLocation::Unknown, _) => {
                let problem = format!("names {id}, and no such power shelf is known");
                let instead = "list them with `farrier power-shelf list`, or register it first";
                return Err(Refusal::invalid(&name, problem, instead));
            }
            (ShelfLocation::NoRack, _) => {}
            (ShelfLocation::InRack(theirs), Some(ours)) if theirs == ours => {}
            (ShelfLocation::InRack(theirs), ours) => {
                let ours = ours.map_or("no rack".into(), ToString::to_string);
                let problem =
                    format!("names {id}, which stands in {theirs}; the device is in {ours}");
                let instead = format!("name shelves of the same rack, or set {field}.rack_id");
                return Err(Refusal::invalid(&name, problem, instead));
            }
        }
    }
    Ok(())
}
