//! Dry run of a run: its time, and the outcome that is asked for before anything is executed.

use crate::support::{
    RunDriver, TIMEOUT_SECONDS, at, done, drain, fault, netboot, note, power_off, run, spec, who,
    wipe,
};
use model::effect::{CallVerb, ChildRunGroup, ChildRunSpec, DesiredPower, Effect, PowerOffPolicy};
use model::fault::FaultCode;
use model::plan::{RunStep, RunType};
use model::run::actions::{Action, ActionResult, apply_action};
use model::run::{
    PreviewedStep, Run, TimeEstimate, UsualTime, describe_inquiry, describe_stop, remaining_steps,
    usual_of_group,
};
use model::target::TargetId;
use model::why::UsualDuration;
use std::time::Duration;

fn usual(median: u64) -> UsualDuration {
    let (median, p95) = (Duration::from_secs(median), Duration::from_secs(2 * median));
    UsualDuration { median, p95, samples: 10, model: String::new() }
}

fn child(id: &str, steps: Vec<RunStep>) -> ChildRunSpec {
    let target = TargetId::from_key(id);
    ChildRunSpec { target, run_type: RunType::Power, steps }
}

/// Each child takes as many seconds as its id says, for each of its steps.
#[test]
fn child_runs_take_their_time_beside_and_after_each_other() {
    let one = || vec![power_off(0)];
    let two = || vec![power_off(0), note(0)];
    for (children, at_once, seconds) in [
        (vec![], 2, None),
        (vec![child("m-5", one())], 2, Some(5)),
        (vec![child("m-5", one()), child("m-3", one())], 2, Some(5)),
        (vec![child("m-5", one()), child("m-3", one())], 1, Some(8)),
        // The third begins after the shorter of the first two.
        (vec![child("m-5", one()), child("m-3", one()), child("m-4", one())], 2, Some(7)),
        (vec![child("m-5", one()), child("m-3", two())], 2, Some(6)),
        (vec![child("m-5", one()), child("m-3", one())], 0, Some(8)),
        // Too few durations of one device are recorded.
        (vec![child("m-5", one()), child("m-0", one())], 2, None),
    ] {
        let case = format!("{children:?} by {at_once}");
        let group = ChildRunGroup {
            child_runs: children,
            max_concurrent: at_once,
            skip_if_all_hold: Vec::new(),
        };
        let found = usual_of_group(&group, |child, _| {
            let seconds = child.target.as_str().trim_start_matches("m-").parse().unwrap();
            (seconds > 0).then(|| usual(seconds))
        });
        let expected = seconds.map(|seconds| (seconds, 2 * seconds));
        let found = found.map(|usual| (usual.median.as_secs(), usual.p95.as_secs()));
        assert_eq!(found, expected, "{case}");
    }
}

fn previewed(run: &Run, seconds: Option<u64>) -> Vec<PreviewedStep> {
    let left = remaining_steps(run).into_iter();
    left.map(|left| PreviewedStep { left, usual: seconds.map(usual) }).collect()
}

#[test]
fn the_time_of_steps_is_their_sum_and_that_of_operations_the_longest() {
    let both = run(vec![netboot(0), note(1)]);
    let hours = |count: u32| Duration::from_secs(u64::from(count * TIMEOUT_SECONDS));
    let seconds = Duration::from_secs;
    let known = TimeEstimate::of(&previewed(&both, Some(5)));
    let of = |median, p95| Some(UsualTime { median: seconds(median), p95: seconds(p95) });
    assert_eq!(known, TimeEstimate { usual: of(10, 20), limit: hours(3) });
    assert_eq!(known.words(), "usually 10s, up to 20s");
    let unknown = TimeEstimate::of(&previewed(&both, None));
    assert_eq!(unknown, TimeEstimate { usual: None, limit: hours(3) });
    let words = "not enough such steps were timed yet; their deadlines add up to 3h 0m";
    assert_eq!(unknown.words(), words);
    assert_eq!(TimeEstimate::of(&[]), TimeEstimate::default());

    let longer = TimeEstimate { usual: of(15, 15), limit: hours(1) };
    let together = TimeEstimate { usual: of(15, 20), limit: hours(3) };
    assert_eq!(TimeEstimate::concurrent([known, longer]), Some(together));
    assert_eq!(TimeEstimate::concurrent([unknown, longer]).unwrap().usual, None);
    assert_eq!(TimeEstimate::concurrent([]), None);
}

