//! Weekly windows: `Mon-Fri 02:00-05:00 Europe/Berlin; Sat,Sun 00:00-24:00 UTC`.
//!
//! A window is one interval on each of its days: from the first instant at which the wall clock
//! shows its begin to the last instant at which it shows its end. A time that a change of the clock
//! leaves out on that day stands for the end of the gap. A window whose end is not after its begin
//! ends on the next day, and belongs to the day on which it begins.

use super::zone::{Repeated, Zone, ZonedInstant};
use crate::refusal::Refusal;
use crate::time::Timestamp;
use jiff::ToSpan;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The number of windows that one text may have.
const MAX_PARTS: usize = 20;
/// The longest text, in bytes.
const MAX_TEXT: usize = 1_000;
const MINUTES_PER_DAY: u16 = 24 * 60;
/// The days around an instant that are looked at: a window of yesterday may still be open, and one
/// that a change of the clock leaves out opens a week later.
const DAYS_BEFORE: i32 = 2;
const DAYS_AFTER: i32 = 15;
const TWO_WEEKS: Duration = Duration::from_secs(14 * 86_400);
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAILY: &str = "daily";
const EXAMPLE: &str = "write it as 'Mon-Fri 02:00-05:00 Europe/Berlin' or 'daily 22:00-04:00 UTC'";

/// One or more windows, each with its own time zone. They are open while one of them is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WeeklyWindows(Vec<WeeklyWindow>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct WeeklyWindow {
    /// From Monday on.
    days: [bool; 7],
    /// Minutes after midnight.
    begin: u16,
    /// Minutes after midnight of the first day; at most two days.
    end: u16,
    zone: Zone,
}

/// Whether weekly windows are open at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowState {
    /// Until then. None: they do not close within two weeks.
    Open(Option<ZonedInstant>),
    /// Until then. None: beyond the calendar.
    Closed(Option<ZonedInstant>),
}

/// A window on one day. It is closed at its end.
struct Interval<'a> {
    begin: Timestamp,
    end: Timestamp,
    zone: &'a Zone,
}

impl WeeklyWindows {
    pub fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        if text.trim().is_empty() {
            return Err(Refusal::missing(field));
        }
        if text.len() > MAX_TEXT {
            let problem = format!("is {} bytes long", text.len());
            return Err(Refusal::invalid(field, problem, format!("use at most {MAX_TEXT}")));
        }
        let parts: Vec<&str> = text.split(';').collect();
        if parts.len() > MAX_PARTS {
            let problem = format!("has {} windows", parts.len());
            return Err(Refusal::invalid(field, problem, format!("use at most {MAX_PARTS}")));
        }
        let parsed = parts.into_iter().map(|part| WeeklyWindow::parse(field, part));
        parsed.collect::<Result<_, _>>().map(Self)
    }

    /// Whether they are open, and when that changes.
    pub fn state(&self, now: Timestamp) -> WindowState {
        let mut intervals: Vec<Interval<'_>> =
            self.0.iter().flat_map(|one| one.intervals(now)).collect();
        intervals.sort_by_key(|one| (one.begin, one.end));
        let instant = |at, zone: &Zone| Some(ZonedInstant { at, zone: zone.clone() });
        let open = intervals.iter().find(|one| one.begin <= now && now < one.end);
        let Some(open) = open else {
            let next = intervals.iter().find(|one| one.begin > now);
            return WindowState::Closed(next.and_then(|one| instant(one.begin, one.zone)));
        };
        // Windows that touch or overlap close together.
        let last = intervals.iter().fold(open, |last, one| {
            if one.begin <= last.end && one.end > last.end { one } else { last }
        });
        match last.end > now + TWO_WEEKS {
            true => WindowState::Open(None),
            false => WindowState::Open(instant(last.end, last.zone)),
        }
    }

    pub fn is_open(&self, now: Timestamp) -> bool {
        matches!(self.state(now), WindowState::Open(_))
    }
}

