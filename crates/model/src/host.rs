//! Hosts: the firmware reprovisioning of a machine. The record has the id of its machine.
//!
//! On an operator's request the host checks its firmware and upgrades it in a run on the machine.
//! On a rack's request it waits for the child run that the rack's operation starts on the machine.
//! A failed upgrade is retried after an interval, a limited number of times, if a retry does no
//! harm; after that the host waits for an operator. A new request always starts over.

mod why;

use crate::effect::Facts;
use crate::fault::{Class, Code};
use crate::firmware::{FIRMWARE, Firmware, Resolution};
use crate::here;
use crate::id::{FirmwareId, MachineId, RunId};
use crate::lifecycle::{
    Change, Head, Lifecycle, NewRun, Next, SubjectKind, Trouble, Waited, Why, waited,
};
use crate::plan::{Params, RunStep, RunType};
use crate::refusal::Refusal;
use crate::run::{Note, Run, RunPhase};
use crate::target::{TargetId, TargetKind};
use crate::time::{Timestamp, spoken};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The maximum number of automatic retries of a failed upgrade.
pub const MAX_FIRMWARE_UPGRADE_RETRIES: u32 = 3;
/// The default interval before a failed upgrade is retried.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// The time for which a host waits until the rack's operation reaches its machine.
pub const RACK_PATIENCE: Duration = Duration::from_secs(24 * 3_600);
/// The interval of checks of the machine's gate while it refuses an upgrade.
const GATE_PAUSE: Duration = Duration::from_secs(60);
/// The time for which the gate is checked; after that the upgrade fails.
const GATE_PATIENCE: Duration = Duration::from_secs(24 * 3_600);
/// The normal maximum duration of an upgrade by the host itself.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HostState {
    Ready,
    CheckingFirmwareV2 { retry_count: u32 },
    WaitingForRackFirmwareUpgrade,
    FailedFirmwareUpgrade { retry_count: u32, cause: Trouble },
}

impl HostState {
    /// The names of the states in which a firmware request is being served.
    pub const UNDER_WAY: [&'static str; 3] =
        ["CheckingFirmwareV2", "WaitingForRackFirmwareUpgrade", "FailedFirmwareUpgrade"];

    pub const fn word(&self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::CheckingFirmwareV2 { .. } => "CheckingFirmwareV2",
            Self::WaitingForRackFirmwareUpgrade => "WaitingForRackFirmwareUpgrade",
            Self::FailedFirmwareUpgrade { .. } => "FailedFirmwareUpgrade",
        }
    }
}

/// The party that requested a reprovisioning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "owner", rename_all = "snake_case")]
pub enum Owner {
    /// An operation on the rack, which drives the upgrade itself.
    Rack {
        operation: RunId,
    },
    Operator {
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReprovisionRequest {
    pub owner: Owner,
    pub firmware: Option<FirmwareId>,
    pub requested_at: Timestamp,
    /// None: the request is new and not started.
    pub started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub head: Head,
    pub state: HostState,
    /// None: nothing is requested, or the request was withdrawn.
    #[serde(default)]
    pub request: Option<ReprovisionRequest>,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    #[serde(default)]
    pub facts: Facts,
    /// The id of the last operator request: repeating it starts nothing.
    #[serde(default)]
    pub request_id: String,
}

/// The input of a turn besides the host itself.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The id for a run that this turn may start.
    pub fresh: RunId,
    /// The run that the host waits for, or the failed one, which an operator may have resumed and
    /// completed.
    pub run: Option<Run>,
    /// The firmware that the request resolves to.
    pub firmware: Resolution,
    /// The decision of its machine's gate on an upgrade.
    pub gate: Result<(), Refusal>,
    /// The rack's operation, if it owns the request.
    pub operation: Option<Run>,
    /// The newest child run of that operation for this machine's firmware.
    pub part: Option<Run>,
    pub retry_interval: Duration,
}

/// The work of an upgrade by the host itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Nothing to do, and why.
    Nothing(String),
    /// The named firmware does not exist.
    Unknown(String),
    /// The run reads the host's versions and installs what differs.
    Install {
        firmware: FirmwareId,
        steps: Vec<RunStep>,
        /// The recorded versions, component by component. For information only: a board may have
        /// been replaced since they were read.
        known: Vec<String>,
    },
}

/// Decides what to do for a host to have a firmware. The run reads whether the host has it already.
pub fn check(facts: &Facts, firmware: &Resolution) -> Check {
    let kind = TargetKind::Machine;
    match firmware {
        Resolution::Skip(why) => Check::Nothing(format!("no firmware was applied: {why}")),
        Resolution::Unknown(id) => Check::Unknown(format!("no firmware {id} is in the catalogue")),
        Resolution::Use(one) => match (one.steps(kind), one.missing_on(kind, &facts.firmware)) {
            (steps, _) if steps.is_empty() => {
                Check::Nothing(format!("firmware {} has nothing for machines", one.id))
            }
            (steps, differs) => {
                let known = if differs.is_empty() { vec![last_seen(one)] } else { differs };
                Check::Install { firmware: one.id.clone(), steps, known }
            }
        },
    }
}

