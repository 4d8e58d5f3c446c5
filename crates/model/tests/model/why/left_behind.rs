//! Explanations after a failed or canceled operation: disks, pods, devices that are off.

use super::{check_commands, failed, machine};
use crate::support::{at, drain, spec, wipe};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{DesiredPower, DeviceFacts, DrainOptions, EffectKey};
use model::fault::{Fault, FaultCode};
use model::gate::{Gate, Overrides};
use model::id::{PowerShelfId, RackId, RunId, SwitchId};
use model::lifecycle::{
    DeviceFailure, DeviceSpec, IdleReason, LifecycleDecision, RecordHeader, run_step,
};
use model::machine::{DiskWrite, Labels, Machine, MachineProblem, Phase};
use model::node::NodeState;
use model::plan::{Maintenance, Params, RunType};
use model::power_shelf::PowerShelf;
use model::rack::maintenance::RackStep;
use model::rack::{
    Rack, RackContext, RackFailure, RackFailurePhase, RackPowerOn, RackSpec, RackState, explain,
};
use model::run::{Run, RunSpec, Workflow};
use model::switch::{Switch, SwitchState};
use model::target::{TargetId, TargetKind};
use model::why::{
    Rank, RunContext, Urgency, dead_feeds, explain_device, explain_machine, explain_run,
    rank_machine,
};

const ON: &str = "farrier rack maintenance start rack-1 --power on";

/// A write that failed at 44 %: the disk is the cause, and the image of its repair is filled in.
#[test]
fn the_disk_of_a_failed_write_is_the_headline() {
    let run = failed(Fault::new(FaultCode::EffectFailed, "the deploy environment said no"));
    let write = DiskWrite {
        key: EffectKey::trusted("op-1/wipe/1"),
        content: "ubuntu-2204".into(),
        percent: Some(44),
        outcome_unknown: false,
        before: None,
    };
    let needs = ConditionType::NeedsIntervention;
    let reimage = "farrier reimage m-1 --image ubuntu-2204".to_string();
    for (phase, set) in [
        (Phase::Maintenance, &[needs][..]),
        (Phase::Maintenance, &[]),
        (Phase::Ready, &[]),
        (Phase::FactoryReady, &[]),
    ] {
        let open_disk_write = Some(write.clone());
        let machine = Machine { open_disk_write, ..machine(phase, false, set) };
        let context = RunContext { imaging: Some(&run), ..RunContext::default() };
        let told = explain_machine(&machine, Some(&run), context, at(9));
        let disk = "its disk is half written: op-1 did not finish writing ubuntu-2204; it stopped \
                    at 44 %";
        assert!(told.headline.contains(disk), "{told:#?}");
        assert!(told.next_commands.contains(&reimage), "{told:#?}");
        assert!(!told.next_commands.contains(&"farrier reimage m-1".to_string()), "{told:#?}");
        if set.is_empty() {
            continue;
        }
        assert!(told.headline.starts_with("m-1 needs attention: its disk is"), "{told:#?}");
        assert_eq!(told.next_commands[0], "farrier operation retry-step op-1");
    }
    // The image of an operation that succeeded is no suggestion.
    let mut done = run.clone();
    done.progress.workflow = Workflow::Completed;
    let machine = machine(Phase::Maintenance, false, &[]);
    let context = RunContext { imaging: Some(&done), ..RunContext::default() };
    let told = explain_machine(&machine, None, context, at(9));
    assert!(told.next_commands.contains(&"farrier reimage m-1".to_string()), "{told:#?}");
}

