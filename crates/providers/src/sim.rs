//! The simulated fleet.
//!
//! A [`Sim`] is a provider whose hardware is data in a store of its own ([`SimStore`]), so a crash
//! of the engine does not reset the hardware: running jobs continue by the clock. It never executes
//! a key twice, counts every call and every effect by key, and fails on demand ([`FaultRule`]), so
//! that tests can check the guarantees of the engine.
//!
//! `hardware` is the state of a machine, `node` its role in a cluster, `stage` its role in MAAS,
//! `job` the progress of an effect, `script` its log, `fault` the fault rules, `effect_log` the
//! counts, `feed` the power that the shelves give, `store` and `dir` the storage.

mod device;
mod dir;
mod effect_log;
mod fault;
mod feed;
mod hardware;
mod inspect;
mod job;
mod node;
mod script;
mod stage;
mod store;

pub use effect_log::EffectCount;
pub use fault::{Action, FaultRule, MAX_DELAY_MS, MAX_RULES, PROBE};
pub use job::Speed;
pub use store::{RamStore, SimStore};

use crate::clock::{Clock, system_clock};
use crate::cluster_check::DrainPreview;
use crate::inspect::Inspector;
use crate::port::{Journal, Provider, SiteNode, SiteObservation, Target, UpstreamMachine};
use async_trait::async_trait;
use effect_log::EffectRecord;
use fault::FaultSubject;
use feed::probe_unfed;
use hardware::Hardware;
use job::{FailsAt, Job};
use model::condition::ConditionObservation;
use model::effect::{
    CallResult, CallVerb, Capability, DeviceFacts, DrainOptions, Effect, NetbootMode,
    ProviderAnswer, ProviderCall,
};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::filter::Filter;
use model::id::MachineId;
use model::node::{MaasObservation, MaasState};
use model::refusal::{Reason, Refusal};
use model::site::Site;
use model::time::Timestamp;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The longest poll interval of a running job, so that a stop by another caller is noticed.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The shortest poll interval.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A simulated fleet. A clone is the same fleet.
#[derive(Clone)]
pub struct Sim {
    store: SimStore,
    speed: Speed,
    clock: Clock,
}

impl Sim {
    pub const NAME: &'static str = model::machine::SIMULATED;

    pub fn new(store: SimStore, speed: Speed) -> Self {
        Self { store, speed, clock: system_clock() }
    }

    pub fn in_ram(speed: Speed) -> Self {
        Self::new(SimStore::ram(), speed)
    }

    /// A fleet in a directory, which is created if missing.
    pub fn in_dir(root: impl Into<PathBuf>, speed: Speed) -> io::Result<Self> {
        Ok(Self::new(SimStore::dir(root)?, speed))
    }

    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Adds a fault rule and returns it with its id.
    pub fn add_fault(&self, rule: FaultRule) -> Result<FaultRule, Refusal> {
        rule.check()?;
        self.store.change_rules(|rules| rules.add(rule)).map_err(store_refusal)?
    }

    pub fn list_faults(&self) -> Result<Vec<FaultRule>, Refusal> {
        Ok(self.store.rules().map_err(store_refusal)?.rules)
    }

