//! Windows and freezes in admission: nothing starts while its machines are not open, what was
//! started finishes, and rollouts wait.

use crate::fault_injector::StopScope;
use crate::nodes::refusal;
use crate::rollout_fixture::{reboots, request};
use crate::test_env::{Process, TestEnv, simulate};
use engine::Engine;
use engine::admission::StartRequest;
use engine::start_rule::WindowUpdate;
use model::gate::Overrides;
use model::id::{MachineId, RolloutId, RunId};
use model::lifecycle::Lifecycle;
use model::machine::Phase;
use model::plan::{Params, RunType};
use model::refusal::Reason;
use model::rollout::{BatchSize, FailureLimit, Pace, RolloutSpec, TargetState};
use model::run::actions::{Action, Requester};
use model::time::Timestamp;
use model::window::{HoldsFor, StartRule, StartRuleId, StartRuleKind, StartTerms, WeeklyWindows};
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::Result;

const ALL: &str = "provider=sim";
/// The simulated time begins on Thursday, 2026-05-28, at 20:26:40.
const NIGHTLY: &str = "daily 22:00-23:00 UTC";

fn utc(text: &str) -> Timestamp {
    Timestamp::parse(text).expect(text)
}

fn id(word: &str) -> StartRuleId {
    let (kind, name) = word.split_once(':').expect(word);
    StartRuleId::trusted(StartRuleKind::parse(kind).expect(kind), name)
}

fn rule(word: &str, holds_for: HoldsFor, terms: StartTerms) -> StartRule {
    StartRule {
        id: id(word),
        filter: String::new(),
        holds_for,
        terms,
        created_by: "ada".into(),
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
        version: 0,
    }
}

fn nightly(holds_for: HoldsFor) -> StartRule {
    let open = WeeklyWindows::parse("open", NIGHTLY).expect("a window");
    rule("window:night", holds_for, StartTerms::Open(open))
}

fn freeze(until: &str) -> StartRule {
    let terms = StartTerms::Frozen { until: utc(until), reason: "audit".into() };
    rule("freeze:audit", HoldsFor::Everything, terms)
}

fn start(machine: &str, run_type: RunType, request_id: &str) -> StartRequest {
    StartRequest {
        machine_id: MachineId::trusted(machine),
        request_id: request_id.into(),
        run_type,
        plan_id: None,
        params: Params::new(),
        overrides: Overrides::default(),
        initiator: "ada".into(),
    }
}

/// All machines in one wave; any number may fail.
fn at_once(pace: Pace) -> RolloutSpec {
    let pace = Pace {
        batch: BatchSize::Percent(100),
        stop_after: FailureLimit::Percent(100),
        target_deadline_seconds: 60,
        ..pace
    };
    RolloutSpec { pace, ..reboots(ALL) }
}

struct Fleet {
    env: TestEnv,
    process: Process,
    engine: Engine,
}

impl Fleet {
    /// Machines m-1 to m-N in service.
    async fn of(count: usize) -> Self {
        let env = TestEnv::new(5).await;
        let process = env.boot("a").await;
        let engine = process.engine.clone();
        for number in 1..=count {
            let id = format!("m-{number}");
            env.register(&engine, &id).await;
            env.set_phase(&id, Phase::Ready).await;
        }
        Self { env, process, engine }
    }

    async fn add(&self, rule: StartRule) -> StartRule {
        self.engine.start_rules().create(rule).await.expect("created")
    }

    async fn sleep_until(&self, time: &str) {
        let now = self.env.now();
        assert!(now < utc(time), "{now:?} is after {time}");
        tokio::time::sleep(utc(time).since(now)).await;
    }

