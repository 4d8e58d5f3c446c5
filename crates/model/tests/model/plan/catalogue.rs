//! The built-in plans.

use model::effect::Effect;
use model::id::PlanId;
use model::plan::{
    Maintenance, PowerChange, RunType, built_in, default_plan, node_plans, variants,
};

#[test]
fn every_type_has_a_sound_default() {
    for run_type in RunType::ALL {
        let default_for = default_plan(run_type).map(|plan| plan.default_for);
        let planned = RunType::PLANNED.contains(&run_type).then_some(Some(run_type));
        assert_eq!(default_for, planned);
    }
    let plans = built_in();
    assert_eq!(plans.len(), RunType::PLANNED.len() + variants().len() + node_plans().len());
    for (index, plan) in plans.iter().enumerate() {
        assert!(plan.built_in);
        assert!(PlanId::parse(plan.id.as_str()).is_ok());
        assert!(plans[..index].iter().all(|other| other.id != plan.id), "{}", plan.id);
        let of_node = plan.steps.iter().any(|step| matches!(step.effect, Effect::Stage { .. }));
        // User-defined plans may not contain node stages.
        assert_eq!(plan.clone().checked().is_err(), of_node, "{}", plan.id);
    }
    for (_, plan) in variants() {
        assert_eq!(plan.default_for, None, "{}", plan.id);
    }
}

#[test]
fn every_way_is_a_plan_that_can_be_found() {
    let found = |id: PlanId| built_in().into_iter().any(|plan| plan.id == id);
    assert!(PowerChange::ALL.into_iter().all(|change| found(change.plan_id())));
    assert!(Maintenance::ALL.into_iter().all(|way| found(way.plan_id())));
}
