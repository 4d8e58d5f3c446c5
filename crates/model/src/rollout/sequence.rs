//! The stages of a target: [`MACHINE`] is their sequence as a table.

use crate::machine::Machine;
use crate::plan::{Maintenance, RunType};

/// A part of the work on one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetStage {
    EnterMaintenance,
    Operation,
    ExitMaintenance,
    Gate,
}

impl TargetStage {
    pub const ALL: [Self; 4] =
        [Self::EnterMaintenance, Self::Operation, Self::ExitMaintenance, Self::Gate];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnterMaintenance => "enter-maintenance",
            Self::Operation => "operation",
            Self::ExitMaintenance => "exit-maintenance",
            Self::Gate => "gate",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }

    /// The run of a stage around the operation, with its plan. With a cluster, the work of the
    /// machine is moved away first and let back afterwards. None: the default plan.
    pub fn maintenance_run(self, machine: &Machine) -> Option<(RunType, Option<Maintenance>)> {
        let clustered = !machine.spec.target_cluster_ref.is_empty();
        let (run_type, plan) = match self {
            Self::EnterMaintenance => (RunType::EnterMaintenance, Maintenance::EnterDraining),
            Self::ExitMaintenance => (RunType::ExitMaintenance, Maintenance::ExitUncordoning),
            Self::Operation | Self::Gate => return None,
        };
        Some((run_type, clustered.then_some(plan)))
    }
}

/// One stage of a sequence, and when it is left out.
#[derive(Debug, Clone, Copy)]
pub struct SequenceRow {
    pub stage: TargetStage,
    pub skip_if: SkipIf,
}

/// When a stage is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipIf {
    Never,
    /// The target is in maintenance now.
    InMaintenance,
    /// The target was in maintenance before the rollout came to it: it is left there.
    WasInMaintenance,
    /// The same, or the rollout has no gate.
    WasInMaintenanceOrNoGate,
}

/// The sequence of a machine.
pub const MACHINE: [SequenceRow; 4] = [
    SequenceRow { stage: TargetStage::EnterMaintenance, skip_if: SkipIf::InMaintenance },
    SequenceRow { stage: TargetStage::Operation, skip_if: SkipIf::Never },
    SequenceRow { stage: TargetStage::ExitMaintenance, skip_if: SkipIf::WasInMaintenance },
    SequenceRow { stage: TargetStage::Gate, skip_if: SkipIf::WasInMaintenanceOrNoGate },
];

/// The facts that decide which stages are left out.
#[derive(Debug, Clone, Copy)]
pub struct SequenceFacts {
    pub in_maintenance: bool,
    pub was_in_maintenance: bool,
    pub has_gate: bool,
}

/// The stage after `done`; none as `done`: the first one. None: the target is done.
pub fn stage_after(done: Option<TargetStage>, facts: SequenceFacts) -> Option<TargetStage> {
    let left = MACHINE.iter().filter(|row| done.is_none_or(|done| row.stage > done));
    let mut left = left.filter(|row| match row.skip_if {
        SkipIf::Never => true,
        SkipIf::InMaintenance => !facts.in_maintenance,
        SkipIf::WasInMaintenance => !facts.was_in_maintenance,
        SkipIf::WasInMaintenanceOrNoGate => !facts.was_in_maintenance && facts.has_gate,
    });
    left.next().map(|row| row.stage)
}
