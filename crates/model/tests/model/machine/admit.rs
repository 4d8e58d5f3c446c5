//! The gates of a machine: by phase, effect, flag and health.

use model::blast_radius::{Impact, ServingNode};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{DesiredPower, Effect, RmaAction};
use model::gate::{Gate, Overrides};
use model::id::NodeId;
use model::id::{MachineId, RunId};
use model::machine::admit::{RunCase, admit_again, admit_flag, impact_of};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::node::NodeState;
use model::plan::{RunStep, RunType};
use model::refusal::Refusal;
use model::time::Timestamp;

pub fn admit(machine: &Machine, run_type: RunType, steps: &[RunStep]) -> Result<(), Refusal> {
    admit_with_override(machine, run_type, steps, &Overrides::default())
}

pub fn admit_with_override(
    machine: &Machine,
    run_type: RunType,
    steps: &[RunStep],
    overrides: &Overrides,
) -> Result<(), Refusal> {
    RunCase { machine, node: None, run_type, steps }.admit(overrides)
}

fn machine(phase: Phase) -> Machine {
    let id = MachineId::trusted("m-1");
    let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), Timestamp::default());
    machine.phase = phase;
    machine
}

/// Rows: the run types. Columns: FACTORY_READY, READY, MAINTENANCE.
#[test]
fn gates_by_phase() {
    let table = [
        (RunType::Reboot, [false, true, true]),
        (RunType::Reimage, [false, false, true]),
        (RunType::EnterMaintenance, [true, true, true]),
        (RunType::ExitMaintenance, [false, false, true]),
        (RunType::Upgrade, [false, false, true]),
        (RunType::NetReconfig, [false, false, true]),
        (RunType::Join, [false, false, true]),
        (RunType::Rma, [false, false, true]),
        (RunType::Power, [true, true, true]),
    ];
    // `ExitRma` has its own gate.
    assert_eq!(table.len() + 1, RunType::PLANNED.len());
    for (run_type, row) in table {
        for (phase, open) in Phase::ALL.into_iter().zip(row) {
            let classification = admit(&machine(phase), run_type, &[]);
            assert_eq!(classification.is_ok(), open, "{run_type:?} in {phase:?}");
            if let Err(refusal) = classification {
                assert_eq!(refusal.reason.as_str(), "WRONG_PHASE");
                assert_eq!(refusal.next_command.as_deref(), Some("farrier enter-maintenance m-1"));
            }
        }
    }
}

