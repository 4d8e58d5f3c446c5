//! All details of one node: its state, its workflow, its MAAS status, its agent, and the next
//! commands.

use crate::operation::workflow_name;
use crate::table::format_pairs;
use crate::text::join_pairs;
use crate::time::Clock;
use crate::why::format_next_commands;
use proto::v1::{AgentStatus, Node, NodeDetail, NodeState, ObservedMachine, Run};
use proto::words::WireEnum;

pub fn describe(detail: &NodeDetail, clock: &Clock) -> String {
    let node = detail.node.clone().unwrap_or_default();
    let layers = [
        node_facts(&node, detail.quarantine_cause().word(), clock),
        detail.workflow.as_ref().map(|run| workflow_facts(detail, run, clock)).unwrap_or_default(),
        detail
            .observed
            .as_ref()
            .map(|observed| maas_facts(observed, node.state().word(), clock))
            .unwrap_or_default(),
        match node.state() == NodeState::Deleted {
            // A deleted node has no agent, and no machine in MAAS.
            true => Facts::new(),
            false => agent_facts(&detail.agent.clone().unwrap_or_default(), clock),
        },
    ];
    let all: Facts = layers.into_iter().flatten().filter(|(_, value)| !value.is_empty()).collect();
    // The user has just typed this command.
    let typed = format!("farrier node get {}", node.node_id);
    let next: Vec<String> =
        detail.recommended.iter().filter(|command| **command != typed).cloned().collect();
    format!("{}{}", format_pairs(&all), format_next_commands(&next))
}