    async fn end(&self, id: &RunId) -> bool {
        loop {
            let run = self.engine.runs().get(id).await.expect("a run");
            if run.ended() {
                return run.progress.failure.is_none();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn roll(&self, pace: Pace) -> RolloutId {
        let created = self.engine.rollouts().create(request(at_once(pace), "first")).await;
        created.expect("created").rollout.id()
    }

    async fn states(&self, id: &RolloutId) -> Vec<TargetState> {
        self.env.rollout_targets(id).await.into_iter().map(|one| one.state).collect()
    }

    /// When the runs on a machine were created, the oldest first.
    async fn starts(&self, machine: &str) -> Vec<Timestamp> {
        let data = self.env.machine_data(machine).await;
        data.runs.iter().map(|stored| stored.run.spec.created_at).collect()
    }

    async fn explain(&self, id: &RolloutId) -> String {
        let told = self.engine.explain(id.as_str()).await.expect("explained").explanation;
        format!("{} {}", told.waiting_for, told.notes.join("; "))
    }
}

#[test]
fn a_request_outside_of_its_window_is_refused() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        fleet.env.set_phase("m-2", Phase::Maintenance).await;
        fleet.add(nightly(HoldsFor::Everything)).await;
        let runs = fleet.engine.runs();
        let refused = refusal(runs.start(start("m-1", RunType::Reboot, "r-1")).await);
        assert_eq!(refused.reason, Reason::OutsideWindow);
        assert_eq!(refused.gate_word().as_deref(), Some("window:night"));
        let says = "is closed until Thu 2026-05-28 22:00 UTC (on m-1)";
        assert!(refused.message.contains(says), "{refused}");
        // What brings a machine back takes nothing.
        let back = runs.start(start("m-2", RunType::ExitMaintenance, "r-2")).await.unwrap();
        assert!(fleet.end(&back.run.spec.id).await);

        let overrides = Overrides::of(&[], "fire").and_rule(&id("window:night"));
        let request = StartRequest { overrides, ..start("m-1", RunType::Reboot, "r-3") };
        let run = runs.start(request).await.unwrap().run.spec.id;
        let history = fleet.engine.history(run.as_str(), 0, 9).await.unwrap();
        let note = "gate window:night overridden by ada: fire";
        assert!(history[0].message.contains(note), "{}", history[0].message);
        assert!(fleet.end(&run).await);

        fleet.sleep_until("2026-05-28T22:00:00Z").await;
        let run = runs.start(start("m-1", RunType::Reboot, "r-4")).await.unwrap().run.spec.id;
        assert!(fleet.end(&run).await);
        fleet.sleep_until("2026-05-28T23:00:00Z").await;
        refusal(runs.start(start("m-1", RunType::Reboot, "r-5")).await);
    });
}

#[test]
fn a_window_for_rollouts_lets_people_work() {
    simulate(async {
        let fleet = Fleet::of(1).await;
        fleet.add(nightly(HoldsFor::Rollouts)).await;
        let runs = fleet.engine.runs();
        runs.start(start("m-1", RunType::Reboot, "r-1")).await.unwrap();
    });
}

#[test]
fn what_was_started_finishes_and_can_be_stopped_and_resumed() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let runs = fleet.engine.runs();
        let first = runs.start(start("m-1", RunType::EnterMaintenance, "r-1")).await.unwrap();
        let second = runs.start(start("m-2", RunType::Reboot, "r-2")).await.unwrap();
        fleet.add(freeze("2026-06-01T00:00:00Z")).await;
        let who = || Requester { by: "ada".into(), reason: "stop".into() };
        let second = second.run.spec.id;
        runs.act(second.clone(), Action::Cancel, who()).await.unwrap();
        fleet.end(&second).await;
        assert!(fleet.end(&first.run.spec.id).await);
        let refused = refusal(runs.start(start("m-2", RunType::Reboot, "r-3")).await);
        assert_eq!(refused.reason, Reason::Frozen);
        assert!(refused.message.contains("until Mon 2026-06-01 00:00 UTC: audit"), "{refused}");
    });
}

