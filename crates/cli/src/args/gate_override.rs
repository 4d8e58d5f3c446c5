//! `--override GATE --reason TEXT`: the one way past a gate. The commands differ only in the gates
//! that their help names.

use super::Args;
use proto::v1::GateOverride;

/// The message for the gates and the reason; none if no gate is named.
pub fn gate_override(gates: &[String], reason: &str) -> Option<GateOverride> {
    (!gates.is_empty()).then(|| GateOverride { gates: gates.to_vec(), reason: reason.to_string() })
}

/// The help of `--override`.
macro_rules! override_help {
    ($gates:literal) => {
        concat!("Gates to pass: ", $gates, "; needs --reason")
    };
}
pub(super) use override_help;

/// Arguments for a command that has these gates.
macro_rules! override_args {
    ($($name:ident: $gates:literal;)*) => {$(
        #[derive(Debug, Default, Args)]
        pub struct $name {
            #[arg(
                long = "override",
                value_name = "GATE",
                value_delimiter = ',',
                requires = "reason",
                help = override_help!($gates)
            )]
            pub gates: Vec<String>,
            /// Reason for --override, for the record
            #[arg(
                long,
                value_name = "TEXT",
                requires = "gates",
                default_value = "",
                hide_default_value = true
            )]
            pub reason: String,
        }

        impl $name {
            pub fn to_message(&self) -> Option<GateOverride> {
                gate_override(&self.gates, &self.reason)
            }
        }
    )*};
}

override_args! {
    MachineOverrideArgs: "in-service, health, budget:NAME, window:NAME, freeze:NAME, approval";
    ExitMaintenanceOverrideArgs: "in-service, health, unfinished-disk, budget:NAME, window:NAME, freeze:NAME, approval";
    StartOverrideArgs: "in-service, health, unfinished-disk, budget:NAME, window:NAME, freeze:NAME, approval";
    OnboardOverrideArgs: "health, approval";
    RackOverrideArgs: "in-service, health, budget:NAME, window:NAME, freeze:NAME, approval";
    PowerShelfOverrideArgs: "health, approval; in-service, budget:NAME, window:NAME, freeze:NAME to switch off";
    ComponentOverrideArgs: "health, approval; in-service, budget:NAME, window:NAME, freeze:NAME not for shelves";
    RackDeleteOverrideArgs: "devices";
    MachineDeleteOverrideArgs: "unfinished-disk";
    DrainOverrideArgs: "health, agent, budget:NAME, window:NAME, freeze:NAME, approval";
    DecommissionOverrideArgs: "health, agent, maas, budget:NAME, window:NAME, freeze:NAME, approval";
}

impl From<MachineOverrideArgs> for StartOverrideArgs {
    fn from(MachineOverrideArgs { gates, reason }: MachineOverrideArgs) -> Self {
        Self { gates, reason }
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::{CommandFactory, Parser};
    use model::effect::DesiredPower;
    use model::gate::{self, Gate};
    use model::node::DecommissionMode;
    use model::plan::RunType;

    /// Every command with `--override`, how it is typed, and the gates of its request.
    fn commands() -> Vec<(&'static str, &'static [Gate])> {
        let on_machine = [
            ("reboot m-1", RunType::Reboot),
            ("reimage m-1", RunType::Reimage),
            ("enter-maintenance m-1", RunType::EnterMaintenance),
            ("exit-maintenance m-1", RunType::ExitMaintenance),
            ("machine rma m-1", RunType::Rma),
            ("machine exit-rma m-1", RunType::ExitRma),
            ("machine power m-1 on", RunType::Power),
            ("machine power m-1 off", RunType::Power),
            ("machine power m-1 cycle", RunType::Power),
            ("operation start m-1 --type EXIT_MAINTENANCE", RunType::ExitMaintenance),
        ];
        let off = gate::shelf_power(DesiredPower::Off);
        let full = gate::decommission(DecommissionMode::FullDecommission);
        let drain = gate::decommission(DecommissionMode::Drain);
        let others = [
            ("node onboard m-1 --site site-a", gate::ONBOARD_NODE),
            ("rack maintenance start rack-1", gate::RACK_MAINTENANCE),
            ("rack reprovision rack-1", gate::RACK_MAINTENANCE),
            ("rack delete rack-1", gate::DELETE_RACK),
            ("machine delete m-1", gate::DELETE_MACHINE),
            ("admin set-rma m-1", gate::FLAG_MACHINE),
            ("admin set-retired m-1", gate::FLAG_MACHINE),
            ("power-shelf maintenance power-off --id ps-1", off),
            ("component firmware update --compute-trays m-1", gate::RACK_MAINTENANCE),
            ("node decommission node-1 --mode reimage", full),
            ("node drain node-1", drain),
            ("node retire node-1", drain),
            ("operation rerun op-1", gate::RESTART),
            ("operation restart-clean op-1", gate::RESTART),
            ("node release node-1", gate::RELEASE_NODE),
            ("node reactivate node-1", gate::REACTIVATE_NODE),
        ];
        let on_machine = on_machine.map(|(line, run_type)| (line, gate::machine_run(run_type)));
        on_machine.into_iter().chain(others).collect()
    }

    #[test]
    fn every_command_names_the_gates_of_its_request() {
        for (line, gates) in commands() {
            let mut command = Cli::command();
            let mut found = &mut command;
            for word in line.split(' ') {
                if found.find_subcommand(word).is_some() {
                    found = found.find_subcommand_mut(word).unwrap();
                }
            }
            let arg = found.get_arguments().find(|arg| arg.get_long() == Some("override"));
            let help = arg.unwrap_or_else(|| panic!("{line}")).get_help().unwrap().to_string();
            let named = |gate: &Gate| {
                help.split(|c: char| c != '-' && !c.is_alphabetic()).any(|one| one == gate.as_str())
            };
            for gate in Gate::ALL {
                assert_eq!(named(&gate), gates.contains(&gate), "{line}: {gate}: {help}");
            }
        }
    }

    #[test]
    fn an_override_needs_a_gate_and_a_reason() {
        for (line, gates) in commands() {
            let gate = gates[0];
            for (words, taken) in [
                (format!("--override {gate} --reason fire"), true),
                (format!("--reason fire --override {gate} --override {gate},{gate}"), true),
                (format!("--override {gate}"), false),
                ("--override --reason fire".into(), false),
            ] {
                let line = format!("farrier {line} {words}");
                assert_eq!(Cli::try_parse_from(line.split(' ')).is_ok(), taken, "{line}");
            }
            // These have a reason of their own.
            let own = ["release", "reactivate", "admin", "operation re"]
                .iter()
                .any(|word| line.contains(word));
            let alone = format!("farrier {line} --reason fire");
            assert_eq!(Cli::try_parse_from(alone.split(' ')).is_ok(), own, "{alone}");
        }
    }
}
