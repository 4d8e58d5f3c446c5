//! The simulated fleet.
//!
//! A [`Sim`] is a provider whose hardware is data. It has a memory of its own ([`Memory`]), so a
//! controller that crashes does not reset the hardware: what was under way goes on by the clock and
//! is found further along. It never does one key twice, it counts every order and every act by key,
//! and it goes wrong on demand ([`FaultRule`]), so that a test can prove what the engine promises.
//!
//! `hardware` is what a machine is and does, `node` what it is to its cluster, `stage` what it is to its MAAS, `job` how far it is, `script` what it says meanwhile,
//! `fault` what goes wrong, `ledger` what is counted, `memory` and `dir` where all of it is kept.

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

/// The longest a job is watched without a look, so that a stop by somebody else is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The shortest pause between two looks.
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

    /// A fleet in a directory, which is made when it is missing.
    pub fn in_dir(root: impl Into<PathBuf>, speed: Speed) -> io::Result<Self> {
        Ok(Self::new(Memory::dir(root)?, speed))
    }

    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Takes in a fault rule. The answer has its id.
    pub fn add_fault(&self, rule: FaultRule) -> Result<FaultRule, Refusal> {
        rule.check()?;
        self.memory.change_rules(|rules| rules.add(rule)).map_err(out_of_memory)?
    }

    pub fn list_faults(&self) -> Result<Vec<FaultRule>, Refusal> {
        Ok(self.memory.rules().map_err(out_of_memory)?.rules)
    }

    /// Removes one rule, or all of them, and says how many.
    pub fn clear_faults(&self, id: Option<&str>) -> Result<usize, Refusal> {
        self.memory.change_rules(|rules| rules.clear(id)).map_err(out_of_memory)
    }

    /// How often each key that begins with the prefix was asked for and acted.
    pub fn effects(&self, prefix: &str) -> Result<Vec<EffectCount>, Refusal> {
        self.memory.counts(prefix).map_err(out_of_memory)
    }

    /// Shows the hardware as it is now to `look`, after everything that is due has acted.
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

    /// Begins what the order wants, unless its key has begun before. Shows how far it is.
    fn begin(&self, machine: &MachineId, order: &Order) -> Result<Option<Sight>, Fault> {
        let now = (self.clock)();
        let takes_ms = self.speed.takes_ms(machine.as_str(), &order.effect);
        self.memory.change(machine, now, |hardware, ledger| {
            hardware.settle(machine, now, ledger);
            hardware.begin(&order.key, &order.effect, takes_ms, now);
            // What takes no time is done now.
            hardware.settle(machine, now, ledger);
            sight(hardware, order, now)
        })
    }

    /// Writes the order down, and finds the fault rule that strikes it.
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

    /// How far the key's job is. Whoever cannot see it must not say that it did not happen.
    fn find(&self, machine: &MachineId, order: &Order) -> Result<Option<Sight>, Fault> {
        self.with_hardware(machine, |hardware, now| sight(hardware, order, now))
            .map_err(out_of_sight)
    }

    /// Watches the key's job to its end and passes on what it says, from the byte that is wanted.
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

    /// A look that a fault rule strikes goes wrong as the rule says.
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

    /// The hardware fails an order on purpose, and what is under way under its key fails with it.
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
            // Nothing was to be done, so nothing failed: the device could not be asked.
            Verb::GetStatus | Verb::Observe | Verb::Stop => {
                return Err(Fault::new(Code::BmcUnreachable, said));
            }
        };
        let fault = Fault::new(code, said);
        let done = self.with_hardware(&target.machine_id(), |hardware, now| {
            hardware.fail(&order.key, &order.effect, &fault, now);
            hardware.jobs.get(&order.key).is_some_and(|job| matches!(job.result(), Some(Ok(_))))
        });
        // What has reached its goal cannot fail any more; one can only not hear of it.
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
        tracing::debug!(%machine, key = %order.key, rule = rule.id, "a fault rule strikes");
        match rule.action {
            Action::Fail => self.fail(target, order, rule.words()),
            Action::Hang => pending().await,
            Action::Drop | Action::Garbage => {
                // Whatever it answers, nobody hears it.
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

/// A job as it was at a time.
struct Sight {
    job: Job,
    now: Timestamp,
}

fn sight(hardware: &Hardware, order: &Order, now: Timestamp) -> Option<Sight> {
    hardware.jobs.get(&order.key).map(|job| Sight { job: job.clone(), now })
}

/// Passes on what was said behind the first `told` bytes. Answers how many bytes are told now.
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

/// One key stands for one effect, for ever.
fn same_effect(job: &Job, order: &Order) -> Result<(), Fault> {
    if job.effect == order.effect {
        return Ok(());
    }
    let (key, known, asked) = (&order.key, job.effect.word(), order.effect.word());
    let said = format!("{key} stands for a {known} already and was asked for another {asked}");
    Err(Fault::new(Code::ProtocolBroken, said))
}

/// What has begun may have happened, although nobody can see it now.
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