/// The gate depends on the effects, not only on the run type.
#[test]
fn gates_by_effect() {
    use model::effect::{NetbootMode, NodeLabels, PowerOffPolicy, RebootMode};
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
    let command = |destructive| Effect::Ssh { command: "true".into(), destructive };
    let rma = |action| Effect::Rma { action, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let power = |to| Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let table = [
        (Effect::Repave { image: "i".into() }, [false, false, true]),
        (Effect::Net { document: "n".into() }, [false, false, true]),
        (Effect::Netboot { mode: NetbootMode::Pxe }, [false, false, true]),
        (
            Effect::Join {
                cluster_ref: "c".into(),
                labels: NodeLabels::new(),
                taints: Vec::new(),
                kubeadm: Default::default(),
            },
            [false, false, true],
        ),
        (rma(RmaAction::Record), [true, true, true]),
        (rma(RmaAction::PowerOff), [false, false, true]),
        (rma(RmaAction::Mark), [false, false, true]),
        (power(DesiredPower::On), [true, true, true]),
        (power(DesiredPower::Off), [false, true, true]),
        (
            Effect::Drain {
                cluster_ref: "c".into(),
                deadline_seconds: None,
                options: Default::default(),
            },
            [true, true, true],
        ),
        (Effect::Uncordon { cluster_ref: "c".into(), own: false }, [true, true, true]),
        (command(true), [false, false, true]),
        (command(false), [true, true, true]),
        (
            Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
            [false, true, true],
        ),
    ];
    for (effect, row) in table {
        for (phase, open) in Phase::ALL.into_iter().zip(row) {
            let steps = [step(effect.clone())];
            // The gate in-service has a table of its own.
            let mut drained = machine(phase);
            let observed = ConditionObservation::new(ConditionType::Drained, true, "test");
            drained.learn(&[observed], Timestamp::default());
            let classification = admit(&drained, RunType::EnterMaintenance, &steps);
            assert_eq!(classification.is_ok(), open, "{effect:?} in {phase:?}");
        }
    }
}

#[test]
fn flags_and_other_operations_shut_every_gate() {
    for run_type in RunType::ALL {
        let own_undo = run_type == RunType::ExitRma;
        for flag in [ConditionType::Rma, ConditionType::Retired] {
            if own_undo && flag == ConditionType::Rma {
                continue;
            }
            let mut flagged = machine(Phase::Maintenance);
            flagged.learn(&[ConditionObservation::new(flag, true, "test")], Timestamp::default());
            assert_eq!(
                admit(&flagged, run_type, &[]).unwrap_err().reason.as_str(),
                "MACHINE_BLOCKED"
            );
        }
        let mut busy = machine(Phase::Maintenance);
        if own_undo {
            busy.learn(&[rma_flag(true)], Timestamp::default());
        }
        busy.active_run = Some(RunId::trusted("op-7"));
        let refusal = admit(&busy, run_type, &[]).unwrap_err();
        assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
        assert!(refusal.message.contains("op-7"));
    }
}

/// Rows: the request. Columns: admitted with an alert that prevents allocations, and with one
/// that prevents state changes.
#[test]
fn gates_by_health() {
    use model::effect::NodeLabels;
    use model::health::{Alert, AlertClass, HealthReport, HealthSummary, Reports};
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
    let cluster = || "c".to_string();
    let join = step(Effect::Join {
        cluster_ref: cluster(),
        labels: NodeLabels::new(),
        taints: Vec::new(),
        kubeadm: Default::default(),
    });
    let uncordon = step(Effect::Uncordon { cluster_ref: cluster(), own: false });
    let note = step(Effect::Ssh { command: "true".into(), destructive: false });
    let table: [(RunType, Vec<RunStep>, [bool; 2]); 6] = [
        (RunType::Reboot, vec![], [true, false]),
        (RunType::Reimage, vec![note], [true, false]),
        (RunType::Reimage, vec![join], [false, false]),
        (RunType::Upgrade, vec![uncordon], [false, false]),
        (RunType::EnterMaintenance, vec![], [true, false]),
        (RunType::ExitMaintenance, vec![], [false, false]),
    ];
    for (run_type, steps, row) in table {
        for (class, open) in
            [AlertClass::PreventAllocations, AlertClass::PreventStateChanges].into_iter().zip(row)
        {
            let alert = Alert {
                component: String::new(),
                message: "a fan is broken".into(),
                classes: [class.as_str().to_string()].into(),
                since: Timestamp::default(),
            };
            let report = HealthReport::new([("fan".to_string(), alert)]);
            let mut machine = machine(Phase::Maintenance);
            machine.health = HealthSummary::of(&Reports::from([("site".to_string(), report)]));
            let classification = admit(&machine, run_type, &steps);
            assert_eq!(classification.is_ok(), open, "{run_type:?} with {class:?}");
            if let Err(refusal) = classification {
                assert!(refusal.message.contains("site reports fan: a fan is broken"), "{refusal}");
            }
            let named = Overrides::of(&[Gate::Health], "it must be");
            assert_eq!(admit_with_override(&machine, run_type, &steps, &named), Ok(()));
            let other = Overrides::of(&[Gate::InService], "it must be");
            assert_eq!(admit_with_override(&machine, run_type, &steps, &other).is_ok(), open);
            // The override applies to no other gate.
            machine.active_run = Some(RunId::trusted("op-7"));
            let refusal = admit_with_override(&machine, run_type, &steps, &named).unwrap_err();
            assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
        }
    }
}

fn rma_flag(set: bool) -> ConditionObservation {
    ConditionObservation::new(ConditionType::Rma, set, "test")
}

#[test]
fn the_way_back_from_rma_is_open_to_what_changes_nothing() {
    use model::effect::PowerOffPolicy;
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
    let power = |to| step(Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT });
    let wipe = step(Effect::Repave { image: "i".into() });
    for phase in Phase::ALL {
        let mut machine = machine(phase);
        let refusal = admit(&machine, RunType::ExitRma, &[power(DesiredPower::On)]).unwrap_err();
        assert_eq!(refusal.reason.as_str(), "NOT_FLAGGED");
        machine.learn(&[rma_flag(true)], Timestamp::default());
        assert_eq!(admit(&machine, RunType::ExitRma, &[power(DesiredPower::On)]), Ok(()));
        for bad in [wipe.clone(), power(DesiredPower::Off)] {
            let refusal = admit(&machine, RunType::ExitRma, &[bad]).unwrap_err();
            assert_eq!(refusal.reason.as_str(), "MACHINE_BLOCKED");
            assert_eq!(refusal.next_command.as_deref(), Some("farrier machine exit-rma m-1"));
        }
        let retired = ConditionObservation::new(ConditionType::Retired, true, "test");
        machine.learn(&[retired], Timestamp::default());
        let refusal = admit(&machine, RunType::ExitRma, &[]).unwrap_err();
        assert!(refusal.message.contains("Retired"), "{refusal}");
    }
}

