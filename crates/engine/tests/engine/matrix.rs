//! The crash matrix: every scenario, with every injection at every crash point, has one outcome.
//!
//! A scenario runs once undisturbed to count the points that its process passes: before and after
//! each commit, and before, during and after each provider call. Then it runs once for each point,
//! with the injection there. `FARRIER_MATRIX="plan-repave-v1/Restart/17"` runs one case,
//! `FARRIER_MATRIX="plan-repave-v1"` one scenario.

use crate::audit::{Outcome, RepeatedCalls, audit_watch};
use crate::clients::Client;
use crate::crash::{CaseExecution, SCRIPT_TIMED_OUT, SCRIPT_TIMEOUT};
use crate::fault_injector::CrashPoint;
use crate::injection::Injection;
use crate::scenario::{self, Fixture, Scenario};
use crate::test_env::{TestEnv, on_all_cores, simulate};
use model::effect::CallVerb;
use model::run::Workflow;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The result of one run of a scenario.
struct Report {
    /// The points passed until the injection, or to the end.
    points: Vec<CrashPoint>,
    crashed_at: Option<CrashPoint>,
    /// A cancel was requested and accepted.
    canceled: bool,
    /// Some run ended canceled; a device may have started it by itself.
    canceled_any: bool,
    outcome: Outcome,
    problems: Vec<String>,
}

/// `at` is the index of the crash point; `None` runs undisturbed.
async fn run(scenario: &Scenario, injection: Injection, at: Option<usize>) -> Report {
    let fixture = &scenario.fixture;
    let env = TestEnv::new(1).await;
    let one = env.boot("one").await;
    let other = if injection.needs_replica() { Some(env.boot("two").await) } else { None };
    let api_client = Client::new(&one.engine);
    fixture.prepare(&env, &one, &api_client).await;
    let watcher = fixture.watcher(&api_client);
    sleep(Duration::from_secs(5)).await;

    one.injector.arm(at.map(|index| (index, injection.scope())));
    let mut client = tokio::spawn(fixture.clone().run_script(api_client.clone(), env.clone()));
    let crashed_at = tokio::select! {
        biased;
        point = one.injector.wait_until_stopped() => Some(point),
        ended = timeout(SCRIPT_TIMEOUT, &mut client) => {
            ended.expect(SCRIPT_TIMED_OUT).expect("the client succeeds");
            None
        }
    };
    let points = one.injector.passed();
    let mut environment = CaseExecution::new(fixture, &env, &api_client, &one, other);
    let mut canceled = None;
    if crashed_at.is_some() {
        canceled = environment.inject(injection).await;
        environment.await_client(client).await;
        environment.finish_case(injection, canceled.as_ref()).await;
    }
    environment.settle().await;
    let mut problems = environment.problems;
    let all = env.stored_state_after_hardware().await;
    problems.extend(env.audit_state(&all, repeated_calls(fixture, injection)));
    if let Some(watcher) = &watcher {
        all.runs.iter().for_each(|stored| audit_watch(stored, &watcher.entries(), &mut problems));
    }
    if let Some(canceled) = &canceled {
        problems.extend(canceled.audit(&env).await);
    }
    let outcome = env.outcome_of(&all);
    let canceled_any =
        all.runs.iter().any(|stored| stored.run.progress.workflow == Workflow::Cancelled);
    Report { points, crashed_at, canceled: canceled.is_some(), canceled_any, outcome, problems }
}

/// A hanging effect never began, so the engine performs it again after get_status says so.
fn repeated_calls(fixture: &Fixture, injection: Injection) -> RepeatedCalls {
    match fixture {
        Fixture::Machine(machine) if machine.hangs() => RepeatedCalls::Allowed,
        Fixture::Machine(_) | Fixture::Devices(_) => injection.repeated_calls(),
    }
}

/// The scenario or case selected by the environment.
fn only() -> Option<String> {
    std::env::var("FARRIER_MATRIX").ok()
}

/// A scenario with its undisturbed run.
struct Baseline<'a> {
    scenario: &'a Scenario,
    report: Report,
}

impl<'a> Baseline<'a> {
    /// `None` if no case of the scenario is selected.
    fn run(scenario: &'a Scenario, injection: Injection) -> Option<Self> {
        let name = &scenario.name;
        let desired = |only: String| format!("{only}/").starts_with(&format!("{name}/"));
        if !only().is_none_or(desired) {
            return None;
        }
        let report = simulate(run(scenario, injection, None));
        assert!(report.problems.is_empty(), "{name} undisturbed: {:?}", report.problems);
        report.outcome.assert_ends_well(scenario);
        Some(Self { scenario, report })
    }

