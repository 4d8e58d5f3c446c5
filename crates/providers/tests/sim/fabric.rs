use providers::fabric::*;

/// A switch whose manager is open is also connected to it.
fn observation(
    cluster: ClusterState,
    controller: ControllerState,
    open: bool,
) -> FabricObservation {
    FabricObservation {
        cluster,
        controller,
        manager_open: open,
        connected: open,
        summary: String::new(),
    }
}

#[test]
fn every_observation_has_its_step() {
    use ClusterState::{Disabled, Enabled};
    use ControllerState::{Absent, Configured, Stopped, Unconfigured};
    for (goal, cluster, controller, open, expected) in [
        (FabricTarget::Off, Disabled, Absent, false, FabricStep::Done),
        (FabricTarget::Off, Enabled, Configured, true, FabricStep::Send(FabricCommand::Disable)),
        (FabricTarget::Manager, Disabled, Absent, false, FabricStep::Send(FabricCommand::Enable)),
        (FabricTarget::Manager, Enabled, Absent, false, FabricStep::Wait),
        (
            FabricTarget::Manager,
            Enabled,
            Stopped,
            true,
            FabricStep::Send(FabricCommand::StartManager),
        ),
        (
            FabricTarget::Manager,
            Enabled,
            Unconfigured,
            false,
            FabricStep::Send(FabricCommand::OpenManager),
        ),
        (FabricTarget::Manager, Enabled, Unconfigured, true, FabricStep::Done),
        (FabricTarget::Manager, Enabled, Configured, true, FabricStep::Done),
        (FabricTarget::Configured, Enabled, Unconfigured, true, FabricStep::Wait),
        (FabricTarget::Configured, Enabled, Configured, false, FabricStep::Done),
        (FabricTarget::Configured, Disabled, Absent, false, FabricStep::Wait),
        (FabricTarget::Configured, Disabled, Absent, true, FabricStep::Done),
        (FabricTarget::Configured, Enabled, Stopped, true, FabricStep::Wait),
    ] {
        let found = next_step(goal, &observation(cluster, controller, open));
        assert_eq!(found, expected, "{goal:?} {cluster:?} {controller:?} {open}");
    }
}

/// A switch that obeys gets each command at most once.
#[test]
fn a_switch_that_obeys_reaches_its_goal() {
    for goal in [FabricTarget::Off, FabricTarget::Manager] {
        let mut now = observation(ClusterState::Disabled, ControllerState::Absent, false);
        if goal == FabricTarget::Off {
            now = observation(ClusterState::Enabled, ControllerState::Configured, true);
        }
        let mut reported = Vec::new();
        while let FabricStep::Send(what) = next_step(goal, &now) {
            assert!(!reported.contains(&what), "{goal:?} was told {what:?} twice");
            reported.push(what);
            match what {
                FabricCommand::Enable => {
                    (now.cluster, now.controller) =
                        (ClusterState::Enabled, ControllerState::Stopped)
                }
                FabricCommand::Disable => {
                    now = observation(ClusterState::Disabled, ControllerState::Absent, false)
                }
                FabricCommand::StartManager => now.controller = ControllerState::Unconfigured,
                FabricCommand::OpenManager => now.manager_open = true,
            }
        }
        assert_eq!(next_step(goal, &now), FabricStep::Done);
    }
}
