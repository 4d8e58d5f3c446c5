//! The permissions of each call of the API. A call without a row is denied, and fails the tests.

use super::reach::{Reach, reach_of};
use engine::access::Caller;
use model::access::Permission;
#[cfg(test)]
use model::access::PermissionSet;
use model::refusal::Refusal;
use proto::calls::Calls;
use std::collections::HashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// The call needs no caller.
    Nothing,
    /// Any authenticated caller.
    Caller,
    One(Permission),
    /// One of the permissions that runs need. Admission checks which: it knows the steps.
    OfRun,
}

/// The permissions of which a run needs at least one.
pub(super) const OF_RUNS: [Permission; 5] = [
    Permission::Operate,
    Permission::Destroy,
    Permission::Power,
    Permission::Firmware,
    Permission::Execute,
];

impl Needs {
    /// Checks the rights of a caller. Those for a part of the fleet count only where the objects of
    /// the call are checked later.
    pub fn check(self, caller: &Caller, reach: Reach) -> Result<(), Refusal> {
        let (granted, what) = (caller.grants().everywhere, "this request");
        let require = |permission| match reach {
            Reach::Fleet => caller.require(permission, what),
            Reach::Shared
            | Reach::Listed
            | Reach::Machine(_)
            | Reach::NamedMachine(_)
            | Reach::Run(_)
            | Reach::Node(_)
            | Reach::Switch(_)
            | Reach::PowerShelf(_)
            | Reach::Any(_)
            | Reach::KnownAs(_) => caller.require_somewhere(permission, what),
        };
        match self {
            Self::Nothing | Self::Caller => Ok(()),
            Self::One(permission) => require(permission),
            Self::OfRun if granted.intersects(self.one_of()) => Ok(()),
            // Any of them will do; the refusal names the first.
            Self::OfRun if OF_RUNS.iter().any(|one| require(*one).is_ok()) => Ok(()),
            Self::OfRun => require(Permission::Operate),
        }
    }

    /// True if a caller with these permissions may make the call, as far as this layer decides.
    #[cfg(test)]
    fn allows(self, granted: PermissionSet) -> bool {
        match self {
            Self::Nothing | Self::Caller => true,
            Self::One(permission) => granted.contains(permission),
            Self::OfRun => OF_RUNS.iter().any(|one| granted.contains(*one)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallRule {
    pub needs: Needs,
    pub streams: bool,
    /// The call may change something, so it is in the audit log.
    pub acts: bool,
    pub reach: Reach,
}

/// The rules by path.
pub(super) struct CallRules(HashMap<String, CallRule>);

impl CallRules {
    pub fn new() -> Self {
        let calls = Calls::own();
        let own = TABLE.iter().flat_map(|(service, rows)| {
            rows.iter()
                .map(move |(method, needs)| (format!("farrier.v1.{service}/{method}"), needs))
        });
        let own = own.map(|(name, needs)| {
            let streams = calls.streaming.contains(&name);
            let acts = calls.acting.contains(&name);
            let reach = reach_of(name.trim_start_matches("farrier.v1."));
            (format!("/{name}"), CallRule { needs: *needs, streams, acts, reach })
        });
        let other = OTHER.iter().map(|(name, needs)| {
            let (streams, reach) = (*needs == VIEW, Reach::Shared);
            (format!("/{name}"), CallRule { needs: *needs, streams, acts: false, reach })
        });
        Self(own.chain(other).collect())
    }

    pub fn get(&self, path: &str) -> Option<CallRule> {
        self.0.get(path).copied()
    }
}

const OTHER: [(&str, Needs); 4] = [
    ("grpc.health.v1.Health/Check", Needs::Nothing),
    // Its streams stay open: without a caller they could take the place of other clients.
    ("grpc.health.v1.Health/Watch", VIEW),
    ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Needs::Caller),
    ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Needs::Caller),
];

type Rows = &'static [(&'static str, Needs)];

const VIEW: Needs = Needs::One(Permission::View);
const OPERATE: Needs = Needs::One(Permission::Operate);
const INVENTORY: Needs = Needs::One(Permission::Inventory);
const DESTROY: Needs = Needs::One(Permission::Destroy);
const POWER: Needs = Needs::One(Permission::Power);
const FIRMWARE: Needs = Needs::One(Permission::Firmware);
const EXECUTE: Needs = Needs::One(Permission::Execute);
const TRUST: Needs = Needs::One(Permission::Trust);
const USE_CREDENTIAL: Needs = Needs::One(Permission::CredentialUse);
const WRITE_CREDENTIAL: Needs = Needs::One(Permission::CredentialWrite);
const SIMULATE: Needs = Needs::One(Permission::Simulate);
const ADMIN: Needs = Needs::One(Permission::Admin);

