//! The pairs of node state and workflow state that are consistent (4.3, 5.3), and the MAAS states
//! that are expected (6.2). Numbers are sections of maas-node-states.md.

use super::node_runs::NodeRunDriver;
use super::{Work, run, state};
use crate::support::at;
use model::fault::FaultCode;
use model::node::follow::leaves_disabled;
use model::node::heartbeat::proves_return;
use model::node::{
    DecommissionMode, MaasState, NodeStage, NodeState, is_consistent, is_expected_maas_state,
};
use model::run::{Run, Workflow};

/// Section 4.3, and then what it leaves open: a compensation is onboarding in progress; a canceled
/// onboarding leaves its node in quarantine; a failed one may have been quarantined by an operator;
/// and after its end heartbeats decide.
const ONBOARDING: [(&str, &[&str], &[&str]); 8] = [
    ("pending", &["enrolling"], &[]),
    ("running", &["enrolling"], &[]),
    ("failed_retryable", &["enrolling"], &[]),
    ("failed_manual_intervention", &["enrolling", "quarantined"], &[]),
    ("completed", &["active"], &["offline", "quarantined"]),
    ("reconciled", &["active"], &["offline", "quarantined"]),
    ("compensating", &[], &["enrolling"]),
    ("cancelled", &[], &["quarantined"]),
];

/// Section 5.3, and then what it leaves open: while pending, nothing has happened; compensating is
/// work as well; a run that failed or was canceled before the drain leaves the node in a state from
/// which it can be continued.
const DECOMMISSION: [(&str, &[&str], &[&str]); 6] = [
    ("pending", &[], &["active", "offline", "quarantined", "retired"]),
    ("running", &["active", "offline", "quarantined", "draining", "retired", "removing"], &[]),
    ("compensating", &[], &["active", "offline", "quarantined", "draining", "retired", "removing"]),
    ("failed_retryable", &["retired"], &["active", "offline", "quarantined"]),
    ("failed_manual_intervention", &["retired", "quarantined"], &[]),
    ("cancelled", &[], &["active", "offline", "quarantined", "retired"]),
];

/// The states of a node after each mode.
const ENDS: [(DecommissionMode, &str, &[&str]); 7] = [
    (DecommissionMode::FullDecommission, "deleted", &["deleted"]),
    (DecommissionMode::Drain, "retired", &["retired", "offline", "active", "quarantined"]),
    (DecommissionMode::Retire, "retired", &["retired", "offline", "active", "quarantined"]),
    (DecommissionMode::SoftReset, "offline", &["offline", "active", "quarantined", "retired"]),
    (DecommissionMode::Reimage, "offline", &["offline", "active", "quarantined", "retired"]),
    (DecommissionMode::StorageCleanup, "offline", &["offline", "active", "quarantined", "retired"]),
    (DecommissionMode::Reactivate, "offline", &["offline", "active", "quarantined", "retired"]),
];

fn in_workflow(work: Work, name: &str) -> Run {
    let mut run = run(work);
    run.progress.workflow = Workflow::parse(name).unwrap_or_else(|| panic!("{name}?"));
    run
}

fn fitting(run: &Run) -> Vec<&'static str> {
    let all = NodeState::ALL.into_iter().filter(|state| is_consistent(*state, run));
    all.map(NodeState::as_str).collect()
}

#[track_caller]
fn same(found: Vec<&'static str>, rows: &[&[&str]], message: &str) {
    let mut expected: Vec<&str> = rows.concat();
    expected.sort_by_key(|name| state(name));
    assert_eq!(found, expected, "{message}");
}

#[test]
fn every_row_of_onboarding() {
    assert_eq!(ONBOARDING.len(), Workflow::ALL.len());
    for (name, document, open) in ONBOARDING {
        let mut run = in_workflow(Work::Onboard, name);
        same(fitting(&run), &[document, open], name);
        // A rerun may work on the node of a canceled onboarding, which is quarantined.
        run.spec.rerun_of = Some(run.spec.id.clone());
        let mut both = [document, open].concat();
        if !both.contains(&"quarantined") {
            both.push("quarantined");
        }
        same(fitting(&run), &[&both], name);
    }
}

#[test]
fn every_row_of_decommission() {
    for mode in DecommissionMode::ALL {
        for (name, document, open) in DECOMMISSION {
            let run = in_workflow(Work::Take(mode), name);
            same(fitting(&run), &[document, open], &format!("{mode} {name}"));
        }
    }
}

