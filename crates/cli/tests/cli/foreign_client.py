"""A client that was given an address, a token and nothing else.

It learns every service and message from server reflection, and does what a customer does: registers a
machine, takes it into maintenance, reimages it, watches that to its end and reads the log. Prints one
line for each thing it has checked; any difference ends it with an exception.
"""

import os
import sys
import time

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

TIMEOUT_SECONDS = 60
SERVICES = {
    "farrier.v1.AccessService",
    "farrier.v1.AdminService",
    "farrier.v1.AuditService",
    "farrier.v1.ExplainService",
    "farrier.v1.MachineService",
    "farrier.v1.OperationService",
    "farrier.v1.PlanService",
    "farrier.v1.RunService",
    "farrier.v1.SimulatorService",
    "grpc.health.v1.Health",
}


class Token(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the API token of the environment to every call."""

    def __init__(self):
        self.value = f"Bearer {os.environ['FARRIER_TOKEN']}"

    def intercept(self, continuation, details, request):
        metadata = [*(details.metadata or []), ("authorization", self.value)]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept
    intercept_unary_stream = intercept
    intercept_stream_unary = intercept
    intercept_stream_stream = intercept


class Server:
    """Calls methods by name, with messages built from what the server says of itself."""

    def __init__(self, address):
        self.channel = grpc.intercept_channel(grpc.insecure_channel(address), Token())
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = DescriptorPool(self.database)

    def services(self):
        return set(self.database.get_services())

    def call(self, service, method, fields=None):
        found = self.pool.FindServiceByName(service).FindMethodByName(method)
        request_class = message_factory.GetMessageClass(found.input_type)
        answer_class = message_factory.GetMessageClass(found.output_type)
        kind = self.channel.unary_stream if found.server_streaming else self.channel.unary_unary
        stub = kind(
            f"/{service}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=answer_class.FromString,
        )
        return stub(request_class(**(fields or {})), timeout=TIMEOUT_SECONDS)

    def farrier(self, service, method, **fields):
        return self.call(f"farrier.v1.{service}Service", method, fields)


def word(message, field):
    """The name of an enum's value, as the server's own descriptors have it."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    return descriptor.enum_type.values_by_number[getattr(message, field)].name


def check(what, seen, wanted):
    assert seen == wanted, f"{what}: {seen!r} instead of {wanted!r}"
    print(f"ok {what}")


def refused(what, code, call):
    try:
        call()
    except grpc.RpcError as error:
        check(what, error.code(), code)
        return error.details()
    raise AssertionError(f"{what}: it was not refused")


def finished(server, operation_id):
    until = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < until:
        operation = server.farrier("Operation", "GetOperation", operation_id=operation_id)
        if operation.HasField("finished_at"):
            return operation
        time.sleep(0.02)
    raise AssertionError(f"{operation_id} does not end")


def check_surroundings(server):
    missing = SERVICES - server.services()
    check("every service is described", missing, set())
    for service in ["", *sorted(SERVICES - {"grpc.health.v1.Health"})]:
        answer = server.call("grpc.health.v1.Health", "Check", {"service": service})
        check(f"health of {service or 'the server'}", word(answer, "status"), "SERVING")
    unknown = lambda: server.call("grpc.health.v1.Health", "Check", {"service": "nobody"})
    refused("health of nobody", grpc.StatusCode.NOT_FOUND, unknown)


def check_refusals(server, machine_id):
    reimage = lambda **fields: lambda: server.farrier("Machine", "ReimageMachine", **fields)
    said = refused(
        "a reimage outside of maintenance",
        grpc.StatusCode.FAILED_PRECONDITION,
        reimage(machine_id=machine_id, request_id="too-soon"),
    )
    assert f"farrier enter-maintenance {machine_id}" in said, said
    said = refused(
        "a reimage without request_id",
        grpc.StatusCode.INVALID_ARGUMENT,
        reimage(machine_id=machine_id),
    )
    assert "request_id" in said, said
    refused(
        "an unknown machine",
        grpc.StatusCode.NOT_FOUND,
        lambda: server.farrier("Machine", "GetMachine", machine_id="nonexistent"),
    )


def check_reimage(server, machine_id):
    request = {"machine_id": machine_id, "request_id": "foreign", "image_ref": "rhel-9"}
    operation = server.farrier("Machine", "ReimageMachine", **request)
    check("the type", word(operation, "type"), "REIMAGE")
    check("the parameters", dict(operation.params), {"image_ref": "rhel-9"})
    phases = []
    events = server.farrier("Operation", "WatchOperations", filter=f"machine_id={machine_id}")
    for event in events:
        if event.snapshot.operation_id != operation.operation_id:
            continue
        phases.append(word(event.snapshot, "phase"))
        if phases[-1] in ("SUCCEEDED", "FAILED", "CANCELED"):
            break
    events.cancel()
    check("the end of the watch", phases[-1], "SUCCEEDED")
    again = server.farrier("Machine", "ReimageMachine", **request)
    check("the same request again", again.operation_id, operation.operation_id)
    run = server.farrier("Run", "GetRun", run_id=operation.operation_id)
    states = [(step.name, word(step, "state")) for step in run.steps]
    names = ["set-netboot", "repave-os", "reboot", "join-cluster", "verify"]
    check("the steps", states, [(name, "SUCCEEDED") for name in names])
    log = server.farrier(
        "Operation", "StreamOperationLogs", operation_id=operation.operation_id
    )
    text = b"".join(chunk.data for chunk in log).decode()
    assert "Writing image rhel-9\n" in text and "Progress: 100%\n" in text, text
    print("ok the log")


def main(address):
    server = Server(address)
    check_surroundings(server)
    macs = ["AA:BB:CC:DD:EE:FF"]
    spec = {"target_cluster_ref": "cluster-a", "mac_addresses": macs, "provider": "sim"}
    machine = {"labels": {"env": "test"}, "spec": spec}
    machine = server.farrier("Machine", "RegisterMachine", machine=machine)
    check("the phase of a new machine", word(machine.status, "phase"), "FACTORY_READY")
    check("its MAC address", list(machine.spec.mac_addresses), ["aa:bb:cc:dd:ee:ff"])
    check_refusals(server, machine.machine_id)
    enter = {"machine_id": machine.machine_id, "request_id": "enter"}
    entering = server.farrier("Machine", "EnterMaintenance", **enter)
    ended = finished(server, entering.operation_id)
    check("entering maintenance", word(ended, "phase"), "SUCCEEDED")
    check_reimage(server, machine.machine_id)
    machine = server.farrier("Machine", "GetMachine", machine_id=machine.machine_id)
    conditions = {one.type: one.status for one in machine.status.conditions}
    check("Provisioned", conditions["Provisioned"], True)
    check("the phase at the end", word(machine.status, "phase"), "MAINTENANCE")
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
