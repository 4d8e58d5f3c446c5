//! Resolving a plan to the steps of a run.

use model::effect::{DesiredPower, DrainOptions, Effect, PowerOffPolicy};
use model::id::{MachineId, PlanId};
use model::machine::{Labels, Machine, MachineSpec};
use model::plan::{
    Defaults, FORCE, GRACEFUL_SECONDS, IMAGE_REF, NETWORK, Params, Plan, RunStep, RunType, Step,
    checked_params, default_plan, variants,
};
use model::time::Timestamp;

fn machine(cluster: &str) -> Machine {
    let spec = MachineSpec { target_cluster_ref: cluster.into(), ..MachineSpec::default() };
    Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), Timestamp::default())
}

fn names(steps: &[RunStep]) -> Vec<&str> {
    steps.iter().map(|step| step.name.as_str()).collect()
}

#[test]
fn a_machine_without_a_cluster_skips_what_needs_one() {
    let defaults = Defaults::default();
    let plan = default_plan(RunType::Reimage).unwrap();
    let params = plan.complete_params(RunType::Reimage, Params::new(), &defaults).unwrap();
    let with = plan.resolve(&machine("cluster-a"), &params, &defaults).unwrap();
    let without = plan.resolve(&machine(""), &params, &defaults).unwrap();
    assert_eq!(names(&with), ["set-netboot", "repave-os", "reboot", "join-cluster", "verify"]);
    assert_eq!(names(&without), ["set-netboot", "repave-os", "reboot"]);
    assert_eq!(with[1].effect, Effect::Repave { image: "ubuntu-2204".into() });
    let Effect::Join { cluster_ref, .. } = &with[3].effect else { panic!("{with:?}") };
    assert_eq!(cluster_ref, "cluster-a");

    let own = Plan { built_in: false, ..plan };
    let refusal = own.resolve(&machine(""), &params, &defaults).unwrap_err();
    assert!(refusal.message.contains("join-cluster"), "{refusal}");
}

#[test]
fn no_built_in_plan_resolves_to_nothing() {
    let defaults = Defaults::default();
    let own = RunType::PLANNED.map(|run_type| (run_type, default_plan(run_type).unwrap()));
    for (run_type, plan) in own.into_iter().chain(variants()) {
        let params = Params::from([(NETWORK.into(), "network: {}".into())]);
        let params = checked_params(params).unwrap();
        let params = plan.complete_params(run_type, params, &defaults).unwrap();
        for cluster in ["", "cluster-a"] {
            let steps = plan.resolve(&machine(cluster), &params, &defaults);
            if run_type == RunType::Join && cluster.is_empty() {
                let refusal = steps.unwrap_err();
                assert_eq!(refusal.field.as_deref(), Some("machine.spec.target_cluster_ref"));
                continue;
            }
            assert!(!steps.unwrap().is_empty(), "{}", plan.id);
        }
    }
}

/// Rows: the options of the step, the parameters of the run, and the options of the resolved step.
#[test]
fn the_parameters_say_which_pods_a_drain_takes() {
    let options = |unmanaged_pods, emptydir, grace_seconds, selector: &str| DrainOptions {
        unmanaged_pods,
        emptydir,
        grace_seconds,
        selector: selector.into(),
    };
    let none = DrainOptions::default();
    let all = options(true, true, Some(30), "app=web");
    for (own, requested, expected) in [
        (none.clone(), none.clone(), none.clone()),
        (none.clone(), all.clone(), all.clone()),
        (all.clone(), none.clone(), all.clone()),
        (
            options(true, false, Some(5), ""),
            options(false, true, Some(9), "a=b"),
            options(true, true, Some(5), "a=b"),
        ),
    ] {
        let params = checked_params(requested.params()).unwrap();
        let effect =
            Effect::Drain { cluster_ref: "c".into(), deadline_seconds: None, options: own };
        let step = Step { name: "drain".into(), timeout_seconds: None, max_retries: None, effect };
        let plan = Plan { steps: vec![step], ..default_plan(RunType::Rma).unwrap() };
        let steps = plan.resolve(&machine("c"), &params, &Defaults::default()).unwrap();
        let Effect::Drain { options, .. } = &steps[0].effect else { panic!("{steps:?}") };
        assert_eq!(*options, expected);
    }
    for (name, value) in
        [("drain_emptydir", "yes"), ("drain_grace_seconds", "-1"), ("drain_selector", "a\nb")]
    {
        let refusal = checked_params(Params::from([(name.into(), value.into())])).unwrap_err();
        assert_eq!(refusal.field, Some(format!("params[{name}]")), "{value}");
    }
}

