//! Repairs: a command is offered where the machine has what it needs, and none destroys.

use super::{failed, incident};
use crate::support::{at, drain, spec, wipe};
use model::condition::{ConditionObservation, ConditionType};
use model::fault::{Fault, FaultCode};
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::NodeState;
use model::run::Run;
use model::why::{RunContext, explain_machine, explain_run};

/// A machine with everything: a BMC, a cluster, an address of its host.
fn machine(provider: &str) -> Machine {
    let spec = MachineSpec {
        provider: provider.into(),
        bmc_endpoint: "https://10.1.0.7".into(),
        target_cluster_ref: "prod".into(),
        ..MachineSpec::default()
    };
    Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), at(0))
}

/// A peer that cannot be reached may come back, and only the operator knows a reason.
#[test]
fn no_fault_offers_a_removal_or_a_reason() {
    let node = crate::nodes::node(NodeState::Enrolling);
    let machine = machine("datacenter");
    for code in FaultCode::ALL {
        let run = failed(incident(*code));
        let context =
            RunContext { machine: Some(&machine), node: Some(&node), ..RunContext::default() };
        for command in explain_run(&run, context, at(5)).next_commands {
            assert!(!command.contains("full_decommission"), "{code:?}: {command}");
            assert!(!command.contains(" delete m-"), "{code:?}: {command}");
            if let Some((_, reason)) = command.split_once("--reason ") {
                assert_eq!(reason, "…", "{code:?}: {command}");
            }
        }
    }
}

/// A simulated machine has no BMC, no network boot of ours, and no cluster that can be checked.
#[test]
fn a_simulated_machine_is_offered_nothing_of_real_hardware() {
    let real = ["farrier bmc ", "farrier netboot ", "farrier cluster check "];
    for (provider, offered) in [("datacenter", true), ("sim", false)] {
        let machine = machine(provider);
        let context = RunContext { machine: Some(&machine), ..RunContext::default() };
        let commands: Vec<String> = FaultCode::ALL
            .iter()
            .flat_map(|code| explain_run(&failed(incident(*code)), context, at(5)).next_commands)
            .collect();
        for words in real {
            let found = commands.iter().any(|one| one.starts_with(words));
            assert_eq!(found, offered, "{provider}: {words}");
        }
    }
    let mut lost = Machine { phase: Phase::Ready, ..machine("sim") };
    let reason = FaultCode::BmcUnreachable.as_str();
    lost.learn(&[ConditionObservation::new(ConditionType::BmcReachable, false, reason)], at(3));
    let told = explain_machine(&lost, None, RunContext::default(), at(9));
    assert!(!told.next_commands.iter().any(|one| one.starts_with("farrier bmc ")), "{told:?}");
}

/// The cluster is that of the failed step, else that of the machine. Its name is told once.
#[test]
fn a_fault_of_a_cluster_names_it() {
    let machine = machine("datacenter");
    for (steps, known, cluster) in [
        (vec![drain(0)], true, Some("cluster-a")),
        (vec![wipe(0)], true, Some("prod")),
        (vec![wipe(0)], false, None),
    ] {
        for code in [FaultCode::ClusterUnreachable, FaultCode::NotInCluster] {
            let fault = Fault::new(code, "no answer");
            let run = Run { spec: spec(steps.clone()), ..failed(fault) };
            let context =
                RunContext { machine: known.then_some(&machine), ..RunContext::default() };
            let told = explain_run(&run, context, at(5));
            let words =
                cluster.map_or("no answer".into(), |name| format!("cluster {name}: no answer"));
            assert_eq!(told.failed, words);
            let check = cluster.map(|name| format!("farrier cluster check {name}"));
            let offered = told.next_commands.iter().find(|one| one.contains("cluster check"));
            assert_eq!(offered, check.as_ref(), "{told:?}");
        }
    }
    let named = failed(Fault::new(FaultCode::NotInCluster, "prod has no m-1"));
    let context = RunContext { machine: Some(&machine), ..RunContext::default() };
    assert_eq!(explain_run(&named, context, at(5)).failed, "prod has no m-1");
}