/// A run that failed in its second step, after an action of an operator. `open`: whether the last
/// attempt took effect is not known.
fn continued(second: RunStep, open: bool, action: Action) -> Run {
    let mut driver = RunDriver::of(vec![netboot(0), second, note(0)]);
    driver.answer(done());
    match open {
        true => {
            driver.answer(fault(FaultCode::AnswerLost));
            while driver.open_call().is_some() {
                driver.answer(fault(FaultCode::BmcUnreachable));
            }
        }
        false => {
            driver.answer(fault(FaultCode::EffectFailed));
        }
    }
    assert!(driver.run.ended(), "{:?}", driver.run.progress);
    match apply_action(&driver.run, action, &who(), at(90_000)) {
        Ok(ActionResult::Reopened(progress, _)) => Run { progress, ..driver.run },
        other => panic!("{other:?}"),
    }
}

/// A resume asks what became of an open attempt. Nothing is executed before the answer.
#[test]
fn a_resume_shows_what_is_asked_in_place_of_what_may_not_be_executed() {
    let asked = continued(wipe(0), true, Action::Resume);
    let left = remaining_steps(&asked);
    let shown: Vec<_> = left.iter().map(|one| (one.step.name.as_str(), one.asks_first)).collect();
    assert_eq!(shown, [("wipe", true), ("note", false)]);
    let said = describe_inquiry(&asked).unwrap();
    assert!(
        said.starts_with("m-1 would be asked what became of wipe (attempt 1) before"),
        "{said}"
    );
    assert!(said.ends_with("if that is not known, the operation stops for an operator"), "{said}");
    // The usual time is that of the steps that are executed for certain.
    let time = TimeEstimate::of(&previewed(&asked, Some(5)));
    assert_eq!(time.usual.map(|usual| usual.median), Some(Duration::from_secs(5)));
    let all: Duration = left.iter().map(|one| one.step.time_limit()).sum();
    assert_eq!(time.limit, all);

    // A retry executes the step again, whatever became of it; and so does a resume when the last
    // attempt has failed for certain.
    for (open, action) in [(true, Action::RetryStep), (false, Action::Resume)] {
        let executed = continued(wipe(0), open, action);
        assert_eq!(describe_inquiry(&executed), None, "{action:?}");
        assert!(remaining_steps(&executed).iter().all(|one| !one.asks_first), "{action:?}");
    }
    // A step that can be repeated is repeated. Each effect is asked for where it was executed.
    for (step, peer) in [(note(0), "m-1"), (drain(0), "the cluster of m-1")] {
        let mut run = RunDriver::of(vec![step]).run;
        run.progress.steps[0].next_verb = CallVerb::GetStatus;
        let note = describe_inquiry(&run).unwrap();
        assert!(note.starts_with(&format!("{peer} would be asked what became of ")), "{note}");
        assert!(note.ends_with("if that is not known, it is executed again"), "{note}");
    }
}

/// A stop names the power that it may leave behind.
#[test]
fn a_stopped_power_change_names_the_device() {
    let on = Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let power_on = RunStep { name: "power-on".into(), effect: on, ..power_off(0) };
    for (step, expected) in [
        (power_off(0), "power-off would be stopped: m-1 may be off, and would stay so"),
        (power_on, "power-on would be stopped: m-1 may still be off, and would stay so"),
    ] {
        let run = RunDriver::begin(Run::new(spec(vec![step]))).run;
        assert_eq!(describe_stop(&run, None).as_deref(), Some(expected));
    }
}