#[test]
fn a_freeze_ends_by_itself_or_by_an_administrator() {
    simulate(async {
        let fleet = Fleet::of(1).await;
        let (runs, rules) = (fleet.engine.runs(), fleet.engine.start_rules());
        let made = fleet.add(freeze("2026-05-28T21:00:00Z")).await;
        assert_eq!(rules.tally().await.unwrap(), (0, 1));
        // Created again, it is the same; with other settings it is refused while it holds.
        assert_eq!(fleet.add(freeze("2026-05-28T21:00:00Z")).await, made);
        let other = refusal(rules.create(freeze("2026-05-28T22:00:00Z")).await);
        assert_eq!(other.reason, Reason::StartRuleExists);
        refusal(runs.start(start("m-1", RunType::Reboot, "r-1")).await);
        fleet.sleep_until("2026-05-28T21:00:00Z").await;
        assert_eq!(rules.tally().await.unwrap(), (0, 0));
        let run = runs.start(start("m-1", RunType::Reboot, "r-2")).await.unwrap().run.spec.id;
        fleet.end(&run).await;

        // One of the same name continues its history, and another removes it once it has ended.
        let again = fleet.add(freeze("2026-05-28T22:00:00Z")).await;
        assert_eq!(again.version, made.version + 1);
        refusal(runs.start(start("m-1", RunType::Reboot, "r-3")).await);
        rules.delete(id("freeze:audit"), Some(again.version), "bob".into()).await.unwrap();
        runs.start(start("m-1", RunType::Reboot, "r-4")).await.unwrap();
        let history = fleet.engine.history("freeze/audit", 0, 9).await.unwrap();
        let words: Vec<(&str, &str)> =
            history.iter().map(|event| (event.state.as_str(), event.actor.as_str())).collect();
        assert_eq!(words, [("created", "ada"), ("changed", "ada"), ("removed", "bob")]);

        fleet.add(freeze("2026-05-28T22:00:00Z")).await;
        fleet.sleep_until("2026-05-28T22:00:00Z").await;
        fleet.add(nightly(HoldsFor::Everything)).await;
        assert_eq!(refusal(rules.get(&id("freeze:audit")).await).reason, Reason::NotFound);
    });
}

#[test]
fn a_window_is_changed_at_its_version() {
    simulate(async {
        let fleet = Fleet::of(1).await;
        let (runs, rules) = (fleet.engine.runs(), fleet.engine.start_rules());
        let made = fleet.add(nightly(HoldsFor::Everything)).await;
        let update = |text: &str, version: i64| {
            let open = WeeklyWindows::parse("open", text).ok();
            let update = WindowUpdate { open, ..WindowUpdate::default() };
            rules.update_window(id("window:night"), update, Some(version), "bob".into())
        };
        assert_eq!(update(NIGHTLY, made.version).await.unwrap(), made, "it changes nothing");
        let changed = update("daily 20:00-23:00 UTC", made.version).await.unwrap();
        assert_eq!(changed.version, made.version + 1);
        let stale = refusal(update(NIGHTLY, made.version).await);
        assert_eq!(stale.reason, Reason::VersionMoved);
        runs.start(start("m-1", RunType::Reboot, "r-1")).await.unwrap();
    });
}

/// The time of a check is that of its transaction, not that of the request.
#[test]
fn a_request_that_waits_for_the_database_past_the_end_is_refused() {
    simulate(async {
        let fleet = Fleet::of(1).await;
        fleet.add(nightly(HoldsFor::Everything)).await;
        fleet.sleep_until("2026-05-28T22:59:00Z").await;
        let injector = &fleet.process.injector;
        injector.arm(Some((0, StopScope::Task)));
        let runs = fleet.engine.runs();
        let late = async {
            injector.wait_until_stopped().await;
            tokio::time::sleep(Duration::from_secs(120)).await;
            injector.resume();
        };
        let (answer, ()) = tokio::join!(runs.start(start("m-1", RunType::Reboot, "r-1")), late);
        assert_eq!(refusal(answer).reason, Reason::OutsideWindow);
        assert!(fleet.starts("m-1").await.is_empty());
    });
}

#[test]
fn a_clock_that_is_set_back_does_not_open_a_window_again() {
    simulate(async {
        let fleet = Fleet::of(1).await;
        fleet.add(nightly(HoldsFor::Everything)).await;
        fleet.sleep_until("2026-05-28T23:00:00Z").await;
        let runs = fleet.engine.runs();
        refusal(runs.start(start("m-1", RunType::Reboot, "r-1")).await);
        fleet.process.step_clock(-30 * 60_000);
        refusal(runs.start(start("m-1", RunType::Reboot, "r-2")).await);
    });
}

