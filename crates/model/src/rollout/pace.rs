//! The pace of a rollout: the part of its spec that may change while it runs.

use super::batch::{BatchSize, FailureLimit, MAX_COUNT};
use crate::refusal::Refusal;
use crate::window::WeeklyWindows;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest soak, deadline or gate, in seconds.
pub const MAX_SECONDS: u64 = 30 * 86_400;
const DEFAULT_DEADLINE_SECONDS: u64 = 3_600;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// The size of the first wave. 0: no canary.
    pub canary: u32,
    pub batch: BatchSize,
    /// The most targets at work at once. None: all of the wave.
    pub max_in_flight: Option<u32>,
    /// This many failed targets pause the rollout.
    pub stop_after: FailureLimit,
    /// The pause between two waves.
    pub soak_seconds: u64,
    /// True if a person has to let each further wave begin.
    pub wave_approval: bool,
    /// How long a target may wait for its start, and for the gate.
    pub target_deadline_seconds: u64,
    /// Targets are begun only while it is open. None: at any time.
    pub window: Option<WeeklyWindows>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            canary: 0,
            batch: BatchSize::Count(1),
            max_in_flight: None,
            stop_after: FailureLimit::Count(1),
            soak_seconds: 0,
            wave_approval: false,
            target_deadline_seconds: DEFAULT_DEADLINE_SECONDS,
            window: None,
        }
    }
}

impl Pace {
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        let field = |name: &str| format!("{field}.{name}");
        if self.canary > MAX_COUNT {
            let problem = format!("is {}", self.canary);
            return Err(Refusal::invalid(&field("canary"), problem, "use 0 to 100000"));
        }
        match self.max_in_flight {
            Some(count) if !(1..=MAX_COUNT).contains(&count) => {
                let instead = "use 1 to 100000, or leave it out for the whole wave";
                let problem = format!("is {count}");
                return Err(Refusal::invalid(&field("max_in_flight"), problem, instead));
            }
            Some(_) | None => {}
        }
        check_seconds(&field("soak_seconds"), self.soak_seconds, 0)?;
        check_seconds(&field("target_deadline_seconds"), self.target_deadline_seconds, 1)
    }

    pub fn target_deadline(&self) -> Duration {
        Duration::from_secs(self.target_deadline_seconds)
    }

    /// The size of the wave after `begun` waves, of a rollout with `total` targets.
    pub fn wave_size(&self, begun: u32, total: u32) -> u32 {
        match (self.canary, begun) {
            (0, _) => self.batch.size(begun, total),
            (canary, 0) => canary,
            (_, begun) => self.batch.size(begun - 1, total),
        }
    }

    /// The sizes of all waves.
    pub fn waves(&self, total: u32) -> Vec<u32> {
        self.sizes_after(0, 0, total).collect()
    }

    /// The number of waves after the begun ones, which end at `wave_end`.
    pub fn waves_left(&self, begun: u32, wave_end: u32, total: u32) -> u32 {
        u32::try_from(self.sizes_after(begun, wave_end, total).count()).unwrap_or(u32::MAX)
    }

    fn sizes_after(&self, begun: u32, wave_end: u32, total: u32) -> impl Iterator<Item = u32> {
        let (mut begun, mut left) = (begun, total.saturating_sub(wave_end));
        std::iter::from_fn(move || {
            let size = self.wave_size(begun, total).clamp(1, left.max(1));
            let some = (left > 0).then_some(size)?;
            (begun, left) = (begun + 1, left - some);
            Some(some)
        })
    }

    /// What is changed, for the history.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let text = |value: Option<u32>| value.map_or("-".into(), |value| value.to_string());
        let window = |pace: &Self| pace.window.as_ref().map_or("-".into(), ToString::to_string);
        let fields = [
            ("batch", self.batch.to_string(), after.batch.to_string()),
            ("max_in_flight", text(self.max_in_flight), text(after.max_in_flight)),
            ("stop_after", self.stop_after.to_string(), after.stop_after.to_string()),
            ("soak", format!("{}s", self.soak_seconds), format!("{}s", after.soak_seconds)),
            ("wave_approval", self.wave_approval.to_string(), after.wave_approval.to_string()),
            (
                "target_deadline",
                format!("{}s", self.target_deadline_seconds),
                format!("{}s", after.target_deadline_seconds),
            ),
            ("window", window(self), window(after)),
        ];
        let changed = fields.into_iter().filter(|(_, before, after)| before != after);
        changed.map(|(name, before, after)| format!("{name} {before} → {after}")).collect()
    }
}

pub(super) fn check_seconds(field: &str, seconds: u64, least: u64) -> Result<(), Refusal> {
    if (least..=MAX_SECONDS).contains(&seconds) {
        return Ok(());
    }
    let instead = format!("use {least} to {MAX_SECONDS} seconds");
    Err(Refusal::invalid(field, format!("is {seconds} seconds"), instead))
}

/// What happens to a machine that is a target of another rollout too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// It waits until the other rollout has left it.
    #[default]
    Wait,
    /// The new rollout is refused.
    Refuse,
}

impl OnConflict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Refuse => "refuse",
        }
    }

    /// Empty: the default.
    pub fn parse_field(field: &str, word: &str) -> Result<Self, Refusal> {
        match word {
            "" | "wait" => Ok(Self::Wait),
            "refuse" => Ok(Self::Refuse),
            other => {
                let shown: String = other.chars().take(40).collect();
                Err(Refusal::invalid(field, format!("is {shown:?}"), "write wait or refuse"))
            }
        }
    }
}
