//! Plans: which ones are refused, and the names of run types.

mod catalogue;
mod resolve;

use model::effect::{
    DesiredPower, Effect, KubeadmOptions, NodeLabels, PowerOffPolicy, RebootMode, RmaAction, Taint,
    TaintEffect,
};
use model::id::PlanId;
use model::plan::{OnFailure, Plan, RunType, Step};

fn step(name: &str) -> Step {
    Step {
        name: name.into(),
        timeout_seconds: None,
        max_retries: None,
        effect: Effect::Reboot {
            mode: RebootMode::Bmc,
            power_off: PowerOffPolicy::PROVIDER_DEFAULT,
        },
    }
}

fn plan(steps: Vec<Step>) -> Plan {
    Plan {
        id: PlanId::trusted("plan-x"),
        display_name: "X".into(),
        steps,
        default_for: None,
        built_in: false,
        on_failure: OnFailure::KeepPhase,
    }
}

#[test]
fn bad_plans_are_refused_with_the_field() {
    let ssh = |command: &str| Step {
        effect: Effect::Ssh { command: command.into(), destructive: false },
        ..step("a")
    };
    let table: Vec<(Vec<Step>, &str)> = vec![
        (vec![], "plan.steps"),
        ((0..65).map(|i| step(&format!("s{i}"))).collect(), "plan.steps"),
        (vec![step("a"), step("b"), step("a")], "plan.steps[2].name"),
        (vec![step("")], "plan.steps[0].name"),
        (vec![step("a b")], "plan.steps[0].name"),
        (vec![step("undo-a")], "plan.steps[0].name"),
        (vec![Step { timeout_seconds: Some(0), ..step("a") }], "plan.steps[0].timeout_seconds"),
        (vec![Step { max_retries: Some(101), ..step("a") }], "plan.steps[0].max_retries"),
        (vec![ssh(" ")], "plan.steps[0].ssh.command"),
        (vec![ssh("a\u{7}")], "plan.steps[0].ssh.command"),
    ];
    for (steps, field) in table {
        let refusal = plan(steps).checked().unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some(field));
    }
    assert!(plan(vec![step("a"), step("b")]).checked().is_ok());
}

/// A step with this effect and a timeout of one minute.
fn minute(effect: Effect) -> Step {
    Step { timeout_seconds: Some(60), effect, ..step("a") }
}

#[test]
fn what_a_step_says_of_power_must_make_sense() {
    let say = |graceful_seconds, force| PowerOffPolicy { graceful_seconds, force };
    let reboot = |mode, power_off| minute(Effect::Reboot { mode, power_off });
    let rma = |action, power_off| minute(Effect::Rma { action, power_off });
    let power = |to, power_off| minute(Effect::Power { to, power_off });
    let never = say(Some(0), Some(false));
    let table = [
        (reboot(RebootMode::Bmc, say(Some(59), Some(true))), None),
        (reboot(RebootMode::Bmc, say(Some(60), None)), Some("reboot.graceful_seconds")),
        (reboot(RebootMode::Bmc, never), Some("reboot.graceful_seconds")),
        (reboot(RebootMode::InBand, say(None, Some(false))), Some("reboot.force")),
        (rma(RmaAction::PowerOff, say(Some(5), Some(false))), None),
        (rma(RmaAction::PowerOff, never), Some("rma.graceful_seconds")),
        (rma(RmaAction::Record, say(Some(5), None)), Some("rma.graceful_seconds")),
        (rma(RmaAction::Mark, say(None, Some(true))), Some("rma.force")),
        (power(DesiredPower::Off, say(Some(0), None)), None),
        (power(DesiredPower::Off, say(Some(61), None)), Some("power.graceful_seconds")),
        (power(DesiredPower::On, PowerOffPolicy::PROVIDER_DEFAULT), None),
        (power(DesiredPower::On, say(None, Some(true))), Some("power.force")),
    ];
    for (step, field) in table {
        let case = format!("{step:?}");
        let refused = plan(vec![step]).checked().err().and_then(|refusal| refusal.field);
        let field = field.map(|field| format!("plan.steps[0].{field}"));
        assert_eq!(refused, field, "{case}");
    }
}

#[test]
fn what_a_step_says_of_a_node_must_make_sense() {
    let drain = |deadline_seconds| {
        minute(Effect::Drain {
            cluster_ref: "c".into(),
            deadline_seconds,
            options: Default::default(),
        })
    };
    let join = |label: &str, taint: &str| {
        minute(Effect::Join {
            cluster_ref: String::new(),
            labels: NodeLabels::from([(label.into(), "a".into())]),
            taints: vec![Taint {
                key: taint.into(),
                value: String::new(),
                effect: TaintEffect::NoSchedule,
            }],
            kubeadm: KubeadmOptions::default(),
        })
    };
    let long = "c".repeat(200);
    let table = [
        (drain(None), None),
        (drain(Some(59)), None),
        (drain(Some(60)), Some("drain.deadline_seconds")),
        (drain(Some(0)), Some("drain.deadline_seconds")),
        (join("zone", "gpu"), None),
        (join("zone/", "gpu"), Some("join.labels")),
        (join("zone", "g p u"), Some("join.taints[0].key")),
        (minute(Effect::Uncordon { cluster_ref: long, own: false }), Some("uncordon.cluster_ref")),
    ];
    for (step, field) in table {
        let case = format!("{step:?}");
        let refused = plan(vec![step]).checked().err().and_then(|refusal| refusal.field);
        let field = field.map(|field| format!("plan.steps[0].{field}"));
        assert_eq!(refused, field, "{case}");
    }
}

#[test]
fn types_go_by_both_words() {
    assert_eq!(RunType::parse("REPAVE"), Some(RunType::Reimage));
    assert_eq!(RunType::parse("REIMAGE"), Some(RunType::Reimage));
    assert_eq!(RunType::parse("reboot"), None);
    assert!(RunType::parse_field("type", "").unwrap_err().message.contains("required"));
}
