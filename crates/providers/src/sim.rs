//! The simulated fleet.
//!
//! A [`Sim`] is a provider whose hardware is data in a store of its own ([`SimStore`]), so a crash
//! of the engine does not reset the hardware: running jobs continue by the clock. It never executes
//! a key twice, counts every call and every effect by key, and fails on demand ([`FaultRule`]), so
//! that tests can check the guarantees of the engine.
//!
//! `hardware` is the state of a machine, `node` its role in a cluster, `stage` its role in MAAS,
//! `job` the progress of an effect, `script` its log, `fault` the fault rules, `effect_log` the
//! counts, `store` and `dir` the storage.

mod device;
mod dir;
mod fault;
mod hardware;
mod inspect;
mod job;
mod ledger;
mod memory;
mod node;
mod script;
mod stage;

pub use fault::{Action, FaultRule, MAX_DELAY_MS, MAX_RULES, PROBE};
pub use job::Speed;
pub use ledger::EffectCount;
pub use memory::{Memory, Ram};

use crate::clock::{Clock, system_clock};
use crate::inspect::Inspector;
use crate::port::{Journal, Provider, Sighting, Target};
use async_trait::async_trait;
use fault::Selected;
use hardware::Hardware;
use job::Job;
use ledger::Entry;
use model::condition::Evidence;
use model::effect::{Answer, Capability, Effect, Facts, Order, Verb};
use model::fault::{Code, Fault, Happened};
use model::id::{MachineId, NodeId};
use model::node::{Upstream, UpstreamSeen};
use model::refusal::Refusal;
use model::site::Site;
use model::time::Timestamp;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The longest poll interval of a running job, so that a stop by another caller is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The shortest poll interval.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(1);

/// A simulated fleet. A clone is the same fleet.
#[derive(Clone)]
pub struct Sim {
    memory: Memory,
    speed: Speed,
    clock: Clock,
}

impl Sim {
    pub const NAME: &'static str = "sim";

    pub fn new(memory: Memory, speed: Speed) -> Self {
        Self { memory, speed, clock: system_clock() }
    }

    pub fn in_ram(speed: Speed) -> Self {
        Self::new(Memory::ram(), speed)
    }

    /// A fleet in a directory, which is created if missing.
    pub fn in_dir(root: impl Into<PathBuf>, speed: Speed) -> io::Result<Self> {
        Ok(Self::new(Memory::dir(root)?, speed))
    }

    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Adds a fault rule and returns it with its id.
    pub fn add_fault(&self, rule: FaultRule) -> Result<FaultRule, Refusal> {
        rule.check()?;
        self.memory.change_rules(|rules| rules.add(rule)).map_err(out_of_memory)?
    }

    pub fn list_faults(&self) -> Result<Vec<FaultRule>, Refusal> {
        Ok(self.memory.rules().map_err(out_of_memory)?.rules)
    }

    /// Removes one rule, or all of them, and returns how many.
    pub fn clear_faults(&self, id: Option<&str>) -> Result<usize, Refusal> {
        self.memory.change_rules(|rules| rules.clear(id)).map_err(out_of_memory)
    }

    /// How often each key with this prefix was requested and applied.
    pub fn effects(&self, prefix: &str) -> Result<Vec<EffectCount>, Refusal> {
        self.memory.counts(prefix).map_err(out_of_memory)
    }

    /// Applies all jobs that are due, and then calls `look` with the hardware.
    fn with_hardware<T>(
        &self,
        machine: &MachineId,
        look: impl FnOnce(&mut Hardware, Timestamp) -> T,
    ) -> Result<T, Fault> {
        let now = (self.clock)();
        self.memory.change(machine, now, |hardware, ledger| {
            hardware.settle(machine, now, ledger);
            look(hardware, now)
        })
    }

    /// Starts the effect unless its key was started before. Returns the job.
    fn begin(&self, machine: &MachineId, order: &Order) -> Result<Option<Sight>, Fault> {
        let now = (self.clock)();
        let takes_ms = self.speed.takes_ms(machine.as_str(), &order.effect);
        self.memory.change(machine, now, |hardware, ledger| {
            hardware.settle(machine, now, ledger);
            hardware.begin(&order.key, &order.effect, takes_ms, now);
            // A job of zero duration is due at once.
            hardware.settle(machine, now, ledger);
            sight(hardware, order, now)
        })
    }