fn serving(state: NodeState) -> ServingNode {
    ServingNode { id: NodeId::trusted("node-1"), state }
}

/// Every effect, and what it takes. An effect that does harm takes something: one that is missing
/// in the gate in-service fails here.
#[test]
fn every_effect_that_takes_something_is_gated() {
    use model::effect::{DeviceWork, FabricGoal, NetbootMode, PowerOffPolicy};
    let step = |effect| RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect };
    let overrides = Overrides::of(&[Gate::InService], "fire");
    let rma = |action| Effect::Rma { action, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let others = [
        Effect::Ssh { command: "true".into(), destructive: false },
        rma(RmaAction::Record),
        rma(RmaAction::Mark),
        Effect::Netboot { mode: NetbootMode::Pxe },
        Effect::Device { work: DeviceWork::Fabric { to: FabricGoal::Off } },
        Effect::Device { work: DeviceWork::Fabric { to: FabricGoal::Configured } },
    ];
    for effect in crate::stored::golden_effects().into_iter().chain(others) {
        let facts = effect.facts();
        assert!(!facts.harmful_to_repeat || facts.takes.is_some(), "{effect:?} takes nothing");
        let steps = [step(effect.clone())];
        // Phase MAINTENANCE allows every effect, so only the node objects.
        let (machine, node) = (machine(Phase::Maintenance), serving(NodeState::Active));
        let case = RunCase {
            machine: &machine,
            node: Some(&node),
            run_type: RunType::Upgrade,
            steps: &steps,
        };
        assert_eq!(case.admit(&overrides), Ok(()), "{effect:?}");
        let admitted = case.admit(&Overrides::default());
        assert_eq!(admitted.is_err(), facts.takes.is_some(), "{effect:?}");
        if let Err(refusal) = admitted {
            assert_eq!(refusal.gate, Some(Gate::InService), "{effect:?}");
            assert!(refusal.message.contains("m-1 serves as node-1"), "{refusal}");
            let next = refusal.next_command.unwrap_or_default();
            let expected =
                "farrier node drain node-1   # or repeat it with --override in-service --reason …";
            assert_eq!(next, expected);
        }
    }
}

/// Every built-in plan of a machine, and what it takes.
#[test]
fn every_plan_that_takes_something_is_gated() {
    use model::plan::{default_plan, variants};
    let defaults = RunType::PLANNED.into_iter().filter_map(|one| Some((one, default_plan(one)?)));
    for (run_type, plan) in defaults.chain(variants()) {
        let expected = match plan.id.as_str() {
            "plan-reboot-v1" => Some(Impact::Reboot),
            "plan-repave-v1" => Some(Impact::DiskLoss),
            "plan-upgrade-v1" | "plan-power-cycle-v1" => Some(Impact::Restart),
            "plan-net-reconfig-v1" => Some(Impact::NetworkLoss),
            "plan-join-v1" => Some(Impact::SystemChange),
            "plan-rma-v1" | "plan-power-off-v1" => Some(Impact::PowerLoss),
            "plan-enter-maintenance-v1" => Some(Impact::Maintenance),
            // Of a machine in no cluster: it moves no work away.
            "plan-enter-maintenance-drain-v1" => Some(Impact::Maintenance),
            "plan-exit-maintenance-v1"
            | "plan-exit-maintenance-uncordon-v1"
            | "plan-exit-rma-v1"
            | "plan-power-on-v1"
            | "plan-boot-from-disk-v1" => None,
            new => panic!("what does {new} take?"),
        };
        let resolved = plan.steps.iter().map(|step| RunStep {
            name: step.name.clone(),
            timeout_seconds: 1,
            max_retries: 0,
            effect: step.effect.clone(),
        });
        let steps: Vec<RunStep> = resolved.collect();
        assert_eq!(impact_of(run_type, &steps), expected, "{}", plan.id);
    }
}