/// An active node is schedulable: beside a drain that failed after it was disabled, none is.
#[test]
fn a_disabled_node_is_not_active() {
    for mode in DecommissionMode::ALL {
        let mut driver = NodeRunDriver::of(Work::Take(mode), NodeState::Active);
        let empties = mode.stages(true).contains(&NodeStage::DrainNode);
        if !empties {
            continue;
        }
        driver.until(NodeStage::DrainNode).fail(FaultCode::TaskFailed);
        assert_eq!(driver.run.progress.workflow, Workflow::FailedRetryable, "{mode}");
        assert!(leaves_disabled(&driver.run), "{mode}");
        same(fitting(&driver.run), &[&["retired", "offline", "quarantined"]], mode.as_str());
        let after = Some(at(1_000_000));
        assert!(!proves_return(after, Some(&driver.run)), "{mode}: a heartbeat returns it");
        driver.run.progress.workflow = Workflow::Cancelled;
        assert!(!leaves_disabled(&driver.run), "a cancel undoes it");
        assert!(proves_return(after, Some(&driver.run)), "{mode}");
    }
}

#[test]
fn every_end_of_decommission() {
    assert_eq!(ENDS.len(), DecommissionMode::ALL.len());
    for (mode, ends_in, row) in ENDS {
        assert_eq!(mode.ends_in(), state(ends_in));
        for name in ["completed", "reconciled"] {
            let run = in_workflow(Work::Take(mode), name);
            same(fitting(&run), &[row], &format!("{mode} {name}"));
        }
    }
}

/// Section 6.2, and then what it leaves open: MAAS tests while it commissions; states on the way to
/// Ready or to a new installation are fine; a released machine may be New again.
const EXPECTED: [(&str, &[&str], &[&str]); 7] = [
    (
        "enrolling",
        &["New", "Commissioning", "Ready", "Allocated", "Deploying", "Deployed"],
        &["Testing"],
    ),
    ("active", &["Deployed"], &[]),
    ("offline", &["Deployed"], &[]),
    (
        "quarantined",
        &["Ready", "Broken", "Failed deployment", "Deployed", "absent"],
        &[
            "New",
            "Failed commissioning",
            "Missing",
            "Releasing failed",
            "Failed disk erasing",
            "Failed to enter rescue mode",
            "Failed to exit rescue mode",
            "Failed testing",
        ],
    ),
    ("draining", &["Deployed", "Ready"], &[]),
    (
        "retired",
        &["Deployed", "Ready"],
        &["New", "Releasing", "Disk erasing", "Allocated", "Deploying"],
    ),
    ("removing", &["Ready", "absent"], &["Deployed", "New", "Releasing", "Disk erasing"]),
];

#[test]
fn every_row_of_what_maas_is_expected_to_say() {
    for (node, document, open) in EXPECTED {
        for upstream in MaasState::ALL {
            let named = document.contains(&upstream.as_str()) || open.contains(&upstream.as_str());
            assert_eq!(
                is_expected_maas_state(state(node), upstream),
                named,
                "{node} and {upstream}"
            );
        }
    }
    for anything in ["bootstrap_issued", "deleted"] {
        for upstream in MaasState::ALL {
            assert!(is_expected_maas_state(state(anything), upstream), "{anything} and {upstream}");
        }
    }
}

/// The numbers and names of the MAAS API.
#[test]
fn maas_says_it_in_numbers() {
    let names = [
        "New",
        "Commissioning",
        "Failed commissioning",
        "Missing",
        "Ready",
        "Reserved",
        "Deployed",
        "Retired",
        "Broken",
        "Deploying",
        "Allocated",
        "Failed deployment",
        "Releasing",
        "Releasing failed",
        "Disk erasing",
        "Failed disk erasing",
        "Rescue mode",
        "Entering rescue mode",
        "Failed to enter rescue mode",
        "Exiting rescue mode",
        "Failed to exit rescue mode",
        "Testing",
        "Failed testing",
    ];
    for (number, name) in names.into_iter().enumerate() {
        assert_eq!(MaasState::of_number(number as i64).as_str(), name);
    }
    for other in [-1, 23, 24, i64::MAX] {
        assert_eq!(MaasState::of_number(other), MaasState::Unknown, "{other}");
    }
    let given_up = MaasState::ALL.into_iter().filter(|one| one.failed()).count();
    assert_eq!(given_up, 9);
}
