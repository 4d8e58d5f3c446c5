//! Executes one provider call at a region: reads, waits, checkpoints, and reports what it read.

use super::MaasProvider;
use super::annotations::{self, AnnotationOwner};
use super::checkpoint::{CheckpointStore, OrderCheckpoint};
use super::deploy;
use super::find::{FindResult, find_machine};
use super::interfaces::InterfaceGroup;
use super::machine::system_id_at;
use super::masking::masked;
use super::sites::SiteClient;
use crate::clock::now;
use crate::maas::{DeployRequest, Event, Maas, MaasPowerState, Machine, Status};
use crate::port::{Journal, Target};
use model::condition::imaged;
use model::effect::{
    CallOutcome, CallResult, CallVerb, DeviceFacts, EffectKey, MaasFacts, ProviderAnswer,
    ProviderCall,
};
use model::fault::{Fault, FaultCode, Result};
use model::id::NodeId;
use model::node::{MaasObservation, MaasState, Node, NodeStage, NodeState, adoption_reason};
use model::site::Site;
use model::time::{Timestamp, format_duration};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A wait ends this long before the step's deadline, so that it can report what MAAS says.
const MARGIN: Duration = Duration::from_secs(5);
/// The number of the last events that are copied into the log of a failure.
const LAST_EVENTS: usize = 20;

/// One provider call at one region.
pub(super) struct CallContext<'a> {
    pub provider: &'a MaasProvider,
    pub site_client: Arc<SiteClient>,
    /// The client of the site, which masks the secrets of this call.
    maas: Maas,
    pub request: &'a ProviderCall,
    pub journal: &'a Journal,
    /// The time limit of an attempt.
    pub limit: Duration,
}

/// Executes one stage of a node.
pub(super) struct StageExecutor<'a> {
    pub call: CallContext<'a>,
    pub site: Site,
    pub node: Node,
    pub stage: NodeStage,
}

impl<'a> CallContext<'a> {
    pub fn new(
        provider: &'a MaasProvider,
        site_client: Arc<SiteClient>,
        (request, journal): (&'a ProviderCall, &'a Journal),
        limit: Duration,
    ) -> Self {
        let maas = site_client.maas.masking(journal.mask().clone());
        Self { provider, site_client, maas, request, journal, limit }
    }
}

