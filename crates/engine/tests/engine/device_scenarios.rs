//! Scenarios of records with a lifecycle and of parent runs. A new lifecycle, or a new path through
//! one, is added here.

use crate::agent_scenarios;
use crate::device_fixture::{DeviceAction, DeviceFixture, FLASHED, NEWER};
use crate::device_records::{SHELF, SWITCH, ShelfRequest, group};
use crate::node_scenarios;
use crate::scenario::{Coverage, Fixture, Sampling, Scenario};
use model::effect::{DesiredPower, DeviceWork, Effect, FabricGoal};
use model::id::FirmwareId;
use model::plan::RunStep;
use model::rack::maintenance::{PowerSequence, RequestedActivity};
use model::run::actions::Action;
use providers::sim::{self, FaultRule};
use std::collections::BTreeMap;

/// A scenario in its short form.
pub struct DeviceScenario {
    pub name: &'static str,
    /// The devices in service when it begins.
    pub devices: &'static [&'static str],
    pub before: Vec<DeviceAction>,
    pub faults: Vec<FaultRule>,
    pub script: Vec<DeviceAction>,
    /// Commits that must be crash points, and the minimum number of each.
    pub commits: &'static [(&'static str, usize)],
    /// Steps whose effect must be a crash point.
    pub steps: &'static [&'static str],
    /// Crash only at the first two and the last of each kind of point.
    pub long: bool,
    /// The state of the newest node at the end.
    pub node: Option<&'static str>,
}

impl DeviceScenario {
    fn build(self) -> Scenario {
        let Self { name, devices, before, faults, script, commits, steps, long, node } = self;
        Scenario {
            name: name.into(),
            fixture: Fixture::Devices(DeviceFixture { devices, before, faults, script, node }),
            coverage: Coverage {
                steps: steps.iter().map(ToString::to_string).collect(),
                commits: commits.to_vec(),
                shared: true,
            },
            sampling: match (long, node) {
                (false, _) => Sampling::Every,
                (true, None) => Sampling::FirstTwoAndLast,
                // Nodes have many stages, and one scenario covers each.
                (true, Some(_)) => Sampling::OwnSteps,
            },
        }
    }
}

pub fn all() -> Vec<Scenario> {
    let devices = shelves().into_iter().chain(groups()).chain(racks()).chain(hosts());
    let devices = devices.chain(std::iter::once(rollout()));
    let all = devices.chain(node_scenarios::all()).chain(agent_scenarios::all());
    all.map(DeviceScenario::build).collect()
}

/// One machine is rebooted, another one fails and is tried again.
fn rollout() -> DeviceScenario {
    let fails = FaultRule { machine: "m-2".into(), ..fault("reboot", sim::Action::Fail, 0) };
    DeviceScenario {
        name: "a rollout with a target that fails, and is tried again",
        devices: &["m-1", "m-2"],
        before: vec![],
        faults: vec![fails],
        script: vec![DeviceAction::Rollout, DeviceAction::ClearFaults, DeviceAction::RetryRollout],
        commits: &[("create_rollout", 1), ("change_rollout", 1), ("advance", 6)],
        steps: &[],
        long: false,
        node: None,
    }
}

/// The names of all effects in these scenarios.
pub fn effect_names() -> Vec<&'static str> {
    let groups = [upgrade(), fabric()].concat();
    let parts = groups.iter().flat_map(|step| match &step.effect {
        Effect::ChildRuns { group } => {
            group.child_runs.iter().flat_map(|part| part.steps.clone()).collect()
        }
        _ => Vec::new(),
    });
    let of_shelves = ["parts", "read", "configure", "power"];
    parts.map(|step| step.effect.name()).chain(of_shelves).collect()
}

pub fn fault(effect: &str, action: sim::Action, times: u32) -> FaultRule {
    FaultRule { effect: effect.into(), times, ..FaultRule::new(action) }
}