/// A drain with a selector does not empty the node, and one in no cluster drains nothing: neither
/// replaces the gate.
#[test]
fn a_drain_of_some_pods_still_takes_the_machine_from_service() {
    use model::effect::DrainOptions;
    let taken = Some(Impact::Maintenance);
    for (cluster, selector, expected) in
        [("c", "", None), ("c", "app=web", taken), ("", "", taken), ("", "app=web", taken)]
    {
        let options = DrainOptions { selector: selector.into(), ..DrainOptions::ALL_PODS };
        let cluster_ref = cluster.into();
        let effect = Effect::Drain { cluster_ref, deadline_seconds: None, options };
        let steps = [RunStep { name: "s".into(), timeout_seconds: 1, max_retries: 0, effect }];
        assert_eq!(impact_of(RunType::EnterMaintenance, &steps), expected, "{cluster} {selector}");
    }
}

/// Rows: the request in phase READY, not drained. Columns: without a node, and with a node that is
/// active, offline and retired.
#[test]
fn a_ready_machine_keeps_what_it_has() {
    use model::plan::{default_plan, variants};
    let plan = |id: &str| {
        let defaults = RunType::PLANNED.into_iter().filter_map(default_plan);
        let found = defaults.chain(variants().into_iter().map(|(_, plan)| plan));
        found.into_iter().find(|plan| plan.id.as_str() == id).expect("a built-in plan")
    };
    for (run_type, id, row) in [
        (RunType::Reboot, "plan-reboot-v1", [true, false, true, true]),
        (RunType::Power, "plan-power-on-v1", [true, true, true, true]),
        (RunType::Power, "plan-power-off-v1", [false, false, false, false]),
        (RunType::Power, "plan-power-cycle-v1", [false, false, false, false]),
        (RunType::EnterMaintenance, "plan-enter-maintenance-v1", [true, false, true, true]),
        (RunType::EnterMaintenance, "plan-enter-maintenance-drain-v1", [true, false, true, true]),
        (RunType::Power, "plan-boot-from-disk-v1", [true; 4]),
    ] {
        let steps: Vec<RunStep> = plan(id)
            .steps
            .iter()
            .map(|step| RunStep {
                name: step.name.clone(),
                timeout_seconds: 1,
                max_retries: 0,
                effect: step.effect.clone(),
            })
            .collect();
        let nodes =
            [None, Some(NodeState::Active), Some(NodeState::Offline), Some(NodeState::Retired)];
        for (state, open) in nodes.into_iter().zip(row) {
            let (machine, node) = (machine(Phase::Ready), state.map(serving));
            let case = RunCase { machine: &machine, node: node.as_ref(), run_type, steps: &steps };
            let admitted = case.admit(&Overrides::default());
            assert_eq!(admitted.is_ok(), open, "{id} with {state:?}: {admitted:?}");
            let forced = case.admit(&Overrides::of(&[Gate::InService], "fire"));
            assert_eq!(forced, Ok(()), "{id} with {state:?}");
        }
    }
}

/// The objection of a node comes before the phase; that of the machine after it. Two gates that
/// can be overridden are named together.
#[test]
fn the_refusal_says_what_helps() {
    use model::run::Run;
    let wipe = vec![crate::support::wipe(0)];
    let (ready, node) = (machine(Phase::Ready), serving(NodeState::Active));
    let case = RunCase { machine: &ready, node: None, run_type: RunType::Reimage, steps: &wipe };
    let reason = |case: RunCase<'_>, overrides: &Overrides| {
        case.admit(overrides).unwrap_err().reason.as_str()
    };
    let none = Overrides::default();
    assert_eq!(reason(case, &none), "WRONG_PHASE");
    let with_node = RunCase { node: Some(&node), ..case };
    assert_eq!(reason(with_node, &none), "MACHINES_IN_SERVICE");
    // No override passes the phase.
    assert_eq!(reason(with_node, &Overrides::of(&[Gate::InService], "fire")), "WRONG_PHASE");
    let mut spec = crate::support::spec(vec![crate::support::power_off(0)]);
    spec.run_type = RunType::Power;
    let refusal = admit_again(&ready, None, &Run::new(spec)).unwrap_err();
    assert_eq!(
        refusal.next_command.as_deref(),
        Some(
            "farrier enter-maintenance m-1 --drain   # or: farrier operation start m-1 --type POWER --plan plan-x --override in-service --reason …"
        )
    );
}

