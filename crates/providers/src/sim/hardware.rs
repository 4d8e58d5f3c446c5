//! The hardware of one machine: its state, how effects change it, and what is observed.
//!
//! Everything here is a function of the state and the time; `store` keeps the state. Due jobs are
//! applied before every read ([`Hardware::apply_due_jobs`]).

use super::device::Device;
use super::job::{Ending, Job};
use super::ledger::Entry;
use super::node::Node;
use super::stage::Managed;
use model::condition::{ConditionType, Evidence};
use model::effect::{
    Answer, DeviceWork, Effect, Expect, Key, NetbootMode, Outcome, PowerTo, RebootMode, RmaAction,
};
use model::fault::{Code, Fault};
use model::id::MachineId;
use model::time::{Timestamp, spoken};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many ended jobs a machine keeps.
pub const KEPT_JOBS: usize = 64;
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
    pub netboot: NetbootMode,
    pub image: String,
    pub cluster: Option<String>,
    pub cordoned: bool,
    #[serde(default)]
    pub node: Node,
    #[serde(default)]
    pub device: Device,
    #[serde(default)]
    pub managed: Managed,
    pub network: String,
    /// Whether it was marked for return to the vendor.
    pub marked: bool,
    /// The number of effects applied, which distinguishes effects in the effect log.
    pub acts: u64,
    pub jobs: BTreeMap<Key, Job>,
}

impl Hardware {
    /// A machine in its initial state.
    pub fn factory(now: Timestamp) -> Self {
        Self {
            power: Power::On,
            boot_id: 1,
            booted_at: now,
            netboot: NetbootMode::Disk,
            image: FACTORY_IMAGE.into(),
            cluster: None,
            cordoned: false,
            node: Node::default(),
            device: Device::default(),
            managed: Managed::default(),
            network: String::new(),
            marked: false,
            acts: 0,
            jobs: BTreeMap::new(),
        }
    }

    /// Starts the effect under the key, unless the key is known.
    pub fn begin(&mut self, key: &Key, effect: &Effect, takes_ms: u64, now: Timestamp) {
        if self.jobs.contains_key(key) {
            return;
        }
        let job = match self.refusal(effect) {
            Some(fault) => Job::ended(effect.clone(), now, Ending::Refused { fault }),
            None => Job {
                already: self.look(key, effect).is_ok(),
                ..Job::begun(effect.clone(), now, takes_ms)
            },
        };
        self.shut_the_door(key, effect);
        self.remember(key, job);
    }

    /// A drain cordons before it evicts, whether or not it completes.
    fn shut_the_door(&mut self, key: &Key, effect: &Effect) {
        if let Effect::Drain { cluster_ref, .. } = effect
            && self.member_of(cluster_ref)
        {
            self.cordon_for(key);
        }
    }

    /// Applies every job that is due, in the order of their due times.
    pub fn settle(&mut self, machine: &MachineId, now: Timestamp, ledger: &mut Vec<Entry>) {
        let is_due = |job: &Job| job.ending.is_none() && job.due() <= now;
        let mut due: Vec<(Timestamp, Key)> = self
            .jobs
            .iter()
            .filter(|(_, job)| is_due(job))
            .map(|(key, job)| (job.due(), key.clone()))
            .collect();
        due.sort();
        for (at, key) in due {
            let Some(mut job) = self.jobs.remove(&key) else { continue };
            self.act(&key, &job.effect, at);
            self.acts += 1;
            job.applied = true;
            job.ending = Some(Ending::of(self.read_back(machine, &key, &job)));
            ledger.push(Entry::applied(machine, &key, &job.effect, self.acts));
            self.jobs.insert(key, job);
        }
    }

    /// Stops the job of the key, or bars the key.
    pub fn stop(&mut self, key: &Key, effect: &Effect, now: Timestamp) -> Answer {
        let Some(job) = self.jobs.get_mut(key) else {
            self.remember(key, Job::ended(effect.clone(), now, Ending::Barred));
            return Answer::Stopped;
        };
        match job.result() {
            Some(Ok(outcome)) => Answer::Done(outcome),
            Some(Err(_)) => Answer::Stopped,
            // A firmware update cannot be stopped.
            None if matches!(effect, Effect::Device { work: DeviceWork::Firmware { .. } }) => {
                Answer::UnderWay
            }
            None => {
                self.break_off(key, Ending::Stopped { at: now }, now);
                Answer::Stopped
            }
        }
    }