type Facts = Vec<(&'static str, String)>;

fn node_facts(node: &Node, cause: &str, clock: &Clock) -> Facts {
    let cause = if cause.is_empty() { String::new() } else { format!(" ({cause})") };
    let by = match node.moved_by().word() {
        "" => String::new(),
        owner => format!(", by {owner}"),
    };
    let since = clock.ago(node.since.as_ref());
    vec![
        ("Node:", node.node_id.clone()),
        ("State:", format!("{}{cause}, since {since}{by}", node.state().word())),
        ("Reason:", node.reason.clone()),
        ("Machine:", node.machine_id.clone()),
        ("Site:", node.site_id.clone()),
        ("Labels:", join_pairs(&node.labels, ",")),
        ("Created:", clock.absolute(node.created_at.as_ref())),
    ]
}

fn workflow_facts(detail: &NodeDetail, run: &Run, clock: &Clock) -> Facts {
    let attempts = if detail.attempts > 0 { detail.attempts.to_string() } else { String::new() };
    let failure = match (detail.failure_class().word(), detail.failure_code.as_str()) {
        ("", "") => String::new(),
        (class, "") => class.to_string(),
        (class, code) => format!("{class}, {code}  (farrier fault {code})"),
    };
    let lasted = clock.elapsed(run.started_at.as_ref(), run.finished_at.as_ref());
    vec![
        (
            "Workflow:",
            format!("{} {}, {lasted}", detail.workflow_kind().word(), workflow_name(run)),
        ),
        ("Operation:", run.run_id.clone()),
        ("Step:", detail.stage.clone()),
        ("Attempts:", attempts),
        ("Failure:", failure),
        ("Said:", detail.failure.clone()),
    ]
}

fn maas_facts(observed: &ObservedMachine, node_state: &str, clock: &Clock) -> Facts {
    let fits = match observed.expected {
        true => String::new(),
        false => format!(", which is not what is expected of a node that is {node_state}"),
    };
    let power = match observed.powered_on {
        None => "",
        Some(true) => "on",
        Some(false) => "off",
    };
    // `at` is when MAAS first reported this state; `asked_at` is the last time MAAS was called.
    let at = clock.ago(observed.at.as_ref());
    let requested = match &observed.asked_at {
        Some(requested) => format!(", asked {}", clock.ago(Some(requested))),
        None => String::new(),
    };
    vec![
        ("MAAS:", format!("{}{fits}, first seen {at}{requested}", observed.state)),
        ("MAAS says:", observed.message.clone()),
        ("MAAS power:", power.into()),
        ("System id:", observed.system_id.clone()),
    ]
}

fn agent_facts(agent: &AgentStatus, clock: &Clock) -> Facts {
    let heartbeat = match (&agent.heard_at, agent.enrolled) {
        (None, false) => return vec![("Agent:", "none has enrolled".into())],
        (None, true) => "no heartbeat since it enrolled".to_string(),
        (Some(at), false) if agent.enrolled_at.is_some() => {
            let message = format!("not enrolled any more, last heartbeat {}", clock.ago(Some(at)));
            return vec![("Agent:", message)];
        }
        (Some(at), true | false) => format!("last heartbeat {}", clock.ago(Some(at))),
    };
    let how = match (agent.silent, agent.problems.as_str()) {
        (true, _) => "silent since then".to_string(),
        (false, "") => "healthy".to_string(),
        (false, problems) => format!("problems: {problems}"),
    };
    let requester = [agent.hostname.as_str(), agent.version.as_str()];
    let requester: Vec<&str> = requester.into_iter().filter(|name| !name.is_empty()).collect();
    vec![
        ("Agent:", format!("{heartbeat}, {how}")),
        ("Agent on:", requester.join(", ")),
        ("Enrolled:", agent.enrolled_at.map(|at| clock.absolute(Some(&at))).unwrap_or_default()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::WorkflowState;
    use proto::v1::{FaultClass, NodeTransitionOwner, NodeWorkflow, QuarantineCause};

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn the_three_layers_stand_side_by_side() {
        let detail = NodeDetail {
            node: Some(Node {
                node_id: "node-1".into(),
                state: NodeState::Quarantined.into(),
                machine_id: "machine-1".into(),
                site_id: "site-a".into(),
                reason: "its onboarding is blocked".into(),
                moved_by: NodeTransitionOwner::Onboarding.into(),
                since: at(40),
                created_at: at(10),
                ..Node::default()
            }),
            workflow: Some(Run {
                run_id: "op-1".into(),
                workflow_state: WorkflowState::FailedManualIntervention.into(),
                started_at: at(10),
                finished_at: at(40),
                ..Run::default()
            }),
            workflow_kind: NodeWorkflow::Onboarding.into(),
            stage: "configure_storage".into(),
            attempts: 2,
            failure_class: FaultClass::NeedsIntervention.into(),
            failure_code: "boot-disk-missing".into(),
            failure: "no disk has BOSS in its model".into(),
            observed: Some(ObservedMachine {
                system_id: "abc123".into(),
                state: "New".into(),
                powered_on: Some(false),
                at: at(95),
                asked_at: at(98),
                ..ObservedMachine::default()
            }),
            agent: None,
            recommended: vec!["farrier why op-1".into(), "farrier node get node-1".into()],
            quarantine_cause: QuarantineCause::Onboarding.into(),
        };
        assert_eq!(
            describe(&detail, &Clock::fixed(100)),
            "\
Node:        node-1
State:       quarantined (onboarding), since 1m 0s ago, by onboarding
Reason:      its onboarding is blocked
Machine:     machine-1
Site:        site-a
Created:     1970-01-01 00:00:10 +00:00
Workflow:    onboarding failed_manual_intervention, 30s
Operation:   op-1
Step:        configure_storage
Attempts:    2
Failure:     needs-intervention, boot-disk-missing  (farrier fault boot-disk-missing)
Said:        no disk has BOSS in its model
MAAS:        New, which is not what is expected of a node that is quarantined, first seen 5s ago, asked 2s ago
MAAS power:  off
System id:   abc123
Agent:       none has enrolled

Type next:
  farrier why op-1
"
        );
    }

    #[test]
    fn a_node_that_is_well_has_a_short_page() {
        let detail = NodeDetail {
            node: Some(Node {
                node_id: "node-1".into(),
                state: NodeState::Active.into(),
                machine_id: "machine-1".into(),
                since: at(40),
                ..Node::default()
            }),
            agent: Some(AgentStatus {
                enrolled: true,
                hostname: "gpu-1".into(),
                version: "0.1.0".into(),
                enrolled_at: at(30),
                heard_at: at(98),
                ..Default::default()
            }),
            ..NodeDetail::default()
        };
        assert_eq!(
            describe(&detail, &Clock::fixed(100)),
            "\
Node:      node-1
State:     active, since 1m 0s ago
Machine:   machine-1
Created:   -
Agent:     last heartbeat 2s ago, healthy
Agent on:  gpu-1, 0.1.0
Enrolled:  1970-01-01 00:00:30 +00:00
"
        );
        // A deleted node has neither an agent nor a machine in MAAS.
        let mut gone = detail.clone();
        gone.node.get_or_insert_default().state = NodeState::Deleted.into();
        assert!(!describe(&gone, &Clock::fixed(100)).contains("Agent"));
        let left = detail.agent.clone().map(|agent| AgentStatus { enrolled: false, ..agent });
        let page = describe(&NodeDetail { agent: left, ..detail }, &Clock::fixed(100));
        assert!(page.contains("not enrolled any more, last heartbeat 2s ago"), "{page}");
    }
}