/// Rows: the selector of the step, the requested one, and whether they conflict.
#[test]
fn two_selectors_of_a_drain_are_refused() {
    for (own, requested, conflict) in [
        ("", "app=web", false),
        ("app=web", "", false),
        ("app=web", "app=web", false),
        ("app=db", "app=web", true),
    ] {
        let options = DrainOptions { selector: own.into(), ..DrainOptions::default() };
        let effect = Effect::Drain { cluster_ref: "c".into(), deadline_seconds: None, options };
        let step = Step { name: "drain".into(), timeout_seconds: None, max_retries: None, effect };
        let plan = Plan { steps: vec![step], ..default_plan(RunType::Rma).unwrap() };
        let params = Params::from([("drain_selector".into(), requested.into())]);
        let params = checked_params(params).unwrap();
        let resolved = plan.resolve(&machine("c"), &params, &Defaults::default());
        assert_eq!(resolved.is_err(), conflict, "{own} {requested}");
        if let Err(refusal) = resolved {
            assert_eq!(refusal.field.as_deref(), Some("params[drain_selector]"));
            for words in ["\"app=web\"", "\"app=db\"", "step drain"] {
                assert!(refusal.message.contains(words), "{words}: {refusal}");
            }
        }
    }
}

/// Rows: the images of a plan's steps, the requested image, and the recorded one or the conflict.
#[test]
fn the_record_has_the_image_that_is_installed() {
    let defaults = Defaults::default();
    let plan = |images: &[&str]| {
        let step = |image: &&str| Step {
            name: format!("write-{image}"),
            timeout_seconds: None,
            max_retries: None,
            effect: Effect::Repave { image: (*image).into() },
        };
        let steps = images.iter().map(step).collect();
        Plan { id: PlanId::trusted("plan-own"), steps, ..default_plan(RunType::Reimage).unwrap() }
    };
    let other = r#"is "rhel-9", and step write-debian-12 of plan-own installs "debian-12""#;
    let none = r#"is "rhel-9", and no step of plan-own installs an image"#;
    for (images, requested, expected) in [
        (&[""][..], None, Ok(Some("ubuntu-2204"))),
        (&[""], Some("rhel-9"), Ok(Some("rhel-9"))),
        (&["debian-12"], None, Ok(Some("debian-12"))),
        (&["debian-12"], Some("debian-12"), Ok(Some("debian-12"))),
        (&["debian-12"], Some("rhel-9"), Err(other)),
        (&["", "debian-12"], Some("rhel-9"), Err(other)),
        (&["", "debian-12"], None, Ok(Some("ubuntu-2204"))),
        (&[], None, Ok(None)),
        (&[], Some("rhel-9"), Err(none)),
    ] {
        let requested: Params =
            requested.map(|image| (IMAGE_REF.to_string(), image.to_string())).into_iter().collect();
        let case = format!("{images:?} {requested:?}");
        match (plan(images).complete_params(RunType::Reimage, requested, &defaults), expected) {
            (Ok(params), Ok(image)) => {
                assert_eq!(params.get(IMAGE_REF).map(String::as_str), image, "{case}");
            }
            (Err(refusal), Err(problem)) => {
                assert_eq!(refusal.field.as_deref(), Some("params[image_ref]"), "{case}");
                assert!(refusal.message.contains(problem), "{case}: {refusal}");
            }
            (done, expected) => panic!("{case}: {done:?}, not {expected:?}"),
        }
    }
    // Only a reimage has a default image.
    let params = plan(&[""]).complete_params(RunType::Upgrade, Params::new(), &defaults).unwrap();
    assert!(params.is_empty());
}