fn last_seen(firmware: &Firmware) -> String {
    let versions = firmware.versions(TargetKind::Machine).into_iter();
    let versions: Vec<String> = versions.map(|(name, at)| format!("{name} {at}")).collect();
    format!("it was last seen at {}, and is asked all the same", versions.join(", "))
}

impl Host {
    pub fn new(machine: &MachineId, now: Timestamp) -> Self {
        Self {
            head: Head::new(machine.as_str(), crate::machine::Labels::new(), now),
            state: HostState::Ready,
            request: None,
            run: None,
            facts: Facts::default(),
            request_id: String::new(),
        }
    }

    pub fn machine(&self) -> MachineId {
        MachineId::trusted(&self.head.id)
    }

    pub fn is_ready(&self) -> bool {
        self.state == HostState::Ready
    }

    /// The run whose end moves the host on: the one that its state waits for, or the failed one.
    pub fn waits_for(&self) -> Option<&RunId> {
        match &self.state {
            HostState::FailedFirmwareUpgrade { cause, .. } => cause.run.as_ref(),
            HostState::Ready
            | HostState::CheckingFirmwareV2 { .. }
            | HostState::WaitingForRackFirmwareUpgrade => self.run.as_ref(),
        }
    }

    /// The rack's operation that owns the request.
    pub fn rack_operation(&self) -> Option<&RunId> {
        match self.request.as_ref().map(|request| &request.owner) {
            Some(Owner::Rack { operation }) => Some(operation),
            Some(Owner::Operator { .. }) | None => None,
        }
    }

    /// Checks whether an operator may request a reprovisioning now: in `Ready` or after a failure,
    /// and no unstarted request may be pending.
    pub fn admit(&self) -> Result<(), Refusal> {
        let fresh = self.request.as_ref().is_some_and(|request| request.started_at.is_none());
        let idle = match self.state {
            HostState::Ready | HostState::FailedFirmwareUpgrade { .. } => !fresh,
            HostState::CheckingFirmwareV2 { .. } | HostState::WaitingForRackFirmwareUpgrade => {
                false
            }
        };
        if idle {
            return Ok(());
        }
        let id = &self.head.id;
        let owner = self.request.as_ref().map(|request| request.owner.said());
        let owner = owner.unwrap_or_else(|| "somebody who has given it up".into());
        let said = format!("the firmware of {id} is being seen to for {owner}");
        Err(Refusal::precondition("REPROVISION_UNDER_WAY", said).next(format!("farrier why {id}")))
    }

    /// Checks whether the request may be withdrawn for this machine alone: not while the rack's
    /// `operation` is active.
    pub fn admit_give_up(&self, operation: Option<&Run>) -> Result<(), Refusal> {
        let going = operation.filter(|run| !run.ended());
        let Some(operation) = going.map(|run| &run.spec.id) else { return Ok(()) };
        let said = format!(
            "the firmware of {} is upgraded by {operation}, an operation of its rack",
            self.head.id
        );
        Err(Refusal::precondition("REPROVISION_OF_RACK", said)
            .next(format!("farrier cancel {operation}   # stops it for the whole rack")))
    }

    fn become_(&self, state: HostState, said: impl Into<String>, line: &'static str) -> Next<Self> {
        let record = Self { state, run: None, ..self.clone() };
        Next::Become(Box::new(Change::new(record, Note::new(said, line))))
    }

    /// Back to `Ready`. A started request is removed; a new one that arrived since stays.
    fn settle(&self, said: impl Into<String>, line: &'static str) -> Next<Self> {
        let request = self.request.clone().filter(|request| request.started_at.is_none());
        Self { request, ..self.clone() }.become_(HostState::Ready, said, line)
    }

    fn fail(&self, retry_count: u32, cause: Trouble) -> Next<Self> {
        let said = cause.said.clone();
        self.become_(HostState::FailedFirmwareUpgrade { retry_count, cause }, said, here!())
    }

    /// Starts a request: the rack drives the upgrade, or the host does.
    fn take_up(&self, request: &ReprovisionRequest, now: Timestamp) -> Next<Self> {
        let request = ReprovisionRequest { started_at: Some(now), ..request.clone() };
        let (state, said) = match &request.owner {
            Owner::Rack { operation } => (
                HostState::WaitingForRackFirmwareUpgrade,
                format!("{operation} is to upgrade its firmware"),
            ),
            Owner::Operator { name } => (
                HostState::CheckingFirmwareV2 { retry_count: 0 },
                format!("checking its firmware for {name}"),
            ),
        };
        Self { request: Some(request), ..self.clone() }.become_(state, said, here!())
    }

