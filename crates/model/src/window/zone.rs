//! Time zones, from the database that is compiled in: every replica decides alike, also in a
//! container without `/usr/share/zoneinfo`.

use crate::refusal::Refusal;
use crate::time::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use std::fmt;

/// The longest name of a time zone, in bytes.
const MAX_NAME: usize = 64;
/// The number of known names that a refusal offers.
const MAX_OFFERED: usize = 3;

/// A time zone with its name in the IANA database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

/// Which of the two instants is meant when the wall clock shows a time twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeated {
    First,
    Last,
}

/// An instant, to be shown in a time zone and in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZonedInstant {
    pub at: Timestamp,
    pub zone: Zone,
}

impl Zone {
    /// Parses a name such as `Europe/Berlin`, in any case.
    pub fn parse(field: &str, name: &str) -> Result<Self, Refusal> {
        let zone = TimeZoneDatabase::bundled().get(name).ok();
        let found = zone.and_then(|zone| {
            let name = zone.iana_name()?.to_string();
            Some(Self { name, zone }).filter(|one| !one.zone.is_unknown())
        });
        found.ok_or_else(|| {
            let shown: String = name.chars().take(MAX_NAME).collect();
            let instead = match nearest(&shown).as_slice() {
                [] => "write a name of the IANA database, such as Europe/Berlin or UTC".into(),
                near => format!("write a name of the IANA database: {}?", near.join(", ")),
            };
            Refusal::invalid(field, format!("names the unknown time zone {shown:?}"), instead)
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The date that the calendar shows; none outside of the years that the calendar knows.
    pub(super) fn date(&self, at: Timestamp) -> Option<Date> {
        Some(self.zone.to_datetime(to_jiff(at)?).date())
    }

    /// The instant at which the wall clock shows a time. A time that a change of the clock leaves
    /// out stands for the end of the gap.
    pub(super) fn instant(&self, shown: DateTime, which: Repeated) -> Option<Timestamp> {
        let at = match (self.zone.to_ambiguous_timestamp(shown).offset(), which) {
            (AmbiguousOffset::Unambiguous { offset }, _)
            | (AmbiguousOffset::Fold { before: offset, .. }, Repeated::First)
            | (AmbiguousOffset::Fold { after: offset, .. }, Repeated::Last) => {
                offset.to_timestamp(shown).ok()?
            }
            // Read with the offset after the change, the time lies before it.
            (AmbiguousOffset::Gap { after, .. }, _) => {
                self.zone.following(after.to_timestamp(shown).ok()?).next()?.timestamp()
            }
        };
        Some(Timestamp::from_micros(at.as_microsecond()))
    }
}

impl ZonedInstant {
    pub fn utc(at: Timestamp) -> Self {
        Self { at, zone: Zone { name: "UTC".into(), zone: TimeZone::UTC } }
    }
}

impl fmt::Display for ZonedInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(at) = to_jiff(self.at) else { return f.write_str("a time beyond the calendar") };
        let local = self.zone.zone.to_datetime(at);
        write!(f, "{} {}", local.strftime("%a %Y-%m-%d %H:%M"), self.zone.name)?;
        if TimeZone::UTC.to_datetime(at) == local {
            return Ok(());
        }
        write!(f, " ({})", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

fn to_jiff(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_microsecond(at.as_micros()).ok()
}

/// The known names that are most like a name: the whole of it, or the city.
fn nearest(name: &str) -> Vec<String> {
    let wanted = name.to_ascii_lowercase();
    let most = wanted.chars().count() / 3;
    let database = TimeZoneDatabase::bundled();
    let mut near: Vec<(usize, String)> = Vec::new();
    for known in database.available() {
        let known = known.as_str();
        let city = known.rsplit('/').next().unwrap_or(known);
        let distance = [known, city].map(|text| distance(&wanted, &text.to_ascii_lowercase()));
        let distance = distance[0].min(distance[1]);
        if distance <= most {
            near.push((distance, known.to_string()));
        }
    }
    near.sort();
    near.into_iter().take(MAX_OFFERED).map(|(_, known)| known).collect()
}

/// The number of characters to insert, remove or replace to make one text the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, from) in one.chars().enumerate() {
        let mut before = row.first().copied().unwrap_or_default();
        let mut left = line + 1;
        let mut next = vec![left];
        for (to, above) in other.iter().zip(row.iter().skip(1)) {
            left = (before + usize::from(from != *to)).min(above + 1).min(left + 1);
            next.push(left);
            before = *above;
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}
