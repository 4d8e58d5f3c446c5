//! The built-in plans: one default for every planned run type, variants for some types, and the
//! plans of nodes.

use super::{OnFailure, Plan, RunStep, RunType, Step};
use crate::effect::{
    ClusterExpectation, DesiredPower, DrainOptions, Effect, KubeadmOptions, NetbootMode,
    NodeLabels, PowerOffPolicy, RebootMode, RmaAction,
};
use crate::id::{NodeId, PlanId};
use crate::node::{DecommissionMode, NodeStage, StageTarget, steps as node_steps, uncordon};

/// The variants of a POWER run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerChange {
    On,
    Off,
    Cycle,
}

impl PowerChange {
    pub const ALL: [Self; 3] = [Self::On, Self::Off, Self::Cycle];

    pub fn plan_id(self) -> PlanId {
        PlanId::trusted(match self {
            Self::On => "plan-power-on-v1",
            Self::Off => "plan-power-off-v1",
            Self::Cycle => "plan-power-cycle-v1",
        })
    }

    fn plan(self) -> Plan {
        let (name, step) = match self {
            Self::On => ("Switch on", step("power-on", 300, 2, power(DesiredPower::On))),
            Self::Off => ("Switch off", step("power-off", 300, 1, power(DesiredPower::Off))),
            Self::Cycle => ("Switch off and on again", Step { name: "cycle".into(), ..reboot() }),
        };
        plan(self.plan_id().as_str(), name, vec![step])
    }
}

/// Maintenance variants that drain the node on entry and uncordon it on exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maintenance {
    EnterDraining,
    ExitUncordoning,
}

impl Maintenance {
    pub const ALL: [Self; 2] = [Self::EnterDraining, Self::ExitUncordoning];

    pub const fn run_type(self) -> RunType {
        match self {
            Self::EnterDraining => RunType::EnterMaintenance,
            Self::ExitUncordoning => RunType::ExitMaintenance,
        }
    }

    pub fn plan_id(self) -> PlanId {
        PlanId::trusted(match self {
            Self::EnterDraining => "plan-enter-maintenance-drain-v1",
            Self::ExitUncordoning => "plan-exit-maintenance-uncordon-v1",
        })
    }

    fn plan(self) -> Plan {
        let (name, steps) = match self {
            Self::EnterDraining => (
                "Drain and enter maintenance",
                vec![
                    drain(),
                    step("check-drained", 60, 2, verify_step(ClusterExpectation::Drained)),
                ],
            ),
            Self::ExitUncordoning => (
                "Uncordon and exit maintenance",
                vec![
                    step(
                        "uncordon",
                        120,
                        3,
                        Effect::Uncordon { cluster_ref: String::new(), own: false },
                    ),
                    step("check-ready", 60, 2, verify_step(ClusterExpectation::Ready)),
                ],
            ),
        };
        plan(self.plan_id().as_str(), name, steps)
    }
}

/// Undoes an armed boot from the network. It takes nothing from a machine in service.
pub fn boot_from_disk_plan() -> Plan {
    let effect = Effect::Netboot { mode: NetbootMode::Disk };
    let steps = vec![step("boot-from-disk", 60, 2, effect)];
    plan("plan-boot-from-disk-v1", "Boot from the disk again", steps)
}

/// The default plan of a run type. Types that only lifecycles start have none: their runs bring
/// their own steps.
pub fn default_plan(run_type: RunType) -> Option<Plan> {
    chosen(run_type).map(|plan| Plan { default_for: Some(run_type), ..plan })
}

fn chosen(run_type: RunType) -> Option<Plan> {
    let (id, name, steps) = match run_type {
        RunType::Reboot => ("plan-reboot-v1", "Reboot", vec![reboot()]),
        RunType::Reimage => ("plan-repave-v1", "Repave and join the cluster", reimage()),
        RunType::EnterMaintenance => (
            "plan-enter-maintenance-v1",
            "Enter maintenance",
            vec![step("check-drained", 60, 2, verify_step(ClusterExpectation::Drained))],
        ),
        RunType::ExitMaintenance => (
            "plan-exit-maintenance-v1",
            "Exit maintenance",
            vec![step("check-ready", 60, 2, verify_step(ClusterExpectation::Ready))],
        ),
        RunType::Upgrade => ("plan-upgrade-v1", "Upgrade packages and reboot", upgrade()),
        RunType::NetReconfig => (
            "plan-net-reconfig-v1",
            "Reconfigure the network",
            vec![
                step("net-reconfig", 300, 0, Effect::Net { document: String::new() }),
                step("check-host", 120, 3, command("true")),
            ],
        ),
        RunType::Rma => (
            "plan-rma-v1",
            "Prepare for return to the vendor",
            vec![drain(), record(), step("power-off", 300, 1, rma(RmaAction::PowerOff)), mark()],
        ),
        RunType::ExitRma => (
            "plan-exit-rma-v1",
            "Take back from the vendor",
            vec![
                step("power-on", 300, 2, power(DesiredPower::On)),
                record(),
                // A host takes minutes to boot, and does not answer meanwhile.
                step("check-host", 120, 20, command("true")),
            ],
        ),
        RunType::Join => (
            "plan-join-v1",
            "Join the cluster",
            vec![step("join-cluster", 600, 1, join()), verify()],
        ),
        // Without a stated power change, the harmless variant is the default.
        RunType::Power => return Some(PowerChange::On.plan()),
        RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check
        | RunType::Onboard
        | RunType::Decommission
        | RunType::NodeDrain => return None,
    };
    Some(plan(id, name, steps))
}