    /// The request was withdrawn: an active run is canceled first.
    fn give_up(&self, seen: &Seen) -> Next<Self> {
        // Only the rack may cancel an operation on the rack: it includes other machines.
        let own = |run: &&Run| run.spec.target.kind == TargetKind::Machine;
        let going = seen.run.as_ref().filter(own).filter(|run| waited(run) == Waited::Going);
        match going {
            Some(run) if run.progress.halt.is_none() => {
                let id = &run.spec.id;
                let record = Self { request: None, ..self.clone() };
                let note = Note::new(format!("{id} is to stop"), here!());
                let cancel = vec![(id.clone(), "nobody wants it any more".into())];
                Next::Become(Box::new(Change { cancel, ..Change::new(record, note) }))
            }
            Some(_) => Next::Rest(Why::new("its operation is being stopped")),
            None => self.settle("nobody wants its firmware upgraded any more", here!()),
        }
    }

    fn checking(&self, retry_count: u32, seen: &Seen, now: Timestamp) -> Next<Self> {
        if let Some(id) = &self.run {
            let waited = seen.run.as_ref().map_or_else(gone, waited);
            return match waited {
                Waited::Going => Next::Rest(Why::new(format!("{id} upgrades its firmware"))),
                Waited::Done => self.settle("its firmware is as wanted", here!()),
                Waited::Failed(cause) => self.fail(retry_count, cause),
            };
        }
        match (check(&self.facts, &seen.firmware), &seen.gate) {
            (Check::Nothing(said), _) => self.settle(said, here!()),
            (Check::Unknown(said), _) => self.fail(retry_count, trouble(said)),
            (Check::Install { .. }, Err(refusal)) => {
                let said = format!("it may not be upgraded now: {}", refusal.said);
                let deadline = self.head.since + GATE_PATIENCE;
                match now < deadline {
                    true => Next::Until(deadline.min(now + GATE_PAUSE), Why::new(said)),
                    false => self.fail(retry_count, trouble(said)),
                }
            }
            (Check::Install { firmware, steps, known }, Ok(())) => {
                self.upgrade(seen, &firmware, steps, &known)
            }
        }
    }

    fn upgrade(
        &self,
        seen: &Seen,
        firmware: &FirmwareId,
        steps: Vec<RunStep>,
        known: &[String],
    ) -> Next<Self> {
        let fresh = &seen.fresh;
        let initiator = self.request.as_ref().map(|request| request.owner.said());
        let run = NewRun {
            id: fresh.clone(),
            target: TargetId::from(&self.machine()),
            run_type: RunType::Firmware,
            steps,
            request_id: fresh.to_string(),
            initiator: initiator.unwrap_or_default(),
            part_of: None,
            reports_to: Some(self.subject()),
            claims: Vec::new(),
            params: Params::from([(FIRMWARE.to_string(), firmware.to_string())]),
        };
        let note = Note::new(format!("{fresh} is to upgrade it: {}", known.join("; ")), here!());
        let record = Self { run: Some(fresh.clone()), ..self.clone() };
        Next::Become(Box::new(Change { start: vec![run], ..Change::new(record, note) }))
    }

    /// The child run of the rack's operation on this machine decides. If there is none, the end of
    /// the operation does.
    fn waiting(&self, seen: &Seen, now: Timestamp) -> Next<Self> {
        if let Some(part) = &seen.part {
            return match waited(part) {
                Waited::Going => {
                    Next::Rest(Why::new(format!("{} upgrades its firmware", part.spec.id)))
                }
                Waited::Done => self.settle("its rack has upgraded its firmware", here!()),
                Waited::Failed(cause) => self.fail(0, cause),
            };
        }
        let Some(operation) = &seen.operation else {
            return self.fail(0, trouble("the operation on its rack is not there any more"));
        };
        let id = &operation.spec.id;
        match (operation.phase(), waited(operation)) {
            (RunPhase::Pending | RunPhase::Running, _) => {
                let until = self.head.since + RACK_PATIENCE;
                if now >= until {
                    let patience = spoken(RACK_PATIENCE);
                    let said = format!("{id} has not come to this machine within {patience}");
                    return self.fail(0, trouble(said));
                }
                let why = format!("{id} is to upgrade its firmware, and has not come to it");
                Next::Until(until, Why::new(why))
            }
            (RunPhase::Failed, Waited::Failed(cause)) => {
                let said = format!("{id} failed before it came to this machine: {}", cause.said);
                self.fail(0, Trouble { said, ..cause })
            }
            (RunPhase::Failed, Waited::Going | Waited::Done) => {
                self.fail(0, trouble(format!("{id} failed before it came to this machine")))
            }
            (RunPhase::Canceled, _) => {
                let said = format!("{id} was canceled before it came to this machine");
                self.settle(said, here!())
            }
            (RunPhase::Succeeded, _) => {
                self.settle(format!("{id} had no firmware for this machine"), here!())
            }
        }
    }