    fn cases(&self, injection: Injection) -> Vec<Case<'_>> {
        let Scenario { coverage, sampling, .. } = self.scenario;
        let chosen = sampling.choose(&self.report.points, coverage).into_iter();
        let cases = chosen.map(|index| Case { baseline: self, injection, index });
        let desired = |case: &Case| {
            let asked_for =
                |only: String| format!("{}/", case.name()).starts_with(&format!("{only}/"));
            injection.applies_at(case.point()) && only().is_none_or(asked_for)
        };
        cases.filter(desired).collect()
    }
}

/// A scenario with an injection at one of its crash points.
struct Case<'a> {
    baseline: &'a Baseline<'a>,
    injection: Injection,
    index: usize,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{}/{:?}/{}", self.baseline.scenario.name, self.injection, self.index)
    }

    fn point(&self) -> &CrashPoint {
        &self.baseline.report.points[self.index]
    }

    /// Returns the problems as one text.
    fn run(&self) -> Option<String> {
        let report = simulate(run(self.baseline.scenario, self.injection, Some(self.index)));
        let problems = self.problems(report);
        let message =
            || format!("{}, at {:?}:\n    {}", self.name(), self.point(), problems.join("\n    "));
        (!problems.is_empty()).then(message)
    }

    /// Compares the report with the undisturbed run.
    fn problems(&self, report: Report) -> Vec<String> {
        let Report { crashed_at, canceled, canceled_any, outcome, mut problems, .. } = report;
        // While a provider performs an effect its run is active, so a cancel must be accepted.
        let performing = matches!(crashed_at, Some(CrashPoint::Effect(_, CallVerb::Perform, _)));
        let undisturbed = &self.baseline.report.outcome;
        if self.injection.cancels() && performing && !canceled {
            problems.push("a cancel was refused while something was being done".into());
        }
        if !canceled && outcome != *undisturbed {
            problems.push(format!("the outcome is {outcome:?}\n    instead of {undisturbed:?}"));
        }
        if canceled && !canceled_any {
            problems.push(format!("a cancel was accepted and ignored: {outcome:?}"));
        }
        if crashed_at.as_ref() != Some(self.point()) {
            problems.push(format!("the process stopped at another point: {crashed_at:?}"));
        }
        problems
    }
}

/// Runs every scenario once for each of its crash points.
fn inject_everywhere(injection: Injection) {
    let scenarios = scenario::all();
    let baselines = on_all_cores(&scenarios, |scenario| Baseline::run(scenario, injection));
    let baselines: Vec<Baseline> = baselines.into_iter().flatten().collect();
    let cases: Vec<Case> = baselines.iter().flat_map(|one| one.cases(injection)).collect();
    let wrong: Vec<String> = on_all_cores(&cases, Case::run).into_iter().flatten().collect();
    for Baseline { scenario, .. } in &baselines {
        // Coverage is checked only for a scenario that runs completely.
        if only().is_some_and(|only| only != scenario.name) {
            continue;
        }
        let mut made: HashMap<CrashPoint, usize> = HashMap::new();
        for case in cases.iter().filter(|case| case.baseline.scenario.name == scenario.name) {
            *made.entry(case.point().clone()).or_default() += 1;
        }
        scenario.coverage.assert(&scenario.name, injection, &made);
    }
    let cases = cases.len();
    println!("{injection:?}: {cases} cases of {} scenarios", baselines.len());
    assert!(wrong.is_empty(), "{} of {cases} cases failed\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_process_may_die_anywhere_and_be_started_again() {
    inject_everywhere(Injection::Restart);
}

#[test]
fn a_process_may_die_anywhere_and_another_takes_over() {
    inject_everywhere(Injection::TakeOver);
}

#[test]
fn a_process_may_freeze_past_its_lease_and_wake_beside_its_successor() {
    inject_everywhere(Injection::FreezeUntilTaken);
}

#[test]
fn a_process_may_freeze_past_its_lease_and_wake_when_all_is_done() {
    inject_everywhere(Injection::FreezeUntilDone);
}

#[test]
fn the_connection_to_the_database_may_be_cut_at_any_commit() {
    inject_everywhere(Injection::CutConnection);
}

#[test]
fn a_run_may_be_canceled_anywhere() {
    inject_everywhere(Injection::Cancel);
}

#[test]
fn a_run_may_be_canceled_anywhere_and_its_process_die_there() {
    inject_everywhere(Injection::CancelAndRestart);
}

#[test]
fn a_run_may_be_canceled_anywhere_and_its_process_wake_when_all_is_done() {
    inject_everywhere(Injection::CancelAndFreeze);
}

#[test]
fn a_process_may_lose_its_claims_anywhere() {
    inject_everywhere(Injection::StealClaims);
}
