"""Makes every call of the API at least once, with messages that reflection describes.

The list of calls comes from the server's descriptors: a call that this client does not make fails it.
"""

import itertools
import sys

import grpc
from foreign_client import TIMEOUT_SECONDS, Server, check, finished, word
from google.protobuf import message_factory

PACKAGE = "farrier.v1."
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class Caller:
    """Records which calls were made."""

    def __init__(self, address):
        self.server = Server(address)
        self.made = set()
        self.numbers = itertools.count(1)

    def request_id(self):
        return f"every-{next(self.numbers)}"

    def ok(self, call, **fields):
        """The answer of a call: one message, or the first one of a stream."""
        service, method = call.split(".")
        self.made.add(call)
        answer = self.server.farrier(service, method, **fields)
        if isinstance(answer, grpc.Call) and hasattr(answer, "__next__"):
            first = next(answer, None)
            answer.cancel()
            return first
        return answer

    def refused(self, call, code, **fields):
        try:
            self.ok(call, **fields)
        except grpc.RpcError as error:
            check(f"{call} is refused", error.code(), getattr(grpc.StatusCode, code))
            return
        raise AssertionError(f"{call} was not refused")

    def upload(self, data):
        """The one call that sends a stream."""
        self.made.add("Image.UploadArtifact")
        found = self.server.pool.FindServiceByName(PACKAGE + "ImageService")
        method = found.FindMethodByName("UploadArtifact")
        request = message_factory.GetMessageClass(method.input_type)
        stub = self.server.channel.stream_unary(
            f"/{PACKAGE}ImageService/UploadArtifact",
            request_serializer=request.SerializeToString,
            response_deserializer=message_factory.GetMessageClass(
                method.output_type
            ).FromString,
        )
        return stub(iter([request(data=data, size=len(data))]), timeout=TIMEOUT_SECONDS)

    def end(self, operation_id):
        ended = finished(self.server, operation_id)
        return word(ended, "phase")

    def every_call(self):
        calls = set()
        for name in self.server.services():
            if not name.startswith(PACKAGE):
                continue
            service = self.server.pool.FindServiceByName(name)
            short = name[len(PACKAGE) :].removesuffix("Service")
            calls |= {f"{short}.{method.name}" for method in service.methods}
        return calls


def machines(caller):
    for name in ("m-1", "m-2", "m-3", "gpu-1", "gpu-2"):
        caller.ok("Machine.RegisterMachine", machine={"machine_id": name, "spec": {"provider": "sim"}})
    caller.ok("Machine.RegisterMachines", machines=[{"machine_id": "m-1"}], only_new=True)
    caller.ok("Machine.GetMachine", machine_id="m-1")
    caller.ok("Machine.ListMachines", filter="phase=FACTORY_READY", order_by="created_at desc")
    caller.ok("Machine.WatchMachines")
    update = {"machine_id": "m-1", "labels": {"env": "test"}}
    caller.ok("Machine.UpdateMachine", machine=update)
    caller.ok("Machine.DeleteMachine", machine_id="m-3")
    for call, fields in (
        ("EnterMaintenance", {}),
        ("ReimageMachine", {"image_ref": "ubuntu-2204"}),
        ("RebootMachine", {}),
        ("ExitMaintenance", {}),
    ):
        fields |= {"machine_id": "m-1", "request_id": caller.request_id()}
        operation = caller.ok(f"Machine.{call}", **fields)
        check(call, caller.end(operation.operation_id), "SUCCEEDED")


