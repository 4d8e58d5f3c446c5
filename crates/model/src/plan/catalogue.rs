//! The plans that come with Farrier: one default for every type of run.

use super::{OnFailure, Plan, RunType, Step};
use crate::effect::{Effect, Expect, NetbootMode, RebootMode, RmaAction};
use crate::id::PlanId;

/// The default plan of a type.
pub fn default_plan(run_type: RunType) -> Plan {
    let (id, name, steps) = match run_type {
        RunType::Reboot => ("plan-reboot-v1", "Reboot", vec![reboot()]),
        RunType::Reimage => ("plan-repave-v1", "Repave and join the cluster", reimage()),
        RunType::EnterMaintenance => (
            "plan-enter-maintenance-v1",
            "Enter maintenance",
            vec![step("check-drained", 60, 2, look(Expect::Drained))],
        ),
        RunType::ExitMaintenance => (
            "plan-exit-maintenance-v1",
            "Exit maintenance",
            vec![step("check-ready", 60, 2, look(Expect::Ready))],
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
            vec![
                step("record", 120, 2, Effect::Rma { action: RmaAction::Record }),
                step("power-off", 300, 1, Effect::Rma { action: RmaAction::PowerOff }),
                step("mark", 60, 2, Effect::Rma { action: RmaAction::Mark }),
            ],
        ),
    };
    Plan {
        id: PlanId::trusted(id),
        display_name: name.into(),
        steps,
        default_for: Some(run_type),
        built_in: true,
        on_failure: OnFailure::KeepPhase,
    }
}

/// All of them.
pub fn built_in() -> Vec<Plan> {
    RunType::ALL.into_iter().map(default_plan).collect()
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
    step("reboot", 300, 2, Effect::Reboot { mode: RebootMode::Bmc })
}

fn command(text: &str) -> Effect {
    Effect::Ssh { command: text.into(), destructive: false }
}

/// Draining is the owner's to do; entering and leaving maintenance only record what they see.
fn look(expect: Expect) -> Effect {
    Effect::Verify { cluster_ref: String::new(), expect, advisory: true }
}

fn verify() -> Step {
    let effect =
        Effect::Verify { cluster_ref: String::new(), expect: Expect::Ready, advisory: false };
    step("verify", 300, 5, effect)
}

fn reimage() -> Vec<Step> {
    vec![
        step("set-netboot", 60, 2, Effect::Netboot { mode: NetbootMode::Pxe }),
        step("repave-os", 1_800, 1, Effect::Repave { image: String::new() }),
        reboot(),
        step("join-cluster", 600, 1, Effect::Join { cluster_ref: String::new() }),
        verify(),
    ]
}

fn upgrade() -> Vec<Step> {
    let upgrade = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get -y dist-upgrade";
    vec![step("upgrade-packages", 3_600, 1, command(upgrade)), reboot(), verify()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_sound_default() {
        let plans = built_in();
        assert_eq!(plans.len(), RunType::ALL.len());
        for plan in plans {
            assert!(plan.default_for.is_some() && plan.built_in);
            assert!(PlanId::parse(plan.id.as_str()).is_ok());
            plan.checked().unwrap();
        }
    }
}