/// The options of a drain are offered where pods have stopped it, in the words of its request.
#[test]
fn a_drain_that_pods_have_stopped_offers_its_options() {
    let image = Params::from([("image_ref".to_string(), "rhel-9".to_string())]);
    let stopped = |given: DrainOptions, needed: Option<DrainOptions>, run_type, own_plan: bool| {
        let mut step = drain(0);
        if let model::effect::Effect::Drain { options, .. } = &mut step.effect {
            *options = given;
        }
        let fault = Fault::new(FaultCode::EvictionBlocked, "node `m-1` was not drained");
        let fault = fault.with(|facts| facts.drain = needed);
        let mut spec = RunSpec { run_type, params: Params::new(), ..spec(vec![step]) };
        if run_type == RunType::Reimage {
            spec.params = image.clone();
            Overrides::of(&[Gate::Health], "known").store_in(&mut spec.params);
        }
        if !own_plan {
            spec.plan_id = Maintenance::EnterDraining.plan_id();
        }
        let Run { progress, .. } = failed(fault);
        explain_run(&Run { spec, progress, version: 1 }, RunContext::default(), at(9))
    };
    let unmanaged = DrainOptions { unmanaged_pods: true, ..DrainOptions::default() };
    let both = DrainOptions { emptydir: true, ..unmanaged.clone() };
    let chosen =
        DrainOptions { grace_seconds: Some(30), selector: "app in (a, b)".into(), ..both.clone() };
    let plain = DrainOptions::default();
    let enter = "farrier enter-maintenance m-1 --drain";
    for (given, needed, flags) in [
        (&plain, &unmanaged, " --drain-unmanaged-pods"),
        (&plain, &both, " --drain-unmanaged-pods --drain-emptydir"),
        (
            &chosen,
            &unmanaged,
            " --drain-unmanaged-pods --drain-emptydir --drain-grace 30s \
             --drain-selector 'app in (a, b)'",
        ),
    ] {
        let told = stopped(given.clone(), Some(needed.clone()), RunType::EnterMaintenance, false);
        assert_eq!(told.next_commands[0], format!("{enter}{flags}"), "{told:#?}");
    }
    // The parameters of the operation are kept: another image must not be installed.
    for (given, run_type, command) in [
        (&plain, RunType::Rma, "--type RMA --plan plan-x --param drain_unmanaged_pods=true"),
        (
            &plain,
            RunType::EnterMaintenance,
            "--type ENTER_MAINTENANCE --plan plan-x --param drain_unmanaged_pods=true",
        ),
        (
            &chosen,
            RunType::Reimage,
            "--type REIMAGE --plan plan-x --param drain_emptydir=true \
             --param drain_grace_seconds=30 --param drain_selector='app in (a, b)' \
             --param drain_unmanaged_pods=true --param image_ref=rhel-9",
        ),
    ] {
        let told = stopped(given.clone(), Some(unmanaged.clone()), run_type, true);
        assert_eq!(told.next_commands[0], format!("farrier operation start m-1 {command}"));
    }
    // A disruption budget has no option.
    let told = stopped(plain, None, RunType::EnterMaintenance, false);
    assert_eq!(told.next_commands[0], "farrier operation retry-step op-1", "{told:#?}");
}

/// A failed operation on the machine of a node in service: its repairs come before the node, which
/// does not know of it.
#[test]
fn a_failed_operation_comes_before_a_node_in_service() {
    let machine = machine(Phase::Ready, false, &[ConditionType::NeedsIntervention]);
    let why = "farrier why node-1".to_string();
    for (state, run_type, first) in [
        (NodeState::Active, RunType::EnterMaintenance, false),
        (NodeState::Active, RunType::NodeDrain, true),
        (NodeState::Quarantined, RunType::EnterMaintenance, true),
    ] {
        let mut run = failed(Fault::new(FaultCode::EvictionBlocked, "not drained"));
        run.spec.run_type = run_type;
        let node = crate::nodes::node(state);
        let context = RunContext { node: Some(&node), ..RunContext::default() };
        let told = explain_machine(&machine, Some(&run), context, at(9));
        assert_eq!(told.next_commands[0] == why, first, "{state:?} {run_type:?}: {told:#?}");
        assert!(told.next_commands.contains(&why), "{told:#?}");
        check_commands(&told, "a node in service");
    }
}

/// A machine that was never in service and is off: the command that switches it on comes first.
#[test]
fn a_new_machine_that_is_off_is_switched_on_first() {
    for (reason, first) in [
        ("PoweredOff", "farrier machine power m-1 on"),
        ("host-unreachable", "farrier enter-maintenance m-1"),
    ] {
        let mut machine = machine(Phase::FactoryReady, false, &[]);
        let off = ConditionObservation::new(ConditionType::Reachable, false, reason);
        machine.learn(&[off], at(1));
        let told = explain_machine(&machine, None, RunContext::default(), at(9));
        assert_eq!(told.next_commands[0], first, "{told:#?}");
    }
}