def operations(caller):
    caller.ok("Operation.ListOperations", order_by="finished_at")
    caller.ok("Operation.WatchOperations")
    run = caller.ok(
        "Run.StartRun", machine_id="m-1", type="REBOOT", request_id=caller.request_id()
    )
    caller.refused("Run.StartRun", "FAILED_PRECONDITION", machine_id="m-1", type="RMA",
                   request_id=caller.request_id())
    caller.end(run.run_id)
    caller.ok("Operation.GetOperation", operation_id=run.run_id)
    caller.ok("Operation.StreamOperationLogs", operation_id=run.run_id, no_follow=True)
    caller.ok("Run.GetRun", run_id=run.run_id)
    caller.ok("Run.ListRuns", filter="machine_id=m-1")
    caller.ok("Run.WatchRuns")
    caller.ok("Run.StreamRunLogs", run_id=run.run_id, no_follow=True)
    ended = [
        "Machine.CancelOperation", "Run.CancelRun", "Run.RetryStep", "Run.ResumeRun",
        "Run.AdoptObservedState", "Run.MarkManual",
    ]
    for call in ended:
        field = "operation_id" if call.startswith("Machine") else "run_id"
        caller.refused(call, "FAILED_PRECONDITION", **{field: run.run_id, "reason": "a test"})
    for call in ("Run.Rerun", "Run.RestartClean"):
        again = caller.ok(call, run_id=run.run_id, request_id=caller.request_id())
        check(call, caller.end(again.run_id), "SUCCEEDED")
    caller.ok("Plan.ListPlans")
    plan = caller.ok("Plan.GetPlan", plan_id="plan-reboot-v1")
    own = {"plan_id": "plan-own-v1", "display_name": "Own", "steps": list(plan.steps)}
    caller.ok("Plan.CreatePlan", plan=own)
    caller.ok("Explain.Explain", id="m-1")
    caller.ok("Explain.ListAttention")
    caller.ok("Explain.ListHistory", id="m-1", filter="cause=request", order_by="ts desc")
    caller.ok("Explain.GetFaultPage", code="bmc-unreachable")


def administration(caller):
    reason = {"machine_id": "m-2", "reason": "a test"}
    caller.ok("Admin.SetRma", **reason)
    caller.ok("Admin.ClearRma", **reason)
    caller.ok("Admin.SetRetired", **reason)
    caller.ok("Admin.ClearRetired", **reason)
    caller.refused("Admin.ClearNeedsIntervention", "FAILED_PRECONDITION", **reason)
    caller.ok("Admin.ListReplicas", filter="version!=0")
    assert caller.ok("Admin.CheckDatabase").rows_checked > 0
    row = {"kind": "ROW_KIND_MACHINE", "id": "m-2", "reason": "a test"}
    caller.refused("Admin.SetAsideRow", "FAILED_PRECONDITION", **row)
    caller.refused("Admin.PutBackRow", "NOT_FOUND", **row)
    alert = {"id": "hot", "message": "too hot"}
    report = {"id": "m-2", "source": "monitor"}
    caller.ok("Health.MergeHealthReport", alerts=[alert], **report)
    caller.ok("Health.ReplaceHealthReport", alerts=[alert], **report)
    caller.ok("Health.GetHealth", id="m-2")
    caller.ok("Health.ListHealth", filter="source=monitor")
    caller.ok("Health.DeleteHealthReport", **report)
    secret = {"password": {"user": "root", "password": "secret"}}
    created = caller.ok("Credential.CreateCredential", name="bmc", secret=secret)
    caller.refused("Credential.CreateCredential", "ALREADY_EXISTS", name="bmc", secret=secret)
    caller.ok("Credential.GetCredential", name="bmc")
    caller.ok("Credential.ListCredentials", filter="kind=password")
    version = {"expected_version": created.version}
    caller.ok("Credential.UpdateCredential", name="bmc", secret=secret, **version)
    assert caller.ok("Admin.RotateSecrets").resealed == 1
    caller.refused("Credential.UpdateCredential", "NOT_FOUND", name="host", secret=secret)
    caller.ok("Credential.UpdateCredential", name="host", secret=secret, allow_missing=True)
    caller.refused("Credential.DeleteCredential", "FAILED_PRECONDITION", name="bmc", **version)
    caller.ok("Credential.DeleteCredential", name="bmc")
    pin = {"peer": "https://10.0.0.5", "identity": SHA256}
    caller.refused("Credential.UpdateIdentity", "NOT_FOUND", **pin)
    caller.ok("Credential.CreateIdentity", **pin)
    caller.ok("Credential.UpdateIdentity", **pin)
    caller.ok("Credential.GetIdentity", peer=pin["peer"])
    caller.ok("Credential.ListIdentities", filter="peer=https://10.0.0.5")
    deleted = caller.ok("Credential.DeleteIdentity", peer=pin["peer"])
    check("the deleted identity", deleted.peer, pin["peer"])


