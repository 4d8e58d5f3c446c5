//! Power and RMA commands of a machine: each starts a run, which is followed like any other.

use crate::args::{
    MachineOperationArgs, OperationStartArgs, OperationTypeArg, PowerAction, PowerArgs,
    PowerOffArgs,
};
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::hardware;
use crate::operation;
use crate::output::Screen;

const POWER_ON_PLAN: &str = "plan-power-on-v1";
const POWER_OFF_PLAN: &str = "plan-power-off-v1";
const POWER_CYCLE_PLAN: &str = "plan-power-cycle-v1";

/// Shows the power state, or starts the run that changes it.
pub async fn run(client: &Client, screen: &mut Screen, args: PowerArgs) -> Result<Exit> {
    let PowerArgs { machine_id, action } = args;
    match start_args(&machine_id, action.unwrap_or(PowerAction::Status)) {
        None => hardware::show_power(client, screen, &machine_id).await,
        Some(start) => operation::start(client, screen, start).await,
    }
}

/// The run to start; none if only the power state is requested.
fn start_args(machine_id: &str, action: PowerAction) -> Option<OperationStartArgs> {
    let (plan, params, overrides, submit) = match action {
        PowerAction::Status => return None,
        PowerAction::On(on) => (POWER_ON_PLAN, Vec::new(), on.overrides, on.submit),
        PowerAction::Off(off) => {
            (POWER_OFF_PLAN, power_off_params(&off), off.overrides, off.submit)
        }
        PowerAction::Cycle(off) => {
            (POWER_CYCLE_PLAN, power_off_params(&off), off.overrides, off.submit)
        }
    };
    let (machine_id, plan_id) = (machine_id.to_string(), plan.to_string());
    let kind = OperationTypeArg::Power;
    let overrides = overrides.into();
    Some(OperationStartArgs { machine_id, kind, plan_id, params, overrides, submit })
}

fn power_off_params(off: &PowerOffArgs) -> Vec<(String, String)> {
    let graceful = off.graceful.map(|seconds| ("graceful_seconds".into(), seconds.to_string()));
    let force = off.force().map(|force| ("force".into(), force.to_string()));
    graceful.into_iter().chain(force).collect()
}

/// Starts the run that takes a machine out for RMA.
pub async fn start_rma(
    client: &Client,
    screen: &mut Screen,
    args: MachineOperationArgs,
) -> Result<Exit> {
    operation::start(client, screen, default_plan_args(OperationTypeArg::Rma, args)).await
}

/// Starts the run that returns a machine from RMA.
pub async fn start_exit_rma(
    client: &Client,
    screen: &mut Screen,
    args: MachineOperationArgs,
) -> Result<Exit> {
    operation::start(client, screen, default_plan_args(OperationTypeArg::ExitRma, args)).await
}

fn default_plan_args(kind: OperationTypeArg, args: MachineOperationArgs) -> OperationStartArgs {
    let MachineOperationArgs { machine_id, overrides, submit } = args;
    let (plan_id, params) = (String::new(), Vec::new());
    let overrides = overrides.into();
    OperationStartArgs { machine_id, kind, plan_id, params, overrides, submit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, ClientCommand, Command, MachineCommand};
    use clap::Parser;

    #[test]
    fn every_word_is_a_plan_of_the_server() {
        for (line, plan, params) in [
            ("on", POWER_ON_PLAN, vec![]),
            ("off", POWER_OFF_PLAN, vec![]),
            (
                "off --graceful 0 --force",
                POWER_OFF_PLAN,
                vec![("graceful_seconds", "0"), ("force", "true")],
            ),
            ("cycle --no-force", POWER_CYCLE_PLAN, vec![("force", "false")]),
        ] {
            let line = format!("farrier machine power m-1 {line}");
            let command = Cli::try_parse_from(line.split(' ')).unwrap().command;
            let Command::Client(ClientCommand::Machine(MachineCommand::Power(args))) = command
            else {
                panic!("{line}")
            };
            let requested = start_args(&args.machine_id, args.action.unwrap()).unwrap();
            let given: Vec<(&str, &str)> = requested
                .params
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            assert_eq!((requested.plan_id.as_str(), given), (plan, params), "{line}");
            assert_eq!(requested.kind.wire_name(), "POWER");
        }
    }
}
