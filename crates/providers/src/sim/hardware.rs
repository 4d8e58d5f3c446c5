//! The hardware of one machine: its state, how effects change it, and what is observed.
//!
//! Everything here is a function of the state and the time; `store` keeps the state. Due jobs are
//! applied before every read ([`Hardware::apply_due_jobs`]).

use super::device::Device;
use super::effect_log::EffectRecord;
use super::job::{FailsAt, Job, JobEnd};
use super::node::Node;
use super::stage::SimulatedMaas;
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF, POWERED_ON, imaged};
use model::effect::{
    CallOutcome, ClusterExpectation, DesiredPower, DeviceWork, Effect, EffectKey, NetbootMode,
    ProviderAnswer, RebootMode, RmaAction,
};
use model::fault::{Fault, FaultCode, Result};
use model::id::{MachineId, PowerShelfId};
use model::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most ended jobs that a machine keeps.
pub const MAX_ENDED_JOBS: usize = 64;
/// The image before the first repave.
pub const FACTORY_IMAGE: &str = "factory";
/// The image after an interrupted repave.
pub const PARTIAL_IMAGE: &str = "partial";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    On,
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    pub power: Power,
    /// The number of boots.
    pub boot_id: u64,
    pub booted_at: Timestamp,
    /// The source of the next boot. PXE applies to one boot.
    pub netboot: NetbootMode,
    /// The source of the last boot.
    #[serde(default = "from_disk")]
    pub booted_from: NetbootMode,
    pub image: String,
    pub cluster: Option<String>,
    pub cordoned: bool,
    #[serde(default)]
    pub node: Node,
    #[serde(default)]
    pub device: Device,
    #[serde(default)]
    pub managed: SimulatedMaas,
    pub network: String,
    /// True if it was marked for return to the vendor.
    pub marked: bool,
    /// The number of effects applied, which distinguishes effects in the effect log.
    pub acts: u64,
    pub jobs: BTreeMap<EffectKey, Job>,
    /// The power shelves that feed it, as far as they are known. Empty: it always has power.
    #[serde(default)]
    pub feeds: Vec<PowerShelfId>,
}

impl Hardware {
    /// A machine in its initial state.
    pub fn factory(now: Timestamp) -> Self {
        Self {
            power: Power::On,
            boot_id: 1,
            booted_at: now,
            netboot: NetbootMode::Disk,
            booted_from: NetbootMode::Disk,
            image: FACTORY_IMAGE.into(),
            cluster: None,
            cordoned: false,
            node: Node::default(),
            device: Device::default(),
            managed: SimulatedMaas::default(),
            network: String::new(),
            marked: false,
            acts: 0,
            jobs: BTreeMap::new(),
            feeds: Vec::new(),
        }
    }

    /// Starts the effect under the key, unless the key is known.
    pub fn begin(
        &mut self,
        key: &EffectKey,
        effect: &Effect,
        (takes_ms, fails): (u64, Option<FailsAt>),
        now: Timestamp,
    ) {
        if self.jobs.contains_key(key) {
            return;
        }
        let job = match self.refusal(effect) {
            Some(fault) => Job::ended(effect.clone(), now, JobEnd::Refused { fault }),
            None => Job {
                already: self.observe(key, effect).is_ok(),
                fails,
                ..Job::begun(effect.clone(), now, takes_ms)
            },
        };
        self.cordon_for_drain(key, effect);
        self.remember(key, job);
    }

    /// A drain cordons before it evicts, whether or not it completes.
    fn cordon_for_drain(&mut self, key: &EffectKey, effect: &Effect) {
        if let Effect::Drain { cluster_ref, .. } = effect
            && self.member_of(cluster_ref)
        {
            self.cordon_for(key);
        }
    }

