//! Executes one provider call at a region: reads, waits, checkpoints, and reports what it read.

use super::MaasProvider;
use super::checkpoint::{Notes, OrderCheckpoint};
use super::find::{Found, find};
use super::machine::system_id_at;
use super::marks::{self, Whose};
use super::masking::masked;
use super::sites::Open;
use super::wiring::Cards;
use crate::clock::now;
use crate::maas::{Deploy, Event, Maas, MaasPowerState, Machine, Status};
use crate::port::{Journal, Target};
use model::effect::{Answer, Facts, Key, MaasFacts, Order, Outcome, Verb};
use model::fault::{Code, Fault};
use model::id::NodeId;
use model::node::{Node, NodeState, Stage, Upstream, UpstreamSeen, adopts};
use model::site::Site;
use model::time::{Timestamp, spoken};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A wait ends this long before the step's deadline, so that it can report what MAAS says.
const MARGIN: Duration = Duration::from_secs(5);
/// How many of the last events are copied into the log of a failure.
const LAST_EVENTS: usize = 20;

/// One provider call at one region.
pub(super) struct Hand<'a> {
    pub at: &'a MaasProvider,
    pub open: Arc<Open>,
    pub order: &'a Order,
    pub journal: &'a Journal,
    /// The time limit of an attempt.
    pub limit: Duration,
}

/// Executes one stage of a node.
pub(super) struct Work<'a> {
    pub hand: Hand<'a>,
    pub site: Site,
    pub node: Node,
    pub stage: Stage,
}

impl Hand<'_> {
    pub fn maas(&self) -> &Maas {
        &self.open.maas
    }

    pub fn key(&self) -> &Key {
        &self.order.key
    }

    pub fn verb(&self) -> Verb {
        self.order.verb
    }

    pub fn notes(&self) -> Notes<'_> {
        Notes { store: self.at.store.as_ref(), key: &self.order.key }
    }

    /// Polls until `ended` returns a result, within the step's time limit. An unreachable region
    /// does not end the wait: it proves nothing about the machine.
    pub async fn wait<T>(
        &self,
        system_id: &str,
        mut ended: impl FnMut(&Machine) -> Option<Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let settings = &self.at.settings;
        let limit = self.limit.saturating_sub(MARGIN).min(settings.longest_wait);
        let began = Instant::now();
        let mut waiter = self.open.watching.join(system_id);
        let mut told = String::new();
        loop {
            let line = match waiter.look(self.maas()).await {
                Ok(machine) => match ended(&machine) {
                    Some(result) => return result,
                    None => has(&machine),
                },
                Err(fault) if fault.code.unseen() => fault.said,
                Err(fault) => return Err(fault),
            };
            if line != told {
                self.journal.line(format!("maas: {line}")).await;
                told = line;
            }
            if began.elapsed() + settings.look_every >= limit {
                let said = format!("nothing else came within {}: {told}", spoken(limit));
                return Err(Fault::new(Code::StepTimeout, said));
            }
            sleep(settings.look_every).await;
        }
    }

    /// The owner by annotation. The annotation of a deleted node does not count.
    pub async fn whose(&self, machine: &Machine, node: Option<&NodeId>) -> Result<Whose, Fault> {
        match marks::whose(machine, self.key().run(), node) {
            Whose::Other(other) if !self.lives(&other).await? => Ok(Whose::Nobody),
            whose => Ok(whose),
        }
    }

    pub async fn lives(&self, node: &NodeId) -> Result<bool, Fault> {
        match self.at.store.node(node).await {
            Ok(node) => Ok(node.state != NodeState::Deleted),
            Err(fault) if fault.code == Code::MachineGone => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Which MAAS user owns the machine.
    pub async fn owner(&self, machine: &Machine) -> Result<Owner, Fault> {
        let user = self.open.user().await?;
        Ok(match machine.owner.as_deref() {
            None | Some("") => Owner::Nobody,
            Some(owner) if owner == user => Owner::Us,
            Some(owner) => Owner::Other(owner.to_owned()),
        })
    }

    fn first(&self) -> Key {
        Key::trusted(format!("{}/first_seen", self.key().run()))
    }

    /// The state when this run first read the machine; `None` before that.
    pub async fn first_seen(&self) -> Result<Option<Upstream>, Fault> {
        let notes = Notes { key: &self.first(), ..self.notes() };
        Ok(match notes.recall().await? {
            Some(OrderCheckpoint::FirstSeen { before }) => Some(before),
            Some(_) | None => None,
        })
    }

    /// Records the state at the first read. A later call changes nothing.
    pub async fn see_first(&self, now: Upstream) -> Result<(), Fault> {
        let notes = Notes { key: &self.first(), ..self.notes() };
        notes.begin(OrderCheckpoint::FirstSeen { before: now }).await.map(drop)
    }

    /// Copies the last events into the run's log and returns the newest page, oldest first.
    pub async fn tell_events(&self, system_id: &str) -> Result<Vec<Event>, Fault> {
        let events = self.maas().last_events(system_id).await?;
        let from = events.len().saturating_sub(LAST_EVENTS);
        for Event { created, kind, description, .. } in &events[from..] {
            let line = format!("event: {created} {kind}: {description}");
            self.journal.line(masked(&line)).await;
        }
        Ok(events)
    }

    /// Allocates a Ready machine, annotates it and deploys. The checkpoint must be written before.
    pub async fn install(
        &self,
        machine: &Machine,
        node: Option<&NodeId>,
        deploy: &Deploy,
    ) -> Result<Machine, Fault> {
        let (id, key) = (machine.system_id.as_str(), self.key());
        if machine.status == Status::Ready {
            self.maas().allocate(id, key.as_str()).await?;
        }
        self.maas().set_workload_annotations(id, &marks::installing(key, node)).await?;
        self.journal.line(format!("maas: {id} is asked to install {}", image(deploy))).await;
        match self.maas().deploy(id, deploy).await {
            // MAAS refuses a second request: the first one may have started the installation.
            Err(fault) if fault.code == Code::EffectFailed => {
                let now = self.maas().machine(id).await?;
                let ours = marks::whose(&now, key.run(), node) == Whose::ThisRun;
                if ours && now.status == Status::Deploying { Ok(now) } else { Err(fault) }
            }
            other => other,
        }
    }
}

fn image(deploy: &Deploy) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&deploy.osystem), text(&deploy.distro_series))
}