impl WeeklyWindow {
    fn parse(field: &str, text: &str) -> Result<Self, Refusal> {
        let shown: String = text.trim().chars().take(80).collect();
        let invalid = |problem: String| Refusal::invalid(field, problem, EXAMPLE);
        let words: Vec<&str> = text.split_whitespace().collect();
        let [days, times, zone] = words.as_slice() else {
            let problem = format!("has {shown:?}, which is not days, times and a time zone");
            return Err(invalid(problem));
        };
        let days = parse_days(days).map_err(|word| {
            let problem = format!("has {word:?} in {shown:?}, which is no day");
            Refusal::invalid(field, problem, "write Mon, Mon-Fri, Sat,Sun or daily")
        })?;
        let parsed = times.split_once('-').and_then(|(begin, end)| {
            Some((parse_time(begin)?, parse_time(end)?)).filter(|one| one.0 < MINUTES_PER_DAY)
        });
        let Some((begin, end)) = parsed else {
            let problem = format!("has {times:?}, which is not two times of a day");
            let instead =
                "write 02:00-05:00, or 22:00-04:00 past midnight; the latest end is 24:00";
            return Err(Refusal::invalid(field, problem, instead));
        };
        if begin == end {
            let problem = format!("has {times:?}, which is empty");
            let instead = "write 00:00-24:00 for a whole day";
            return Err(Refusal::invalid(field, problem, instead));
        }
        let end = if end < begin { end + MINUTES_PER_DAY } else { end };
        Ok(Self { days, begin, end, zone: Zone::parse(field, zone)? })
    }

    /// The days around an instant on which the window opens.
    fn intervals(&self, now: Timestamp) -> impl Iterator<Item = Interval<'_>> {
        let today = self.zone.date(now);
        let days = (-DAYS_BEFORE..=DAYS_AFTER)
            .filter_map(move |days| today?.checked_add(days.days()).ok());
        days.filter(|day| {
            let index = day.weekday().to_monday_zero_offset();
            usize::try_from(index).is_ok_and(|index| self.days.get(index) == Some(&true))
        })
        .filter_map(|day| self.on(day))
    }

    /// The window that begins on a day; none if a change of the clock leaves it out.
    fn on(&self, day: Date) -> Option<Interval<'_>> {
        let shown =
            |minutes: u16| day.at(0, 0, 0, 0).checked_add(i64::from(minutes).minutes()).ok();
        let begin = self.zone.instant(shown(self.begin)?, Repeated::First)?;
        let end = self.zone.instant(shown(self.end)?, Repeated::Last)?;
        (begin < end).then_some(Interval { begin, end, zone: &self.zone })
    }
}

/// Parses `Mon`, `Mon-Fri`, `Sat,Sun`, `Mon,Wed-Fri` or `daily`; fails with the word that is no
/// day. A range may go past Sunday.
fn parse_days(text: &str) -> Result<[bool; 7], String> {
    if text.eq_ignore_ascii_case(DAILY) {
        return Ok([true; 7]);
    }
    let number = |word: &str| {
        let found = DAYS.iter().position(|name| name.eq_ignore_ascii_case(word));
        found.ok_or_else(|| word.chars().take(20).collect::<String>())
    };
    let mut days = [false; 7];
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        let length = (last + 7 - first) % 7;
        for (index, day) in days.iter_mut().enumerate() {
            *day |= (index + 7 - first) % 7 <= length;
        }
    }
    Ok(days)
}

/// The minutes after midnight of `HH:MM`, at most 24:00.
fn parse_time(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    Some(hours * 60 + minutes).filter(|all| minutes < 60 && *all <= MINUTES_PER_DAY)
}

impl fmt::Display for WindowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(Some(closes)) => write!(f, "open until {closes}"),
            Self::Open(None) => f.write_str("open at all times"),
            Self::Closed(Some(opens)) => write!(f, "closed until {opens}"),
            Self::Closed(None) => f.write_str("closed for good"),
        }
    }
}

impl fmt::Display for WeeklyWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&parts.join("; "))
    }
}

impl fmt::Display for WeeklyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        // An end past midnight was written as a time of the next day.
        let end = match self.end > MINUTES_PER_DAY {
            true => self.end - MINUTES_PER_DAY,
            false => self.end,
        };
        let (days, zone) = (days_text(&self.days), self.zone.name());
        write!(f, "{days} {}-{} {zone}", time(self.begin), time(end))
    }
}

/// Three or more days in a row are a range.
fn days_text(days: &[bool; 7]) -> String {
    if days.iter().all(|day| *day) {
        return DAILY.into();
    }
    let mut words: Vec<String> = Vec::new();
    let named: Vec<(&str, bool)> = DAYS.iter().zip(days).map(|(name, day)| (*name, *day)).collect();
    for row in named.split(|(_, day)| !day).filter(|row| !row.is_empty()) {
        match row {
            [(first, _), _, .., (last, _)] => words.push(format!("{first}-{last}")),
            row => words.extend(row.iter().map(|(name, _)| name.to_string())),
        }
    }
    words.join(",")
}

impl From<WeeklyWindows> for String {
    fn from(windows: WeeklyWindows) -> Self {
        windows.to_string()
    }
}

impl TryFrom<String> for WeeklyWindows {
    type Error = Refusal;

    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse("window", &text)
    }
}
