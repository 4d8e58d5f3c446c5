//! Nodes: what became of the operation that took a machine down, and of one that failed.

use crate::nodes::node_runs::NodeRunDriver;
use crate::nodes::{Work, node};
use crate::support::{at, drain, spec, wipe};
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, RunId};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::{DecommissionMode, Node, NodeContext, NodeStage, NodeState, NodeWork};
use model::plan::RunType;
use model::run::{Failure, Run, RunSpec, Workflow};
use model::why::{
    AgentContact, PeerContacts, Rank, RunContext, Urgency, explain_machine, explain_run, rank_node,
    waits_for_agent,
};
use std::time::Duration;

/// A node whose machine an operation has taken down, with that operation.
fn taken_down(workflow: Workflow) -> (Node, Run) {
    let mut run = Run::new(spec(vec![wipe(0)]));
    run.spec.id = RunId::trusted("op-9");
    run.progress.workflow = workflow;
    run.progress.finished_at = run.ended().then(|| at(40));
    let node = node(NodeState::Active).taken_down(&run.spec.id).expect("it was active");
    (node, run)
}

fn machine(off: bool) -> Machine {
    let mut machine =
        Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
    machine.phase = Phase::Ready;
    let observed = match off {
        true => ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF),
        false => ConditionObservation::new(ConditionType::Reachable, true, "PingOK"),
    };
    machine.learn(&[observed], at(1));
    machine
}

/// While our own operation keeps a machine down, its node needs no person.
#[test]
fn a_node_that_is_worked_on_needs_no_person() {
    for state in NodeState::ALL {
        let node = node(state);
        let now = node.head.since;
        let expected = match state {
            NodeState::Quarantined => Some(Urgency::Stopped),
            NodeState::Offline => Some(Urgency::OutOfService),
            NodeState::BootstrapIssued
            | NodeState::Enrolling
            | NodeState::Active
            | NodeState::Draining
            | NodeState::Retired
            | NodeState::Removing
            | NodeState::Deleted => None,
        };
        let rank = |work| rank_node(&node, work, now).map(|rank| rank.urgency);
        assert_eq!(rank(NodeWork::Idle), expected, "{state:?}");
        assert_eq!(rank(NodeWork::AtWork), None, "{state:?}");
        let lost = rank_node(&node, NodeWork::AgentLost(at(3)), now);
        assert_eq!(lost, Some(Rank::new(Urgency::Overdue, at(3))), "{state:?}");
        // An onboarding that stopped is listed by itself: a later success on the machine clears
        // NeedsIntervention.
        let onboards = matches!(state, NodeState::BootstrapIssued | NodeState::Enrolling);
        let stopped = if onboards { Some(Urgency::Stopped) } else { expected };
        assert_eq!(rank(NodeWork::Stopped), stopped, "{state:?}");
    }
}

/// Rows: whether its machine is held, the workflow of its onboarding; none: it cannot be read. Then
/// what that means for the node, and the first command.
#[test]
fn a_stopped_onboarding_leads_to_a_rerun_or_to_the_removal() {
    let again = "farrier operation rerun op-1";
    let remove = "farrier node decommission node-1 --mode full_decommission";
    for (held, workflow, work, command) in [
        (true, Some(Workflow::Running), NodeWork::AtWork, ""),
        (false, Some(Workflow::Pending), NodeWork::AtWork, ""),
        (false, Some(Workflow::Completed), NodeWork::Idle, ""),
        (false, Some(Workflow::FailedRetryable), NodeWork::Stopped, again),
        (false, Some(Workflow::FailedManualIntervention), NodeWork::Stopped, again),
        (false, Some(Workflow::Cancelled), NodeWork::Stopped, again),
        (false, None, NodeWork::Stopped, remove),
    ] {
        let mut node = node(NodeState::Enrolling);
        node.workflow = Some(RunId::trusted("op-1"));
        let run = workflow.map(|workflow| {
            let mut run = Run::new(RunSpec { run_type: RunType::Onboard, ..spec(vec![wipe(0)]) });
            run.progress.workflow = workflow;
            run.progress.failure = workflow.failed().then(|| Failure {
                fault: Fault::new(FaultCode::SiteUnfit, "no such fabric"),
                step: "wipe".into(),
                attempts: 1,
            });
            run
        });
        assert_eq!(NodeWork::of(&node, held, run.as_ref()), work, "{workflow:?}");
        if work != NodeWork::Stopped {
            continue;
        }
        let context = NodeContext { run: run.as_ref(), ..NodeContext::default() };
        let told = node.explain(context, at(9));
        assert!(told.next_commands.iter().any(|one| one == command), "{workflow:?}: {told:?}");
        assert!(told.next_commands.iter().any(|one| one == remove), "{workflow:?}: {told:?}");
        assert_ne!(told.waiting_for, "its onboarding", "{workflow:?}");
    }
    let idle = Node { workflow: None, ..node(NodeState::BootstrapIssued) };
    assert_eq!(NodeWork::of(&idle, false, None), NodeWork::Idle);
}

