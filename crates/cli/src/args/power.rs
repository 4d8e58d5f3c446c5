//! `farrier machine power`.

use super::{Args, MachineOverrideArgs, Subcommand, SubmitArgs};

const POWER_HELP: &str = "\
Examples:
  farrier machine power machine-1
  farrier machine power machine-1 on
  farrier machine power machine-1 off --graceful 120 --no-force
  farrier machine power machine-1 cycle --graceful 0";

#[derive(Debug, Args)]
#[command(after_help = POWER_HELP)]
pub struct PowerArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// Power action (default: show the power state)
    #[command(subcommand)]
    pub action: Option<PowerAction>,
}

#[derive(Debug, Subcommand)]
pub enum PowerAction {
    /// Read the power state from the BMC
    Status,
    /// Switch the machine on; succeed if it is already on
    On(PowerOnArgs),
    /// Switch the machine off (READY or MAINTENANCE); succeed if it is already off
    Off(PowerOffArgs),
    /// Switch the machine off and on again (READY or MAINTENANCE)
    Cycle(PowerOffArgs),
}

#[derive(Debug, Args)]
pub struct PowerOnArgs {
    #[command(flatten)]
    pub overrides: MachineOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct PowerOffArgs {
    /// Seconds to wait for a graceful shutdown; 0: cut the power (default: configured)
    #[arg(long, value_name = "SECONDS")]
    pub graceful: Option<u32>,
    /// Cut the power if the graceful shutdown times out (default: configured)
    #[arg(long, overrides_with = "no_force")]
    force: bool,
    /// Fail and leave the machine on if the graceful shutdown times out
    #[arg(long, overrides_with = "force")]
    no_force: bool,
    #[command(flatten)]
    pub overrides: MachineOverrideArgs,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

impl PowerOffArgs {
    pub fn force(&self) -> Option<bool> {
        match (self.force, self.no_force) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, ClientCommand, Command, MachineCommand, PowerAction};
    use clap::Parser;

    #[test]
    fn the_last_word_about_force_counts() {
        for (words, expected) in [
            ("", None),
            (" --force", Some(true)),
            (" --no-force", Some(false)),
            (" --force --no-force", Some(false)),
            (" --no-force --force", Some(true)),
        ] {
            let line = format!("farrier machine power m-1 off --graceful 5{words}");
            let command = Cli::try_parse_from(line.split(' ')).unwrap().command;
            let Command::Client(ClientCommand::Machine(MachineCommand::Power(args))) = command
            else {
                panic!("{line}")
            };
            let Some(PowerAction::Off(off)) = args.action else { panic!("{line}") };
            assert_eq!((off.graceful, off.force()), (Some(5), expected), "{line}");
        }
        for bad in ["on --graceful 5", "off --graceful soon", "sideways"] {
            let line = format!("farrier machine power m-1 {bad}");
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
