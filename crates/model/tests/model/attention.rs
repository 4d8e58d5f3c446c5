//! Objects that need a person: the rank of every kind of object in every state.

use crate::support::at;
use model::condition::{ConditionObservation, ConditionType};
use model::device::{Device, DeviceReachability};
use model::effect::EffectKey;
use model::fault::{EffectOutcome, FaultCode};
use model::health::{Alert, AlertClass, HealthReport, Reports};
use model::host::{Host, HostState};
use model::id::{MachineId, RunId, SiteId};
use model::lifecycle::{DeviceFailure, DeviceSpec, Lifecycle, RecordHeader};
use model::machine::{DiskWrite, Labels, Machine, MachineSpec, Phase};
use model::node::{Node, NodeState, NodeWork};
use model::power_shelf::PowerShelf;
use model::rack::{
    MaintenanceStage, Rack, RackContext, RackFailure, RackFailurePhase, RackSpec, RackState,
    explain,
};
use model::site::{Site, SiteAlarm, SiteSpec};
use model::switch::Switch;
use model::why::{
    Explanation, Rank, Urgency, explain_expiry, rank_alerts, rank_device, rank_expiry, rank_host,
    rank_machine, rank_node, rank_rack, rank_site,
};
use std::time::Duration;

const DAY: i64 = 86_400;

fn machine(phase: Phase, observed: &[(ConditionType, bool, &str)]) -> Machine {
    let mut machine =
        Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
    machine.phase = phase;
    for (condition, status, reason) in observed {
        machine.learn(&[ConditionObservation::new(*condition, *status, *reason)], at(7));
    }
    machine
}

fn half_written(machine: Machine) -> Machine {
    let key = EffectKey::trusted("op-1/repave/1");
    let write = DiskWrite {
        key,
        content: "ubuntu-2204".into(),
        percent: Some(60),
        outcome_unknown: false,
        before: None,
    };
    Machine { open_disk_write: Some(write), ..machine }
}

#[test]
fn a_machine_is_ranked_by_its_record() {
    use ConditionType::{BmcReachable, NeedsIntervention, Provisioned, Reachable, Rma};
    use Phase::{FactoryReady, Maintenance, Ready};
    let no_bmc = (BmcReachable, false, "bmc-unreachable");
    let off = (Reachable, false, "PoweredOff");
    let failed = (NeedsIntervention, true, "effect-failed:op-1");
    let cut = (Provisioned, false, "Unfinished:ubuntu-2204:60%:op-1");
    for (machine, urgency) in [
        (machine(Ready, &[]), None),
        (machine(Ready, &[(Reachable, true, "PingOK")]), None),
        (machine(Ready, &[off]), Some(Urgency::OutOfService)),
        (machine(Ready, &[off, no_bmc]), Some(Urgency::OutOfService)),
        (machine(Ready, &[(Reachable, true, "PingOK"), no_bmc]), Some(Urgency::Degraded)),
        (machine(Maintenance, &[no_bmc]), None),
        (machine(FactoryReady, &[off]), None),
        (machine(Maintenance, &[off]), None),
        (machine(Ready, &[off, failed]), Some(Urgency::Stopped)),
        (machine(Ready, &[(Rma, true, "fan"), failed]), None),
        (half_written(machine(Ready, &[cut])), Some(Urgency::Stopped)),
        (half_written(machine(Maintenance, &[cut])), Some(Urgency::Stopped)),
        (half_written(machine(FactoryReady, &[cut])), Some(Urgency::Stopped)),
    ] {
        let rank = rank_machine(&machine);
        assert_eq!(rank.map(|rank| rank.urgency), urgency, "{machine:?}");
        assert!(rank.is_none_or(|rank| rank.since == at(7)), "{rank:?}");
    }
    // An operation in progress is ranked by itself.
    let mut busy = half_written(machine(Maintenance, &[cut]));
    busy.active_run = Some(RunId::trusted("op-1"));
    assert_eq!(rank_machine(&busy), None);
}

/// An unknown outcome ranks first; the explanation has read the run and decides.
#[test]
fn every_fault_has_a_rank() {
    for code in FaultCode::ALL {
        let reason = format!("{}:op-1", code.as_str());
        let machine =
            machine(Phase::Ready, &[(ConditionType::NeedsIntervention, true, reason.as_str())]);
        let expected = match code.effect_outcome() {
            EffectOutcome::Unknown => Urgency::MayBeDamaged,
            EffectOutcome::NotApplied => Urgency::Stopped,
        };
        assert_eq!(rank_machine(&machine).map(|rank| rank.urgency), Some(expected), "{code:?}");
    }
    let told = |may_be_damaged| Explanation { may_be_damaged, ..Explanation::default() };
    for (ranked, unharmed) in [
        (Urgency::MayBeDamaged, Urgency::Stopped),
        (Urgency::Stopped, Urgency::Stopped),
        (Urgency::OutOfService, Urgency::OutOfService),
        (Urgency::Overdue, Urgency::Overdue),
        (Urgency::Degraded, Urgency::Degraded),
    ] {
        assert_eq!(ranked.explained(&told(false)), unharmed);
        assert_eq!(ranked.explained(&told(true)), Urgency::MayBeDamaged);
    }
}