/// The MAAS user who owns a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    Us,
    Nobody,
    Other(String),
}

impl Work<'_> {
    /// Reads the node's machine by its stored system id; another record may be another user's.
    /// Fails with `maas-machine-gone` when MAAS has none.
    pub async fn locate(&self) -> Result<Machine, Fault> {
        if !self.node.system_id.is_empty() {
            return self.hand.maas().machine(&self.node.system_id).await;
        }
        let said = format!(
            "no machine of {} is known to be {}: `farrier workflow rerun {}` finds or makes it",
            self.site.head.id,
            self.node.head.id,
            self.hand.key().run()
        );
        Err(Fault::new(Code::MaasMachineGone, said))
    }

    /// The same, with `None` when it is gone.
    pub async fn there(&self) -> Result<Option<Machine>, Fault> {
        match self.locate().await {
            Ok(machine) => Ok(Some(machine)),
            Err(fault) if fault.code == Code::MaasMachineGone => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Done, because MAAS has no record. The node keeps its system id: later stages need it.
    pub fn gone(&self, said: &str) -> Answer {
        Answer::Done(self.absent(said))
    }

    pub fn absent(&self, said: &str) -> Outcome {
        let (state, at) = (Upstream::Absent, now());
        let none = UpstreamSeen { state, said: String::new(), on: None, at };
        told(&self.node.system_id, none, said.to_owned())
    }

    /// Finds the machine by hardware or inventory id. Only for stages that find or make its record.
    pub async fn search(&self, target: &Target) -> Result<Option<Machine>, Fault> {
        let machines = self.hand.open.list().await?;
        let id = system_id_at(&target.spec, &self.site.id());
        match find(&machines, &target.spec, id.as_deref()) {
            Found::None => Ok(None),
            Found::One(one) => self.hand.maas().machine(&one.system_id).await.map(Some),
            Found::Conflict(said) => Err(Fault::new(Code::CandidatesConflict, said)),
        }
    }

    /// A read-only stage: it has no earlier status, and nothing to stop.
    pub async fn only_look(
        &self,
        look: impl Future<Output = Result<Outcome, Fault>> + Send,
    ) -> Result<Answer, Fault> {
        match self.hand.verb() {
            Verb::Perform | Verb::Follow => look.await.map(Answer::Done),
            Verb::GetStatus => Ok(Answer::NeverStarted),
            Verb::Observe => observed(look.await),
            Verb::Stop => Ok(Answer::Stopped),
        }
    }

    /// The status of a wait. A wait starts nothing, so a takeover simply waits again.
    pub async fn waited(&self, over: impl Fn(&Machine) -> bool) -> Result<Answer, Fault> {
        let anew = self.hand.verb() == Verb::GetStatus;
        match self.locate().await {
            Ok(machine) if over(&machine) => Ok(done(&machine, has(&machine))),
            Ok(_) if anew => Ok(Answer::NeverStarted),
            Ok(machine) => Ok(Answer::Differs(has(&machine))),
            Err(fault) if anew && fault.code == Code::MaasMachineGone => Ok(Answer::NeverStarted),
            Err(fault) => Err(fault),
        }
    }

    /// An idempotent stage. MAAS does not report disk layouts, so after a crash it is set again.
    pub async fn bring_about(&self, what: Setting) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => {
                let machine = self.locate().await?;
                notes.begin(OrderCheckpoint::Begun).await?;
                self.set(machine, what).await
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(_) => self.set(self.locate().await?, what).await,
            },
            Verb::GetStatus => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(_) => match what {
                    Setting::Disks => Ok(Answer::UnderWay),
                    Setting::Cards(_) => inquired(self.is_set(what).await),
                },
            },
            Verb::Observe => self.is_set(what).await,
            Verb::Stop => self.hand.stop_begun().await,
        }
    }

    /// An installed machine keeps the settings it was installed with.
    async fn set(&self, machine: Machine, what: Setting) -> Result<Answer, Fault> {
        if let Some(why) = adopts(self.stage, self.node.state, state(&machine)) {
            return Ok(done(&machine, why));
        }
        match what {
            Setting::Disks => self.lay_out(machine).await,
            Setting::Cards(cards) => self.http(machine, cards).await,
        }
    }

    async fn is_set(&self, what: Setting) -> Result<Answer, Fault> {
        let machine = self.locate().await?;
        if let Some(why) = adopts(self.stage, self.node.state, state(&machine)) {
            return Ok(done(&machine, why));
        }
        match what {
            Setting::Disks => Ok(self.laid_out(&machine)),
            Setting::Cards(cards) => self.wired(&machine, cards).await,
        }
    }
}