    /// The first `limit` rules after an id that match.
    pub fn fault_page(
        &self,
        filter: &Filter,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FaultRule>, Refusal> {
        Ok(self.store.rules().map_err(store_refusal)?.page(filter, after, limit))
    }

    /// The first `limit` counts after a key that match.
    pub fn effect_page(
        &self,
        filter: &Filter,
        after: &str,
        limit: usize,
    ) -> Result<Vec<EffectCount>, Refusal> {
        self.store.count_page(filter, after, limit).map_err(store_refusal)
    }

    /// Removes one rule, or all of them, and returns how many.
    pub fn clear_faults(&self, id: Option<&str>) -> Result<usize, Refusal> {
        self.store.change_rules(|rules| rules.clear(id)).map_err(store_refusal)
    }

    /// For each key with this prefix, the number of times that it was requested and applied.
    pub fn effects(&self, prefix: &str) -> Result<Vec<EffectCount>, Refusal> {
        self.store.counts(prefix).map_err(store_refusal)
    }

    /// Applies all jobs that are due, and then calls `look` with the hardware.
    fn with_hardware<T>(
        &self,
        machine: &MachineId,
        probe: impl FnOnce(&mut Hardware, Timestamp) -> T,
    ) -> Result<T> {
        let now = (self.clock)();
        self.store.change(machine, now, |hardware, ledger| {
            hardware.apply_due_jobs(machine, now, ledger);
            probe(hardware, now)
        })
    }

    /// Starts the effect unless its key was started before. Returns the job.
    fn begin(
        &self,
        machine: &MachineId,
        call: &ProviderCall,
        fails: Option<FailsAt>,
    ) -> Result<Option<JobSnapshot>> {
        let now = (self.clock)();
        let takes_ms = self.speed.takes_ms(machine.as_str(), &call.effect);
        self.store.change(machine, now, |hardware, ledger| {
            hardware.apply_due_jobs(machine, now, ledger);
            hardware.begin(&call.key, &call.effect, (takes_ms, fails), now);
            // A job of zero duration is due at once.
            hardware.apply_due_jobs(machine, now, ledger);
            job_snapshot(hardware, call, now)
        })
    }

    /// Records the call and returns the fault rule that matches it.
    fn record_call(&self, machine: &MachineId, call: &ProviderCall) -> Result<Option<FaultRule>> {
        self.store.record(&[EffectRecord::requested(machine, call)])?;
        let (effect, step, verb) = (call.effect.name(), call.key.step(), call.verb);
        let selected = FaultSubject::Call { effect, step, verb };
        self.store.match_fault_rule(machine, selected)
    }

    async fn execute(&self, target: &Target, call: &ProviderCall, journal: &Journal) -> CallResult {
        let machine = &target.machine_id();
        let ProviderCall { key, effect, .. } = call;
        match call.verb {
            CallVerb::Perform => self.perform(target, call, None, journal).await,
            CallVerb::Follow => {
                let found = self.find(machine, call)?;
                self.follow_job(machine, call, found, journal).await
            }
            CallVerb::GetStatus => self.with_hardware(machine, |hardware, now| {
                report_progress(hardware.jobs.get(key), now, journal);
                hardware.key_status(key)
            }),
            CallVerb::Observe => self.with_hardware(machine, |hardware, _| {
                hardware
                    .observe(key, effect)
                    .map_or_else(ProviderAnswer::Differs, ProviderAnswer::Done)
            }),
            CallVerb::Stop => {
                self.report_disk(machine, call, journal)?;
                self.with_hardware(machine, |hardware, now| hardware.stop(key, effect, now))
            }
        }
    }

    /// Starts the effect and follows it. `fails`: a fault rule lets it fail before it is done.
    async fn perform(
        &self,
        target: &Target,
        call: &ProviderCall,
        fails: Option<FailsAt>,
        journal: &Journal,
    ) -> CallResult {
        let machine = &target.machine_id();
        self.check_fed(target)?;
        let begun = self.begin(machine, call, fails)?;
        self.follow_job(machine, call, begun, journal).await
    }

    /// The job of the key. If it cannot be read, the fault says that the effect may have happened.
    fn find(&self, machine: &MachineId, call: &ProviderCall) -> Result<Option<JobSnapshot>> {
        self.with_hardware(machine, |hardware, now| job_snapshot(hardware, call, now))
            .map_err(may_have_happened)
    }

    /// Follows the job to its end and forwards its log from the requested byte on.
    async fn follow_job(
        &self,
        machine: &MachineId,
        call: &ProviderCall,
        mut observed: Option<JobSnapshot>,
        journal: &Journal,
    ) -> CallResult {
        let mut reported = call.log_offset_bytes;
        loop {
            let Some(JobSnapshot { job, now }) = observed else {
                return Ok(ProviderAnswer::NeverStarted);
            };
            same_effect(&job, call)?;
            report_progress(Some(&job), now, journal);
            reported = forward_log(machine, &job, now, reported, journal).await;
            if let Some(result) = job.result() {
                if call.effect.facts().disk.is_some() && !job.has_begun() {
                    journal.report_untouched();
                }
                return result.map(ProviderAnswer::Done);
            }
            let wait = script::next_log_at(machine, &job, now).since(now);
            tokio::time::sleep(wait.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)).await;
            observed = self.find(machine, call)?;
        }
    }

