//! Jobs: effects in progress on simulated hardware.
//!
//! A job has no timer. Its progress follows from its start and the current time, so it continues
//! while no process runs, and a restarted engine finds it further along.

use model::condition::ConditionObservation;
use model::effect::{CallOutcome, DesiredPower, DeviceFacts, DeviceWork, Effect, RmaAction};
use model::fault::{Fault, FaultCode, Result};
use model::node::NodeStage;
use model::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The duration of simulated work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// No time.
    Zero,
    /// Tens to hundreds of milliseconds.
    Fast,
    /// Seconds, for demonstrations; a reimage takes half a minute.
    #[default]
    Human,
}

impl Speed {
    pub const ALL: [Speed; 3] = [Self::Zero, Self::Fast, Self::Human];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Fast => "fast",
            Self::Human => "human",
        }
    }

    /// The duration of this effect on this machine: constant, but different between machines.
    pub fn takes_ms(self, machine: &str, effect: &Effect) -> u64 {
        let human = human_ms(effect);
        let varied = human * (90 + fnv(machine) % 21) / 100;
        match self {
            Self::Zero => 0,
            Self::Fast => varied / 50,
            Self::Human => varied,
        }
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|speed| speed.as_str() == name)
            .ok_or_else(|| format!("{name:?} is not a speed; use zero, fast or human"))
    }
}

const fn human_ms(effect: &Effect) -> u64 {
    match effect {
        Effect::Ssh { .. } => 2_000,
        Effect::Reboot { .. } => 6_000,
        Effect::Netboot { .. } => 1_500,
        Effect::Repave { .. } => 15_000,
        Effect::Join { .. } => 4_000,
        Effect::Leave { .. } => 2_000,
        Effect::Verify { .. } => 1_500,
        Effect::Net { .. } => 3_000,
        Effect::Rma { action, .. } => match action {
            RmaAction::Record => 1_000,
            RmaAction::PowerOff => 3_000,
            RmaAction::Mark => 1_000,
        },
        Effect::Drain { .. } => 5_000,
        Effect::Uncordon { .. } => 1_000,
        Effect::Power { to: DesiredPower::On, .. } => 2_000,
        Effect::Power { to: DesiredPower::Off, .. } => 3_000,
        Effect::Device { work } => match work {
            DeviceWork::Firmware { .. } => 3_000,
            DeviceWork::Fabric { .. } => 2_000,
            DeviceWork::Read | DeviceWork::Configure | DeviceWork::Check { .. } => 1_000,
        },
        Effect::Stage { stage, .. } => stage_ms(*stage),
        Effect::ChildRuns { .. } => 0,
    }
}

/// Stages that wait for hardware take seconds, lookups half a second.
const fn stage_ms(stage: NodeStage) -> u64 {
    match stage {
        NodeStage::WaitForReady | NodeStage::WaitForDeployed => 6_000,
        NodeStage::ReleaseMaasNode
        | NodeStage::DrainNode
        | NodeStage::ScrubGpu
        | NodeStage::WaitForAgentEnrollment
        | NodeStage::WaitForHardwareSyncHealthy => 3_000,
        NodeStage::CommissionNode
        | NodeStage::ConfigureStorage
        | NodeStage::DeployViaMaas
        | NodeStage::CleanupStorage
        | NodeStage::PowerOffMaasNode
        | NodeStage::ForceReleaseAllocations => 1_500,
        NodeStage::LoadSiteConfig
        | NodeStage::ResolvePowerCredentials
        | NodeStage::CreateOrFindInMaas
        | NodeStage::ApplyRocePhase2
        | NodeStage::EnsurePxeInterfaceAuto
        | NodeStage::RenderCloudInit
        | NodeStage::ClassifyDeployFailure
        | NodeStage::RecoverForDatasourceRetry
        | NodeStage::EnsureHardwareSyncConfigured
        | NodeStage::DisableNode
        | NodeStage::ValidateCleanNode
        | NodeStage::RetireGpuaasNode
        | NodeStage::RemoveGpuaasNodeRecord
        | NodeStage::CleanupSecrets
        | NodeStage::RemoveMaasRecord => 500,
    }
}

/// The highest percentage of a write that has not ended.
const MAX_PARTIAL: u64 = 99;

/// FNV-1a: equal in every process and release.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// An effect under its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub effect: Effect,
    pub started_at: Timestamp,
    pub takes_ms: u64,
    /// True if it has changed the hardware, which happens at most once.
    pub applied: bool,
    /// True if its goal held before it started.
    #[serde(default)]
    pub already: bool,
    /// A fault rule lets it fail before it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<FailsAt>,
    /// None while it runs.
    pub ending: Option<JobEnd>,
}

/// The failure of a job that has done a part of its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailsAt {
    /// The part of the work that is done by then.
    pub percent: u8,
    pub fault: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum JobEnd {
    /// It was applied, and the goal held when it was read back.
    Done {
        #[serde(rename = "said")]
        message: String,
        evidence: Vec<ConditionObservation>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        facts: Option<DeviceFacts>,
    },
    /// It failed while it ran, or its goal did not hold afterwards.
    Failed { fault: Fault },
    /// It could not start.
    Refused { fault: Fault },
    /// It was stopped while it ran.
    Stopped { at: Timestamp },
    /// It was stopped before it started and can never start.
    #[serde(rename = "barred")]
    StoppedBeforeStart,
}