/// A machine whose system was removed went into service again.
#[test]
fn a_machine_without_a_system_is_not_ready_for_work() {
    let mut machine = machine(Phase::Ready, false, &[]);
    let removed = ConditionObservation::new(ConditionType::Provisioned, false, "Released");
    machine.learn(&[removed], at(1));
    let told = explain_machine(&machine, None, RunContext::default(), at(9));
    let words = "but it has no system; Provisioned is false: Released";
    assert!(told.headline.contains(words), "{told:#?}");
    assert_eq!(told.next_commands, ["farrier enter-maintenance m-1", "farrier reimage m-1"]);
    assert!(matches!(machine.problem(), Some(MachineProblem::NoSystem(_))), "{machine:?}");
    assert_eq!(rank_machine(&machine), Some(Rank::new(Urgency::OutOfService, at(1))));

    // Its silence follows from it; its BMC is needed for the repair.
    for (condition, first) in [
        (ConditionType::Reachable, "farrier enter-maintenance m-1"),
        (ConditionType::BmcReachable, "farrier machine inspect m-1"),
    ] {
        let mut silent = machine.clone();
        silent.learn(&[ConditionObservation::new(condition, false, "timeout")], at(2));
        let told = explain_machine(&silent, None, RunContext::default(), at(9));
        assert!(told.headline.contains(words), "{told:#?}");
        assert_eq!(told.next_commands[0], first, "{told:#?}");
    }

    // A machine that is out of use is no problem; one in maintenance cannot leave it.
    for (phase, rank, words, first) in [
        (Phase::FactoryReady, None, "it has no system any more", "farrier enter-maintenance m-1"),
        (
            Phase::Maintenance,
            Some(Rank::new(Urgency::OutOfService, at(1))),
            "m-1 is in maintenance, but it has no system; Provisioned is false: Released",
            "farrier reimage m-1",
        ),
    ] {
        let machine = Machine { phase, ..machine.clone() };
        assert_eq!(rank_machine(&machine), rank, "{phase:?}");
        let told = explain_machine(&machine, None, RunContext::default(), at(9));
        assert!(told.headline.contains(words), "{told:#?}");
        assert_eq!(told.next_commands[0], first, "{told:#?}");
    }
}

/// A BMC that is lost after an operation has failed is told beside the failure, and its repair
/// comes first. An active operation may have it restarted.
#[test]
fn a_lost_bmc_is_told_beside_a_failed_operation() {
    let run = failed(Fault::new(FaultCode::EffectFailed, "the deploy environment said no"));
    let needs = ConditionType::NeedsIntervention;
    let mut machine = machine(Phase::Maintenance, false, &[needs]);
    let bmc = "its BMC cannot be used; BMCReachable is false: bmc-unreachable";
    let explain =
        |machine: &Machine| explain_machine(machine, Some(&run), RunContext::default(), at(9));
    assert!(!explain(&machine).headline.contains(bmc));
    let (lost, reason) = (ConditionType::BmcReachable, "bmc-unreachable");
    machine.learn(&[ConditionObservation::new(lost, false, reason)], at(2));
    let told = explain(&machine);
    assert!(told.headline.starts_with("m-1 needs attention: REIMAGE op-1 failed"), "{told:#?}");
    assert!(told.headline.ends_with(bmc), "{told:#?}");
    let retry = "farrier operation retry-step op-1".to_string();
    assert!(told.next_commands[1..].contains(&retry), "{told:#?}");
    check_commands(&told, "a lost BMC");
    machine.active_run = Some(RunId::trusted("op-2"));
    assert!(!explain(&machine).headline.contains(bmc));
}

fn shelf(id: &str, power: Option<DesiredPower>) -> PowerShelf {
    let shelf = PowerShelf::new(RecordHeader::new(id, Labels::new(), at(0)), DeviceSpec::default());
    PowerShelf { facts: DeviceFacts { power, ..DeviceFacts::default() }, ..shelf }
}

/// Rows: the feeds of a machine, the power of the shelves ps-1 and ps-2 of its rack, and the feeds
/// that are dead.
#[test]
fn the_shelves_that_feed_a_machine_are_named_when_all_of_them_are_off() {
    let (on, off) = (Some(DesiredPower::On), Some(DesiredPower::Off));
    for (feeds, power, dead) in [
        (&[][..], [off, off], &["ps-1", "ps-2"][..]),
        (&[], [off, on], &[]),
        (&[], [off, None], &[]),
        (&["ps-1"], [off, on], &["ps-1"]),
        (&["ps-2"], [off, on], &[]),
        (&["ps-1", "ps-2"], [off, off], &["ps-1", "ps-2"]),
        // A feed that is not there may be on.
        (&["ps-1", "ps-9"], [off, off], &[]),
    ] {
        let mut machine = machine(Phase::Ready, false, &[]);
        machine.spec.feeds = feeds.iter().map(|id| PowerShelfId::trusted(*id)).collect();
        let shelves = [shelf("ps-1", power[0]), shelf("ps-2", power[1])];
        let found = dead_feeds(&machine.spec.feeds, &shelves);
        let dead: Vec<PowerShelfId> = dead.iter().map(|id| PowerShelfId::trusted(*id)).collect();
        assert_eq!(found, dead, "{feeds:?} {power:?}");
    }
    assert!(dead_feeds(&[], &[]).is_empty());

    let mut machine = machine(Phase::Ready, false, &[]);
    let lost = ConditionObservation::new(ConditionType::Reachable, false, "PoweredOff");
    machine.learn(&[lost], at(1));
    let mut told = explain_machine(&machine, None, RunContext::default(), at(9));
    assert_eq!(told.next_commands[0], "farrier machine power m-1 on");
    let feeds = ["ps-1", "ps-2"].map(PowerShelfId::trusted);
    told.blame_feeds("m-1", &feeds);
    let cause = "; no power shelf that feeds m-1 is on: ps-1, ps-2 are off";
    assert!(told.headline.ends_with(cause), "{}", told.headline);
    let on = "farrier power-shelf maintenance power-on --id ps-1 --id ps-2";
    assert_eq!(told.next_commands[0], on);
    assert!(!told.next_commands.iter().any(|one| one.contains("machine power")), "{told:#?}");
}

