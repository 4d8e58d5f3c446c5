//! The calls that a caller may make whose rights are limited by labels, and the object that each
//! is about. A call without a row needs its permission for the whole fleet.

use super::calls::Needs;
use crate::grpc::Call;
use engine::access::NamedObject;
use model::access::{Permission, PermissionSet};
use model::refusal::Refusal;
use serde_json::Value;
use store::StoreError;

/// The objects that a call can reach with a right that holds for a part of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nothing: the right must hold for the whole fleet.
    Fleet,
    /// Facts that belong to no part of the fleet.
    Shared,
    /// A list or a watch. The engine leaves out what the caller may not see.
    Listed,
    /// The machine that this field of the request names.
    Machine(&'static str),
    /// The machine that this field names by its id or, if `any_name` is set, by another name.
    NamedMachine(&'static str),
    /// The operation that this field names.
    Run(&'static str),
    /// The node that this field names.
    Node(&'static str),
    /// The switch that this field names.
    Switch(&'static str),
    /// The power shelf that this field names.
    PowerShelf(&'static str),
    /// The machine, operation or node that this field names.
    Any(&'static str),
    /// Like `Any`, or a machine by another name.
    KnownAs(&'static str),
}

/// The rule of a call for callers with limited rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectRule {
    pub needs: Needs,
    pub reach: Reach,
}

impl ObjectRule {
    /// True if the call makes Farrier log in to a peer that the caller names.
    pub fn uses_credential(self) -> bool {
        self.needs == Needs::One(Permission::CredentialUse)
    }

    /// Checks the object of a request: whether the caller may see it, and whether it has a
    /// permission on it that the call needs.
    pub async fn check(self, call: &Call, request: &Value) -> Result<(), StoreError> {
        let needed = self.needs.one_of();
        let grants = call.caller().grants();
        if grants.limited.is_empty() || grants.everywhere.intersects(needed) {
            return Ok(());
        }
        let (field, object): (_, fn(String) -> NamedObject) = match self.reach {
            // The layer has refused, or there is no object.
            Reach::Fleet | Reach::Shared | Reach::Listed => return Ok(()),
            Reach::Machine(field) => (field, NamedObject::Machine),
            Reach::NamedMachine(field) => match request.get("any_name") {
                Some(Value::Bool(true)) => (field, NamedObject::KnownAs),
                Some(_) | None => (field, NamedObject::Machine),
            },
            Reach::Run(field) => (field, NamedObject::Run),
            Reach::Node(field) => (field, NamedObject::Node),
            Reach::Switch(field) => (field, NamedObject::Switch),
            Reach::PowerShelf(field) => (field, NamedObject::PowerShelf),
            Reach::Any(field) => (field, NamedObject::Any),
            Reach::KnownAs(field) => (field, NamedObject::KnownAs),
        };
        // The JSON form has one name for the id of a run.
        let path = if field == "run_id" { "operation_id" } else { field };
        let value = path.split('.').try_fold(request, |at, name| at.get(name));
        match value.and_then(Value::as_str) {
            Some(id) if !id.is_empty() => {
                call.engine.check_object(object(id.to_string()), needed).await
            }
            Some(_) | None => Err(Refusal::missing(field).into()),
        }
    }
}

impl Needs {
    /// The permissions of which one is enough for this layer.
    pub(super) fn one_of(self) -> PermissionSet {
        match self {
            Self::Nothing | Self::Caller => PermissionSet::EMPTY,
            Self::One(permission) => permission.into(),
            Self::OfRun => PermissionSet::of(&super::calls::OF_RUNS),
        }
    }
}

/// The reach of a call, by its name without the package.
pub(super) fn reach_of(call: &str) -> Reach {
    let row = REACH.iter().find(|(name, _)| *name == call);
    row.map_or(Reach::Fleet, |(_, reach)| *reach)
}

const MACHINE: Reach = Reach::Machine("machine_id");
const RUN: Reach = Reach::Run("run_id");
const OPERATION: Reach = Reach::Run("operation_id");
const NODE: Reach = Reach::Node("node_id");

const REACH: &[(&str, Reach)] = &[
    ("AccessService/GetCaller", Reach::Shared),
    ("AccessService/ListRoles", Reach::Shared),
    ("AdminService/ClearNeedsIntervention", MACHINE),
    ("ClusterService/PreviewDrain", MACHINE),
    ("ExplainService/Explain", Reach::KnownAs("id")),
    ("ExplainService/GetFaultPage", Reach::Shared),
    ("ExplainService/ListAttention", Reach::Listed),
    ("ExplainService/ListHistory", Reach::Any("id")),
    ("FirmwareService/GetFirmware", Reach::Shared),
    ("FirmwareService/ListFirmware", Reach::Shared),
    ("HardwareService/GetConsoleLog", MACHINE),
    ("HardwareService/GetPower", MACHINE),
    ("HardwareService/InspectMachine", MACHINE),
    ("HealthService/DeleteHealthReport", Reach::Machine("id")),
    ("HealthService/GetHealth", Reach::Machine("id")),
    ("HealthService/MergeHealthReport", Reach::Machine("id")),
    ("HealthService/ReplaceHealthReport", Reach::Machine("id")),
    ("HostService/CancelHostReprovisioning", MACHINE),
    ("HostService/GetHost", MACHINE),
    ("HostService/TriggerHostReprovisioning", MACHINE),
    ("ImageService/GetImage", Reach::Shared),
    ("ImageService/ListImages", Reach::Shared),
    ("MachineService/CancelOperation", OPERATION),
    ("MachineService/DeleteMachine", MACHINE),
    ("MachineService/EnterMaintenance", MACHINE),
    ("MachineService/ExitMaintenance", MACHINE),
    ("MachineService/GetMachine", Reach::NamedMachine("machine_id")),
    ("MachineService/ListMachines", Reach::Listed),
    ("MachineService/RebootMachine", MACHINE),
    ("MachineService/ReimageMachine", MACHINE),
    ("MachineService/UpdateMachine", Reach::Machine("machine.machine_id")),
    ("MachineService/WatchMachines", Reach::Listed),
    ("NodeService/BootstrapNode", MACHINE),
    ("NodeService/DecommissionNode", NODE),
    ("NodeService/DrainNode", NODE),
    ("NodeService/GetNode", NODE),
    ("NodeService/ListNodes", Reach::Listed),
    ("NodeService/QuarantineNode", NODE),
    ("NodeService/ReactivateNode", NODE),
    ("NodeService/ReissueBootstrap", NODE),
    ("NodeService/ReleaseNode", NODE),
    ("NodeService/ResumeNode", NODE),
    ("NodeService/RetireNode", NODE),
    ("NodeService/WatchNodes", Reach::Listed),
    ("OperationService/GetOperation", OPERATION),
    ("OperationService/ListOperations", Reach::Listed),
    ("OperationService/StreamOperationLogs", OPERATION),
    ("OperationService/WatchOperations", Reach::Listed),
    ("PlanService/GetPlan", Reach::Shared),
    ("PlanService/ListPlans", Reach::Shared),
    ("PowerShelfService/GetPowerShelf", Reach::PowerShelf("power_shelf_id")),
    ("PowerShelfService/ListPowerShelves", Reach::Listed),
    ("RunService/AdoptObservedState", RUN),
    ("RunService/CancelRun", RUN),
    ("RunService/GetRun", RUN),
    ("RunService/ListRuns", Reach::Listed),
    ("RunService/MarkManual", RUN),
    ("RunService/Rerun", RUN),
    ("RunService/RestartClean", RUN),
    ("RunService/ResumeRun", RUN),
    ("RunService/RetryStep", RUN),
    ("RunService/StartRun", MACHINE),
    ("RunService/StreamRunLogs", RUN),
    ("RunService/WatchRuns", Reach::Listed),
    ("SwitchService/GetSwitch", Reach::Switch("switch_id")),
    ("SwitchService/ListSwitches", Reach::Listed),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proto::calls::Calls;
    use std::collections::BTreeSet;

    /// Every id in a request is checked: a call with a second one, or with one that no row names,
    /// fails here.
    #[test]
    fn a_row_names_the_only_object_of_its_request() {
        let calls = Calls::own();
        let mut seen = BTreeSet::new();
        for (call, reach) in REACH {
            assert!(seen.insert(call), "{call} has two rows");
            let fields = calls.request_fields.get(&format!("farrier.v1.{call}"));
            let fields = fields.unwrap_or_else(|| panic!("{call} is no call"));
            let named = fields.iter().filter(|field| field.names_an_object());
            let named: Vec<&str> = named.map(|field| field.name.as_str()).collect();
            let expected: &[&str] = match reach {
                Reach::Machine("machine.machine_id") => &[],
                Reach::Machine(field)
                | Reach::NamedMachine(field)
                | Reach::Run(field)
                | Reach::Node(field)
                | Reach::Switch(field)
                | Reach::PowerShelf(field)
                | Reach::Any(field)
                | Reach::KnownAs(field) => &[field],
                Reach::Shared | Reach::Listed => &[],
                Reach::Fleet => panic!("{call}: a row for the whole fleet is no row"),
            };
            assert_eq!(named, expected, "{call}");
        }
    }
}