/// Power shelves.
fn shelves() -> Vec<DeviceScenario> {
    let off = || DeviceAction::RequestShelf(ShelfRequest::Power(DesiredPower::Off));
    let on = || DeviceAction::RequestShelf(ShelfRequest::Power(DesiredPower::On));
    let power = |action, times| vec![fault("power", action, times)];
    let shelf = |name, before, faults, script, commits, steps| DeviceScenario {
        name,
        devices: &[],
        before,
        faults,
        script,
        commits,
        steps,
        long: false,
        node: None,
    };
    let ready = || vec![DeviceAction::Register(SHELF)];
    const REGISTERED: &[(&str, usize)] = &[("register", 1), ("advance", 3), ("commit", 4)];
    const POWERED: &[(&str, usize)] = &[("request_shelf", 1), ("advance", 2), ("commit", 2)];
    const REPAIRED: &[(&str, usize)] = &[("request_shelf", 2), ("advance", 4), ("commit", 4)];
    vec![
        shelf("a shelf is registered", vec![], vec![], ready(), REGISTERED, &["read", "configure"]),
        shelf(
            "a switch is registered",
            vec![],
            vec![],
            vec![DeviceAction::Register(SWITCH)],
            &[("register", 1), ("advance", 4), ("commit", 6)],
            &["read", "configure", "validate"],
        ),
        shelf(
            "a shelf goes off and on",
            ready(),
            vec![],
            vec![off(), on()],
            POWERED,
            &["power-off"],
        ),
        shelf(
            "a shelf's answer is lost",
            ready(),
            power(sim::Action::Drop, 1),
            vec![off()],
            POWERED,
            &["power-off"],
        ),
        shelf(
            "a shelf fails, is mended and asked again",
            ready(),
            power(sim::Action::Fail, 0),
            vec![off(), DeviceAction::ClearFaults, off()],
            REPAIRED,
            &["power-off"],
        ),
        shelf(
            "a shelf cannot be read, is mended and tried again",
            vec![],
            vec![fault("read", sim::Action::Fail, 0)],
            vec![
                DeviceAction::Register(SHELF),
                DeviceAction::ClearFaults,
                DeviceAction::RequestShelf(ShelfRequest::Retry),
            ],
            REGISTERED,
            &["read", "configure"],
        ),
        shelf(
            "a shelf is deleted",
            ready(),
            vec![],
            vec![DeviceAction::RequestShelf(ShelfRequest::Delete)],
            &[("advance", 1)],
            &[],
        ),
        shelf(
            "a shelf is deleted as it goes off",
            ready(),
            vec![],
            vec![off(), DeviceAction::RequestWhilePowering(ShelfRequest::Delete)],
            POWERED,
            &["power-off"],
        ),
    ]
}

/// Firmware on a device of each kind, two at a time, and then a check.
fn upgrade() -> Vec<RunStep> {
    let work = DeviceWork::Firmware {
        component: "BIOS".into(),
        version: "2.0".into(),
        url: "https://images/bios".into(),
        sha256: "0".repeat(64),
    };
    let desired = BTreeMap::from([("BIOS".to_string(), "2.0".to_string())]);
    let check = DeviceWork::Check { firmware: desired, power: None };
    vec![
        group("upgrade", &Effect::Device { work }, &FLASHED, 2),
        group("look", &Effect::Device { work: check }, &FLASHED[..2], 2),
    ]
}

/// Two devices are powered off at once after a switch has left the fabric.
fn fabric() -> Vec<RunStep> {
    let leave = Effect::Device { work: DeviceWork::Fabric { to: FabricGoal::Off } };
    let off = Effect::Power {
        to: DesiredPower::Off,
        power_off: model::effect::PowerOffPolicy::PROVIDER_DEFAULT,
    };
    vec![group("leave", &leave, &["sw-1"], 1), group("dark", &off, &["m-1", "ps-2"], 2)]
}