fn plan(id: &str, name: &str, steps: Vec<Step>) -> Plan {
    Plan {
        id: PlanId::trusted(id),
        display_name: name.into(),
        steps,
        default_for: None,
        built_in: true,
        on_failure: OnFailure::KeepPhase,
    }
}

/// The built-in plans that are not a default, each with its run type.
pub fn variants() -> Vec<(RunType, Plan)> {
    let maintenance = Maintenance::ALL.map(|way| (way.run_type(), way.plan()));
    let usual = default_plan(RunType::Power).map(|plan| plan.id);
    let power = PowerChange::ALL
        .into_iter()
        .map(PowerChange::plan)
        .filter(move |plan| Some(&plan.id) != usual.as_ref())
        .map(|plan| (RunType::Power, plan));
    let boot = [(RunType::Power, boot_from_disk_plan())];
    maintenance.into_iter().chain(power).chain(boot).collect()
}

/// The plan id of a run on a node; none means onboarding.
pub fn node_plan_id(mode: Option<DecommissionMode>) -> PlanId {
    PlanId::trusted(match mode {
        None => "plan-node-onboard-v1",
        Some(DecommissionMode::SoftReset) => "plan-node-soft-reset-v1",
        Some(DecommissionMode::Reimage) => "plan-node-reimage-v1",
        Some(DecommissionMode::FullDecommission) => "plan-node-full-decommission-v1",
        Some(DecommissionMode::StorageCleanup) => "plan-node-storage-cleanup-v1",
        Some(DecommissionMode::Drain) => "plan-node-drain-v1",
        Some(DecommissionMode::Retire) => "plan-node-retire-v1",
        Some(DecommissionMode::Reactivate) => "plan-node-reactivate-v1",
    })
}

/// The plans of runs on nodes. Only node requests start them, and fill in the node then.
pub fn node_plans() -> Vec<Plan> {
    let owner = StageTarget {
        node: NodeId::trusted(""),
        site: None,
        provider: String::new(),
        cluster: String::new(),
    };
    let modes = [None].into_iter().chain(DecommissionMode::ALL.map(Some));
    let made = modes.map(|mode| {
        let (name, stages) = match mode {
            None => ("Onboard a node".to_string(), NodeStage::ONBOARDING.to_vec()),
            Some(mode @ DecommissionMode::Reactivate) => {
                ("Put a node back into service".to_string(), mode.stages(true))
            }
            Some(mode) => (format!("Take a node out of service: {mode}"), mode.stages(true)),
        };
        let open = |one: RunStep| step(&one.name, one.timeout_seconds, one.max_retries, one.effect);
        let back = (mode == Some(DecommissionMode::Reactivate)).then(|| uncordon(&owner.cluster));
        let steps = node_steps(&stages, &owner).into_iter().chain(back).map(open).collect();
        plan(node_plan_id(mode).as_str(), &name, steps)
    });
    made.collect()
}

/// All built-in plans.
pub fn built_in() -> Vec<Plan> {
    let defaults = RunType::PLANNED.into_iter().filter_map(default_plan);
    defaults.chain(variants().into_iter().map(|(_, plan)| plan)).chain(node_plans()).collect()
}

fn step(name: &str, timeout_seconds: u32, max_retries: u32, effect: Effect) -> Step {
    Step {
        name: name.into(),
        timeout_seconds: Some(timeout_seconds),
        max_retries: Some(max_retries),
        effect,
    }
}

fn reboot() -> Step {
    let effect =
        Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    // Large machines test their memory for minutes before they boot.
    step("reboot", 900, 2, effect)
}

fn power(to: DesiredPower) -> Effect {
    Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT }
}

fn drain() -> Step {
    let (cluster_ref, options) = (String::new(), DrainOptions::default());
    step("drain", 1_800, 1, Effect::Drain { cluster_ref, deadline_seconds: None, options })
}

fn rma(action: RmaAction) -> Effect {
    Effect::Rma { action, power_off: PowerOffPolicy::PROVIDER_DEFAULT }
}

/// Logs the identity of the machine that leaves or comes back.
fn record() -> Step {
    step("record", 120, 2, rma(RmaAction::Record))
}

fn mark() -> Step {
    step("mark", 60, 2, rma(RmaAction::Mark))
}

fn command(text: &str) -> Effect {
    Effect::Ssh { command: text.into(), destructive: false }
}

/// An advisory check. Draining is the owner's task, so entering and leaving maintenance only record
/// the observed state.
fn verify_step(expect: ClusterExpectation) -> Effect {
    Effect::Verify { cluster_ref: String::new(), expect, advisory: true }
}

fn verify() -> Step {
    let effect = Effect::Verify {
        cluster_ref: String::new(),
        expect: ClusterExpectation::Ready,
        advisory: false,
    };
    step("verify", 300, 5, effect)
}

fn join() -> Effect {
    Effect::Join {
        cluster_ref: String::new(),
        labels: NodeLabels::new(),
        taints: Vec::new(),
        kubeadm: KubeadmOptions::default(),
    }
}

fn reimage() -> Vec<Step> {
    vec![
        step("set-netboot", 60, 2, Effect::Netboot { mode: NetbootMode::Pxe }),
        step("repave-os", 1_800, 1, Effect::Repave { image: String::new() }),
        reboot(),
        step("join-cluster", 600, 1, join()),
        verify(),
    ]
}

fn upgrade() -> Vec<Step> {
    let upgrade = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get -y dist-upgrade";
    vec![step("upgrade-packages", 3_600, 1, command(upgrade)), reboot(), verify()]
}
