//! The owner's description of a rack.

use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};
use crate::text;
use serde::{Deserialize, Serialize};

/// The limit of expected devices of one kind.
pub const MAX_EXPECTED: u32 = 256;

/// The numbers of devices that the rack is expected to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    pub machines: u32,
    pub switches: u32,
    pub power_shelves: u32,
}

impl Counts {
    /// Counts devices by their kind.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a TargetId>) -> Self {
        let mut counts = Self::default();
        for device in devices {
            match device.kind {
                TargetKind::Machine => counts.machines += 1,
                TargetKind::Switch => counts.switches += 1,
                TargetKind::PowerShelf => counts.power_shelves += 1,
                TargetKind::Rack => {}
            }
        }
        counts
    }

    /// The kinds of which fewer devices are there than these.
    pub fn missing_from(self, there: Self) -> Vec<String> {
        let counts = [
            (there.machines, self.machines, "machines"),
            (there.switches, self.switches, "switches"),
            (there.power_shelves, self.power_shelves, "power shelves"),
        ];
        let short = counts.into_iter().filter(|(there, expected, _)| there < expected);
        short
            .map(|(there, expected, noun)| format!("{there} of {expected} {noun} stand in it"))
            .collect()
    }
}

/// Location of a rack. An empty text is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RackLocation {
    pub room: String,
    pub row: String,
    /// The position within the row.
    pub position: String,
}

impl RackLocation {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), Refusal> {
        text::check_short("rack.location.room", &self.room)?;
        text::check_short("rack.location.row", &self.row)?;
        text::check_short("rack.location.position", &self.position)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RackSpec {
    pub hardware_type: String,
    pub expected: Counts,
    #[serde(default, skip_serializing_if = "RackLocation::is_unknown")]
    pub location: RackLocation,
}

impl RackSpec {
    pub fn checked(self) -> Result<Self, Refusal> {
        text::check_short("rack.hardware_type", &self.hardware_type)?;
        self.location.check()?;
        let Counts { machines, switches, power_shelves } = self.expected;
        let counts =
            [("machines", machines), ("switches", switches), ("power_shelves", power_shelves)];
        match counts.into_iter().find(|(_, count)| *count > MAX_EXPECTED) {
            None => Ok(self),
            Some((name, count)) => Err(Refusal::invalid(
                &format!("rack.expected.{name}"),
                format!("is {count}"),
                format!("use 0 to {MAX_EXPECTED}"),
            )),
        }
    }
}
