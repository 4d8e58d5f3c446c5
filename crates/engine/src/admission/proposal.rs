//! The actions of a request, in the form that another person approves: every line that could make a
//! difference, and the hash of all of them.

use crate::secret::checksum;
use model::access::PermissionSet;
use model::approval::{Proposal, digested_text};
use model::gate::{Overrides, without_overrides};
use model::node::NODE;
use model::plan::{RunStep, RunType};
use model::run::{Run, RunSpec};
use serde::Serialize;

/// The proposal of the runs that a request creates; none if it creates no run.
pub(super) fn of_runs(runs: &[&Run]) -> Option<Proposal> {
    let first = runs.first()?;
    let spec = &first.spec;
    let permissions =
        runs.iter().fold(PermissionSet::EMPTY, |all, run| all.union(run.spec.permissions()));
    let proposal = Proposal {
        request: spec.run_type.as_str().into(),
        // A request without an id has the run's own, which is new every time.
        request_id: match spec.request_id == spec.id.as_str() {
            true => String::new(),
            false => spec.request_id.clone(),
        },
        targets: runs.iter().map(|run| run.spec.target.to_string()).collect(),
        permissions,
        plan: runs.iter().flat_map(|run| run_lines(&run.spec)).collect(),
        digest: String::new(),
        overrides: Overrides::of_params(&spec.params),
        operations: runs.iter().map(|run| run.spec.id.clone()).collect(),
    };
    Some(sealed(proposal))
}

/// The proposal with its digest.
pub(crate) fn sealed(proposal: Proposal) -> Proposal {
    let text = digested_text(&proposal.request, &proposal.targets, &proposal.plan);
    Proposal { digest: checksum(&text), ..proposal }
}

/// The override as a part of what is approved. Without one there is no line.
pub(crate) fn override_lines(overrides: &Overrides) -> Vec<String> {
    let named = overrides.without_approval();
    let reason = named.reason();
    named.words().iter().map(|gate| format!("override of gate {gate}: {reason}")).collect()
}

fn run_lines(spec: &RunSpec) -> Vec<String> {
    let mut lines =
        vec![format!("{} of {} with {}", spec.run_type.as_str(), spec.target, spec.plan_id)];
    if let (Some(of), Some(mode)) = (&spec.rerun_of, spec.restart) {
        lines.push(format!("{} of {of}", mode.as_str()));
    }
    let params = without_overrides(spec.params.clone());
    lines.extend(params.iter().map(|(name, value)| format!("parameter {name}={value}")));
    lines.extend(override_lines(&Overrides::of_params(&spec.params)));
    lines.extend(spec.held_targets.iter().map(|target| format!("holds {target}")));
    for (number, step) in (1..).zip(&spec.steps) {
        lines.extend(step_lines(&format!("step {number}"), step));
    }
    // The ids of what the request creates are new every time.
    let node = spec.params.get(NODE).filter(|_| spec.run_type == RunType::Onboard);
    let new_ids = [(spec.id.as_str(), "OPERATION")].into_iter();
    let new_ids: Vec<(&str, &str)> = match (node, &spec.rerun_of) {
        (Some(node), None) => new_ids.chain([(node.as_str(), "NODE")]).collect(),
        (Some(_) | None, _) => new_ids.collect(),
    };
    let neutral = |line: String| {
        new_ids.iter().fold(line, |line, (id, placeholder)| line.replace(id, placeholder))
    };
    lines.into_iter().map(neutral).collect()
}

/// A step, or the steps of its child runs, each with its device.
pub(crate) fn step_lines(prefix: &str, step: &RunStep) -> Vec<String> {
    let RunStep { name, timeout_seconds, max_retries, effect } = step;
    let mark = if effect.erases() { " (destructive)" } else { "" };
    let head = format!("{prefix} {name}{mark}");
    let limits = format!("within {timeout_seconds} s, retries: {max_retries}");
    let Some(group) = effect.group() else {
        return vec![format!("{head}: {} {limits}", in_json(effect))];
    };
    let mut lines = vec![format!("{head}: {} at once, {limits}", group.max_concurrent)];
    let parts = group.child_runs.iter().map(|child| (child, ""));
    let checks = group.skip_if_all_hold.iter().map(|child| (child, " unless"));
    for (child, role) in parts.chain(checks) {
        let prefix = format!("{prefix}{role} {} {}", child.run_type.as_str(), child.target);
        lines.extend(child.steps.iter().flat_map(|step| step_lines(&prefix, step)));
    }
    lines
}

/// The effect with everything that it says.
fn in_json(value: &impl Serialize) -> String {
    // An effect is stored in this form, so it can be written.
    serde_json::to_string(value).unwrap_or_default()
}