impl CallContext<'_> {
    pub fn maas(&self) -> &Maas {
        &self.maas
    }

    pub fn key(&self) -> &EffectKey {
        &self.request.key
    }

    pub fn verb(&self) -> CallVerb {
        self.request.verb
    }

    pub fn checkpoints(&self) -> CheckpointStore<'_> {
        CheckpointStore { store: self.provider.store.as_ref(), key: &self.request.key }
    }

    /// Polls until `ended` returns a result, within the step's time limit. An unreachable region
    /// does not end the wait: it proves nothing about the machine.
    pub async fn wait_until<T>(
        &self,
        system_id: &str,
        mut ended: impl FnMut(&Machine) -> Option<Result<T>>,
    ) -> Result<T> {
        let settings = &self.provider.settings;
        let limit = self.limit.saturating_sub(MARGIN).min(settings.max_wait);
        let began = Instant::now();
        let mut waiter = self.site_client.shared_poll.join(system_id);
        let mut reported = String::new();
        loop {
            let line = match waiter.poll(self.maas()).await {
                Ok(machine) => match ended(&machine) {
                    Some(result) => return result,
                    None => describe_state(&machine),
                },
                Err(fault) if fault.code.peer_unreachable() => fault.message,
                Err(fault) => return Err(fault),
            };
            if line != reported {
                self.journal.write_line(format!("maas: {line}")).await;
                reported = line;
            }
            if began.elapsed() + settings.poll_interval >= limit {
                let message =
                    format!("nothing else came within {}: {reported}", format_duration(limit));
                return Err(Fault::new(FaultCode::StepTimeout, message));
            }
            sleep(settings.poll_interval).await;
        }
    }

    /// The owner by annotation. The annotation of a deleted node does not count.
    pub async fn annotation_owner(
        &self,
        machine: &Machine,
        node: Option<&NodeId>,
    ) -> Result<AnnotationOwner> {
        let owner = annotations::annotation_owner(machine, self.key().run(), node);
        if let AnnotationOwner::OtherNode(other) = &owner
            && !self.node_exists(other).await?
        {
            return Ok(AnnotationOwner::Unmarked);
        }
        Ok(owner)
    }

    pub async fn node_exists(&self, node: &NodeId) -> Result<bool> {
        match self.provider.store.node(node).await {
            Ok(node) => Ok(node.state != NodeState::Deleted),
            Err(fault) if fault.code == FaultCode::MachineGone => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// The MAAS user that owns the machine.
    pub async fn maas_owner(&self, machine: &Machine) -> Result<MaasOwner> {
        let user = self.site_client.user().await?;
        Ok(match machine.owner.as_deref() {
            None | Some("") => MaasOwner::Unowned,
            Some(owner) if owner == user => MaasOwner::Farrier,
            Some(owner) => MaasOwner::Other(owner.to_owned()),
        })
    }

    fn first_observed_key(&self) -> EffectKey {
        EffectKey::trusted(format!("{}/first_seen", self.key().run()))
    }

    /// The state when this run first read the machine; `None` before that.
    pub async fn first_observed(&self) -> Result<Option<MaasState>> {
        let notes = CheckpointStore { key: &self.first_observed_key(), ..self.checkpoints() };
        Ok(match notes.recall().await? {
            Some(OrderCheckpoint::FirstObserved { before }) => Some(before),
            Some(_) | None => None,
        })
    }

    /// Records the state at the first read. A later call changes nothing.
    pub async fn record_first_observed(&self, now: MaasState) -> Result<()> {
        let notes = CheckpointStore { key: &self.first_observed_key(), ..self.checkpoints() };
        notes.begin(OrderCheckpoint::FirstObserved { before: now }).await.map(drop)
    }

    /// Copies the last events since one of this type into the run's log and returns all of them,
    /// oldest first.
    pub async fn log_events(&self, system_id: &str, since: &str) -> Result<Vec<Event>> {
        let events = self.maas().events_since(system_id, since).await?;
        let from = events.len().saturating_sub(LAST_EVENTS);
        for Event { created, kind, description, .. } in &events[from..] {
            let line = format!("event: {created} {kind}: {description}");
            self.journal.write_line(masked(&line)).await;
        }
        Ok(events)
    }

    /// Reads what came of a request that MAAS answered with a 500: it is done with it. `before` is
    /// the machine as it was.
    pub async fn confirm(&self, before: &Machine, requested: Result<Machine>) -> Result<Machine> {
        let fault = match requested {
            Err(fault) if fault.code == FaultCode::AnswerGarbled => fault,
            other => return other,
        };
        match self.maas().machine(&before.system_id).await {
            Ok(now) if now.status != before.status => Ok(now),
            Ok(now) => {
                let message =
                    format!("{}, and has not been: {}", fault.message, describe_state(&now));
                Err(fault.restated(FaultCode::MaasFailed, message))
            }
            Err(_) => Err(fault),
        }
    }

    /// Allocates a Ready machine, annotates it and deploys. The checkpoint must be written before.
    pub async fn install(
        &self,
        machine: &Machine,
        node: Option<&NodeId>,
        what: &DeployRequest,
    ) -> Result<Machine> {
        let (id, key) = (machine.system_id.as_str(), self.key());
        if machine.status == Status::Ready {
            self.maas().allocate(id, key.as_str()).await?;
        }
        let marks = annotations::install_annotations(key, node);
        let allocated = self.maas().set_workload_annotations(id, &marks).await?;
        let image = what.image.as_deref().unwrap_or_default();
        self.journal.write_line(format!("maas: {id} is asked to install {image}")).await;
        match self.confirm(&allocated, self.maas().deploy(id, what).await).await {
            // MAAS refuses a second request: the first one may have started the installation. So
            // a read that fails, for whatever reason, leaves it unknown.
            Err(fault) if fault.code == FaultCode::EffectFailed => {
                let now = match self.maas().machine(id).await {
                    Err(unread) if unread.code != FaultCode::MaasMachineGone => {
                        let message = format!("{}; {}", fault.message, unread.message);
                        return Err(unread.restated(FaultCode::AnswerLost, message));
                    }
                    read => read?,
                };
                let ours = annotations::annotation_owner(&now, key.run(), node)
                    == AnnotationOwner::ThisRun;
                if ours && deploy::has_begun(&now) { Ok(now) } else { Err(fault) }
            }
            other => other,
        }
    }
}

/// The MAAS user who owns a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MaasOwner {
    Farrier,
    Unowned,
    Other(String),
}

