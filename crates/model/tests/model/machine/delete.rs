//! The gate of a deletion: by operation, firmware request, node, phase and rack.

use super::disk_write::half_written;
use model::condition::{ConditionObservation, ConditionType};
use model::gate::{Gate, Overrides};
use model::host::{Host, HostState, ReprovisionOwner, ReprovisionRequest};
use model::id::{MachineId, NodeId, RackId, RunId};
use model::machine::delete::{MachineReferences, admit_deletion};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::{Node, NodeState};
use model::time::Timestamp;

fn machine(phase: Phase) -> Machine {
    let id = MachineId::trusted("m-1");
    let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), Timestamp::default());
    machine.phase = phase;
    machine
}

/// The reason and the next command of a refusal; none if the machine may be deleted.
fn refused(machine: &Machine, by: MachineReferences<'_>) -> Option<(&'static str, String)> {
    let refusal = admit_deletion(machine, by, &Overrides::default()).err()?;
    assert!(refusal.message.contains("m-1"), "{}", refusal.message);
    Some((refusal.reason.as_str(), refusal.next_command.unwrap()))
}

/// Asserts one row: the reason and the next command.
#[track_caller]
fn check(machine: &Machine, by: MachineReferences<'_>, reason: &'static str, next: &str) {
    assert_eq!(refused(machine, by), Some((reason, next.to_string())));
}

#[test]
fn a_machine_that_nothing_uses_may_be_deleted() {
    let none = MachineReferences::default();
    let table = [
        (Phase::FactoryReady, None),
        (Phase::Maintenance, None),
        (Phase::Ready, Some(("WRONG_PHASE", "farrier enter-maintenance m-1".to_string()))),
    ];
    for (phase, expected) in table {
        assert_eq!(refused(&machine(phase), none), expected, "{phase:?}");
    }
    // Flags that block operations do not prevent a deletion.
    for flag in [ConditionType::Retired, ConditionType::Rma, ConditionType::NeedsIntervention] {
        let mut flagged = machine(Phase::Maintenance);
        flagged.learn(&[ConditionObservation::new(flag, true, "test")], Timestamp::default());
        assert_eq!(refused(&flagged, none), None, "{flag:?}");
    }
    // A member of a cluster serves, unless it is in maintenance.
    for (phase, reason) in [
        (Phase::FactoryReady, Some("MACHINES_IN_SERVICE")),
        (Phase::Ready, Some("WRONG_PHASE")),
        (Phase::Maintenance, None),
    ] {
        let mut member = machine(phase);
        let observed = ConditionObservation::new(ConditionType::InCustomerCluster, true, "test");
        member.learn(&[observed], Timestamp::default());
        assert_eq!(refused(&member, none).map(|(reason, _)| reason), reason, "{phase:?}");
    }
}

/// Registered again, the machine would look as if its disk had never been written.
#[test]
fn an_unfinished_disk_write_keeps_a_machine() {
    let none = MachineReferences::default();
    let written = half_written(Some(60));
    let next =
        "farrier operation rerun op-7   # or repeat it with --override unfinished-disk --reason …";
    check(&written, none, "UNFINISHED_DISK", next);
    let overrides = Overrides::of(&[Gate::UnfinishedDisk], "it is scrapped");
    assert_eq!(admit_deletion(&written, none, &overrides), Ok(()));
}

#[test]
fn an_operation_or_a_rack_keeps_a_machine() {
    let run = RunId::trusted("op-7");
    let mut held = machine(Phase::Maintenance);
    held.active_run = Some(run.clone());
    check(&held, MachineReferences::default(), "MACHINE_BUSY", "farrier why op-7");
    let idle = machine(Phase::Maintenance);
    let by = MachineReferences { run: Some(&run), ..Default::default() };
    check(&idle, by, "MACHINE_BUSY", "farrier why op-7");
    let by = MachineReferences { rack_operation: Some(&run), ..Default::default() };
    check(&idle, by, "MAINTENANCE_PENDING", "farrier cancel op-7");
    let mut placed = machine(Phase::Maintenance);
    placed.spec.rack = Some(RackId::trusted("rack-1"));
    let next = "farrier machine update m-1 --rack ''";
    check(&placed, MachineReferences::default(), "MACHINE_IN_RACK", next);
}

#[test]
fn a_firmware_request_keeps_a_machine() {
    let idle = machine(Phase::Maintenance);
    let mut host = Host::new(&idle.id, Timestamp::default());
    fn of(host: &Host) -> MachineReferences<'_> {
        MachineReferences { host: Some(host), ..Default::default() }
    }
    assert_eq!(refused(&idle, of(&host)), None, "the facts of a host do not keep its machine");
    let request = |owner| ReprovisionRequest {
        owner,
        firmware: None,
        requested_at: Timestamp::default(),
        started_at: None,
    };
    let withdraw = "farrier machine reprovision m-1 --cancel";
    host.request = Some(request(ReprovisionOwner::Operator { name: "ada".into() }));
    check(&idle, of(&host), "REPROVISION_UNDER_WAY", withdraw);
    host.request = None;
    host.state = HostState::CheckingFirmwareV2 { retry_count: 0 };
    check(&idle, of(&host), "REPROVISION_UNDER_WAY", withdraw);
    host.request = Some(request(ReprovisionOwner::Rack { operation: RunId::trusted("op-9") }));
    host.state = HostState::WaitingForRackFirmwareUpgrade;
    check(&idle, of(&host), "REPROVISION_UNDER_WAY", "farrier why op-9");
}

/// Only a deleted node leaves its machine free.
#[test]
fn a_node_keeps_its_machine_until_it_is_deleted() {
    let idle = machine(Phase::Maintenance);
    for state in NodeState::ALL {
        let node = Node::new(&NodeId::trusted("node-1"), &idle.id, state, Timestamp::default());
        let by = MachineReferences { node: Some(&node), ..Default::default() };
        let next = match state {
            NodeState::Deleted => {
                assert_eq!(refused(&idle, by), None);
                continue;
            }
            NodeState::BootstrapIssued => "farrier node quarantine node-1 --reason …",
            NodeState::Draining | NodeState::Removing => "farrier why node-1",
            NodeState::Enrolling
            | NodeState::Active
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Retired => "farrier node decommission node-1 --mode full_decommission",
        };
        check(&idle, by, "MACHINE_HAS_NODE", next);
    }
}
