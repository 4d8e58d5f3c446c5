//! Repairs: a command is offered where the machine has what it needs, and none destroys.

use super::{failed, incident};
use crate::nodes::{Work, node, run, upstream_observation};
use crate::support::{at, drain, join, spec, wipe};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{ClusterExpectation, Effect};
use model::fault::{Fault, FaultCode};
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::{DecommissionMode, MaasState, NodeStage, NodeState};
use model::plan::RunStep;
use model::run::actions::{RestartMode, restart};
use model::run::{Failure, Run};
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

/// Rows: the last step, the one before it, the condition `InCustomerCluster`, and whether a join is
/// offered: a rerun of a plan with a join joins the machine itself.
#[test]
fn a_machine_that_never_joined_is_joined() {
    let command = "farrier operation start m-1 --type JOIN".to_string();
    let verify = RunStep {
        name: "verify".into(),
        timeout_seconds: 60,
        max_retries: 0,
        effect: Effect::Verify {
            cluster_ref: "prod".into(),
            expect: ClusterExpectation::Ready,
            advisory: false,
        },
    };
    let verify = || verify.clone();
    for (steps, status, reason, offered) in [
        (vec![verify()], false, "NotJoined", true),
        (vec![verify()], false, "NotReady", false),
        (vec![verify()], true, "Joined:prod", false),
        (vec![join(0), verify()], false, "NotJoined", false),
        (vec![drain(0)], false, "NotJoined", false),
    ] {
        let mut machine = machine("datacenter");
        let observed = ConditionObservation::new(ConditionType::InCustomerCluster, status, reason);
        machine.learn(&[observed], at(1));
        let mut run = Run::new(spec(steps));
        run.progress.step_index = run.spec.steps.len() - 1;
        let fault = Fault::new(FaultCode::NotInCluster, "prod has no m-1");
        let failure = Failure { fault, step: "verify".into(), attempts: 1 };
        run.progress.workflow = failure.workflow();
        run.progress.failure = Some(failure);
        let context = RunContext { machine: Some(&machine), ..RunContext::default() };
        let told = explain_run(&run, context, at(5));
        assert_eq!(told.next_commands.contains(&command), offered, "{reason}: {told:?}");
    }
}

/// A run on a node that failed with this code at a stage.
fn failed_at(work: Work, stage: NodeStage, code: FaultCode) -> Run {
    let mut run = run(work);
    let index = run.spec.steps.iter().position(|step| step.name == stage.as_str()).unwrap();
    for step in &mut run.progress.steps[..=index] {
        step.attempt = 1;
    }
    run.progress.step_index = index;
    let failure = Failure { fault: Fault::new(code, "so"), step: stage.to_string(), attempts: 1 };
    run.progress.workflow = failure.workflow();
    run.progress.failure = Some(failure);
    run.progress.finished_at = Some(at(4));
    run
}

/// MAAS neither commissions nor installs a machine in Failed deployment: only a clean restart
/// releases it. A reimage releases it by itself, and so does a reimage of a machine.
#[test]
fn a_failed_deployment_is_restarted_clean() {
    let reimage = Work::Take(DecommissionMode::Reimage);
    let (classify, commission) = (NodeStage::ClassifyDeployFailure, NodeStage::CommissionNode);
    let clean = "farrier operation restart-clean op-1";
    let rerun = "farrier operation rerun op-1";
    for (work, stage, code, upstream, offered, not_offered) in [
        (Work::Onboard, classify, FaultCode::DeployFailed, None, clean, rerun),
        (
            Work::Onboard,
            commission,
            FaultCode::StateDisagrees,
            Some(MaasState::FailedDeployment),
            clean,
            rerun,
        ),
        (
            Work::Onboard,
            commission,
            FaultCode::MaasUnreachable,
            Some(MaasState::FailedDeployment),
            clean,
            rerun,
        ),
        (Work::Onboard, commission, FaultCode::StateDisagrees, None, rerun, clean),
        (reimage, classify, FaultCode::DeployFailed, None, rerun, ""),
    ] {
        let mut node = node(NodeState::Enrolling);
        node.maas = upstream.map(upstream_observation);
        let run = failed_at(work, stage, code);
        let context = RunContext { node: Some(&node), ..RunContext::default() };
        let commands = explain_run(&run, context, at(5)).next_commands;
        let has = |words: &str| commands.iter().any(|one| one == words);
        assert!(has(offered) && !has(not_offered), "{work:?} {code:?}: {commands:?}");
        if matches!(work, Work::Onboard) {
            let recommended = node.recommended(Some(&run));
            let has = |words: &str| recommended.iter().any(|one| one == words);
            assert!(has(offered) && !has(not_offered), "{code:?}: {recommended:?}");
        }
    }
    let machine = failed(Fault::new(FaultCode::DeployFailed, "so"));
    let commands = explain_run(&machine, RunContext::default(), at(5)).next_commands;
    assert!(commands.iter().any(|one| one == rerun), "{commands:?}");
}

/// A clean restart of an onboarding that was itself a restart undoes what its predecessors did,
/// too: it failed before it did anything. A decommission never undoes an installation that it did
/// not make.
#[test]
fn a_clean_restart_undoes_what_the_predecessors_left() {
    let undone = |run: &Run| -> Vec<String> {
        let progress = restart(run, RestartMode::RestartClean, false).unwrap();
        let undo = progress.steps.iter().filter(|step| step.undo);
        undo.map(|step| run.spec.steps[step.plan_step].name.clone()).collect()
    };
    let all = ["deploy_via_maas", "commission_node", "create_or_find_in_maas"];
    let (commission, code) = (NodeStage::CommissionNode, FaultCode::StateDisagrees);
    let mut onboarding = failed_at(Work::Onboard, commission, code);
    assert_eq!(undone(&onboarding), all[1..]);
    for mode in RestartMode::ALL {
        onboarding.spec.restart = Some(mode);
        assert_eq!(undone(&onboarding), all);
    }
    let reimage = Work::Take(DecommissionMode::Reimage);
    let mut run = failed_at(reimage, NodeStage::DisableNode, FaultCode::EffectFailed);
    run.spec.restart = Some(RestartMode::Rerun);
    assert_eq!(undone(&run), [""; 0]);
}

/// A cluster that knows the user and refuses one request is checked; a refused login is replaced.
#[test]
fn a_missing_right_is_checked_and_a_refused_login_is_replaced() {
    let machine = machine("datacenter");
    let context = RunContext { machine: Some(&machine), ..RunContext::default() };
    let refused = |right: Option<&str>| {
        let fault = Fault::new(FaultCode::LoginRefused, "no").with(|facts| {
            facts.credential = Some("prod".into());
            facts.missing_right = right.map(Into::into);
        });
        explain_run(&failed(fault), context, at(5)).next_commands
    };
    let commands = refused(Some("patch nodes"));
    assert_eq!(commands[..2], ["farrier cluster check prod", "farrier credential set prod"]);
    let commands = refused(None);
    assert_eq!(commands[0], "farrier credential set prod");
    assert!(!commands.iter().any(|one| one.contains("cluster check")), "{commands:?}");
}