    /// Fails the job of the key. A key that has not started is used up too: a late call for it,
    /// from a caller that does not know of the failure, must not start it.
    pub fn fail(&mut self, key: &Key, effect: &Effect, fault: &Fault, now: Timestamp) {
        let ending = Ending::Failed { fault: fault.clone() };
        if self.jobs.contains_key(key) {
            self.break_off(key, ending, now);
        } else {
            self.shut_the_door(key, effect);
            self.remember(key, Job::ended(effect.clone(), now, ending));
        }
    }

    /// Ends a running job without its goal. Its partial changes stay.
    fn break_off(&mut self, key: &Key, ending: Ending, now: Timestamp) {
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
            self.half_drain(&before, now);
        }
    }

    /// The status of the key.
    pub fn inquire(&self, key: &Key) -> Answer {
        let Some(job) = self.jobs.get(key) else { return Answer::NeverStarted };
        match &job.ending {
            None => Answer::UnderWay,
            Some(Ending::Done { said, evidence, facts }) => Answer::Done(Outcome {
                said: said.clone(),
                evidence: evidence.clone(),
                facts: facts.clone(),
            }),
            // Following it returns the fault.
            Some(Ending::Failed { .. } | Ending::Refused { .. }) => Answer::UnderWay,
            Some(Ending::Stopped { at }) => {
                let after = spoken(at.since(job.started_at));
                Answer::Unknown(format!("{} was stopped after {after}", job.effect.word()))
            }
            Some(Ending::Barred) => Answer::NeverStarted,
        }
    }

    fn remember(&mut self, key: &Key, job: Job) {
        self.jobs.insert(key.clone(), job);
        let mut ended: Vec<(Timestamp, Key)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.ending.is_some())
            .map(|(key, job)| (job.started_at, key.clone()))
            .collect();
        if ended.len() <= KEPT_JOBS {
            return;
        }
        ended.sort();
        for (_, old) in &ended[..ended.len() - KEPT_JOBS] {
            if old != key {
                self.jobs.remove(old);
            }
        }
    }

    /// Why the effect cannot start.
    fn refusal(&self, effect: &Effect) -> Option<Fault> {
        match effect {
            Effect::Repave { .. } => match self.netboot {
                NetbootMode::Pxe => None,
                NetbootMode::Disk => {
                    Some(Fault::new(Code::EffectFailed, "machine booted from disk, not PXE"))
                }
            },
            Effect::Ssh { .. }
            | Effect::Net { .. }
            | Effect::Join { .. }
            | Effect::Reboot { mode: RebootMode::InBand, .. } => self.silence(),
            Effect::Reboot { mode: RebootMode::Bmc, .. }
            | Effect::Netboot { .. }
            | Effect::Leave { .. }
            | Effect::Verify { .. }
            | Effect::Rma { .. }
            | Effect::Drain { .. }
            | Effect::Uncordon { .. }
            | Effect::Power { .. }
            | Effect::Device { .. } => None,
            Effect::Stage { stage, undo, .. } => self.refuses_stage(*stage, *undo),
            Effect::Parts { .. } => {
                Some(Fault::new(Code::NotSupported, "a machine has no parts to send to work"))
            }
        }
    }

    /// Why the operating system is unreachable.
    fn silence(&self) -> Option<Fault> {
        let said = match self.power {
            Power::Off => "no route to host: the machine is powered off",
            Power::On if self.image == PARTIAL_IMAGE => {
                "connection refused: the image on disk is only partly written"
            }
            Power::On => return None,
        };
        Some(Fault::new(Code::HostUnreachable, said))
    }

    fn act(&mut self, key: &Key, effect: &Effect, at: Timestamp) {
        match effect {
            Effect::Ssh { command, .. } => self.run(command),
            Effect::Reboot { .. } => self.boot(at),
            Effect::Netboot { mode } => self.netboot = *mode,
            Effect::Repave { image } => {
                self.image = image.clone();
                self.leave();
                self.cordoned = false;
                // PXE applies to one boot: the next one is from disk.
                self.netboot = NetbootMode::Disk;
                self.boot(at);
            }
            Effect::Join { cluster_ref, labels, taints } => self.join(cluster_ref, labels, taints),
            Effect::Leave { cluster_ref } => {
                if self.member_of(cluster_ref) {
                    self.leave();
                }
            }
            Effect::Drain { .. } => self.node.pods = 0,
            Effect::Uncordon { cluster_ref, own } => self.uncordon_for(key, cluster_ref, *own),
            Effect::Power { to: PowerTo::Off, .. } => self.power = Power::Off,
            Effect::Power { to: PowerTo::On, .. } => match self.power {
                Power::On => {}
                Power::Off => self.boot(at),
            },
            Effect::Verify { .. } | Effect::Parts { .. } => {}
            Effect::Device { work } => self.act_as_device(work),
            Effect::Stage { stage, node, undo, .. } => self.act_on_stage(node, *stage, *undo, at),
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
        self.boot_id += 1;
        self.booted_at = at;
    }

    /// Reads back whether the goal of a job holds.
    fn read_back(&self, machine: &MachineId, key: &Key, job: &Job) -> Result<Outcome, Fault> {
        let differs = |code| move |seen: String| Fault::new(code, seen);
        match &job.effect {
            Effect::Ssh { .. } => Ok(outcome("Exit status 0", None)),
            Effect::Reboot { .. } if self.booted_at >= job.started_at => {
                let booted = Evidence::new(ConditionType::Reachable, true, "Booted");
                let said = format!("Booted (boot {})", self.boot_id);
                Ok(self.with_power(outcome(said, Some(booted))))
            }
            Effect::Reboot { .. } => {
                let seen = format!("boot {} is older than the request", self.boot_id);
                Err(Fault::new(Code::ReadBackDiffers, seen))
            }
            Effect::Rma { action: RmaAction::Record, .. } => {
                let (image, boot) = (&self.image, self.boot_id);
                Ok(outcome(format!("Recorded: image {image}, boot {boot}"), None))
            }
            // An advisory check never fails.
            Effect::Verify { cluster_ref, expect, advisory: true } => {
                Ok(self.look_in_cluster(cluster_ref, *expect).1)
            }
            Effect::Verify { expect: Expect::Ready, .. } => {
                self.look(key, &job.effect).map_err(differs(Code::NotInCluster))
            }
            Effect::Power { to, .. } if job.already => {
                let seen = self.look(key, &job.effect).map_err(differs(Code::ReadBackDiffers))?;
                Ok(Outcome { said: format!("It was {} already", word(*to)), ..seen })
            }
            Effect::Device { work } => self.read_back_device(machine, work, job.already),
            Effect::Stage { .. } => self.read_back_stage(machine, &job.effect, job.due()),
            Effect::Verify { expect: Expect::Drained, .. }
            | Effect::Netboot { .. }
            | Effect::Repave { .. }
            | Effect::Join { .. }
            | Effect::Leave { .. }
            | Effect::Net { .. }
            | Effect::Rma { .. }
            | Effect::Drain { .. }
            | Effect::Uncordon { .. }
            | Effect::Power { .. }
            | Effect::Parts { .. } => {
                self.look(key, &job.effect).map_err(differs(Code::ReadBackDiffers))
            }
        }
    }

    /// Whether the goal of an effect holds now; otherwise what is observed.
    pub fn look(&self, key: &Key, effect: &Effect) -> Result<Outcome, String> {
        match effect {
            Effect::Ssh { .. } => Err("what a command did cannot be observed".into()),
            Effect::Reboot { .. } => Err("a reboot asked for earlier cannot be observed".into()),
            Effect::Netboot { mode } => {
                let said = format!("Next boot from {}", boot_source(self.netboot));
                if self.netboot == *mode { Ok(outcome(said, None)) } else { Err(said) }
            }
            Effect::Repave { image } if self.image == *image => {
                let reason = format!("Image:{image}");
                let seen = Evidence::new(ConditionType::Provisioned, true, reason);
                Ok(outcome(format!("Image {image} is on disk"), Some(seen)))
            }
            Effect::Repave { .. } => Err(format!("image {} is on disk", self.image)),
            Effect::Join { .. } => self.look_joined(effect),
            Effect::Leave { cluster_ref } if self.member_of(cluster_ref) => {
                Err(self.membership().said)
            }
            Effect::Leave { .. } => Ok(self.membership()),
            Effect::Verify { cluster_ref, expect, .. } => {
                let (holds, seen) = self.look_in_cluster(cluster_ref, *expect);
                if holds { Ok(seen) } else { Err(seen.said) }
            }
            Effect::Net { document } if self.network == *document => {
                Ok(outcome("The network is configured as wanted", None))
            }
            Effect::Net { .. } => Err("the network is configured otherwise".into()),
            Effect::Rma { action, .. } => self.look_rma(*action),
            Effect::Drain { cluster_ref, .. } => self.look_emptied(cluster_ref),
            Effect::Uncordon { cluster_ref, own } => self.look_uncordoned(key, cluster_ref, *own),
            Effect::Power { to, .. } => self.look_power(*to),
            Effect::Device { work } => self.look_device(work),
            Effect::Stage { stage, node, undo, .. } => self.look_at_stage(node, *stage, *undo),
            Effect::Parts { .. } => Err("a machine has no parts".into()),
        }
    }

    fn look_power(&self, to: PowerTo) -> Result<Outcome, String> {
        match (to, self.power) {
            (PowerTo::On, Power::On) => {
                let seen = Evidence::new(ConditionType::Reachable, true, "PoweredOn");
                Ok(self.with_power(outcome("The machine is powered on", Some(seen))))
            }
            (PowerTo::Off, Power::Off) => self.look_rma(RmaAction::PowerOff),
            (PowerTo::On, Power::Off) => Err("the machine is powered off".into()),
            (PowerTo::Off, Power::On) => Err("the machine is powered on".into()),
        }
    }

    fn look_rma(&self, action: RmaAction) -> Result<Outcome, String> {
        match (action, self.power) {
            (RmaAction::Record, _) => Err("a record taken earlier cannot be observed".into()),
            (RmaAction::PowerOff, Power::Off) => {
                let seen = Evidence::new(ConditionType::Reachable, false, "PoweredOff");
                Ok(self.with_power(outcome("The machine is powered off", Some(seen))))
            }
            (RmaAction::PowerOff, Power::On) => Err("the machine is powered on".into()),
            (RmaAction::Mark, _) if !self.marked => Err("the machine is not marked".into()),
            (RmaAction::Mark, _) => {
                let seen = Evidence::new(ConditionType::Rma, true, "RmaRun");
                Ok(outcome("Marked for return to the vendor", Some(seen)))
            }
        }
    }

    /// The conditions that a probe reports.
    pub fn probe(&self) -> Vec<Evidence> {
        let reachable = match self.power {
            Power::On => Evidence::new(ConditionType::Reachable, true, "PingOK"),
            Power::Off => Evidence::new(ConditionType::Reachable, false, "PoweredOff"),
        };
        let bmc = Evidence::new(ConditionType::BmcReachable, true, "RedfishOK");
        [vec![reachable, bmc], self.membership().evidence].concat()
    }
}

pub fn outcome(said: impl Into<String>, seen: Option<Evidence>) -> Outcome {
    Outcome { said: said.into(), evidence: seen.into_iter().collect(), facts: None }
}

const fn word(to: PowerTo) -> &'static str {
    match to {
        PowerTo::On => "on",
        PowerTo::Off => "off",
    }
}

pub const fn boot_source(mode: NetbootMode) -> &'static str {
    match mode {
        NetbootMode::Pxe => "PXE",
        NetbootMode::Disk => "disk",
    }
}