#[test]
fn what_is_worse_or_waits_longer_comes_first() {
    let rank = Rank::new;
    let ranked = [
        rank(Urgency::MayBeDamaged, at(9)),
        rank(Urgency::Stopped, at(1)),
        rank(Urgency::Stopped, at(2)),
        rank(Urgency::OutOfService, at(0)),
        rank(Urgency::Overdue, at(0)),
        rank(Urgency::Degraded, at(0)),
    ];
    assert!(ranked.is_sorted());
}

fn failure(code: &str) -> DeviceFailure {
    DeviceFailure { message: "it broke".into(), run: None, code: code.into() }
}

/// A failed firmware upgrade needs a person once it is not retried by itself.
#[test]
fn a_host_is_ranked_when_its_retries_are_over() {
    let interval = Duration::from_secs(600);
    let failed =
        |retry_count, code| HostState::FailedFirmwareUpgrade { retry_count, cause: failure(code) };
    for (state, ranked) in [
        (HostState::Ready, false),
        (HostState::CheckingFirmwareV2 { retry_count: 3 }, false),
        (HostState::WaitingForRackFirmwareUpgrade, false),
        (failed(0, "firmware-failed"), false),
        (failed(3, "firmware-failed"), true),
        (failed(0, "firmware-differs"), true),
        (failed(0, ""), true),
    ] {
        let host = Host { state, ..Host::new(&MachineId::trusted("m-1"), at(3)) };
        let expected = ranked.then(|| Rank::new(Urgency::Stopped, at(3)));
        assert_eq!(rank_host(&host, interval), expected, "{host:?}");
    }
    assert!(HostState::UNDER_WAY.contains(&HostState::FAILED));
}

#[test]
fn an_alert_that_prevents_changes_is_ranked() {
    use AlertClass::{PreventAllocations, PreventStateChanges, SuppressExternalAlerting};
    let alert = |since: i64, classes: &[AlertClass]| Alert {
        component: String::new(),
        message: "it is wet".into(),
        classes: classes.iter().map(|class| class.as_str().to_string()).collect(),
        since: at(since),
    };
    for (classes, ranked) in [
        (&[][..], false),
        (&[PreventAllocations], false),
        (&[PreventStateChanges], true),
        (&[PreventStateChanges, SuppressExternalAlerting], false),
    ] {
        let alerts = [("leak".into(), alert(5, classes)), ("smoke".into(), alert(2, &[]))];
        let reports = Reports::from([("dcim".into(), HealthReport::new(alerts))]);
        let expected = ranked.then(|| Rank::new(Urgency::Stopped, at(5)));
        assert_eq!(rank_alerts(&reports), expected, "{classes:?}");
    }
}

/// Each state, at once and after a day.
#[test]
fn a_rack_is_ranked_by_its_state_and_age() {
    let cause = RackFailure {
        phase: RackFailurePhase::Validation,
        device: None,
        failure: failure(""),
        next_command: "farrier rack get rack-1".into(),
        canceled: false,
    };
    let (stopped, late) = (Some(Urgency::Stopped), Some(Urgency::Overdue));
    let mut waiting = Vec::new();
    for (state, soon, later) in [
        (RackState::Created, None, late),
        (RackState::Discovering, None, late),
        (RackState::Maintenance { stage: MaintenanceStage::PowerSequence }, None, None),
        (RackState::Validating, None, None),
        (RackState::Ready, None, None),
        (RackState::Error { cause }, stopped, stopped),
        (RackState::Deleting, None, None),
    ] {
        let head = RecordHeader::new("rack-1", Labels::new(), at(0));
        let rack = Rack { state, ..Rack::new(head, RackSpec::default()) };
        for (now, expected) in [(at(1), soon), (at(DAY), later)] {
            let rank = rank_rack(&rack, now);
            assert_eq!(rank.map(|rank| rank.urgency), expected, "{} {now:?}", rack.state_name());
            assert!(rank.is_none_or(|rank| rank.since == at(0)));
            let overdue = explain(&rack, RackContext::default(), now).overdue;
            assert_eq!(overdue, expected == late, "{}", rack.state_name());
        }
        if rack.normal_duration().is_some() {
            waiting.push(rack.state_name());
        }
    }
    assert_eq!(waiting, Rack::WAITING);
}