    /// Applies every job that is due, in the order of their due times.
    pub fn apply_due_jobs(
        &mut self,
        machine: &MachineId,
        now: Timestamp,
        ledger: &mut Vec<EffectRecord>,
    ) {
        let is_due = |job: &Job| job.ending.is_none() && job.due() <= now;
        let mut due: Vec<(Timestamp, EffectKey)> = self
            .jobs
            .iter()
            .filter(|(_, job)| is_due(job))
            .map(|(key, job)| (job.due(), key.clone()))
            .collect();
        due.sort();
        for (at, key) in due {
            let fails = self.jobs.get(&key).and_then(|job| job.fails.clone());
            if let Some(FailsAt { fault, .. }) = fails {
                self.end_early(&key, JobEnd::Failed { fault }, at);
                continue;
            }
            let Some(mut job) = self.jobs.remove(&key) else { continue };
            self.act(&key, &job.effect, at);
            self.acts += 1;
            job.applied = true;
            job.ending = Some(JobEnd::of(self.read_back(machine, &key, &job)));
            ledger.push(EffectRecord::applied(machine, &key, &job.effect, self.acts));
            self.jobs.insert(key, job);
        }
    }

    /// Stops the job of the key, or bars the key.
    pub fn stop(&mut self, key: &EffectKey, effect: &Effect, now: Timestamp) -> ProviderAnswer {
        let Some(job) = self.jobs.get_mut(key) else {
            self.remember(key, Job::ended(effect.clone(), now, JobEnd::StoppedBeforeStart));
            return ProviderAnswer::Stopped;
        };
        match job.result() {
            Some(Ok(outcome)) => ProviderAnswer::Done(outcome),
            Some(Err(_)) => ProviderAnswer::Stopped,
            // A firmware update cannot be stopped.
            None if matches!(effect, Effect::Device { work: DeviceWork::Firmware { .. } }) => {
                ProviderAnswer::UnderWay
            }
            None => {
                self.end_early(key, JobEnd::Stopped { at: now }, now);
                ProviderAnswer::Stopped
            }
        }
    }

    /// Fails the job of the key. A key that has not started is used up too: a late call for it,
    /// from a caller that does not know of the failure, must not start it.
    pub fn fail(&mut self, key: &EffectKey, effect: &Effect, fault: &Fault, now: Timestamp) {
        let fault = fault.clone();
        if self.jobs.contains_key(key) {
            self.end_early(key, JobEnd::Failed { fault }, now);
        } else {
            self.cordon_for_drain(key, effect);
            self.remember(key, Job::ended(effect.clone(), now, JobEnd::Refused { fault }));
        }
    }

    /// Ends a running job without its goal. Its partial changes stay.
    fn end_early(&mut self, key: &EffectKey, ending: JobEnd, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        if job.ending.is_some() {
            return;
        }
        let before = job.clone();
        job.ending = Some(ending);
        if let Effect::Repave { .. } = &before.effect {
            self.image = PARTIAL_IMAGE.into();
            self.leave();
        }
        if let Effect::Drain { .. } = &before.effect {
            self.apply_partial_drain(&before, now);
        }
    }

    /// The status of the key.
    pub fn key_status(&self, key: &EffectKey) -> ProviderAnswer {
        let Some(job) = self.jobs.get(key) else { return ProviderAnswer::NeverStarted };
        match &job.ending {
            None => ProviderAnswer::UnderWay,
            Some(JobEnd::Done { message: text, evidence, facts }) => {
                ProviderAnswer::Done(CallOutcome {
                    message: text.clone(),
                    evidence: evidence.clone(),
                    facts: facts.clone(),
                })
            }
            // Following it returns the fault.
            Some(JobEnd::Failed { .. } | JobEnd::Refused { .. }) => ProviderAnswer::UnderWay,
            Some(JobEnd::Stopped { at }) => {
                let after = format_duration(at.since(job.started_at));
                ProviderAnswer::Unknown(format!("{} was stopped after {after}", job.effect.name()))
            }
            Some(JobEnd::StoppedBeforeStart) => ProviderAnswer::NeverStarted,
        }
    }