fn in_error(phase: RackFailurePhase, canceled: bool) -> Rack {
    let head = RecordHeader::new("rack-1", Labels::new(), at(0));
    let failure = DeviceFailure {
        message: "op-1 was canceled by ada".into(),
        run: Some(RunId::trusted("op-1")),
        code: String::new(),
    };
    let (device, next_command) = match canceled {
        true => (None, "farrier operation rerun op-1"),
        false => {
            let device = TargetId::new(TargetKind::Machine, "m-1");
            (Some(device), "farrier operation retry-step op-1")
        }
    };
    let next_command = next_command.into();
    let cause = RackFailure { phase, device, failure, next_command, canceled };
    Rack { state: RackState::Error { cause }, ..Rack::new(head, RackSpec::default()) }
}

/// A rack whose operation was canceled says that, and not that something failed. After a power
/// sequence the first command switches its devices on.
#[test]
fn a_canceled_operation_of_a_rack_is_told_as_canceled() {
    use RackFailurePhase::{FirmwareUpgrade, PowerSequence};
    for (phase, canceled, headline, first) in [
        (PowerSequence, true, "op-1 was canceled during PowerSequence", ON),
        (
            FirmwareUpgrade,
            true,
            "op-1 was canceled during FirmwareUpgrade",
            "farrier operation rerun op-1",
        ),
        (PowerSequence, false, "PowerSequence on m-1 failed", "farrier operation retry-step op-1"),
    ] {
        let told = explain(&in_error(phase, canceled), RackContext::default(), at(9));
        assert_eq!(told.headline, format!("rack-1 is in Error: {headline}"));
        assert_eq!(told.next_commands[0], first, "{told:#?}");
        let offered = told.next_commands.iter().any(|one| one == ON);
        assert_eq!(offered, phase == PowerSequence, "{told:#?}");
        check_commands(&told, "a rack in Error");
    }
}

/// The operation itself leads to the same command, once it has switched something.
#[test]
fn a_canceled_power_sequence_offers_to_switch_on() {
    for (step, begun, offered) in [
        (RackStep::PowerOff(TargetKind::Machine), true, true),
        (RackStep::PowerOff(TargetKind::Machine), false, false),
        (RackStep::Firmware(TargetKind::Machine), true, false),
    ] {
        let effect = wipe(0).effect;
        let steps = vec![run_step(step.as_str(), 60, 0, effect)];
        let target = TargetId::new(TargetKind::Rack, "rack-1");
        let run_type = RunType::RackMaintenance;
        let mut run = Run::new(RunSpec { target, run_type, ..spec(steps) });
        run.progress.workflow = Workflow::Cancelled;
        run.progress.steps[0].started_at = begun.then(|| at(1));
        let told = explain_run(&run, RunContext::default(), at(9));
        assert_eq!(told.next_commands[0] == ON, offered, "{told:#?}");
    }
}

#[test]
fn a_switch_that_is_off_is_switched_on_by_its_rack() {
    let on =
        RackPowerOn { rack: RackId::trusted("rack-1"), switch: Some(SwitchId::trusted("sw-1")) };
    for (rack, power, offered) in [
        (Some("rack-1"), Some(DesiredPower::Off), true),
        (Some("rack-1"), Some(DesiredPower::On), false),
        (None, Some(DesiredPower::Off), false),
    ] {
        let mut head = RecordHeader::new("sw-1", Labels::new(), at(0));
        head.rack = rack.map(RackId::trusted);
        let switch = Switch::new(head, DeviceSpec::default());
        let facts = DeviceFacts { power, ..DeviceFacts::default() };
        let switch = Switch { facts, state: SwitchState::Ready, ..switch };
        let next = LifecycleDecision::Idle(IdleReason("no request is pending".into()));
        let told = explain_device(&switch, &next, at(9));
        assert_eq!(told.next_commands[0] == on.to_string(), offered, "{told:#?}");
    }
    // The commands are read back as they are printed.
    let whole = RackPowerOn::of_rack(RackId::trusted("rack-1"));
    assert_eq!(whole.to_string(), ON);
    for one in [on, whole] {
        assert_eq!(RackPowerOn::parse(&one.to_string()), Some(one));
    }
    assert_eq!(RackPowerOn::parse("farrier rack maintenance start rack-1 --dry-run"), None);
}
