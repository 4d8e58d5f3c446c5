//! The effective and the lifecycle state against the tables of the documents.

use model::condition::ConditionType::{
    InCustomerCluster, NeedsIntervention, Provisioned, Retired, Rma,
};
use model::condition::{ConditionObservation, ConditionType};
use model::id::{MachineId, RunId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::time::Timestamp;

fn machine(phase: Phase, active: bool, set: &[ConditionType]) -> Machine {
    let at = Timestamp::default();
    let mut machine =
        Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at);
    machine.phase = phase;
    machine.active_run = active.then(|| RunId::trusted("op-1"));
    for condition in set {
        machine.learn(&[ConditionObservation::new(*condition, true, "test")], at);
    }
    machine
}

/// The tables of the documents, written out by hand, against every combination.
#[test]
fn every_combination_follows_the_documents() {
    let flags = [Retired, Rma, NeedsIntervention, InCustomerCluster, Provisioned];
    for phase in Phase::ALL {
        for active in [false, true] {
            for mask in 0..32_u32 {
                let on = |index: usize| mask & (1 << index) != 0;
                let set: Vec<_> = (0..5).filter(|&i| on(i)).map(|i| flags[i]).collect();
                let machine = machine(phase, active, &set);
                let effective = if on(0) || on(1) {
                    "BLOCKED"
                } else if on(2) {
                    "ATTENTION"
                } else if active {
                    "BUSY"
                } else {
                    match phase {
                        Phase::Maintenance => "MAINTENANCE",
                        // The documents know no other way to an image than maintenance; a node
                        // gets its image from MAAS.
                        Phase::FactoryReady if on(4) => "IDLE",
                        Phase::FactoryReady => "NEW",
                        Phase::Ready => "IDLE",
                    }
                };
                let lifecycle = if active {
                    "PROVISIONING"
                } else if on(1) {
                    "RMA"
                } else if on(0) {
                    "RETIRED"
                } else if phase == Phase::Maintenance {
                    "MAINTENANCE"
                } else if on(3) {
                    "IN_SERVICE"
                } else if phase == Phase::FactoryReady {
                    "FACTORY_READY"
                } else {
                    "READY"
                };
                let case = format!("{phase:?} active={active} {set:?}");
                assert_eq!(machine.effective_state().as_str(), effective, "{case}");
                assert_eq!(machine.lifecycle_state().as_str(), lifecycle, "{case}");
            }
        }
    }
}

/// A machine that was drained because it was in no cluster takes work once it has joined one.
#[test]
fn joining_a_cluster_ends_a_drain_without_a_cluster() {
    use model::condition::ConditionType::Drained;
    use model::condition::NOT_IN_CLUSTER;
    let at = Timestamp::default();
    for (reason, stays) in [(NOT_IN_CLUSTER, false), ("Cordoned", true)] {
        let mut drained = machine(Phase::Maintenance, false, &[]);
        drained.learn(&[ConditionObservation::new(Drained, true, reason)], at);
        assert!(drained.is(Drained));
        drained.learn(&[ConditionObservation::new(InCustomerCluster, true, "Joined:c")], at);
        assert_eq!(drained.is(Drained), stays, "{reason}");
    }
    let mut left = machine(Phase::Ready, false, &[InCustomerCluster]);
    left.learn(&[ConditionObservation::new(Drained, true, NOT_IN_CLUSTER)], at);
    assert!(left.is(Drained) && !left.is(InCustomerCluster));
}
