//! Overrides: what a request may name, which gates it passes, and what is recorded.

use crate::approval;
use crate::machine::admit::admit_with_override;
use crate::machine::disk_write::half_written;
use crate::nodes::{Work, node, run as node_run};
use model::blast_radius::{AffectedMachine, Impact, ImpactObjection, check_impact};
use model::effect::DesiredPower;
use model::gate::{
    self, DELETE_RACK, Gate, ONBOARD_NODE, Overrides, RACK_MAINTENANCE, REACTIVATE_NODE,
    RELEASE_NODE, name_all, without_overrides,
};
use model::health::{BlockingAlert, HealthImpact, HealthSummary};
use model::id::{MachineId, RackId};
use model::node::requests::{NodeContext, NodeRequest, apply_request};
use model::node::{AgentTaskContext, DecommissionMode, NodeStage, NodeState};
use model::plan::{Params, RunType};
use model::power_shelf::ShelfPowerRequest;
use model::rack::maintenance::check_empty;
use model::refusal::{Reason, Refusal};
use model::run::Workflow;
use model::target::{TargetId, TargetKind};
use std::collections::BTreeSet;

fn words(gates: &[&str]) -> Vec<String> {
    gates.iter().map(ToString::to_string).collect()
}

fn params(pairs: &[(&str, &str)]) -> Params {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

#[test]
fn words_are_unique_and_read_back() {
    let all: BTreeSet<&str> = Gate::ALL.iter().map(|gate| gate.as_str()).collect();
    assert_eq!(all.len(), Gate::ALL.len());
    for gate in Gate::ALL {
        assert_eq!(Gate::parse(gate.as_str()), Some(gate));
        assert_eq!(serde_json::to_value(gate).unwrap(), gate.as_str(), "stored as it is printed");
        assert!(gate.sentence().ends_with('.'), "{gate}");
    }
    assert_eq!(Gate::parse("In-Service"), None);
}

/// A decision that only this gate refuses, under an override. The agent and MAAS refuse nothing:
/// their decision is whether the operation does without them.
fn decide(gate: Gate, overrides: &Overrides) -> Result<(), Refusal> {
    match gate {
        Gate::InService => {
            let machine = MachineId::trusted("m-1");
            let affected = AffectedMachine { machine, objection: Some(ImpactObjection::InService) };
            check_impact("it", Impact::PowerLoss, &[affected], overrides)
        }
        Gate::Health => {
            let target = TargetId::new(TargetKind::Machine, "m-1");
            let bar = BlockingAlert {
                source: "leak".into(),
                alert: "water".into(),
                message: "wet".into(),
            };
            let ill = HealthSummary { state_changes: Some(bar), ..HealthSummary::default() };
            ill.check_permitted(&target, "REBOOT", HealthImpact::Change, overrides)
        }
        Gate::NodeHealth => {
            let request =
                NodeRequest::Release { why: "cooled".into(), overrides: overrides.clone() };
            let known = NodeContext { run: None, healthy: false };
            apply_request(&node(NodeState::Quarantined), &request, known).map(drop)
        }
        Gate::Cleanup => {
            let mut run = node_run(Work::Take(DecommissionMode::SoftReset));
            run.progress.workflow = Workflow::FailedRetryable;
            let request =
                NodeRequest::Reactivate { why: String::new(), overrides: overrides.clone() };
            let known = NodeContext { run: Some(&run), healthy: true };
            apply_request(&node(NodeState::Retired), &request, known).map(drop)
        }
        Gate::Agent => {
            let mut run = node_run(Work::Take(DecommissionMode::Retire));
            overrides.store_in(&mut run.spec.params);
            let context = AgentTaskContext {
                run: &run,
                state: NodeState::Draining,
                has_agent: true,
                agent_answers: true,
                released: false,
            };
            match context.skip_reason(NodeStage::DrainNode) {
                Some(_) => Ok(()),
                None => Err(Refusal::new(Reason::NotReady, "waits").at_gate(gate)),
            }
        }
        Gate::Maas => match overrides.passes(Gate::Maas) {
            true => Ok(()),
            false => Err(Refusal::new(Reason::NotReady, "waits").at_gate(gate)),
        },
        Gate::Devices => check_empty(&RackId::trusted("rack-1"), 2, overrides),
        Gate::UnfinishedDisk => {
            let machine = half_written(Some(60));
            admit_with_override(&machine, RunType::ExitMaintenance, &[], overrides)
        }
        Gate::Budget => {
            let refused = model::budget::refuse("it", &[crate::budget::exhausted()], overrides);
            refused.map_or(Ok(()), Err)
        }
        Gate::Window | Gate::Freeze => {
            let refused = crate::window::closed(gate).refuse("it", overrides);
            refused.map_or(Ok(()), Err)
        }
        // The engine asks it with the stored policy. Its command is an approval, not an override.
        Gate::Approval => match overrides.passes(Gate::Approval) {
            true => Ok(()),
            false => {
                let waits = approval::pending("apr-1", &approval::proposal("r-1", &[]));
                Err(Refusal { next_command: None, ..waits.required(None) })
            }
        },
    }
}

/// The gates that an override names by their word alone. Of the others there are several.
fn named_by_word() -> impl Iterator<Item = Gate> {
    let several = [Gate::Budget, Gate::Window, Gate::Freeze];
    Gate::ALL.into_iter().filter(move |gate| !several.contains(gate))
}

/// Each gate is passed when it is named, and by no other name.
#[test]
fn only_the_named_gate_is_passed() {
    for gate in named_by_word() {
        let refusal = decide(gate, &Overrides::default()).unwrap_err();
        assert_eq!(refusal.gate, Some(gate));
        assert!(refusal.message.ends_with(&format!("(gate {gate})")), "{refusal}");
        for named in named_by_word() {
            let decision = decide(gate, &Overrides::of(&[named], "fire"));
            assert_eq!(decision.is_ok(), named == gate, "{gate} with {named}");
            if let Err(refusal) = decision
                && let Some(next) = refusal.next_command
            {
                let both: Vec<&str> = Gate::ALL
                    .iter()
                    .filter(|one| [gate, named].contains(one))
                    .map(|one| one.as_str())
                    .collect();
                let flags = format!("--override {} --reason …", both.join(","));
                assert!(next.contains(&flags), "{next}");
            }
        }
        let others: Vec<Gate> = Gate::ALL.into_iter().filter(|one| *one != gate).collect();
        assert!(decide(gate, &Overrides::of(&others, "fire")).is_err(), "{gate}");
        assert!(decide(gate, &Overrides::of(&Gate::ALL, "fire")).is_ok(), "{gate}");
    }
}

#[test]
fn an_override_is_checked_against_the_gates_of_its_request() {
    let long = "x".repeat(1_025);
    let longest = "x".repeat(1_024);
    for (gates, reason, refused) in [
        (&[][..], "", None),
        (&["health"], "fire", None),
        (&["health", "in-service", "health"], "fire", None),
        (&["health"], longest.as_str(), None),
        (&["health"], "", Some("gate_override.reason is required")),
        (&["health"], "  ", Some("gate_override.reason is required")),
        (&["health"], &long, Some("gate_override.reason is 1025 bytes long")),
        (&[], "fire", Some("gate_override.reason is given without a gate; name the gate")),
        (
            &["heat"],
            "fire",
            Some("gate_override.gates[0] is \"heat\", which cannot be overridden; "),
        ),
        (&[""], "fire", Some("gate_override.gates[0] is \"\", which cannot be overridden; ")),
        (
            &["health", "devices"],
            "fire",
            Some("gate_override.gates[1] is devices, which is not a gate of this request; "),
        ),
        (&["held"], "fire", Some("which cannot be overridden; the gates of this request")),
    ] {
        let parsed = Overrides::parse(&words(gates), reason, RACK_MAINTENANCE);
        match (parsed, refused) {
            (Ok(overrides), None) => {
                for gate in Gate::ALL {
                    assert_eq!(overrides.passes(gate), gates.contains(&gate.as_str()));
                }
                assert_eq!(overrides.reason(), reason);
            }
            (Err(refusal), Some(text)) => {
                assert!(refusal.message.contains(text), "{refusal}");
                assert!(refusal.field.is_some());
                if text.contains("gates[") {
                    let listed =
                        "in-service, health, budget:NAME, window:NAME, freeze:NAME, approval";
                    assert!(refusal.message.ends_with(listed), "{refusal}");
                }
            }
            (parsed, refused) => panic!("{gates:?} {reason:?}: {parsed:?}, not {refused:?}"),
        }
    }
}

#[test]
fn every_gate_belongs_to_a_request() {
    let target = |kind| TargetId::new(kind, "x");
    let shelf = gate::component_firmware(&[target(TargetKind::PowerShelf)]);
    let mixed =
        gate::component_firmware(&[target(TargetKind::PowerShelf), target(TargetKind::Machine)]);
    assert_eq!((shelf, mixed), (&[Gate::Health, Gate::Approval][..], RACK_MAINTENANCE));
    assert_eq!(gate::shelf_power(DesiredPower::On), [Gate::Health, Gate::Approval]);
    assert_eq!(gate::shelf_power(DesiredPower::Off), RACK_MAINTENANCE);
    let modes = DecommissionMode::ALL.map(gate::decommission);
    let requests =
        [ONBOARD_NODE, RACK_MAINTENANCE, DELETE_RACK, RELEASE_NODE, REACTIVATE_NODE, shelf];
    let runs = RunType::ALL.map(gate::machine_run);
    let all: BTreeSet<Gate> =
        requests.iter().chain(&modes).chain(&runs).copied().flatten().copied().collect();
    assert_eq!(all, Gate::ALL.into_iter().collect());
}

#[test]
fn when_several_gates_refuse_the_command_names_all_of_them() {
    let refusal = |gate| decide(gate, &Overrides::default()).unwrap_err();
    let mut refusals = [
        Refusal::new(Reason::RackNotReady, "not ready").next("farrier why rack-1"),
        refusal(Gate::Health),
        refusal(Gate::InService),
    ];
    name_all(&mut refusals, &Overrides::default());
    let next: Vec<&str> = refusals.iter().filter_map(|one| one.next_command.as_deref()).collect();
    assert_eq!(next[0], "farrier why rack-1");
    for next in &next[1..] {
        assert!(next.contains("--override in-service,health --reason …"), "{next}");
    }
}

#[test]
fn the_history_tells_passed_gates_from_named_ones() {
    let overrides = Overrides::of(&[Gate::Health, Gate::InService], "a fire");
    for (refusing, expected) in [
        (
            &[Gate::InService, Gate::Health][..],
            "; gate in-service overridden by ada: a fire; gate health overridden by ada: a fire",
        ),
        (
            &[Gate::InService],
            "; gate in-service overridden by ada: a fire; gate health named by ada, and it did not refuse: a fire",
        ),
    ] {
        assert_eq!(overrides.history_note("ada", refusing), expected);
    }
    assert_eq!(Overrides::default().history_note("ada", &Gate::ALL), "");
}

#[test]
fn a_run_keeps_its_override_and_older_versions_are_understood() {
    let stored = |gates: &[Gate], reason: &str| {
        let mut params = params(&[("image_ref", "u"), ("forced", "an old one")]);
        Overrides::of(gates, reason).store_in(&mut params);
        params
    };
    let in_service = [Gate::InService, Gate::Health];
    for (params, gates, reason) in [
        (stored(&[Gate::Health], "dry"), &[Gate::Health][..], "dry"),
        (stored(&Gate::ALL, "dry"), &Gate::ALL, "dry"),
        (stored(&[], ""), &[], ""),
        (params(&[("image_ref", "u")]), &[], ""),
        (params(&[("image_ref", "u"), ("forced", "fire")]), &in_service, "fire"),
        (params(&[("image_ref", "u"), ("health_override", "dry")]), &[Gate::Health], "dry"),
        (params(&[("image_ref", "u"), ("without_agent", "dead")]), &[Gate::Agent], "dead"),
        (
            params(&[("image_ref", "u"), ("without_agent", "dead"), ("without_maas", "gone")]),
            &[Gate::Agent, Gate::Maas],
            "dead; gone",
        ),
    ] {
        assert_eq!(Overrides::of_params(&params), Overrides::of(gates, reason), "{params:?}");
        assert_eq!(without_overrides(params).len(), 1);
    }
}

#[test]
fn a_stored_request_of_a_shelf_is_read_whatever_version_wrote_it() {
    let read = |fields: &str| {
        let text = format!(r#"{{"requested_at":1,"initiator":"ada","operation":"OFF"{fields}}}"#);
        serde_json::from_str::<ShelfPowerRequest>(&text).unwrap().overrides
    };
    let fire = Overrides::of(&[Gate::InService, Gate::Health], "fire");
    for (fields, expected) in [
        ("", Overrides::default()),
        (r#","forced":null"#, Overrides::default()),
        (r#","forced":"fire""#, fire.clone()),
        (r#","overrides":{"gates":["in-service","health"],"reason":"fire"}"#, fire),
        (r#","overrides":{"gates":[],"reason":""}"#, Overrides::default()),
    ] {
        assert_eq!(read(fields), expected, "{fields}");
    }
}

#[test]
fn a_dry_run_names_the_gates_of_an_override() {
    let both = Overrides::of(&[Gate::InService, Gate::Health], "fire");
    let passed = "gate in-service refuses it, and the override passes it";
    let idle = "gate health is named by the override, and does not refuse it";
    assert_eq!(both.describe(&[Gate::InService, Gate::Devices]), [passed, idle]);
    assert!(Overrides::default().describe(&Gate::ALL).is_empty());
}

#[test]
fn a_part_of_an_override_keeps_its_reason() {
    let both = Overrides::of(&[Gate::InService, Gate::Health], "fire");
    assert_eq!(both.only(&[Gate::Health]), Overrides::of(&[Gate::Health], "fire"));
    assert_eq!(both.only(&[Gate::Devices]), Overrides::default());
}
