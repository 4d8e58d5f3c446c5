//! Arguments of what leads a machine out of service and back: maintenance, and power.

use super::{Args, Subcommand, SubmitArgs};

#[derive(Debug, Args)]
pub struct EnterArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// Drain its node first; without this, draining is its owner's to do
    #[arg(long)]
    pub drain: bool,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct ExitArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// Let its node take work again, whoever cordoned it
    #[arg(long)]
    pub uncordon: bool,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

const POWER_HELP: &str = "\
Examples:
  farrier machine power machine-1
  farrier machine power machine-1 on
  farrier machine power machine-1 off --graceful 120 --no-force
  farrier machine power machine-1 cycle --graceful 0";

#[derive(Debug, Args)]
#[command(after_help = POWER_HELP)]
pub struct PowerArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// What is wanted; without a word, how it is now
    #[command(subcommand)]
    pub verb: Option<PowerVerb>,
}

#[derive(Debug, Subcommand)]
pub enum PowerVerb {
    /// Ask the BMC whether it is on
    Status,
    /// Switch it on; already on is a success
    On(OnArgs),
    /// Switch it off (READY or MAINTENANCE); already off is a success
    Off(OffArgs),
    /// Switch it off and on again (READY or MAINTENANCE)
    Cycle(OffArgs),
}

#[derive(Debug, Args)]
pub struct OnArgs {
    #[command(flatten)]
    pub submit: SubmitArgs,
}

#[derive(Debug, Args)]
pub struct OffArgs {
    /// How long it has to shut down by itself; 0 cuts the power at once; as configured when not given
    #[arg(long, value_name = "SECONDS")]
    pub graceful: Option<u32>,
    /// Cut the power when it does not shut down; as configured when neither is given
    #[arg(long, overrides_with = "no_force")]
    force: bool,
    /// Leave it on when it does not shut down, and fail
    #[arg(long, overrides_with = "force")]
    no_force: bool,
    #[command(flatten)]
    pub submit: SubmitArgs,
}

impl OffArgs {
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
    use crate::args::{Cli, ClientCommand, Command, MachineCommand, PowerVerb};
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
            let Some(PowerVerb::Off(off)) = args.verb else { panic!("{line}") };
            assert_eq!((off.graceful, off.force()), (Some(5), expected), "{line}");
        }
        for bad in ["on --graceful 5", "off --graceful soon", "sideways"] {
            let line = format!("farrier machine power m-1 {bad}");
            assert_eq!(Cli::try_parse_from(line.split(' ')).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