/// Rows: the state of the node. Columns: the phases FACTORY_READY, READY and MAINTENANCE, of a
/// machine that is not drained. An override in-service passes all of them.
#[test]
fn flagging_a_machine_asks_whether_it_is_in_service() {
    let overrides = Overrides::of(&[Gate::InService], "smoke");
    let states = [None].into_iter().chain(NodeState::ALL.map(Some));
    for state in states {
        let row = match state {
            Some(NodeState::Active | NodeState::Offline | NodeState::Draining) => [false; 3],
            Some(
                NodeState::BootstrapIssued
                | NodeState::Enrolling
                | NodeState::Quarantined
                | NodeState::Retired
                | NodeState::Removing
                | NodeState::Deleted,
            )
            | None => [true, false, true],
        };
        for (phase, open) in Phase::ALL.into_iter().zip(row) {
            for flag in [ConditionType::Rma, ConditionType::Retired] {
                let (machine, node) = (machine(phase), state.map(serving));
                let admitted = admit_flag(&machine, node.as_ref(), flag, &Overrides::default());
                assert_eq!(admitted.is_ok(), open, "{state:?} {phase:?}: {admitted:?}");
                let gates = if open { Vec::new() } else { vec![Gate::InService] };
                assert_eq!(admit_flag(&machine, node.as_ref(), flag, &overrides), Ok(gates));
                if let Err(refusal) = admitted {
                    assert_eq!(refusal.gate, Some(Gate::InService));
                    assert!(refusal.message.contains("m-1"), "{refusal}");
                }
                let held = Machine { active_run: Some(RunId::trusted("op-7")), ..machine };
                let refusal = admit_flag(&held, None, flag, &overrides).unwrap_err();
                assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
            }
        }
    }
}

/// A machine and its node, changed by the commands that refusals print.
#[derive(Clone)]
struct Walk {
    machine: Machine,
    node: Option<ServingNode>,
}

impl Walk {
    fn case<'a>(&'a self, run_type: RunType, steps: &'a [RunStep]) -> RunCase<'a> {
        RunCase { machine: &self.machine, node: self.node.as_ref(), run_type, steps }
    }

    /// Types a printed command. It must be accepted, and does what it does when all goes well.
    fn type_command(&mut self, command: &str) {
        let drains = command.ends_with(" --drain");
        if command.starts_with("farrier enter-maintenance m-1") {
            let in_cluster = !self.machine.spec.target_cluster_ref.is_empty();
            let drain = crate::support::drain(0);
            let steps = if drains && in_cluster { vec![drain] } else { Vec::new() };
            let entering = self.case(RunType::EnterMaintenance, &steps);
            let overrides = match command.ends_with(" --override in-service --reason …") {
                true => Overrides::of(&[Gate::InService], "fire"),
                false => Overrides::default(),
            };
            assert_eq!(entering.admit(&overrides), Ok(()), "{command}");
            self.machine.phase = Phase::Maintenance;
            let drained = ConditionObservation::new(ConditionType::Drained, drains, "test");
            self.machine.learn(&[drained], Timestamp::default());
            return;
        }
        let node = self.node.as_mut().expect("a node");
        let resumes = node.state == NodeState::Draining;
        let expected = if resumes { "resume" } else { "drain" };
        assert_eq!(command, format!("farrier node {expected} {}", node.id));
        node.state = NodeState::Retired;
    }

    /// Follows the printed commands, or repeats the request with the printed override, until the
    /// request is admitted.
    fn follow(mut self, run_type: RunType, steps: &[RunStep], overriding: bool) {
        let mut overrides = Overrides::default();
        for _ in 0..4 {
            let Err(refusal) = self.case(run_type, steps).admit(&overrides) else { return };
            let next = refusal.next_command.expect("a command");
            let (command, flags) = match next.split_once("   # or repeat it with ") {
                Some((command, flags)) => (command, Some(flags)),
                None => (next.as_str(), None),
            };
            // A phase that no override passes is entered past the node.
            let (command, past) = command.split_once("   # or: ").unwrap_or((command, command));
            let command = if overriding { past } else { command };
            match flags.filter(|_| overriding) {
                Some(flags) => {
                    assert_eq!(flags, "--override in-service --reason …");
                    overrides = Overrides::of(&[Gate::InService], "fire");
                    let repeated = self.case(run_type, steps).admit(&overrides);
                    assert_eq!(repeated, Ok(()), "{run_type:?}: the override is not enough");
                }
                None => self.type_command(command),
            }
            // The printed command is the request itself, with a drain.
            if run_type == RunType::EnterMaintenance && self.machine.phase == Phase::Maintenance {
                return;
            }
        }
        panic!("{run_type:?} is not admitted after four commands");
    }
}