def clusters(caller):
    report = caller.ok("Cluster.CheckCluster", name="cluster-a")
    check("a cluster without a credential", report.usable, False)
    preview = caller.ok("Cluster.PreviewDrain", machine_id="m-1", options={"emptydir": True})
    check("a simulated machine", preview.cluster, "")


def hardware(caller):
    caller.ok("Hardware.GetPower", machine_id="m-1")
    for call in ("InspectMachine", "GetConsoleLog"):
        try:
            caller.ok(f"Hardware.{call}", machine_id="m-1")
        except grpc.RpcError as error:
            check(call, error.code(), grpc.StatusCode.FAILED_PRECONDITION)
    for call, fields in (
        ("TestBmc", {"endpoint": "https://127.0.0.1:9"}),
        ("UnlockBmc", {"endpoint": "https://127.0.0.1:9"}),
        ("Discover", {"addresses": ["127.0.0.1"]}),
    ):
        try:
            caller.ok(f"Hardware.{call}", **fields)
        except grpc.RpcError as error:
            check(call, error.code(), grpc.StatusCode.FAILED_PRECONDITION)
    caller.ok("Host.GetHost", machine_id="m-1")
    trigger = {"machine_id": "m-1", "request_id": caller.request_id(), "dry_run": True}
    for call, fields in (
        ("TriggerHostReprovisioning", trigger),
        ("CancelHostReprovisioning", {"machine_id": "m-1"}),
    ):
        try:
            caller.ok(f"Host.{call}", **fields)
        except grpc.RpcError as error:
            check(call, error.code(), grpc.StatusCode.FAILED_PRECONDITION)


def images(caller):
    file = caller.upload(b"an image\n")
    image = {"name": "own", "kind": 1, "file": {"sha256": file.sha256}}
    caller.ok("Image.CreateImage", image=image)
    caller.ok("Image.GetImage", name="own")
    caller.ok("Image.ListImages", filter="kind!=iso")
    caller.ok("Image.DeleteImage", name="own")
    try:
        caller.ok("Image.GetNetbootConfig")
    except grpc.RpcError as error:
        check("GetNetbootConfig", error.code(), grpc.StatusCode.FAILED_PRECONDITION)


def racks(caller):
    caller.ok("Rack.CreateRack", rack={"rack_id": "rack-1", "hardware_type": "gb200"})
    shelf = {"power_shelf_id": "ps-1", "spec": {"rack_id": "rack-1", "provider": "sim"}}
    caller.ok("PowerShelf.RegisterPowerShelf", power_shelf=shelf)
    caller.ok("PowerShelf.UpdatePowerShelf", power_shelf=shelf)
    caller.ok("PowerShelf.GetPowerShelf", power_shelf_id="ps-1")
    caller.ok("PowerShelf.ListPowerShelves")
    switch = {"switch_id": "sw-1", "spec": {"rack_id": "rack-1", "provider": "sim"}}
    caller.ok("Switch.RegisterSwitch", switch=switch)
    caller.ok("Switch.UpdateSwitch", switch=switch)
    caller.ok("Switch.GetSwitch", switch_id="sw-1")
    caller.ok("Switch.ListSwitches")
    caller.ok("Rack.GetRack", rack_id="rack-1")
    caller.ok("Rack.ListRacks")
    caller.ok("Rack.WatchRacks")
    caller.ok("Rack.UpdateRack", rack={"rack_id": "rack-1", "hardware_type": "gb200"})
    firmware(caller)
    maintenance = {"rack_id": {"id": "rack-1"}, "dry_run": True}
    caller.ok("Rack.OnDemandRackMaintenance", **maintenance)
    caller.ok("Rack.ReprovisionRack", rack_id="rack-1", dry_run=True)
    caller.ok("Rack.GetRackMaintenanceStatus", id="rack-1")
    power = {"power_shelf_ids": [{"id": "ps-1"}], "operation": 1, "dry_run": True}
    caller.ok("PowerShelf.PreviewPowerShelfMaintenance", **power)
    try:
        caller.ok("PowerShelf.SetPowerShelfMaintenance", **power)
    except grpc.RpcError as error:
        check("SetPowerShelfMaintenance", error.code(), grpc.StatusCode.FAILED_PRECONDITION)
    caller.refused("PowerShelf.RetryPowerShelf", "FAILED_PRECONDITION", power_shelf_id="ps-1")
    caller.refused("Switch.RetrySwitch", "FAILED_PRECONDITION", switch_id="sw-1")
    caller.ok("PowerShelf.DeletePowerShelf", power_shelf_id="ps-1", dry_run=True)
    caller.ok("Switch.DeleteSwitch", switch_id="sw-1", dry_run=True)
    # Devices that an operation may still hold stand in rack-1.
    caller.ok("Rack.CreateRack", rack={"rack_id": "rack-9"})
    devices = {"gates": ["devices"], "reason": "a test"}
    caller.ok("Rack.DeleteRack", rack_id="rack-9", gate_override=devices, dry_run=True)


