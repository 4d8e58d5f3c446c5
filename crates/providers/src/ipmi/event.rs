//! The system event log, read backwards from the newest entry. An entry names only its successor,
//! so entries are read by number; missing numbers are skipped, up to a limit.

use super::classification::IpmiError;
use super::{Bmc, IpmiRequest};
use model::fault::Result;

/// The most entries that one call reads.
pub const MAX_EVENTS: usize = 256;
/// The number of consecutive numbers without an entry that end the reading.
const MAX_GAP: u16 = 64;
/// The number of entries that are read in one session.
const BATCH: u16 = 32;
/// The number of the next entry, then the entry.
const ANSWER_BYTES: usize = 18;
const NEWEST: u16 = 0xffff;
/// Smaller timestamps count from the start of the BMC.
const FIRST_REAL_TIME: u32 = 0x2000_0000;
const NO_TIME: u32 = 0xffff_ffff;
const NO_RECORD: [u8; 2] = [0xcb, 0xcd];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: u16,
    /// Seconds since 1970, by the BMC's clock; None if that clock was not set.
    pub at_s: Option<u32>,
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A sensor event, in the numbers of the IPMI specification.
    Sensor { sensor_type: u8, sensor: u8, asserted: bool, event_type: u8, data: [u8; 3] },
    /// A record in the manufacturer's own format.
    Oem { record_type: u8, data: Vec<u8> },
}

impl Event {
    /// One line for display.
    pub fn describe(&self) -> String {
        match &self.kind {
            EventKind::Sensor { sensor_type, sensor, asserted, data, .. } => {
                let verb = if *asserted { "asserted" } else { "went away" };
                let [offset, _, _] = data;
                let name = sensor_name(*sensor_type);
                format!(
                    "{name}, sensor {sensor:#04x}: state {} {verb} ({data:02x?})",
                    offset & 0x0f
                )
            }
            EventKind::Oem { record_type, data } => {
                format!("the manufacturer's own record {record_type:#04x}: {data:02x?}")
            }
        }
    }
}

/// Reads the newest entries, newest first.
pub async fn read(bmc: &Bmc, desired: usize) -> Result<Vec<Event>> {
    let requested = "for its event log";
    let first = request(NEWEST);
    let question = IpmiRequest::read(requested, &first);
    let newest = match bmc.send_raw(&question).await {
        Ok(bytes) => bytes,
        Err(IpmiError::Refused(completion)) if NO_RECORD.contains(&completion) => {
            return Ok(Vec::new());
        }
        Err(failure) => return Err(bmc.fault(&question, &failure)),
    };
    let mut events = parse_all(&newest).ok_or_else(|| bmc.garbled(&question, &newest))?;
    events.truncate(desired);
    let mut before = events.first().map_or(0, |event| event.id);
    let mut gap = 0;
    while events.len() < desired && before > 1 && gap < MAX_GAP {
        let from = before.saturating_sub(BATCH).max(1);
        let requests: Vec<Vec<u8>> = (from..before).rev().map(request).collect();
        let bytes = bmc.send_batch(requested, &requests).await?;
        let more = parse_all(&bytes).ok_or_else(|| bmc.garbled(&question, &bytes))?;
        gap = if more.is_empty() { gap + BATCH } else { 0 };
        // Some BMCs return a neighbour for a number that does not exist.
        for event in more.into_iter().filter(|event| (from..before).contains(&event.id)) {
            if !events.contains(&event) {
                events.push(event);
            }
        }
        before = from;
    }
    events.truncate(desired);
    Ok(events)
}

fn request(id: u16) -> Vec<u8> {
    let [low, high] = id.to_le_bytes();
    vec![0x0a, 0x43, 0x00, 0x00, low, high, 0x00, 0xff]
}

fn parse_all(bytes: &[u8]) -> Option<Vec<Event>> {
    bytes.chunks(ANSWER_BYTES).map(parse).collect()
}