/// Rows: the operation that holds the machine of an offline node, and whether the node waits for
/// it. Its own operation is told by itself.
#[test]
fn an_offline_node_names_the_operation_that_holds_its_machine() {
    for (state, holder, waits) in [
        (NodeState::Offline, Some("op-9"), true),
        (NodeState::Offline, Some("op-1"), false),
        (NodeState::Offline, None, false),
        (NodeState::Active, Some("op-9"), false),
    ] {
        let node = node(state);
        let machine = Machine { active_run: holder.map(RunId::trusted), ..machine(false) };
        assert_eq!(node.other_holder(&machine).is_some(), holder == Some("op-9"), "{holder:?}");
        let context = NodeContext { machine: Some(&machine), ..NodeContext::default() };
        let told = node.explain(context, at(100));
        let case = format!("{state} {holder:?}: {told:#?}");
        assert_eq!(told.headline.contains("; op-9 holds its machine m-1"), waits, "{case}");
        assert_eq!(told.waiting_for.starts_with("op-9 to end, then a heartbeat"), waits, "{case}");
        assert_eq!(told.next_commands[0] == "farrier why op-9", waits, "{case}");
    }
}

/// Rows: the operation that took the machine down, whether the machine is off. Then the words of
/// the headline and of the wait, and the first command.
#[test]
fn a_node_says_what_became_of_the_operation_that_took_it_down() {
    let beat = "a heartbeat of its agent without problems";
    for (workflow, off, headline, waits_for, first) in [
        (
            Workflow::Running,
            true,
            "node-1 is offline: op-9 takes its machine down; its machine m-1 is switched off",
            "op-9 to end, then a heartbeat of its agent",
            "farrier why op-9",
        ),
        (
            Workflow::Completed,
            true,
            "node-1 is offline: op-9 took its machine down, and SUCCEEDED 1m 0s ago; its machine \
             m-1 is switched off",
            beat,
            "farrier machine power m-1 on",
        ),
        (
            Workflow::FailedRetryable,
            false,
            "node-1 is offline: op-9 took its machine down, and FAILED 1m 0s ago",
            beat,
            "farrier machine inspect m-1",
        ),
    ] {
        let (node, run) = taken_down(workflow);
        let machine = machine(off);
        let context =
            NodeContext { machine: Some(&machine), down_by: Some(&run), ..NodeContext::default() };
        let told = node.explain(context, at(100));
        assert_eq!(told.headline, headline);
        assert!(told.waiting_for.starts_with(waits_for), "{}", told.waiting_for);
        assert_eq!(told.next_commands[0], first, "{told:?}");
    }
}

/// Rows: the step of the operation, the last heartbeat, when the session was revoked. Then the
/// words of the headline, and the first command; none: the agent is not to blame.
#[test]
fn a_lost_agent_is_named_with_its_last_word() {
    let inspect = "farrier machine inspect m-1";
    let reissue = "farrier node bootstrap --reissue node-1";
    let silent = "it waits for the agent of node-1: silent for 1m 40s, its lease is over";
    let revoked = "it waits for the agent of node-1: its session was revoked 40s ago";
    for (step, heard, revoked_at, lost) in [
        (NodeStage::DrainNode, Some(0), None, Some((silent, inspect, 0))),
        (NodeStage::DrainNode, Some(0), Some(60), Some((revoked, reissue, 60))),
        (NodeStage::DrainNode, Some(90), None, None),
        // It has not enrolled yet, which its onboarding waits for.
        (NodeStage::WaitForAgentEnrollment, None, None, None),
        (NodeStage::DisableNode, Some(0), None, None),
    ] {
        let driver = NodeRunDriver::begin(
            Work::Take(DecommissionMode::Drain),
            &[step],
            NodeState::Active,
            "",
        );
        let (node, run) = (&driver.node, &driver.run);
        let agent = AgentContact {
            heartbeat_at: heard.map(at),
            silence: Duration::from_secs(60),
            revoked_at: revoked_at.map(at),
        };
        let work = NodeWork::of(node, false, Some(run)).with_agent(run, &agent, at(100));
        let contacts = PeerContacts { agent: Some(agent), ..PeerContacts::default() };
        let context =
            NodeContext { run: Some(run), contacts: Some(&contacts), ..NodeContext::default() };
        let told = node.explain(context, at(100));
        match lost {
            Some((words, command, since)) => {
                assert!(told.headline.contains(words), "{}", told.headline);
                assert_eq!(told.next_command(), Some(command), "{told:?}");
                assert_eq!(work, NodeWork::AgentLost(at(since)), "{step}");
            }
            None => {
                assert!(!told.headline.contains("it waits for"), "{}", told.headline);
                assert!(!told.next_commands.iter().any(|one| one == inspect), "{told:?}");
                assert_eq!(work, NodeWork::AtWork, "{step}");
            }
        }
        assert_eq!(waits_for_agent(run), step == NodeStage::DrainNode, "{step}");
    }
}

