//! The owner's description of a rack.

use crate::refusal::Refusal;
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

/// Where a rack stands. An empty text is unknown.
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