def firmware(caller):
    component = {
        "device_type": 3, "name": "PSU", "version": "2", "sha256": SHA256,
        "url": "https://files.example/psu.bin",
    }
    record = {"firmware_id": "fw-1", "hardware_type": "gb200", "components": [component]}
    caller.ok("Firmware.CreateFirmware", firmware=record)
    caller.ok("Firmware.GetFirmware", firmware_id="fw-1")
    caller.ok("Firmware.ListFirmware", filter="hardware_type=gb200")
    flags = {"firmware_id": "fw-1", "is_default": True, "available": True}
    updated = caller.ok("Firmware.UpdateFirmware", firmware=flags)
    check("the default", updated.is_default, True)
    caller.ok(
        "Firmware.UpdateFirmware", firmware=flags, update_mask={"paths": ["available"]},
        expected_version=updated.version,
    )
    caller.refused("Firmware.UpdateFirmware", "INVALID_ARGUMENT", firmware=flags,
                   update_mask={"paths": ["description"]})
    caller.ok("Firmware.ListFirmwareHistory", filter="changed=true", order_by="at")
    caller.refused("Firmware.DeleteFirmware", "FAILED_PRECONDITION", firmware_id="fw-1")
    shelves = {"power_shelves": {"power_shelf_ids": ["ps-1"]}}
    # As documented, without a request id: the server generates one and returns it.
    updated = caller.ok("Component.UpdateComponentFirmware", **shelves)
    assert updated.request_id.startswith("req-"), updated
    again = caller.ok(
        "Component.UpdateComponentFirmware", request_id=updated.request_id, **shelves
    )
    operations = [answer.results[0].operation_id for answer in (updated, again)]
    check("the repeated request", operations[1], operations[0])
    caller.ok("Component.GetComponentFirmwareStatus", **shelves)
    caller.ok("Component.ListComponentFirmwareVersions", filter="device_type=power_shelf", **shelves)


def nodes(caller):
    site = {"site_id": "site-a", "spec": {"provider": "sim"}}
    caller.ok("Site.CreateSite", site=site)
    caller.ok("Site.UpdateSite", site=site)
    caller.ok("Site.GetSite", site_id="site-a")
    caller.ok("Site.ListSites")
    caller.ok("Site.CheckSite", site_id="site-a")
    onboard = {"machine_id": "gpu-1", "site_id": "site-a"}
    onboarded = caller.ok("Node.OnboardNode", request_id=caller.request_id(), **onboard)
    node = onboarded.node.node_id
    caller.ok("Node.GetNode", node_id=node)
    caller.ok("Node.ListNodes")
    caller.ok("Node.WatchNodes")
    caller.end(onboarded.run.run_id)
    dry = {"node_id": node, "request_id": caller.request_id(), "dry_run": True}
    for call, fields in (
        ("DrainNode", dry),
        ("RetireNode", dry),
        ("DecommissionNode", {"mode": 1, **dry}),
        ("ResumeNode", {"node_id": node}),
        ("ReactivateNode", {"node_id": node, "reason": "a test"}),
        ("QuarantineNode", {"node_id": node, "reason": "a test"}),
        ("ReleaseNode", {"node_id": node, "reason": "a test"}),
        ("BootstrapNode", {"machine_id": "gpu-2"}),
        ("ReissueBootstrap", {"node_id": node}),
    ):
        try:
            caller.ok(f"Node.{call}", **fields)
        except grpc.RpcError as error:
            check(call, error.code(), grpc.StatusCode.FAILED_PRECONDITION)
    caller.refused("Site.DeleteSite", "FAILED_PRECONDITION", site_id="site-a")