/// A drain that waits for its cluster does not wait for the agent or for the machine, and both may
/// be the reason why its cluster waits. Rows: the state, the observation of the machine, the last
/// heartbeat. Then the end of the headline.
#[test]
fn a_node_that_should_run_says_that_its_machine_or_its_agent_is_gone() {
    let reachable =
        |status, reason| Some(ConditionObservation::new(ConditionType::Reachable, status, reason));
    let silent = "; its agent: silent for 1m 40s, its lease is over";
    for (state, observed, heard, end) in [
        (NodeState::Draining, None, 90, "draining".to_string()),
        (NodeState::Draining, reachable(true, "PingOK"), 0, format!("draining{silent}")),
        (
            NodeState::Draining,
            reachable(false, POWERED_OFF),
            0,
            format!("draining; its machine m-1 is switched off{silent}"),
        ),
        (
            NodeState::Draining,
            reachable(false, "Silent"),
            90,
            "draining; its machine m-1 does not answer".into(),
        ),
        (
            NodeState::Active,
            reachable(false, POWERED_OFF),
            90,
            "active; its machine m-1 is switched off".into(),
        ),
        (NodeState::Retired, reachable(false, POWERED_OFF), 0, "retired".into()),
    ] {
        let mut machine =
            Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
        machine.learn(&observed.into_iter().collect::<Vec<_>>(), at(1));
        let silence = Duration::from_secs(60);
        let agent = AgentContact { heartbeat_at: Some(at(heard)), silence, revoked_at: None };
        let contacts = PeerContacts { agent: Some(agent), ..PeerContacts::default() };
        let context = NodeContext {
            machine: Some(&machine),
            contacts: Some(&contacts),
            ..NodeContext::default()
        };
        let told = node(state).explain(context, at(100));
        assert!(told.headline.ends_with(&end), "{end}: {}", told.headline);
    }
}

/// The operation that drains says it too.
#[test]
fn a_drain_says_that_its_machine_is_down() {
    let mut run = Run::new(spec(vec![drain(0)]));
    run.progress.workflow = Workflow::Running;
    for (off, note) in [
        (true, Some("the node is on m-1: it is switched off; Reachable is false: PoweredOff")),
        (false, None),
    ] {
        let machine = machine(off);
        let context = RunContext { machine: Some(&machine), ..RunContext::default() };
        let told = explain_run(&run, context, at(9));
        assert_eq!(told.notes.first().map(String::as_str), note);
    }
}

/// The failure of a drain is told in full, although the node is back in service.
#[test]
fn a_failed_drain_is_told_with_its_fault() {
    let fault = Fault::new(FaultCode::ClusterUnreachable, "no answer within 5s");
    let mut run = Run::new(spec(vec![drain(0)]));
    let failure = Failure { fault, step: "drain".into(), attempts: 3 };
    run.progress.workflow = failure.workflow();
    run.progress.failure = Some(failure);
    run.progress.finished_at = Some(at(4));
    let machine = machine(false);
    for state in [NodeState::Active, NodeState::Offline] {
        let context =
            NodeContext { run: Some(&run), machine: Some(&machine), ..NodeContext::default() };
        let told = node(state).explain(context, at(9));
        assert!(told.headline.contains("failed at step drain"), "{}", told.headline);
        assert_eq!(told.fault, Some(FaultCode::ClusterUnreachable));
        assert_eq!(told.failed, "cluster cluster-a: no answer within 5s");
        assert_eq!(told.next_commands[0], "farrier cluster check cluster-a", "{told:?}");
        super::check_commands(&told, state.as_str());
    }
}

/// A machine whose system was removed is not called new, and an off one is called off.
#[test]
fn a_decommissioned_machine_is_not_new() {
    use ConditionType::{Provisioned, Reachable};
    let new = "m-1 is new: registered, and never provisioned";
    let removed = "m-1 is out of use: it has no system any more (Released)";
    for (provisioned, off, headline) in [
        (false, false, new.to_string()),
        (true, false, removed.to_string()),
        (true, true, format!("{removed}; it is switched off; Reachable is false: PoweredOff")),
        (false, true, format!("{new}; it is switched off; Reachable is false: PoweredOff")),
    ] {
        let mut machine =
            Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
        if provisioned {
            machine.learn(&[ConditionObservation::new(Provisioned, true, "Image:a")], at(1));
            machine.learn(&[ConditionObservation::new(Provisioned, false, "Released")], at(2));
        }
        if off {
            machine.learn(&[ConditionObservation::new(Reachable, false, POWERED_OFF)], at(3));
        }
        let told = explain_machine(&machine, None, Default::default(), at(9));
        assert_eq!(told.headline, headline);
        assert_eq!(told.since, provisioned.then(|| at(2)));
    }
}
