//! The value that a field has in an object, and what a field is about.

use super::{FilterField, FilterItem};
use crate::lifecycle::Lifecycle;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::run::Run;

/// What a field is about, and when its value changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldNature {
    /// A state of the machine, which changes with its runs.
    MachineState,
    /// Another property of the machine.
    MachineProperty,
    /// A property of the object itself that never changes.
    Fixed,
    /// A property of the object itself that may change.
    Changing,
}

impl FilterField {
    const fn nature(&self) -> FieldNature {
        match self {
            Self::Phase | Self::EffectiveState | Self::LifecycleState | Self::Condition(_) => {
                FieldNature::MachineState
            }
            Self::Provider | Self::Rack | Self::Label(_) => FieldNature::MachineProperty,
            Self::MachineId
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::RecordId => FieldNature::Fixed,
            Self::RunPhase
            | Self::WorkflowState
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => FieldNature::Changing,
        }
    }

    /// True if the field is a property of the machine, not of the run.
    pub const fn is_of_machine(&self) -> bool {
        match self.nature() {
            FieldNature::MachineState | FieldNature::MachineProperty => true,
            FieldNature::Fixed | FieldNature::Changing => false,
        }
    }

    /// True if the field of an object never changes.
    pub(super) fn is_fixed(&self) -> bool {
        self.nature() == FieldNature::Fixed
    }

    /// True if the field is a state of a machine, which changes with its runs.
    pub(super) fn is_state_of_machine(&self) -> bool {
        self.nature() == FieldNature::MachineState
    }

    /// The value of a field that every record has.
    pub fn of_record<R: Lifecycle>(&self, record: &R) -> Option<String> {
        let head = record.head();
        match self {
            Self::RecordId => Some(head.id.clone()),
            Self::State => Some(record.state_name().into()),
            Self::Rack => head.rack.as_ref().map(ToString::to_string),
            Self::Label(key) => head.labels.get(key).cloned(),
            Self::MachineId
            | Self::Phase
            | Self::RunPhase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Condition(_)
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }

    pub(super) fn read(&self, item: FilterItem<'_>) -> Option<String> {
        match item {
            FilterItem::Machine(machine) => self.of_machine(machine),
            FilterItem::Run(run, machine) => self.of_run(run).or_else(|| self.of_machine(machine?)),
            FilterItem::Plan(plan) => self.of_plan(plan),
        }
    }

    fn of_machine(&self, machine: &Machine) -> Option<String> {
        match self {
            Self::MachineId => Some(machine.id.to_string()),
            Self::Phase => Some(machine.phase.as_str().into()),
            Self::EffectiveState => Some(machine.effective_state().as_str().into()),
            Self::LifecycleState => Some(machine.lifecycle_state().as_str().into()),
            Self::Provider => Some(machine.spec.provider.clone()),
            Self::Rack => machine.spec.rack.as_ref().map(ToString::to_string),
            Self::Label(key) => machine.labels.get(key).cloned(),
            Self::Condition(condition) => Some(machine.is(*condition).to_string()),
            Self::RunPhase
            | Self::Type
            | Self::RunId
            | Self::PlanId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }

    fn of_run(&self, run: &Run) -> Option<String> {
        match self {
            Self::MachineId => Some(run.spec.target.key()),
            Self::RunPhase => Some(run.phase().as_str().into()),
            Self::Type => Some(run.spec.run_type.as_str().into()),
            Self::RunId => Some(run.spec.id.to_string()),
            Self::PlanId => Some(run.spec.plan_id.to_string()),
            Self::RequestId => Some(run.spec.request_id.clone()),
            Self::TargetKind => Some(run.spec.target.kind.as_str().into()),
            Self::Initiator => Some(run.spec.initiator.clone()),
            Self::PartOf => {
                Some(run.spec.parent_run.as_ref().map(ToString::to_string).unwrap_or_default())
            }
            Self::CreatedFrom | Self::CreatedBefore => {
                Some(run.spec.created_at.as_micros().to_string())
            }
            Self::WorkflowState => Some(run.progress.workflow.as_str().into()),
            Self::Phase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Condition(_)
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }

    fn of_plan(&self, plan: &Plan) -> Option<String> {
        match self {
            Self::PlanId => Some(plan.id.to_string()),
            Self::Type => plan.default_for.map(|kind| kind.as_str().into()),
            Self::MachineId
            | Self::Phase
            | Self::RunPhase
            | Self::EffectiveState
            | Self::LifecycleState
            | Self::Provider
            | Self::Rack
            | Self::Label(_)
            | Self::Condition(_)
            | Self::RunId
            | Self::RequestId
            | Self::TargetKind
            | Self::Initiator
            | Self::PartOf
            | Self::CreatedFrom
            | Self::CreatedBefore
            | Self::WorkflowState
            | Self::RecordId
            | Self::State
            | Self::HardwareType
            | Self::Site
            | Self::Named(_) => None,
        }
    }
}