/// Targets wait for the window longer than their deadline, and none fails. One that was begun goes
/// through its sequence, also after the window has closed.
#[test]
fn a_rollout_waits_for_a_named_window() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let slow = FaultRule {
            effect: "reboot".into(),
            delay_ms: 60_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        fleet.env.sim.add_fault(slow).unwrap();
        fleet.add(nightly(HoldsFor::Rollouts)).await;
        let rollout = fleet.roll(Pace::default()).await;
        fleet.sleep_until("2026-05-28T21:59:59Z").await;
        assert_eq!(fleet.states(&rollout).await, [TargetState::Waiting, TargetState::Waiting]);
        let told = fleet.explain(&rollout).await;
        assert!(told.contains("closed until Thu 2026-05-28 22:00 UTC"), "{told}");
        fleet.sleep_until("2026-05-28T22:00:10Z").await;
        let closed = WindowUpdate {
            open: WeeklyWindows::parse("open", "daily 01:00-02:00 UTC").ok(),
            ..WindowUpdate::default()
        };
        let rules = fleet.engine.start_rules();
        rules.update_window(id("window:night"), closed, None, "bob".into()).await.unwrap();
        fleet.sleep_until("2026-05-28T22:30:00Z").await;
        assert_eq!(fleet.states(&rollout).await, [TargetState::Done, TargetState::Done]);
        for machine in ["m-1", "m-2"] {
            let starts = fleet.starts(machine).await;
            assert_eq!(starts.len(), 3, "enter, reboot, exit");
            assert!(starts[0] >= utc("2026-05-28T22:00:00Z"), "{starts:?}");
            assert!(starts[0] < utc("2026-05-28T22:00:10Z"), "{starts:?}");
            assert!(starts[2] > utc("2026-05-28T22:00:10Z"), "{starts:?}");
        }
    });
}

/// A replica that takes over a rollout starts nothing before its own window opens either.
#[test]
fn a_rollout_begins_targets_only_in_its_own_window() {
    simulate(async {
        let fleet = Fleet::of(2).await;
        let window = WeeklyWindows::parse("window", NIGHTLY).ok();
        let one = Pace { window, max_in_flight: Some(1), ..Pace::default() };
        let rollout = fleet.roll(one).await;
        fleet.sleep_until("2026-05-28T21:00:00Z").await;
        assert_eq!(fleet.states(&rollout).await, [TargetState::Pending, TargetState::Pending]);
        let told = fleet.explain(&rollout).await;
        assert!(
            told.contains("its window, which is closed until Thu 2026-05-28 22:00 UTC"),
            "{told}"
        );
        fleet.process.injector.kill();
        let successor = fleet.env.boot("b").await.engine;
        fleet.sleep_until("2026-05-28T22:59:00Z").await;
        assert_eq!(fleet.states(&rollout).await, [TargetState::Done, TargetState::Done]);
        assert_eq!(successor.rollouts().get(&rollout).await.unwrap().state_name(), "Done");
        for machine in ["m-1", "m-2"] {
            let starts = fleet.starts(machine).await;
            let open = utc("2026-05-28T22:00:00Z")..utc("2026-05-28T23:00:00Z");
            assert!(starts.iter().all(|at| open.contains(at)), "{machine}: {starts:?}");
        }
    });
}

#[test]
fn a_dry_run_names_the_windows_and_writes_nothing() {
    simulate(async {
        let fleet = Fleet::of(1).await;
        fleet.add(nightly(HoldsFor::Everything)).await;
        let dry = fleet.engine.with_dry_run(true);
        let overrides = Overrides::of(&[], "fire").and_rule(&id("window:night"));
        let wanted = StartRequest { overrides, ..start("m-1", RunType::Reboot, "r-1") };
        let run = dry.runs().start(wanted).await.unwrap().run;
        let notes = dry.runs().preview(&run).await.unwrap().notes;
        let says = "window night (daily 22:00-23:00 UTC) is closed until Thu 2026-05-28 22:00 UTC; \
                    it refuses, and the override passes it";
        assert!(notes.iter().any(|note| note == says), "{notes:?}");
        assert!(fleet.starts("m-1").await.is_empty());
        let plain = dry.runs().start(start("m-1", RunType::Reboot, "r-2")).await;
        assert_eq!(refusal(plain).reason, Reason::OutsideWindow);
        let made: Result<StartRule> =
            dry.start_rules().create(freeze("2026-06-01T00:00:00Z")).await;
        made.unwrap();
        assert_eq!(fleet.engine.start_rules().tally().await.unwrap(), (1, 0));
    });
}