/// What is configured on a machine before it is installed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Setting {
    Disks,
    Cards(Cards),
}

impl Hand<'_> {
    /// Stops a call that may be abandoned at any point.
    pub async fn stop_begun(&self) -> Result<Answer, Fault> {
        use super::checkpoint::Stopping;
        if let Stopping::Begun(memo) = self.notes().stop().await? {
            if self.in_flight(&memo) {
                return Ok(Answer::UnderWay);
            }
            self.notes().compare_and_swap(&memo, &OrderCheckpoint::Stopped).await?;
        }
        Ok(Answer::Stopped)
    }

    /// Whether a request may still reach MAAS, so that the present state proves nothing. A stop
    /// does not recall a request.
    pub fn in_flight(&self, memo: &OrderCheckpoint) -> bool {
        memo.asked().is_some_and(|at| now().since(at) < self.at.settings.in_flight)
    }
}

/// The answer to `Observe`: a fault that needs an operator means that the goal does not hold.
pub(super) fn observed(looked: Result<Outcome, Fault>) -> Result<Answer, Fault> {
    use model::fault::Class;
    match looked {
        Ok(outcome) => Ok(Answer::Done(outcome)),
        Err(fault) if fault.class() == Class::NeedsIntervention => Ok(Answer::Differs(fault.said)),
        Err(fault) => Err(fault),
    }
}

/// The answer to `GetStatus` of a started call. A missing goal is still in progress; a missing
/// machine is reported by the next `Follow`.
pub(super) fn inquired(looked: Result<Answer, Fault>) -> Result<Answer, Fault> {
    match looked {
        Ok(Answer::Differs(_)) => Ok(Answer::UnderWay),
        Err(fault) if fault.code == Code::MaasMachineGone => Ok(Answer::UnderWay),
        other => other,
    }
}

pub(super) fn state(machine: &Machine) -> Upstream {
    Upstream::of_number(machine.status.number())
}

/// The state in MAAS as a sentence.
pub(super) fn has(machine: &Machine) -> String {
    let Machine { system_id, status, status_message, .. } = machine;
    match status_message.as_str() {
        "" => format!("MAAS has {system_id} as {status}"),
        said if said == status.to_string() => format!("MAAS has {system_id} as {status}"),
        said => format!("MAAS has {system_id} as {status}: {said}"),
    }
}

/// What is stored of a read. MAAS's message changes often and every change is stored, so it is kept
/// only during work and failures. Otherwise the annotated node is named, which may be another.
pub(super) fn seen(machine: &Machine, at: Timestamp) -> UpstreamSeen {
    let speaks = machine.status.failed() || machine.status.in_progress();
    let said = match (speaks, marks::node_of(machine)) {
        (true, _) => machine.status_message.clone(),
        (false, Some(node)) => format!("it is marked as {node}"),
        (false, None) => String::new(),
    };
    let on = match machine.power_state {
        MaasPowerState::On => Some(true),
        MaasPowerState::Off => Some(false),
        MaasPowerState::Unknown | MaasPowerState::Error => None,
    };
    UpstreamSeen { state: state(machine), said, on, at }
}

pub(super) fn outcome(machine: &Machine, said: impl Into<String>) -> Outcome {
    told(&machine.system_id, seen(machine, now()), said.into())
}

fn told(system_id: &str, upstream: UpstreamSeen, said: String) -> Outcome {
    let maas = Some(Box::new(MaasFacts { system_id: system_id.to_owned(), upstream }));
    Outcome { said, facts: Some(Facts { maas, ..Facts::default() }), ..Outcome::default() }
}

pub(super) fn done(machine: &Machine, said: impl Into<String>) -> Answer {
    Answer::Done(outcome(machine, said))
}

/// A state that this stage cannot continue from.
pub(super) fn disagrees(machine: &Machine, instead: &str) -> Fault {
    Fault::new(Code::StateDisagrees, format!("{}; {instead}", has(machine)))
}

/// Farrier does not change a locked machine.
pub(super) fn unlocked(machine: &Machine) -> Result<(), Fault> {
    match machine.locked {
        false => Ok(()),
        true => Err(disagrees(machine, "it is locked: unlock it in MAAS")),
    }
}