const TABLE: &[(&str, Rows)] = &[
    (
        "AccessService",
        &[
            ("GetCaller", Needs::Caller),
            ("CreateSignInLink", VIEW),
            ("CreateToken", ADMIN),
            ("ListTokens", ADMIN),
            ("RevokeToken", ADMIN),
            ("ListRoles", VIEW),
            ("CreateRole", ADMIN),
            ("DeleteRole", ADMIN),
            ("ListRoleBindings", ADMIN),
            ("CreateRoleBinding", ADMIN),
            ("DeleteRoleBinding", ADMIN),
        ],
    ),
    (
        "AdminService",
        &[
            ("SetRma", ADMIN),
            ("ClearRma", ADMIN),
            ("SetRetired", ADMIN),
            ("ClearRetired", ADMIN),
            ("ClearNeedsIntervention", OPERATE),
            ("ListReplicas", VIEW),
            ("CheckDatabase", ADMIN),
            ("SetAsideRow", ADMIN),
            ("PutBackRow", ADMIN),
            ("RotateSecrets", ADMIN),
        ],
    ),
    (
        "ApprovalService",
        &[
            ("ListApprovals", VIEW),
            ("GetApproval", VIEW),
            ("GrantApproval", Needs::OfRun),
            ("DenyApproval", Needs::OfRun),
            ("GetApprovalPolicy", VIEW),
            ("UpdateApprovalPolicy", ADMIN),
        ],
    ),
    ("AuditService", &[("ListAuditEntries", ADMIN), ("GetAuditStatus", ADMIN)]),
    ("ClusterService", &[("CheckCluster", OPERATE), ("PreviewDrain", VIEW)]),
    (
        "ComponentService",
        &[
            ("UpdateComponentFirmware", FIRMWARE),
            ("GetComponentFirmwareStatus", VIEW),
            ("ListComponentFirmwareVersions", VIEW),
        ],
    ),
    (
        "CredentialService",
        &[
            ("CreateCredential", WRITE_CREDENTIAL),
            ("GetCredential", VIEW),
            ("ListCredentials", VIEW),
            ("UpdateCredential", WRITE_CREDENTIAL),
            ("DeleteCredential", WRITE_CREDENTIAL),
            ("CreateIdentity", TRUST),
            ("GetIdentity", VIEW),
            ("ListIdentities", VIEW),
            ("UpdateIdentity", TRUST),
            ("DeleteIdentity", TRUST),
        ],
    ),
    (
        "ExplainService",
        &[
            ("Explain", VIEW),
            ("ListAttention", VIEW),
            ("ListHistory", VIEW),
            ("GetFaultPage", VIEW),
        ],
    ),
    (
        "FirmwareService",
        &[
            ("CreateFirmware", FIRMWARE),
            ("GetFirmware", VIEW),
            ("ListFirmware", VIEW),
            ("UpdateFirmware", FIRMWARE),
            ("DeleteFirmware", FIRMWARE),
            ("ListFirmwareHistory", VIEW),
        ],
    ),
    (
        "HardwareService",
        &[
            ("InspectMachine", OPERATE),
            ("GetConsoleLog", VIEW),
            ("GetPower", VIEW),
            ("TestBmc", USE_CREDENTIAL),
            ("UnlockBmc", USE_CREDENTIAL),
            ("Discover", USE_CREDENTIAL),
        ],
    ),
    (
        "HealthService",
        &[
            ("GetHealth", VIEW),
            ("ListHealth", VIEW),
            ("MergeHealthReport", OPERATE),
            ("ReplaceHealthReport", OPERATE),
            ("DeleteHealthReport", OPERATE),
        ],
    ),
    (
        "HostService",
        &[
            ("TriggerHostReprovisioning", FIRMWARE),
            ("CancelHostReprovisioning", FIRMWARE),
            ("GetHost", VIEW),
        ],
    ),
    (
        "ImageService",
        &[
            ("UploadArtifact", EXECUTE),
            ("CreateImage", EXECUTE),
            ("GetImage", VIEW),
            ("ListImages", VIEW),
            ("DeleteImage", EXECUTE),
            ("GetNetbootConfig", VIEW),
        ],
    ),
    (
        "MachineService",
        &[
            ("RegisterMachine", INVENTORY),
            ("RegisterMachines", INVENTORY),
            ("GetMachine", VIEW),
            ("ListMachines", VIEW),
            ("UpdateMachine", INVENTORY),
            ("DeleteMachine", INVENTORY),
            ("WatchMachines", VIEW),
            ("RebootMachine", OPERATE),
            ("ReimageMachine", DESTROY),
            ("EnterMaintenance", OPERATE),
            ("ExitMaintenance", OPERATE),
            ("CancelOperation", Needs::OfRun),
        ],
    ),
    (
        "NodeService",
        &[
            ("OnboardNode", DESTROY),
            ("DecommissionNode", DESTROY),
            ("DrainNode", OPERATE),
            ("RetireNode", OPERATE),
            ("ReactivateNode", OPERATE),
            ("QuarantineNode", OPERATE),
            ("ReleaseNode", OPERATE),
            ("ResumeNode", OPERATE),
            ("BootstrapNode", TRUST),
            ("ReissueBootstrap", TRUST),
            ("GetNode", VIEW),
            ("ListNodes", VIEW),
            ("WatchNodes", VIEW),
        ],
    ),
    (
        "NotifierService",
        &[
            // A notifier sends facts about the whole fleet to wherever it says.
            ("CreateNotifier", ADMIN),
            ("GetNotifier", VIEW),
            ("ListNotifiers", VIEW),
            ("UpdateNotifier", ADMIN),
            ("DeleteNotifier", ADMIN),
            ("PauseNotifier", ADMIN),
            ("ResumeNotifier", ADMIN),
            ("TestNotifier", USE_CREDENTIAL),
            ("ListDeadLetters", VIEW),
            ("ReplayDeadLetters", ADMIN),
            ("DeleteDeadLetters", ADMIN),
        ],
    ),
    (
        "OperationService",
        &[
            ("GetOperation", VIEW),
            ("ListOperations", VIEW),
            ("WatchOperations", VIEW),
            ("StreamOperationLogs", VIEW),
        ],
    ),
    ("PlanService", &[("GetPlan", VIEW), ("ListPlans", VIEW), ("CreatePlan", EXECUTE)]),
    (
        "PowerShelfService",
        &[
            ("RegisterPowerShelf", INVENTORY),
            ("GetPowerShelf", VIEW),
            ("ListPowerShelves", VIEW),
            ("UpdatePowerShelf", INVENTORY),
            ("DeletePowerShelf", INVENTORY),
            ("RetryPowerShelf", POWER),
            ("SetPowerShelfMaintenance", POWER),
            ("PreviewPowerShelfMaintenance", VIEW),
        ],
    ),
    (
        "RackService",
        &[
            ("CreateRack", INVENTORY),
            ("GetRack", VIEW),
            ("ListRacks", VIEW),
            ("UpdateRack", INVENTORY),
            ("DeleteRack", INVENTORY),
            ("WatchRacks", VIEW),
            ("OnDemandRackMaintenance", POWER),
            ("ReprovisionRack", POWER),
            ("GetRackMaintenanceStatus", VIEW),
        ],
    ),
    (
        "RunService",
        &[
            ("StartRun", Needs::OfRun),
            ("GetRun", VIEW),
            ("ListRuns", VIEW),
            ("CancelRun", Needs::OfRun),
            ("WatchRuns", VIEW),
            ("StreamRunLogs", VIEW),
            ("RetryStep", Needs::OfRun),
            ("ResumeRun", Needs::OfRun),
            ("Rerun", Needs::OfRun),
            ("RestartClean", Needs::OfRun),
            ("AdoptObservedState", Needs::OfRun),
            ("MarkManual", Needs::OfRun),
        ],
    ),
    (
        "SimulatorService",
        &[
            ("CreateFault", SIMULATE),
            ("ListFaults", VIEW),
            ("DeleteFaults", SIMULATE),
            ("ListEffects", VIEW),
        ],
    ),
    (
        "SiteService",
        &[
            ("CreateSite", INVENTORY),
            ("GetSite", VIEW),
            ("ListSites", VIEW),
            ("UpdateSite", INVENTORY),
            ("DeleteSite", INVENTORY),
            ("CheckSite", OPERATE),
        ],
    ),
    (
        "SwitchService",
        &[
            ("RegisterSwitch", INVENTORY),
            ("GetSwitch", VIEW),
            ("ListSwitches", VIEW),
            ("UpdateSwitch", INVENTORY),
            ("DeleteSwitch", INVENTORY),
            ("RetrySwitch", POWER),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_call_has_one_row() {
        let rows: Vec<String> = TABLE
            .iter()
            .flat_map(|(service, rows)| {
                rows.iter().map(move |(method, _)| format!("farrier.v1.{service}/{method}"))
            })
            .collect();
        let unique: BTreeSet<String> = rows.iter().cloned().collect();
        assert_eq!(unique.len(), rows.len(), "a call has two rows");
        assert_eq!(unique, Calls::own().all);
    }

    #[test]
    fn a_call_that_acts_needs_more_than_view() {
        let rules = CallRules::new();
        // The link signs in the caller, and no one else.
        let exceptions = ["farrier.v1.AccessService/CreateSignInLink"];
        let viewer = PermissionSet::from(Permission::View);
        for call in Calls::own().acting {
            let rule = rules.get(&format!("/{call}")).unwrap();
            let expected = exceptions.contains(&call.as_str());
            assert_eq!(rule.needs.allows(viewer), expected, "{call}");
        }
        for (_, rows) in TABLE {
            for (method, needs) in *rows {
                assert!(!needs.allows(PermissionSet::EMPTY) || *method == "GetCaller", "{method}");
                assert!(needs.allows(PermissionSet::ALL), "{method}");
            }
        }
    }
}
