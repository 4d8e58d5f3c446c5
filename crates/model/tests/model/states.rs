//! The pages in docs/states match the lifecycles exactly.

use crate::explore::{Chart, Edge, Explore, StateEntry, chart};
use crate::support::{netboot, wipe};
use crate::walk::moves;
use model::host::Host;
use model::node::Node;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::rollout::Rollout;
use model::run::{RunPhase, Workflow};
use model::site::Site;
use model::switch::Switch;
use model::why::explain_run;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Set by `cargo xtask states`: the pages are written instead of compared.
const REWRITE: &str = "FARRIER_REWRITE_STATES";

#[track_caller]
fn check_page(file: &str, chart: &Chart) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/states").join(file);
    let page = chart.page();
    if std::env::var_os(REWRITE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, page).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(known, page, "docs/states/{file} is out of date; run `cargo xtask states`");
}

fn drawn<R: Explore>() -> Chart {
    chart::<R>().unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// All transitions between states, without their causes.
fn transitions(chart: &Chart) -> BTreeSet<(&str, &str)> {
    let edges = chart.edges.iter();
    edges.map(|edge| (edge.from.as_str(), edge.to.as_deref().unwrap_or("(gone)"))).collect()
}

#[test]
fn the_power_shelf() {
    let chart = drawn::<PowerShelf>();
    // The document's transitions, and those out of Error: a shelf that could not be read is read
    // after a power change.
    let expected = [
        ("Initializing", "FetchingData"),
        ("FetchingData", "Configuring"),
        ("FetchingData", "Error"),
        ("Configuring", "Ready"),
        ("Configuring", "Error"),
        ("Ready", "Maintenance"),
        ("Ready", "Deleting"),
        ("Maintenance", "Ready"),
        ("Maintenance", "FetchingData"),
        ("Maintenance", "Error"),
        ("Error", "Maintenance"),
        ("Error", "FetchingData"),
        ("Error", "Ready"),
        ("Error", "Deleting"),
        ("Deleting", "(gone)"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("power_shelf.md", &chart);
}

#[test]
fn the_switch() {
    let chart = drawn::<Switch>();
    let expected = [
        ("Created", "Initializing"),
        ("Created", "Deleting"),
        ("Initializing", "Configuring"),
        ("Initializing", "Error"),
        ("Configuring", "Validating"),
        ("Configuring", "Error"),
        ("Validating", "Ready"),
        ("Validating", "Error"),
        ("Ready", "ReProvisioning"),
        ("Ready", "Deleting"),
        ("ReProvisioning", "Validating"),
        ("ReProvisioning", "Deleting"),
        ("Error", "Initializing"),
        ("Error", "ReProvisioning"),
        ("Error", "Deleting"),
        ("Deleting", "(gone)"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("switch.md", &chart);
}

#[test]
fn the_rack() {
    let chart = drawn::<Rack>();
    let expected = [
        ("Created", "Discovering"),
        ("Discovering", "Discovering"),
        ("Discovering", "Maintenance"),
        ("Discovering", "Error"),
        ("Discovering", "Deleting"),
        ("Maintenance", "Maintenance"),
        ("Maintenance", "Validating"),
        ("Maintenance", "Error"),
        ("Validating", "Maintenance"),
        ("Validating", "Validating"),
        ("Validating", "Ready"),
        ("Validating", "Error"),
        ("Ready", "Discovering"),
        ("Ready", "Maintenance"),
        ("Ready", "Ready"),
        ("Ready", "Deleting"),
        ("Error", "Discovering"),
        ("Error", "Maintenance"),
        ("Error", "Error"),
        ("Error", "Deleting"),
        ("Deleting", "(gone)"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("rack.md", &chart);
}

#[test]
fn the_host() {
    let chart = drawn::<Host>();
    let (checking, waiting, failed) =
        ("CheckingFirmwareV2", "WaitingForRackFirmwareUpgrade", "FailedFirmwareUpgrade");
    let expected = [
        ("Ready", checking),
        ("Ready", waiting),
        (checking, checking),
        (checking, waiting),
        (checking, "Ready"),
        (checking, failed),
        (waiting, waiting),
        (waiting, "Ready"),
        (waiting, failed),
        (failed, checking),
        (failed, waiting),
        (failed, "Ready"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("host.md", &chart);
}

#[test]
fn the_node() {
    let chart = drawn::<Node>();
    // Section 3.2 of maas-node-states.md, line by line.
    let expected = [
        ("bootstrap_issued", "enrolling"),
        ("enrolling", "active"),
        ("enrolling", "quarantined"),
        ("active", "offline"),
        ("offline", "active"),
        ("active", "quarantined"),
        ("offline", "quarantined"),
        ("quarantined", "active"),
        ("quarantined", "draining"),
        ("active", "draining"),
        ("offline", "draining"),
        ("draining", "retired"),
        ("draining", "offline"),
        ("retired", "offline"),
        ("retired", "removing"),
        ("removing", "retired"),
        ("removing", "deleted"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("node.md", &chart);
}

#[test]
fn the_site() {
    let chart = drawn::<Site>();
    let expected = [
        ("New", "Connected"),
        ("New", "Unreachable"),
        ("New", "CutOff"),
        ("Connected", "Unreachable"),
        ("Connected", "CutOff"),
        ("Unreachable", "Connected"),
        ("Unreachable", "CutOff"),
        ("CutOff", "New"),
        ("CutOff", "Connected"),
        ("CutOff", "Unreachable"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("site.md", &chart);
}

#[test]
fn the_rollout() {
    let chart = drawn::<Rollout>();
    let expected = [
        ("Waiting", "Running"),
        ("Waiting", "Paused"),
        ("Running", "Soaking"),
        ("Running", "Paused"),
        ("Running", "Aborting"),
        ("Running", "Done"),
        ("Soaking", "Running"),
        ("Soaking", "AwaitingApproval"),
        ("Soaking", "Paused"),
        ("AwaitingApproval", "Running"),
        ("AwaitingApproval", "Paused"),
        ("Paused", "Running"),
        ("Paused", "AwaitingApproval"),
        ("Paused", "Aborting"),
        ("Aborting", "Aborted"),
        ("Done", "Running"),
        ("Done", "(gone)"),
        ("Aborted", "(gone)"),
    ];
    assert_eq!(transitions(&chart), expected.into());
    check_page("rollout.md", &chart);
}

/// An explanation with the names of this plan replaced by placeholders.
fn anonymize(text: &str, id: &str) -> String {
    let text = text.replace(id, "<operation>").replace("m-1", "<machine>");
    ["set-netboot", "netboot", "wipe"].iter().fold(text, |text, step| {
        text.replace(&format!("step undo-{step}"), "step …")
            .replace(&format!("step {step}"), "step …")
    })
}

fn run_chart() -> Chart {
    let (found, states) = moves(vec![netboot(0), wipe(1)]);
    let mut stays: BTreeMap<&str, StateEntry> = BTreeMap::new();
    let mut commands: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (run, now) in &states {
        let name = run.progress.workflow.as_str();
        let reported = explain_run(run, Default::default(), *now);
        let id = run.spec.id.as_str();
        let stay = stays.entry(name).or_default();
        if !reported.waiting_for.is_empty() {
            let waits = anonymize(&reported.waiting_for, id);
            stay.waits.insert(waits.split(" (").next().unwrap_or_default().to_string());
        }
        let next = reported.next_commands.iter().map(|one| format!("`{}`", anonymize(one, id)));
        commands.entry(name).or_default().extend(next);
    }
    let stays = Workflow::ALL.into_iter().map(|workflow| {
        let name = workflow.as_str();
        let mut stay = stays.remove(name).unwrap_or_default();
        stay.state = name.into();
        if stay.waits.is_empty() {
            let ended = matches!(workflow.phase(), RunPhase::Failed);
            let waits = if ended { "a person" } else { "nothing: it has ended" };
            stay.waits.insert(waits.into());
        }
        let known = commands.remove(name).unwrap_or_default();
        stay.advice = known.into_iter().collect::<Vec<_>>().join(", ");
        stay
    });
    let mut pairs: BTreeMap<(usize, usize), BTreeSet<String>> = BTreeMap::new();
    let position = |name: &str| Workflow::ALL.iter().position(|one| one.as_str() == name).unwrap();
    for (from, to, when, halt) in found.into_iter().filter(|(from, to, ..)| from != to) {
        // A stop request on a run that has ended has no effect.
        let halt = halt.filter(|_| !Workflow::ALL[position(from)].ended());
        let requested = match halt {
            None => "",
            Some(true) => ", asked to cancel",
            Some(false) => ", asked to freeze",
        };
        let whens = pairs.entry((position(from), position(to))).or_default();
        whens.insert(format!("{when}{requested}"));
    }
    let name = |index: usize| Workflow::ALL[index].as_str().to_string();
    let edges = pairs.into_iter().map(|((from, to), when)| Edge {
        from: name(from),
        to: Some(name(to)),
        when,
        message: String::new(),
    });
    Chart {
        title: "The states of a run".into(),
        about: "A run, which customers call an operation, carries out a plan step by step. These are the eight workflow states that operators \
                see. Rerun and restart-clean make a new run out of an ended one, and are not among the moves."
            .into(),
        begins: Workflow::Pending.as_str().into(),
        states: stays.collect(),
        edges: edges.collect(),
    }
}

#[test]
fn the_run() {
    let chart = run_chart();
    assert!(chart.states.iter().all(|stay| !stay.advice.is_empty()));
    check_page("run.md", &chart);
}