fn parse(answer: &[u8]) -> Option<Event> {
    let record: &[u8; ANSWER_BYTES] = answer.try_into().ok()?;
    let [_, _, id0, id1, record_type, t0, t1, t2, t3, rest @ ..] = record;
    let id = u16::from_le_bytes([*id0, *id1]);
    let seconds = u32::from_le_bytes([*t0, *t1, *t2, *t3]);
    let at_s = (FIRST_REAL_TIME..NO_TIME).contains(&seconds).then_some(seconds);
    let [_gen0, _gen1, _rev, sensor_type, sensor, event_type, d1, d2, d3] = *rest;
    Some(match *record_type {
        0xe0..=0xff => {
            let data = record[5..].to_vec();
            Event { id, at_s: None, kind: EventKind::Oem { record_type: *record_type, data } }
        }
        0xc0..=0xdf => {
            let data = record[9..].to_vec();
            Event { id, at_s, kind: EventKind::Oem { record_type: *record_type, data } }
        }
        _ => {
            let kind = EventKind::Sensor {
                sensor_type,
                sensor,
                asserted: event_type & 0x80 == 0,
                event_type: event_type & 0x7f,
                data: [d1, d2, d3],
            };
            Event { id, at_s, kind }
        }
    })
}

/// The specification's name of a sensor type.
fn sensor_name(sensor_type: u8) -> &'static str {
    match sensor_type {
        0x01 => "temperature",
        0x02 => "voltage",
        0x03 => "current",
        0x04 => "fan",
        0x05 => "chassis intrusion",
        0x07 => "processor",
        0x08 => "power supply",
        0x09 => "power unit",
        0x0b => "cooling",
        0x0c => "memory",
        0x0d => "drive bay",
        0x0f => "firmware progress",
        0x10 => "event log",
        0x12 => "system event",
        0x13 => "critical interrupt",
        0x14 => "button",
        0x17 => "add-in card",
        0x1d => "system start",
        0x1f => "operating system start",
        0x20 => "operating system stop",
        0x21 => "slot",
        0x22 => "ACPI power state",
        0x23 => "watchdog",
        0x28 => "management controller",
        0x2b => "version change",
        _ => "sensor of another type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENSOR: [u8; ANSWER_BYTES] = [
        0xff, 0xff, 0x02, 0x01, 0x02, 0x9f, 0x68, 0x00, 0x60, 0x20, 0x00, 0x04, 0x08, 0x02, 0xef,
        0x01, 0x02, 0x03,
    ];

    #[test]
    fn an_entry_is_read_by_its_type() {
        let event = parse(&SENSOR).unwrap();
        assert_eq!((event.id, event.at_s), (0x0102, Some(0x6000_689f)));
        assert_eq!(
            event.kind,
            EventKind::Sensor {
                sensor_type: 0x08,
                sensor: 0x02,
                asserted: false,
                event_type: 0x6f,
                data: [1, 2, 3]
            }
        );
        assert_eq!(event.describe(), "power supply, sensor 0x02: state 1 went away ([01, 02, 03])");
        let mut oem = SENSOR;
        oem[4] = 0xc1;
        assert!(
            matches!(parse(&oem).unwrap(), Event { at_s: Some(_), kind: EventKind::Oem { data, .. }, .. } if data.len() == 9)
        );
        oem[4] = 0xe0;
        assert!(
            matches!(parse(&oem).unwrap(), Event { at_s: None, kind: EventKind::Oem { data, .. }, .. } if data.len() == 13)
        );
    }

    #[test]
    fn a_clock_that_was_never_set_gives_no_time() {
        for time in [[0x9f, 0x68, 0x00, 0x00], [0xff; 4]] {
            let mut record = SENSOR;
            record[5..9].copy_from_slice(&time);
            assert_eq!(parse(&record).unwrap().at_s, None);
        }
    }

    #[test]
    fn an_incomplete_entry_is_refused() {
        assert_eq!(parse_all(&[]), Some(vec![]));
        assert_eq!(parse_all(&[SENSOR, SENSOR].concat()).map(|events| events.len()), Some(2));
        assert_eq!(parse_all(&SENSOR[..17]), None);
        assert_eq!(parse_all(&[&SENSOR[..], &[1]].concat()), None);
    }
}