/// A machine that became a node in phase FACTORY_READY: the phase forbids the reboot too.
#[test]
fn a_reboot_under_an_active_node_names_the_way_past_it() {
    let (machine, node) = (machine(Phase::FactoryReady), serving(NodeState::Active));
    let effect = Effect::Reboot {
        mode: model::effect::RebootMode::Bmc,
        power_off: model::effect::PowerOffPolicy::PROVIDER_DEFAULT,
    };
    let steps = [RunStep { name: "reboot".into(), timeout_seconds: 1, max_retries: 0, effect }];
    let case =
        RunCase { machine: &machine, node: Some(&node), run_type: RunType::Reboot, steps: &steps };
    let refusal = case.admit(&Overrides::default()).unwrap_err();
    assert_eq!(refusal.gate, Some(Gate::InService));
    assert!(refusal.message.contains("m-1 serves as node-1 (gate in-service)"), "{refusal}");
    let next = "farrier node drain node-1   # or: farrier enter-maintenance m-1 \
                --override in-service --reason …";
    assert_eq!(refusal.next_command.as_deref(), Some(next));
}

/// Every command that a refusal prints is accepted, and they lead to the request. An override is
/// only offered where it is enough.
#[test]
fn printed_commands_lead_to_the_request() {
    use model::plan::{default_plan, variants};
    let defaults = RunType::PLANNED.into_iter().filter_map(|one| Some((one, default_plan(one)?)));
    let plans: Vec<_> = defaults.chain(variants()).collect();
    let states = [NodeState::Active, NodeState::Offline, NodeState::Draining, NodeState::Retired];
    let nodes: Vec<Option<NodeState>> =
        [None].into_iter().chain(states.into_iter().map(Some)).collect();
    for (run_type, plan) in plans.iter().filter(|(one, _)| *one != RunType::ExitRma) {
        let steps: Vec<RunStep> = plan
            .steps
            .iter()
            .map(|step| RunStep {
                name: step.name.clone(),
                timeout_seconds: 1,
                max_retries: 0,
                effect: step.effect.clone(),
            })
            .collect();
        for phase in Phase::ALL {
            for (node, cluster) in nodes.iter().flat_map(|node| [(node, ""), (node, "c-1")]) {
                let mut machine = machine(phase);
                machine.spec.target_cluster_ref = cluster.into();
                let walk = Walk { machine, node: node.map(serving) };
                walk.clone().follow(*run_type, &steps, false);
                walk.follow(*run_type, &steps, true);
            }
        }
    }
}

/// Switching power off, or off and on, with nothing that is known to use the machine: only the
/// phase FACTORY_READY objects. With an active node every phase does. One override passes both.
#[test]
fn an_override_passes_all_that_protects_power() {
    use model::plan::{boot_from_disk_plan, variants};
    let power = variants().into_iter().filter(|(run_type, _)| *run_type == RunType::Power);
    let takes_nothing = boot_from_disk_plan().id;
    for (run_type, plan) in power.filter(|(_, plan)| plan.id != takes_nothing) {
        let steps: Vec<RunStep> = plan
            .steps
            .iter()
            .map(|step| RunStep {
                name: step.name.clone(),
                timeout_seconds: 1,
                max_retries: 0,
                effect: step.effect.clone(),
            })
            .collect();
        for phase in Phase::ALL {
            for node in [None, Some(serving(NodeState::Active))] {
                let mut machine = machine(phase);
                let drained = ConditionObservation::new(ConditionType::Drained, true, "test");
                machine.learn(&[drained], Timestamp::default());
                let node = node.as_ref();
                let case = RunCase { machine: &machine, node, run_type, steps: &steps };
                let expected = match (node, phase) {
                    (Some(_), _) => Some("MACHINES_IN_SERVICE"),
                    (None, Phase::FactoryReady) => Some("WRONG_PHASE"),
                    (None, Phase::Ready | Phase::Maintenance) => None,
                };
                let refused = case.admit(&Overrides::default()).err();
                let reason = refused.as_ref().map(|refusal| refusal.reason.as_str());
                assert_eq!(reason, expected, "{} in {phase:?}", plan.id);
                assert!(refused.is_none_or(|one| one.gate == Some(Gate::InService)));
                let forced = case.admit(&Overrides::of(&[Gate::InService], "fire"));
                assert_eq!(forced, Ok(()), "{} in {phase:?}", plan.id);
            }
        }
    }
}
