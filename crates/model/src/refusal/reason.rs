//! The reasons of refusals: the words that programs compare, as docs/api-errors.md lists them.

use super::RefusalKind;
use std::fmt;

macro_rules! reasons {
    ($($variant:ident = $word:literal, $kind:ident, $means:literal, $advice:literal;)*) => {
        /// The reason why a request was refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason { $($variant,)* }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word for programs, such as `MACHINE_BUSY`. It never changes.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            pub const fn kind(self) -> RefusalKind {
                match self { $(Self::$variant => RefusalKind::$kind,)* }
            }

            /// Meaning and remedy, in the words of docs/api-errors.md.
            pub const fn help(self) -> (&'static str, &'static str) {
                match self { $(Self::$variant => ($means, $advice),)* }
            }
        }
    };
}

reasons! {
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated,
        "the request has no token, or one that is unknown, expired or revoked; or no valid client certificate",
        "`farrier login`, or set `FARRIER_TOKEN_FILE`";
    PermissionDenied = "PERMISSION_DENIED", Denied,
        "the caller's roles do not have the permission that the request needs; the sentence names it",
        "`farrier whoami` shows your roles; an administrator grants more: `farrier role bind`";
    TokenRevoked = "TOKEN_REVOKED", Precondition,
        "the token was revoked before",
        "nothing to do";
    TokenNeeded = "TOKEN_NEEDED", Precondition,
        "a sign-in link stands for an API token, and the caller has shown a certificate or a token of the identity provider",
        "open the console itself: a browser with the certificate needs no sign-in, and the sign-in page offers the identity provider";
    RoleExists = "ROLE_EXISTS", Exists,
        "the role exists, with other permissions, or it is a built-in one",
        "use another name: `farrier role list`";
    RoleInUse = "ROLE_IN_USE", Precondition,
        "bindings give the role to somebody; the sentence names one",
        "`farrier role unbind <binding>`";
    LastAdmin = "LAST_ADMIN", Precondition,
        "without it no token with the permission admin would be valid for another 24 hours, or none at all would remain",
        "make another administrator first: `farrier token create --role admin`";
    ApprovalRequired = "APPROVAL_REQUIRED", Precondition,
        "the request is of a class that needs a second person; ErrorInfo has `approval_id` and `request_id`",
        "another person: `farrier approve <approval>`; then repeat the request with the same request id";
    ApprovalDenied = "APPROVAL_DENIED", Precondition,
        "another person has denied the approval of this request",
        "`farrier approval get <approval>`; a new request id asks again";
    ApprovalClosed = "APPROVAL_CLOSED", Precondition,
        "the approval is decided, used or expired already",
        "`farrier approval get <approval>`; repeat the request for a new one";
    SecondPersonRequired = "SECOND_PERSON_REQUIRED", Denied,
        "the requester of an approval cannot decide about it, with another token neither",
        "ask a colleague: [Approvals](operate/approvals.md)";
    TooManyApprovals = "TOO_MANY_APPROVALS", Exhausted,
        "too many requests of this user wait for an approval",
        "`farrier approval list`; deny those that are not needed: `farrier approval deny <approval>`";
    FieldMissing = "FIELD_MISSING", Invalid,
        "a required field is empty",
        "set the field named in BadRequest";
    FieldInvalid = "FIELD_INVALID", Invalid,
        "a field is malformed, too long, or names something this server does not have; also a page token or a cursor from elsewhere, and a parameter that a plan's step lacks",
        "the sentence says what is right";
    FilterInvalid = "FILTER_INVALID", Invalid,
        "the filter cannot be read",
        "see the caret, and [filters.md](filters.md)";
    OrderInvalid = "ORDER_INVALID", Invalid,
        "the list cannot be ordered like that",
        "use one of the fields in the message, and [filters.md](filters.md#order)";
    NotFound = "NOT_FOUND", NotFound,
        "no such machine, operation, plan, rack, switch, power shelf, firmware, image, credential, identity, notifier, site, node, health report or fault rule",
        "list them: `next` says how";
    WrongPhase = "WRONG_PHASE", Precondition,
        "the machine's phase does not admit this operation, or its deletion",
        "`farrier enter-maintenance <machine>`";
    MachineHasNode = "MACHINE_HAS_NODE", Precondition,
        "the machine to be deleted has a node that is not deleted; the sentence names it",
        "decommission the node first: `next` says how";
    MachineInRack = "MACHINE_IN_RACK", Precondition,
        "the machine to be deleted stands in a rack",
        "`farrier machine update <machine> --rack ''`";
    MachineBusy = "MACHINE_BUSY", Precondition,
        "another operation holds the machine; the sentence names it",
        "wait for it, or cancel it: `farrier why <op>`";
    MachineBlocked = "MACHINE_BLOCKED", Precondition,
        "the machine is flagged RMA or Retired, or an EXIT_RMA has a step that changes what is on it",
        "an administrator clears the flag; from RMA there is also `farrier machine exit-rma <machine>`";
    HealthPrevents = "HEALTH_PREVENTS", Precondition,
        "an alert on the object prevents it; the sentence names the alert and its source",
        "see [Health reports](health.md): the source removes it, or the request overrides it";
    UnfinishedDisk = "UNFINISHED_DISK", Precondition,
        "the last write to the machine's disk did not finish; the sentence names the image, the operation and the percentage",
        "install an image again, or override it: [Gates](concepts/gates.md)";
    CapabilityMissing = "CAPABILITY_MISSING", Precondition,
        "the machine's provider cannot do a step of the plan, or cannot inspect hardware",
        "choose another plan";
    ProviderMissing = "PROVIDER_MISSING", Precondition,
        "the machine's provider is not served here",
        "`farrier machine update <machine> --provider …`";
    RequestIdReused = "REQUEST_ID_REUSED", Exists,
        "the request id stands for another request on this machine, rack or power shelf; the sentence names it",
        "use a new request id";
    PlanExists = "PLAN_EXISTS", Exists,
        "the plan id stands for another plan; plans never change",
        "use a new `plan_id`";
    NotObservable = "NOT_OBSERVABLE", Precondition,
        "adopt at a step that only the agent can prove, by doing it",
        "`farrier operation retry-step <op>`";
    RunActive = "RUN_ACTIVE", Precondition,
        "retry-step, resume, adopt, rerun or restart-clean on a run that is still active",
        "wait, or cancel it first";
    AlreadyFinished = "ALREADY_FINISHED", Precondition,
        "the run has ended, and this action does not apply",
        "`next` names the action that fits";
    VersionMoved = "VERSION_MOVED", Precondition,
        "`expected_version` of an update or a deletion is not the version of the machine, rack, switch, power shelf, site, credential or firmware record",
        "read it again, then change it";
    RunSuperseded = "RUN_SUPERSEDED", Precondition,
        "a later run exists, so the steps of this one may no longer fit",
        "`farrier operation rerun <op>`";
    NoPlan = "NO_PLAN", Precondition,
        "an operation that a rack, a switch, a shelf or a node starts by itself cannot be started on a machine",
        "see `farrier plans`";
    NotFlagged = "NOT_FLAGGED", Precondition,
        "clearing a flag that is not set, or EXIT_RMA on a machine that is not flagged RMA",
        "nothing to do";
    RackExists = "RACK_EXISTS", Exists,
        "the rack exists, with another description",
        "`farrier rack update <rack>`";
    RackNotEmpty = "RACK_NOT_EMPTY", Precondition,
        "devices stand in the rack that is to be deleted",
        "remove them, or let `--override devices --reason …` remove them";
    RackEmpty = "RACK_EMPTY", Precondition,
        "the rack has no device to maintain",
        "`farrier rack get <rack>`";
    RackNotReady = "RACK_NOT_READY", Precondition,
        "the rack's state does not allow a maintenance: it needs Ready or Error, for a partial scope too",
        "`farrier why <rack>`";
    MaintenancePending = "MAINTENANCE_PENDING", Precondition,
        "another maintenance or a reprovision of the rack was accepted and has not started, also one with a machine that is to be deleted; the sentence names it",
        "wait for it, or cancel it";
    MachinesInService = "MACHINES_IN_SERVICE", Precondition,
        "machines that are in service, or held by an operation, would lose power, network, fabric or disks, or restart, or a member of a cluster would be deleted; the sentence names them",
        "drain them, or `--override in-service --reason …`; a deletion has no override: `farrier node decommission`, or drain the machine and let it leave its cluster";
    DeviceBusy = "DEVICE_BUSY", Precondition,
        "another operation holds the switch, power shelf or rack; the sentence names it",
        "wait for it, or cancel it: `farrier why <op>`";
    DeviceMoved = "DEVICE_MOVED", Precondition,
        "the operation was planned with a device that has left the rack",
        "`farrier operation rerun`";
    DeviceBlocked = "DEVICE_BLOCKED", Precondition,
        "a device in the scope is marked for deletion, or is a machine flagged RMA or Retired",
        "leave it out";
    MarkedForDeletion = "MARKED_FOR_DELETION", Precondition,
        "the power shelf is deleted as soon as no operation holds it",
        "nothing to do";
    MaintenanceRequested = "MAINTENANCE_REQUESTED", Precondition,
        "a power request is already pending on the shelf; the sentence names it",
        "wait: `farrier power-shelf get <shelf>`";
    NotInError = "NOT_IN_ERROR", Precondition,
        "a retry of a switch or power shelf that has not failed",
        "nothing to do";
    NotReady = "NOT_READY", Precondition,
        "firmware for a power shelf that is neither Ready nor in Error",
        "`farrier why <shelf>`";
    NothingPlanned = "NOTHING_PLANNED", Precondition,
        "resuming an operation on a rack that failed before it had steps",
        "`farrier operation rerun <op>`";
    NotOnARack = "NOT_ON_A_RACK", Precondition,
        "the maintenance status of an operation on something else",
        "`farrier operation get <op>`";
    NoRack = "NO_RACK", Precondition,
        "component firmware for a machine or a switch without a rack: racks upgrade them",
        "put it into a rack, or `farrier machine reprovision <machine>`";
    NoDevice = "NO_DEVICE", Precondition,
        "component firmware for a rack",
        "name its devices";
    FirmwareExists = "FIRMWARE_EXISTS", Exists,
        "the firmware id stands for another record; records never change",
        "use a new id";
    FirmwareIsDefault = "FIRMWARE_IS_DEFAULT", Precondition,
        "the record to be deleted is the default of its hardware type",
        "`farrier firmware set-default <another>`";
    FirmwareInUse = "FIRMWARE_IN_USE", Precondition,
        "the record to be deleted is being installed; the sentence names the operation",
        "wait for it";
    FirmwareUnavailable = "FIRMWARE_UNAVAILABLE", Precondition,
        "no firmware for the device: the record is not available, or the hardware type of its rack has no default",
        "name another with `--target-version`";
    FirmwareEmpty = "FIRMWARE_EMPTY", Precondition,
        "the record has nothing for a device of this kind",
        "name another";
    ReprovisionUnderWay = "REPROVISION_UNDER_WAY", Precondition,
        "the firmware of the machine is already being reprovisioned, or the machine is to be deleted and a request for it is pending",
        "`farrier why <machine>`";
    ReprovisionOfRack = "REPROVISION_OF_RACK", Precondition,
        "the firmware of the machine is upgraded by an operation of its rack",
        "cancel that operation";
    NodeExists = "NODE_EXISTS", Exists,
        "the machine has a node already",
        "`farrier why <node>`";
    NodeTransition = "NODE_TRANSITION", Precondition,
        "the node's state has no such transition, or another component owns it",
        "`farrier why <node>`";
    NodeState = "NODE_STATE", Precondition,
        "the request needs a node in another state; the sentence says in which",
        "`farrier why <node>`";
    NodeBusy = "NODE_BUSY", Precondition,
        "an operation works on the node",
        "wait, or cancel it: `farrier why <op>`";
    NodeDeleted = "NODE_DELETED", Precondition,
        "the node is deleted",
        "onboard its machine as a new node";
    NodeUnproven = "NODE_UNPROVEN", Precondition,
        "a quarantined node is to be released without proof that it is healthy; or a retired one is to serve again and was not fully cleaned",
        "inspect it, or `--override node-health` or `--override cleanup`, as the sentence names it";
    NodeNotInstalled = "NODE_NOT_INSTALLED", Precondition,
        "a retired node is to serve again, and MAAS has nothing installed on its machine",
        "`farrier node decommission <node> --mode reimage`";
    NodeUnmanaged = "NODE_UNMANAGED", Precondition,
        "the node belongs to no site, so there is no MAAS to do it",
        "`--mode soft_reset`";
    NodeMovedOn = "NODE_MOVED_ON", Precondition,
        "an operation is to continue, and its node is in another state now",
        "`farrier why <node>`";
    NothingToResume = "NOTHING_TO_RESUME", Precondition,
        "there is nothing to resume on the node",
        "nothing to do";
    SiteExists = "SITE_EXISTS", Exists,
        "the site exists, with other settings",
        "`farrier site update <site>`";
    SiteInUse = "SITE_IN_USE", Precondition,
        "nodes belong to the site",
        "decommission them first: `farrier node list --site <site>`";
    AgentsOff = "AGENTS_OFF", Precondition,
        "a bundle is requested, and the server has no address for agents",
        "set `nodes.listen` or `nodes.url` in its configuration";
    CredentialExists = "CREDENTIAL_EXISTS", Exists,
        "a credential to be created exists",
        "`farrier credential update <name>`; `farrier credential set <name>` takes both";
    SealKeyMissing = "SEAL_KEY_MISSING", Precondition,
        "a replica does not have the master key that secrets are to be sealed under",
        "give it to the replicas and start them again: `farrier admin replicas`";
    NotifierExists = "NOTIFIER_EXISTS", Exists,
        "the notifier exists, with other settings",
        "`farrier notify update <notifier>`";
    TooManyNotifiers = "TOO_MANY_NOTIFIERS", Exhausted,
        "the installation has as many notifiers as it may have",
        "delete one that is not needed: `farrier notify list`";
    IdentityExists = "IDENTITY_EXISTS", Exists,
        "another identity is pinned for the address",
        "compare the two, then `farrier trust update <address> <identity>`";
    ImageExists = "IMAGE_EXISTS", Exists,
        "the name stands for another image; images never change",
        "create it under a new name";
    RowReadable = "ROW_READABLE", Precondition,
        "the row to be set aside can be read",
        "nothing is wrong with it: `farrier db check`";
    RowPlaceTaken = "ROW_PLACE_TAKEN", Precondition,
        "the row cannot be put back, because another object has its place",
        "delete the other object first: `farrier why <id>`";
    ImageInUse = "IMAGE_IN_USE", Precondition,
        "the image to be deleted is being installed",
        "wait: `farrier operation list --filter phase=RUNNING`";
    MacInUse = "MAC_IN_USE", Precondition,
        "another machine with the same MAC address is being deployed",
        "one of the two has a wrong MAC address";
    NetbootOff = "NETBOOT_OFF", Precondition,
        "the server has no netboot service",
        "set `netboot.listen` in its configuration";
    NoRoom = "NO_ROOM", Exhausted,
        "the server cannot store the file of an image: the quota or the reserve of its images folder",
        "`farrier image delete <name>`, or raise `netboot.images_quota_gib`";
    NoBmcDiscovery = "NO_BMC_DISCOVERY", Precondition,
        "no provider of this server finds BMCs",
        "serve one that does";
    AmbiguousName = "AMBIGUOUS_NAME", Invalid,
        "the name fits several objects",
        "use one of the ids in the message";
    LogCleared = "LOG_CLEARED", Gone,
        "the BMC's log was cleared between two pages",
        "read it from the beginning";
    CursorGone = "CURSOR_GONE", Gone,
        "a watch resumes from a cursor whose later events were deleted, or from after a restored backup: it would miss events",
        "watch again without a cursor and without `skip_ended`; the snapshot has the current state";
    TooManyFaults = "TOO_MANY_FAULTS", Precondition,
        "the simulator has 256 fault rules",
        "`farrier sim fault delete --all`";
    SimulatorMemory = "SIMULATOR_MEMORY", Precondition,
        "the simulator cannot read or write its files",
        "see the server's disk";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