    /// Records the call and returns the fault rule that matches it.
    fn take_order(&self, machine: &MachineId, order: &Order) -> Result<Option<FaultRule>, Fault> {
        self.memory.record(&[Entry::asked(machine, order)])?;
        let selected = Selected::Order { effect: order.effect.word(), verb: order.verb };
        self.memory.strike(machine, selected)
    }

    async fn carry_out(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let machine = &target.machine_id();
        let Order { key, effect, .. } = order;
        match order.verb {
            Verb::Perform => {
                let begun = self.begin(machine, order)?;
                self.see_through(machine, order, begun, journal).await
            }
            Verb::Follow => {
                let found = self.find(machine, order)?;
                self.see_through(machine, order, found, journal).await
            }
            Verb::GetStatus => self.with_hardware(machine, |hardware, _| hardware.inquire(key)),
            Verb::Observe => self.with_hardware(machine, |hardware, _| {
                hardware.look(key, effect).map_or_else(Answer::Differs, Answer::Done)
            }),
            Verb::Stop => {
                self.with_hardware(machine, |hardware, now| hardware.stop(key, effect, now))
            }
        }
    }

    /// The job of the key. If it cannot be read, the fault says that the effect may have happened.
    fn find(&self, machine: &MachineId, order: &Order) -> Result<Option<Sight>, Fault> {
        self.with_hardware(machine, |hardware, now| sight(hardware, order, now))
            .map_err(out_of_sight)
    }

    /// Follows the job to its end and forwards its log from the requested byte on.
    async fn see_through(
        &self,
        machine: &MachineId,
        order: &Order,
        mut seen: Option<Sight>,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let mut told = order.logged;
        loop {
            let Some(Sight { job, now }) = seen else { return Ok(Answer::NeverStarted) };
            same_effect(&job, order)?;
            told = tell(machine, &job, now, told, journal).await;
            if let Some(result) = job.result() {
                return result.map(Answer::Done);
            }
            let wait = script::next_word(machine, &job, now).since(now);
            tokio::time::sleep(wait.clamp(LOOK_AT_MOST_EVERY, LOOK_EVERY)).await;
            seen = self.find(machine, order)?;
        }
    }

    /// Fails a probe if a fault rule matches it.
    async fn struck(&self, machine: &MachineId) -> Result<(), Fault> {
        if let Some(rule) = self.memory.strike(machine, Selected::Probe)? {
            match rule.action {
                Action::Fail => return Err(Fault::new(Code::BmcUnreachable, rule.words())),
                Action::Hang => pending().await,
                Action::Drop | Action::Garbage => return Err(unheard(&rule)),
                Action::Slow => tokio::time::sleep(rule.delay()).await,
                Action::Twice => {}
            }
        }
        Ok(())
    }