def simulator(caller):
    fault = caller.ok("Simulator.CreateFault", fault={"machine": "m-*", "action": 1})
    caller.ok("Simulator.ListFaults", filter="action=fail", page_size=1)
    caller.ok("Simulator.DeleteFaults", fault_id=fault.fault_id)
    caller.ok("Simulator.ListEffects", filter="machine=m-1", page_size=1)


def approvals(caller):
    caller.ok("Approval.UpdateApprovalPolicy", permissions=[4], lifetime_seconds=600)
    assert caller.ok("Approval.GetApprovalPolicy").lifetime_seconds == 600
    assert not caller.ok("Approval.ListApprovals", include_closed=True, page_size=1).approvals
    unknown = "apr-01m7q5d4h1z9w8e0a2b3"
    caller.refused("Approval.GetApproval", "NOT_FOUND", approval_id=unknown)
    caller.refused("Approval.GrantApproval", "NOT_FOUND", approval_id=unknown)
    caller.refused("Approval.DenyApproval", "NOT_FOUND", approval_id=unknown)
    caller.ok("Approval.UpdateApprovalPolicy")


def notifiers(caller):
    hook = {"name": "hook", "url": "http://127.0.0.1:1/in", "credential": "x", "kinds": [1, 2]}
    caller.ok("Notifier.CreateNotifier", notifier=hook)
    assert caller.ok("Notifier.GetNotifier", name="hook").max_attempts == 12
    assert caller.ok("Notifier.UpdateNotifier", notifier={**hook, "source": "/b"}).version == 2
    assert len(caller.ok("Notifier.ListNotifiers", page_size=1).notifiers) == 1
    assert caller.ok("Notifier.PauseNotifier", name="hook").paused
    assert not caller.ok("Notifier.ResumeNotifier", name="hook").paused
    assert "no credential" in caller.ok("Notifier.TestNotifier", name="hook").problem
    assert not caller.ok("Notifier.ListDeadLetters", name="hook", page_size=1).dead_letters
    assert caller.ok("Notifier.ReplayDeadLetters", name="hook").replayed == 0
    assert caller.ok("Notifier.DeleteDeadLetters", name="hook").deleted == 0
    caller.ok("Notifier.DeleteNotifier", name="hook")
    caller.refused("Notifier.GetNotifier", "NOT_FOUND", name="hook")


def access(caller):
    assert caller.ok("Access.GetCaller").user == "admin"
    assert "code=" in caller.ok("Access.CreateSignInLink").path
    made = caller.ok("Access.CreateToken", user="eve", roles=["viewer"])
    assert made.secret.startswith("farrier_pat_"), made.token
    caller.ok("Access.ListTokens", page_size=1)
    caller.ok("Access.RevokeToken", token_id=made.token.token_id)
    caller.ok("Access.CreateRole", name="night", permissions=[1, 2])
    binding = caller.ok("Access.CreateRoleBinding", subject="user:eve", role="night")
    caller.refused("Access.DeleteRole", "FAILED_PRECONDITION", name="night")
    caller.ok("Access.ListRoleBindings")
    caller.ok("Access.DeleteRoleBinding", role_binding_id=binding.role_binding_id)
    caller.ok("Access.DeleteRole", name="night")
    caller.ok("Access.ListRoles")
    notifiers(caller)
    approvals(caller)
    entries = caller.ok("Audit.ListAuditEntries", user="admin", page_size=5).entries
    assert entries[0].call == "farrier.v1.ApprovalService/UpdateApprovalPolicy", entries[0]
    assert not caller.ok("Audit.GetAuditStatus").problems


def main(address):
    caller = Caller(address)
    for part in (
        machines, operations, administration, hardware, clusters, images, racks, nodes, simulator,
        access,
    ):
        part(caller)
        print(f"ok {part.__name__}")
    check("calls that were not made", caller.every_call() - caller.made, set())
    check("calls that do not exist", caller.made - caller.every_call(), set())
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