impl JobEnd {
    pub fn of(result: Result<CallOutcome>) -> Self {
        match result {
            Ok(CallOutcome { message: text, evidence, facts }) => {
                Self::Done { message: text, evidence, facts }
            }
            Err(fault) => Self::Failed { fault },
        }
    }
}

impl Job {
    pub fn begun(effect: Effect, started_at: Timestamp, takes_ms: u64) -> Self {
        Self {
            effect,
            started_at,
            takes_ms,
            applied: false,
            already: false,
            fails: None,
            ending: None,
        }
    }

    pub fn ended(effect: Effect, at: Timestamp, ending: JobEnd) -> Self {
        Self { ending: Some(ending), ..Self::begun(effect, at, 0) }
    }

    /// The time when it ends unless it is stopped.
    pub fn due(&self) -> Timestamp {
        self.started_at + Duration::from_millis(self.runs_ms())
    }

    /// The time that it runs unless it is stopped.
    fn runs_ms(&self) -> u64 {
        self.takes_ms.saturating_mul(self.max_percent()) / 100
    }

    /// The part of its work that it does unless it is stopped.
    pub fn max_percent(&self) -> u64 {
        self.fails.as_ref().map_or(100, |fails| u64::from(fails.percent))
    }

    /// The time that it has run; constant after a stop.
    pub fn elapsed_ms(&self, now: Timestamp) -> u64 {
        let until = match &self.ending {
            Some(JobEnd::Stopped { at }) => *at,
            Some(
                JobEnd::Done { .. }
                | JobEnd::Failed { .. }
                | JobEnd::Refused { .. }
                | JobEnd::StoppedBeforeStart,
            ) => return self.runs_ms(),
            None => now,
        };
        u64::try_from(until.since(self.started_at).as_millis()).unwrap_or(u64::MAX)
    }

    /// True if it was ever at work.
    pub const fn has_begun(&self) -> bool {
        match &self.ending {
            None | Some(JobEnd::Done { .. } | JobEnd::Failed { .. } | JobEnd::Stopped { .. }) => {
                true
            }
            Some(JobEnd::Refused { .. } | JobEnd::StoppedBeforeStart) => false,
        }
    }

    /// The part of an image that is on the disk. None for other work, and after its end.
    pub fn written_percent(&self, now: Timestamp) -> Option<u64> {
        if let (Some(fails), Some(JobEnd::Failed { .. })) = (&self.fails, &self.ending) {
            return Some(u64::from(fails.percent));
        }
        let at_work = matches!(self.ending, None | Some(JobEnd::Stopped { .. }));
        let writes = at_work && matches!(self.effect, Effect::Repave { .. });
        writes.then(|| {
            (self.elapsed_ms(now).saturating_mul(100) / self.takes_ms.max(1)).min(MAX_PARTIAL)
        })
    }

    /// The result for the caller that follows it; None while it runs.
    pub fn result(&self) -> Option<Result<CallOutcome>> {
        let stopped = |when: String| {
            Err(Fault::new(FaultCode::EffectFailed, format!("stopped on request {when}")))
        };
        self.ending.as_ref().map(|ending| match ending {
            JobEnd::Done { message: text, evidence, facts } => Ok(CallOutcome {
                message: text.clone(),
                evidence: evidence.clone(),
                facts: facts.clone(),
            }),
            JobEnd::Failed { fault } | JobEnd::Refused { fault } => Err(fault.clone()),
            JobEnd::Stopped { at } => {
                stopped(format!("after {}", format_duration(at.since(self.started_at))))
            }
            JobEnd::StoppedBeforeStart => stopped("before it began".into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_vary_by_machine_and_are_constant() {
        let repave = Effect::Repave { image: "a".into() };
        let takes: Vec<u64> =
            (0..50).map(|i| Speed::Human.takes_ms(&format!("m-{i}"), &repave)).collect();
        assert!(takes.iter().all(|ms| (13_500..=16_500).contains(ms)), "{takes:?}");
        assert!(takes.iter().any(|ms| *ms != takes[0]));
        assert_eq!(takes[7], Speed::Human.takes_ms("m-7", &repave));
        assert!((200..=400).contains(&Speed::Fast.takes_ms("m-1", &repave)));
        assert_eq!(Speed::Zero.takes_ms("m-1", &repave), 0);
    }

    #[test]
    fn speeds_are_parsed_by_name() {
        for speed in Speed::ALL {
            assert_eq!(speed.as_str().parse(), Ok(speed));
        }
        assert!("warp".parse::<Speed>().unwrap_err().contains("zero, fast or human"));
    }

    #[test]
    fn a_stopped_job_has_a_constant_elapsed_time() {
        let at = Timestamp::from_millis;
        let effect = Effect::Repave { image: "a".into() };
        let mut job = Job::begun(effect, at(1_000), 10_000);
        assert_eq!(job.elapsed_ms(at(4_000)), 3_000);
        assert!(job.result().is_none());
        job.ending = Some(JobEnd::Stopped { at: at(4_000) });
        assert_eq!(job.elapsed_ms(at(9_000)), 3_000);
        let fault = job.result().unwrap().unwrap_err();
        assert_eq!(fault.message, "stopped on request after 3s");
    }
}