    /// Fails a call on purpose, together with the running job of its key.
    fn fail(&self, target: &Target, order: &Order, mut said: String) -> Result<Answer, Fault> {
        let code = match order.verb {
            Verb::Perform | Verb::Follow if matches!(order.effect, Effect::Ssh { .. }) => {
                Code::CommandFailed
            }
            Verb::Perform | Verb::Follow if matches!(order.effect, Effect::Drain { .. }) => {
                let node = &target.machine_id();
                said = format!("node `{node}` is not empty; pods may not be evicted: {said}");
                Code::EvictionBlocked
            }
            Verb::Perform | Verb::Follow => Code::EffectFailed,
            // These verbs have no effect that could fail; the device is unreachable.
            Verb::GetStatus | Verb::Observe | Verb::Stop => {
                return Err(Fault::new(Code::BmcUnreachable, said));
            }
        };
        let fault = Fault::new(code, said);
        let done = self.with_hardware(&target.machine_id(), |hardware, now| {
            hardware.fail(&order.key, &order.effect, &fault, now);
            hardware.jobs.get(&order.key).is_some_and(|job| matches!(job.result(), Some(Ok(_))))
        });
        // A job that reached its goal cannot fail any more; its response can only be lost.
        Err(if done.map_err(out_of_sight)? {
            Fault::new(Code::AnswerLost, fault.said)
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

    async fn ask(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let machine = &target.machine_id();
        let rule = self.take_order(machine, order).map_err(|fault| match order.verb {
            Verb::Follow => out_of_sight(fault),
            Verb::Perform | Verb::GetStatus | Verb::Observe | Verb::Stop => fault,
        })?;
        let Some(rule) = rule else { return self.carry_out(target, order, journal).await };
        tracing::debug!(%machine, key = %order.key, rule = rule.id, "fault rule applies");
        match rule.action {
            Action::Fail => self.fail(target, order, rule.words()),
            Action::Hang => pending().await,
            Action::Drop | Action::Garbage => {
                // The result is dropped.
                let _unheard = self.carry_out(target, order, journal).await;
                Err(unheard(&rule))
            }
            Action::Slow => {
                let answer = self.carry_out(target, order, journal).await;
                tokio::time::sleep(rule.delay()).await;
                answer
            }
            Action::Twice => {
                let _first = self.carry_out(target, order, journal).await;
                self.carry_out(target, order, journal).await
            }
        }
    }

    async fn probe(&self, target: &Target) -> Result<Vec<Evidence>, Fault> {
        let machine = &target.machine_id();
        self.struck(machine).await?;
        self.with_hardware(machine, |hardware, _| hardware.probe())
    }

    async fn survey(&self, target: &Target) -> Result<Facts, Fault> {
        let machine = &target.machine_id();
        self.struck(machine).await?;
        self.with_hardware(machine, |hardware, _| hardware.facts(machine))
    }

    async fn observe_site(
        &self,
        _site: &Site,
        nodes: &[(NodeId, MachineId)],
    ) -> Result<Vec<Sighting>, Fault> {
        let look = |(node, machine): &(NodeId, MachineId)| {
            self.with_hardware(machine, |hardware, now| Sighting {
                system_id: stage::system_id(machine),
                node: Some(node.clone()),
                seen: hardware.upstream(now),
                heard: Some(hardware.is_heard()),
            })
        };
        nodes.iter().map(look).collect()
    }

    async fn find_at_site(
        &self,
        _site: &Site,
        target: &Target,
    ) -> Result<Option<UpstreamSeen>, Fault> {
        let seen =
            self.with_hardware(&target.machine_id(), |hardware, now| hardware.upstream(now))?;
        Ok((seen.state != Upstream::Absent).then_some(seen))
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }
}

/// A job at a point in time.
struct Sight {
    job: Job,
    now: Timestamp,
}

fn sight(hardware: &Hardware, order: &Order, now: Timestamp) -> Option<Sight> {
    hardware.jobs.get(&order.key).map(|job| Sight { job: job.clone(), now })
}

/// Forwards the log after the first `told` bytes and returns how many bytes are forwarded now.
async fn tell(machine: &MachineId, job: &Job, now: Timestamp, told: u64, journal: &Journal) -> u64 {
    let mut at = 0_u64;
    for said in script::heard(machine, job, now) {
        let bytes = said.text.into_bytes();
        let known = usize::try_from(told.saturating_sub(at)).unwrap_or(usize::MAX);
        at += bytes.len() as u64;
        if known < bytes.len() {
            journal.write(said.stream, bytes[known..].to_vec()).await;
        }
    }
    told.max(at)
}

/// A key belongs to one effect and cannot be reused for another.
fn same_effect(job: &Job, order: &Order) -> Result<(), Fault> {
    if job.effect == order.effect {
        return Ok(());
    }
    let (key, known, asked) = (&order.key, job.effect.word(), order.effect.word());
    let said = format!("{key} stands for a {known} already and was asked for another {asked}");
    Err(Fault::new(Code::ProtocolBroken, said))
}

/// A started effect may have happened if its job cannot be read now.
fn out_of_sight(fault: Fault) -> Fault {
    match fault.code.happened() {
        Happened::Maybe => fault,
        Happened::No => Fault::new(Code::AnswerLost, fault.said),
    }
}

fn unheard(rule: &FaultRule) -> Fault {
    let code = match rule.action {
        Action::Garbage => Code::AnswerGarbled,
        Action::Drop | Action::Fail | Action::Hang | Action::Slow | Action::Twice => {
            Code::AnswerLost
        }
    };
    Fault::new(code, rule.words())
}

fn out_of_memory(fault: Fault) -> Refusal {
    let said = format!("the simulator's memory cannot be used: {}", fault.said);
    Refusal::precondition("SIMULATOR_MEMORY", said)
}