    /// Retries a failed upgrade if that is safe. A later child run of the rack's operation takes
    /// precedence.
    fn failed(&self, retry_count: u32, cause: &Trouble, seen: &Seen, now: Timestamp) -> Next<Self> {
        let later = seen.part.as_ref().filter(|part| cause.run.as_ref() != Some(&part.spec.id));
        match later.map(waited) {
            Some(Waited::Going) => {
                let state = HostState::WaitingForRackFirmwareUpgrade;
                return self.become_(state, "its rack tries again", here!());
            }
            Some(Waited::Done) => {
                return self.settle("its rack has upgraded its firmware", here!());
            }
            Some(Waited::Failed(_)) | None => {}
        }
        match seen.run.as_ref().map(|run| (run, waited(run))) {
            Some((run, Waited::Going)) => {
                let why = format!("operation {} goes on with what had failed", run.spec.id);
                return Next::Rest(Why::new(why));
            }
            Some((_, Waited::Done)) => {
                return self.settle("what had failed was brought to a good end", here!());
            }
            Some((_, Waited::Failed(_))) | None => {}
        }
        match self.next_attempt(seen.retry_interval) {
            None => Next::Rest(Why::new(format!("{}; a person is waited for", cause.said))),
            Some(at) if now < at => {
                Next::Until(at, Why::new(format!("{}; it is tried again then", cause.said)))
            }
            Some(_) => {
                let retry_count = retry_count + 1;
                let state = HostState::CheckingFirmwareV2 { retry_count };
                let said = format!("attempt {retry_count} of {MAX_FIRMWARE_UPGRADE_RETRIES} again");
                self.become_(state, said, here!())
            }
        }
    }

    /// When a failed upgrade is retried automatically. None when an operator must decide first.
    pub fn next_attempt(&self, interval: Duration) -> Option<Timestamp> {
        match &self.state {
            HostState::FailedFirmwareUpgrade { retry_count, cause } => {
                let safe = Code::parse(&cause.code).map(Code::class) == Some(Class::Retryable);
                let again = safe && *retry_count < MAX_FIRMWARE_UPGRADE_RETRIES;
                again.then(|| self.head.since + interval)
            }
            HostState::Ready
            | HostState::CheckingFirmwareV2 { .. }
            | HostState::WaitingForRackFirmwareUpgrade => None,
        }
    }
}

impl Owner {
    pub fn said(&self) -> String {
        match self {
            Self::Rack { operation } => operation.to_string(),
            Self::Operator { name } => name.clone(),
        }
    }
}

fn trouble(said: impl Into<String>) -> Trouble {
    Trouble { said: said.into(), run: None, code: String::new() }
}

fn gone() -> Waited {
    Waited::Failed(trouble("its operation is not there any more"))
}

impl Lifecycle for Host {
    const KIND: SubjectKind = SubjectKind::Host;
    const STATES: &'static [&'static str] =
        &["Ready", "CheckingFirmwareV2", "WaitingForRackFirmwareUpgrade", "FailedFirmwareUpgrade"];
    type Seen = Seen;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        self.state.word()
    }

    fn learn(&mut self, facts: &Facts) {
        self.facts.learn(facts);
    }

    fn next(&self, seen: &Seen, now: Timestamp) -> Next<Self> {
        use HostState as S;
        let at_work = || seen.run.as_ref().is_some_and(|run| waited(run) == Waited::Going);
        match (&self.state, &self.request) {
            (S::Ready, None) => Next::Rest(Why::new("nothing is asked of it")),
            (_, None) => self.give_up(seen),
            // An active run is not interrupted: a new request waits for its end.
            (_, Some(request)) if request.started_at.is_none() && !at_work() => {
                self.take_up(request, now)
            }
            // Starting a request leaves `Ready`, and returning to `Ready` removes it; so a started
            // request is complete here.
            (S::Ready, Some(_)) => self.settle("its request was seen to", here!()),
            (S::CheckingFirmwareV2 { retry_count }, Some(_)) => {
                self.checking(*retry_count, seen, now)
            }
            (S::WaitingForRackFirmwareUpgrade, Some(_)) => self.waiting(seen, now),
            (S::FailedFirmwareUpgrade { retry_count, cause }, Some(_)) => {
                self.failed(*retry_count, cause, seen, now)
            }
        }
    }
}