    /// Reports what is on the disk, for a call that ends a write or bars its key.
    fn report_disk(
        &self,
        machine: &MachineId,
        call: &ProviderCall,
        journal: &Journal,
    ) -> Result<()> {
        let writes = call.effect.facts().disk.is_some();
        self.with_hardware(machine, |hardware, now| {
            let job = hardware.jobs.get(&call.key);
            report_progress(job, now, journal);
            if writes && job.is_none_or(|job| !job.has_begun()) {
                journal.report_untouched();
            }
        })
    }

    /// Fails a probe if a fault rule matches it.
    async fn apply_probe_fault(&self, machine: &MachineId) -> Result<()> {
        if let Some(rule) = self.store.match_fault_rule(machine, FaultSubject::Probe)? {
            match rule.action {
                Action::Fail => {
                    let code = rule.code.unwrap_or(FaultCode::BmcUnreachable);
                    return Err(Fault::new(code, rule.fault_message()));
                }
                Action::Hang => pending().await,
                Action::Drop | Action::Garbage => return Err(rule.lost_answer()),
                Action::Slow => tokio::time::sleep(rule.delay()).await,
                Action::Twice => {}
            }
        }
        Ok(())
    }

    /// Fails a call on purpose, together with the running job of its key.
    fn fail(&self, target: &Target, call: &ProviderCall, rule: &FaultRule) -> CallResult {
        let mut message = rule.fault_message();
        let has_default = rule.code.is_none();
        let code = match call.verb {
            CallVerb::Perform | CallVerb::Follow
                if has_default && matches!(call.effect, Effect::Ssh { .. }) =>
            {
                FaultCode::CommandFailed
            }
            CallVerb::Perform | CallVerb::Follow
                if has_default && matches!(call.effect, Effect::Drain { .. }) =>
            {
                let node = &target.machine_id();
                message = format!("node `{node}` is not empty; pods may not be evicted: {message}");
                FaultCode::EvictionBlocked
            }
            CallVerb::Perform | CallVerb::Follow => rule.code.unwrap_or(FaultCode::EffectFailed),
            // These verbs have no effect that could fail; the device is unreachable.
            CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => {
                let code = rule.code.unwrap_or(FaultCode::BmcUnreachable);
                return Err(Fault::new(code, message));
            }
        };
        let fault = Fault::new(code, message);
        let done = self.with_hardware(&target.machine_id(), |hardware, now| {
            hardware.fail(&call.key, &call.effect, &fault, now);
            hardware.jobs.get(&call.key).is_some_and(|job| matches!(job.result(), Some(Ok(_))))
        });
        // A job that reached its goal cannot fail any more; its response can only be lost.
        Err(if done.map_err(may_have_happened)? {
            Fault::new(FaultCode::AnswerLost, fault.message)
        } else {
            fault
        })
    }
}

#[async_trait]
impl Provider for Sim {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn requires_catalog(&self) -> bool {
        true
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[
            Capability::Inspect,
            Capability::PowerControl,
            Capability::Netboot,
            Capability::Imaging,
            Capability::RemoteExec,
            Capability::ClusterJoin,
            Capability::Firmware,
            Capability::Fabric,
            Capability::Nodes,
        ]
    }

    async fn call(&self, target: &Target, call: &ProviderCall, journal: &Journal) -> CallResult {
        let machine = &target.machine_id();
        let rule = self.record_call(machine, call).map_err(|fault| match call.verb {
            CallVerb::Follow => may_have_happened(fault),
            CallVerb::Perform | CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => fault,
        })?;
        let Some(rule) = rule else { return self.execute(target, call, journal).await };
        tracing::debug!(%machine, key = %call.key, rule = rule.id, "fault rule applies");
        match rule.action {
            Action::Fail => match rule.fails_at(call) {
                Some(fails) => self.perform(target, call, Some(fails), journal).await,
                None => {
                    self.report_disk(machine, call, journal)?;
                    self.fail(target, call, &rule)
                }
            },
            Action::Hang => pending().await,
            Action::Drop | Action::Garbage => {
                // The result is dropped.
                let _unheard = self.execute(target, call, journal).await;
                Err(rule.lost_answer())
            }
            Action::Slow => {
                let answer = self.execute(target, call, journal).await;
                tokio::time::sleep(rule.delay()).await;
                answer
            }
            Action::Twice => {
                let _first = self.execute(target, call, journal).await;
                self.execute(target, call, journal).await
            }
        }
    }

    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>> {
        let machine = &target.machine_id();
        self.apply_probe_fault(machine).await?;
        match self.is_fed(target)? {
            true => self.with_hardware(machine, |hardware, _| hardware.probe()),
            false => Ok(probe_unfed()),
        }
    }