impl StageExecutor<'_> {
    /// Reads the node's machine by its stored system id; another record may be another user's.
    /// Fails with `maas-machine-gone` when MAAS has none.
    pub async fn locate(&self) -> Result<Machine> {
        if !self.node.system_id.is_empty() {
            return self.call.maas().machine(&self.node.system_id).await;
        }
        let message = format!(
            "no machine of {} is known to be {}: `farrier operation rerun {}` finds or makes it",
            self.site.head.id,
            self.node.head.id,
            self.call.key().run()
        );
        Err(Fault::new(FaultCode::MaasMachineGone, message))
    }

    /// The same, with `None` when it is gone.
    pub async fn try_locate(&self) -> Result<Option<Machine>> {
        match self.locate().await {
            Ok(machine) => Ok(Some(machine)),
            Err(fault) if fault.code == FaultCode::MaasMachineGone => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Done, because MAAS has no record. The node keeps its system id: later stages need it.
    pub fn record_gone(&self, message: &str) -> ProviderAnswer {
        ProviderAnswer::Done(self.record_gone_outcome(message))
    }

    pub fn record_gone_outcome(&self, text: &str) -> CallOutcome {
        let (state, at) = (MaasState::Absent, now());
        let none = MaasObservation { state, message: String::new(), powered_on: None, at };
        outcome_of(&self.node.system_id, none, text.to_owned())
    }

    /// Finds the machine by hardware or inventory id. Only for stages that find or make its record.
    pub async fn search(&self, target: &Target) -> Result<Option<Machine>> {
        let id = system_id_at(&target.spec, &self.site.id());
        let machines = self.call.site_client.candidates(&target.spec, id.as_deref()).await?;
        match find_machine(&machines, &target.spec, id.as_deref()) {
            FindResult::None => Ok(None),
            FindResult::One(one) => self.call.maas().machine(&one.system_id).await.map(Some),
            FindResult::Conflict(message) => {
                Err(Fault::new(FaultCode::CandidatesConflict, message))
            }
        }
    }

    /// A read-only stage: it has no earlier status, and nothing to stop.
    pub async fn run_read_only(
        &self,
        probe: impl Future<Output = Result<CallOutcome>> + Send,
    ) -> CallResult {
        match self.call.verb() {
            CallVerb::Perform | CallVerb::Follow => probe.await.map(ProviderAnswer::Done),
            CallVerb::GetStatus => Ok(ProviderAnswer::NeverStarted),
            CallVerb::Observe => observe_answer(probe.await),
            CallVerb::Stop => Ok(ProviderAnswer::Stopped),
        }
    }

    /// The status of a wait. A wait starts nothing, so a takeover simply waits again.
    pub async fn wait_status(&self, over: impl Fn(&Machine) -> bool) -> CallResult {
        let restarted = self.call.verb() == CallVerb::GetStatus;
        match self.locate().await {
            Ok(machine) if over(&machine) => Ok(done(&machine, describe_state(&machine))),
            Ok(_) if restarted => Ok(ProviderAnswer::NeverStarted),
            Ok(machine) => Ok(ProviderAnswer::Differs(describe_state(&machine))),
            Err(fault) if restarted && fault.code == FaultCode::MaasMachineGone => {
                Ok(ProviderAnswer::NeverStarted)
            }
            Err(fault) => Err(fault),
        }
    }

    /// An idempotent stage. MAAS does not report disk layouts, so after a crash it is set again.
    pub async fn configure(&self, what: MachineSetting) -> CallResult {
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => {
                let machine = self.locate().await?;
                notes.begin(OrderCheckpoint::Begun).await?;
                self.apply_setting(machine, what).await
            }
            CallVerb::Follow => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(_) => self.apply_setting(self.locate().await?, what).await,
            },
            CallVerb::GetStatus => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(_) => match what {
                    MachineSetting::Disks => Ok(ProviderAnswer::UnderWay),
                    MachineSetting::Interfaces(_) => {
                        status_answer(self.observe_setting(what).await)
                    }
                },
            },
            CallVerb::Observe => self.observe_setting(what).await,
            CallVerb::Stop => self.call.stop_idempotent().await,
        }
    }

    /// An installed machine keeps the settings it was installed with.
    async fn apply_setting(&self, machine: Machine, what: MachineSetting) -> CallResult {
        if let Some(why) = adoption_reason(self.stage, self.node.state, upstream_state(&machine)) {
            return Ok(done(&machine, why));
        }
        match what {
            MachineSetting::Disks => self.apply_layout(machine).await,
            MachineSetting::Interfaces(cards) => self.apply_interface_fixes(machine, cards).await,
        }
    }

    async fn observe_setting(&self, what: MachineSetting) -> CallResult {
        let machine = self.locate().await?;
        if let Some(why) = adoption_reason(self.stage, self.node.state, upstream_state(&machine)) {
            return Ok(done(&machine, why));
        }
        match what {
            MachineSetting::Disks => Ok(self.observe_layout(&machine)),
            MachineSetting::Interfaces(cards) => self.observe_interfaces(&machine, cards).await,
        }
    }
}

/// The part of a machine that is configured before it is installed.
#[derive(Debug, Clone, Copy)]
pub(super) enum MachineSetting {
    Disks,
    Interfaces(InterfaceGroup),
}