    fn remember(&mut self, key: &EffectKey, job: Job) {
        self.jobs.insert(key.clone(), job);
        let mut ended: Vec<(Timestamp, EffectKey)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.ending.is_some())
            .map(|(key, job)| (job.started_at, key.clone()))
            .collect();
        if ended.len() <= MAX_ENDED_JOBS {
            return;
        }
        ended.sort();
        for (_, old) in &ended[..ended.len() - MAX_ENDED_JOBS] {
            if old != key {
                self.jobs.remove(old);
            }
        }
    }

    /// The reason why the effect cannot start.
    fn refusal(&self, effect: &Effect) -> Option<Fault> {
        match effect {
            Effect::Repave { .. } => match (self.netboot, self.booted_from) {
                (NetbootMode::Pxe, _) | (_, NetbootMode::Pxe) => None,
                (NetbootMode::Disk, NetbootMode::Disk) => {
                    Some(Fault::new(FaultCode::EffectFailed, "machine booted from disk, not PXE"))
                }
            },
            Effect::Ssh { .. }
            | Effect::Net { .. }
            | Effect::Join { .. }
            | Effect::Reboot { mode: RebootMode::InBand, .. } => self.host_unreachable(),
            Effect::Reboot { mode: RebootMode::Bmc, .. }
            | Effect::Netboot { .. }
            | Effect::Leave { .. }
            | Effect::Verify { .. }
            | Effect::Rma { .. }
            | Effect::Drain { .. }
            | Effect::Uncordon { .. }
            | Effect::Power { .. }
            | Effect::Device { .. } => None,
            Effect::Stage { stage, undo, .. } => self.stage_refusal(*stage, *undo),
            Effect::ChildRuns { .. } => {
                Some(Fault::new(FaultCode::NotSupported, "a machine has no parts to send to work"))
            }
        }
    }

    /// The reason why the operating system is unreachable.
    fn host_unreachable(&self) -> Option<Fault> {
        let message = match self.power {
            Power::Off => "no route to host: the machine is powered off",
            Power::On if self.image == PARTIAL_IMAGE => {
                "connection refused: the image on disk is only partly written"
            }
            Power::On => return None,
        };
        Some(Fault::new(FaultCode::HostUnreachable, message))
    }

    fn act(&mut self, key: &EffectKey, effect: &Effect, at: Timestamp) {
        match effect {
            Effect::Ssh { command, .. } => self.run(command),
            Effect::Reboot { .. } => self.boot(at),
            Effect::Netboot { mode } => self.netboot = *mode,
            Effect::Repave { image } => {
                self.image = image.clone();
                self.leave();
                self.cordoned = false;
                // The written system starts from disk.
                self.netboot = NetbootMode::Disk;
                self.boot(at);
            }
            Effect::Join { cluster_ref, labels, taints, .. } => {
                self.join(cluster_ref, labels, taints)
            }
            Effect::Leave { cluster_ref, joined_by } => {
                if self.member_of(cluster_ref) && !self.joined_nothing(key, joined_by.as_ref()) {
                    self.leave();
                }
            }
            Effect::Drain { .. } => self.node.pods = 0,
            Effect::Uncordon { cluster_ref, own } => self.uncordon_for(key, cluster_ref, *own),
            Effect::Power { to: DesiredPower::Off, .. } => self.power = Power::Off,
            Effect::Power { to: DesiredPower::On, .. } => match self.power {
                Power::On => {}
                Power::Off => self.boot(at),
            },
            Effect::Verify { .. } | Effect::ChildRuns { .. } => {}
            Effect::Device { work } => self.apply_device_work(work),
            Effect::Stage { stage, node, undo, .. } => self.apply_stage(node, *stage, *undo, at),
            Effect::Net { document } => self.network = document.clone(),
            Effect::Rma { action, .. } => match action {
                RmaAction::PowerOff => self.power = Power::Off,
                RmaAction::Mark => self.marked = true,
                RmaAction::Record => {}
            },
        }
    }

    /// The few commands that change simulated state.
    fn run(&mut self, command: &str) {
        if command.contains("kubectl uncordon") {
            self.uncordon();
        } else if command.contains("kubectl drain") {
            self.cordoned = true;
            self.node.pods = 0;
        } else if command.contains("kubectl cordon") {
            self.cordoned = true;
        }
    }

    pub(super) fn boot(&mut self, at: Timestamp) {
        self.power = Power::On;
        self.booted_from = self.netboot;
        self.netboot = NetbootMode::Disk;
        self.boot_id += 1;
        self.booted_at = at;
    }

    /// Reads back whether the goal of a job holds.
    fn read_back(&self, machine: &MachineId, key: &EffectKey, job: &Job) -> Result<CallOutcome> {
        let differs = |code| move |observed: String| Fault::new(code, observed);
        match &job.effect {
            Effect::Ssh { .. } => Ok(outcome("Exit status 0", None)),
            Effect::Reboot { .. } if self.booted_at >= job.started_at => {
                let booted = ConditionObservation::new(ConditionType::Reachable, true, "Booted");
                let text = format!("Booted (boot {})", self.boot_id);
                Ok(self.with_power(outcome(text, Some(booted))))
            }
            Effect::Reboot { .. } => {
                let observed = format!("boot {} is older than the request", self.boot_id);
                Err(Fault::new(FaultCode::ReadBackDiffers, observed))
            }
            Effect::Rma { action: RmaAction::Record, .. } => {
                let (image, boot) = (&self.image, self.boot_id);
                Ok(outcome(format!("Recorded: image {image}, boot {boot}"), None))
            }
            // An advisory check never fails.
            Effect::Verify { cluster_ref, expect, advisory: true } => {
                Ok(self.observe_in_cluster(cluster_ref, *expect).1)
            }
            Effect::Verify { expect: ClusterExpectation::Ready, .. } => {
                self.observe(key, &job.effect).map_err(differs(FaultCode::NotInCluster))
            }
            Effect::Power { to, .. } if job.already => {
                let observed =
                    self.observe(key, &job.effect).map_err(differs(FaultCode::ReadBackDiffers))?;
                Ok(CallOutcome {
                    message: format!("It was {} already", power_name(*to)),
                    ..observed
                })
            }
            Effect::Device { work } => self.read_back_device(machine, work, job.already),
            Effect::Stage { .. } => self.read_back_stage(machine, &job.effect, job.due()),
            Effect::Verify { expect: ClusterExpectation::Drained, .. }
            | Effect::Netboot { .. }
            | Effect::Repave { .. }
            | Effect::Join { .. }
            | Effect::Leave { .. }
            | Effect::Net { .. }
            | Effect::Rma { .. }
            | Effect::Drain { .. }
            | Effect::Uncordon { .. }
            | Effect::Power { .. }
            | Effect::ChildRuns { .. } => {
                self.observe(key, &job.effect).map_err(differs(FaultCode::ReadBackDiffers))
            }
        }
    }

    /// Checks that the goal of an effect holds now; the error says what is observed.
    pub fn observe(&self, key: &EffectKey, effect: &Effect) -> Result<CallOutcome, String> {
        match effect {
            Effect::Ssh { .. } => Err("what a command did cannot be observed".into()),
            Effect::Reboot { .. } => Err("a reboot asked for earlier cannot be observed".into()),
            Effect::Netboot { mode } => {
                let message = format!("Next boot from {}", boot_source(self.netboot));
                if self.netboot == *mode { Ok(outcome(message, None)) } else { Err(message) }
            }
            Effect::Repave { image } if self.image == *image => {
                Ok(outcome(format!("Image {image} is on disk"), Some(imaged(image))))
            }
            Effect::Repave { .. } => Err(format!("image {} is on disk", self.image)),
            Effect::Join { .. } => self.observe_joined(effect),
            Effect::Leave { cluster_ref, joined_by }
                if self.member_of(cluster_ref) && !self.joined_nothing(key, joined_by.as_ref()) =>
            {
                Err(self.membership().message)
            }
            Effect::Leave { .. } => Ok(self.membership()),
            Effect::Verify { cluster_ref, expect, .. } => {
                let (holds, observed) = self.observe_in_cluster(cluster_ref, *expect);
                if holds { Ok(observed) } else { Err(observed.message) }
            }
            Effect::Net { document } if self.network == *document => {
                Ok(outcome("The network is configured as wanted", None))
            }
            Effect::Net { .. } => Err("the network is configured otherwise".into()),
            Effect::Rma { action, .. } => self.observe_rma(*action),
            Effect::Drain { cluster_ref, .. } => self.observe_drained_pods(cluster_ref),
            Effect::Uncordon { cluster_ref, own } => {
                self.observe_uncordoned(key, cluster_ref, *own)
            }
            Effect::Power { to, .. } => self.observe_power(*to),
            Effect::Device { work } => self.observe_device(work),
            Effect::Stage { stage, node, undo, .. } => self.observe_stage(node, *stage, *undo),
            Effect::ChildRuns { .. } => Err("a machine has no parts".into()),
        }
    }

    fn observe_power(&self, to: DesiredPower) -> Result<CallOutcome, String> {
        match (to, self.power) {
            (DesiredPower::On, Power::On) => {
                let observed =
                    ConditionObservation::new(ConditionType::Reachable, true, POWERED_ON);
                Ok(self.with_power(outcome("The power is on", Some(observed))))
            }
            (DesiredPower::Off, Power::Off) => self.observe_rma(RmaAction::PowerOff),
            (DesiredPower::On, Power::Off) => Err("the power is off".into()),
            (DesiredPower::Off, Power::On) => Err("the power is on".into()),
        }
    }

    fn observe_rma(&self, action: RmaAction) -> Result<CallOutcome, String> {
        match (action, self.power) {
            (RmaAction::Record, _) => Err("a record taken earlier cannot be observed".into()),
            (RmaAction::PowerOff, Power::Off) => {
                let observed =
                    ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF);
                Ok(self.with_power(outcome("The power is off", Some(observed))))
            }
            (RmaAction::PowerOff, Power::On) => Err("the power is on".into()),
            (RmaAction::Mark, _) if !self.marked => Err("the machine is not marked".into()),
            (RmaAction::Mark, _) => {
                let observed = ConditionObservation::new(ConditionType::Rma, true, "RmaRun");
                Ok(outcome("Marked for return to the vendor", Some(observed)))
            }
        }
    }

    /// The conditions that a probe reports.
    pub fn probe(&self) -> Vec<ConditionObservation> {
        let reachable = match self.power {
            Power::On => ConditionObservation::new(ConditionType::Reachable, true, "PingOK"),
            Power::Off => ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF),
        };
        let bmc = ConditionObservation::new(ConditionType::BmcReachable, true, "RedfishOK");
        [vec![reachable, bmc], self.membership().evidence].concat()
    }
}

const fn from_disk() -> NetbootMode {
    NetbootMode::Disk
}

pub fn outcome(text: impl Into<String>, observed: Option<ConditionObservation>) -> CallOutcome {
    CallOutcome { message: text.into(), evidence: observed.into_iter().collect(), facts: None }
}

const fn power_name(to: DesiredPower) -> &'static str {
    match to {
        DesiredPower::On => "on",
        DesiredPower::Off => "off",
    }
}

pub const fn boot_source(mode: NetbootMode) -> &'static str {
    match mode {
        NetbootMode::Pxe => "PXE",
        NetbootMode::Disk => "disk",
    }
}
