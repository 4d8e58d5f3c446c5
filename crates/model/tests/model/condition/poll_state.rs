//! Tables of probe results: the conditions that follow from them, and the next probe of each part.

use ConditionType::{BmcReachable, Degraded, Reachable};
use model::condition::hysteresis::HysteresisLimits;
use model::condition::poll_state::{MachinePollState, PollIntervals, Probed};
use model::condition::{ConditionObservation, ConditionType};
use model::id::{MachineId, RunId};
use model::machine::{Labels, Machine, MachineSpec};
use model::time::Timestamp;
use std::time::Duration;

const RHYTHM: PollIntervals = PollIntervals {
    steadiness: HysteresisLimits { bad_after: 3, good_after: 2 },
    health_every: Duration::from_secs(600),
    settling: Duration::from_secs(300),
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn machine(id: &str) -> Machine {
    Machine::new(MachineId::trusted(id), MachineSpec::default(), Labels::new(), at(0))
}

fn saw(host: bool, bmc: bool) -> Vec<ConditionObservation> {
    vec![
        ConditionObservation::new(Reachable, host, "r"),
        ConditionObservation::new(BmcReachable, bmc, "b"),
    ]
}

/// A healthy machine is probed again only when its interval has passed since `done`.
fn is_due(id: &str, done: Timestamp, now: Timestamp) -> bool {
    let mut machine = machine(id);
    machine.learn(&[ConditionObservation::new(Degraded, false, "known")], at(0));
    MachinePollState::new(done).needs_health_probe(&machine, &saw(true, true), now, &RHYTHM)
}

/// A machine that is probed once a minute.
struct PollDriver {
    machine: Machine,
    watched: MachinePollState,
    now: i64,
}

impl PollDriver {
    fn new() -> Self {
        Self { machine: machine("m-1"), watched: MachinePollState::new(at(0)), now: 0 }
    }

    fn probe(&mut self, observed: Vec<ConditionObservation>) {
        self.now += 60;
        let after_change = self.watched.take_change();
        let probed = Probed { observed, after_change };
        let believed = self.watched.record_probe(&self.machine, probed, at(self.now), &RHYTHM);
        if self.machine.learn(&believed, at(self.now)) {
            self.machine.version += 1;
            self.watched.record_stored_version(self.machine.version);
        }
    }

    /// Another component writes the machine.
    fn changed(&mut self, run: Option<&str>) {
        self.machine.active_run = run.map(RunId::trusted);
        self.machine.version += 1;
    }

    fn is(&self) -> (bool, bool) {
        (self.machine.is(Reachable), self.machine.is(Degraded))
    }
}

#[test]
fn a_machine_that_is_lost_is_degraded_after_a_while() {
    let mut scenario = PollDriver::new();
    for (host, expected) in [
        (true, (true, false)),
        (false, (true, false)),
        (false, (true, false)),
        (false, (false, true)),
        (true, (false, true)),
        (true, (true, false)),
    ] {
        scenario.probe(saw(host, true));
        assert_eq!(scenario.is(), expected, "at {}", scenario.now);
    }
}

#[test]
fn a_run_that_reboots_does_not_degrade_its_machine_and_its_end_is_seen_at_once() {
    let mut scenario = PollDriver::new();
    scenario.probe(saw(true, true));
    scenario.changed(Some("op-1"));
    for _ in 0..6 {
        scenario.probe(saw(false, true));
        assert_eq!(scenario.is(), (false, false), "at {}", scenario.now);
    }
    scenario.changed(None);
    // The machine is still booting.
    for _ in 0..2 {
        scenario.probe(saw(false, true));
        assert_eq!(scenario.is(), (false, false), "at {}", scenario.now);
    }
    scenario.probe(saw(true, true));
    scenario.probe(saw(true, true));
    assert_eq!(scenario.is(), (true, false));
    // A machine that does not come back is degraded after the settling time.
    scenario.changed(Some("op-2"));
    scenario.changed(None);
    for _ in 0..5 {
        scenario.probe(saw(false, true));
        assert_eq!(scenario.is(), (false, false), "at {}", scenario.now);
    }
    for _ in 0..3 {
        scenario.probe(saw(false, true));
    }
    assert_eq!(scenario.is(), (false, true), "at {}", scenario.now);
    // The first probe after a run is accepted at once.
    scenario.changed(Some("op-3"));
    scenario.changed(None);
    scenario.probe(saw(true, true));
    assert_eq!(scenario.is(), (true, false));
}

/// A power shelf is switched under a machine, whose row does not change with it.
#[test]
fn a_change_that_is_noted_is_seen_at_once_and_its_end_too() {
    let mut scenario = PollDriver::new();
    scenario.probe(saw(true, true));
    scenario.watched.note_change();
    scenario.probe(saw(false, true));
    assert_eq!(scenario.is(), (false, false), "the first probe after the change is accepted");
    scenario.probe(saw(false, true));
    scenario.probe(saw(true, true));
    assert_eq!(scenario.is(), (true, false), "while a machine settles, it is expected back");
    scenario.probe(saw(false, true));
    assert_eq!(scenario.is(), (true, false), "and its loss is not");
}

#[test]
fn the_parts_of_a_machine_degrade_it_too() {
    let mut scenario = PollDriver::new();
    scenario.probe(saw(true, true));
    let fan = ConditionObservation::new(Degraded, true, "Fan 1 Critical");
    scenario.watched.examined(Some(fan), at(60));
    for expected in [false, false, true] {
        scenario.probe(saw(true, true));
        assert_eq!(scenario.machine.is(Degraded), expected);
    }
    assert_eq!(
        scenario.machine.conditions.get(Degraded).unwrap().reason.as_str(),
        "Fan 1 Critical"
    );
    scenario.watched.examined(Some(ConditionObservation::new(Degraded, false, "Healthy")), at(300));
    scenario.probe(saw(true, true));
    scenario.probe(saw(true, true));
    assert!(!scenario.machine.is(Degraded));
}

#[test]
fn parts_are_looked_at_rarely_and_when_in_doubt() {
    let (well, ill) = (Some(false), Some(true));
    // Columns: probed before, known `Degraded`, BMC reachable, seconds since the last probe,
    // expected.
    for (ever, known, bmc, seconds, expected) in [
        (false, None, true, 1, true),
        (false, None, false, 1, false),
        (false, ill, true, 1, true),
        (false, well, true, 1, false),
        (true, well, true, 1, false),
        (true, ill, true, 1, false),
        (false, well, true, 600, true),
        (true, well, true, 600, true),
        (true, well, false, 600, false),
    ] {
        let mut machine = machine("m-1");
        if let Some(status) = known {
            machine.learn(&[ConditionObservation::new(Degraded, status, "known")], at(0));
        }
        // Just after the machine's own offset.
        let begun = (0..600_000)
            .map(Timestamp::from_millis)
            .find(|now| is_due("m-1", at(0), *now))
            .unwrap();
        let mut watched = MachinePollState::new(begun);
        if ever {
            watched.examined(None, begun);
        }
        let now = begun + Duration::from_secs(seconds);
        let found = watched.needs_health_probe(&machine, &saw(true, bmc), now, &RHYTHM);
        assert_eq!(found, expected, "{ever} {known:?} {bmc} {seconds}");
    }
}

/// The offsets are spread over the interval and are the same after a restart.
#[test]
fn the_fleet_is_spread_over_the_span() {
    const FLEET: usize = 2_000;
    let due_at =
        |id: &str, from: i64| (from..from + 600).find(|now| is_due(id, at(from), at(*now)));
    let mut minutes = [0; 10];
    for n in 0..FLEET {
        let id = format!("m-{n}");
        let first = due_at(&id, 0).unwrap_or(600);
        minutes[usize::try_from(first.min(599) / 60).unwrap()] += 1;
        let again = due_at(&id, 6_000).unwrap_or(6_600) - 6_000;
        assert!((first % 600 - again % 600).abs() <= 1, "{id}: {first} and {again}");
    }
    assert!(minutes.iter().all(|count| (100..300).contains(count)), "{minutes:?}");
}