    async fn boots_from_disk(&self, target: &Target) -> Result<Option<bool>> {
        let from_disk = |hardware: &mut Hardware, _| hardware.netboot == NetbootMode::Disk;
        self.with_hardware(&target.machine_id(), from_disk).map(Some)
    }

    async fn poll_device(&self, target: &Target) -> Result<DeviceFacts> {
        let machine = &target.machine_id();
        self.apply_probe_fault(machine).await?;
        self.check_fed(target)?;
        self.with_hardware(machine, |hardware, _| hardware.facts(machine))
    }

    async fn observe_site(&self, _site: &Site, nodes: &[SiteNode]) -> Result<SiteObservation> {
        let probe = |SiteNode { id, machine, .. }: &SiteNode| {
            // Without power there is no heartbeat, and MAAS sees the machine off.
            let fed = self.has_feed(machine)?;
            self.with_hardware(machine, |hardware, now| {
                let upstream = hardware.upstream(now);
                let powered_on = upstream.powered_on.map(|on| on && fed);
                UpstreamMachine {
                    system_id: stage::system_id(machine),
                    node: Some(id.clone()),
                    upstream: MaasObservation { powered_on, ..upstream },
                    agent_online: Some(fed && hardware.has_heartbeat()),
                }
            })
        };
        let machines: Vec<UpstreamMachine> = nodes.iter().map(probe).collect::<Result<_>>()?;
        Ok(SiteObservation { total: machines.len(), machines })
    }

    async fn find_at_site(&self, _site: &Site, target: &Target) -> Result<Option<MaasObservation>> {
        let observed =
            self.with_hardware(&target.machine_id(), |hardware, now| hardware.upstream(now))?;
        Ok((observed.state != MaasState::Absent).then_some(observed))
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }

    async fn preview_drain(
        &self,
        target: &Target,
        _options: &DrainOptions,
    ) -> Result<DrainPreview> {
        let (cluster, node) = (&target.spec.target_cluster_ref, target.node_name());
        self.with_hardware(&target.machine_id(), |hardware, _| {
            hardware.preview_drain(cluster, node)
        })
    }
}

/// A job at a point in time.
struct JobSnapshot {
    job: Job,
    now: Timestamp,
}

fn job_snapshot(hardware: &Hardware, call: &ProviderCall, now: Timestamp) -> Option<JobSnapshot> {
    hardware.jobs.get(&call.key).map(|job| JobSnapshot { job: job.clone(), now })
}

/// Reports how much of an image the job has written so far.
fn report_progress(job: Option<&Job>, now: Timestamp, journal: &Journal) {
    if let Some(percent) = job.and_then(|job| job.written_percent(now)) {
        journal.report_written(percent);
    }
}

/// Forwards the log after the first `reported` bytes and returns how many bytes are forwarded now.
async fn forward_log(
    machine: &MachineId,
    job: &Job,
    now: Timestamp,
    reported: u64,
    journal: &Journal,
) -> u64 {
    let mut at = 0_u64;
    for message in script::log_so_far(machine, job, now) {
        let bytes = message.text.into_bytes();
        let known = usize::try_from(reported.saturating_sub(at)).unwrap_or(usize::MAX);
        at += bytes.len() as u64;
        if known < bytes.len() {
            journal.write(message.stream, bytes[known..].to_vec()).await;
        }
    }
    reported.max(at)
}

/// A key belongs to one effect and cannot be reused for another.
fn same_effect(job: &Job, call: &ProviderCall) -> Result<()> {
    if job.effect == call.effect {
        return Ok(());
    }
    let (key, known, requested) = (&call.key, job.effect.name(), call.effect.name());
    let message =
        format!("{key} stands for a {known} already and was asked for another {requested}");
    Err(Fault::new(FaultCode::ProtocolBroken, message))
}

/// A started effect may have happened if its job cannot be read now.
fn may_have_happened(fault: Fault) -> Fault {
    match fault.code.effect_outcome() {
        EffectOutcome::Unknown => fault,
        EffectOutcome::NotApplied => Fault::new(FaultCode::AnswerLost, fault.message),
    }
}

fn store_refusal(fault: Fault) -> Refusal {
    let message = format!("the simulator's memory cannot be used: {}", fault.message);
    Refusal::new(Reason::SimulatorMemory, message)
}
