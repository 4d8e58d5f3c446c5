//! The blast radius: which machines go dark when power is taken away, computed before anything runs.

use crate::condition::ConditionType;
use crate::id::{MachineId, RunId};
use crate::machine::{Machine, Phase};
use crate::refusal::Refusal;
use crate::say::few;
use crate::text;

/// How many machines a refusal names; the others are counted.
const MAX_NAMED: usize = 8;

/// A machine that would go dark, and what speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dark {
    pub machine: MachineId,
    pub against: Option<Against>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Against {
    /// It is READY, and its work has not been moved away.
    InService,
    /// This operation works on it.
    HeldBy(RunId),
    /// Its record cannot be read, so nobody knows.
    Unreadable,
}

impl Against {
    fn said(&self, machine: &MachineId) -> String {
        match self {
            Self::InService => format!("{machine} is READY and in service"),
            Self::HeldBy(run) => format!("{machine} is held by {run}"),
            Self::Unreadable => format!("{machine} cannot be read, and may be in service"),
        }
    }
}

impl Dark {
    pub fn of(machine: &Machine) -> Self {
        let in_service = machine.phase == Phase::Ready && !machine.is(ConditionType::Drained);
        let against = match (&machine.active_run, in_service) {
            (Some(run), _) => Some(Against::HeldBy(run.clone())),
            (None, true) => Some(Against::InService),
            (None, false) => None,
        };
        Self { machine: machine.id.clone(), against }
    }

    /// One whose record cannot be read.
    pub const fn unreadable(machine: MachineId) -> Self {
        Self { machine, against: Some(Against::Unreadable) }
    }

    /// What speaks against it, in words; none when nothing does.
    pub fn said(&self) -> Option<String> {
        self.against.as_ref().map(|against| against.said(&self.machine))
    }
}

/// Whether these machines may go dark: those that nobody would miss may, the others only by force, with a reason that is written down.
pub fn permit(what: &str, dark: &[Dark], force: Option<&str>) -> Result<(), Refusal> {
    if let Some(reason) = force {
        text::short("reason", reason)?;
        return match reason.trim().is_empty() {
            true => Err(Refusal::invalid("reason", "is empty", "say why it must be: --reason …")),
            false => Ok(()),
        };
    }
    let missed: Vec<String> = dark.iter().filter_map(Dark::said).collect();
    if missed.is_empty() {
        return Ok(());
    }
    let named = few(&missed, ", ", MAX_NAMED);
    let said = format!("{what} would take power from machines that are needed: {named}");
    Err(Refusal::precondition("MACHINES_IN_SERVICE", said)
        .next("repeat it with --force --reason …, or move their work away first"))
}
