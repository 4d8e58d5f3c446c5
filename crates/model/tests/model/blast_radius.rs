//! Impact on other machines: which ones a refusal names.

use model::blast_radius::{
    AffectedMachine, Impact, ImpactObjection, ServingNode, check_impact, loses_power,
    objection_of_service,
};
use model::condition::{ConditionObservation, ConditionType};
use model::gate::{Gate, Overrides};
use model::id::{MachineId, NodeId, PowerShelfId, RunId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::NodeState;
use model::time::Timestamp;

fn affected(id: &str, against: Option<ImpactObjection>) -> AffectedMachine {
    AffectedMachine { machine: MachineId::trusted(id), objection: against }
}

fn refused(impact: Impact, affected: &[AffectedMachine]) -> String {
    check_impact("it", impact, affected, &Overrides::default())
        .expect_err("they are needed")
        .message
}

#[test]
fn a_refusal_says_what_becomes_of_them_and_what_speaks_against_it() {
    let claimed = |run: &str| Some(ImpactObjection::HeldBy(RunId::trusted(run)));
    let all = [
        affected("m-1", Some(ImpactObjection::InService)),
        affected("m-2", claimed("op-1")),
        affected("m-3", None),
        affected("m-4", Some(ImpactObjection::InService)),
        affected("m-5", claimed("op-2")),
        affected("m-6", claimed("op-1")),
    ];
    assert_eq!(
        refused(Impact::PowerLoss, &all),
        "it would take power from machines that are needed: m-1, m-4 are in service and \
         not drained; m-2, m-6 are held by op-1; m-5 is held by op-2 (gate in-service)"
    );
    assert_eq!(
        refused(Impact::Restart, &all[..1]),
        "it would restart machines that are needed: m-1 is in service and not drained (gate in-service)"
    );
    assert_eq!(check_impact("it", Impact::Restart, &all[2..3], &Overrides::default()), Ok(()));
    let by = |gate| check_impact("it", Impact::PowerLoss, &all, &Overrides::of(&[gate], "fire"));
    assert_eq!(by(Gate::InService), Ok(()));
    let refusal = by(Gate::Health).unwrap_err();
    assert_eq!(refusal.gate, Some(Gate::InService));
    let next = refusal.next_command.unwrap();
    assert!(next.contains("--override in-service,health --reason …"), "{next}");
}

#[test]
fn a_device_loses_power_with_the_last_shelf_that_feeds_it() {
    let ids = |names: &[&str]| -> Vec<PowerShelfId> {
        names.iter().map(|id| PowerShelfId::trusted(*id)).collect()
    };
    for (feeds, off, on, expected) in [
        (&["ps-1"][..], &["ps-1"][..], &[][..], true),
        (&["ps-1"], &["ps-1"], &["ps-2"], true),
        (&["ps-1"], &["ps-2"], &[], false),
        (&["ps-1", "ps-2"], &["ps-1"], &["ps-2"], false),
        (&["ps-1", "ps-2"], &["ps-1"], &[], true),
        (&["ps-1", "ps-2"], &["ps-1", "ps-2"], &["ps-1", "ps-2"], true),
        (&["ps-1", "ps-2", "ps-3"], &["ps-1", "ps-2"], &["ps-3"], false),
        (&[], &["ps-1"], &[], false),
    ] {
        let on = ids(on);
        let lost = loses_power(&ids(feeds), &ids(off), |id| on.contains(id));
        assert_eq!(lost, expected, "{feeds:?} {off:?} {on:?}");
    }
}

#[test]
fn every_machine_of_a_rack_is_named_and_what_is_more_than_a_rack_is_counted() {
    for (count, named, more) in [(18, 18, None), (64, 64, None), (67, 64, Some("; and 3 more"))] {
        let all: Vec<AffectedMachine> = (1..=count)
            .map(|n| affected(&format!("m-{n:03}"), Some(ImpactObjection::InService)))
            .collect();
        let message = refused(Impact::PowerLoss, &all);
        assert_eq!(message.matches("m-").count(), named, "{message}");
        let end = more.unwrap_or("in service and not drained");
        assert!(message.ends_with(&format!("{end} (gate in-service)")), "{message}");
    }
}

fn machine(phase: Phase, conditions: &[(ConditionType, bool)]) -> Machine {
    let (id, now) = (MachineId::trusted("m-1"), Timestamp::default());
    let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), now);
    machine.phase = phase;
    for (condition, status) in conditions {
        machine.learn(&[ConditionObservation::new(*condition, *status, "test")], now);
    }
    machine
}

/// Rows: phase and whether the machine is in its cluster. Columns: an impact that phase READY
/// allows, and any other one; both for a machine that is not drained and has no node.
const MACHINES: [(Phase, bool, [bool; 2]); 6] = [
    (Phase::FactoryReady, false, [false, false]),
    (Phase::FactoryReady, true, [false, true]),
    (Phase::Ready, false, [false, true]),
    (Phase::Ready, true, [false, true]),
    (Phase::Maintenance, false, [false, false]),
    (Phase::Maintenance, true, [false, false]),
];

/// Rows: the state of the node. Columns as above, whatever the machine's phase and drain.
const NODES: [(NodeState, [bool; 2]); 9] = [
    (NodeState::BootstrapIssued, [false, false]),
    (NodeState::Enrolling, [false, false]),
    (NodeState::Active, [true, true]),
    (NodeState::Offline, [false, true]),
    (NodeState::Quarantined, [false, false]),
    (NodeState::Draining, [false, true]),
    (NodeState::Retired, [false, false]),
    (NodeState::Removing, [false, false]),
    (NodeState::Deleted, [false, false]),
];

/// The rule for machines in service, over every phase, drain, node and impact.
#[test]
fn machines_and_nodes_in_service_object() {
    assert_eq!(NODES.map(|(state, _)| state), NodeState::ALL);
    let states = [(None, [false; 2])].into_iter().chain(NODES.map(|(one, row)| (Some(one), row)));
    let node = |state| ServingNode { id: NodeId::trusted("node-1"), state };
    for (state, of_node) in states {
        for (phase, in_cluster, of_machine) in MACHINES {
            for drained in [false, true] {
                let conditions = [
                    (ConditionType::InCustomerCluster, in_cluster),
                    (ConditionType::Drained, drained),
                ];
                for impact in Impact::ALL {
                    let column =
                        usize::from(!matches!(impact, Impact::Maintenance | Impact::Reboot));
                    let expected = match (of_node[column], of_machine[column] && !drained) {
                        (true, _) => Some(ImpactObjection::Serves(NodeId::trusted("node-1"))),
                        (false, true) => Some(ImpactObjection::InService),
                        (false, false) => None,
                    };
                    let machine = machine(phase, &conditions);
                    let objection =
                        objection_of_service(&machine, state.map(node).as_ref(), impact);
                    let case = (phase, in_cluster, drained, state, impact);
                    assert_eq!(objection, expected, "{case:?}");
                    // A rack or a power shelf asks the same, and a hold comes before it.
                    if impact == Impact::PowerLoss {
                        let affected = AffectedMachine::of(&machine, state.map(node).as_ref());
                        assert_eq!(affected.objection, expected, "{case:?}");
                        let run = RunId::trusted("op-1");
                        let held = Machine { active_run: Some(run.clone()), ..machine };
                        let affected = AffectedMachine::of(&held, state.map(node).as_ref());
                        assert_eq!(affected.objection, Some(ImpactObjection::HeldBy(run)));
                    }
                }
            }
        }
    }
}