impl CallContext<'_> {
    /// Stops a call that may be abandoned at any point.
    pub async fn stop_idempotent(&self) -> CallResult {
        if let Some(checkpoint) = self.checkpoints().stop().await? {
            if self.is_in_flight(&checkpoint) {
                return Ok(ProviderAnswer::UnderWay);
            }
            self.checkpoints().compare_and_swap(&checkpoint, &OrderCheckpoint::Stopped).await?;
        }
        Ok(ProviderAnswer::Stopped)
    }

    /// True if a request may still reach MAAS, so that the present state proves nothing. A stop
    /// does not recall a request.
    pub fn is_in_flight(&self, checkpoint: &OrderCheckpoint) -> bool {
        checkpoint
            .requested_at()
            .is_some_and(|at| now().since(at) < self.provider.settings.in_flight_window)
    }
}

/// The answer to `Observe`: a fault that needs an operator means that the goal does not hold.
pub(super) fn observe_answer(looked: Result<CallOutcome>) -> CallResult {
    use model::fault::FaultClass;
    match looked {
        Ok(outcome) => Ok(ProviderAnswer::Done(outcome)),
        Err(fault) if fault.class() == FaultClass::NeedsIntervention => {
            Ok(ProviderAnswer::Differs(fault.message))
        }
        Err(fault) => Err(fault),
    }
}

/// The answer to `GetStatus` of a started call. A missing goal is still in progress; a missing
/// machine is reported by the next `Follow`.
pub(super) fn status_answer(looked: CallResult) -> CallResult {
    match looked {
        Ok(ProviderAnswer::Differs(_)) => Ok(ProviderAnswer::UnderWay),
        Err(fault) if fault.code == FaultCode::MaasMachineGone => Ok(ProviderAnswer::UnderWay),
        other => other,
    }
}

pub(super) fn upstream_state(machine: &Machine) -> MaasState {
    MaasState::of_number(machine.status.number())
}

/// The state in MAAS as a sentence.
pub(super) fn describe_state(machine: &Machine) -> String {
    let Machine { system_id, status, status_message, .. } = machine;
    match status_message.as_str() {
        "" => format!("MAAS has {system_id} as {status}"),
        message if message == status.to_string() => format!("MAAS has {system_id} as {status}"),
        message => format!("MAAS has {system_id} as {status}: {message}"),
    }
}

/// The part of a read that is stored. MAAS's message changes often and every change is stored, so
/// it is kept only during work and failures. Otherwise the annotated node is named, which may be
/// another.
pub(super) fn observe_upstream(machine: &Machine, at: Timestamp) -> MaasObservation {
    let speaks = machine.status.failed() || machine.status.in_progress();
    let text = match (speaks, annotations::annotated_node(machine)) {
        (true, _) => machine.status_message.clone(),
        (false, Some(node)) => format!("it is marked as {node}"),
        (false, None) => String::new(),
    };
    let on = match machine.power_state {
        MaasPowerState::On => Some(true),
        MaasPowerState::Off => Some(false),
        MaasPowerState::Unknown | MaasPowerState::Error => None,
    };
    MaasObservation { state: upstream_state(machine), message: text, powered_on: on, at }
}

/// The outcome of a stage that has read the machine. A deployed machine proves its image.
pub(super) fn outcome(machine: &Machine, message: impl Into<String>) -> CallOutcome {
    let Machine { system_id, osystem, distro_series, .. } = machine;
    let deployed = upstream_state(machine) == MaasState::Deployed;
    let image = deployed.then(|| imaged(&format!("{osystem}/{distro_series}")));
    CallOutcome {
        evidence: image.into_iter().collect(),
        ..outcome_of(system_id, observe_upstream(machine, now()), message.into())
    }
}

fn outcome_of(system_id: &str, upstream: MaasObservation, text: String) -> CallOutcome {
    let maas = Some(Box::new(MaasFacts { system_id: system_id.to_owned(), upstream }));
    CallOutcome {
        message: text,
        facts: Some(DeviceFacts { maas, ..DeviceFacts::default() }),
        ..CallOutcome::default()
    }
}

pub(super) fn done(machine: &Machine, message: impl Into<String>) -> ProviderAnswer {
    ProviderAnswer::Done(outcome(machine, message))
}

/// A state that this stage cannot continue from.
pub(super) fn state_disagrees(machine: &Machine, instead: &str) -> Fault {
    Fault::new(FaultCode::StateDisagrees, format!("{}; {instead}", describe_state(machine)))
}

/// Farrier does not change a locked machine.
pub(super) fn check_unlocked(machine: &Machine) -> Result<()> {
    match machine.locked {
        false => Ok(()),
        true => Err(state_disagrees(machine, "it is locked: unlock it in MAAS")),
    }
}