#[test]
fn a_drain_ends_before_its_step_and_needs_a_cluster() {
    let rma = default_plan(RunType::Rma).unwrap();
    let defaults = Defaults::default();
    let with = rma.resolve(&machine("cluster-a"), &Params::new(), &defaults).unwrap();
    let without = rma.resolve(&machine(""), &Params::new(), &defaults).unwrap();
    assert_eq!(names(&with), ["drain", "record", "power-off", "mark"]);
    assert_eq!(names(&without), ["record", "power-off", "mark"]);
    let deadline = |step: &RunStep| {
        let Effect::Drain { cluster_ref, deadline_seconds, .. } = &step.effect else {
            panic!("{:?}", step.effect)
        };
        (cluster_ref.clone(), *deadline_seconds)
    };
    assert_eq!(deadline(&with[0]), ("cluster-a".into(), Some(1_770)));
    // A user-defined plan keeps the step, which reports that there was nothing to do.
    let own = Plan { built_in: false, ..rma };
    let alone = own.resolve(&machine(""), &Params::new(), &defaults).unwrap();
    assert_eq!(deadline(&alone[0]), (String::new(), Some(1_770)));
    for (given, timeout, expected) in
        [(None, 1, 1), (None, 10, 9), (None, 600, 570), (Some(20), 600, 20), (Some(599), 600, 570)]
    {
        let effect = Effect::Drain {
            cluster_ref: "c".into(),
            deadline_seconds: given,
            options: Default::default(),
        };
        let mut plan = own.clone();
        plan.steps[0].timeout_seconds = Some(timeout);
        plan.steps[0].effect = effect;
        let steps = plan.resolve(&machine(""), &Params::new(), &defaults).unwrap();
        assert_eq!(deadline(&steps[0]).1, Some(expected), "{given:?} within {timeout}");
    }
}

#[test]
fn a_run_says_how_power_is_switched_off_where_its_plan_does_not() {
    let defaults = Defaults::default();
    let params = |pairs: &[(&str, &str)]| -> Params {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let power_off = |graceful_seconds, force| PowerOffPolicy { graceful_seconds, force };
    let off = variants().into_iter().find(|(_, plan)| plan.id.as_str() == "plan-power-off-v1");
    let off = off.unwrap().1;
    let resolved = |plan: &Plan, pairs: &[(&str, &str)]| {
        let step = plan.resolve(&machine(""), &params(pairs), &defaults).unwrap().remove(0);
        (step.effect.power_off_policy().unwrap(), step.timeout_seconds)
    };
    let both = [(GRACEFUL_SECONDS, "900"), (FORCE, "false")];
    assert_eq!(resolved(&off, &[]), (PowerOffPolicy::PROVIDER_DEFAULT, 300));
    assert_eq!(resolved(&off, &both), (power_off(Some(900), Some(false)), 1_200));
    assert_eq!(resolved(&off, &[(GRACEFUL_SECONDS, "0")]), (power_off(Some(0), None), 300));
    let mut own = Plan { built_in: false, ..off };
    *own.steps[0].effect.power_off_policy_mut().unwrap() = power_off(Some(10), None);
    assert_eq!(resolved(&own, &both), (power_off(Some(10), Some(false)), 300));
    own.steps[0].timeout_seconds = None;
    *own.steps[0].effect.power_off_policy_mut().unwrap() = power_off(Some(3_000), None);
    assert_eq!(resolved(&own, &[]), (power_off(Some(3_000), None), 3_300));
    *own.steps[0].effect.power_off_policy_mut().unwrap() = power_off(Some(0), None);
    let refusal = own.resolve(&machine(""), &params(&both), &defaults).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("params[graceful_seconds]"));
    // Powering on has no power-off policy.
    let on = default_plan(RunType::Power).unwrap().resolve(&machine(""), &params(&both), &defaults);
    let expected =
        Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    assert_eq!(on.unwrap()[0].effect, expected);
}

#[test]
fn parameters_are_checked() {
    let defaults = Defaults::default();
    let one = |name: &str, value: &str| Params::from([(name.to_string(), value.to_string())]);
    let refusal = checked_params(one("colour", "red")).unwrap_err();
    assert!(refusal.message.contains("not a parameter"));
    assert!(checked_params(one(IMAGE_REF, "a\nb")).is_err());
    assert!(checked_params(one(NETWORK, "a\u{0}b")).is_err());
    for (name, value) in
        [(GRACEFUL_SECONDS, "soon"), (GRACEFUL_SECONDS, "-1"), (GRACEFUL_SECONDS, "99999")]
    {
        let refusal = checked_params(one(name, value)).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("params[graceful_seconds]"), "{value}");
    }
    assert!(checked_params(one(FORCE, "maybe")).unwrap_err().message.contains("true or false"));
    assert!(checked_params(one(FORCE, "")).unwrap().is_empty());
    let net = default_plan(RunType::NetReconfig).unwrap();
    let refusal = net.resolve(&machine(""), &Params::new(), &defaults).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("params[network]"));
}