#[test]
fn a_device_is_ranked_by_its_failure_its_reach_and_its_age() {
    fn check<D: Device>(device: D, ready: D::State) {
        let urgency = |device: &D, now| rank_device(device, now).map(|rank| rank.urgency);
        assert_eq!(urgency(&device, at(1)), None);
        assert_eq!(urgency(&device, at(DAY)), Some(Urgency::Overdue));
        let mut lost = device.in_state(ready, None);
        assert_eq!(urgency(&lost, at(DAY)), None);
        *lost.observed_mut() =
            Some(DeviceReachability { reachable: false, message: "no answer".into(), at: at(4) });
        assert_eq!(rank_device(&lost, at(5)), Some(Rank::new(Urgency::OutOfService, at(4))));
        let mut broken = lost.in_state(D::in_error(failure("")), None);
        assert_eq!(urgency(&broken, at(1)), Some(Urgency::Stopped));
        broken.head_mut().active_run = Some(RunId::trusted("op-1"));
        assert_ne!(urgency(&broken, at(1)), Some(Urgency::Stopped), "it is worked on");
    }
    let head = |id: &str| RecordHeader::new(id, Labels::new(), at(0));
    let switch = Switch::new(head("sw-1"), DeviceSpec::default());
    check(switch, model::switch::SwitchState::Ready);
    let shelf = PowerShelf::new(head("ps-1"), DeviceSpec::default());
    let reading = shelf.in_state(model::power_shelf::PowerShelfState::FetchingData, None);
    check(reading, model::power_shelf::PowerShelfState::Ready);
}

#[test]
fn a_node_is_ranked_in_every_state() {
    let (stopped, lost) = (Some(Urgency::Stopped), Some(Urgency::OutOfService));
    let mut waiting = Vec::new();
    for state in NodeState::ALL {
        let node = crate::nodes::node(state);
        let (soon, later) = match state {
            NodeState::Quarantined => (stopped, stopped),
            NodeState::Offline => (lost, lost),
            NodeState::Enrolling | NodeState::Draining | NodeState::Removing => {
                (None, Some(Urgency::Overdue))
            }
            NodeState::BootstrapIssued
            | NodeState::Active
            | NodeState::Retired
            | NodeState::Deleted => (None, None),
        };
        let since = node.head.since;
        for (age, expected) in [(1, soon), (DAY, later)] {
            let now = since + Duration::from_secs(age as u64);
            let rank = rank_node(&node, NodeWork::Idle, now);
            assert_eq!(rank.map(|rank| rank.urgency), expected, "{state:?}");
            let overdue = node.explain(Default::default(), now).overdue;
            assert_eq!(overdue, expected == Some(Urgency::Overdue), "{state:?}");
        }
        if node.normal_duration().is_some() {
            waiting.push(node.state_name());
        }
    }
    assert_eq!(waiting, Node::WAITING);
}

#[test]
fn a_site_is_ranked_when_it_is_cut_off() {
    let site = Site::new(&SiteId::trusted("site-1"), SiteSpec::default(), Labels::new(), at(0));
    assert_eq!(rank_site(&site), None);
    let alarm = Some(SiteAlarm { message: "no answer".into(), since: at(3) });
    for site in [
        Site { unreachable: alarm.clone(), ..site.clone() },
        Site { silence: alarm.clone(), ..site.clone() },
        Site { drift: alarm, ..site },
    ] {
        assert_eq!(rank_site(&site).map(|rank| rank.urgency), Some(Urgency::OutOfService));
    }
}

/// A kubeconfig is listed two weeks before it expires, and stops work when it has.
#[test]
fn a_kubeconfig_is_ranked_by_its_expiry() {
    let end = at(100 * DAY);
    for (now, ranked, words) in [
        (at(85 * DAY), None, "expires in"),
        (at(86 * DAY), Some(Rank::new(Urgency::Degraded, at(86 * DAY))), "expires in 14d"),
        (at(99 * DAY), Some(Rank::new(Urgency::Degraded, at(86 * DAY))), "expires in 1d"),
        (at(100 * DAY), Some(Rank::new(Urgency::Stopped, end)), "expired 0ms ago"),
        (at(101 * DAY), Some(Rank::new(Urgency::Stopped, end)), "expired 1d"),
    ] {
        assert_eq!(rank_expiry(end, now), ranked, "{now:?}");
        let told = explain_expiry("prod", end, now);
        assert!(told.headline.contains(words), "{}", told.headline);
        assert!(told.headline.contains("cluster prod"), "{}", told.headline);
        assert_eq!(told.next_command(), Some("farrier credential update prod --kubeconfig …"));
    }
}