/// Parent runs.
fn groups() -> Vec<DeviceScenario> {
    let of = |name, faults, script, commits, steps| DeviceScenario {
        name,
        devices: &FLASHED,
        before: vec![],
        faults,
        script,
        commits,
        steps,
        long: false,
        node: None,
    };
    let firmware = |machine: &str, action, times| {
        vec![FaultRule { machine: machine.into(), ..fault("firmware", action, times) }]
    };
    // Two commits for each of five child runs, three for the parent.
    const ALL: &[(&str, usize)] = &[("start_parent", 1), ("start_children", 3), ("commit", 13)];
    const STEPS: &[&str] = &["firmware", "check"];
    let upgraded = || vec![DeviceAction::StartParent(upgrade())];
    vec![
        of("a group is upgraded", vec![], upgraded(), ALL, STEPS),
        of(
            "a group leaves its fabric and goes dark",
            vec![],
            vec![DeviceAction::StartParent(fabric())],
            &[("start_parent", 1), ("start_children", 2), ("commit", 9)],
            &["fabric", "power"],
        ),
        of("a part fails once", firmware("m-1", sim::Action::Fail, 1), upgraded(), ALL, STEPS),
        of(
            "a part's answer is lost",
            firmware("sw-1", sim::Action::Drop, 1),
            upgraded(),
            ALL,
            STEPS,
        ),
        of(
            "a part fails, is mended, and the whole tried again",
            firmware("m-1", sim::Action::Fail, 0),
            vec![
                DeviceAction::StartParent(upgrade()),
                DeviceAction::ClearFaults,
                DeviceAction::Act(Action::RetryStep),
            ],
            &[("start_parent", 1), ("start_children", 3), ("act_on_run", 1), ("commit", 13)],
            STEPS,
        ),
    ]
}

/// Racks: intake, maintenance and deletion.
fn racks() -> Vec<DeviceScenario> {
    let of = |name, before, faults, script, commits, steps| DeviceScenario {
        name,
        devices: &FLASHED,
        before,
        faults,
        script,
        commits,
        steps,
        long: true,
        node: None,
    };
    const FOLLOWED: &[(&str, usize)] = &[("start_children", 2), ("advance", 3), ("commit", 3)];
    const INTAKE: &[&str] =
        &["firmware-bmc", "fabric-off", "fabric-manager", "fabric-configured", "power-on", "check"];
    vec![
        of(
            "a rack comes into service",
            vec![],
            vec![],
            vec![DeviceAction::CreateRack],
            FOLLOWED,
            INTAKE,
        ),
        of(
            "a rack is maintained",
            vec![DeviceAction::CreateRack],
            vec![],
            vec![reset()],
            FOLLOWED,
            &["power-off", "power-on", "check"],
        ),
        of(
            "a rack's firmware is upgraded",
            vec![DeviceAction::CreateRack],
            vec![],
            vec![DeviceAction::Maintain(RequestedActivity::FirmwareUpgrade(Some(
                FirmwareId::trusted(NEWER),
            )))],
            FOLLOWED,
            &["firmware-bmc", "check"],
        ),
        of(
            "a maintenance fails, is mended and asked again",
            vec![DeviceAction::CreateRack],
            vec![FaultRule { machine: "sw-1".into(), ..fault("power", sim::Action::Fail, 0) }],
            vec![reset(), DeviceAction::ClearFaults, reset()],
            FOLLOWED,
            &["power-off", "power-on", "check"],
        ),
        of(
            "a rack is deleted",
            vec![DeviceAction::CreateRack],
            vec![],
            vec![DeviceAction::DeleteRack],
            &[("delete_rack", 1), ("advance", 1)],
            &[],
        ),
    ]
}

/// Hosts; the machine is in no rack.
fn hosts() -> Vec<DeviceScenario> {
    let of = |name, faults, commits| DeviceScenario {
        name,
        devices: &FLASHED[..1],
        before: vec![],
        faults,
        script: vec![DeviceAction::Reprovision],
        commits,
        steps: &["firmware-bmc"],
        long: false,
        node: None,
    };
    let fails = |times| vec![fault("firmware", sim::Action::Fail, times)];
    vec![
        of(
            "a host is upgraded",
            vec![],
            &[("request_reprovision", 1), ("advance", 2), ("commit", 2)],
        ),
        of(
            "a host's upgrade fails and is tried again later",
            fails(1),
            &[("request_reprovision", 1), ("advance", 4), ("commit", 4)],
        ),
    ]
}

fn reset() -> DeviceAction {
    DeviceAction::Maintain(RequestedActivity::PowerSequence(PowerSequence::Reset))
}
